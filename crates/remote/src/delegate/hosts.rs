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

/// Sources and destination of a job, as its specification has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The sources.
    pub sources: Vec<PathBytes>,
    /// The destination.
    pub destination: PathBytes,
}

/// What the hosts may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// All of them take part, and not only the one that runs the job.
    pub all_take_part: bool,
    /// Only the first one may run the job.
    pub first_runs: bool,
}

/// The hosts of DEST.
pub struct JobHosts {
    job: DelegatedJob,
    /// What a host that copies chunks does.
    copies_chunks: DelegateRole,
    /// Their names, in the order of the user.
    names: Vec<String>,
    rules: Rules,
    signals: Mutex<Option<Receiver<i32>>>,
    reached: Mutex<Vec<Reached>>,
    /// Those that wait for the host that runs the job: both are connected with the host of the command only.
    waiting: Mutex<HashMap<usize, Waiting>>,
    changed: Condvar,
}

impl JobHosts {
    /// The hosts of a job. `signals`: those that the process of the user gets.
    pub fn new(
        (job, places): (DelegatedJob, Places),
        (names, rules): (Vec<String>, Rules),
        signals: Receiver<i32>,
    ) -> Arc<Self> {
        let reached = Mutex::new(vec![Reached::NotYet; names.len()]);
        let (waiting, changed) = (Mutex::default(), Condvar::new());
        let signals = Mutex::new(Some(signals));
        let copies_chunks = DelegateRole::CopiesChunks {
            typed: job.typed.clone(),
            sources: places.sources,
            destination: places.destination,
        };
        Arc::new(Self { job, copies_chunks, names, rules, signals, reached, waiting, changed })
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
            let able = if self.rules.first_runs { &reached[..1] } else { &reached[..] };
            let first = able.iter().position(|reached| *reached != Reached::No);
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
            self.copies_chunks.clone()
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
        let all = if self.rules.all_take_part { 0..self.names.len() } else { 0..0 };
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

    fn hosts(count: usize, first_runs: bool) -> Arc<JobHosts> {
        let (words, typed, columns) = Default::default();
        let job = DelegatedJob { words, spec: String::new(), typed, columns };
        let names = (0..count).map(|number| number.to_string()).collect();
        let rules = Rules { all_take_part: true, first_runs };
        let destination = PathBytes(b"/d".to_vec());
        let places = Places { sources: Vec::new(), destination };
        JobHosts::new((job, places), (names, rules), mpsc::channel().1)
    }

    #[test]
    fn the_first_host_that_can_be_reached_runs_the_job_whoever_comes_first() {
        let all = hosts(3, false);
        all.reach(2, true);
        let waiting = {
            let all = Arc::clone(&all);
            std::thread::spawn(move || all.role(2))
        };
        all.reach(0, false);
        all.reach(1, true);
        let role = waiting.join().unwrap();
        assert!(
            matches!(role, DelegateRole::CopiesChunks { destination, .. } if destination.0 == b"/d")
        );
        let others = vec!["0".to_owned(), "2".to_owned()];
        assert_eq!(all.role(1), DelegateRole::Runs { others });
        assert!(all.job(1).is_ok() && all.job(2).is_err());
        assert!(all.take_signals(2).is_err() && all.take_signals(1).is_ok());
        // A host that comes later changes nothing, and one that is lost has another one run it only in another command.
        all.reach(0, true);
        all.reach(1, false);
        assert_eq!(all.runner(), Some(1));
        let none = hosts(2, false);
        none.reach(1, false);
        none.reach(0, false);
        assert_eq!(none.runner(), None);
        let one = hosts(2, true);
        one.reach(1, true);
        one.reach(0, false);
        assert_eq!(one.runner(), None, "another one may not");
    }
}
