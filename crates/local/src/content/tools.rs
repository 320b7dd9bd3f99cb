//! The buffers and queues of a mover.
use dmover_plan::chunk::{Step, Stride};
use dmover_sys::buffer::PageBuffer;
use dmover_sys::ring::Ring;
use std::cell::OnceCell;

/// Requests of one ring in progress at a time, if memory allows.
const DEPTH: usize = 8;
/// The least bytes of one request of a ring.
pub(crate) const RING_PIECE_MIN: usize = 128 << 10;
const PIECE_AT_MOST: usize = 1 << 20;

/// A buffer, and an io_uring queue once one is needed.
pub struct Tools {
    /// For bytes on their way; its start is at a page.
    pub buffer: PageBuffer,
    /// How much of a chunk is copied at a time.
    pub step: Step,
    /// How many names are copied at a time.
    pub stride: Stride,
    ring: OnceCell<Option<Ring>>,
    /// The size of all buffers of the ring.
    ring_bytes: usize,
}

impl Tools {
    /// A buffer of this size, and an io_uring queue of this size once it is needed. `is_limited`: bytes are, so steps are short.
    pub fn new((buffer_bytes, ring_bytes): (usize, usize), is_limited: bool) -> Self {
        let buffer = PageBuffer::new(buffer_bytes);
        let step = if is_limited { Step::limited() } else { Step::default() };
        Self { buffer, step, stride: Stride::default(), ring: OnceCell::new(), ring_bytes }
    }

    /// Stops using the queue after a failure.
    pub(crate) fn give_up_ring(&mut self) {
        self.ring = OnceCell::from(None);
    }

    /// The mover's queue; `None` where there is no io_uring.
    pub fn ring(&mut self) -> Option<&mut Ring> {
        let bytes = self.ring_bytes;
        self.ring.get_or_init(|| {
            if bytes < 2 * RING_PIECE_MIN {
                tracing::warn!(
                    "--memory is too small for io_uring with this many movers; dmover does not \
                    use it"
                );
                return None;
            }
            let piece = (bytes / 4).clamp(RING_PIECE_MIN, PIECE_AT_MOST);
            let made = Ring::new((bytes / piece).clamp(2, DEPTH), piece);
            made.unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot use io_uring");
                None
            })
        });
        self.ring.get_mut().and_then(Option::as_mut)
    }
}
