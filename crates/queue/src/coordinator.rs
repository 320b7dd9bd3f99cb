//! The coordinator's side: it issues tasks, records which mover holds each, and receives outcomes.
use async_nats::jetstream::kv;
use dmover_engine::queue::{Class, Dispatch, Lease, Reported};
use dmover_engine::{Engine, Fleet, Fleets, JobOffer, Notice};
use dmover_model::{Fatal, Limit, Limits, Task};
use dmover_observe::{CLASSES, MoverView};
use dmover_schedule::sync::{Mutex, MutexGuard};
use dmover_wire::streams::StreamSettings;
use dmover_wire::{
    Call, DecodeError, MoverInfo, MoverReport, OLDEST, OfferRecord, OfferText, OutcomeMessage,
    PROTOCOL, Protocols, Reply,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

use crate::address::Address;
use crate::clock::{self, Distance};
use crate::identity::Trust;
use crate::job_registry::{Offered, Refused, put, refuse_others, take_over, unavailable};
use crate::link::Link;
use crate::offer::{self, ONE_VERSION};
use crate::streams::{self, Names};

/// With more waiting tasks than this for each other mover, a mover may prefetch one.
const PLENTY: usize = 2;
/// How long no mover must wait for work before this is broadcast.
const LASTING: Duration = Duration::from_millis(5);
/// A task that this many movers have lost is not tried again.
const LOST_MAX: usize = 8;
/// A job ends when the broker has accepted nothing for this long.
const TROUBLE: Duration = Duration::from_mins(5);
/// How long to try a broker that cannot be reached or accepts nothing at the start of a job.
const BEGIN_WITHIN: Duration = Duration::from_secs(10);
/// After this long, a message tells the user about it.
const BEGIN_TELL: Duration = Duration::from_secs(3);
/// At its end a job waits for the broker at most for the first time, and at least for the second if it was stopped.
const FAREWELL: Duration = Duration::from_secs(10);
const FAREWELL_LEAST: Duration = Duration::from_secs(1);

mod broadcast;
mod claims;
mod inbox;
mod keyring;
mod loops;
mod meeting;
mod messages;
mod movers;
mod pool;
mod published_offer;
mod reach;
mod tasks;
use broadcast::Broadcast;
use inbox::Inbox;
use keyring::Keyring;
use loops::{LOOK_EVERY, hear_all, hear_logs, look_after, publish_all};
use meeting::answer_all;
use messages::UserMessages;
use movers::{Assessment, Movers};
use pool::share_limits;
use published_offer::PublishedOffer;
use reach::{BrokerHealth, watch_broker};
use tasks::{Holding, Issued, IssuedTasks, Piece};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A fleet of movers behind a broker.
pub struct NatsFleets {
    link: Arc<Link>,
    terms: FleetOptions,
    trust: Arc<Trust>,
    /// The broker has accepted a job.
    is_known: AtomicBool,
}

/// Which movers may work for a job, and the time limits.
#[derive(Debug, Clone)]
pub struct FleetOptions {
    /// A mover that sends no message for this long loses its tasks.
    pub lease: Duration,
    /// A job ends after this long without a mover or a broker.
    pub patience: Duration,
    /// Only movers with all of these labels; empty: any mover.
    pub only: Vec<(String, String)>,
    /// The pool of jobs that share rate limits.
    pub pool: Option<String>,
    /// The data streams of movers to the hosts of SOURCE; `None`: SOURCE is mounted on all hosts.
    pub streams: Option<StreamSettings>,
}

impl NatsFleets {
    /// Connects to the broker.
    ///
    /// # Errors
    /// The broker cannot be reached, refuses the credentials, or lacks a required feature.
    pub fn connect(address: &Address, terms: FleetOptions, trust: Trust) -> Result<Self, Fatal> {
        let begun = Lease::now_ms();
        let within = BEGIN_WITHIN.min(terms.patience).as_millis() as u64;
        let link = loop {
            match Link::new(address, "coordinator") {
                // A broker that is starting or restarting is there in a moment.
                Err(error @ Fatal::Unavailable { .. }) if Lease::now_ms() < begun + within => {
                    tracing::warn!(%error, "cannot connect to the broker; retrying");
                    dmover_schedule::thread::sleep(LOOK_EVERY);
                }
                result => break result?,
            }
        };
        Ok(Self { link, terms, trust: Arc::new(trust), is_known: AtomicBool::new(false) })
    }
}

impl Fleets for NatsFleets {
    fn lease(&self) -> Duration {
        self.terms.lease
    }

    fn open(&self, offer: JobOffer, engine: Arc<Engine>) -> Result<Arc<dyn Fleet>, Fatal> {
        // A watch has one job after the other: it waits for a broker that has been there as a job does that is at work.
        let patience = self.terms.patience;
        let is_known = self.is_known.load(Ordering::SeqCst);
        let within = if is_known { patience } else { BEGIN_WITHIN.min(patience) };
        let terms = self.terms.clone();
        let way = (&self.link, &self.trust);
        let fleet = NatsFleet::open(way, &offer, engine, terms, within);
        let fleet = self.link.runtime.block_on(fleet)?;
        self.is_known.store(true, Ordering::SeqCst);
        Ok(Arc::new(fleet))
    }
}

/// One run, as the driver and the background loops share it. Where several locks are held at a time, the table of tasks
/// is locked first.
struct Shared {
    /// The connection to the broker.
    link: Arc<Link>,
    /// The names of the run at the broker.
    names: Names,
    /// The key of the coordinator, and the keys of movers that may join.
    trust: Arc<Trust>,
    /// Answers requests of movers.
    engine: Arc<Engine>,
    /// What the driver receives.
    inbox: Inbox,
    /// Tasks that have not ended.
    tasks: IssuedTasks,
    /// Facts that tasks depend on, in the order in which movers learn them.
    facts: Mutex<Vec<Notice>>,
    /// The movers that have joined.
    movers: Movers,
    /// The keys of movers that have proved their identity.
    keyring: Mutex<Keyring>,
    /// What all movers must know.
    broadcast: Broadcast,
    /// The offer by which movers find the job.
    offer: PublishedOffer,
    /// Messages for the user.
    messages: UserMessages,
    /// Whether the broker can be used.
    health: BrokerHealth,
    /// The run has ended.
    closed: AtomicBool,
}

/// One run with movers behind a broker.
pub(crate) struct NatsFleet {
    shared: Arc<Shared>,
}

impl NatsFleet {
    async fn open(
        (link, trust): (&Arc<Link>, &Arc<Trust>),
        offer: &JobOffer,
        engine: Arc<Engine>,
        FleetOptions { lease, patience, only, pool, streams }: FleetOptions,
        within: Duration,
    ) -> Result<Self, Fatal> {
        let names = Names { job: offer.key.clone(), run: offer.run };
        let lease_ms = lease.as_millis() as u64;
        let text = OfferText { offer, newest_protocol: PROTOCOL, streams: streams.as_ref() };
        let text = serde_json::to_string(&text).map_err(|e| unavailable("the job", &e))?;
        let mut body = OfferRecord {
            // Tasks and broadcasts are for all movers, also those of the oldest protocol.
            protocol: OLDEST,
            version: env!("CARGO_PKG_VERSION").into(),
            job: names.job.clone(),
            run: names.run,
            host: dmover_host::name(),
            pid: std::process::id(),
            lease_ms,
            wants_log: tracing::enabled!(target: "mover", tracing::Level::INFO),
            only,
            offer: text.into(),
            signer: String::new(),
            signature: String::new(),
        };
        offer::sign(&mut body, &trust.identity);
        let (outgoing, tasks) = mpsc::unbounded_channel();
        let calls = link.client.subscribe(names.call_subject()).await;
        let calls = calls.map_err(|e| unavailable("calls", &e))?;
        let (store, revision) =
            Box::pin(begin(link, &engine, (offer, &names, &body), within)).await?;
        let shared = Arc::new(Shared {
            link: Arc::clone(link),
            trust: Arc::clone(trust),
            inbox: Inbox::new(),
            tasks: IssuedTasks::new(&offer.spec, lease_ms, outgoing),
            facts: Mutex::default(),
            movers: Movers::of_job(has_rates(&offer.spec.limits)),
            keyring: Mutex::default(),
            broadcast: Broadcast::new(link, &names, trust),
            offer: PublishedOffer::new(Offered { store, body, revision }),
            messages: UserMessages::new(&engine),
            health: BrokerHealth::default(),
            closed: AtomicBool::new(false),
            engine,
            names,
        });
        link.runtime.spawn(publish_all(Arc::clone(&shared), tasks));
        link.runtime.spawn(hear_all(Arc::clone(&shared)));
        link.runtime.spawn(answer_all(Arc::clone(&shared), calls));
        link.runtime.spawn(look_after(Arc::clone(&shared), patience));
        link.runtime.spawn(watch_broker(Arc::clone(&shared)));
        link.runtime.spawn(hear_logs(Arc::clone(&shared)));
        if let Some(pool) = pool {
            link.runtime.spawn(share_limits(Arc::clone(&shared), pool));
        }
        Ok(Self { shared })
    }
}

/// Whether any rate is limited.
fn has_rates(limits: &Limits) -> bool {
    let rates =
        [limits.bytes_per_s, limits.operations_per_s, limits.opens_per_s, limits.creates_per_s];
    rates.iter().any(Option::is_some)
}

/// Publishes the offer of a job once the broker accepts it. Returns the bucket and the revision.
async fn begin(
    link: &Arc<Link>,
    engine: &Engine,
    (offer, names, body): (&JobOffer, &Names, &OfferRecord),
    within: Duration,
) -> Result<(kv::Store, u64), Fatal> {
    let begun = tokio::time::Instant::now();
    let (mut has_waited, mut has_told) = (offer.has_waited, false);
    loop {
        let offered = async {
            let store = streams::jobs(&link.jetstream).await?;
            let before = take_over(link, &store, names, (engine, has_waited)).await?;
            has_waited = true;
            streams::make(&link.jetstream, names).await?;
            let revision = put(&store, body, before).await?;
            if let Err(refused) = refuse_others(link, &store, (offer, revision), engine).await {
                let _ = store.delete_expect_revision(&names.job, Some(revision)).await;
                streams::remove(&link.jetstream, names).await;
                return Err(refused);
            }
            Ok((store, revision))
        };
        // It may have been killed, and have forgotten everything, in this very moment.
        let error = match Box::pin(offered).await {
            Ok(offered) => return Ok(offered),
            Err(Refused::Taken(error)) => return Err(error),
            Err(Refused::Broker(error)) => error,
        };
        if begun.elapsed() > within {
            return Err(error);
        }
        if engine.is_stopping() {
            let message = format!("the job stopped while it waited for the broker {}", link.shown);
            return Err(Fatal::unavailable(message, "run the same command again"));
        }
        tracing::warn!(%error, "the broker does not accept the job; retrying");
        if begun.elapsed() > BEGIN_TELL && !std::mem::replace(&mut has_told, true) {
            let seconds = within.as_secs();
            engine.tell_of_movers(format!("retrying for up to {seconds} s: {error}"));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

impl Shared {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// For which classes movers wait and no tasks are left.
    fn hunger(&self) -> [bool; CLASSES] {
        let lacking = self.tasks.lacking();
        let members = self.movers.members();
        Class::ALL.map(|class| lacking[class as usize] && members.anybody_waits(class))
    }

    /// Broadcasts whether movers wait for work. The start is broadcast at once, the end only after a delay: otherwise
    /// each issued task would cause two broadcasts.
    fn steer_work(self: &Arc<Self>) {
        let now = self.hunger();
        self.broadcast.steer(|control| {
            for (told, now) in control.hungry.iter_mut().zip(now) {
                *told |= now;
            }
        });
        if self.broadcast.control().hungry == now || !self.broadcast.begin_settling() {
            return;
        }
        let shared = Arc::clone(self);
        self.link.runtime.spawn(async move {
            tokio::time::sleep(LASTING).await;
            shared.broadcast.end_settling();
            let hungry = shared.hunger();
            shared.broadcast.steer(|control| control.hungry = hungry);
        });
    }

    fn answer(self: &Arc<Self>, call: Call) -> Reply {
        let now = Lease::now_ms();
        match call {
            Call::Waiting(mover, waits) => {
                self.movers.members().waits(mover, waits);
                self.steer_work();
                Reply::Noted
            }
            // Signed calls are handled elsewhere.
            Call::Hello { .. } => Reply::Noted,
            Call::Join(mover) => match lock(&self.keyring).info(mover) {
                Some(info) => {
                    let (who, cores) = (info.describe(), info.cores);
                    tracing::info!(mover = who, cores, "a mover joined");
                    self.movers.members().welcome(info, now);
                    Reply::Noted
                }
                None => Reply::Stranger,
            },
            Call::Unable { info, why, has_worked } => {
                tracing::warn!(mover = info.describe(), why, "a mover cannot work for this job");
                if has_worked {
                    self.engine.doubt_mover(&info.describe(), &why);
                }
                self.messages.tell_unable(&info, &why);
                Reply::Noted
            }
            Call::Claim { mover, tasks, facts } => self.claim(mover, tasks, facts),
            Call::Renew { mover, held, load, clock_ms } => {
                let Some(news) = self.movers.members().heard(mover, load, now) else {
                    return Reply::Stranger;
                };
                for words in news {
                    self.messages.tell(words);
                }
                // The clock has changed meanwhile; a mover that must join again is refused.
                if let Distance::TooLarge(apart) = Distance::between(clock_ms, clock::now_ms()) {
                    let left = self.movers.members().remove(mover);
                    tracing::warn!(
                        mover = left,
                        apart,
                        "the clock of a mover is too far off; the mover has to join again"
                    );
                    return Reply::Stranger;
                }
                let Assessment { is_slow, is_left_out } = self.movers.assess(mover, now);
                let control = self.broadcast.control();
                let lost = self.tasks.renew(mover, &held, control.hungry, now);
                Reply::Renewed { lost, control, is_slow, is_left_out }
            }
            Call::Ask { mover, question } => {
                if !self.movers.members().has(mover) {
                    // It is not in yet: what it asks before is which file systems there are.
                    tracing::debug!(mover, "a request from a mover that has not joined");
                }
                Reply::Answer(self.engine.answer(question))
            }
            Call::Bye(mover) => {
                let left = self.movers.members().remove(mover);
                tracing::info!(mover = left, "a mover left");
                Reply::Noted
            }
        }
    }

    /// Why the broker has not accepted anything for this long.
    fn lasting_trouble(&self, now: u64, lasting: Duration) -> Option<String> {
        let theirs = self.movers.members().lasting_trouble(now, lasting);
        theirs.or_else(|| self.health.lasting_trouble(now, lasting))
    }

    /// Why an authenticated mover may not work for the job. `None`: it may.
    fn objection(&self, info: &MoverInfo, clock_ms: i64) -> Option<Reply> {
        if !Protocols::OWN.include(info.protocol) {
            let own = env!("CARGO_PKG_VERSION");
            let why = format!(
                "the coordinator runs dmover {own} (protocol {PROTOCOL}), but this mover runs \
                dmover {} (protocol {})",
                info.version, info.protocol
            );
            self.messages.tell_unable(info, &why);
            return Some(Reply::Refused { why, hint: ONE_VERSION.into() });
        }
        if !self.offer.is_for(&info.labels) {
            let why = "the job is for movers with other labels".into();
            return Some(Reply::Refused {
                why,
                hint: "start movers with the labels of the job".into(),
            });
        }
        match Distance::between(clock_ms, clock::now_ms()) {
            Distance::Small => {}
            Distance::Noted(apart) => {
                let host = &info.host;
                self.messages
                    .tell_once(format!("the clock of {host} is {apart} that of the coordinator"));
            }
            Distance::TooLarge(apart) => {
                let why = format!("its clock is {apart} that of the coordinator");
                let hint = "synchronise both clocks (NTP)";
                self.messages.tell_unable(info, &format!("{why}; {hint}"));
                return Some(Reply::Refused { why, hint: hint.into() });
            }
        }
        None
    }

    /// Reports the repairs of lost tasks: a repeated task does not find them again.
    fn say_repairs(&self, held: impl Iterator<Item = Piece>) {
        let mut all = MoverReport::default();
        held.for_each(|(told, ..)| all.append(told));
        let repairs = all.into_repairs();
        if !repairs.is_empty() {
            let entries = repairs.len();
            self.inbox.put(vec![Reported::MoverReport(Box::new(repairs))], entries);
        }
    }

    /// Receives messages of authenticated movers. `place`: the position of the message in the stream.
    fn hear_bundle(&self, bytes: &[u8], place: u64) -> Result<(), DecodeError> {
        let envelope = dmover_wire::open(bytes);
        let heard = envelope.as_ref().and_then(|e| lock(&self.keyring).hear_outcome(e, place));
        let Some((by, bundle)) = heard else {
            self.messages.tell_refused("an outcome");
            return Ok(());
        };
        for message in dmover_wire::unbundle(bundle)? {
            let said: OutcomeMessage = dmover_wire::decode(message)?;
            if said.mover == by {
                self.hear(said);
            } else {
                self.messages.tell_refused("an outcome in the name of another mover");
            }
        }
        Ok(())
    }
}

impl Dispatch for NatsFleet {
    fn publish(&self, tasks: Vec<Task>) {
        let (dead, tasks): (Vec<Task>, Vec<Task>) =
            tasks.into_iter().partition(|task| task.lost.len() >= LOST_MAX);
        for task in dead {
            let shared = Arc::clone(&self.shared);
            let body = dmover_wire::encode(&task);
            self.shared.inbox.put(vec![Reported::Lost(Box::new(task))], 0);
            self.shared.link.runtime.spawn(async move {
                streams::bury(&shared.link.jetstream, &shared.names, body).await;
            });
        }
        self.shared.tasks.offer(tasks, Lease::now_ms());
        self.shared.steer_work();
    }

    fn reports(&self, wait: Duration) -> Vec<Reported> {
        self.shared.inbox.take(wait)
    }

    fn acknowledge(&self) {
        let taken = self.shared.inbox.take_messages();
        if taken.is_empty() {
            return;
        }
        self.shared.link.runtime.spawn(async move {
            for message in taken {
                // An unacknowledged message is delivered again, and recognised then.
                if message.ack().await.is_err() {
                    return;
                }
            }
        });
    }

    fn expired(&self) -> Vec<Task> {
        let over = self.shared.tasks.expired();
        let tasks = over.into_iter().map(|(number, mover, issued)| {
            let who = self.shared.movers.members().describe(mover);
            tracing::warn!(number, mover = who, task = ?issued.task.id, "a mover lost its lease on a task");
            let Issued { mut task, held, .. } = issued;
            task.lost.push(number);
            (task, held)
        });
        let (tasks, held): (Vec<Task>, Vec<Vec<Piece>>) = tasks.unzip();
        if self.shared.tasks.holding() == Holding::Repairs {
            self.shared.say_repairs(held.into_iter().flatten());
        }
        tasks
    }

    fn withdraw(&self) -> Vec<Task> {
        self.shared.tasks.withdraw()
    }

    fn close(&self) {
        if self.shared.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let link = Arc::clone(&self.shared.link);
        let is_ours = !self.shared.inbox.has_failed();
        let farewell = async move {
            shared.broadcast.close().await;
            if is_ours {
                shared.offer.withdraw().await;
            }
            streams::remove(&shared.link.jetstream, &shared.names).await;
            let _ = shared.link.client.flush().await;
        };
        // A client without a broker waits for one for ever.
        let most = self.shared.engine.time_to_end().map_or(FAREWELL, |t| t.max(FAREWELL_LEAST));
        let within = async move { tokio::time::timeout(most, farewell).await };
        if link.runtime.block_on(within).is_err() {
            tracing::warn!("the broker no longer answers; the offer of the job stays there");
        }
    }
}

impl Fleet for NatsFleet {
    fn know(&self, fact: Notice) {
        lock(&self.shared.facts).push(fact);
    }

    fn hold(&self, held: bool) {
        self.shared.broadcast.steer(|control| control.held = held);
    }

    fn stop(&self, at_once: bool) {
        self.shared.broadcast.steer(|control| {
            control.stopping = true;
            control.dropping |= at_once;
        });
    }

    fn places(&self) -> usize {
        self.shared.movers.members().places()
    }

    fn is_settled(&self) -> bool {
        self.shared.tasks.is_settled()
    }

    fn limit(&self) -> Option<Limit> {
        self.shared.movers.members().limit()
    }

    fn movers(&self) -> Vec<MoverView> {
        let leases = self.shared.tasks.leases();
        let held = |mover| leases.held_by(mover).len() as u64;
        self.shared.movers.views(Lease::now_ms(), held)
    }

    fn failure(&self) -> Option<Fatal> {
        self.shared.inbox.take_failure()
    }
}

impl Drop for NatsFleet {
    fn drop(&mut self) {
        self.close();
    }
}
