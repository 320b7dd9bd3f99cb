//! Copying a range with io_uring(7): reads and writes of one file overlap in one thread.
//!
//! The buffers are registered with the kernel once, so that a request pins no memory anew.
#![allow(unsafe_code)]
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use crate::buffer::PageBuffer;
use crate::{AsFd, Errno, Result};

/// A queue with its buffers.
pub struct Ring {
    // Dropped first: the kernel lets go of the buffers with it.
    ring: IoUring,
    buffers: Vec<PageBuffer>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("buffers", &self.buffers.len()).finish_non_exhaustive()
    }
}

/// Why a copy ended before its range did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingError {
    /// Reading failed.
    Read(Errno),
    /// Writing failed.
    Write(Errno),
    /// The source ended before the range.
    Shrunk,
    /// Requests come back without having moved anything; plain calls will tell why.
    Stuck,
    /// The queue itself failed, and is of no use any more.
    Queue(Errno),
    /// The caller wanted no more.
    Stopped,
}

/// What is to be copied.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// First byte at the source.
    pub from: u64,
    /// First byte at the destination.
    pub to: u64,
    /// How many bytes; with direct writes a multiple of their alignment.
    pub length: u64,
    /// Multiples of this are the only offsets and lengths that both files take; 1 where any will do.
    pub align: u64,
}

/// More requests in a row than this that the kernel sends back untried mean that it will go on so.
const AGAIN_MAX: u32 = 1000;

/// One buffer on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Idle,
    /// `filled` of `length` bytes at `offset` of the span were read.
    Reading {
        offset: u64,
        length: usize,
        filled: usize,
    },
    /// `written` of `length` bytes were written.
    Writing {
        offset: u64,
        length: usize,
        written: usize,
    },
}

impl Ring {
    /// A queue of `depth` buffers; `None` where the kernel or a sandbox has no io_uring.
    pub fn new(depth: usize, buffer_bytes: usize) -> Result<Option<Self>> {
        #[cfg(feature = "simulated")]
        if dmover_schedule::simulation::is_running() {
            return Ok(None);
        }
        let ring = match IoUring::new((depth as u32 * 2).next_power_of_two()) {
            Ok(ring) => ring,
            Err(error) => {
                return match Errno::from_io_error(&error) {
                    Some(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => Ok(None),
                    Some(errno) => Err(errno),
                    None => Err(Errno::IO),
                };
            }
        };
        let mut buffers: Vec<PageBuffer> =
            (0..depth).map(|_| PageBuffer::new(buffer_bytes)).collect();
        let parts: Vec<libc::iovec> = buffers
            .iter_mut()
            .map(|b| libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() })
            .collect();
        // SAFETY: the buffers live as long as the ring, which is dropped before them.
        match unsafe { ring.submitter().register_buffers(&parts) } {
            Ok(()) => Ok(Some(Self { ring, buffers })),
            // The memory that a user may lock is small on old kernels.
            Err(_) => Ok(None),
        }
    }

    /// Copies a span, telling `moved` how many bytes were written (now and then 0) and asking it whether to go on.
    /// When it returns, no request is under way.
    pub fn copy(
        &mut self,
        source: impl AsFd,
        destination: impl AsFd,
        span: Span,
        moved: &mut dyn FnMut(u64) -> bool,
    ) -> std::result::Result<(), RingError> {
        if self.buffers.is_empty() {
            return Err(RingError::Queue(Errno::IO));
        }
        let files = (source.as_fd().as_raw_fd(), destination.as_fd().as_raw_fd());
        let mut pass = Pass {
            span,
            files,
            next: 0,
            in_flight: 0,
            slots: vec![Slot::Idle; self.buffers.len()],
            failure: None,
            again: 0,
            refused: 0,
        };
        loop {
            if pass.failure.is_none() && !moved(0) {
                pass.failure = Some(RingError::Stopped);
            }
            if pass.failure.is_none() {
                self.fill(&mut pass);
            }
            if pass.in_flight == 0 {
                return pass.failure.map_or(Ok(()), Err);
            }
            let waited = self.ring.submit_and_wait(1).err();
            let errno = waited.map(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
            let done: Vec<cqueue::Entry> = self.ring.completion().collect();
            let stands_still = errno.is_some() && done.is_empty();
            pass.refused = if stands_still { pass.refused + 1 } else { 0 };
            if let Some(errno) = errno
                && (!is_passing(errno) || pass.refused > AGAIN_MAX)
            {
                // Requests may be under way for ever, and the kernel may write into their buffers: nobody
                // else ever gets them.
                std::mem::forget(std::mem::take(&mut self.buffers));
                return Err(RingError::Queue(errno));
            }
            if stands_still && errno != Some(Errno::INTR) {
                std::thread::sleep(Duration::from_millis(1)); // the kernel is short of memory
            }
            for entry in done {
                pass.in_flight -= 1;
                self.complete(&mut pass, &entry, moved);
            }
        }
    }

    /// Starts a read in every idle slot.
    fn fill(&mut self, pass: &mut Pass) {
        for index in 0..pass.slots.len() {
            if pass.slots[index] == Slot::Idle && pass.next < pass.span.length {
                let most = self.buffers[index].len() as u64;
                let length = most.min(pass.span.length - pass.next) as usize;
                pass.slots[index] = Slot::Reading { offset: pass.next, length, filled: 0 };
                pass.next += length as u64;
                self.push(pass, index);
            }
        }
    }

    fn complete(
        &mut self,
        pass: &mut Pass,
        entry: &cqueue::Entry,
        moved: &mut dyn FnMut(u64) -> bool,
    ) {
        let index = entry.user_data() as usize;
        let slot = pass.slots[index];
        let result = entry.result();
        let again = result == -libc::EINTR || result == -libc::EAGAIN;
        if result < 0 && !again {
            let errno = Errno::from_raw_os_error(-result);
            let failure = match slot {
                Slot::Writing { .. } => RingError::Write(errno),
                _ => RingError::Read(errno),
            };
            pass.failure.get_or_insert(failure);
        }
        pass.again = if again { pass.again + 1 } else { 0 };
        if pass.again > AGAIN_MAX {
            pass.failure.get_or_insert(RingError::Stuck);
        }
        if pass.failure.is_some() {
            return;
        }
        let bytes = result.max(0) as usize;
        // What was moved so far need not end on a border; then the piece before it is moved again. A request
        // that does not even reach the next border has met the end of the file, or of the storage.
        let border = |done: usize| done - done % pass.span.align as usize;
        let stuck = |done: usize, length: usize| {
            !again && done + bytes < length && border(done + bytes) <= border(done)
        };
        pass.slots[index] = match slot {
            Slot::Idle => Slot::Idle,
            Slot::Reading { length, filled, .. } if stuck(filled, length) => {
                pass.failure = Some(RingError::Shrunk);
                return;
            }
            Slot::Reading { offset, length, filled } => {
                let filled = filled + bytes;
                if filled < length {
                    Slot::Reading { offset, length, filled: border(filled) }
                } else {
                    Slot::Writing { offset, length, written: 0 }
                }
            }
            Slot::Writing { length, written, .. } if stuck(written, length) => {
                pass.failure = Some(RingError::Stuck);
                return;
            }
            Slot::Writing { offset, length, written } => {
                if bytes > 0 && !moved(bytes as u64) {
                    pass.failure = Some(RingError::Stopped);
                    return;
                }
                let written = written + bytes;
                if written < length {
                    Slot::Writing { offset, length, written: border(written) }
                } else {
                    Slot::Idle
                }
            }
        };
        self.push(pass, index);
    }

    /// Submits what a slot needs next.
    fn push(&mut self, pass: &mut Pass, index: usize) {
        let (source, destination): (RawFd, RawFd) = pass.files;
        let buffer = &mut self.buffers[index];
        let request: squeue::Entry = match pass.slots[index] {
            Slot::Idle => return,
            Slot::Reading { offset, length, filled } => {
                let rest = &mut buffer[filled..length];
                let (at, bytes) = (pass.span.from + offset + filled as u64, rest.len() as u32);
                let fd = types::Fd(source);
                opcode::ReadFixed::new(fd, rest.as_mut_ptr(), bytes, index as u16)
                    .offset(at)
                    .build()
            }
            Slot::Writing { offset, length, written } => {
                let rest = &buffer[written..length];
                let (at, bytes) = (pass.span.to + offset + written as u64, rest.len() as u32);
                let fd = types::Fd(destination);
                opcode::WriteFixed::new(fd, rest.as_ptr(), bytes, index as u16).offset(at).build()
            }
        };
        let request = request.user_data(index as u64);
        // SAFETY: the buffer stays where it is until the request has completed: `copy` does not return
        // before, and nothing else touches the buffer of a slot that is not idle.
        if unsafe { self.ring.submission().push(&request) }.is_err() {
            // The queue is twice as long as there are slots.
            pass.failure.get_or_insert(RingError::Queue(Errno::AGAIN));
            return;
        }
        pass.in_flight += 1;
    }
}

/// One call of [`Ring::copy`].
struct Pass {
    span: Span,
    files: (RawFd, RawFd),
    /// Where the next read begins, from the start of the span.
    next: u64,
    in_flight: usize,
    slots: Vec<Slot>,
    failure: Option<RingError>,
    /// Requests in a row that were not even tried.
    again: u32,
    /// Submissions in a row that were refused while nothing ended.
    refused: u32,
}

/// Refusals that end on their own.
fn is_passing(errno: Errno) -> bool {
    matches!(errno, Errno::INTR | Errno::AGAIN | Errno::BUSY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Seek as _, Write as _};

    fn file(bytes: &[u8]) -> std::fs::File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn a_span_arrives_at_its_place() {
        let Some(mut ring) = Ring::new(4, 8192).unwrap() else { return };
        let bytes: Vec<u8> =
            (0..300_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let (source, mut destination) = (file(&bytes), file(&[9; 10]));
        let mut told = 0;
        let span = Span { from: 1000, to: 10, length: 250_001, align: 1 };
        ring.copy(&source, &destination, span, &mut |n| {
            told += n;
            true
        })
        .unwrap();
        let mut got = Vec::new();
        destination.rewind().unwrap();
        destination.read_to_end(&mut got).unwrap();
        assert_eq!(told, 250_001);
        assert_eq!(&got[..10], &[9; 10]);
        assert!(got[10..] == bytes[1000..251_001]);
    }

    #[test]
    fn an_early_end_and_a_stop_are_told() {
        let Some(mut ring) = Ring::new(4, 4096).unwrap() else { return };
        let (source, destination) = (file(&[1; 10_000]), file(&[]));
        let span = Span { from: 0, to: 0, length: 20_000, align: 1 };
        let ended = ring.copy(&source, &destination, span, &mut |_| true);
        assert_eq!(ended, Err(RingError::Shrunk));
        let span = Span { length: 10_000, ..span };
        let ended = ring.copy(&source, &destination, span, &mut |_| false);
        assert_eq!(ended, Err(RingError::Stopped));
        let closed = std::fs::File::open("/dev/null").unwrap();
        let ended = ring.copy(&source, &closed, span, &mut |_| true);
        assert_eq!(ended, Err(RingError::Write(Errno::BADF)));
        let source = file(&[1; 10_000]);
        let span = Span { length: 12_288, align: 4096, ..span };
        let ended = ring.copy(&source, &destination, span, &mut |_| true);
        assert_eq!(ended, Err(RingError::Shrunk), "an end between borders");
        let span = Span { length: 10_000, align: 1, ..span };
        // The queue is as good as new after each.
        assert_eq!(ring.copy(&source, &destination, span, &mut |_| true), Ok(()));
    }
}
