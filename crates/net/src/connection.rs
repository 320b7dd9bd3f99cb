//! A connection: channels of messages over one stream of bytes in each direction.
//!
//! A thread reads; it never writes, so it never waits for the other side. Whoever sends a message writes it himself,
//! one at a time. Each channel has a window: a sender may be ahead of the receiver by so many bytes, so that a channel
//! that nobody reads stops no other one. Two threads see to the heartbeats: one sends them, the other one ends the
//! connection when nothing was heard for too long, even while the first one hangs in a write.
pub mod bytes;
mod channel;
mod pulse;
mod receive;

use dmover_model::ConnectionReport;
use dmover_observe::lock;
use dmover_schedule::sync::{Condvar, Mutex};
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub use self::channel::Channel;
use self::channel::State;
use self::pulse::Next;
use crate::ending::End;
use crate::frame::{Kind, PAYLOAD_MAX, write_frame};

/// What a message takes of a window besides its bytes, so that empty ones are limited too.
const MESSAGE_OVERHEAD: u64 = 64;
/// The smallest window: half of it is enough for the longest message.
pub const WINDOW_MIN: u32 = 2 * (PAYLOAD_MAX as u32 + MESSAGE_OVERHEAD as u32);
/// The usual window. ssh itself has 2 MiB in flight.
pub const WINDOW: u32 = 4 << 20;
/// A window grows up to this, as long as its channel is read faster than bytes come: a longer line has more on its way.
pub const WINDOW_MAX: u32 = 64 << 20;
/// By how much all windows of a connection may have grown together.
const GROWN_MAX: u64 = 256 << 20;
/// How many channels may be open at a time.
pub const CHANNELS_MAX: u32 = 256;
/// Channels that requests ahead leave free. More threads than this do not send ahead at the same moment.
pub const SPARE_CHANNELS: usize = 64;
/// How long the other side may be silent.
pub const SILENCE: Duration = Duration::from_mins(1);
/// What is sent in this part of that time, so that a lost moment does no harm.
const BEATS: u32 = 4;
/// How long the program that carries the connection may take to end by itself, after the connection has ended in order.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);
/// The same after the other side has gone. It may have something to say about that.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(2);

/// Ends what carries a connection. The argument: how long it may take to end by itself.
pub type HangUp = Box<dyn FnOnce(Duration) + Send>;

/// Says what is known of what carries a connection.
pub type Report = Box<dyn Fn() -> ConnectionReport + Send + Sync>;

/// What carries a connection, after both sides have greeted each other.
pub struct Link {
    /// What the other side sends.
    pub input: Box<dyn Read + Send>,
    /// What the other side receives. Small writes should not be delayed.
    pub output: Box<dyn Write + Send>,
    /// Called once, when the connection is over. Afterwards reads and writes must not hang.
    pub hang_up: HangUp,
    /// Says what is known of it.
    pub report: Option<Report>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Link")
    }
}

/// What both sides have agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// How many bytes the other side may send on a channel before this side has read them.
    pub own_window: u32,
    /// What that may grow to.
    pub own_window_max: u32,
    /// The same for what this side sends.
    pub peer_window: u32,
    /// What that may grow to.
    pub peer_window_max: u32,
    /// How many channels may be open at a time.
    pub channels_max: u32,
    /// How long either side may be silent before the other one gives the connection up.
    pub silence: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            own_window: WINDOW,
            own_window_max: WINDOW_MAX,
            peer_window: WINDOW,
            peer_window_max: WINDOW_MAX,
            channels_max: CHANNELS_MAX,
            silence: SILENCE,
        }
    }
}

/// Why nothing can be sent or received any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The other side ended this channel. Other channels are not affected.
    #[error("{0}")]
    Cancelled(String),
    /// The other side has gone without a word.
    #[error("the other side ended it")]
    Ended,
    /// The other side sent nothing for this long.
    #[error("no sign of life for {} s", .0.as_secs_f32())]
    Silent(Duration),
    /// The stream cannot be read or written.
    #[error("{0}")]
    Io(String),
    /// The other side does not keep to the protocol.
    #[error("the other side sent invalid data: {0}")]
    Violation(&'static str),
    /// One of the sides ended the connection in order.
    #[error("it was closed")]
    Closed,
}

impl Broken {
    /// What an error of the stream means.
    fn by(error: &std::io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(End::Unreachable(time)) => Self::Silent(*time),
            Some(End::Violation(what)) => Self::Violation(what),
            Some(End::Closed | End::Gone) => Self::Ended,
            None => Self::Io(error.to_string()),
        }
    }
}

/// One end of a connection. Dropping it ends the connection at once.
#[derive(Debug)]
pub struct Connection {
    shared: Arc<Shared>,
}

/// What is known of what carries a connection.
struct Reports(Option<Report>);

impl std::fmt::Debug for Reports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reports")
    }
}

/// Receives the requests of the other side: the channel, and the first message on it.
type Accept = Box<dyn FnMut(Channel, Vec<u8>) + Send>;

impl Connection {
    /// The side that asks.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn asking(link: Link, terms: Terms) -> std::io::Result<Self> {
        Self::start(link, terms, None)
    }

    /// The side that answers. `accept` must not wait for anything.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn answering(
        link: Link,
        terms: Terms,
        accept: impl FnMut(Channel, Vec<u8>) + Send + 'static,
    ) -> std::io::Result<Self> {
        Self::start(link, terms, Some(Box::new(accept)))
    }

    fn start(link: Link, terms: Terms, accept: Option<Accept>) -> std::io::Result<Self> {
        let Link { input, output, hang_up, report } = link;
        let shared = Arc::new(Shared {
            writer: Mutex::new(Writer { output: Some(output), last: 0 }),
            channels: Mutex::default(),
            vacancy: Condvar::new(),
            grown: Arc::default(),
            largest_window: AtomicU64::new(0),
            received: AtomicU64::new(0),
            terms,
            asks: accept.is_none(),
            start: Instant::now(),
            heard_ms: AtomicU64::new(0),
            sent_ms: AtomicU64::new(0),
            over: Mutex::new(None),
            ended: Condvar::new(),
            hang_up: Mutex::new(Some(hang_up)),
            report: Reports(report),
        });
        // From here on Drop ends what was started.
        let connection = Self { shared: Arc::clone(&shared) };
        thread("net-read", &shared, move |shared| receive::run(shared, input, accept))?;
        thread("net-beat", &shared, |shared| shared.beat())?;
        thread("net-watch", &shared, |shared| shared.watch())?;
        Ok(connection)
    }

    /// Opens a channel with its first message, of at most [`PAYLOAD_MAX`] bytes, as soon as fewer channels are open than may be.
    ///
    /// # Errors
    /// The connection is over.
    pub fn request(&self, message: &[u8]) -> Result<Channel, Broken> {
        self.shared.request(message)
    }

    /// The same for a request that can do without: `None` if fewer than [`SPARE_CHANNELS`] channels would be left for others.
    /// Unread answers hold channels, so whoever waits for one while he has unread ones may wait for ever.
    ///
    /// # Errors
    /// The connection is over.
    pub fn request_ahead(&self, message: &[u8]) -> Result<Option<Channel>, Broken> {
        if !self.shared.has_spare_channels() {
            return Ok(None);
        }
        self.shared.request(message).map(Some)
    }

    /// Waits until the connection ends, and returns the reason.
    pub fn wait(&self) -> Broken {
        let mut over = lock(&self.shared.over);
        loop {
            match &*over {
                Some(why) => return why.clone(),
                None => over = wait(&self.shared.ended, over),
            }
        }
    }

    /// The bytes of all messages that have come.
    pub fn received(&self) -> u64 {
        self.shared.received.load(Relaxed)
    }

    /// What is known of what carries it.
    pub fn report(&self) -> Option<ConnectionReport> {
        self.shared.report()
    }

    /// Why it is over; `None`: it is not.
    pub fn is_over(&self) -> Option<Broken> {
        lock(&self.shared.over).clone()
    }

    /// Ends the connection in order. Open channels end as well.
    pub fn close(&self) {
        let _ = self.shared.write(Kind::Goodbye, 0, &[]);
        self.shared.end(Broken::Closed, LEAVE_WITHIN);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.end(Broken::Closed, Duration::ZERO);
    }
}

fn thread(
    name: &str,
    shared: &Arc<Shared>,
    work: impl FnOnce(&Arc<Shared>) + Send + 'static,
) -> std::io::Result<()> {
    let shared = Arc::clone(shared);
    thread::Builder::new().name(name.into()).spawn(move || work(&shared))?;
    Ok(())
}

fn wait<'a, T>(
    on: &Condvar,
    guard: dmover_schedule::sync::MutexGuard<'a, T>,
) -> dmover_schedule::sync::MutexGuard<'a, T> {
    on.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner)
}

struct Writer {
    /// `None` after the connection has ended, which closes the stream.
    output: Option<Box<dyn Write + Send>>,
    /// The number of the last channel that this side opened.
    last: u64,
}

/// Channels that at least one side has not ended. On the side that asks, its own end counts once it is written.
#[derive(Default)]
struct Channels {
    open: HashMap<u64, Arc<State>>,
    /// Places of channels that are about to be opened.
    reserved: usize,
    /// The highest number in use; numbers are not used again.
    last: u64,
}

/// What the threads of a connection share. Locks are taken in this order: `writer`, `channels`, a channel, `over`.
struct Shared {
    writer: Mutex<Writer>,
    channels: Mutex<Channels>,
    /// A channel is over, or the connection.
    vacancy: Condvar,
    /// By how much the windows of open channels have grown.
    grown: Arc<AtomicU64>,
    /// What the window of a channel had to become.
    largest_window: AtomicU64,
    /// The bytes of all messages that have come.
    received: AtomicU64,
    terms: Terms,
    /// This side sends the requests.
    asks: bool,
    start: Instant,
    heard_ms: AtomicU64,
    sent_ms: AtomicU64,
    over: Mutex<Option<Broken>>,
    ended: Condvar,
    hang_up: Mutex<Option<HangUp>>,
    report: Reports,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("terms", &self.terms).finish_non_exhaustive()
    }
}

impl Shared {
    fn report(&self) -> Option<ConnectionReport> {
        self.report.0.as_ref().map(|report| report())
    }

    fn has_spare_channels(&self) -> bool {
        let channels = lock(&self.channels);
        let taken = channels.open.len() + channels.reserved;
        taken + SPARE_CHANNELS < self.terms.channels_max as usize
    }

    fn request(self: &Arc<Self>, message: &[u8]) -> Result<Channel, Broken> {
        channel::assert_length(message);
        let state = Arc::new(State::new(&self.terms, &self.grown));
        // It fits: a window is larger than the longest message.
        state.charge(message.len());
        let mut channels = lock(&self.channels);
        loop {
            if let Some(why) = self.over() {
                return Err(why);
            }
            if channels.open.len() + channels.reserved < self.terms.channels_max as usize {
                break;
            }
            channels = wait(&self.vacancy, channels);
        }
        // Numbers have to arrive in order, so they are given while nobody else writes.
        channels.reserved += 1;
        drop(channels);
        let mut writer = lock(&self.writer);
        let number = writer.last + 1;
        writer.last = number;
        {
            let mut channels = lock(&self.channels);
            channels.last = number;
            channels.reserved -= 1;
            channels.open.insert(number, Arc::clone(&state));
        }
        let sent = self.write_to(&mut writer, Kind::Request, number, message);
        drop(writer);
        let channel = Channel::new(number, Arc::clone(self), state);
        self.sent(sent).map(|()| channel)
    }

    /// Writes a frame.
    fn write(&self, kind: Kind, channel: u64, payload: &[u8]) -> Result<(), Broken> {
        let mut writer = lock(&self.writer);
        let sent = self.write_to(&mut writer, kind, channel, payload);
        drop(writer);
        self.sent(sent)
    }

    fn write_to(
        &self,
        writer: &mut Writer,
        kind: Kind,
        channel: u64,
        payload: &[u8],
    ) -> std::io::Result<()> {
        let Some(output) = &mut writer.output else { return Ok(()) };
        write_frame(output, kind, channel, payload)?;
        self.sent_ms.store(self.now_ms(), Relaxed);
        Ok(())
    }

    fn sent(&self, result: std::io::Result<()>) -> Result<(), Broken> {
        if let Err(error) = result {
            // The reader sees the end of the other side as well, and knows more about it.
            let is_gone = error.kind() == std::io::ErrorKind::BrokenPipe;
            let why = if is_gone { Broken::Ended } else { Broken::by(&error) };
            self.end(why, LAST_WORDS_WITHIN);
        }
        self.over().map_or(Ok(()), Err)
    }

    fn over(&self) -> Option<Broken> {
        lock(&self.over).clone()
    }

    /// Ends the connection for this reason, unless it has ended before.
    fn end(&self, why: Broken, patience: Duration) {
        lock(&self.over).get_or_insert(why);
        self.ended.notify_all();
        let open: Vec<_> = lock(&self.channels).open.values().cloned().collect();
        self.vacancy.notify_all();
        for state in open {
            state.wake();
        }
        let hang_up = lock(&self.hang_up).take();
        if let Some(hang_up) = hang_up {
            // A thread that hangs in a write has the lock until the other side has gone.
            if let Ok(mut writer) = self.writer.try_lock() {
                writer.output = None;
                drop(writer);
                hang_up(patience);
            } else {
                hang_up(Duration::ZERO);
                lock(&self.writer).output = None;
            }
        }
    }

    fn close_channel(&self, number: u64) {
        lock(&self.channels).open.remove(&number);
        self.vacancy.notify_all();
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Sends heartbeats whenever nothing else was sent for a while.
    fn beat(&self) {
        let every = self.terms.silence / BEATS;
        self.whenever(&self.sent_ms, every, || self.write(Kind::Heartbeat, 0, &[]).is_ok());
    }

    /// Ends the connection when nothing was heard for too long.
    fn watch(&self) {
        let silence = self.terms.silence;
        self.whenever(&self.heard_ms, silence, || {
            self.end(Broken::Silent(silence), Duration::ZERO);
            false
        });
    }

    /// Acts whenever the last event is this long ago, until the connection is over or the action says so.
    fn whenever(&self, last: &AtomicU64, after: Duration, mut act: impl FnMut() -> bool) {
        loop {
            let pause = match pulse::next(after, self.now_ms(), last.load(Relaxed)) {
                Next::Act if act() => continue,
                Next::Act => return,
                Next::Wait(pause) => pause,
            };
            let over = lock(&self.over);
            if over.is_some() {
                return;
            }
            let _ = self.ended.wait_timeout(over, pause);
        }
    }
}

#[cfg(test)]
#[path = "connection/tests.rs"]
mod tests;
