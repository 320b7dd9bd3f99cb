//! One sequence of bytes in each direction over several connections, which may fail and be replaced.
//!
//! What is written is cut into numbered chunks, and each stream takes the next one when it can send. So a slow stream
//! carries less, and one file uses all streams. The other side puts chunks in order and says which have come; until then
//! they are kept, and those of a stream that ends are sent again on others.
use dmover_model::Protected;
use dmover_observe::lock;
use dmover_schedule::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::incoming::Incoming;
use super::outgoing::{Outgoing, StreamNumber, Taken};
use super::watch;
use super::worker;
use crate::connection::{HangUp, Link};
pub(super) use crate::ending::End;

/// Chunks in memory that the other side does not have: more than is on its way on a fast and long line.
const HELD_MAX: usize = 256 << 20;
/// The same at the side that receives, with room for what the limit above may be exceeded by.
const EARLY_MAX: usize = HELD_MAX + (16 << 20);
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

/// One connection of a pool.
pub(super) struct Transport {
    /// What the other side sends.
    pub input: Box<dyn Read + Send>,
    /// What the other side receives. Nothing has to be sent before it is flushed.
    pub output: Box<dyn Write + Send>,
    /// Has reads and writes end soon.
    pub close: Box<dyn Fn() + Send + Sync>,
    /// What the kernel can be asked about.
    pub socket: Option<TcpStream>,
}

/// A stream while it is part of the pool.
pub(super) struct Stream {
    pub number: StreamNumber,
    /// Carries something only while there is no other one.
    pub is_spare: bool,
    pub close: Box<dyn Fn() + Send + Sync>,
    pub socket: Option<TcpStream>,
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
    begun_ms: u64,
    is_over: AtomicBool,
}

impl Stream {
    pub fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
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
    idle: VecDeque<Arc<Stream>>,
    /// The other side should learn which chunks have come.
    tell: bool,
    /// The other side should learn how many streams this one wants.
    pub tell_wanted: bool,
    last_number: StreamNumber,
    /// Another stream than the spare one was part of the pool.
    pub had_streams: bool,
    pub spare_ended: bool,
    /// When the last stream has ended.
    pub last_lost_ms: u64,
    /// The other side has closed a stream since there was none left.
    pub was_closed: bool,
    /// Streams that ended soon after they were opened, one after the other.
    young: u32,
}

impl State {
    /// Whether a stream may carry chunks now.
    fn may_carry(&self, stream: &Stream) -> bool {
        let fit = |other: &Arc<Stream>| !other.is_spare && !other.is_doubted();
        !stream.is_doubted() && (!stream.is_spare || !self.streams.iter().any(fit))
    }

    /// Wakes a stream that can send something, if there is something to send.
    fn wake_one(&mut self) {
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
    room: Condvar,
    incoming: Mutex<Incoming>,
    arrived: Condvar,
    over: OnceLock<End>,
    /// It is over, or a stream has ended; with the lock of `state`.
    pub changed: Condvar,
    start: Instant,
    /// When any stream heard something.
    pub heard_ms: AtomicU64,
    /// How many streams either side wants.
    wanted: AtomicU64,
    /// Streams that have ended, besides the spare one.
    lost: AtomicU64,
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
                let received = (beats || tells).then(|| lock(&self.incoming).tell());
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
        drop(incoming);
        match came {
            Ok(came) => {
                if came.is_ready {
                    self.arrived.notify_all();
                }
                if came.tell {
                    self.tell();
                }
            }
            Err(super::incoming::TooMuch) => {
                self.end(End::Violation("more came than may be on its way"));
            }
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
            state.young = if now - stream.begun_ms < YOUNG_MS { state.young + 1 } else { 0 };
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
    }

    /// Waits until the other side has all, or this time is over.
    fn flush(&self, within: Duration) {
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

fn wait<'a, T>(on: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    on.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Several connections as one. Clones are the same pool.
#[derive(Clone)]
pub(super) struct Pool(Arc<Shared>);

impl Pool {
    /// A pool with one stream, which carries something only while there is no other one. `patience`: how long the other side
    /// may be unreachable once there was another stream.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(spare: Transport, patience: Duration) -> io::Result<Self> {
        let state = State {
            outgoing: Outgoing::new(HELD_MAX),
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
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            room: Condvar::new(),
            incoming: Mutex::new(Incoming::new(EARLY_MAX)),
            arrived: Condvar::new(),
            over: OnceLock::new(),
            changed: Condvar::new(),
            start: Instant::now(),
            heard_ms: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        let pool = Self(shared);
        pool.attach(spare, true)?;
        let shared = Arc::clone(&pool.0);
        thread::Builder::new()
            .name("net-streams".into())
            .spawn(move || watch::run(&shared, patience))?;
        Ok(pool)
    }

    /// Adds a stream.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn add(&self, transport: Transport) -> io::Result<Arc<Stream>> {
        self.attach(transport, false)
    }

    fn attach(&self, transport: Transport, is_spare: bool) -> io::Result<Arc<Stream>> {
        let Transport { input, output, close, socket } = transport;
        let shared = &self.0;
        let now = shared.now_ms();
        let mut state = lock(&shared.state);
        state.last_number += 1;
        let stream = Arc::new(Stream {
            number: state.last_number,
            is_spare,
            close,
            socket,
            wake: Condvar::new(),
            heard_ms: AtomicU64::new(now),
            told_ms: AtomicU64::new(now),
            beat_due: AtomicBool::new(false),
            doubted_ms: AtomicU64::new(0),
            counted: Default::default(),
            delivered_ms: AtomicU64::new(now),
            begun_ms: now,
            is_over: AtomicBool::new(false),
        });
        state.streams.push(Arc::clone(&stream));
        if !is_spare {
            (state.had_streams, state.was_closed) = (true, false);
        }
        drop(state);
        let begun = worker::start(shared, &stream, input, output);
        if let Err(error) = begun {
            shared.lose(&stream, &Lost::Failed(error.to_string()));
            return Err(error);
        }
        if self.0.over().is_some() {
            // It came too late to be closed with the others.
            (stream.close)();
        }
        Ok(stream)
    }

    /// How many streams it has besides the spare one.
    pub fn streams(&self) -> usize {
        lock(&self.0.state).streams.iter().filter(|stream| !stream.is_spare).count()
    }

    /// How many streams ended soon after they were opened, one after the other.
    pub fn young_losses(&self) -> u32 {
        lock(&self.0.state).young
    }

    /// How many streams either side wants; 0: as many as there are.
    pub fn wanted(&self) -> u32 {
        u32::try_from(self.0.wanted.load(Relaxed)).unwrap_or(u32::MAX)
    }

    pub fn is_over(&self) -> bool {
        self.0.over().is_some()
    }

    /// Waits until a stream ends or the pool does, or for this long.
    pub fn wait_for_change(&self, limit: Duration) {
        let state = lock(&self.0.state);
        if self.0.over().is_none() {
            drop(self.0.changed.wait_timeout(state, limit));
        }
    }

    /// What a connection of channels sees. `hang_up` ends what carries the spare stream.
    pub fn link(self, hang_up: HangUp, protected: Protected) -> Link {
        let known = Arc::clone(&self.0);
        let report = Box::new(move || {
            let state = lock(&known.state);
            let protected = if state.had_streams { protected } else { Protected::Ssh };
            super::report::of(&state.streams, protected, known.lost.load(Relaxed))
        });
        let shared = Arc::clone(&self.0);
        let ends = Box::new(move |patience: Duration| {
            let begin = Instant::now();
            if !patience.is_zero() {
                shared.flush(patience);
            }
            shared.end(End::Closed);
            hang_up(patience.saturating_sub(begin.elapsed()));
        });
        Link {
            input: Box::new(Reader { shared: Arc::clone(&self.0), chunk: Vec::new(), taken: 0 }),
            output: Box::new(Writer { shared: self.0 }),
            hang_up: ends,
            report: Some(report),
        }
    }
}

/// Reads what comes, in order.
struct Reader {
    shared: Arc<Shared>,
    chunk: Vec<u8>,
    taken: usize,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.chunk.len() {
            let mut incoming = lock(&self.shared.incoming);
            incoming.used(std::mem::take(&mut self.chunk));
            self.taken = 0;
            self.chunk = loop {
                if let Some(next) = incoming.take() {
                    break next;
                }
                match self.shared.over() {
                    None => incoming = wait(&self.shared.arrived, incoming),
                    Some(End::Closed | End::Gone) => return Ok(0),
                    Some(why) => return Err(why.clone().into()),
                }
            };
        }
        let rest = &self.chunk[self.taken..];
        let now = rest.len().min(buffer.len());
        buffer[..now].copy_from_slice(&rest[..now]);
        self.taken += now;
        Ok(now)
    }
}

/// Takes what is to be sent, as long as not too much waits.
struct Writer {
    shared: Arc<Shared>,
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = lock(&self.shared.state);
        loop {
            match self.shared.over() {
                Some(End::Closed | End::Gone) => return Err(io::ErrorKind::BrokenPipe.into()),
                Some(why) => return Err(why.clone().into()),
                None if state.outgoing.has_room() => break,
                None => state = wait(&self.shared.room, state),
            }
        }
        state.outgoing.write(parts);
        state.wake_one();
        Ok(parts.iter().map(|part| part.len()).sum())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
