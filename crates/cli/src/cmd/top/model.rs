//! The model of `dmover top`: the latest status of the jobs, their rates, and the selection.
use dmover_journal::{JobFile, JobStatus};
use dmover_observe::{Counter, MoverView};
use dmover_schedule::time::Instant;
use std::collections::{HashMap, VecDeque};

/// The number of rates kept for each job.
const HISTORY: usize = 240;

/// All jobs with their status, the latest start first.
pub(crate) type Snapshot = Vec<(JobFile, JobStatus)>;

/// The sort order of movers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    Name,
    Rate,
    Tasks,
}

impl Sort {
    pub fn next(self) -> Self {
        match self {
            Self::Name => Self::Rate,
            Self::Rate => Self::Tasks,
            Self::Tasks => Self::Name,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Rate => "rate",
            Self::Tasks => "tasks",
        }
    }
}

/// The recent rates of a job.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    /// The last status that was counted: its time, bytes and entries.
    told: Option<(i64, u64, u64)>,
    /// Bytes and entries per second, the newest last.
    pub history: VecDeque<(u64, u64)>,
}

pub(crate) struct Model {
    jobs: Snapshot,
    rates: HashMap<String, Rates>,
    /// The selected job: the start of its id, or its label.
    selected: Option<String>,
    /// The user named or selected no job.
    pub is_chosen: bool,
    pub sort: Sort,
    /// Also jobs that have ended.
    pub shows_all: bool,
    /// The note on the last line.
    pub note: Option<String>,
    pub seen: Instant,
}

/// The bytes that were copied or read, and the entries that are done.
pub(crate) fn moved(status: &JobStatus) -> (u64, u64) {
    Counter::moved(|counter| status.counters.get(counter.name()).copied().unwrap_or(0))
}

impl Model {
    /// `job`: the job to select, by the start of its id or by its label.
    pub fn new(job: Option<String>) -> Self {
        Self {
            jobs: Vec::new(),
            rates: HashMap::new(),
            is_chosen: job.is_none(),
            selected: job,
            sort: Sort::Name,
            shows_all: false,
            note: None,
            seen: Instant::now(),
        }
    }

    /// Takes the current status of all jobs.
    pub fn see(&mut self, jobs: Snapshot, now: Instant) {
        for (file, status) in &jobs {
            let rates = self.rates.entry(file.job.clone()).or_default();
            let (bytes, entries) = moved(status);
            match rates.told {
                // The job has not updated its status since: no new rate.
                Some((then, ..)) if then == status.updated_ms => continue,
                Some((then, known, done)) if status.updated_ms > then && bytes >= known => {
                    let ms = (status.updated_ms - then) as u64;
                    let rate = |now: u64, then: u64| now.saturating_sub(then) * 1000 / ms;
                    rates.history.push_back((rate(bytes, known), rate(entries, done)));
                }
                _ => rates.history.clear(),
            }
            rates.told = Some((status.updated_ms, bytes, entries));
            if rates.history.len() > HISTORY {
                rates.history.pop_front();
            }
        }
        (self.jobs, self.seen) = (jobs, now);
    }

    /// The jobs that are listed.
    pub fn listed(&self) -> Vec<&(JobFile, JobStatus)> {
        let wanted = |(file, status): &&(JobFile, JobStatus)| {
            self.shows_all || status.phase.has_process() || self.is_selected(file)
        };
        let some: Vec<_> = self.jobs.iter().filter(wanted).collect();
        // If no job runs, show the latest one.
        if some.is_empty() { self.jobs.iter().take(1).collect() } else { some }
    }

    fn is_selected(&self, file: &JobFile) -> bool {
        self.selected.as_ref().is_some_and(|named| {
            file.job.starts_with(named.as_str()) || file.label.as_ref() == Some(named)
        })
    }

    /// The index of the selected job in the list.
    fn place(&self) -> usize {
        self.listed().iter().position(|(file, _)| self.is_selected(file)).unwrap_or(0)
    }

    /// The selected job.
    pub fn shown(&self) -> Option<&(JobFile, JobStatus)> {
        self.listed().get(self.place()).copied()
    }

    /// Keeps to the job that is shown if it runs, so that another one that starts does not take its place. Returns the job that
    /// is shown.
    pub fn choose(&mut self) -> Option<&(JobFile, JobStatus)> {
        let running = self.shown().filter(|(_, status)| status.phase.has_process());
        if let Some(job) = running.map(|(file, _)| file.job.clone()) {
            self.selected.get_or_insert(job);
        }
        self.shown()
    }

    /// Selects a job further up or down the list.
    pub fn step(&mut self, by: isize) {
        let listed = self.listed();
        let last = listed.len().saturating_sub(1);
        let place = self.place().saturating_add_signed(by).min(last);
        self.selected = listed.get(place).map(|(file, _)| file.job.clone());
        self.is_chosen = false;
    }

    /// The recent rates of a job.
    pub fn rates(&self, job: &str) -> Option<&VecDeque<(u64, u64)>> {
        self.rates.get(job).map(|rates| &rates.history)
    }

    /// The movers of a job in the chosen order.
    pub fn movers<'s>(&self, status: &'s JobStatus) -> Vec<&'s MoverView> {
        let mut all: Vec<&MoverView> = status.movers.iter().flatten().collect();
        match self.sort {
            Sort::Name => {}
            Sort::Rate => all.sort_by(|one, other| {
                let key = |mover: &MoverView| (mover.bytes_per_s, mover.entries_per_s);
                let ((bytes, entries), (theirs, others)) = (key(other), key(one));
                bytes.total_cmp(&theirs).then(entries.total_cmp(&others))
            }),
            Sort::Tasks => all.sort_by_key(|mover| std::cmp::Reverse(mover.tasks)),
        }
        all
    }
}
