//! The host that runs the job: it accepts the others, and gives them chunks.
use dmover_engine::{ChunkDesk, ChunkMovers, GivenChunk};
use dmover_model::Fatal;
use dmover_net::agent::{self, Role, Service};
use dmover_net::connection::{Broken, Channel, Connection, bytes};
use dmover_net::hello::Hello;
use dmover_observe::lock;
use dmover_schedule::sync::{Condvar, Mutex};
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use dmover_wire::agent::UNKNOWN_REQUEST;
use dmover_wire::chunks::{ChunkNews, ChunkReport, ChunkRequest, Process};
use dmover_wire::delegation::DelegateRequest;
use dmover_wire::{TaskMessage, decode, encode};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::LEASE;
use crate::joined::{receive, send};

/// The longest time for which a request waits for a chunk.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// The same for an offer. A host says before each request for one which of its earlier processes are gone.
const OFFER_WAIT: Duration = Duration::from_secs(1);
/// The pause before a host is accepted again.
const PAUSE: Duration = Duration::from_secs(1);
/// Why a host gets nothing more.
const SOMETHING_ELSE: &str = "a report is about something else";
/// How often lost chunks are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// A chunk without progress for this long is lost, as one of this process is.
const STALLED: Duration = Duration::from_mins(30);

/// The other hosts that share DEST with this one.
pub struct OtherHosts {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    pass: Mutex<Option<Arc<ChunkDesk>>>,
    changed: Condvar,
    /// Processes of an interrupted run that may still write.
    earlier: Mutex<Vec<Named>>,
}

/// A process of a host, as the note of a run names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Named {
    host: String,
    /// `None`: proc(5) hides it there.
    process: Option<Process>,
}

impl OtherHosts {
    /// Accepts the hosts with these names, as they come, on a connection with the host of the command, which connects them.
    /// `own`: the greeting of this host.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn accept(
        connection: &Arc<Connection>,
        names: Vec<String>,
        own: &Hello,
    ) -> Result<Self, Fatal> {
        let shared = Arc::<Shared>::default();
        for (number, name) in names.into_iter().enumerate() {
            let (shared, own) = (Arc::clone(&shared), own.clone());
            let (lost, told) = Default::default();
            let host = Host { number, name, shared, own, lost, told };
            let connection = Arc::clone(connection);
            let named = thread::Builder::new().name("dest-host".into());
            named.spawn(move || host.keep(&connection)).map_err(Fatal::Thread)?;
        }
        Ok(Self { shared })
    }
}

impl ChunkMovers for OtherHosts {
    fn lease(&self) -> Duration {
        LEASE
    }

    fn doubt(&self, processes: Vec<String>) {
        // What cannot be read is of nobody, and so never known to be gone.
        let nobody = || Named { host: String::new(), process: None };
        let read = |line: String| serde_json::from_str(&line).unwrap_or_else(|_| nobody());
        *lock(&self.shared.earlier) = processes.into_iter().map(read).collect();
    }

    fn are_gone(&self) -> bool {
        lock(&self.shared.earlier).is_empty()
    }

    fn begin(&self, desk: Arc<ChunkDesk>) {
        *lock(&self.shared.pass) = Some(desk);
        self.shared.changed.notify_all();
    }

    fn end(&self) {
        *lock(&self.shared.pass) = None;
    }
}

impl Shared {
    /// The present pass. Waits for one.
    fn pass(&self) -> Option<Arc<ChunkDesk>> {
        let has_none = |pass: &mut Option<Arc<ChunkDesk>>| {
            // One that has ended may take a while to be gone, as it flushes.
            pass.as_ref().is_none_or(|pass| pass.is_over())
        };
        let waited = self.changed.wait_timeout_while(lock(&self.pass), OFFER_WAIT, has_none);
        let pass = waited.unwrap_or_else(PoisonError::into_inner).0.clone();
        pass.filter(|pass| !pass.is_over())
    }
}

/// One of the other hosts.
struct Host {
    number: usize,
    name: String,
    shared: Arc<Shared>,
    own: Hello,
    lost: Arc<Lost>,
    /// Why it does not take part, as the user was told.
    told: Arc<Mutex<Option<String>>>,
}

impl Host {
    /// Accepts the host again and again, until the connection with the host of the command is over.
    fn keep(&self, connection: &Connection) {
        loop {
            let accept = DelegateRequest::Accept { number: self.number as u32 };
            let Ok(channel) = connection.request(&encode(&accept)) else { return };
            match channel.receive() {
                Ok(Some(_)) => self.serve(&Arc::new(channel)),
                // The host of the command does not connect them.
                Ok(None) | Err(Broken::Cancelled(_)) => {}
                Err(_) => return,
            }
            thread::sleep(PAUSE);
        }
    }

    fn serve(&self, channel: &Arc<Channel>) {
        let session = Arc::new(Session {
            name: self.name.clone(),
            shared: Arc::clone(&self.shared),
            process: Mutex::default(),
            pass: Mutex::default(),
            held: Mutex::default(),
            is_refused: AtomicBool::new(false),
            told: Arc::clone(&self.told),
            lost: Arc::clone(&self.lost),
        });
        let (input, output) = bytes::of(channel);
        let service: Arc<dyn Service> = Arc::clone(&session) as _;
        let end = agent::run(input, output, (self.own.clone(), Vec::new()), |_| {
            Ok(Role::Serves(service))
        });
        tracing::info!(host = self.name, ?end, "the connection of a host that shares DEST ends");
        channel.cancel("it was closed");
        session.lose_all();
    }
}

/// Chunks of connections that have ended, whose movers may still write.
type Lost = Mutex<Vec<Arc<LostChunks>>>;

/// The chunks of one connection.
struct LostChunks {
    process: Option<Process>,
    chunks: Mutex<Vec<GivenChunk>>,
}

impl LostChunks {
    /// Waits until their leases are over, so that the mover must have stopped, or it is known to be gone, or the run has ended.
    fn await_end(&self, desk: &ChunkDesk) {
        while lock(&self.chunks).iter().any(GivenChunk::holds) {
            if desk.is_over() {
                // The next run has to know that they may still be written.
                return lock(&self.chunks).drain(..).for_each(GivenChunk::leave);
            }
            thread::sleep(LOOK);
        }
        lock(&self.chunks).drain(..).for_each(|given| let_go(given, desk));
    }
}

/// Ends a chunk whose lease is over. If the job stops, the next run has to know that it may still be written; otherwise its file
/// begins again in this one.
fn let_go(given: GivenChunk, desk: &ChunkDesk) {
    if desk.is_stopping() {
        given.leave();
    }
}

/// A chunk that the host has, and when it last made progress.
struct Held {
    given: GivenChunk,
    progressed: Instant,
}

/// All chunks of a connection.
#[derive(Default)]
struct AllHeld {
    chunks: HashMap<u32, Held>,
    /// The connection is over, and gets no more.
    is_over: bool,
}

/// A connection with one of the other hosts.
struct Session {
    name: String,
    shared: Arc<Shared>,
    process: Mutex<Option<Process>>,
    lost: Arc<Lost>,
    /// The pass in which the host takes part.
    pass: Mutex<Option<Arc<ChunkDesk>>>,
    held: Mutex<AllHeld>,
    /// It has reported what it was not asked for.
    is_refused: AtomicBool,
    told: Arc<Mutex<Option<String>>>,
}

impl Session {
    /// The connection is over: its chunks stay with the host as long as it may write to them.
    fn lose_all(&self) {
        let mut held = lock(&self.held);
        held.is_over = true;
        let chunks: Vec<_> = held.chunks.drain().map(|(_, held)| held.given).collect();
        drop(held);
        let Some(desk) = lock(&self.pass).clone().filter(|_| !chunks.is_empty()) else { return };
        let process = lock(&self.process).clone();
        let lost = Arc::new(LostChunks { process, chunks: Mutex::new(chunks) });
        lock(&self.lost).push(Arc::clone(&lost));
        let all = Arc::clone(&self.lost);
        let waiting = thread::Builder::new().name("chunk-leases".into()).spawn(move || {
            lost.await_end(&desk);
            lock(&all).retain(|other| !Arc::ptr_eq(other, &lost));
        });
        if let Err(error) = waiting {
            // Their leases run out all the same.
            tracing::warn!(%error, "cannot start a thread that waits for lost chunks");
        }
    }

    fn begin(&self, process: Option<Process>, channel: &Channel) -> Result<(), Broken> {
        *lock(&self.process) = process;
        let lost = lock(&self.lost).clone();
        let lost = lost.iter().filter_map(|lost| lost.process.clone());
        let earlier = lock(&self.shared.earlier).clone();
        let earlier = earlier.into_iter().filter(|named| named.host == self.name);
        let doubtful: Vec<Process> =
            lost.chain(earlier.filter_map(|named| named.process)).collect();
        send(channel, &encode(&doubtful))
    }

    fn gone(&self, gone: &[Process]) {
        let is_gone = |named: &Named| {
            named.host == self.name && named.process.as_ref().is_some_and(|p| gone.contains(p))
        };
        lock(&self.shared.earlier).retain(|named| !is_gone(named));
        for lost in lock(&self.lost).iter() {
            if lost.process.as_ref().is_some_and(|process| gone.contains(process)) {
                lock(&lost.chunks).drain(..).for_each(GivenChunk::refuse);
            }
        }
    }

    /// The movers of the host have ended, so that none writes any more.
    fn leave(&self) {
        lock(&self.held).chunks.drain().for_each(|(_, held)| held.given.refuse());
    }

    fn desk(&self) -> Result<Arc<ChunkDesk>, Broken> {
        let none = || Broken::Cancelled("no pass was asked for".into());
        lock(&self.pass).clone().ok_or_else(none)
    }

    fn offer(&self, channel: &Channel) -> Result<(), Broken> {
        let pass = self.shared.pass();
        let text = pass.as_ref().map(|desk| {
            serde_json::to_string(desk.offer())
                .map_err(|error| Broken::Cancelled(format!("the job has no form in JSON: {error}")))
        });
        let text = text.transpose()?;
        if let Some(desk) = &pass {
            let named = Named { host: self.name.clone(), process: lock(&self.process).clone() };
            let named = serde_json::to_string(&named).unwrap_or_default();
            desk.name(&named).map_err(|error| Broken::Cancelled(error.to_string()))?;
        }
        *lock(&self.pass) = pass;
        send(channel, &encode(&text))
    }

    fn take(&self, wait: Duration, channel: &Channel) -> Result<(), Broken> {
        // The host counts from its request on, and stops first.
        let lease = LEASE + LEASE / 10;
        let Some(given) = self.desk()?.take(&self.name, (wait.min(WAIT_MAX), lease)) else {
            return send(channel, &encode(&None::<TaskMessage>));
        };
        let number = given.number();
        let message = encode(&Some(TaskMessage { number, task: given.task().clone() }));
        let mut held = lock(&self.held);
        if held.is_over {
            drop(held);
            given.put_back();
            return Ok(());
        }
        held.chunks.insert(number, Held { given, progressed: Instant::now() });
        drop(held);
        // After an error the host may have it all the same.
        send(channel, &message)
    }

    fn renew(&self, numbers: Vec<(u32, bool)>, channel: &Channel) -> Result<(), Broken> {
        let desk = self.desk()?;
        let mut news = ChunkNews {
            others_wait: desk.others_wait(),
            sharers: desk.sharers(),
            is_over: desk.is_over(),
            ..ChunkNews::default()
        };
        let mut all = lock(&self.held);
        // What was not renewed in time is lost.
        let over: Vec<_> = all.chunks.extract_if(|_, held| !held.given.holds()).collect();
        for (_, held) in over {
            let_go(held.given, &desk);
        }
        for (number, has_progressed) in numbers {
            let Some(held) = all.chunks.get_mut(&number) else {
                news.lost.push(number);
                continue;
            };
            if has_progressed {
                held.progressed = Instant::now();
            }
            if held.progressed.elapsed() < STALLED {
                held.given.renew();
            } else {
                // Its thread hangs.
                news.lost.push(number);
            }
            if held.given.is_wanted_back() {
                news.wanted_back.push(number);
            }
        }
        drop(all);
        send(channel, &encode(&news))
    }

    fn hear(&self, channel: &Channel) -> Result<(), Broken> {
        loop {
            let ChunkReport { number, told, outcome, ended } = receive(channel)?;
            let mut all = lock(&self.held);
            let Some(held) = all.chunks.get(&number) else { continue };
            if !held.given.admits(&outcome) {
                self.is_refused.store(true, SeqCst);
                return Err(Broken::Cancelled(SOMETHING_ELSE.into()));
            }
            if !ended {
                held.given.report(told, outcome);
            } else if let Some(held) = all.chunks.remove(&number) {
                drop(all);
                held.given.end(told, outcome);
            }
        }
    }

    /// Shows the user why the host does not take part, once.
    fn unable(&self, why: String) -> Result<(), Broken> {
        let desk = self.desk()?;
        let mut told = lock(&self.told);
        if told.as_ref() != Some(&why) {
            desk.tell(format!("'{}' does not write: {why}", self.name));
            *told = Some(why);
        }
        Ok(())
    }
}

impl Service for Session {
    fn serve(&self, request: &[u8], channel: &Arc<Channel>) -> Result<(), Broken> {
        if self.is_refused.load(SeqCst) {
            return Err(Broken::Cancelled(SOMETHING_ELSE.into()));
        }
        match decode(request) {
            Ok(ChunkRequest::Begin(process)) => self.begin(process, channel),
            Ok(ChunkRequest::Gone(gone)) => {
                self.gone(&gone);
                Ok(())
            }
            Ok(ChunkRequest::Offer) => self.offer(channel),
            Ok(ChunkRequest::Ask(question)) => {
                send(channel, &encode(&self.desk()?.answer(question)))
            }
            Ok(ChunkRequest::Take { wait_ms }) => {
                self.take(Duration::from_millis(wait_ms.into()), channel)
            }
            Ok(ChunkRequest::Renew { held }) => self.renew(held, channel),
            Ok(ChunkRequest::Reports) => self.hear(channel),
            Ok(ChunkRequest::Leave) => {
                self.leave();
                Ok(())
            }
            Ok(ChunkRequest::Unable(why)) => self.unable(why),
            Err(_) => Err(Broken::Cancelled(UNKNOWN_REQUEST.into())),
        }
    }
}
