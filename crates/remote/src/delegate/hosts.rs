//! The hosts of DEST that take part in a job. They log in at the same time; the first one in their order that can be reached runs
//! the job.
use dmover_model::PathBytes;
use dmover_net::connection::{Broken, Channel};
use dmover_observe::lock;
use dmover_schedule::sync::{Condvar, Mutex, MutexGuard};
use dmover_wire::delegation::{DelegateRole, DelegatedJob};
use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, PoisonError};

/// Whether a host can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reached {
    NotYet,
    Yes,
    No,
}

/// The channel of a host, and what ends its request when it is dropped.
type Waiting = (Arc<Channel>, Sender<()>);

/// The hosts of DEST.
pub struct JobHosts {
    job: DelegatedJob,
    /// Their names, in the order of the user.
    names: Vec<String>,
    /// All of them take part, and not only the one that runs the job.
    all_take_part: bool,
    signals: Mutex<Option<Receiver<i32>>>,
    reached: Mutex<Vec<Reached>>,
    /// Those that wait for the host that runs the job: both are connected with the host of the command only.
    waiting: Mutex<HashMap<usize, Waiting>>,
    changed: Condvar,
}

impl JobHosts {
    /// The hosts of a job. `all_take_part`: the others copy chunks for the one that runs it; `signals`: those that the process of
    /// the user gets.
    pub fn new(
        job: DelegatedJob,
        (names, all_take_part): (Vec<String>, bool),
        signals: Receiver<i32>,
    ) -> Arc<Self> {
        let reached = Mutex::new(vec![Reached::NotYet; names.len()]);
        let (waiting, changed) = (Mutex::default(), Condvar::new());
        let signals = Mutex::new(Some(signals));
        Arc::new(Self { job, names, all_take_part, signals, reached, waiting, changed })
    }

    /// A host can be reached, or not. Only what is said first decides who runs the job.
    pub fn reach(&self, number: usize, can: bool) {
        let mut reached = lock(&self.reached);
        if reached[number] == Reached::NotYet {
            reached[number] = if can { Reached::Yes } else { Reached::No };
        }
        drop(reached);
        self.changed.notify_all();
    }

    /// Whether a host can be reached. Waits until that is known.
    pub fn can_be_reached(&self, number: usize) -> bool {
        let mut reached = lock(&self.reached);
        while reached[number] == Reached::NotYet {
            reached = self.wait(reached);
        }
        reached[number] == Reached::Yes
    }

    /// The host that runs the job. Waits until that is known; `None`: none can be reached.
    pub fn runner(&self) -> Option<usize> {
        let mut reached = lock(&self.reached);
        loop {
            let first = reached.iter().position(|reached| *reached != Reached::No);
            match first.map(|number| (number, reached[number])) {
                None => return None,
                Some((number, Reached::Yes)) => return Some(number),
                Some(_) => reached = self.wait(reached),
            }
        }
    }

    fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// What a host does.
    pub(super) fn role(&self, number: usize) -> DelegateRole {
        if self.runner() == Some(number) {
            let others = self.others(number).map(|other| self.names[other].clone()).collect();
            DelegateRole::Runs { others }
        } else {
            let typed: Vec<PathBytes> = self.job.typed.clone();
            DelegateRole::CopiesChunks { typed }
        }
    }

    /// The job, for the host that runs it.
    pub(super) fn job(&self, number: usize) -> Result<&DelegatedJob, Broken> {
        let words = || Broken::Cancelled("another host runs the job".into());
        (self.runner() == Some(number)).then_some(&self.job).ok_or_else(words)
    }

    /// The signals, for the host that runs the job.
    pub(super) fn take_signals(&self, number: usize) -> Result<Receiver<i32>, Broken> {
        self.job(number)?;
        let words = || Broken::Cancelled("signals are sent once".into());
        lock(&self.signals).take().ok_or_else(words)
    }

    fn others(&self, runner: usize) -> impl Iterator<Item = usize> {
        let all = if self.all_take_part { 0..self.names.len() } else { 0..0 };
        all.filter(move |other| *other != runner)
    }

    /// The channel of another host, counted as in its role, for the one that runs the job. Waits until it is there. The request
    /// of that host lasts as long as what comes with the channel.
    pub(super) fn meet(&self, runner: usize, other: u32) -> Result<Waiting, Broken> {
        self.job(runner)?;
        let words = || Broken::Cancelled("no other host has this number".into());
        let other = self.others(runner).nth(other as usize).ok_or_else(words)?;
        let mut waiting = lock(&self.waiting);
        loop {
            match waiting.remove(&other) {
                Some(there) => return Ok(there),
                None => waiting = self.wait(waiting),
            }
        }
    }

    /// Offers the channel of a host to the one that runs the job, and waits for its end.
    pub(super) fn wait_for_runner(&self, number: usize, channel: &Arc<Channel>) {
        let (sender, ended) = mpsc::channel();
        lock(&self.waiting).insert(number, (Arc::clone(channel), sender));
        self.changed.notify_all();
        // Nothing is ever sent: the other end is dropped.
        let _ = ended.recv();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(count: usize) -> Arc<JobHosts> {
        let (words, typed, columns) = Default::default();
        let job = DelegatedJob { words, spec: String::new(), typed, columns };
        let names = (0..count).map(|number| number.to_string()).collect();
        JobHosts::new(job, (names, true), mpsc::channel().1)
    }

    #[test]
    fn the_first_host_that_can_be_reached_runs_the_job_whoever_comes_first() {
        let all = hosts(3);
        all.reach(2, true);
        let waiting = {
            let all = Arc::clone(&all);
            std::thread::spawn(move || all.role(2))
        };
        all.reach(0, false);
        all.reach(1, true);
        assert_eq!(waiting.join().unwrap(), DelegateRole::CopiesChunks { typed: Vec::new() });
        let others = vec!["0".to_owned(), "2".to_owned()];
        assert_eq!(all.role(1), DelegateRole::Runs { others });
        assert!(all.job(1).is_ok() && all.job(2).is_err());
        assert!(all.take_signals(2).is_err() && all.take_signals(1).is_ok());
        // A host that comes later changes nothing, and one that is lost has another one run it only in another command.
        all.reach(0, true);
        all.reach(1, false);
        assert_eq!(all.runner(), Some(1));
        let none = hosts(2);
        none.reach(1, false);
        none.reach(0, false);
        assert_eq!(none.runner(), None);
    }
}
