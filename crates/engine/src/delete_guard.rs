//! What is known about whether deletes are meant: a source that is missing or unreadable looks like an empty one.
use dmover_local::trash::Trash;
use dmover_model::{
    DeleteLimit, DeletePolicy, EntryError, ErrorClass, Identity, PathBytes, Side, Unmeant,
    WithheldReason,
};
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use dmover_schedule::time::Instant;
use std::sync::atomic::{AtomicU64, Ordering};

/// This many entries may be deleted without a question, whatever their share.
pub(crate) const FEW: u64 = 100;

/// What was not deleted, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Withheld {
    /// Why.
    pub reason: WithheldReason,
    /// Number of entries that stay.
    pub entries: u64,
}

/// The guard of deletes.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    /// A reason that was known before the job began.
    pub doubt: Option<WithheldReason>,
    trash: Option<Trash>,
    /// The state directory, which may be inside the destination.
    state: Option<Identity>,
    /// Errors that hide a part of the source.
    pub blind: AtomicU64,
    /// Entries that both sides have and that the destination had before this pass.
    had: AtomicU64,
    /// The most entries that count: those that the destination had when deletes were last withheld for their share.
    counted: Counted,
    /// Entries that may still be deleted, if they are deleted at once.
    pub allowance: Allowance,
    /// Entries deleted at once so far without a confirmation.
    let_go: AtomicU64,
    /// Entries deleted before by the same command.
    pub gone: u64,
    /// Whether deletes need a confirmation, and the reasons against them.
    pub asks: Asks,
    pub withheld: Mutex<Option<Withheld>>,
    /// The result of the last mount check.
    pub looked: Mutex<Option<(Instant, Option<WithheldReason>)>>,
}

/// The question about deletes that were not confirmed.
#[derive(Debug, Default, Clone)]
pub(crate) struct Asks {
    /// In a dry run: extra entries are listed in any case, and the summary says that a real run would ask.
    pub only_listed: bool,
    /// Why a real run would be refused before it begins, and what to do.
    pub refused: Option<(String, String)>,
    /// The destination had content that no pass of this job has copied.
    pub foreign: bool,
    /// The whole tree is scanned, so the share of deletes is known.
    pub half: bool,
}

/// Entries that may still be deleted.
#[derive(Debug)]
pub(crate) struct Allowance(AtomicU64);

impl Default for Allowance {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

/// The most source entries that the destination is assumed to have had.
#[derive(Debug)]
struct Counted(u64);

impl Default for Counted {
    fn default() -> Self {
        Self(u64::MAX)
    }
}

impl Allowance {
    pub fn take(&self, wanted: u64) -> bool {
        let taken = |left: u64| left.checked_sub(wanted);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken).is_ok()
    }
}

impl Guard {
    pub fn new(
        policy: Option<&DeletePolicy>,
        doubt: Option<WithheldReason>,
        trash: Option<Trash>,
        state: Option<Identity>,
        gone: u64,
    ) -> Self {
        let most = match policy.and_then(|policy| policy.limit) {
            Some(DeleteLimit::Entries(most)) => most.saturating_sub(gone),
            _ => u64::MAX,
        };
        let allowance = Allowance(AtomicU64::new(most));
        let let_go = AtomicU64::new(gone);
        Self { doubt, trash, state, allowance, let_go, gone, ..Self::default() }
    }

    /// Ignores entries that passes have copied since deletes were withheld for their share.
    pub fn counting(self, at_most: Option<u64>) -> Self {
        Self { counted: at_most.map_or_else(Counted::default, Counted), ..self }
    }

    /// The number of entries that the destination had before the pass, besides the extra ones.
    pub fn had_before(&self) -> u64 {
        self.had_so_far().min(self.counted.0)
    }

    pub fn asking(self, asks: Asks) -> Self {
        Self { asks, ..self }
    }

    /// The reason against deletes that were not confirmed.
    pub fn unmeant(&self, extra: u64) -> Option<WithheldReason> {
        let half = || self.asks.half && extra > FEW && extra > self.had_before();
        let why = match () {
            () if extra > 0 && self.asks.foreign => Unmeant::Foreign,
            () if half() => Unmeant::Half,
            () => return None,
        };
        Some(WithheldReason::Unmeant(why, PathBytes::default()))
    }

    pub fn trash(&self) -> Option<&Trash> {
        self.trash.as_ref()
    }

    /// The state directory of the job.
    pub fn state(&self) -> Option<Identity> {
        self.state
    }

    /// Whether this is the state directory of the job.
    pub fn is_state(&self, identity: Identity) -> bool {
        self.state == Some(identity)
    }

    /// Adds source entries that the destination had before the pass copied anything.
    pub fn had(&self, entries: u64) {
        self.had.fetch_add(entries, Ordering::Relaxed);
    }

    /// The number of these entries so far.
    pub fn had_so_far(&self) -> u64 {
        self.had.load(Ordering::Relaxed)
    }

    /// Records an error.
    pub fn heard(&self, error: &EntryError) {
        // What vanished is not there, and what is being written is: both are known.
        let known = error.class.source_moved_on() || error.class == ErrorClass::Cancelled;
        if error.side == Side::Source && !known {
            self.blind.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Takes over from an earlier run of this pass: errors at the source, and entries that the destination had.
    pub fn go_on(&self, errors: u64, had: u64) {
        self.blind.fetch_add(errors, Ordering::SeqCst);
        self.had(had);
    }

    /// Whether the share of deletes matters.
    pub fn asks_for_half(&self) -> bool {
        self.asks.half && !self.asks.only_listed
    }

    /// Allows deletes while they are no more than the entries that are known to stay, so that the question can still be
    /// asked at the end.
    pub fn lets_go(&self, names: u64) -> bool {
        let most = self.had_before().max(FEW);
        let more = |gone: u64| gone.checked_add(names).filter(|gone| *gone <= most);
        self.let_go.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    /// What was withheld so far.
    pub fn withheld(&self) -> Option<Withheld> {
        lock(&self.withheld).clone()
    }
}
