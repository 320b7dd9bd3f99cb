//! One sequence of bytes in each direction over several connections, which may fail and be replaced.
//!
//! What is written is cut into numbered chunks, and each stream takes the next one when it can send. So a slow stream
//! carries less, and one file uses all streams. The other side puts chunks in order and says which have come; until then
//! they are kept, and those of a stream that ends are sent again on others.
use dmover_model::Protected;
use dmover_observe::lock;
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use dmover_wire::streams::Compression;
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::shared::{End, Lost, Shared, Stream, Transport, wait};
use super::{report, watch, worker};
use crate::connection::{HangUp, Link};

/// Chunks in memory that the other side does not have: more than is on its way on a fast and long line.
const HELD_MAX: usize = 256 << 20;
/// The same at the side that receives, with room for what the limit above may be exceeded by.
const EARLY_MAX: usize = HELD_MAX + (16 << 20);

/// Several connections as one. Clones are the same pool.
#[derive(Clone)]
pub(super) struct Pool(Arc<Shared>);

impl Pool {
    /// A pool with one stream, which carries something only while there is no other one. `patience`: how long the other side
    /// may be unreachable once there was another stream.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(spare: Transport, patience: Duration, compression: Compression) -> io::Result<Self> {
        let pool = Self(Arc::new(Shared::new(HELD_MAX, EARLY_MAX, compression)));
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
        let Transport { input, output, close, socket, is_in_ssh } = transport;
        let shared = &self.0;
        let now = shared.now_ms();
        let mut state = lock(&shared.state);
        state.last_number += 1;
        let stream =
            Arc::new(Stream::new(state.last_number, is_spare, (close, socket, is_in_ssh), now));
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

    /// Begins to count those anew, as streams take another way.
    pub fn forget_young_losses(&self) {
        lock(&self.0.state).young = 0;
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

    /// What a connection of channels sees. `hang_up` ends what carries the spare stream; what protects the bytes of the streams,
    /// and those of the spare one.
    pub fn link(self, hang_up: HangUp, (streams, spare): (Protected, Protected)) -> Link {
        let known = Arc::clone(&self.0);
        let report = Box::new(move || {
            let state = lock(&known.state);
            let mut all = state.streams.iter().filter(|stream| !stream.is_spare);
            let protected = match all.next() {
                None => spare,
                Some(first) if first.is_in_ssh => Protected::SshStreams,
                Some(_) => streams,
            };
            report::of(&state.streams, (protected, &known.carried), known.lost.load(Relaxed))
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
                    self.shared.taken.notify_all();
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
