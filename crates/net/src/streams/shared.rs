//! What the threads of a pool share: chunks that are sent and received, streams, and how it has ended.
use dmover_observe::lock;
use dmover_schedule::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use dmover_schedule::time::Instant;
use dmover_wire::streams::Compression;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::incoming::Incoming;
use super::outgoing::{Outgoing, StreamNumber, Taken};
pub(super) use crate::ending::End;

/// A stream that lives for less than this is of little use.
const YOUNG_MS: u64 = 15_000;
/// A stream takes short chunks up to so many bytes at a time.
const TAKEN_BYTES: usize = 64 << 10;

/// How a stream has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Lost {
    /// The other side has closed it: its process has probably ended.
    Ended,
    /// The other side, or a host on the way, does not know it any more.
    Reset,
    /// It cannot be used any more.
    Failed(String),
    /// Nothing was heard for too long.
    Silent,
}

/// Has reads and writes of a connection end soon.
pub(super) type Close = Box<dyn Fn() + Send + Sync>;

/// One connection of a pool.
pub(super) struct Transport {
    /// What the other side sends.
    pub input: Box<dyn Read + Send>,
    /// What the other side receives. Nothing has to be sent before it is flushed.
    pub output: Box<dyn Write + Send>,
    pub close: Close,
    /// What the kernel can be asked about.
    pub socket: Option<TcpStream>,
    /// ssh carries it: the socket leads only to a process on this host.
    pub is_in_ssh: bool,
}

/// A stream while it is part of the pool.
pub(super) struct Stream {
    pub number: StreamNumber,
    /// Carries something only while there is no other one.
    pub is_spare: bool,
    pub close: Close,
    pub socket: Option<TcpStream>,
    pub is_in_ssh: bool,
    /// Wakes the thread that sends, together with the lock of [`State`].
    pub wake: Condvar,
    pub heard_ms: AtomicU64,
    pub told_ms: AtomicU64,
    /// It should say that it is alive.
    pub beat_due: AtomicBool,
    /// It seems to deliver nothing, so it gets nothing: since when. Zero: it is fine.
    pub doubted_ms: AtomicU64,
    /// What the kernel has counted: bytes that the other side has acknowledged, and bytes that have come.
    pub counted: [AtomicU64; 2],
    /// When the first of these numbers has grown.
    pub delivered_ms: AtomicU64,
    pub begun_ms: u64,
    pub is_over: AtomicBool,
    /// It has ended soon after it was opened.
    pub ended_early: AtomicBool,
}

impl Stream {
    /// A stream that has just been opened. `of`: what closes it, what the kernel can be asked about, and whether ssh carries it.
    pub fn new(
        number: StreamNumber,
        is_spare: bool,
        of: (Close, Option<TcpStream>, bool),
        now: u64,
    ) -> Self {
        let (close, socket, is_in_ssh) = of;
        Self {
            number,
            is_spare,
            close,
            socket,
            is_in_ssh,
            wake: Condvar::new(),
            heard_ms: AtomicU64::new(now),
            told_ms: AtomicU64::new(now),
            beat_due: AtomicBool::new(false),
            doubted_ms: AtomicU64::new(0),
            counted: Default::default(),
            delivered_ms: AtomicU64::new(now),
            begun_ms: now,
            is_over: AtomicBool::new(false),
            ended_early: AtomicBool::new(false),
        }
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    pub fn has_ended_early(&self) -> bool {
        self.ended_early.load(Relaxed)
    }

    /// The connection to the other side, if the kernel knows it.
    pub fn line(&self) -> Option<&TcpStream> {
        self.socket.as_ref().filter(|_| !self.is_in_ssh)
    }

    pub fn is_doubted(&self) -> bool {
        self.doubted_ms.load(Relaxed) != 0
    }
}

/// What is sent, and by whom.
pub(super) struct State {
    pub outgoing: Outgoing,
    pub streams: Vec<Arc<Stream>>,
    /// Streams whose threads wait for something to send, the one that waits longest first.
    pub idle: VecDeque<Arc<Stream>>,
    /// The other side should learn which chunks have come.
    pub tell: bool,
    /// The other side should learn how many streams this one wants.
    pub tell_wanted: bool,
    pub last_number: StreamNumber,
    /// Another stream than the spare one was part of the pool.
    pub had_streams: bool,
    pub spare_ended: bool,
    /// When the last stream has ended.
    pub last_lost_ms: u64,
    /// The other side has closed a stream since there was none left.
    pub was_closed: bool,
    /// Streams that ended soon after they were opened, one after the other.
    pub young: u32,
}

impl State {
    /// Whether a stream may carry chunks now.
    fn may_carry(&self, stream: &Stream) -> bool {
        let fit = |other: &Arc<Stream>| !other.is_spare && !other.is_doubted();
        !stream.is_doubted() && (!stream.is_spare || !self.streams.iter().any(fit))
    }

    /// Wakes a stream that can send something, if there is something to send.
    pub fn wake_one(&mut self) {
        if !self.outgoing.has_waiting() {
            return;
        }
        let place = self.idle.iter().position(|stream| self.may_carry(stream));
        if let Some(stream) = place.and_then(|place| self.idle.remove(place)) {
            stream.wake.notify_all();
        }
    }

    /// Wakes all streams: something has changed that each has to know.
    pub fn wake_all(&mut self) {
        self.idle.clear();
        for stream in &self.streams {
            stream.wake.notify_all();
        }
    }
}

/// What the threads of a pool share. Locks are taken in this order: `state`, `incoming`.
pub(super) struct Shared {
    pub state: Mutex<State>,
    /// There is room for more, or the other side has more.
    pub room: Condvar,
    pub incoming: Mutex<Incoming>,
    pub arrived: Condvar,
    /// Something that came was read.
    pub taken: Condvar,
    pub over: OnceLock<End>,
    /// It is over, or a stream has ended; with the lock of `state`.
    pub changed: Condvar,
    pub start: Instant,
    /// When any stream heard something.
    pub heard_ms: AtomicU64,
    /// How many streams either side wants.
    pub wanted: AtomicU64,
    /// Streams that have ended, besides the spare one.
    pub lost: AtomicU64,
    /// Whether chunks are compressed that this side sends.
    pub compression: Compression,
    pub carried: Carried,
}

/// Bytes of chunks in both directions.
#[derive(Debug, Default)]
pub(super) struct Carried {
    pub content: AtomicU64,
    /// As they were sent, perhaps compressed.
    pub line: AtomicU64,
}

impl Carried {
    pub fn add(&self, content: usize, line: usize) {
        self.content.fetch_add(content as u64, Relaxed);
        self.line.fetch_add(line as u64, Relaxed);
    }
}

/// What a stream sends next.
pub(super) struct Work {
    /// All chunks before this number have come.
    pub received: Option<u64>,
    /// So many streams are wanted.
    pub wanted: Option<u64>,
    pub chunks: Vec<Taken>,
}

impl Shared {
    /// Nothing was sent or received yet. `held_max`: bytes that wait for the other side to have them; `early_max`: those of
    /// chunks that came too early, with what they take besides.
    pub fn new(held_max: usize, early_max: usize, compression: Compression) -> Self {
        let state = State {
            outgoing: Outgoing::new(held_max),
            streams: Vec::new(),
            idle: VecDeque::new(),
            tell: false,
            tell_wanted: false,
            last_number: 0,
            had_streams: false,
            spare_ended: false,
            last_lost_ms: 0,
            was_closed: false,
            young: 0,
        };
        Self {
            state: Mutex::new(state),
            room: Condvar::new(),
            incoming: Mutex::new(Incoming::new(early_max)),
            arrived: Condvar::new(),
            taken: Condvar::new(),
            over: OnceLock::new(),
            changed: Condvar::new(),
            start: Instant::now(),
            heard_ms: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            compression,
            carried: Carried::default(),
        }
    }

    pub fn now_ms(&self) -> u64 {
        // Zero means never.
        self.start.elapsed().as_millis() as u64 + 1
    }

    pub fn over(&self) -> Option<&End> {
        self.over.get()
    }

    /// Waits until a stream has something to send; `None`: it has ended.
    pub fn next_work(&self, stream: &Arc<Stream>) -> Option<Work> {
        let mut state = lock(&self.state);
        loop {
            if self.over().is_some() || stream.is_over() {
                return None;
            }
            let beats = stream.beat_due.swap(false, Relaxed);
            let tells = std::mem::take(&mut state.tell);
            let chunks =
                if state.may_carry(stream) { self.take(&mut state, stream) } else { Vec::new() };
            let wants = std::mem::take(&mut state.tell_wanted);
            if beats || tells || wants || !chunks.is_empty() {
                if !chunks.is_empty() {
                    self.room.notify_all();
                    state.wake_one();
                }
                drop(state);
                let received = (beats || tells).then(|| lock(&self.incoming).acknowledge());
                if received.is_some() {
                    stream.told_ms.store(self.now_ms(), Relaxed);
                }
                let wanted = wants.then(|| self.wanted.load(Relaxed));
                return Some(Work { received, wanted, chunks });
            }
            state.idle.push_back(Arc::clone(stream));
            state = wait(&stream.wake, state);
            state.idle.retain(|idle| idle.number != stream.number);
        }
    }

    fn take(&self, state: &mut State, stream: &Stream) -> Vec<Taken> {
        let (mut chunks, mut bytes) = (Vec::new(), 0);
        while bytes < TAKEN_BYTES
            && let Some(taken) = state.outgoing.take(stream.number, self.now_ms())
        {
            bytes += taken.bytes.len();
            chunks.push(taken);
        }
        chunks
    }

    /// A buffer for a chunk of this length.
    pub fn buffer(&self, length: usize) -> Vec<u8> {
        lock(&self.incoming).buffer(length)
    }

    /// A chunk has come.
    pub fn came(&self, number: u64, bytes: Vec<u8>) {
        let mut incoming = lock(&self.incoming);
        let came = incoming.came(number, bytes);
        let is_full = incoming.is_full();
        drop(incoming);
        match came {
            Ok(came) => {
                if came.is_ready {
                    self.arrived.notify_all();
                }
                if came.acknowledge {
                    self.tell();
                }
                if is_full {
                    self.wait_for_reader();
                }
            }
            Err(super::incoming::TooMuch) => {
                self.end(End::Violation("more came than may be on its way"));
            }
        }
    }

    /// Waits until what is in order was read. Compressed chunks come faster than that where they are nothing but zeros.
    fn wait_for_reader(&self) {
        let mut incoming = lock(&self.incoming);
        while incoming.is_full() && self.over().is_none() {
            incoming = wait(&self.taken, incoming);
        }
    }

    /// Has any stream tell the other side what has come.
    fn tell(&self) {
        let mut state = lock(&self.state);
        state.tell = true;
        let place = state.idle.iter().position(|stream| !stream.is_spare).unwrap_or(0);
        if let Some(stream) = state.idle.remove(place) {
            stream.wake.notify_all();
        }
    }

    /// More streams are wanted, by either side.
    pub fn want(&self, count: u64) {
        if self.wanted.fetch_max(count, Relaxed) < count {
            self.changed.notify_all();
            lock(&self.state).tell_wanted = true;
            self.tell();
        }
    }

    /// Whether another number of streams is wanted than the other side began with.
    pub fn wants_more(&self) -> bool {
        self.wanted.load(Relaxed) > 0
    }

    /// The other side has all chunks before this number.
    pub fn has_received(&self, before: u64) {
        let mut state = lock(&self.state);
        let known = state.outgoing.has_received(before);
        drop(state);
        self.room.notify_all();
        if known.is_err() {
            self.end(End::Violation("a chunk has come that was not sent"));
        }
    }

    /// A stream has ended. What it may not have delivered is sent by others.
    pub fn lose(&self, stream: &Stream, how: &Lost) {
        if stream.is_over.swap(true, Relaxed) {
            return;
        }
        (stream.close)();
        self.lost.fetch_add(u64::from(!stream.is_spare), Relaxed);
        tracing::debug!(
            number = stream.number,
            spare = stream.is_spare,
            ?how,
            "a data stream has ended"
        );
        let mut state = lock(&self.state);
        state.streams.retain(|other| other.number != stream.number);
        let now = self.now_ms();
        state.spare_ended |= stream.is_spare;
        state.last_lost_ms = now;
        // ssh ends in the same way whatever happens to it.
        state.was_closed |= !stream.is_spare && *how == Lost::Ended;
        if !stream.is_spare {
            let is_young = now - stream.begun_ms < YOUNG_MS;
            stream.ended_early.store(is_young, Relaxed);
            state.young = if is_young { state.young + 1 } else { 0 };
        }
        state.outgoing.give_back(stream.number);
        state.wake_all();
        stream.wake.notify_all();
        drop(state);
        self.changed.notify_all();
        self.room.notify_all();
    }

    /// Ends the pool for this reason, unless it has ended before.
    pub fn end(&self, why: End) {
        if self.over.set(why).is_err() {
            return;
        }
        let mut state = lock(&self.state);
        state.wake_all();
        let streams = state.streams.clone();
        drop(state);
        self.changed.notify_all();
        self.room.notify_all();
        for stream in streams {
            (stream.close)();
        }
        drop(lock(&self.incoming));
        self.arrived.notify_all();
        self.taken.notify_all();
    }

    /// Waits until the other side has all, or this time is over.
    pub fn flush(&self, within: Duration) {
        let end = Instant::now() + within;
        let mut state = lock(&self.state);
        while !state.outgoing.is_empty() && !state.streams.is_empty() && self.over().is_none() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.room.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

pub(super) fn wait<'a, T>(on: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    on.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
