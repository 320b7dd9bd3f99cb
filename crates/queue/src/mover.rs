//! A mover process: it finds jobs, joins those that it can work for, and cleans up when it leaves.
use async_nats::jetstream::kv;
use dmover_engine::queue::Class;
use dmover_engine::{
    Bounds, Control as Switch, JobOffer, Joined, Joining, MoverPlace, RemoteTrees, StopReason,
};
use dmover_model::{Fatal, JobSpec};
use dmover_observe::{Board, Counters, SessionView, overhear};
use dmover_plan::stragglers::Done;
use dmover_schedule::thread;
use dmover_schedule::thread::JoinHandle;
use dmover_schedule::time::Instant;
use dmover_wire::streams::StreamSettings;
use dmover_wire::{Call, MoverInfo, OfferRecord, PROTOCOL, Protocols, Reply};
use futures_util::StreamExt;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::address::Address;
use crate::channel::Channel;
use crate::identity::Trust;
use crate::link::Link;
use crate::offer::{self, ONE_VERSION};
use crate::remote::{RemoteDesk, RemoteQueue};
use crate::streams;

/// How often movers are checked.
const TURN: Duration = Duration::from_millis(5);
/// The greatest age of the displayed state of a job.
const SHOW_EVERY: Duration = Duration::from_millis(500);
/// How long the counts of a job are exported after the process has left it, because metrics are collected at intervals.
const TOLD_AFTERWARDS: Duration = Duration::from_mins(10);
/// The pause between attempts to reach a broker that is not there yet.
const TRY_AGAIN: Duration = Duration::from_millis(200);
/// A job that could not be joined is retried after this long.
const JOIN_AGAIN: Duration = Duration::from_secs(20);
/// The bucket of jobs is read again after this long, whatever updates it sent.
const WATCH_AGAIN: Duration = Duration::from_secs(30);
/// The most log lines that wait to be sent.
const LOG_BEHIND: usize = 1024;
/// How long a leaving process waits for tasks in progress.
const DRAIN: Duration = Duration::from_mins(1);
/// How long a leaving process waits for a broker without a connection, as its tasks cannot be reported.
const CUT: Duration = Duration::from_secs(3);

/// The options of a mover process.
#[derive(Debug, Clone)]
pub struct MoverOptions {
    /// The most movers for a job; 0 chooses automatically.
    pub threads: usize,
    /// Memory for buffers, in bytes.
    pub memory_bytes: u64,
    /// The most files that the process may have open.
    pub open_files_max: u64,
    /// The directory for data that does not fit into memory.
    pub spill_directory: PathBuf,
    /// The class of tasks to prefer; `None`: all classes.
    pub class: Option<Class>,
    /// Labels that the user gave it.
    pub labels: Vec<(String, String)>,
    /// Only jobs whose id begins with one of these; empty: all jobs.
    pub jobs: Vec<String>,
    /// How long to wait for the broker.
    pub broker_wait: Duration,
    /// It ends after this long without a job.
    pub idle_exit: Option<Duration>,
    /// The most bytes per second for a job.
    pub bytes_per_s: Option<u64>,
    /// The users and paths that it may work for.
    pub bounds: Bounds,
    /// Opens sources on other hosts.
    pub sources: FarSources,
}

/// Opens the sources of a job that are on other hosts, with these data streams.
pub type OpenFarSources =
    dyn Fn(&JobSpec, StreamSettings) -> Result<Arc<dyn RemoteTrees>, Fatal> + Send + Sync;

/// What opens sources on other hosts.
#[derive(Clone)]
pub struct FarSources(pub Arc<OpenFarSources>);

impl std::fmt::Debug for FarSources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FarSources")
    }
}

/// A mover process.
pub struct Mover {
    link: Arc<Link>,
    options: MoverOptions,
    trust: Arc<Trust>,
    info: MoverInfo,
    leaving: Arc<AtomicBool>,
    sessions: Sessions,
}

/// The jobs that the process works for, for displays.
pub type Sessions = Arc<Board<BTreeMap<String, SessionView>>>;

/// Changes of jobs.
enum News {
    Offer(Box<OfferRecord>),
    Gone(String),
    /// This process has left a job; if its coordinator has ended the run, the run's number.
    Left(String, Option<u64>),
}

/// A job that the process works for.
struct Session {
    run: u64,
    thread: JoinHandle<()>,
    over: Arc<AtomicBool>,
    /// It has joined the job; before, it may wait for the host of SOURCE, and has no tasks.
    has_joined: Arc<AtomicBool>,
}

impl Session {
    /// Waits for its end.
    fn end(self) {
        if self.thread.join().is_err() {
            tracing::error!("internal error in dmover during a job; please report this");
        }
    }
}

impl Mover {
    /// Connects to the broker.
    ///
    /// # Errors
    /// The broker cannot be reached, or refuses the credentials.
    pub fn connect(address: &Address, options: MoverOptions, trust: Trust) -> Result<Self, Fatal> {
        let begun = Instant::now();
        let link = loop {
            match Link::new(address, "mover") {
                Ok(link) => break link,
                // Batch systems start movers and brokers in any order.
                Err(Fatal::Unavailable { .. }) if begun.elapsed() < options.broker_wait => {
                    thread::sleep(TRY_AGAIN);
                }
                Err(error) => return Err(error),
            }
        };
        refuse_openness(&link)?;
        let info = MoverInfo {
            id: dmover_host::random_u64(),
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            host: dmover_host::name(),
            pid: std::process::id(),
            cores: dmover_host::processors::available() as u32,
            memory_bytes: options.memory_bytes,
            labels: options.labels.clone(),
            mounts: dmover_engine::mounts_here(),
        };
        let (leaving, sessions, trust) = (Arc::default(), Sessions::default(), Arc::new(trust));
        Ok(Self { link, options, trust, info, leaving, sessions })
    }

    /// The switch that makes the process leave: it ends its tasks or returns them.
    pub fn leaving(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.leaving)
    }

    /// The jobs that the process works for, updated as they change.
    pub fn sessions(&self) -> Sessions {
        Arc::clone(&self.sessions)
    }

    /// The address of the broker.
    pub fn broker(&self) -> &str {
        &self.link.shown
    }

    /// Works for jobs until it must leave. Returns how many jobs it has worked for.
    ///
    /// # Errors
    /// It cannot continue.
    pub fn run(&self) -> Result<u64, Fatal> {
        let (tell, news) = mpsc::channel();
        let watcher = self.link.runtime.spawn(watch_jobs(Arc::clone(&self.link), tell.clone()));
        let mut offers: HashMap<String, Box<OfferRecord>> = HashMap::new();
        let mut sessions: HashMap<String, Session> = HashMap::new();
        let mut tried: HashMap<[u8; 32], Instant> = HashMap::new();
        // Runs that their coordinators have ended.
        let mut over: HashSet<(String, u64)> = HashSet::new();
        let (mut joined, mut idle_since) = (0, Instant::now());
        while !self.leaving.load(Ordering::SeqCst) {
            match news.recv_timeout(Duration::from_millis(100)) {
                Ok(News::Offer(offer)) => {
                    let (job, run) = (offer.job.clone(), offer.run);
                    if over.contains(&(job.clone(), run)) {
                        tracing::warn!(
                            job,
                            "refused the offer of a run that has ended: another client published \
                            it again"
                        );
                        continue;
                    }
                    if sessions.contains_key(&job)
                        && let Err(why) = offer::verify(&offer, &self.trust)
                    {
                        tracing::warn!(job, why, "refused a second offer of a job in progress");
                        continue;
                    }
                    offers.insert(job, offer);
                }
                Ok(News::Gone(job)) => {
                    offers.remove(&job);
                    if let Some(session) = sessions.get(&job) {
                        session.over.store(true, Ordering::SeqCst);
                    }
                }
                Ok(News::Left(job, ended)) => {
                    if let Some(run) = ended {
                        over.insert((job.clone(), run));
                        if offers.get(&job).is_some_and(|offer| offer.run == run) {
                            offers.remove(&job);
                        }
                    }
                    tracing::info!(job, "stopped working for a job");
                    // Another run of it may be offered by now.
                    if let Some(session) = sessions.remove(&job) {
                        session.end();
                    }
                }
                Err(_) if watcher.is_finished() => {
                    let hint = "check that it runs, and see its log";
                    return Err(Fatal::unavailable("the broker no longer lists jobs", hint));
                }
                Err(_) => {}
            }
            for (job, offer) in &offers {
                if let Some(session) = sessions.get(job) {
                    if session.run != offer.run {
                        session.over.store(true, Ordering::SeqCst);
                    }
                    continue;
                }
                let is_wanted = offer.is_for(&self.options.labels)
                    && (self.options.jobs.is_empty()
                        || self.options.jobs.iter().any(|wanted| job.starts_with(wanted.as_str())));
                if !is_wanted {
                    continue;
                }
                tried.retain(|_, then| then.elapsed() < JOIN_AGAIN);
                let digest = offer::digest(offer);
                if tried.contains_key(&digest) {
                    continue;
                }
                tried.insert(digest, Instant::now());
                joined += 1;
                sessions.insert(job.clone(), self.begin_session(offer, tell.clone())?);
            }
            if !sessions.is_empty() {
                idle_since = Instant::now();
            }
            if self.options.idle_exit.is_some_and(|most| idle_since.elapsed() >= most) {
                break;
            }
        }
        let joined_ones =
            sessions.into_values().filter(|session| session.has_joined.load(Ordering::SeqCst));
        for session in joined_ones {
            // Each drains by itself, within bounds.
            session.end();
        }
        Ok(joined)
    }

    fn begin_session(
        &self,
        offer: &OfferRecord,
        tell: mpsc::Sender<News>,
    ) -> Result<Session, Fatal> {
        let (over, has_joined) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let protocol = Protocols::OWN.common(offer.protocols()).unwrap_or(PROTOCOL);
        let worker = Worker {
            link: Arc::clone(&self.link),
            options: self.options.clone(),
            info: MoverInfo { id: dmover_host::random_u64(), protocol, ..self.info.clone() },
            trust: Arc::clone(&self.trust),
            leaving: Arc::clone(&self.leaving),
            over: Arc::clone(&over),
            has_joined: Arc::clone(&has_joined),
            sessions: Arc::clone(&self.sessions),
        };
        let offer = offer.clone();
        let run = offer.run;
        let thread = thread::Builder::new()
            .name(format!("job-{}", offer.job))
            .spawn(move || {
                let mut left = Leaving { job: offer.job.clone(), ended: None, tell };
                match worker.work(&offer) {
                    Ok(has_ended) => left.ended = has_ended.then_some(offer.run),
                    Err(error) => {
                        tracing::warn!(job = left.job, %error, "this mover cannot work for a job");
                    }
                }
            })
            .map_err(Fatal::Thread)?;
        Ok(Session { run, thread, over, has_joined })
    }
}

/// Refuses an open broker if the mover runs as root: every user who can connect there could send it tasks.
fn refuse_openness(link: &Link) -> Result<(), Fatal> {
    let is_privileged = dmover_host::user::effective_uid() == 0
        || !dmover_host::user::capabilities_that_matter().is_empty();
    if !is_privileged || link.insecure || link.client.server_info().auth_required {
        return Ok(());
    }
    let message = format!(
        "the broker {} accepts clients without credentials, and this mover has root \
            privileges",
        link.shown
    );
    let hint = "configure credentials in nats-server, or use 'dmover broker', which requires \
        them; --insecure allows this broker";
    Err(Fatal::refused(message, hint))
}

/// Reports the end of a session, however it ended.
struct Leaving {
    job: String,
    /// The run that its coordinator has ended.
    ended: Option<u64>,
    tell: mpsc::Sender<News>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        // It fails only if the receiver has already ended.
        let _ = self.tell.send(News::Left(std::mem::take(&mut self.job), self.ended));
    }
}

/// Reports jobs as they come and go.
async fn watch_jobs(link: Arc<Link>, tell: mpsc::Sender<News>) {
    let mut known: HashMap<String, [u8; 32]> = HashMap::new();
    loop {
        let store = match streams::jobs(&link.jetstream).await {
            Ok(store) => store,
            Err(error) => {
                tracing::debug!(%error, "cannot read the list of jobs");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        // Existing entries come first.
        let Ok(mut watch) = store.watch_with_history(">").await else {
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        };
        let again = tokio::time::sleep(WATCH_AGAIN);
        let reconnected = link.reconnected();
        tokio::pin!(again, reconnected);
        loop {
            let next = tokio::select! {
                next = watch.next() => next,
                () = &mut again => None,
                // The subscription may have been lost with the connection.
                () = &mut reconnected => None,
            };
            let Some(Ok(entry)) = next else { break };
            let news = if entry.operation == kv::Operation::Put {
                match serde_json::from_slice::<OfferRecord>(&entry.value) {
                    Ok(offer) if offer.job != entry.key => {
                        let (job, key) = (offer.job, entry.key);
                        tracing::warn!(job, key, "refused an offer under the name of another job");
                        continue;
                    }
                    Ok(offer) if known.get(&entry.key) == Some(&offer::digest(&offer)) => continue,
                    Ok(offer) => {
                        known.insert(entry.key, offer::digest(&offer));
                        News::Offer(Box::new(offer))
                    }
                    Err(error) => {
                        tracing::warn!(job = entry.key, %error, "cannot read the record of a job");
                        continue;
                    }
                }
            } else {
                known.remove(&entry.key);
                News::Gone(entry.key)
            };
            if tell.send(news).is_err() {
                return;
            }
        }
        // A bucket that was created again may lack a job that has ended meanwhile; its session notices that by itself.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Works for one run of a job.
struct Worker {
    link: Arc<Link>,
    options: MoverOptions,
    trust: Arc<Trust>,
    info: MoverInfo,
    leaving: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    has_joined: Arc<AtomicBool>,
    sessions: Sessions,
}

impl Worker {
    /// Returns whether the coordinator has ended the run.
    fn work(&self, record: &OfferRecord) -> Result<bool, Fatal> {
        let channel = Channel::new(&self.link, &self.trust, self.info.id, record);
        let runtime = &self.link.runtime;
        let protocols = record.protocols();
        if Protocols::OWN.common(protocols).is_none() {
            // The coordinator reports this mover to its user, if it can read what the mover says.
            let _ = runtime.block_on(channel.meet(&self.info));
            let (theirs, own) = (&record.version, env!("CARGO_PKG_VERSION"));
            let number = protocols.newest;
            let why = format!(
                "the coordinator runs dmover {theirs} (protocol {number}), but this mover runs \
                dmover {own} (protocol {PROTOCOL})"
            );
            return Err(Fatal::refused(why, ONE_VERSION));
        }
        let mut has_worked = false;
        let channel = Arc::new(channel);
        let joined = self.join(record, &channel, &mut has_worked);
        if let Err(error) = &joined {
            // Trouble of another kind says nothing about what was done.
            let has_worked = has_worked && matches!(error, Fatal::Refused { .. });
            runtime.block_on(channel.excuse(&self.info, error.to_string(), has_worked));
        }
        joined
    }

    fn join(
        &self,
        record: &OfferRecord,
        channel: &Arc<Channel>,
        has_worked: &mut bool,
    ) -> Result<bool, Fatal> {
        let offer: JobOffer = offer::verify(record, &self.trust).map_err(|why| {
            let hint = "use the same key in the state directories of job and mover, or name the \
                key of the job with --trust";
            Fatal::refused(why, hint)
        })?;
        // Nothing is checked for an offer that may be outdated.
        let runtime = &self.link.runtime;
        runtime.block_on(channel.meet(&self.info))?;
        let names = &channel.names;
        let log = record.wants_log.then(|| overhear(LOG_BEHIND));
        let switch = Arc::new(Switch::default());
        let patience = Duration::from_millis(record.lease_ms);
        let (over, way) = (Arc::clone(&self.over), Arc::clone(channel));
        let leaving = Arc::clone(&self.leaving);
        let coordinator = RemoteDesk { channel: way, over, leaving, patience };
        let remote = if offer.spec.sources_are_remote {
            let streams = record.streams().ok_or_else(|| {
                Fatal::refused("the offer does not say how SOURCE is reached", ONE_VERSION)
            })?;
            Some((self.options.sources.0)(&offer.spec, streams)?)
        } else {
            None
        };
        let place = MoverPlace {
            threads: self.options.threads,
            memory_bytes: self.options.memory_bytes,
            bytes_per_s: self.options.bytes_per_s,
            open_files_max: self.options.open_files_max,
            spill_directory: self.options.spill_directory.clone(),
            coordinator: Arc::new(coordinator),
            counters: Arc::new(Counters::default()),
            control: Arc::clone(&switch),
            bounds: self.options.bounds.clone(),
            remote,
        };
        let engine = Joining::new(&offer, place)?;
        let places = engine.places() as u32;
        self.has_joined.store(true, Ordering::SeqCst);
        match runtime.block_on(channel.call(&Call::Join(self.info.id))) {
            Some(Reply::Noted) => {}
            _ => {
                let hint = "the mover tries again";
                return Err(Fatal::unavailable("the coordinator does not answer", hint));
            }
        }
        tracing::info!(job = names.job, "working for a job");
        let class = self.options.class;
        let queue = RemoteQueue::new(channel, (&self.info, class), record.lease_ms);
        queue.tell_load(places, None, Done::default(), (0, 0));
        queue.begin(engine.learner());
        if let Some(log) = log {
            queue.tell_log(log);
        }
        let (tasks, gate) = (Arc::clone(&queue), Arc::clone(&queue));
        let mut joined = engine.begin(tasks, gate)?;
        let ended = self.keep_at_it(&queue, &mut joined, &switch, places);
        let counters = joined.counters();
        self.sessions.change(|all| {
            let left = Some(Instant::now());
            let job = names.job.clone();
            all.insert(job.clone(), SessionView { job, counters, tasks: 0, places: 0, left });
            all.retain(|_, known| known.left.is_none_or(|left| left.elapsed() < TOLD_AFTERWARDS));
        });
        *has_worked = queue.has_worked();
        queue.close();
        // A thread that still waits for an answer gets none any more.
        self.over.store(true, Ordering::SeqCst);
        joined.end();
        let closed = queue.control().closed;
        if !closed && self.link.is_connected() {
            runtime.block_on(channel.call(&Call::Bye(self.info.id)));
        }
        tracing::info!(job = names.job, mover = self.info.describe(), "left a job");
        ended.map(|()| closed)
    }

    fn keep_at_it(
        &self,
        queue: &Arc<RemoteQueue>,
        joined: &mut Joined,
        switch: &Switch,
        places: u32,
    ) -> Result<(), Fatal> {
        let (mut drained, mut cut) = (None::<Instant>, None::<Instant>);
        let mut shown: Option<Instant> = None;
        loop {
            let control = queue.control();
            if control.closed || self.over.load(Ordering::SeqCst) {
                switch.stop_now(StopReason::Cancelled);
                return Ok(());
            }
            joined.share(control.shares());
            joined.turn(control.held)?;
            let counters = joined.counters();
            queue.tell_load(places, joined.limit().cloned(), joined.done(), counters.moved());
            if shown.is_none_or(|then| then.elapsed() >= SHOW_EVERY) {
                shown = Some(Instant::now());
                let (job, tasks) = (queue.job().to_owned(), queue.held());
                let places = places.into();
                let view = SessionView { job: job.clone(), counters, tasks, places, left: None };
                self.sessions.change(|all| _ = all.insert(job, view));
            }
            if control.dropping {
                switch.stop_now(StopReason::Cancelled);
            } else if control.stopping {
                switch.stop(StopReason::Cancelled);
            }
            if self.leaving.load(Ordering::SeqCst) {
                if drained.is_none() {
                    queue.drain();
                }
                let since = *drained.get_or_insert_with(Instant::now);
                if queue.is_idle() {
                    return Ok(());
                }
                cut = (!self.link.is_connected()).then(|| cut.unwrap_or_else(Instant::now));
                let is_cut = cut.is_some_and(|cut| cut.elapsed() > CUT);
                if is_cut || since.elapsed() > DRAIN {
                    switch.stop_now(StopReason::Cancelled);
                    return Ok(());
                }
            }
            thread::sleep(TURN);
        }
    }
}
