//! A mover's side of one run: it fetches tasks, renews its leases, and sends reports.
use async_nats::jetstream;
use async_nats::jetstream::consumer::PullConsumer;
use dmover_engine::queue::{Class, Gate, Lease, Queue};
use dmover_engine::{Answer, CoordinatorClient, CoordinatorRequest, MoverReport};
use dmover_model::{Fatal, Limit, Outcome};
use dmover_observe::{CLASSES, LogLine};
use dmover_plan::stragglers::Done;
use dmover_schedule::sync::{Condvar, Mutex, MutexGuard};
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use dmover_wire::{Call, Control, Load, LogMessage, MoverInfo, Reply, TaskMessage};
use futures_util::StreamExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::channel::Channel;
use crate::clock;
use crate::nics::nics;
use crate::seal::Kind;
use crate::streams;

mod facts;
mod guidance;
mod sending;
mod state;
use facts::{Learner, LearntFacts};
use guidance::Guidance;
use sending::{Outbox, send_all};
use state::{Held, State};

/// How long one request for tasks waits at the broker. A request for tasks that no thread waits for yet is soon out of
/// date: other movers may be idle by then.
const FETCH: Duration = Duration::from_secs(5);
const FETCH_AHEAD: Duration = Duration::from_millis(100);
/// The pause after trouble with the broker.
const AGAIN: Duration = Duration::from_millis(250);
/// Work that was returned comes back as tasks within this many milliseconds.
const FED: u64 = 4;
/// How many delivered numbers are remembered.
const CLAIMED_MAX: usize = 1 << 16;
/// How often log lines are sent, and how many at once.
const LOG_EVERY: Duration = Duration::from_millis(500);
const LOG_LINES: usize = 256;

/// The queue of one run, as a mover process sees it.
pub(crate) struct RemoteQueue {
    /// The channel to the coordinator of the run.
    channel: Arc<Channel>,
    /// The description of this process.
    info: MoverInfo,
    /// How long a lease is valid without renewal.
    lease_ms: u64,
    /// The tasks here.
    state: Mutex<State>,
    /// Wakes threads that wait for a task.
    work: Condvar,
    /// Wakes the loops that request tasks and report whether threads wait.
    wanted: tokio::sync::Notify,
    /// Wakes what waits for the end of the run.
    ending: tokio::sync::Notify,
    /// The run has ended.
    closed: AtomicBool,
    /// What the coordinator has last sent.
    guidance: Guidance,
    /// The facts that tasks depend on.
    facts: LearntFacts,
    /// What the next renewal says about this process.
    load: Mutex<Load>,
    /// Until when, in milliseconds of [`Lease::now_ms`], no thread here counts as waiting, because work was returned.
    fed_ms: AtomicU64,
    /// Reports to send.
    outbox: Outbox,
}

impl RemoteQueue {
    /// `class`: the class to prefer.
    pub fn new(
        channel: &Arc<Channel>,
        (info, class): (&MoverInfo, Option<Class>),
        lease_ms: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            channel: Arc::clone(channel),
            info: info.clone(),
            lease_ms,
            state: Mutex::new(State::preferring(class)),
            work: Condvar::new(),
            wanted: tokio::sync::Notify::new(),
            ending: tokio::sync::Notify::new(),
            closed: AtomicBool::new(false),
            guidance: Guidance::default(),
            facts: LearntFacts::default(),
            load: Mutex::default(),
            fed_ms: AtomicU64::new(0),
            outbox: Outbox::new(),
        })
    }

    /// Starts to fetch tasks; `learn` receives the facts that tasks depend on.
    pub fn begin(self: &Arc<Self>, learn: Learner) {
        self.facts.begin(learn);
        self.state().had_ms = [Lease::now_ms(); CLASSES];
        let runtime = &self.channel.link.runtime;
        for class in Class::ALL {
            runtime.spawn(fetch_all(Arc::clone(self), class));
        }
        if let Some(sending) = self.outbox.take_receiver() {
            runtime.spawn(send_all(Arc::clone(self), sending));
        }
        runtime.spawn(renew_all(Arc::clone(self)));
        runtime.spawn(hear_coordinator(Arc::clone(self)));
        runtime.spawn(tell_waiting(Arc::clone(self)));
    }

    /// Sends log lines of this process to the coordinator until the end of the run.
    pub fn tell_log(self: &Arc<Self>, lines: std::sync::mpsc::Receiver<LogLine>) {
        let queue = Arc::clone(self);
        self.channel.link.runtime.spawn(async move {
            loop {
                let is_last = queue.is_closed();
                let all: Vec<LogLine> = lines.try_iter().collect();
                // Hardly any line is longer than that.
                let most = (queue.channel.link.client.max_payload() / 1024).clamp(1, LOG_LINES);
                for some in all.chunks(most) {
                    let (host, pid) = (queue.info.host.clone(), queue.info.pid);
                    let body = dmover_wire::encode(&LogMessage { host, pid, lines: some.to_vec() });
                    let body = queue.channel.seal(Kind::Log, &body);
                    let said = queue
                        .channel
                        .link
                        .client
                        .publish(queue.channel.names.log_subject(), body)
                        .await;
                    if let Err(error) = said {
                        tracing::debug!(%error, "cannot send log lines");
                    }
                }
                if is_last {
                    return;
                }
                let _ = tokio::time::timeout(LOG_EVERY, queue.ending.notified()).await;
            }
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The last broadcast of the coordinator.
    pub fn control(&self) -> Control {
        self.guidance.control()
    }

    /// Records the state of the movers here, for the coordinator.
    pub fn tell_load(&self, places: u32, limit: Option<Limit>, done: Done, moved: (u64, u64)) {
        let mut load = lock(&self.load);
        (load.places, load.limit) = (places, limit);
        (load.bytes, load.entries) = moved;
        load.done = done;
    }

    /// The id of the job.
    pub fn job(&self) -> &str {
        &self.channel.names.job
    }

    /// The number of tasks in progress here.
    pub fn held(&self) -> u64 {
        self.state().held.len() as u64
    }

    /// Fetches no new tasks, and asks for tasks in progress to be ended early.
    pub fn drain(&self) {
        let mut state = self.state();
        state.draining = true;
        state.held.values().for_each(|held| held.lease.want_back());
    }

    /// Whether this process ever had a task.
    pub fn has_worked(&self) -> bool {
        self.state().has_worked
    }

    /// Whether no task is in progress.
    pub fn is_idle(&self) -> bool {
        let state = self.state();
        state.held.is_empty() && state.claiming == 0
    }

    /// Fetches no more tasks; tasks in progress are lost.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.state().held.values().for_each(|held| held.lease.lose());
        self.work.notify_all();
        self.wanted.notify_waiters();
        self.ending.notify_waiters();
    }

    fn heard(&self, control: Control) {
        self.guidance.set_control(control);
        if control.closed {
            self.close();
        }
    }

    /// How many tasks of a class may be requested now, and for how long.
    fn demand(&self, class: Class) -> (usize, Duration) {
        let state = self.state();
        if state.draining || !self.guidance.allows_tasks() || !state.takes(class, Lease::now_ms()) {
            return (0, FETCH);
        }
        let index = class as usize;
        // Where there is plenty, some are asked for ahead: they come while the others are done.
        let ahead = state.soon_done(index).min(self.guidance.ahead_max(class));
        (state.wanted(index, ahead), if ahead > 0 { FETCH_AHEAD } else { FETCH })
    }

    /// Claims delivered tasks, and keeps those that are granted.
    async fn claim(&self, messages: Vec<jetstream::Message>) {
        let leaves = {
            let mut state = self.state();
            state.claiming += 1;
            state.draining || self.is_closed()
        };
        if leaves {
            // No thread here would run them.
            for message in messages {
                give_back(&message, Some(AGAIN)).await;
            }
        } else {
            self.claim_or_give_back(messages).await;
        }
        self.state().claiming -= 1;
    }

    async fn claim_or_give_back(&self, messages: Vec<jetstream::Message>) {
        let (mut tasks, mut digests) = (Vec::new(), Vec::new());
        for message in messages {
            let task = TaskMessage::decode(&message.payload);
            match task.inspect_err(|error| tracing::warn!(%error, "cannot read a task")).ok() {
                // Handed over twice: the coordinator would grant it to us again, who are at it.
                Some(TaskMessage { number, .. }) if !self.is_first(number) => {}
                Some(TaskMessage { number, task }) => {
                    digests.push((number, *blake3::hash(&message.payload).as_bytes()));
                    tasks.push((number, task, message));
                    continue;
                }
                None => {}
            }
            acknowledge(&message).await;
        }
        if tasks.is_empty() {
            return;
        }
        let facts = self.facts.known();
        let call = Call::Claim { mover: self.channel.id, tasks: digests, facts };
        let begun = Lease::now_ms();
        let (reply, asked_ms) = loop {
            let asked_ms = Lease::now_ms();
            let reply = self.channel.call(&call).await;
            // There was no answer, but the tasks may have been granted: then no other mover gets them.
            let again = !self.is_closed() && asked_ms < begun + self.lease_ms;
            if reply.is_some() || !again {
                break (reply, asked_ms);
            }
            tokio::time::sleep(AGAIN).await;
        };
        let (mut after, mut is_stranger) = (None, false);
        match reply {
            Some(Reply::Granted { gone, others, facts: news, spare, forged }) => {
                self.guidance.set_spare(spare);
                self.facts.learn(facts, news);
                let until_ms = asked_ms + self.lease_ms;
                for (number, task, message) in tasks {
                    if others.contains(&number) {
                        self.forget(number);
                        give_back(&message, Some(AGAIN)).await;
                        continue;
                    }
                    if forged.contains(&number) {
                        tracing::warn!(
                            number,
                            "refused a task that the coordinator did not send: forged"
                        );
                        // The right one may come yet.
                        self.forget(number);
                    } else if !gone.contains(&number) {
                        self.keep(Lease::granted(task, number, until_ms), asked_ms);
                    }
                    // From now on the coordinator's table has its holder, and the broker must not deliver it again.
                    acknowledge(&message).await;
                }
                return;
            }
            // Another mover should try it first, or this one later.
            Some(Reply::Later) => after = Some(AGAIN),
            Some(_) => is_stranger = true,
            // The broker delivers them to another mover later. Granted tasks expire.
            None => return tasks.iter().for_each(|(number, ..)| self.forget(*number)),
        }
        for (number, _, message) in tasks {
            self.forget(number);
            give_back(&message, after).await;
        }
        if is_stranger && !self.is_closed() {
            self.say_hello().await;
        }
    }

    /// Keeps a granted task.
    fn keep(&self, lease: Lease, now_ms: u64) {
        let mut state = self.state();
        if state.draining {
            lease.want_back();
        }
        let (progressed_ms, errors) = (now_ms, MoverReport::default());
        let held = Held { lease: lease.clone(), sequence: 0, progressed_ms, taken: None, errors };
        state.held.insert(lease.number, held);
        let class = Class::of(&lease.task) as usize;
        state.running[class] += 1;
        state.had_ms[class] = now_ms;
        state.has_worked = true;
        state.ready.push_back(lease);
        drop(state);
        self.work.notify_one();
        self.wanted.notify_waiters();
    }

    /// Whether a number is delivered for the first time. Only the latest numbers are remembered: older ones have ended.
    fn is_first(&self, number: u32) -> bool {
        let mut state = self.state();
        if state.claimed.len() > CLAIMED_MAX {
            state.claimed.pop_first();
        }
        state.claimed.insert(number)
    }

    /// Allows that a number is delivered again, because it was not started.
    fn forget(&self, number: u32) {
        self.state().claimed.remove(&number);
    }

    /// Joins the run again after the coordinator has forgotten this mover.
    async fn say_hello(&self) {
        match self.channel.meet(&self.info).await {
            Ok(()) => {
                let reply = self.channel.call(&Call::Join(self.channel.id)).await;
                tracing::info!(
                    welcome = matches!(reply, Some(Reply::Noted)),
                    "joined the job again"
                );
            }
            Err(error @ Fatal::Refused { .. }) => {
                tracing::warn!(%error, "the coordinator does not let this mover join again");
                let control = self.control();
                self.heard(Control { closed: true, ..control });
            }
            Err(error) => tracing::info!(%error, "joined the job again"),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the broker deliver a task again, at once or later.
async fn give_back(message: &jetstream::Message, after: Option<Duration>) {
    if let Err(error) = message.ack_with(jetstream::AckKind::Nak(after)).await {
        tracing::debug!(%error, "cannot return a task");
    }
}

async fn acknowledge(message: &jetstream::Message) {
    if let Err(error) = message.ack().await {
        tracing::debug!(%error, "cannot acknowledge a task");
    }
}

/// Fetches tasks of a class as threads become free.
async fn fetch_all(queue: Arc<RemoteQueue>, class: Class) {
    let mut consumer: Option<PullConsumer> = None;
    while !queue.is_closed() {
        let notified = queue.wanted.notified();
        let (demand, wait) = queue.demand(class);
        if demand == 0 {
            let _ = tokio::time::timeout(AGAIN, notified).await;
            continue;
        }
        if consumer.is_none() {
            let stream = queue.channel.link.jetstream.get_stream(queue.channel.names.tasks()).await;
            consumer = match stream {
                Ok(stream) => streams::consumer(&stream, &queue.channel.names, class).await.ok(),
                Err(_) => None,
            };
        }
        let Some(known) = consumer.clone() else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        queue.state().fetching[class as usize] += demand;
        let fetching = Arc::clone(&queue);
        tokio::spawn(async move { fetch(fetching, known, class, (demand, wait)).await });
        // A consumer that was lost with its stream is found again by name.
        if !queue.channel.link.is_connected() {
            consumer = None;
        }
    }
}

/// Sends one request for this many tasks.
async fn fetch(
    queue: Arc<RemoteQueue>,
    consumer: PullConsumer,
    class: Class,
    (most, wait): (usize, Duration),
) {
    let mut left = most;
    let messages = consumer.fetch().max_messages(most).expires(wait).messages().await;
    match messages {
        Ok(messages) => {
            let mut messages = messages.ready_chunks(most);
            while let Some(some) = messages.next().await {
                let came = some.len();
                let some: Vec<_> = some.into_iter().flatten().collect();
                let (taken, is_over) = (some.len(), some.len() < came);
                left -= taken;
                queue.claim(some).await;
                queue.state().fetching[class as usize] -= taken;
                if is_over {
                    break;
                }
            }
        }
        Err(error) => {
            tracing::debug!(%error, "cannot request tasks");
            tokio::time::sleep(AGAIN).await;
        }
    }
    queue.state().fetching[class as usize] -= left;
    queue.wanted.notify_waiters();
}

/// Renews leases in time, as long as their tasks make progress.
async fn renew_all(queue: Arc<RemoteQueue>) {
    let every = Duration::from_millis((queue.lease_ms / 4).clamp(50, 2_000));
    while !queue.is_closed() {
        tokio::time::sleep(every).await;
        let now = Lease::now_ms();
        let numbers: Vec<(u32, u64)> = {
            let mut state = queue.state();
            let mut all = Vec::new();
            // What waits for a thread moves as long as those move that it waits for.
            let mut moved_ms = 0;
            for held in state.held.values_mut() {
                if held.lease.take_progress() {
                    held.progressed_ms = now;
                }
                if held.taken.is_some() {
                    moved_ms = moved_ms.max(held.progressed_ms);
                }
            }
            for (number, held) in &mut state.held {
                if held.taken.is_none() {
                    held.progressed_ms = held.progressed_ms.max(moved_ms);
                }
                // An expired lease is not renewed: another mover should get the task.
                if held.lease.holds() {
                    all.push((*number, now.saturating_sub(held.progressed_ms)));
                }
            }
            all
        };
        let load = Load { nics: nics(), ..lock(&queue.load).clone() };
        let held = numbers.clone();
        let call = Call::Renew { mover: queue.channel.id, held, load, clock_ms: clock::now_ms() };
        let reply = queue.channel.call(&call).await;
        match reply {
            Some(Reply::Renewed { lost, control, is_slow, is_left_out }) => {
                queue.guidance.set_assessment(is_slow, is_left_out);
                let state = queue.state();
                for (number, _) in numbers {
                    let Some(held) = state.held.get(&number) else { continue };
                    if lost.contains(&number) {
                        held.lease.lose();
                    } else {
                        held.lease.hold_until(now + queue.lease_ms);
                    }
                }
                drop(state);
                queue.heard(control);
            }
            Some(Reply::Stranger) => {
                // It was silent for too long: whatever it had is others' by now.
                queue.state().held.values().for_each(|held| held.lease.lose());
                queue.say_hello().await;
            }
            _ => {}
        }
    }
}

/// Reports to the coordinator whether threads here wait for work.
async fn tell_waiting(queue: Arc<RemoteQueue>) {
    // A mover that has just come waits.
    let mut told = [true; CLASSES];
    while !queue.is_closed() {
        let notified = queue.wanted.notified();
        let waits = {
            let state = queue.state();
            let now = Lease::now_ms();
            let starves = |class| state.takes(class, now) && state.starves(class);
            let is_out = state.draining || queue.guidance.is_left_out();
            Class::ALL.map(|class| starves(class) && !is_out)
        };
        if waits == told {
            let _ = tokio::time::timeout(AGAIN, notified).await;
            // What lasts no longer is not worth a message.
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        told = waits;
        queue.channel.tell(&Call::Waiting(queue.channel.id, waits)).await;
    }
}

/// Receives the broadcasts of the coordinator.
async fn hear_coordinator(queue: Arc<RemoteQueue>) {
    let subject = queue.channel.names.tell_subject();
    let Ok(mut said) = queue.channel.link.client.subscribe(subject).await else { return };
    while !queue.is_closed() {
        match tokio::time::timeout(Duration::from_secs(1), said.next()).await {
            Ok(Some(message)) => {
                if let Some(control) = queue.channel.told(&message.payload) {
                    queue.heard(control);
                }
            }
            Ok(None) => return,
            Err(_) => {}
        }
    }
}

impl Queue for RemoteQueue {
    fn lease(&self, most: usize, wait: Duration) -> Vec<Lease> {
        let mut state = self.state();
        if state.ready.is_empty() && !self.is_closed() {
            state.waiting += 1;
            self.wanted.notify_waiters();
            let (guard, _) = self
                .work
                .wait_timeout_while(state, wait, |s| s.ready.is_empty() && !self.is_closed())
                .unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.waiting -= 1;
        }
        let count = most.min(state.ready.len());
        let leases: Vec<Lease> = state.ready.drain(..count).collect();
        for lease in &leases {
            if let Some(held) = state.held.get_mut(&lease.number) {
                held.taken = Some(Instant::now());
                held.progressed_ms = Lease::now_ms();
            }
        }
        leases
    }

    fn report(&self, lease: &Lease, outcome: Outcome) {
        self.say(lease, outcome, false);
    }

    fn complete(&self, lease: &Lease, outcome: Outcome) {
        let class = Class::of(&lease.task) as usize;
        {
            let mut state = self.state();
            if let Some(taken) = state.held.get(&lease.number).and_then(|held| held.taken) {
                state.took(class, taken.elapsed());
            }
        }
        self.say(lease, outcome, true);
        let mut state = self.state();
        state.running[class] -= 1;
        state.had_ms[class] = Lease::now_ms();
        drop(state);
        self.wanted.notify_waiters();
    }

    fn is_hungry(&self, class: Class) -> bool {
        let here = {
            let state = self.state();
            // What was asked for ahead does not come: a thread will wait soon.
            let soon = class == Class::Small
                && self.guidance.has_spare()
                && state.ready.is_empty()
                && state.fetching[class as usize] > 0;
            soon || (state.takes(class, Lease::now_ms()) && state.starves(class))
        };
        // What was just handed on is on its way back as a task.
        let is_fed = Lease::now_ms() < self.fed_ms.load(Ordering::Relaxed);
        !is_fed && (here || self.guidance.others_wait(class))
    }

    fn is_slow(&self) -> bool {
        self.guidance.is_slow()
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}

impl Gate for RemoteQueue {
    fn allow(&self, class: Class, movers: usize) {
        let mut state = self.state();
        state.allowed[class as usize] = movers;
        // Tasks that wait for a thread do not count.
        let running = |held: &&Held| held.taken.is_some() && Class::of(&held.lease.task) == class;
        let (asked, others): (Vec<&Held>, Vec<&Held>) =
            state.held.values().filter(running).partition(|held| held.lease.is_wanted_back());
        let surplus = (asked.len() + others.len()).saturating_sub(movers);
        for held in others.iter().take(surplus.saturating_sub(asked.len())) {
            held.lease.want_back();
        }
        drop(state);
        self.wanted.notify_waiters();
    }
}

/// Asks the coordinator of one run.
pub(crate) struct RemoteDesk {
    pub channel: Arc<Channel>,
    /// Stops asking: the run has ended, or the leases are lost.
    pub over: Arc<AtomicBool>,
    /// The process is leaving, and does not wait for answers that cannot arrive.
    pub leaving: Arc<AtomicBool>,
    pub patience: Duration,
}

impl CoordinatorClient for RemoteDesk {
    fn ask(&self, question: CoordinatorRequest) -> Option<Answer> {
        let call = Call::Ask { mover: self.channel.id, question };
        let begun = Lease::now_ms();
        while !self.over.load(Ordering::SeqCst) {
            let reply = self.channel.link.runtime.block_on(self.channel.call(&call));
            if let Some(Reply::Answer(answer)) = reply {
                return Some(answer);
            }
            let is_cut_off =
                self.leaving.load(Ordering::SeqCst) && !self.channel.link.is_connected();
            if is_cut_off || Lease::now_ms() > begun + self.patience.as_millis() as u64 {
                return None;
            }
            thread::sleep(AGAIN);
        }
        None
    }
}
