//! The queue between coordinator and movers: a trait for each side, and the in-process implementation.
//!
//! The traits are synchronous and batched, so that a message broker can implement them too. A lease has a deadline that
//! the mover extends by making progress. A mover that hangs loses its lease, and checks it before every step that
//! cannot be undone.
use dmover_model::{Outcome, Task, TaskId};
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

#[derive(Debug, Default)]
struct State {
    ready: Vec<Task>,
    leased: HashMap<TaskId, Lease>,
    /// Number of leases so far.
    leases: u32,
    reports: Vec<Reported>,
    /// Entries in all reports.
    unheard: usize,
    waiting: usize,
    /// Ended tasks: how many were reported, taken, and acknowledged.
    ended: [u64; 3],
    /// Leased tasks of each class, and their limits.
    running: [usize; CLASSES],
    allowed: [usize; CLASSES],
    closed: bool,
}

impl State {
    fn has_room(&self, class: Class) -> bool {
        self.running[class as usize] < self.allowed[class as usize]
    }

    /// The newest task that may be leased now.
    fn next(&self) -> Option<usize> {
        self.ready.iter().rposition(|task| self.has_room(Class::of(task)))
    }

    fn release(&mut self, id: TaskId) -> Option<Lease> {
        let lease = self.leased.remove(&id)?;
        self.running[Class::of(&lease.task) as usize] -= 1;
        Some(lease)
    }
}

/// The queue inside one process.
#[derive(Debug)]
pub struct LocalQueue {
    state: Mutex<State>,
    work: Condvar,
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
        state.leased.get(&lease.task.id).is_some_and(|l| l.number == lease.number)
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
            let task = state.ready.remove(index);
            state.running[Class::of(&task) as usize] += 1;
            state.leases += 1;
            let lease = Lease::local(task, state.leases, self.lease_ms);
            state.leased.insert(lease.task.id, lease.clone());
            leases.push(lease);
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
        state.waiting > 0 && state.next().is_none() && state.has_room(class)
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
            .filter(|lease| Class::of(&lease.task) == class)
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
            state.leased.iter().filter(|(_, l)| !l.holds()).map(|(id, _)| *id).collect();
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
        self.heard.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_model::{Budget, TaskKind};

    fn task(id: u64) -> Task {
        let budget = Budget { entries: 1, bytes: 1, time_ms: 1 };
        Task::new(TaskId(id), TaskKind::Finish(Vec::new()), budget)
    }

    #[test]
    fn movers_beyond_the_number_are_asked_to_come_back_once() {
        let queue = LocalQueue::new(Duration::from_secs(9));
        queue.publish((0..5).map(task).collect());
        let leases = queue.lease(4, Duration::ZERO);
        let asked = |leases: &[Lease]| leases.iter().filter(|l| l.is_wanted_back()).count();
        queue.allow(Class::Large, 0);
        assert_eq!(asked(&leases), 0, "of another class");
        queue.allow(Class::Small, 3);
        queue.allow(Class::Small, 3);
        assert_eq!(asked(&leases), 1);
        queue.allow(Class::Small, 2);
        assert_eq!(asked(&leases), 2);
        leases.iter().filter(|l| l.is_wanted_back()).for_each(|lease| {
            queue.complete(lease, Outcome::default());
        });
        assert!(queue.lease(1, Duration::ZERO).is_empty(), "two are still at work");
    }

    #[test]
    fn the_newest_task_goes_first() {
        let queue = LocalQueue::new(Duration::from_secs(9));
        queue.publish(vec![task(1), task(2)]);
        queue.publish(vec![task(3)]);
        let ids: Vec<u64> = queue.lease(9, Duration::ZERO).iter().map(|l| l.task.id.0).collect();
        assert_eq!(ids, [3, 2, 1]);
    }

    #[test]
    fn a_lease_that_ran_out_is_given_to_another_and_its_outcome_dropped() {
        let queue = LocalQueue::new(Duration::ZERO);
        queue.publish(vec![task(1)]);
        let old = queue.lease(1, Duration::ZERO).remove(0);
        assert!(!old.holds(), "a lease of no length has run out");
        old.extend();
        assert!(!old.holds(), "a lost lease cannot be extended");
        let back = queue.expired();
        assert_eq!(back.len(), 1);
        queue.publish(back);
        queue.complete(&old, Outcome::default());
        assert!(queue.reports(Duration::ZERO).is_empty());
        let new = queue.lease(1, Duration::ZERO).remove(0);
        assert_eq!(new.task.lost, [old.number]);
        queue.complete(&old, Outcome::default());
        assert!(queue.reports(Duration::ZERO).is_empty(), "the old holder speaks for nobody");
        queue.complete(&new, Outcome::default());
        assert_eq!(queue.reports(Duration::ZERO).len(), 1);
    }

    #[test]
    fn what_was_made_is_undone_if_nothing_was_ever_said_of_it() {
        let undone = Arc::new(AtomicU64::new(0));
        let make = |lease: &Lease| {
            let undone = Arc::clone(&undone);
            lease.unless_said(move || _ = undone.fetch_add(1, Ordering::SeqCst));
        };
        for (length, ends, expected) in [
            (Duration::ZERO, true, 1),
            (Duration::from_secs(9), true, 0),
            (Duration::from_secs(9), false, 1),
        ] {
            undone.store(0, Ordering::SeqCst);
            let queue = LocalQueue::new(length);
            queue.publish(vec![task(1)]);
            let lease = queue.lease(1, Duration::ZERO).remove(0);
            make(&lease);
            drop(queue.expired());
            if ends {
                queue.complete(&lease, Outcome::default());
            }
            assert_eq!(undone.load(Ordering::SeqCst), 0, "somebody still has it in hand");
            drop((lease, queue));
            assert_eq!(undone.load(Ordering::SeqCst), expected, "{length:?} {ends}");
        }
    }

    #[test]
    fn who_says_too_much_waits_until_it_is_heard() {
        let queue = Arc::new(LocalQueue::new(Duration::from_secs(9)));
        queue.publish(vec![task(1)]);
        let lease = queue.lease(1, Duration::ZERO).remove(0);
        let speaker = Arc::clone(&queue);
        let mover = std::thread::spawn(move || {
            for _ in 0..10 * UNHEARD_MAX {
                let dirty = vec![dmover_model::DirectoryRef::of_root(dmover_model::RootId(0))];
                speaker.report(&lease, Outcome { dirty, ..Outcome::default() });
            }
            speaker.complete(&lease, Outcome::default());
        });
        let mut heard = 0;
        while heard <= 10 * UNHEARD_MAX {
            let said = queue.reports(Duration::from_mins(1)).len();
            assert!(said <= UNHEARD_MAX + 2, "{said} at once");
            heard += said;
        }
        mover.join().unwrap();
    }

    /// One directory's names are one thing of an outcome, and may be more than memory holds.
    #[test]
    fn who_lists_many_names_waits_until_they_are_heard() {
        use dmover_model::{ListedName, Name, Object, Surveyed, TreePath};
        const NAMES: usize = 1024;
        const LISTS: usize = 5 * UNHEARD_MAX / NAMES;
        let queue = Arc::new(LocalQueue::new(Duration::from_secs(9)));
        queue.publish(vec![task(1)]);
        let lease = queue.lease(1, Duration::ZERO).remove(0);
        let speaker = Arc::clone(&queue);
        let mover = std::thread::spawn(move || {
            let name = Name::new(&b"n"[..]).unwrap();
            let listed = ListedName { name, inode: 1, is_directory: false };
            for _ in 0..LISTS {
                let names = vec![listed.clone(); NAMES];
                let object = Object { inode: 1, birth: None };
                let list = Surveyed::Listed { object, path: TreePath::root(), names, last: false };
                speaker.report(&lease, Outcome { survey: vec![list], ..Outcome::default() });
            }
            speaker.complete(&lease, Outcome::default());
        });
        while queue.state().unheard <= UNHEARD_MAX {
            assert!(!mover.is_finished(), "it never waits");
            std::thread::yield_now();
        }
        let (mut heard, most) = (0, UNHEARD_MAX / NAMES + 2);
        while heard <= LISTS {
            let said = queue.reports(Duration::from_mins(1)).len();
            assert!(said <= most, "{said} at once");
            heard += said;
        }
        mover.join().unwrap();
    }

    #[test]
    fn who_ends_a_task_waits_until_it_is_on_record() {
        let queue = Arc::new(LocalQueue::new(Duration::from_secs(9)).on_record());
        queue.publish(vec![task(1)]);
        let lease = queue.lease(1, Duration::ZERO).remove(0);
        let speaker = Arc::clone(&queue);
        let mover = std::thread::spawn(move || speaker.complete(&lease, Outcome::default()));
        while queue.reports(Duration::from_mins(1)).is_empty() {}
        assert!(!mover.is_finished());
        queue.acknowledge();
        mover.join().unwrap();
        queue.publish(vec![task(2)]);
        let lease = queue.lease(1, Duration::ZERO).remove(0);
        queue.close();
        queue.complete(&lease, Outcome::default());
    }

    #[test]
    fn hunger_needs_someone_who_waits() {
        let queue = Arc::new(LocalQueue::new(Duration::from_secs(9)));
        assert!(!queue.is_hungry(Class::Small));
        let other = Arc::clone(&queue);
        let mover = std::thread::spawn(move || other.lease(1, Duration::from_mins(1)));
        while !queue.is_hungry(Class::Small) {
            std::thread::yield_now();
        }
        queue.publish(vec![task(1)]);
        assert_eq!(mover.join().unwrap().len(), 1);
        assert!(!queue.is_hungry(Class::Small));
    }

    #[test]
    fn a_class_that_is_full_does_not_keep_the_other_waiting() {
        let queue = LocalQueue::new(Duration::from_secs(9));
        let open = |id| {
            let directory = dmover_model::DirectoryRef::of_root(dmover_model::RootId(0));
            let name = dmover_model::Name::new(*b"f").unwrap();
            let file =
                dmover_model::FileRef { directory, name: name.clone(), destination_name: name };
            Task { kind: TaskKind::Open { file, round: 1 }, ..task(id) }
        };
        queue.allow(Class::Large, 1);
        queue.publish(vec![task(1), open(2), open(3)]);
        let leases = queue.lease(9, Duration::ZERO);
        let ids: Vec<u64> = leases.iter().map(|l| l.task.id.0).collect();
        assert_eq!(ids, [3, 1], "the newest of each class");
        assert!(queue.lease(9, Duration::ZERO).is_empty());
        queue.complete(&leases[0], Outcome::default());
        assert_eq!(queue.lease(9, Duration::ZERO)[0].task.id.0, 2);
    }
}
