//! The coordinator's side: it issues tasks, records which mover holds each, and receives outcomes.
use async_nats::jetstream::{self, kv};
use bytes::Bytes;
use dmover_engine::queue::{Class, Dispatch, Lease, Reported};
use dmover_engine::{Engine, Fleet, Fleets, JobOffer, Notice};
use dmover_model::{Fatal, JobSpec, Limit, Limits, Outcome, Task, Verb};
use dmover_observe::{CLASSES, MoverView};
use dmover_plan::failure_attribution::Opinions;
use dmover_plan::leases::Leases;
use dmover_schedule::sync::{Condvar, Mutex, MutexGuard};
use dmover_wire::{
    Call, Control, DecodeError, MoverInfo, MoverReport, OLDEST, OfferRecord, OfferText,
    OutcomeMessage, PROTOCOL, Protocols, Reply,
};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

use crate::address::Address;
use crate::clock::{self, Distance};
use crate::identity::Trust;
use crate::job_registry::{Offered, Refused, put, refuse_others, take_over, unavailable};
use crate::link::Link;
use crate::members::Members;
use crate::offer::{self, ONE_VERSION};
use crate::reorder_buffer::Heard;
use crate::seal::{self, Purpose};
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

mod claims;
mod keyring;
mod loops;
mod meeting;
mod pool;
mod reach;
use keyring::Keyring;
use loops::{LOOK_EVERY, hear_all, hear_logs, look_after, publish_all};
use meeting::{answer_all, refuse};
use pool::share_limits;
use reach::{Reach, watch_broker};

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

/// A task that was issued.
#[derive(Debug, Clone)]
struct Issued {
    task: Task,
    /// Messages of its mover, in order.
    heard: Heard<Piece>,
    /// Results that count only when the task has ended: after a lost lease, another mover does all of it again.
    held: Vec<Piece>,
    /// The digest of the message in which it was published.
    digest: Option<[u8; 32]>,
}

/// A report, whether it ends the task, and whether its errors may be the mover's fault.
type Piece = (MoverReport, Outcome, bool, bool);

struct Shared {
    link: Arc<Link>,
    names: Names,
    trust: Arc<Trust>,
    engine: Arc<Engine>,
    leases: Mutex<Leases<Issued>>,
    facts: Mutex<Vec<Notice>>,
    members: Mutex<Members>,
    keyring: Mutex<Keyring>,
    /// The number of the last broadcast.
    told_number: AtomicU64,
    opinions: Mutex<Opinions>,
    control: Mutex<Control>,
    said: Mutex<Vec<Reported>>,
    unheard: Mutex<usize>,
    saying: Condvar,
    /// Outcomes that were received; they are acknowledged when they are recorded.
    taken: Mutex<Vec<jetstream::Message>>,
    failure: Mutex<Option<Fatal>>,
    closed: AtomicBool,
    /// A broadcast that no mover waits for work is scheduled.
    settling: AtomicBool,
    outgoing: mpsc::UnboundedSender<u32>,
    record: Mutex<Offered>,
    /// Messages that the user has already seen.
    told: Mutex<HashSet<String>>,
    /// Why the broker does not accept tasks, and since when.
    trouble: Mutex<Option<(u64, String)>>,
    /// Since when the broker cannot be reached.
    reach: Mutex<Reach>,
    patience: Duration,
    /// A repeated task finds its earlier work equal, and does not copy it again.
    redoes: bool,
    /// Which reports of a task are held back until the task ends.
    holding: Holding,
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
        FleetOptions { lease, patience, only, pool }: FleetOptions,
        within: Duration,
    ) -> Result<Self, Fatal> {
        let names = Names { job: offer.key.clone(), run: offer.run };
        let lease_ms = lease.as_millis() as u64;
        let text = OfferText { offer, newest_protocol: PROTOCOL };
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
            names,
            trust: Arc::clone(trust),
            engine,
            leases: Mutex::new(Leases::new(lease_ms + lease_ms / 10)),
            facts: Mutex::default(),
            members: Mutex::new(Members::of_job(has_rates(&offer.spec.limits))),
            keyring: Mutex::default(),
            told_number: AtomicU64::new(0),
            opinions: Mutex::default(),
            control: Mutex::default(),
            said: Mutex::default(),
            unheard: Mutex::new(0),
            saying: Condvar::new(),
            taken: Mutex::default(),
            failure: Mutex::default(),
            closed: AtomicBool::new(false),
            settling: AtomicBool::new(false),
            outgoing,
            record: Mutex::new(Offered { store, body, revision }),
            told: Mutex::default(),
            trouble: Mutex::default(),
            reach: Mutex::default(),
            patience,
            redoes: offer.spec.verb.fills() && !offer.spec.policy.dry_run,
            holding: Holding::of(&offer.spec),
        });
        link.runtime.spawn(publish_all(Arc::clone(&shared), tasks));
        link.runtime.spawn(hear_all(Arc::clone(&shared)));
        link.runtime.spawn(answer_all(Arc::clone(&shared), calls));
        link.runtime.spawn(look_after(Arc::clone(&shared)));
        link.runtime.spawn(watch_broker(Arc::clone(&shared)));
        link.runtime.spawn(hear_logs(Arc::clone(&shared)));
        if let Some(pool) = pool {
            link.runtime.spawn(share_limits(Arc::clone(&shared), pool));
        }
        Ok(Self { shared })
    }
}

/// Which reports of a task are held back until the task ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holding {
    /// None: a repeated task does not find the work of a lost mover again.
    Nothing,
    All,
    /// Reports about entries. Repairs of a lost mover are reported when it is lost.
    Repairs,
}

impl Holding {
    fn of(spec: &JobSpec) -> Self {
        let repairs = spec.policy.verify.as_ref().is_some_and(|verify| verify.repair);
        match spec.verb {
            Verb::Verify if repairs => Self::Repairs,
            Verb::Sum | Verb::Verify => Self::All,
            Verb::Copy | Verb::Sync => Self::Nothing,
        }
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

    fn fail(&self, why: Fatal) {
        lock(&self.failure).get_or_insert(why);
        self.saying.notify_all();
    }

    /// Changes the broadcast state and sends it to all movers.
    fn steer(&self, change: impl FnOnce(&mut Control)) {
        let mut control = lock(&self.control);
        let before = *control;
        change(&mut control);
        if *control == before {
            return;
        }
        let body = self.telling(*control);
        drop(control);
        let (client, subject) = (self.link.client.clone(), self.names.tell_subject());
        self.link.runtime.spawn(async move {
            // A mover that misses this gets it with the next answer.
            if let Err(error) = client.publish(subject, body).await {
                tracing::debug!(%error, "cannot send a message to the movers");
            }
        });
    }

    /// A broadcast message.
    fn telling(&self, control: Control) -> Bytes {
        let number = self.told_number.fetch_add(1, Ordering::SeqCst) + 1;
        let body = dmover_wire::encode(&(number, control));
        seal::sign(&self.trust.identity, Purpose::Told, &self.names, (b"", &body))
    }

    /// For which classes movers wait and no tasks are left.
    fn hunger(&self) -> [bool; CLASSES] {
        let leases = lock(&self.leases);
        let is_out = !leases.is_empty();
        let lacking = Class::ALL.map(|class| is_out && leases.offered_of(class) == 0);
        drop(leases);
        let members = lock(&self.members);
        Class::ALL.map(|class| lacking[class as usize] && members.anybody_waits(class))
    }

    /// Broadcasts whether movers wait for work. The start is broadcast at once, the end only after a delay: otherwise
    /// each issued task would cause two broadcasts.
    fn steer_work(self: &Arc<Self>) {
        let now = self.hunger();
        self.steer(|control| {
            for (told, now) in control.hungry.iter_mut().zip(now) {
                *told |= now;
            }
        });
        if lock(&self.control).hungry == now || self.settling.swap(true, Ordering::SeqCst) {
            return;
        }
        let shared = Arc::clone(self);
        self.link.runtime.spawn(async move {
            tokio::time::sleep(LASTING).await;
            shared.settling.store(false, Ordering::SeqCst);
            let hungry = shared.hunger();
            shared.steer(|control| control.hungry = hungry);
        });
    }

    fn answer(self: &Arc<Self>, call: Call) -> Reply {
        let now = Lease::now_ms();
        match call {
            Call::Waiting(mover, waits) => {
                lock(&self.members).waits(mover, waits);
                self.steer_work();
                Reply::Noted
            }
            // Signed calls are handled elsewhere.
            Call::Hello { .. } => Reply::Noted,
            Call::Join(mover) => match lock(&self.keyring).info(mover) {
                Some(info) => {
                    let (who, cores) = (info.describe(), info.cores);
                    tracing::info!(mover = who, cores, "a mover joined");
                    lock(&self.members).welcome(info, now);
                    Reply::Noted
                }
                None => Reply::Stranger,
            },
            Call::Unable { info, why, has_worked } => {
                tracing::warn!(mover = info.describe(), why, "a mover cannot work for this job");
                if has_worked {
                    self.engine.doubt_mover(&info.describe(), &why);
                }
                self.tell_unable(&info, &why);
                Reply::Noted
            }
            Call::Claim { mover, tasks, facts } => self.claim(mover, tasks, facts),
            Call::Renew { mover, held, load, clock_ms } => {
                let Some(news) = lock(&self.members).heard(mover, load, now) else {
                    return Reply::Stranger;
                };
                for words in news {
                    self.engine.tell_of_movers(words);
                }
                // The clock has changed meanwhile; a mover that must join again is refused.
                if let Distance::TooLarge(apart) = Distance::between(clock_ms, clock::now_ms()) {
                    let left = lock(&self.members).remove(mover);
                    tracing::warn!(
                        mover = left,
                        apart,
                        "the clock of a mover is too far off; the mover has to join again"
                    );
                    return Reply::Stranger;
                }
                // One lock at a time.
                let is_slow = lock(&self.members).is_slow(mover);
                let control = *lock(&self.control);
                let all = lock(&self.members).ids();
                let is_left_out = lock(&self.opinions).is_left_out_of(mover, &all, now);
                Reply::Renewed {
                    lost: self.renew(mover, &held, now),
                    control,
                    is_slow,
                    is_left_out,
                }
            }
            Call::Ask { mover, question } => {
                if !lock(&self.members).has(mover) {
                    // It is not in yet: what it asks before is which file systems there are.
                    tracing::debug!(mover, "a request from a mover that has not joined");
                }
                Reply::Answer(self.engine.answer(question))
            }
            Call::Bye(mover) => {
                let left = lock(&self.members).remove(mover);
                tracing::info!(mover = left, "a mover left");
                Reply::Noted
            }
        }
    }

    /// Records whether the broker accepts messages. `None`: it does.
    fn note_trouble(&self, why: Option<String>) {
        let mut trouble = lock(&self.trouble);
        match (why, &mut *trouble) {
            (None, _) => *trouble = None,
            (Some(why), Some((_, known))) => *known = why,
            (Some(why), none) => *none = Some((Lease::now_ms(), why)),
        }
    }

    /// Why the broker has not accepted anything for this long.
    fn lasting_trouble(&self, now: u64, lasting: Duration) -> Option<String> {
        let theirs = lock(&self.members).lasting_trouble(now, lasting);
        let own = lock(&self.trouble).clone();
        let lasts = |since: u64| now > since + lasting.as_millis() as u64;
        theirs.or_else(|| own.filter(|(since, _)| lasts(*since)).map(|(_, why)| why))
    }

    /// The labels that movers need, as options of 'dmover mover' after a space.
    fn labels(&self) -> String {
        let record = lock(&self.record);
        let add = |words: String, (key, value): &(String, String)| {
            format!("{words} --label {key}={value}")
        };
        record.body.only.iter().fold(String::new(), add)
    }

    /// Reports once why a host has no movers.
    fn tell_unable(&self, info: &MoverInfo, why: &str) {
        self.tell_once(format!("no movers on {}: {why}", info.host));
    }

    fn tell_once(&self, words: String) {
        if lock(&self.told).insert(words.clone()) {
            self.engine.tell_of_movers(words);
        }
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
            self.tell_unable(info, &why);
            return Some(Reply::Refused { why, hint: ONE_VERSION.into() });
        }
        if !lock(&self.record).body.is_for(&info.labels) {
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
                self.tell_once(format!("the clock of {host} is {apart} that of the coordinator"));
            }
            Distance::TooLarge(apart) => {
                let why = format!("its clock is {apart} that of the coordinator");
                let hint = "synchronise both clocks (NTP)";
                self.tell_unable(info, &format!("{why}; {hint}"));
                return Some(Reply::Refused { why, hint: hint.into() });
            }
        }
        None
    }

    /// Reports a forged or replayed message: each time in the log, once on standard error.
    fn refuse(&self, what: &str) {
        self.tell_once(refuse(what));
    }

    /// Passes reports to the driver.
    fn say(&self, reported: Vec<Reported>, entries: usize) {
        lock(&self.said).extend(reported);
        *lock(&self.unheard) += entries;
        self.saying.notify_all();
    }

    /// Reports the repairs of lost tasks: a repeated task does not find them again.
    fn say_repairs(&self, held: impl Iterator<Item = Piece>) {
        let mut all = MoverReport::default();
        held.for_each(|(told, ..)| all.append(told));
        let repairs = all.into_repairs();
        if !repairs.is_empty() {
            let entries = repairs.len();
            self.say(vec![Reported::MoverReport(Box::new(repairs))], entries);
        }
    }

    /// Receives messages of authenticated movers. `place`: the position of the message in the stream.
    fn hear_bundle(&self, bytes: &[u8], place: u64) -> Result<(), DecodeError> {
        let envelope = dmover_wire::open(bytes);
        let heard = envelope.as_ref().and_then(|e| lock(&self.keyring).hear_outcome(e, place));
        let Some((by, bundle)) = heard else {
            self.refuse("an outcome");
            return Ok(());
        };
        for message in dmover_wire::unbundle(bundle)? {
            let said: OutcomeMessage = dmover_wire::decode(message)?;
            if said.mover == by {
                self.hear(said);
            } else {
                self.refuse("an outcome in the name of another mover");
            }
        }
        Ok(())
    }

    /// Writes the offer into the bucket of jobs. The previous value must be our own, or none.
    async fn renew_offer(&self) -> Result<(), Refused> {
        let (store, body, revision) = {
            let record = lock(&self.record);
            (record.store.clone(), record.body.clone(), record.revision)
        };
        match store.entry(&body.job).await {
            Ok(Some(found)) if found.revision == revision => return Ok(()),
            Ok(Some(found)) if found.operation == kv::Operation::Put => {
                match serde_json::from_slice::<OfferRecord>(&found.value) {
                    Ok(other) if offer::digest(&other) == offer::digest(&body) => {
                        // Put twice, because an answer was lost.
                        lock(&self.record).revision = found.revision;
                        return Ok(());
                    }
                    Ok(other)
                        if other.run != body.run && offer::verify(&other, &self.trust).is_ok() =>
                    {
                        let OfferRecord { pid, host, job, .. } = other;
                        let message = format!("process {pid} on {host} has taken over job {job}");
                        let error = Fatal::unavailable(
                            message,
                            "wait for that run to end, or stop it first",
                        );
                        return Err(Refused::Taken(error));
                    }
                    other => {
                        let why = other.map_or_else(
                            |error| error.to_string(),
                            |other| offer::verify(&other, &self.trust).err().unwrap_or_default(),
                        );
                        tracing::warn!(
                            why,
                            "another client replaced the offer of this job at the \
                            broker; restoring it"
                        );
                        let words = "another client replaced the offer of this job at the broker; the \
                            coordinator restores it";
                        self.tell_once(words.into());
                    }
                }
            }
            Ok(_) => {}
            // The bucket is gone with everything else.
            Err(error) => tracing::debug!(%error, "cannot read the offer"),
        }
        tracing::warn!("the broker no longer has the offer of the job; publishing it again");
        let store = streams::jobs(&self.link.jetstream).await?;
        let before = store.entry(&body.job).await.ok().flatten().map(|found| found.revision);
        let revision = put(&store, &body, before).await?;
        {
            let mut record = lock(&self.record);
            (record.store, record.revision) = (store.clone(), revision);
        }
        // Another run may have begun while the broker did not know this one.
        match offer::offered(&body) {
            Ok(offer) => refuse_others(&self.link, &store, (&offer, revision), &self.engine).await,
            Err(_) => Ok(()),
        }
    }
}

impl Dispatch for NatsFleet {
    fn publish(&self, tasks: Vec<Task>) {
        let now = Lease::now_ms();
        let mut leases = lock(&self.shared.leases);
        for task in tasks {
            if task.lost.len() >= LOST_MAX {
                lock(&self.shared.said).push(Reported::Lost(Box::new(task.clone())));
                let shared = Arc::clone(&self.shared);
                let body = dmover_wire::encode(&task);
                self.shared.link.runtime.spawn(async move {
                    streams::bury(&shared.link.jetstream, &shared.names, body).await;
                });
                continue;
            }
            let class = Class::of(&task);
            let issued = Issued { task, heard: Heard::default(), held: Vec::new(), digest: None };
            let number = leases.offer(class, issued, now);
            // The channel lives as long as the run.
            let _ = self.shared.outgoing.send(number);
        }
        drop(leases);
        self.shared.steer_work();
    }

    fn reports(&self, wait: Duration) -> Vec<Reported> {
        let said = lock(&self.shared.said);
        let (mut said, _) = self
            .shared
            .saying
            .wait_timeout_while(said, wait, |said| said.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        let all = std::mem::take(&mut *said);
        drop(said);
        *lock(&self.shared.unheard) = 0;
        all
    }

    fn acknowledge(&self) {
        let taken = std::mem::take(&mut *lock(&self.shared.taken));
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
        let over = lock(&self.shared.leases).expired(Lease::now_ms());
        let tasks = over.into_iter().map(|(number, mover, issued)| {
            let who = lock(&self.shared.members).describe(mover);
            tracing::warn!(number, mover = who, task = ?issued.task.id, "a mover lost its lease on a task");
            let Issued { mut task, held, .. } = issued;
            task.lost.push(number);
            (task, held)
        });
        let (tasks, held): (Vec<Task>, Vec<Vec<Piece>>) = tasks.unzip();
        if self.shared.holding == Holding::Repairs {
            self.shared.say_repairs(held.into_iter().flatten());
        }
        tasks
    }

    fn withdraw(&self) -> Vec<Task> {
        let back = lock(&self.shared.leases).withdraw();
        back.into_iter().map(|(_, issued)| issued.task).collect()
    }

    fn close(&self) {
        if self.shared.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let link = Arc::clone(&self.shared.link);
        let is_ours = lock(&self.shared.failure).is_none();
        let farewell = async move {
            let (store, revision) = {
                let record = lock(&shared.record);
                (record.store.clone(), record.revision)
            };
            let control = Control { closed: true, ..*lock(&shared.control) };
            let told = shared.names.tell_subject();
            let _ = shared.link.client.publish(told, shared.telling(control)).await;
            if is_ours
                && let Err(error) =
                    store.delete_expect_revision(&shared.names.job, Some(revision)).await
            {
                tracing::debug!(%error, "cannot withdraw the offer");
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
        self.shared.steer(|control| control.held = held);
    }

    fn stop(&self, at_once: bool) {
        self.shared.steer(|control| {
            control.stopping = true;
            control.dropping |= at_once;
        });
    }

    fn places(&self) -> usize {
        lock(&self.shared.members).places()
    }

    fn is_settled(&self) -> bool {
        let leases = lock(&self.shared.leases);
        leases.len() == leases.offered()
    }

    fn limit(&self) -> Option<Limit> {
        lock(&self.shared.members).limit()
    }

    fn movers(&self) -> Vec<MoverView> {
        let leases = lock(&self.shared.leases);
        let held = |mover| leases.held_by(mover).len() as u64;
        let now = Lease::now_ms();
        let opinions = lock(&self.shared.opinions);
        let is_left_out = |mover| opinions.is_left_out(mover, now);
        lock(&self.shared.members).views(now, held, is_left_out)
    }

    fn failure(&self) -> Option<Fatal> {
        lock(&self.shared.failure).take()
    }
}

impl Drop for NatsFleet {
    fn drop(&mut self) {
        self.close();
    }
}
