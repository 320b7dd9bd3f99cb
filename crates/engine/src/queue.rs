//! The queue between coordinator and movers: a trait for each side, and the in-process implementation.
//!
//! The traits are synchronous and batched, so that a message broker can implement them too. A lease has a deadline that
//! the mover extends by making progress. A mover that hangs loses its lease, and checks it before every step that
//! cannot be undone.
use dmover_model::{Outcome, Task, TaskId, TaskKind};
use dmover_observe::CLASSES;
use dmover_schedule::sync::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::mover_report::MoverReport;

pub use dmover_model::TaskClass as Class;

/// A task that a mover has leased.
#[derive(Debug, Clone)]
pub struct Lease {
    /// The task.
    pub task: Task,
    /// The number of this lease in its run: leases and their temporary files have unique numbers.
    pub number: u32,
    hold: Arc<Hold>,
}

/// The validity of a lease on a monotonic clock, shared between its holder and the queue.
#[derive(Debug)]
struct Hold {
    until_ms: AtomicU64,
    /// Progress extends the lease by this much; `None`: only its issuer can extend it.
    length_ms: Option<u64>,
    progressed: AtomicBool,
    wanted_back: AtomicBool,
    undo: Mutex<Undo>,
}

/// Actions to perform if nothing is ever reported about a task.
#[derive(Default)]
struct Undo(Vec<Box<dyn FnOnce() + Send>>);

impl std::fmt::Debug for Undo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Undo({})", self.0.len())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let undo = self.undo.get_mut().unwrap_or_else(PoisonError::into_inner);
        undo.0.drain(..).for_each(|undo| undo());
    }
}

impl Hold {
    fn extend(&self) {
        match self.length_ms {
            Some(length) => self.until(Lease::now_ms() + length),
            None => self.progressed.store(true, Ordering::Relaxed),
        }
    }

    fn until(&self, until_ms: u64) {
        let now = Lease::now_ms();
        let extended = |at| (now < at).then_some(until_ms.max(at));
        let _ = self.until_ms.fetch_update(Ordering::SeqCst, Ordering::SeqCst, extended);
    }
}

impl Lease {
    /// A lease that progress extends.
    fn local(task: Task, number: u32, length_ms: u64) -> Self {
        let until = Self::now_ms() + length_ms;
        Self::new(task, number, until, Some(length_ms))
    }

    /// A lease from a remote coordinator, which must be asked for an extension. It is valid until `until_ms` on the
    /// clock of [`Lease::now_ms`].
    pub fn granted(task: Task, number: u32, until_ms: u64) -> Self {
        Self::new(task, number, until_ms, None)
    }

    fn new(task: Task, number: u32, until_ms: u64, length_ms: Option<u64>) -> Self {
        let hold = Hold {
            until_ms: AtomicU64::new(until_ms),
            length_ms,
            progressed: AtomicBool::new(false),
            wanted_back: AtomicBool::new(false),
            undo: Mutex::default(),
        };
        Self { task, number, hold: Arc::new(hold) }
    }

    /// Adds an action for the moment when the last holder drops a task about which nothing was reported: after a
    /// process was suspended, other movers may have the task, and they do not know its last changes.
    pub fn unless_said(&self, undo: impl FnOnce() + Send + 'static) {
        self.undo().0.push(Box::new(undo));
    }

    /// Records that a report about the task is being sent, and may arrive even if it seems to fail.
    pub fn said(&self) {
        self.undo().0.clear();
    }

    fn undo(&self) -> MutexGuard<'_, Undo> {
        self.hold.undo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The clock of leases, which continues while a host is suspended.
    pub fn now_ms() -> u64 {
        dmover_host::boot_clock_ms()
    }

    /// Records progress (bytes or entries copied): the lease gets its full length again, unless it has already expired.
    pub fn extend(&self) {
        self.hold.extend();
    }

    /// Extends the lease until this time. A lease that has expired, or was just taken back, stays lost.
    pub fn hold_until(&self, until_ms: u64) {
        self.hold.until(until_ms);
    }

    /// Whether there was progress since the last call.
    pub fn take_progress(&self) -> bool {
        self.hold.progressed.swap(false, Ordering::Relaxed)
    }

    /// Ends the lease; it cannot be extended any more.
    pub fn lose(&self) {
        self.hold.until_ms.store(0, Ordering::SeqCst);
    }

    /// Whether the mover still holds the task. Checked before every rename, unlink, seal and chunk.
    pub fn holds(&self) -> bool {
        Self::now_ms() < self.hold.until_ms.load(Ordering::SeqCst)
    }

    /// Asks the holder to end the task early and to return the rest.
    pub fn want_back(&self) {
        self.hold.wanted_back.store(true, Ordering::Relaxed);
    }

    /// Whether more movers run than should, so that this one must end its task early.
    pub fn is_wanted_back(&self) -> bool {
        self.hold.wanted_back.load(Ordering::Relaxed)
    }
}

/// A report of a mover.
#[derive(Debug)]
pub enum Reported {
    /// Events that belong to the next report, from a remote mover.
    MoverReport(Box<MoverReport>),
    /// The task continues.
    Partial(TaskId, Outcome),
    /// The task has ended.
    Done(TaskId, Outcome),
    /// This many movers have lost the task, so that it is not tried again.
    Lost(Box<Task>),
    /// The task failed, perhaps because of its mover, and has ended there: another mover should try it.
    Returned(Box<Task>),
}

/// The mover's side of the queue: it receives tasks and sends outcomes.
pub trait Queue: Send + Sync {
    /// Takes up to `most` tasks, waiting for the first; empty after the wait or when closed.
    fn lease(&self, most: usize, wait: Duration) -> Vec<Lease>;

    /// Reports progress of a task; waits while too many reports are not processed.
    fn report(&self, lease: &Lease, outcome: Outcome);

    /// Ends a task; waits for the acknowledgement where that is required. An outcome under an expired lease is dropped.
    fn complete(&self, lease: &Lease, outcome: Outcome);

    /// Whether movers wait for work of a class and none is left.
    fn is_hungry(&self, class: Class) -> bool;

    /// Whether movers elsewhere are much faster, so that they should get all work that can be returned.
    fn is_slow(&self) -> bool {
        false
    }

    /// Whether it was closed.
    fn is_closed(&self) -> bool;
}

/// Limits the movers of one process.
pub trait Gate: Send + Sync {
    /// Sets the most tasks of a class that may be leased here at a time; the coordinator wants further leased tasks
    /// back.
    fn allow(&self, class: Class, movers: usize);
}

/// The coordinator's side of the queue.
pub trait Dispatch: Send + Sync {
    /// Publishes tasks for the next free movers.
    fn publish(&self, tasks: Vec<Task>);

    /// Takes reports of movers, waiting for the first.
    fn reports(&self, wait: Duration) -> Vec<Reported>;

    /// Records that all reports taken so far are committed.
    fn acknowledge(&self);

    /// Takes back tasks with expired leases; each one has the leases that were lost.
    fn expired(&self) -> Vec<Task>;

    /// Takes back tasks that nobody has leased.
    fn withdraw(&self) -> Vec<Task>;

    /// Closes the queue: no more tasks follow.
    fn close(&self);
}

/// The most names in unprocessed reports; beyond that, movers wait before they report.
const UNHEARD_MAX: usize = 8192;

/// A lease and its holder.
#[derive(Debug)]
struct Leased {
    lease: Lease,
    /// A mover at another host has it, which the limits of the movers here do not count.
    is_elsewhere: bool,
}

#[derive(Debug, Default)]
struct State {
    ready: Vec<Task>,
    leased: HashMap<TaskId, Leased>,
    /// Number of leases so far.
    leases: u32,
    reports: Vec<Reported>,
    /// Entries in all reports.
    unheard: usize,
    waiting: usize,
    /// Movers at other hosts that wait for a chunk.
    waiting_elsewhere: usize,
    /// Ended tasks: how many were reported, taken, and acknowledged.
    ended: [u64; 3],
    /// Leased tasks of each class, and their limits.
    running: [usize; CLASSES],
    allowed: [usize; CLASSES],
    closed: bool,
}

impl State {
    fn say(&mut self, said: MoverReport) {
        if !said.is_empty() {
            self.unheard += said.len();
            self.reports.push(Reported::MoverReport(Box::new(said)));
        }
    }

    fn has_room(&self, class: Class) -> bool {
        self.running[class as usize] < self.allowed[class as usize]
    }

    /// The newest task that may be leased now.
    fn next(&self) -> Option<usize> {
        self.ready.iter().rposition(|task| self.has_room(Class::of(task)))
    }

    /// The newest task that a mover at another host may lease: a chunk that has failed at none.
    fn next_elsewhere(&self) -> Option<usize> {
        let is_chunk = |task: &Task| matches!(task.kind, TaskKind::Chunk(_));
        self.ready.iter().rposition(|task| is_chunk(task) && task.lost.is_empty())
    }

    fn grant(&mut self, index: usize, lease_ms: u64, is_elsewhere: bool) -> Lease {
        let task = self.ready.remove(index);
        if !is_elsewhere {
            self.running[Class::of(&task) as usize] += 1;
        }
        self.leases += 1;
        let lease = Lease::local(task, self.leases, lease_ms);
        self.leased.insert(lease.task.id, Leased { lease: lease.clone(), is_elsewhere });
        lease
    }

    fn release(&mut self, id: TaskId) -> Option<Lease> {
        let Leased { lease, is_elsewhere } = self.leased.remove(&id)?;
        if !is_elsewhere {
            self.running[Class::of(&lease.task) as usize] -= 1;
        }
        Some(lease)
    }
}

/// The queue inside one process.
#[derive(Debug)]
pub struct LocalQueue {
    state: Mutex<State>,
    work: Condvar,
    /// Wakes movers at other hosts that wait for a chunk.
    work_elsewhere: Condvar,
    said: Condvar,
    heard: Condvar,
    lease_ms: u64,
    /// A mover that ends a task waits until the end is committed.
    on_record: bool,
}

impl LocalQueue {
    /// A queue whose leases expire after `lease` without progress.
    pub fn new(lease: Duration) -> Self {
        Self {
            state: Mutex::new(State { allowed: [usize::MAX; CLASSES], ..State::default() }),
            work: Condvar::new(),
            work_elsewhere: Condvar::new(),
            said: Condvar::new(),
            heard: Condvar::new(),
            lease_ms: lease.as_millis() as u64,
            on_record: false,
        }
    }

    /// Makes movers take their next task only after the end of the last one is committed.
    #[must_use]
    pub fn on_record(self) -> Self {
        Self { on_record: true, ..self }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this lease, and not a later one of the same task, is valid.
    fn is_current(state: &State, lease: &Lease) -> bool {
        state.leased.get(&lease.task.id).is_some_and(|l| l.lease.number == lease.number)
    }

    /// Leases a chunk of a large file to a mover at another host, waiting for one.
    /// `lease`: how long it is valid without contact.
    pub(crate) fn lease_chunk(&self, wait: Duration, lease: Duration) -> Option<Lease> {
        let mut state = self.state();
        if state.next_elsewhere().is_none() && !state.closed {
            state.waiting_elsewhere += 1;
            let wake = |s: &mut State| s.next_elsewhere().is_none() && !s.closed;
            let (guard, _) = self
                .work_elsewhere
                .wait_timeout_while(state, wait, wake)
                .unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.waiting_elsewhere -= 1;
        }
        let index = state.next_elsewhere().filter(|_| !state.closed)?;
        Some(state.grant(index, lease.as_millis() as u64, true))
    }

    /// Takes a chunk back of which the mover at another host has never heard.
    pub(crate) fn put_back(&self, lease: &Lease) {
        let mut state = self.state();
        if Self::is_current(&state, lease)
            && let Some(lease) = state.release(lease.task.id)
        {
            state.ready.push(lease.task);
            drop(state);
            self.work.notify_one();
            self.work_elsewhere.notify_one();
        }
    }

    /// Adds reports of a mover at another host about a task that it has leased. `said`: those beside the outcome.
    pub(crate) fn report_of(&self, lease: &Lease, said: MoverReport, outcome: Outcome) {
        let mut state = self.state();
        if Self::is_current(&state, lease) {
            state.say(said);
            state.unheard += outcome.weight();
            state.reports.push(Reported::Partial(lease.task.id, outcome));
            self.said.notify_one();
        }
    }

    /// Ends such a task. `left`: it failed there, and this is what another mover should try.
    pub(crate) fn end_of(
        &self,
        lease: &Lease,
        said: MoverReport,
        (outcome, left): (Outcome, Option<TaskKind>),
    ) {
        let mut state = self.state();
        if !Self::is_current(&state, lease) {
            return;
        }
        state.release(lease.task.id);
        state.say(said);
        state.unheard += outcome.weight();
        state.reports.push(match left {
            Some(kind) => {
                let mut task = Task { kind, ..lease.task.clone() };
                task.lost.push(lease.number);
                Reported::Returned(Box::new(task))
            }
            None => Reported::Done(lease.task.id, outcome),
        });
        state.ended[0] += 1;
        self.said.notify_one();
    }
}

impl Queue for LocalQueue {
    fn lease(&self, most: usize, wait: Duration) -> Vec<Lease> {
        let mut state = self.state();
        if state.next().is_none() && !state.closed {
            state.waiting += 1;
            let wake = |s: &mut State| s.next().is_none() && !s.closed;
            let (guard, _) = self
                .work
                .wait_timeout_while(state, wait, wake)
                .unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.waiting -= 1;
        }
        let mut leases = Vec::new();
        while leases.len() < most
            && let Some(index) = state.next()
        {
            leases.push(state.grant(index, self.lease_ms, false));
        }
        leases
    }

    fn report(&self, lease: &Lease, outcome: Outcome) {
        let mut state = self.state();
        if Self::is_current(&state, lease) {
            lease.said();
            state.unheard += outcome.weight();
            state.reports.push(Reported::Partial(lease.task.id, outcome));
            self.said.notify_one();
            // Memory must not follow how much faster names are read than they are put away.
            let too_much = |s: &mut State| s.unheard > UNHEARD_MAX && !s.closed;
            drop(self.heard.wait_while(state, too_much));
        }
    }

    fn complete(&self, lease: &Lease, outcome: Outcome) {
        let mut state = self.state();
        if Self::is_current(&state, lease) {
            lease.said();
            state.release(lease.task.id);
            state.unheard += outcome.weight();
            state.reports.push(Reported::Done(lease.task.id, outcome));
            state.ended[0] += 1;
            let number = state.ended[0];
            let more = state.waiting > 0 && state.next().is_some();
            self.said.notify_one();
            if more {
                self.work.notify_one();
            }
            if self.on_record {
                let unheard = |s: &mut State| s.ended[2] < number && !s.closed;
                drop(self.heard.wait_while(state, unheard));
            }
        }
    }

    fn is_hungry(&self, class: Class) -> bool {
        let state = self.state();
        let elsewhere = class == Class::Large
            && state.waiting_elsewhere > 0
            && state.next_elsewhere().is_none();
        elsewhere || (state.waiting > 0 && state.next().is_none() && state.has_room(class))
    }

    fn is_closed(&self) -> bool {
        self.state().closed
    }
}

impl Gate for LocalQueue {
    fn allow(&self, class: Class, movers: usize) {
        let mut state = self.state();
        let more = movers > std::mem::replace(&mut state.allowed[class as usize], movers);
        let surplus = state.running[class as usize].saturating_sub(movers);
        // Those that were asked before have not come back yet.
        let (asked, others): (Vec<&Lease>, Vec<&Lease>) = state
            .leased
            .values()
            .filter(|leased| !leased.is_elsewhere && Class::of(&leased.lease.task) == class)
            .map(|leased| &leased.lease)
            .partition(|lease| lease.is_wanted_back());
        for lease in others.iter().take(surplus.saturating_sub(asked.len())) {
            lease.want_back();
        }
        drop(state);
        if more {
            self.work.notify_all();
        }
    }
}

impl Dispatch for LocalQueue {
    fn publish(&self, tasks: Vec<Task>) {
        let mut state = self.state();
        let woken = tasks.len().min(state.waiting);
        state.ready.extend(tasks);
        drop(state);
        for _ in 0..woken {
            self.work.notify_one();
        }
        self.work_elsewhere.notify_all();
    }

    fn reports(&self, wait: Duration) -> Vec<Reported> {
        let state = self.state();
        let (mut state, _) = self
            .said
            .wait_timeout_while(state, wait, |s| s.reports.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        state.unheard = 0;
        state.ended[1] = state.ended[0];
        self.heard.notify_all();
        std::mem::take(&mut state.reports)
    }

    fn acknowledge(&self) {
        let mut state = self.state();
        state.ended[2] = state.ended[1];
        if self.on_record {
            self.heard.notify_all();
        }
    }

    fn expired(&self) -> Vec<Task> {
        let mut state = self.state();
        let over: Vec<TaskId> =
            state.leased.iter().filter(|(_, l)| !l.lease.holds()).map(|(id, _)| *id).collect();
        let lost = over.iter().filter_map(|id| state.release(*id));
        let back = lost.map(|lease| {
            // Its holder may be about to extend it: from here on it cannot.
            lease.lose();
            let mut task = lease.task;
            task.lost.push(lease.number);
            task
        });
        back.collect()
    }

    fn withdraw(&self) -> Vec<Task> {
        std::mem::take(&mut self.state().ready)
    }

    fn close(&self) {
        self.state().closed = true;
        self.work.notify_all();
        self.work_elsewhere.notify_all();
        self.heard.notify_all();
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
pub(crate) mod tests;
