//! What movers report: counted and shown here, or collected for a coordinator in another process.
use dmover_journal::Failures;
use dmover_model::{
    DifferenceKind, DifferenceSet, EntryError, ErrorClass, Event, JobSpec, LossKind, Note,
    PathBytes, Side, Verb,
};
use dmover_observe::{Counter, Counters, Monitor, Quantity, Slow, Slowest, lock};
use dmover_plan::breaker::Breaker;
use dmover_schedule::sync::Mutex;
use dmover_schedule::time::Instant;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::control::{Control, StopReason};
use crate::coordinator_client::CoordinatorLink;
use crate::mover_report::{MoverReport, ReportItem, collect_count, collect_quantity, collect_slow};

/// Counts of errors and losses by kind, for the report.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    pub errors: BTreeMap<ErrorClass, u64>,
    pub losses: BTreeMap<LossKind, u64>,
}

/// The reports of the movers of this process.
pub(crate) struct Reports {
    /// When the run began.
    pub started: Instant,
    spec: Arc<JobSpec>,
    monitor: Arc<dyn Monitor>,
    pub counters: Arc<Counters>,
    pub slowest: Slowest,
    pub coordinator: CoordinatorLink,
    control: Arc<Control>,
    /// Where errors are recorded, if not in a journal.
    pub failures: Option<Failures>,
    /// The job has a journal.
    keeps_journal: bool,
    /// Errors that are not in the journal yet.
    unrecorded: Mutex<Vec<EntryError>>,
    breaker: Mutex<Breaker>,
    /// An operation has failed since content was last copied.
    troubled: AtomicBool,
    /// A flush of the destination has failed.
    flush_failed: AtomicBool,
    tally: Mutex<Tally>,
}

/// Where reports go.
pub(crate) struct Receivers {
    pub monitor: Arc<dyn Monitor>,
    pub counters: Arc<Counters>,
    pub coordinator: CoordinatorLink,
    pub control: Arc<Control>,
    /// Where errors are recorded, if not in a journal.
    pub failures: Option<Failures>,
}

impl Reports {
    /// `keeps_journal`: the job has a journal, which records errors.
    pub fn new(spec: Arc<JobSpec>, receivers: Receivers, keeps_journal: bool) -> Self {
        let Receivers { monitor, counters, coordinator, control, failures } = receivers;
        Self {
            started: Instant::now(),
            spec,
            monitor,
            counters,
            slowest: Slowest::default(),
            coordinator,
            control,
            failures,
            keeps_journal,
            unrecorded: Mutex::default(),
            breaker: Mutex::default(),
            troubled: AtomicBool::new(false),
            flush_failed: AtomicBool::new(false),
            tally: Mutex::default(),
        }
    }

    pub fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    pub fn add(&self, counter: Counter, amount: u64) {
        self.counters.add(counter, amount);
        if self.coordinator.is_remote() {
            collect_count(counter, amount);
        }
    }

    /// Adds a value to a histogram: microseconds or bytes.
    pub fn measure(&self, quantity: Quantity, value: u64) {
        self.counters.note(quantity, value);
        if self.coordinator.is_remote() {
            collect_quantity(quantity, value);
        }
    }

    /// Records a copied or read entry.
    pub fn done(&self, elapsed_us: u64, bytes: u64) {
        self.measure(Quantity::EntryDuration, elapsed_us);
        self.measure(Quantity::EntrySize, bytes);
    }

    /// Records how long an entry took.
    pub fn slow(&self, elapsed_us: u64, bytes: u64, path: impl FnOnce() -> PathBytes) {
        if !self.coordinator.is_remote() {
            return self.slowest.note(elapsed_us, bytes, path);
        }
        // Only what is among the slowest of this mover may be among those of all.
        let mut found = None;
        self.slowest.note(elapsed_us, bytes, || {
            let path = path();
            found = Some(Slow { elapsed_us, bytes, path: path.clone() });
            path
        });
        collect_slow(found);
    }

    /// Reports an entry that failed for good. `recorded` is called with an error that goes to the journal, before others see
    /// it: what it records goes to the journal at the same time.
    pub fn error(&self, error: EntryError, recorded: impl FnOnce(&EntryError)) {
        if self.coordinator.tell(|| ReportItem::Error(error.clone())) {
            self.troubled.store(true, Ordering::Release);
            log(&error);
            return;
        }
        if error.class == ErrorClass::Cancelled {
            self.count(Counter::NotAttempted);
        } else {
            self.count(Counter::Errors);
            if error.class.source_moved_on() && error.side == Side::Source {
                self.count(Counter::SourceErrors);
            }
        }
        let class = error.class;
        if error.is_failed_flush() {
            self.note_failed_flush();
        }
        let error = self.judged(error);
        // First, so that a status never counts an error that is not listed yet.
        if let Some(failures) = &self.failures {
            failures.note(&error);
        }
        *lock(&self.tally).errors.entry(error.class).or_default() += 1;
        // What was not attempted is no error of its entry: the journal has it as a task.
        if self.keeps_journal && error.class != ErrorClass::Cancelled {
            lock(&self.unrecorded).push(error.clone());
            recorded(&error);
        }
        log(&error);
        self.monitor.event(&Event::Error(error));
        self.stop_after_too_many(class);
    }

    /// Notes that what this run has written may not be on storage.
    pub fn note_failed_flush(&self) {
        self.flush_failed.store(true, Ordering::Release);
    }

    /// Whether a flush of the destination has failed.
    pub fn has_failed_to_flush(&self) -> bool {
        self.flush_failed.load(Ordering::Acquire)
    }

    /// Stops the job if all entries fail with the same error, or more failed than the user allows.
    fn stop_after_too_many(&self, class: ErrorClass) {
        let systemic = lock(&self.breaker).failure(class);
        self.troubled.store(true, Ordering::Release);
        if let Some(class) = systemic
            && self.control.stop(StopReason::Systemic(class))
        {
            let reason = format!(
                "all entries fail with the same error ({}): {}",
                class.word(),
                class.advice()
            );
            self.monitor.event(&Event::Paused { reason });
        }
        let most = self.spec.limits.errors_max;
        if most.is_some_and(|most| self.counters.get(Counter::Errors) >= most.max(1)) {
            self.control.stop(StopReason::Errors);
        }
    }

    /// The error as a comparison reports it: data that could not be flushed is not on storage.
    fn judged(&self, error: EntryError) -> EntryError {
        if !error.is_failed_flush() || self.spec.verb != Verb::Verify {
            return error;
        }
        EntryError { class: ErrorClass::Integrity, ..error }
    }

    pub fn note(&self, note: Note, path: impl FnOnce() -> PathBytes) {
        if self.coordinator.is_remote() {
            self.coordinator.tell(|| ReportItem::Note { path: path(), note });
            return;
        }
        self.count(match note {
            Note::OwnerNotKept => Counter::OwnersNotKept,
            Note::SetIdDropped => Counter::SetIdsDropped,
            Note::PrivilegedAttribute => Counter::PrivilegedAttributes,
            Note::LeftoverRemoved => Counter::LeftoversRemoved,
            Note::TemporarySkipped => Counter::TemporariesSkipped,
            Note::SourceAtimeTouched => Counter::SourceAtimesTouched,
            Note::SystemAttribute => Counter::SystemAttributes,
            Note::OpenForWriting => Counter::FilesOpenForWriting,
            Note::OwnerWithoutAccount => Counter::OwnersWithoutAccount,
        });
        self.monitor.event(&Event::Note { path: path(), note, detail: None });
    }

    /// Reports differences that do not count, because this process cannot set them.
    pub fn note_unsettable(&self, kinds: DifferenceSet, path: &PathBytes) {
        for kind in kinds.iter() {
            let note = match kind {
                DifferenceKind::Owner => Note::OwnerNotKept,
                DifferenceKind::Mode => Note::SetIdDropped,
                _ => Note::PrivilegedAttribute,
            };
            self.note(note, || path.clone());
        }
    }

    pub fn loss(&self, kind: LossKind, path: PathBytes, detail: impl Into<String>) {
        let detail = detail.into();
        let (told_path, told_detail) = (&path, &detail);
        let said =
            || ReportItem::Loss { path: told_path.clone(), kind, detail: told_detail.clone() };
        if self.coordinator.tell(said) {
            return;
        }
        let allowed = self.spec.policy.allow_loss.has(kind);
        self.count(if allowed { Counter::LossesAllowed } else { Counter::Losses });
        *lock(&self.tally).losses.entry(kind).or_default() += 1;
        if !allowed {
            tracing::warn!(?path, kind = kind.word(), %detail, "attribute lost");
        }
        self.monitor.event(&Event::Loss { path, kind, detail, allowed });
    }

    /// Whether each entry is to be shown.
    pub fn wants_items(&self) -> bool {
        self.monitor.wants_items()
    }

    /// Passes an event to the monitor, here or at the coordinator.
    pub fn show(&self, event: Event) {
        let said = match event {
            _ if !self.coordinator.is_remote() => return self.monitor.event(&event),
            Event::Item(item) => ReportItem::Item(item),
            Event::Digest(digest) => ReportItem::Digest(digest),
            Event::Checked { path, number, verdict, guessed } => {
                ReportItem::Checked { path, number, verdict: verdict.into(), guessed }
            }
            Event::Difference(difference) => ReportItem::Difference(difference),
            // The coordinator derives these from other reports, or is the only one that has them.
            Event::Start { .. }
            | Event::Error(_)
            | Event::Loss { .. }
            | Event::Note { .. }
            | Event::Limit(_)
            | Event::Withheld { .. }
            | Event::Movers { .. }
            | Event::Unlocked { .. }
            | Event::Paused { .. } => return,
        };
        self.coordinator.tell(|| said);
    }

    /// Records that content was copied, so errors are not systemic.
    pub fn progress(&self) {
        if self.troubled.load(Ordering::Acquire) {
            let mut breaker = lock(&self.breaker);
            self.troubled.store(false, Ordering::Release);
            breaker.success();
        }
    }

    /// Takes the numbers of a remote mover, as if they had come from here.
    pub fn hear(&self, told: &mut MoverReport) {
        if told.shows_progress() {
            self.progress();
        }
        for (cell, amount) in std::mem::take(&mut told.cells) {
            self.counters.add_to_cell(usize::from(cell), amount);
        }
        for (index, amount) in std::mem::take(&mut told.counts) {
            if let Some(counter) = Counter::ALL.get(usize::from(index)) {
                self.add(*counter, amount);
            }
        }
        for Slow { elapsed_us, bytes, path } in std::mem::take(&mut told.slow) {
            self.slowest.note(elapsed_us, bytes, || path);
        }
    }

    /// The counts of errors and losses so far.
    pub fn tally(&self) -> Tally {
        lock(&self.tally).clone()
    }

    /// Takes the errors that are not in the journal yet.
    pub fn take_unrecorded(&self) -> Vec<EntryError> {
        std::mem::take(&mut lock(&self.unrecorded))
    }
}

impl dmover_tree::Reports for Reports {
    fn add(&self, counter: Counter, amount: u64) {
        self.add(counter, amount);
    }

    fn note(&self, note: Note, path: &dyn Fn() -> PathBytes) {
        self.note(note, path);
    }

    fn loss(&self, kind: LossKind, path: PathBytes, detail: String) {
        self.loss(kind, path, detail);
    }
}

/// Writes an error to the log. An entry that was not attempted is no error of its own.
fn log(error: &EntryError) {
    let EntryError { path, operation, class, errno, attempt, .. } = error;
    if *class == ErrorClass::Cancelled {
        tracing::debug!(?path, "entry not attempted");
    } else {
        let class = class.word();
        tracing::warn!(?path, ?operation, class, errno, attempt, reason = %error, "entry failed");
    }
}
