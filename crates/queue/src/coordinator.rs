//! The coordinator's side: hands tasks out, knows who has them, hears what movers say.
use async_nats::jetstream::{self, kv};
use dmover_engine::queue::{Class, Dispatch, Lease, Reported};
use dmover_engine::{Engine, Fact, Fatal, Fleet, Fleets, JobOffer, Told};
use dmover_model::{Limit, Outcome, Task};
use dmover_plan::leases::{Claim, Leases, MoverId};
use futures_util::StreamExt;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

use crate::address::Address;
use crate::link::{Link, decode_or_log};
use crate::message::{
    self, Call, Control, Describe, Load, MoverInfo, OfferRecord, OutcomeMessage, PROTOCOL, Reply,
    TaskMessage,
};
use crate::offered::{Offered, put, take_over, unavailable};
use crate::streams::{self, Names};

/// What movers said and the coordinator has not heard: beyond so many entries they wait.
const UNHEARD_MAX: usize = 1 << 15;
/// How often somebody looks whether all is as it should be.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// More tasks than this wait for each mover: then each may take one ahead.
const PLENTY: usize = 2;
/// What was offered and is not in the stream after so long is put there again.
const OFFER_AGAIN: Duration = Duration::from_secs(3);
/// A task that so many movers have lost is not tried again.
const LOST_MAX: usize = 8;
/// A job ends when the broker has taken nothing for so long.
const TROUBLE: Duration = Duration::from_mins(5);
/// A broker that takes nothing when a job begins is not tried for longer than so many milliseconds.
const BEGIN_WITHIN: u64 = 10_000;
/// At its end a job waits no longer for the broker.
const FAREWELL: Duration = Duration::from_secs(10);
/// A person is told after so long that nobody has come.
const ALONE: Duration = Duration::from_secs(10);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Movers behind a broker.
pub struct NatsFleets {
    link: Arc<Link>,
    terms: Terms,
}

/// How long is waited for whom.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// A mover that says nothing for so long has lost its tasks.
    pub lease: Duration,
    /// A job ends that has had no mover, or no broker, for so long.
    pub patience: Duration,
}

impl NatsFleets {
    /// Connects to the broker.
    ///
    /// # Errors
    /// It cannot be reached, does not let us in, or cannot do what is needed.
    pub fn connect(address: &Address, terms: Terms) -> Result<Self, Fatal> {
        let link = Link::new(address, "coordinator")?;
        Ok(Self { link, terms })
    }
}

impl Fleets for NatsFleets {
    fn lease(&self) -> Duration {
        self.terms.lease
    }

    fn open(&self, offer: JobOffer, engine: Arc<Engine>) -> Result<Arc<dyn Fleet>, Fatal> {
        let link = Arc::clone(&self.link);
        let fleet =
            link.runtime.block_on(NatsFleet::open(&self.link, &offer, engine, self.terms))?;
        Ok(Arc::new(fleet))
    }
}

/// A task that was handed out.
#[derive(Debug, Clone)]
struct Issued {
    task: Task,
    /// The last of what was said of it.
    heard: u32,
    /// Pieces of what is being said of it.
    pieces: Vec<(Told, Outcome)>,
}

/// A process with movers that has said hello.
struct Member {
    info: MoverInfo,
    load: Load,
    heard_ms: u64,
    /// Since when the broker has not taken what it has to say.
    troubled_ms: Option<u64>,
    /// Threads there wait for work.
    waits: bool,
}

struct Shared {
    link: Arc<Link>,
    names: Names,
    engine: Arc<Engine>,
    leases: Mutex<Leases<Issued>>,
    facts: Mutex<Vec<Fact>>,
    members: Mutex<HashMap<MoverId, Member>>,
    control: Mutex<Control>,
    said: Mutex<Vec<Reported>>,
    unheard: Mutex<usize>,
    saying: Condvar,
    /// Outcomes that were taken; those that are on record go to the broker as heard.
    taken: Mutex<Vec<jetstream::Message>>,
    failure: Mutex<Option<Fatal>>,
    closed: AtomicBool,
    outgoing: mpsc::UnboundedSender<u32>,
    record: Mutex<Offered>,
    /// What a person was told.
    told: Mutex<HashSet<String>>,
    /// Why the broker does not take tasks, and since when.
    trouble: Mutex<Option<(u64, String)>>,
    patience: Duration,
}

/// One run with movers behind a broker.
pub(crate) struct NatsFleet {
    shared: Arc<Shared>,
}

impl NatsFleet {
    async fn open(
        link: &Arc<Link>,
        offer: &JobOffer,
        engine: Arc<Engine>,
        Terms { lease, patience }: Terms,
    ) -> Result<Self, Fatal> {
        let names = Names { job: offer.key.clone(), run: offer.run };
        let store = streams::jobs(&link.jetstream).await?;
        let lease_ms = lease.as_millis() as u64;
        let body = OfferRecord {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            job: names.job.clone(),
            run: names.run,
            host: String::from_utf8_lossy(&dmover_sys::process::host_name()).into_owned(),
            pid: std::process::id(),
            lease_ms,
            offer: serde_json::to_value(offer).map_err(|e| unavailable("the job", &e))?,
        };
        let mut before = take_over(link, &store, &names, offer.has_waited).await?;
        let (outgoing, tasks) = mpsc::unbounded_channel();
        let calls = link.client.subscribe(names.call_subject()).await;
        let calls = calls.map_err(|e| unavailable("calls", &e))?;
        let begun = Lease::now_ms();
        let (store, revision) = loop {
            let offered = async {
                let store = streams::jobs(&link.jetstream).await?;
                streams::make(&link.jetstream, &names).await?;
                let revision = put(&store, &body, before).await?;
                Ok((store, revision))
            };
            match offered.await {
                Ok(offered) => break offered,
                Err(error) if Lease::now_ms() > begun + BEGIN_WITHIN => return Err(error),
                Err(error) => {
                    // It may have been killed, and have forgotten everything, in this very moment.
                    tracing::warn!(%error, "the broker; trying again");
                    tokio::time::sleep(LOOK_EVERY).await;
                    before = take_over(link, &store, &names, true).await.unwrap_or(before);
                }
            }
        };
        let shared = Arc::new(Shared {
            link: Arc::clone(link),
            names,
            engine,
            leases: Mutex::new(Leases::new(lease_ms + lease_ms / 10)),
            facts: Mutex::default(),
            members: Mutex::default(),
            control: Mutex::default(),
            said: Mutex::default(),
            unheard: Mutex::new(0),
            saying: Condvar::new(),
            taken: Mutex::default(),
            failure: Mutex::default(),
            closed: AtomicBool::new(false),
            outgoing,
            record: Mutex::new(Offered { store, body, revision }),
            told: Mutex::default(),
            trouble: Mutex::default(),
            patience,
        });
        link.runtime.spawn(publish_all(Arc::clone(&shared), tasks));
        link.runtime.spawn(hear_all(Arc::clone(&shared)));
        link.runtime.spawn(answer_all(Arc::clone(&shared), calls));
        link.runtime.spawn(look_after(Arc::clone(&shared)));
        Ok(Self { shared })
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

    /// Says something new to all movers.
    fn steer(&self, change: impl FnOnce(&mut Control)) {
        let mut control = lock(&self.control);
        let before = *control;
        change(&mut control);
        if *control == before {
            return;
        }
        let body = message::encode(&*control);
        drop(control);
        let (client, subject) = (self.link.client.clone(), self.names.tell_subject());
        self.link.runtime.spawn(async move {
            // Whoever misses it hears it with the next answer.
            if let Err(error) = client.publish(subject, body).await {
                tracing::debug!(%error, "movers cannot be told");
            }
        });
    }

    /// Tells movers whether others wait for work.
    fn steer_work(&self) {
        let (offered, out) = {
            let leases = lock(&self.leases);
            (leases.offered(), leases.len())
        };
        let (movers, waits) = {
            let members = lock(&self.members);
            (members.len(), members.values().any(|member| member.waits))
        };
        let hungry = waits && offered == 0 && out > 0;
        let plenty = offered > PLENTY * movers;
        self.steer(|control| (control.hungry, control.plenty) = (hungry, plenty));
    }

    fn answer(&self, call: Call) -> Reply {
        let now = Lease::now_ms();
        match call {
            Call::Waiting(mover, waits) => {
                if let Some(member) = lock(&self.members).get_mut(&mover) {
                    member.waits = waits;
                }
                self.steer_work();
                Reply::Noted
            }
            Call::Ping => {
                let record = lock(&self.record);
                Reply::Pong(record.body.host.clone(), record.body.pid)
            }
            Call::Hello(info) => self.welcome(info, now),
            Call::Unable(info, why) => {
                tracing::warn!(mover = info.describe(), why, "a mover cannot work for the job");
                self.tell_unable(&info, &why);
                Reply::Noted
            }
            Call::Claim { mover, number, facts } => {
                if !lock(&self.members).contains_key(&mover) {
                    return Reply::Stranger;
                }
                if lock(&self.control).held {
                    return Reply::Later;
                }
                let claim = lock(&self.leases).claim(number, mover, now);
                match claim {
                    Claim::Gone => Reply::Gone,
                    Claim::Granted => {
                        self.steer_work();
                        let known = lock(&self.facts);
                        Reply::Granted(known.get(facts as usize..).unwrap_or_default().to_vec())
                    }
                }
            }
            Call::Renew { mover, numbers, load } => {
                let mut members = lock(&self.members);
                let Some(member) = members.get_mut(&mover) else {
                    return Reply::Stranger;
                };
                (member.heard_ms, member.load) = (now, load);
                drop(members);
                let lost = lock(&self.leases).renew(mover, &numbers, now);
                Reply::Renewed { lost, control: *lock(&self.control) }
            }
            Call::Ask { mover, question } => {
                if !lock(&self.members).contains_key(&mover) {
                    // It is not in yet: what it asks before is which file systems there are.
                    tracing::debug!(mover, "a question of somebody who has not said hello");
                }
                Reply::Answer(self.engine.answer(question))
            }
            Call::Bye(mover) => {
                let member = lock(&self.members).remove(&mover);
                if let Some(member) = member {
                    tracing::info!(mover = member.info.describe(), "a mover has left");
                }
                Reply::Noted
            }
        }
    }

    /// Takes note of whether the broker takes what it is given. `None`: it does.
    fn note_trouble(&self, why: Option<String>) {
        let mut trouble = lock(&self.trouble);
        match (why, &mut *trouble) {
            (None, _) => *trouble = None,
            (Some(why), Some((_, known))) => *known = why,
            (Some(why), none) => *none = Some((Lease::now_ms(), why)),
        }
    }

    /// Why the broker has not taken anything for so long that it is not waited for any more.
    fn lasting_trouble(&self, now: u64) -> Option<String> {
        let mut members = lock(&self.members);
        for member in members.values_mut() {
            member.troubled_ms = match member.load.trouble {
                Some(_) => member.troubled_ms.or(Some(now)),
                None => None,
            };
        }
        let theirs =
            members.values().filter_map(|m| Some((m.troubled_ms?, m.load.trouble.clone()?)));
        let all = theirs.chain(lock(&self.trouble).clone());
        let lasting = TROUBLE.min(self.patience).as_millis() as u64;
        all.filter(|(since, _)| now > since + lasting).map(|(_, why)| why).next()
    }

    /// A person hears once why a host has no movers.
    fn tell_unable(&self, info: &MoverInfo, why: &str) {
        let words = format!("no movers on {}: {why}", info.host);
        if lock(&self.told).insert(words.clone()) {
            self.engine.tell_of_movers(words);
        }
    }

    fn welcome(&self, info: MoverInfo, now: u64) -> Reply {
        if info.protocol != PROTOCOL {
            let own = env!("CARGO_PKG_VERSION");
            let why = format!(
                "the coordinator is dmover {own} (protocol {PROTOCOL}), this mover is dmover {} (protocol {})",
                info.version, info.protocol
            );
            self.tell_unable(&info, &why);
            return Reply::Refused(why);
        }
        tracing::info!(mover = info.describe(), cores = info.cores, "a mover has come");
        let load = Load { places: info.cores.max(1), ..Load::default() };
        let members = &mut *lock(&self.members);
        members
            .insert(info.id, Member { info, load, heard_ms: now, troubled_ms: None, waits: true });
        self.steer(|control| control.movers = members.len() as u32);
        Reply::Welcome
    }

    /// Puts something into the hands of the driver.
    fn say(&self, reported: Vec<Reported>, entries: usize) {
        lock(&self.said).extend(reported);
        *lock(&self.unheard) += entries;
        self.saying.notify_all();
    }

    /// Hears one message of a mover. What was cut into pieces is heard when all are there.
    fn hear(&self, said: OutcomeMessage) {
        let OutcomeMessage { mover, number, sequence, told, outcome, ended, more } = said;
        let mut leases = lock(&self.leases);
        if !leases.holds(number, mover) {
            tracing::debug!(number, mover, "somebody speaks of a task that is not his any more");
            return;
        }
        let Some(issued) = leases.get_mut(number) else { return };
        if sequence <= issued.heard {
            return;
        }
        issued.heard = sequence;
        issued.pieces.push((told, outcome));
        if more {
            return;
        }
        let id = issued.task.id;
        let mut pieces = std::mem::take(&mut issued.pieces).into_iter().peekable();
        let (mut reported, mut entries) = (Vec::new(), 0);
        while let Some((told, outcome)) = pieces.next() {
            entries += outcome.len() + told.len();
            if !told.is_empty() {
                reported.push(Reported::Told(Box::new(told)));
            }
            reported.push(if ended && pieces.peek().is_none() {
                Reported::Done(id, outcome)
            } else {
                Reported::Partial(id, outcome)
            });
        }
        if ended {
            leases.end(number);
        }
        // Whoever asks now for what has expired finds this said before it.
        self.say(reported, entries);
    }

    /// Puts the offer where movers look for it. What was there has to be our own, or nothing.
    async fn renew_offer(&self) -> Result<(), Fatal> {
        let (store, body, revision) = {
            let record = lock(&self.record);
            (record.store.clone(), record.body.clone(), record.revision)
        };
        match store.entry(&body.job).await {
            Ok(Some(found)) if found.revision == revision => return Ok(()),
            Ok(Some(found)) if found.operation == kv::Operation::Put => {
                let other = serde_json::from_slice::<OfferRecord>(&found.value);
                let who = other.map_or_else(
                    |_| "somebody".into(),
                    |other| format!("process {} on {}", other.pid, other.host),
                );
                let message = format!("{who} has taken job {} over", body.job);
                return Err(Fatal::unavailable(message, "leave it to that one"));
            }
            Ok(_) => {}
            // The bucket is gone with everything else.
            Err(error) => tracing::debug!(%error, "the offer cannot be read"),
        }
        tracing::warn!("the broker has forgotten the job; telling it again");
        let store = streams::jobs(&self.link.jetstream).await?;
        let before = store.entry(&body.job).await.ok().flatten().map(|found| found.revision);
        let revision = put(&store, &body, before).await?;
        let mut record = lock(&self.record);
        (record.store, record.revision) = (store, revision);
        Ok(())
    }
}

/// Publishes tasks as they come.
async fn publish_all(shared: Arc<Shared>, mut tasks: mpsc::UnboundedReceiver<u32>) {
    while let Some(number) = tasks.recv().await {
        let body = {
            let leases = lock(&shared.leases);
            let Some(issued) = leases.get(number) else { continue };
            (issued.task.clone(), Class::of(&issued.task))
        };
        let (task, class) = body;
        let body = message::encode(&TaskMessage { number, task });
        if body.len() > shared.link.client.max_payload() {
            let limit = shared.link.client.max_payload();
            let message =
                format!("a task takes {} bytes, and the broker takes {limit} at most", body.len());
            let hint = "raise max_payload of nats-server, for example to 8 MiB";
            return shared.fail(Fatal::unavailable(message, hint));
        }
        let subject = shared.names.task_subject(class);
        match shared.link.jetstream.publish(subject, body).await {
            Ok(arrival) => {
                let shared = Arc::clone(&shared);
                // What did not arrive is published again when somebody looks.
                tokio::spawn(async move {
                    let arrived = arrival.await.map(|_| ()).map_err(|error| error.to_string());
                    shared.note_trouble(arrived.err());
                });
            }
            Err(error) => shared.note_trouble(Some(error.to_string())),
        }
        if shared.is_closed() {
            return;
        }
    }
}

/// Hears outcomes until the end.
async fn hear_all(shared: Arc<Shared>) {
    while !shared.is_closed() {
        if let Err(error) = hear_some(&shared).await {
            tracing::debug!(%error, "outcomes cannot be heard");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn hear_some(shared: &Arc<Shared>) -> Result<(), String> {
    let outcomes = shared.link.jetstream.get_stream(shared.names.outcomes()).await;
    let outcomes = outcomes.map_err(|error| error.to_string())?;
    let consumer = streams::hearer(&outcomes).await.map_err(|error| error.to_string())?;
    let stream = consumer
        .stream()
        .max_messages_per_batch(256)
        .expires(Duration::from_secs(10))
        .heartbeat(Duration::from_secs(2));
    let mut messages = stream.messages().await.map_err(|error| error.to_string())?;
    while let Some(message) = messages.next().await {
        let message = message.map_err(|error| error.to_string())?;
        match message::decode::<OutcomeMessage>(&message.payload) {
            Ok(said) => shared.hear(said),
            Err(error) => {
                // What cannot be read is lost, and the job must not wait for it for ever.
                let why = format!("what a mover has said of a task cannot be read: {error}");
                let hint = "please report this as a fault of dmover; without --broker it may work";
                shared.fail(Fatal::unavailable(why, hint));
            }
        }
        lock(&shared.taken).push(message);
        while *lock(&shared.unheard) > UNHEARD_MAX && !shared.is_closed() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    Ok(())
}

/// Answers movers until the end.
async fn answer_all(shared: Arc<Shared>, mut calls: async_nats::Subscriber) {
    while let Some(call) = calls.next().await {
        let Some(wanted) = decode_or_log::<Call>(&call.payload) else { continue };
        if shared.is_closed() {
            return;
        }
        let Some(to) = call.reply.clone() else {
            shared.answer(wanted);
            continue;
        };
        let (client, answering) = (shared.link.client.clone(), Arc::clone(&shared));
        let reply = async move |reply: Reply| {
            if let Err(error) = client.publish(to, message::encode(&reply)).await {
                tracing::debug!(%error, "an answer cannot be sent");
            }
        };
        if let Call::Ask { .. } = wanted {
            // That may ask a disk.
            tokio::task::spawn(async move {
                let answer = tokio::task::spawn_blocking(move || answering.answer(wanted)).await;
                reply(answer.unwrap_or(Reply::Noted)).await;
            });
        } else {
            reply(shared.answer(wanted)).await;
        }
    }
}

/// Sees to it that the broker has what it should have, and that the job is still ours.
async fn look_after(shared: Arc<Shared>) {
    let (mut alone_since, mut told_alone) = (Lease::now_ms(), false);
    while !shared.is_closed() {
        tokio::time::sleep(LOOK_EVERY).await;
        if shared.is_closed() {
            return;
        }
        let now = Lease::now_ms();
        let length = lock(&shared.leases).length_ms();
        lock(&shared.members).retain(|_, member| {
            let is_here = now < member.heard_ms + 2 * length;
            if !is_here {
                tracing::warn!(mover = member.info.describe(), "nothing was heard of a mover");
            }
            is_here
        });
        let movers = lock(&shared.members).len() as u32;
        shared.steer(|control| control.movers = movers);
        if !lock(&shared.members).is_empty() {
            (alone_since, told_alone) = (now, false);
        }
        let alone = Duration::from_millis(now - alone_since);
        if alone > ALONE && !told_alone {
            told_alone = true;
            let words = "there is no mover: 'dmover mover' starts one where both trees are";
            shared.engine.tell_of_movers(words.into());
        }
        if alone > shared.patience {
            let seconds = alone.as_secs();
            let message =
                format!("there was no mover for {seconds} s behind {}", shared.link.shown);
            let hint = "start movers ('dmover mover'), and run the same command again";
            return shared.fail(Fatal::unavailable(message, hint));
        }
        if let Some(why) = shared.lasting_trouble(now) {
            let message = format!("the broker {} takes nothing more: {why}", shared.link.shown);
            let hint = "has it space? See its log; then run the same command again";
            return shared.fail(Fatal::unavailable(message, hint));
        }
        if let Err(error) = shared.renew_offer().await {
            match error {
                Fatal::Unavailable { ref message, .. } if message.contains("taken") => {
                    return shared.fail(error);
                }
                error => tracing::warn!(%error, "the broker"),
            }
        }
        if let Err(error) = offer_again(&shared, now).await {
            tracing::warn!(%error, "the broker");
        }
    }
}

/// Puts tasks into the stream again that should be there and are not.
async fn offer_again(shared: &Arc<Shared>, now: u64) -> Result<(), String> {
    let before = now.saturating_sub(OFFER_AGAIN.as_millis() as u64);
    let unclaimed: Vec<u32> = lock(&shared.leases).unclaimed(before).collect();
    let names = &shared.names;
    let found = shared.link.jetstream.get_stream(names.tasks()).await;
    let is_lost = match found {
        Ok(_) if unclaimed.is_empty() => false,
        Ok(stream) => {
            // Whatever the broker has not handed to anybody is on its way.
            let mut waiting = 0;
            for class in Class::ALL {
                let consumer = streams::consumer(&stream, names, class).await;
                let mut consumer = consumer.map_err(|error| error.to_string())?;
                let info = consumer.info().await.map_err(|error| error.to_string())?;
                waiting += info.num_pending;
            }
            waiting == 0
        }
        Err(error) => {
            if !streams::is_missing(&error) {
                return Err(error.to_string());
            }
            tracing::warn!("the broker has forgotten the streams of the job; making them again");
            streams::make(&shared.link.jetstream, names).await.map_err(|e| e.to_string())?;
            true
        }
    };
    if is_lost {
        let again: Vec<u32> = lock(&shared.leases).unclaimed(before).collect();
        tracing::info!(tasks = again.len(), "publishing tasks once more");
        for number in again {
            // The channel lives as long as the run.
            let _ = shared.outgoing.send(number);
        }
    }
    Ok(())
}

impl Dispatch for NatsFleet {
    fn publish(&self, tasks: Vec<Task>) {
        let now = Lease::now_ms();
        let mut leases = lock(&self.shared.leases);
        for task in tasks {
            if task.lost.len() >= LOST_MAX {
                lock(&self.shared.said).push(Reported::Lost(Box::new(task.clone())));
                let shared = Arc::clone(&self.shared);
                let body = message::encode(&task);
                self.shared.link.runtime.spawn(async move {
                    streams::bury(&shared.link.jetstream, &shared.names, body).await;
                });
                continue;
            }
            let number = leases.offer(Issued { task, heard: 0, pieces: Vec::new() }, now);
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
                // One that is not heard of is delivered again, and known then.
                if message.ack().await.is_err() {
                    return;
                }
            }
        });
    }

    fn expired(&self) -> Vec<Task> {
        let over = lock(&self.shared.leases).expired(Lease::now_ms());
        let tasks = over.into_iter().map(|(number, mover, issued)| {
            let members = lock(&self.shared.members);
            let who = members.get(&mover).map(|member| member.info.describe());
            tracing::warn!(number, mover = who, task = ?issued.task.id, "a mover has lost a task");
            let mut task = issued.task;
            task.lost.push(number);
            task
        });
        tasks.collect()
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
            let _ = shared.link.client.publish(told, message::encode(&control)).await;
            if is_ours
                && let Err(error) =
                    store.delete_expect_revision(&shared.names.job, Some(revision)).await
            {
                tracing::debug!(%error, "the offer cannot be taken back");
            }
            streams::remove(&shared.link.jetstream, &shared.names).await;
            let _ = shared.link.client.flush().await;
        };
        // A client without a broker waits for one for ever.
        let within = async move { tokio::time::timeout(FAREWELL, farewell).await };
        if link.runtime.block_on(within).is_err() {
            tracing::warn!("the broker does not answer any more; the job stays offered there");
        }
    }
}

impl Fleet for NatsFleet {
    fn know(&self, fact: Fact) {
        lock(&self.shared.facts).push(fact);
    }

    fn hold(&self, held: bool) {
        self.shared.steer(|control| control.held = held);
    }

    fn stop(&self) {
        self.shared.steer(|control| control.stopping = true);
    }

    fn places(&self) -> usize {
        let members = lock(&self.shared.members);
        members.values().map(|member| member.load.places as usize).sum::<usize>().max(1)
    }

    fn is_settled(&self) -> bool {
        lock(&self.shared.leases).is_empty()
    }

    fn limit(&self) -> Option<Limit> {
        lock(&self.shared.members).values().find_map(|member| member.load.limit.clone())
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
