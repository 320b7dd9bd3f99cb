//! What movers report: counted and shown here, or collected for a coordinator in another process.
use dmover_model::{
    Answer, CoordinatorRequest, EntryError, ErrorClass, Event, LossKind, Note, Operation,
    PathBytes, Side, TreePath, Verb,
};
use dmover_observe::{Counter, Slow, Spread, lock};
use dmover_tree::Reports;
use std::sync::atomic::Ordering;

use super::Engine;
use crate::control::StopReason;
use crate::mover_report::{
    ReportItem, collect_count, collect_had, collect_item, collect_slow, collect_spread,
};

impl Engine {
    pub(crate) fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    pub(crate) fn add(&self, counter: Counter, amount: u64) {
        self.counters.add(counter, amount);
        self.tell_count(counter, amount);
    }

    /// Adds a value to a histogram: microseconds or bytes.
    pub(crate) fn spread(&self, spread: Spread, value: u64) {
        self.counters.note(spread, value);
        self.tell_spread(spread, value);
    }

    /// Reports an entry that failed for good.
    pub(crate) fn error(&self, error: EntryError) {
        let error = self.unless_lost(error);
        // The coordinator decides whether a host's error counts, and informs its guard then.
        if self.desk.is_none() || !error.may_be_the_hosts() {
            self.guard.heard(&error);
        }
        if self.tell(|| ReportItem::Error(error.clone())) {
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
        let error = self.judged(error);
        // First, so that a status never counts an error that is not listed yet.
        if let Some(failures) = &self.failures {
            failures.note(&error);
        }
        *lock(&self.tally).errors.entry(error.class).or_default() += 1;
        // What was not attempted is no error of its entry: the journal has it as a task.
        if self.keeps_journal && error.class != ErrorClass::Cancelled {
            lock(&self.unrecorded).push(error.clone());
            if self.history.suspect_since.is_some() {
                // It was to be compared, since an earlier pass was cut off, and the end of this one ends that.
                let path = self.tree_path(&error);
                self.doubt(path.unwrap_or_else(TreePath::root));
            }
        }
        log(&error);
        self.monitor.event(&Event::Error(error));
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

    /// Records that the next pass must compare this path.
    pub(crate) fn doubt(&self, path: TreePath) {
        if self.tell(|| ReportItem::Doubt(path.clone())) {
            return;
        }
        match &self.open_files {
            Some(files) => files.note(&path),
            None if self.keeps_journal => lock(&self.doubts).push(path),
            None => {}
        }
    }

    /// The error as a comparison reports it: data that could not be flushed is not on storage.
    fn judged(&self, error: EntryError) -> EntryError {
        let flush = error.operation == Operation::Sync && error.side == Side::Destination;
        if !flush || self.spec.verb != Verb::Verify {
            return error;
        }
        EntryError { class: ErrorClass::Integrity, ..error }
    }

    pub(crate) fn note(&self, note: Note, path: impl FnOnce() -> PathBytes) {
        if self.desk.is_some() {
            self.tell(|| ReportItem::Note { path: path(), note });
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
        });
        self.monitor.event(&Event::Note { path: path(), note });
    }

    pub(crate) fn loss(&self, kind: LossKind, path: PathBytes, detail: impl Into<String>) {
        let detail = detail.into();
        let (told_path, told_detail) = (&path, &detail);
        let said =
            || ReportItem::Loss { path: told_path.clone(), kind, detail: told_detail.clone() };
        if self.tell(said) {
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

    /// Asks the coordinator, if it is another process.
    pub(crate) fn ask(&self, question: impl FnOnce() -> CoordinatorRequest) -> Option<Answer> {
        self.desk.as_ref().and_then(|desk| desk.ask(question()))
    }
}

impl Engine {
    /// Reports to the coordinator. Returns whether it is remote; otherwise the caller must handle the report.
    pub(crate) fn tell(&self, said: impl FnOnce() -> ReportItem) -> bool {
        if self.desk.is_some() {
            collect_item(said());
        }
        self.desk.is_some()
    }

    /// Counts for a remote coordinator.
    pub(crate) fn tell_count(&self, counter: Counter, amount: u64) {
        if self.desk.is_some() {
            collect_count(counter, amount);
        }
    }

    /// Adds a value to a histogram of a remote coordinator.
    pub(crate) fn tell_spread(&self, spread: Spread, value: u64) {
        if self.desk.is_some() {
            collect_spread(spread, value);
        }
    }

    /// Records a copied or read entry.
    pub(crate) fn tell_done(&self, elapsed_us: u64, bytes: u64) {
        self.spread(Spread::EntryDuration, elapsed_us);
        self.spread(Spread::EntrySize, bytes);
    }

    pub(crate) fn tell_slow(&self, elapsed_us: u64, bytes: u64, path: impl FnOnce() -> PathBytes) {
        if self.desk.is_none() {
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

    /// Counts source entries that the destination had before this pass: a limit in percent includes them.
    pub(crate) fn tell_had(&self, entries: u64) {
        if self.delete_policy().is_none() {
            return;
        }
        self.guard.had(entries);
        if self.desk.is_some() {
            collect_had(entries);
        }
    }

    /// Passes an event to the monitor, here or at the coordinator.
    pub(crate) fn show(&self, event: Event) {
        let said = match event {
            _ if self.desk.is_none() => return self.monitor.event(&event),
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
        self.tell(|| said);
    }
}

impl Reports for Engine {
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
