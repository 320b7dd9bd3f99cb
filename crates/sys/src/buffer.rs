//! Memory for direct I/O.
#![allow(unsafe_code)]
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes that begin on a page, as direct I/O needs it; larger alignments than a page are not in use.
#[derive(Debug)]
pub struct PageBuffer {
    start: NonNull<u8>,
    layout: Layout,
}

/// The alignment of a [`PageBuffer`], and of the offsets that are used with it.
pub const PAGE: u64 = 4096;

impl PageBuffer {
    /// A buffer of at least `bytes`, in whole pages.
    ///
    /// # Panics
    /// If there is no such memory.
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes.max(1).next_multiple_of(PAGE as usize);
        let layout = Layout::from_size_align(bytes, PAGE as usize).expect("a size that fits");
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, layout }
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes were allocated, initialised, and belong to this buffer alone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this very layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

// SAFETY: the buffer owns its memory, like a boxed slice.
unsafe impl Send for PageBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for PageBuffer {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_on_a_page_and_has_whole_pages() {
        for bytes in [0, 1, 4096, 5000] {
            let mut buffer = PageBuffer::new(bytes);
            assert_eq!(buffer.as_ptr() as usize % PAGE as usize, 0);
            assert!(buffer.len() >= bytes && buffer.len().is_multiple_of(PAGE as usize));
            buffer.fill(7);
            assert!(buffer.iter().all(|b| *b == 7));
        }
    }
}
