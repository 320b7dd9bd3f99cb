//! What one side sends: chunks in order, until the other side has all of them. No clock, no I/O.
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::chunk::{CHUNK_MAX, CHUNK_OVERHEAD};

/// Short writes are collected in one chunk up to this length.
const COLLECTED_MAX: usize = 16 << 10;
/// Bytes that wait for a stream. Whoever writes more waits: what waits here delays all that is written after it.
pub(super) const WAITING_MAX: usize = 2 << 20;

/// Names a stream of a pool. Numbers are not used again.
pub(super) type StreamNumber = u64;

/// A chunk that a stream has taken, or has to take again.
#[derive(Debug)]
struct Sent {
    bytes: Arc<Vec<u8>>,
    /// The stream that took it last.
    by: StreamNumber,
    at_ms: u64,
}

/// A chunk to send.
#[derive(Debug, Clone)]
pub(super) struct Taken {
    pub number: u64,
    pub bytes: Arc<Vec<u8>>,
}

/// The chunks that the other side does not have yet.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// The number of the first chunk that the other side does not have.
    received: u64,
    /// From that number on: what streams have taken.
    sent: VecDeque<Sent>,
    /// After those: what no stream has taken yet.
    waiting: VecDeque<Vec<u8>>,
    /// Numbers of `sent` whose streams have ended.
    again: BTreeSet<u64>,
    /// With what they take besides.
    sent_bytes: usize,
    waiting_bytes: usize,
    /// Bytes in `sent` and `waiting` at most.
    held_max: usize,
}

/// The other side says that it has what was not sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NeverSent;

impl Outgoing {
    pub fn new(held_max: usize) -> Self {
        Self {
            received: 0,
            sent: VecDeque::new(),
            waiting: VecDeque::new(),
            again: BTreeSet::new(),
            sent_bytes: 0,
            waiting_bytes: 0,
            held_max,
        }
    }

    /// Whether more may be written now.
    pub fn has_room(&self) -> bool {
        self.waiting_bytes < WAITING_MAX && self.sent_bytes + self.waiting_bytes < self.held_max
    }

    /// Appends bytes.
    pub fn write(&mut self, parts: &[std::io::IoSlice<'_>]) {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        self.waiting_bytes += length;
        if let Some(last) = self.waiting.back_mut()
            && last.len() + length <= COLLECTED_MAX
        {
            for part in parts {
                last.extend_from_slice(part);
            }
            return;
        }
        let mut left = length;
        let mut chunk = Vec::with_capacity(left.min(CHUNK_MAX));
        for part in parts {
            let mut part = &part[..];
            while !part.is_empty() {
                let now = part.len().min(CHUNK_MAX - chunk.len());
                chunk.extend_from_slice(&part[..now]);
                part = &part[now..];
                left -= now;
                if chunk.len() == CHUNK_MAX {
                    let next = Vec::with_capacity(left.min(CHUNK_MAX));
                    self.waiting.push_back(std::mem::replace(&mut chunk, next));
                }
            }
        }
        if !chunk.is_empty() {
            self.waiting.push_back(chunk);
        }
    }

    /// Whether a stream could take something.
    pub fn has_waiting(&self) -> bool {
        !self.again.is_empty() || !self.waiting.is_empty()
    }

    /// The next chunk for a stream: first those of streams that have ended, because the other side waits for them.
    pub fn take(&mut self, by: StreamNumber, now_ms: u64) -> Option<Taken> {
        if let Some(number) = self.again.pop_first() {
            let sent = &mut self.sent[(number - self.received) as usize];
            (sent.by, sent.at_ms) = (by, now_ms);
            return Some(Taken { number, bytes: Arc::clone(&sent.bytes) });
        }
        let bytes = Arc::new(self.waiting.pop_front()?);
        self.waiting_bytes -= bytes.len();
        self.sent_bytes += bytes.len() + CHUNK_OVERHEAD;
        let number = self.received + self.sent.len() as u64;
        self.sent.push_back(Sent { bytes: Arc::clone(&bytes), by, at_ms: now_ms });
        Some(Taken { number, bytes })
    }

    /// The other side has all chunks before this number.
    pub fn has_received(&mut self, before: u64) -> Result<(), NeverSent> {
        let Some(count) = before.checked_sub(self.received) else { return Ok(()) };
        if count > self.sent.len() as u64 {
            return Err(NeverSent);
        }
        for sent in self.sent.drain(..count as usize) {
            self.sent_bytes -= sent.bytes.len() + CHUNK_OVERHEAD;
        }
        self.received = before;
        self.again = self.again.split_off(&before);
        Ok(())
    }

    /// Has other streams take what this one may not have delivered.
    pub fn give_back(&mut self, by: StreamNumber) {
        let numbers = self.received..;
        let lost = numbers.zip(&self.sent).filter(|(_, sent)| sent.by == by);
        self.again.extend(lost.map(|(number, _)| number));
    }

    /// The stream that took the chunk which the other side waits for, and when; `None`: it has all, or the chunk waits.
    pub fn oldest(&self) -> Option<(StreamNumber, u64)> {
        let oldest = self.sent.front().filter(|_| !self.again.contains(&self.received))?;
        Some((oldest.by, oldest.at_ms))
    }

    /// Whether the other side has all that was written.
    pub fn is_empty(&self) -> bool {
        self.sent.is_empty() && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::IoSlice;

    fn of(parts: &[&[u8]]) -> Outgoing {
        let mut outgoing = Outgoing::new(usize::MAX);
        for part in parts {
            outgoing.write(&[IoSlice::new(part)]);
        }
        outgoing
    }

    fn numbers(outgoing: &mut Outgoing, by: StreamNumber) -> Vec<u64> {
        std::iter::from_fn(|| outgoing.take(by, 0)).map(|taken| taken.number).collect()
    }

    #[test]
    fn short_writes_share_a_chunk_and_long_ones_are_cut() {
        let long = vec![7; 2 * CHUNK_MAX + 1];
        let mut outgoing = of(&[b"ab", b"cd"]);
        outgoing.write(&[IoSlice::new(b"e"), IoSlice::new(&long)]);
        let chunks: Vec<_> = std::iter::from_fn(|| outgoing.take(1, 0)).collect();
        assert_eq!(*chunks[0].bytes, b"abcd");
        assert!(chunks.iter().all(|chunk| chunk.bytes.len() <= CHUNK_MAX));
        let all: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.bytes.iter().copied()).collect();
        assert_eq!(all, [b"abcde", &long[..]].concat());
        let numbers: Vec<u64> = chunks.iter().map(|chunk| chunk.number).collect();
        assert_eq!(numbers, [0, 1, 2, 3]);
    }

    #[test]
    fn what_a_stream_has_lost_is_sent_first_and_only_if_it_is_missing() {
        let long = vec![0; COLLECTED_MAX];
        let mut outgoing = of(&[&long, &long, &long, &long]);
        assert_eq!(outgoing.take(1, 0).map(|taken| taken.number), Some(0));
        assert_eq!(outgoing.take(2, 0).map(|taken| taken.number), Some(1));
        assert_eq!(outgoing.take(1, 0).map(|taken| taken.number), Some(2));
        outgoing.has_received(1).expect("sent");
        outgoing.give_back(1);
        assert_eq!(outgoing.oldest(), Some((2, 0)));
        assert_eq!(numbers(&mut outgoing, 3), [2, 3]);
        outgoing.give_back(3);
        outgoing.has_received(3).expect("sent");
        assert_eq!(outgoing.oldest(), None, "it waits");
        assert_eq!(numbers(&mut outgoing, 4), [3]);
        outgoing.has_received(4).expect("sent");
        assert!(outgoing.is_empty() && !outgoing.has_waiting());
    }

    #[test]
    fn what_was_not_sent_cannot_have_come() {
        let mut outgoing = of(&[b"a"]);
        assert_eq!(outgoing.has_received(1), Err(NeverSent));
        assert!(outgoing.take(1, 0).is_some());
        assert_eq!(outgoing.has_received(1), Ok(()));
        assert_eq!(outgoing.has_received(0), Ok(()), "it says so late");
        assert_eq!(outgoing.has_received(2), Err(NeverSent));
    }

    #[test]
    fn memory_is_bounded_until_the_other_side_has_something() {
        let mut outgoing = Outgoing::new(10);
        outgoing.write(&[IoSlice::new(&[0; 10])]);
        assert!(!outgoing.has_room());
        assert!(outgoing.take(1, 0).is_some());
        assert!(!outgoing.has_room());
        outgoing.has_received(1).expect("sent");
        assert!(outgoing.has_room());
    }

    #[test]
    fn short_chunks_fit_where_the_other_side_counts_their_overhead() {
        let mut outgoing = Outgoing::new(10_000);
        let mut chunks = 0;
        while outgoing.has_room() {
            outgoing.write(&[IoSlice::new(b"a")]);
            assert!(outgoing.take(1, 0).is_some());
            chunks += 1;
        }
        assert_eq!(chunks, 10_000_usize.div_ceil(1 + CHUNK_OVERHEAD));
        outgoing.has_received(1).expect("sent");
        assert!(outgoing.has_room());
    }
}
