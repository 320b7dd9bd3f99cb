//! The host that runs the job: it accepts the others, and gives them chunks.
use dmover_engine::{ChunkDesk, ChunkMovers, GivenChunk};
use dmover_model::Fatal;
use dmover_net::agent::{self, Role, Service};
use dmover_net::connection::{Broken, Channel, Connection, bytes};
use dmover_net::hello::Hello;
use dmover_observe::lock;
use dmover_schedule::sync::{Condvar, Mutex};
use dmover_schedule::thread;
use dmover_wire::agent::UNKNOWN_REQUEST;
use dmover_wire::chunks::{ChunkNews, ChunkReport, ChunkRequest, Process};
use dmover_wire::delegation::DelegateRequest;
use dmover_wire::{TaskMessage, decode, encode};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::LEASE;
use crate::joined::{receive, send};

/// The longest time for which a request waits for an offer or a chunk.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// The pause before a host is accepted again.
const PAUSE: Duration = Duration::from_secs(1);

/// The other hosts that share DEST with this one.
pub struct OtherHosts {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    pass: Mutex<Option<Arc<ChunkDesk>>>,
    changed: Condvar,
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
            let (shared, lost) = (Arc::clone(&shared), Arc::default());
            let host = Host { number, name, shared, own: own.clone(), lost };
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
        let pass = lock(&self.pass);
        let waited = self.changed.wait_timeout_while(pass, WAIT_MAX, |pass| pass.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

/// One of the other hosts.
struct Host {
    number: usize,
    name: String,
    shared: Arc<Shared>,
    own: Hello,
    lost: Arc<Lost>,
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
            number: self.number,
            name: self.name.clone(),
            shared: Arc::clone(&self.shared),
            process: Mutex::default(),
            pass: Mutex::default(),
            held: Mutex::default(),
            heard_ms: Mutex::new(now_ms()),
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
    /// Waits until the mover must have stopped, or is known to be gone, or the run has ended.
    fn await_end(&self, over_ms: u64, desk: &ChunkDesk) {
        while !lock(&self.chunks).is_empty() {
            if desk.is_over() {
                // The next run has to know that they may still be written.
                return lock(&self.chunks).drain(..).for_each(GivenChunk::leave);
            }
            let Some(left) = over_ms.checked_sub(now_ms()).filter(|left| *left > 0) else {
                return lock(&self.chunks).clear();
            };
            thread::sleep(Duration::from_millis(left.min(100)));
        }
    }
}

fn now_ms() -> u64 {
    dmover_host::boot_clock_ms()
}

/// A connection with one of the other hosts.
struct Session {
    number: usize,
    name: String,
    shared: Arc<Shared>,
    process: Mutex<Option<Process>>,
    lost: Arc<Lost>,
    /// The pass in which the host takes part.
    pass: Mutex<Option<Arc<ChunkDesk>>>,
    held: Mutex<HashMap<u32, GivenChunk>>,
    /// When the host has last asked for something that keeps its chunks.
    heard_ms: Mutex<u64>,
}

impl Session {
    /// Takes its chunks back once the host cannot write any more.
    fn lose_all(&self) {
        let chunks: Vec<_> = lock(&self.held).drain().map(|(_, given)| given).collect();
        let Some(desk) = lock(&self.pass).clone().filter(|_| !chunks.is_empty()) else { return };
        let process = lock(&self.process).clone();
        let over_ms = *lock(&self.heard_ms) + LEASE.as_millis() as u64;
        let lost = Arc::new(LostChunks { process, chunks: Mutex::new(chunks) });
        lock(&self.lost).push(Arc::clone(&lost));
        let all = Arc::clone(&self.lost);
        let waiting = thread::Builder::new().name("chunk-leases".into()).spawn(move || {
            lost.await_end(over_ms, &desk);
            lock(&all).retain(|other| !Arc::ptr_eq(other, &lost));
        });
        if let Err(error) = waiting {
            // They stay lost, and with them the end of the job, which says so.
            tracing::error!(%error, "cannot start a thread that waits for lost chunks");
        }
    }

    fn begin(&self, process: Option<Process>, channel: &Channel) -> Result<(), Broken> {
        *lock(&self.process) = process;
        let doubtful: Vec<Process> =
            lock(&self.lost).iter().filter_map(|lost| lost.process.clone()).collect();
        send(channel, &encode(&doubtful))
    }

    fn gone(&self, gone: &[Process]) {
        for lost in lock(&self.lost).iter() {
            if lost.process.as_ref().is_some_and(|process| gone.contains(process)) {
                lock(&lost.chunks).drain(..).for_each(GivenChunk::refuse);
            }
        }
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
        *lock(&self.pass) = pass;
        send(channel, &encode(&text))
    }

    fn take(&self, wait: Duration, channel: &Channel) -> Result<(), Broken> {
        let desk = self.desk()?;
        *lock(&self.heard_ms) = now_ms();
        let Some(given) = desk.take(self.number, wait.min(WAIT_MAX)) else {
            return send(channel, &encode(&None::<TaskMessage>));
        };
        let number = given.number();
        let message = encode(&Some(TaskMessage { number, task: given.task().clone() }));
        // From the request on, the host counts the time that it has.
        *lock(&self.heard_ms) = now_ms();
        lock(&self.held).insert(number, given);
        send(channel, &message).inspect_err(|_| {
            if let Some(given) = lock(&self.held).remove(&number) {
                given.refuse();
            }
        })
    }

    fn renew(&self, held: Vec<(u32, bool)>, channel: &Channel) -> Result<(), Broken> {
        let desk = self.desk()?;
        let mut news = ChunkNews {
            others_wait: desk.others_wait(),
            sharers: desk.sharers(),
            is_over: desk.is_over(),
            ..ChunkNews::default()
        };
        *lock(&self.heard_ms) = now_ms();
        let given = lock(&self.held);
        for (number, has_progressed) in held {
            match given.get(&number).filter(|given| given.holds()) {
                None => news.lost.push(number),
                Some(given) => {
                    if has_progressed {
                        given.progressed();
                    }
                    if given.is_wanted_back() {
                        news.wanted_back.push(number);
                    }
                }
            }
        }
        drop(given);
        send(channel, &encode(&news))
    }

    fn hear(&self, channel: &Channel) -> Result<(), Broken> {
        loop {
            let ChunkReport { number, told, outcome, ended } = receive(channel)?;
            let mut held = lock(&self.held);
            if ended {
                let given = held.remove(&number);
                drop(held);
                if let Some(given) = given {
                    given.end(told, outcome);
                }
            } else if let Some(given) = held.get(&number) {
                given.report(told, outcome);
            }
        }
    }
}

impl Service for Session {
    fn serve(&self, request: &[u8], channel: &Arc<Channel>) -> Result<(), Broken> {
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
            Ok(ChunkRequest::Unable(why)) => {
                self.desk()?.tell(format!("'{}' does not write: {why}", self.name));
                Ok(())
            }
            Err(_) => Err(Broken::Cancelled(UNKNOWN_REQUEST.into())),
        }
    }
}
