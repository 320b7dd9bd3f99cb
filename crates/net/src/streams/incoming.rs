//! What comes from the other side: chunks by their numbers, given on in order. No clock, no I/O.
use std::collections::{BTreeMap, VecDeque};

use super::chunk::CHUNK_OVERHEAD;

/// The number of bytes after which their arrival is acknowledged.
const ACKNOWLEDGE_EVERY: usize = 512 << 10;

/// Bytes in order that nobody has taken. The reader takes them as soon as it can, and does not wait for anything else.
const READY_MAX: usize = 32 << 20;

/// Buffers that are kept for chunks to come.
const BUFFERS_MAX: usize = 32;

/// Chunks that have come.
#[derive(Debug)]
pub(super) struct Incoming {
    /// The number of the next chunk in order.
    next: u64,
    /// Those that came too early.
    early: BTreeMap<u64, Vec<u8>>,
    early_bytes: usize,
    early_max: usize,
    /// Those in order that nobody has taken yet.
    ready: VecDeque<Vec<u8>>,
    ready_bytes: usize,
    /// Bytes whose arrival was not acknowledged yet.
    unacknowledged: usize,
    /// Buffers of chunks that were taken, as long as they were: memory from the kernel would have to be filled with zeros.
    buffers: Vec<Vec<u8>>,
}

/// What a chunk that has come changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Came {
    /// There is more to read.
    pub is_ready: bool,
    /// An acknowledgement is due.
    pub acknowledge: bool,
}

/// More has come than the other side may send.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMuch;

impl Incoming {
    pub fn new(early_max: usize) -> Self {
        Self {
            next: 0,
            early: BTreeMap::new(),
            early_bytes: 0,
            early_max,
            ready: VecDeque::new(),
            ready_bytes: 0,
            unacknowledged: 0,
            buffers: Vec::new(),
        }
    }

    /// A buffer for a chunk of this length.
    pub fn buffer(&mut self, length: usize) -> Vec<u8> {
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.resize(length, 0);
        buffer
    }

    /// Takes a buffer back.
    pub fn used(&mut self, buffer: Vec<u8>) {
        if self.buffers.len() < BUFFERS_MAX {
            self.buffers.push(buffer);
        }
    }

    /// A chunk has come. Chunks may come twice, after a stream has ended.
    pub fn came(&mut self, number: u64, bytes: Vec<u8>) -> Result<Came, TooMuch> {
        if number < self.next || self.early.contains_key(&number) {
            // The other side may not know that it came.
            return Ok(Came { is_ready: false, acknowledge: true });
        }
        if number != self.next {
            self.early_bytes += bytes.len() + CHUNK_OVERHEAD;
            if self.early_bytes > self.early_max {
                return Err(TooMuch);
            }
            let bytes = self.exact(bytes);
            self.early.insert(number, bytes);
            return Ok(Came { is_ready: false, acknowledge: false });
        }
        self.take_on(bytes);
        while let Some(bytes) = self.early.remove(&self.next) {
            self.early_bytes -= bytes.len() + CHUNK_OVERHEAD;
            self.take_on(bytes);
        }
        Ok(Came { is_ready: true, acknowledge: self.unacknowledged >= ACKNOWLEDGE_EVERY })
    }

    /// A chunk in memory of its own length. A buffer that was used before may be many times as long, and is not counted.
    fn exact(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        if bytes.capacity() == bytes.len() {
            return bytes;
        }
        let exact = bytes.as_slice().into();
        self.used(bytes);
        exact
    }

    fn take_on(&mut self, bytes: Vec<u8>) {
        self.next += 1;
        self.unacknowledged += bytes.len();
        self.ready_bytes += bytes.len();
        self.ready.push_back(bytes);
    }

    /// The next bytes in order.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let bytes = self.ready.pop_front()?;
        self.ready_bytes -= bytes.len();
        Some(bytes)
    }

    /// Whether the reader has to catch up before more is received.
    pub fn is_full(&self) -> bool {
        self.ready_bytes > READY_MAX
    }

    /// The memory of the chunks that came too early.
    #[cfg(any(test, fuzzing))]
    pub fn early_memory(&self) -> usize {
        self.early.values().map(|bytes| bytes.capacity() + CHUNK_OVERHEAD).sum()
    }

    /// The number to acknowledge: all chunks before it have come.
    pub fn acknowledge(&mut self) -> u64 {
        self.unacknowledged = 0;
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(incoming: &mut Incoming) -> Vec<u8> {
        std::iter::from_fn(|| incoming.take()).flatten().collect()
    }

    #[test]
    fn chunks_are_given_on_in_order_and_once() {
        let mut incoming = Incoming::new(1000);
        assert!(!incoming.came(2, vec![2]).expect("room").is_ready);
        assert!(!incoming.came(1, vec![1]).expect("room").is_ready);
        assert!(!incoming.came(2, vec![2]).expect("room").is_ready);
        assert!(taken(&mut incoming).is_empty());
        assert!(incoming.came(0, vec![0]).expect("room").is_ready);
        assert_eq!(taken(&mut incoming), [0, 1, 2]);
        // The other side does not know that it came, or would not send it again.
        let again = incoming.came(1, vec![1]).expect("room");
        assert_eq!(again, Came { is_ready: false, acknowledge: true });
        assert_eq!((incoming.acknowledge(), taken(&mut incoming)), (3, Vec::new()));
    }

    #[test]
    fn arrival_is_acknowledged_after_many_bytes() {
        let mut incoming = Incoming::new(1000);
        let half = vec![0; ACKNOWLEDGE_EVERY / 2];
        assert!(!incoming.came(0, half.clone()).expect("room").acknowledge);
        assert!(incoming.came(1, half.clone()).expect("room").acknowledge);
        assert_eq!(incoming.acknowledge(), 2);
        assert!(!incoming.came(2, half).expect("room").acknowledge);
    }

    #[test]
    fn memory_is_bounded_while_one_is_missing() {
        let mut incoming = Incoming::new(10 + 2 * CHUNK_OVERHEAD);
        assert!(incoming.came(1, vec![0; 6]).is_ok());
        assert_eq!(incoming.came(2, vec![0; 6]), Err(TooMuch));
    }

    #[test]
    fn more_than_may_wait_for_the_reader_is_noticed() {
        let mut incoming = Incoming::new(1000);
        for number in 0..=32 {
            assert!(!incoming.is_full());
            incoming.came(number, vec![0; 1 << 20]).expect("room");
        }
        assert!(incoming.is_full());
        incoming.take();
        assert!(!incoming.is_full());
    }

    #[test]
    fn a_short_chunk_keeps_no_long_buffer() {
        let mut incoming = Incoming::new(100_000);
        for number in 1..=20 {
            incoming.used(Vec::with_capacity(50_000));
            let buffer = incoming.buffer(1);
            assert!(incoming.came(number, buffer).is_ok());
        }
        assert!(incoming.early_memory() <= 20 * (1 + CHUNK_OVERHEAD));
        assert!(incoming.buffer(1).capacity() >= 50_000, "the buffers are used again");
    }
}
