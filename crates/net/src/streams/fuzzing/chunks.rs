//! Chunks: what comes is given on in order and once, whatever streams carry it, and takes no more memory than it may.
use dmover_observe::lock;
use dmover_wire::streams::Compression;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::streams::chunk::{CHUNK_MAX, CHUNK_OVERHEAD, HEADER_BYTES};
use crate::streams::incoming::Incoming;
use crate::streams::outgoing::{Outgoing, Taken};
use crate::streams::shared::{Shared, Stream};
use crate::streams::worker;

/// What may come too early. The true limit is larger than any input here.
const EARLY_MAX: usize = 4 << 10;
/// Chunks that this side has sent.
const SENT: u64 = 3;

/// One stream whose bytes the other side chooses.
///
/// # Panics
/// A promise is broken.
pub fn receive(bytes: &[u8]) {
    let shared = Arc::new(Shared::new(usize::MAX, EARLY_MAX, Compression::Auto));
    let mut state = lock(&shared.state);
    for _ in 0..SENT {
        state.outgoing.write(&[IoSlice::new(b"sent")]);
        assert!(state.outgoing.take(1, 0).is_some(), "it was written");
    }
    drop(state);
    let stream = Stream::new(1, false, (Box::new(|| ()), None, false), shared.now_ms());
    let input =
        Input { shared: Arc::clone(&shared), rest: bytes.to_vec().into(), taken: Vec::new() };
    let input = Arc::new(std::sync::Mutex::new(input));
    let ended = worker::receive_all(&shared, &stream, Box::new(Handle(Arc::clone(&input))));
    let mut input = input.lock().expect("no panic before");
    input.take();
    let expected = Expected::of(bytes);
    assert_eq!(input.taken, expected.taken, "other bytes are given on");
    assert_eq!(shared.over().is_some(), expected.is_violation, "{ended:?}");
    assert_eq!(shared.wanted.load(Relaxed), expected.wanted);
    assert_eq!(lock(&shared.incoming).acknowledge(), expected.next);
}

/// The same with few bytes for each chunk: kind, number, and length (two).
///
/// # Panics
/// A promise is broken.
pub fn receive_composed(bytes: &[u8]) {
    let mut composed = Vec::new();
    for (place, chunk) in bytes.as_chunks::<4>().0.iter().enumerate() {
        let [kind, number, l0, l1] = *chunk;
        let kind = kind % 4;
        let has_content = kind == 0 || kind == 3;
        let length = if has_content { u32::from(u16::from_le_bytes([l0, l1])) * 2 } else { 0 };
        // Each chunk has other content, also if its number came before.
        let content: Vec<u8> = (0..length).map(|at| (place as u32 * 7 + at) as u8).collect();
        let packed = (kind == 3).then(|| zstd::bulk::compress(&content, 1).expect("memory"));
        let content = packed.unwrap_or(content);
        composed.extend((content.len() as u32).to_le_bytes());
        composed.extend([kind, 0, 0, 0]);
        composed.extend(u64::from(number % 32).to_le_bytes());
        composed.extend(content);
    }
    receive(&composed);
}

/// The bytes of a stream, a few at a time. In between, what has come is read above the pool.
struct Input {
    shared: Arc<Shared>,
    rest: VecDeque<u8>,
    taken: Vec<u8>,
}

impl Input {
    fn take(&mut self) {
        let mut incoming = lock(&self.shared.incoming);
        while let Some(bytes) = incoming.take() {
            self.taken.extend(&bytes);
            incoming.used(bytes);
        }
        let memory = incoming.early_memory();
        assert!(memory <= EARLY_MAX, "{memory} bytes of chunks that came too early");
    }
}

/// An [`Input`] that is still known when the stream has ended.
struct Handle(Arc<std::sync::Mutex<Input>>);

impl Read for Handle {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut input = self.0.lock().expect("no panic before");
        input.take();
        let length = buffer.len().min(1000);
        input.rest.read(&mut buffer[..length])
    }
}

/// What has to become of the bytes of a stream.
#[derive(Default)]
struct Expected {
    taken: Vec<u8>,
    next: u64,
    wanted: u64,
    is_violation: bool,
}

impl Expected {
    fn of(mut rest: &[u8]) -> Self {
        let mut all = Self::default();
        let mut chunks = BTreeMap::new();
        while let Some((header, content)) = rest.split_first_chunk::<HEADER_BYTES>() {
            rest = content;
            let [l0, l1, l2, l3, kind, zeros @ .., _, _, _, _, _, _, _, _] = *header;
            let [.., n0, n1, n2, n3, n4, n5, n6, n7] = *header;
            let number = u64::from_le_bytes([n0, n1, n2, n3, n4, n5, n6, n7]);
            let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
            match (kind, length, zeros) {
                (0 | 3, 1..=CHUNK_MAX, [0, 0, 0]) => {
                    let Some((content, later)) = rest.split_at_checked(length) else { break };
                    rest = later;
                    let content = if kind == 3 { unpacked(content) } else { Some(content.into()) };
                    let Some(content) = content else {
                        all.is_violation = true;
                        break;
                    };
                    if number >= all.next {
                        chunks.entry(number).or_insert(content);
                    }
                    while let Some(content) = chunks.remove(&all.next) {
                        all.next += 1;
                        all.taken.extend(content);
                    }
                    let early = chunks.values().map(|chunk| chunk.len() + CHUNK_OVERHEAD);
                    all.is_violation = early.sum::<usize>() > EARLY_MAX;
                }
                (1, 0, [0, 0, 0]) => all.is_violation = number > SENT,
                (2, 0, [0, 0, 0]) => all.wanted = all.wanted.max(number),
                _ => all.is_violation = true,
            }
            if all.is_violation {
                break;
            }
        }
        all
    }
}

/// What a compressed chunk contains, by the interface of the library that the program does not use.
fn unpacked(content: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = CHUNK_MAX as u64 + 1;
    zstd::stream::Decoder::new(content).ok()?.take(limit).read_to_end(&mut bytes).ok()?;
    (1..=CHUNK_MAX).contains(&bytes.len()).then_some(bytes)
}

/// Bytes that this side keeps, those of one write, and what may come too early at a side for which that is enough.
const HELD: usize = 1 << 10;
const WRITTEN_MAX: usize = 5 * 255;
const EARLY_HELD: usize = HELD + WRITTEN_MAX + 8 * CHUNK_OVERHEAD;
const STREAMS: usize = 4;

/// Two sides that keep to the protocol, and streams that fail, deliver late, or in any order.
///
/// # Panics
/// A promise is broken.
pub fn exchange(bytes: &[u8]) {
    let mut line = Line::default();
    for step in bytes.as_chunks::<2>().0 {
        line.step(step[0], step[1]);
    }
    line.finish();
}

struct Line {
    outgoing: Outgoing,
    incoming: Incoming,
    written: Vec<u8>,
    read: Vec<u8>,
    /// What each stream has taken and not delivered, and its number.
    streams: [(u64, VecDeque<Taken>); STREAMS],
    last: u64,
    acknowledged: Vec<u64>,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            outgoing: Outgoing::new(HELD),
            incoming: Incoming::new(EARLY_HELD),
            written: Vec::new(),
            read: Vec::new(),
            streams: std::array::from_fn(|place| (place as u64, VecDeque::new())),
            last: STREAMS as u64,
            acknowledged: Vec::new(),
        }
    }
}

impl Line {
    fn step(&mut self, what: u8, which: u8) {
        let place = usize::from(which) % STREAMS;
        let (number, on_way) = &mut self.streams[place];
        match what % 8 {
            0 if self.outgoing.has_room() => {
                let begin = self.written.len();
                let new = (0..usize::from(which) * 5).map(|at| ((begin + at) / 3) as u8);
                self.written.extend(new);
                self.outgoing.write(&[IoSlice::new(&self.written[begin..])]);
            }
            1 => on_way.extend(self.outgoing.take(*number, 0)),
            2 => {
                let taken = on_way.pop_front();
                self.deliver(taken);
            }
            // It is lost with what it carried, or only doubted.
            3 => {
                self.outgoing.give_back(*number);
                if which & 0x80 == 0 {
                    on_way.clear();
                    self.last += 1;
                    *number = self.last;
                }
            }
            4 => self.acknowledged.push(self.incoming.acknowledge()),
            // Streams differ in speed, so these overtake each other.
            5 if !self.acknowledged.is_empty() => {
                let before =
                    self.acknowledged.swap_remove(usize::from(which) % self.acknowledged.len());
                self.acknowledge(before);
            }
            6 => self.read(),
            _ => {}
        }
    }

    fn deliver(&mut self, taken: Option<Taken>) {
        let Some(taken) = taken else { return };
        assert!(taken.bytes.len() <= CHUNK_MAX);
        let mut buffer = self.incoming.buffer(taken.bytes.len());
        buffer.copy_from_slice(&taken.bytes);
        let came = self.incoming.came(taken.number, buffer);
        assert!(came.is_ok(), "more came than may be on its way");
        assert!(self.incoming.early_memory() <= EARLY_HELD);
    }

    fn acknowledge(&mut self, before: u64) {
        assert_eq!(self.outgoing.has_received(before), Ok(()));
    }

    fn read(&mut self) {
        while let Some(bytes) = self.incoming.take() {
            self.read.extend(&bytes);
            self.incoming.used(bytes);
        }
        assert!(self.written.starts_with(&self.read), "other bytes are given on");
    }

    /// All streams but a new one fail.
    fn finish(mut self) {
        for (number, _) in &self.streams {
            self.outgoing.give_back(*number);
        }
        while let Some(taken) = self.outgoing.take(self.last + 1, 0) {
            self.deliver(Some(taken));
        }
        self.read();
        assert!(self.read == self.written, "something is missing");
        let before = self.incoming.acknowledge();
        self.acknowledge(before);
        assert!(self.outgoing.is_empty() && !self.outgoing.has_waiting());
    }
}
