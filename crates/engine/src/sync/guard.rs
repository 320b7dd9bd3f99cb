//! The guard of deletes: a source that is missing or unreadable looks like an empty one.
use dmover_model::{
    Answer, CoordinatorRequest, DeleteLimit, DeletePolicy, EntryError, ErrorClass, Event,
    ExtraNames, Fatal, Identity, OnTheWay, Operation, PathBytes, Side, Unmeant, WithheldReason,
};
use dmover_observe::{Counter, lock};
use dmover_plan::overlap::{missing_mount, parse_mountinfo};
use dmover_sys::directory::DirectoryReader;
use dmover_sys::{Errno, mount, path};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::meant::FEW;
use super::trash::Trash;
use crate::context::Engine;
use crate::mover_report::ReportItem;
use crate::root::Root;

/// The greatest age of the mount check.
const LOOK_EVERY: Duration = Duration::from_millis(200);

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
    doubt: Option<WithheldReason>,
    trash: Option<Trash>,
    /// The state directory, which may be inside the destination.
    state: Option<Identity>,
    /// Errors that hide a part of the source.
    blind: AtomicU64,
    /// Entries that both sides have and that the destination had before this pass.
    had: AtomicU64,
    /// The most entries that count: those that the destination had when deletes were last withheld for their share.
    counted: Counted,
    /// Entries that may still be deleted, if they are deleted at once.
    allowance: Allowance,
    /// Entries deleted at once so far without a confirmation.
    let_go: AtomicU64,
    /// Entries deleted before by the same command.
    gone: u64,
    /// Whether deletes need a confirmation, and the reasons against them.
    asks: Asks,
    withheld: Mutex<Option<Withheld>>,
    /// The result of the last mount check.
    looked: Mutex<Option<(Instant, Option<WithheldReason>)>>,
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
    fn take(&self, wanted: u64) -> bool {
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
    fn had_before(&self) -> u64 {
        self.had_so_far().min(self.counted.0)
    }

    pub fn asking(self, asks: Asks) -> Self {
        Self { asks, ..self }
    }

    /// The reason against deletes that were not confirmed.
    fn unmeant(&self, extra: u64) -> Option<WithheldReason> {
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

    /// A file system of the source that was unmounted since the pass began: its entries look removed.
    pub fn unmounted(&self, engine: &Engine) -> Option<WithheldReason> {
        let mut looked = lock(&self.looked);
        if looked.as_ref().is_none_or(|(then, _)| then.elapsed() >= LOOK_EVERY) {
            let below = !engine.spec.selection.one_file_system;
            let root = engine.roots.ids().next().and_then(|id| engine.root(id).ok());
            let missing = root
                .and_then(|root| missing(&engine.base, &root, below))
                .map(|mount| not_mounted(&mount));
            *looked = Some((Instant::now(), missing));
        }
        looked.as_ref().and_then(|(_, reason)| reason.clone())
    }

    fn doubts(&self, engine: &Engine) -> Option<WithheldReason> {
        if let Some(doubt) = self.doubt.clone().or_else(|| self.unmounted(engine)) {
            return Some(doubt);
        }
        match self.blind.load(Ordering::SeqCst) {
            0 if engine.control.is_stopping() => Some(WithheldReason::Stopped),
            0 => None,
            errors => Some(WithheldReason::SourceErrors(errors)),
        }
    }

    /// Whether names that were just found may be deleted now.
    pub fn on_the_way(&self, engine: &Engine, names: u64) -> OnTheWay {
        if let Some(doubt) = self.doubts(engine) {
            return OnTheWay::Stay(doubt);
        }
        if engine.desk.is_some() {
            // How many may go, and what others could not read, the coordinator knows.
            let Some(Answer::OnTheWay(answer)) = engine.ask(|| CoordinatorRequest::OnTheWay(names))
            else {
                return OnTheWay::Stay(WithheldReason::Stopped);
            };
            return answer;
        }
        if self.asks.foreign && !self.asks.only_listed {
            return self.unmeant(names).map_or(OnTheWay::Go, OnTheWay::Stay);
        }
        if self.asks_for_half() && !self.lets_go(names) {
            return OnTheWay::Wait;
        }
        let limit = engine.delete_policy().and_then(|policy| policy.limit);
        match limit.filter(|_| !self.allowance.take(names)) {
            Some(limit) => OnTheWay::Stay(WithheldReason::Limit(limit)),
            None => OnTheWay::Go,
        }
    }

    /// Whether the share of deletes matters.
    pub fn asks_for_half(&self) -> bool {
        self.asks.half && !self.asks.only_listed
    }

    /// Allows deletes while they are no more than the entries that are known to stay, so that the question can still be
    /// asked at the end.
    fn lets_go(&self, names: u64) -> bool {
        let most = self.had_before().max(FEW);
        let more = |gone: u64| gone.checked_add(names).filter(|gone| *gone <= most);
        self.let_go.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    /// Why nothing may be deleted, if so.
    pub fn withholds_all(&self, engine: &Engine) -> Option<WithheldReason> {
        if let Some(doubt) = self.doubts(engine) {
            return Some(doubt);
        }
        let extra = engine.counters.get(Counter::EntriesExtra) + self.gone;
        if let Some(unmeant) = self.unmeant(extra).filter(|_| !self.asks.only_listed) {
            return Some(unmeant);
        }
        let limit = engine.delete_policy().and_then(|policy| policy.limit)?;
        let too_many = match limit {
            DeleteLimit::Entries(most) => extra > most,
            DeleteLimit::Millionths(share) => {
                // What this pass brings is not part of what the destination had.
                let before = self.had_before() + extra;
                u128::from(extra) * 1_000_000 > u128::from(before) * u128::from(share)
            }
        };
        too_many.then_some(WithheldReason::Limit(limit))
    }

    /// Why a real run would delete nothing, although the dry run has listed extra entries.
    fn foretold(&self, engine: &Engine) -> Option<WithheldReason> {
        if !self.asks.only_listed || engine.control.is_stopping() {
            return None;
        }
        let refused = self.asks.refused.clone();
        let refused = refused.map(|(message, hint)| WithheldReason::Refused { message, hint });
        let extra = engine.counters.get(Counter::EntriesExtra) + self.gone;
        refused.or_else(|| self.unmeant(extra))
    }

    /// What was withheld so far.
    pub fn withheld(&self) -> Option<Withheld> {
        lock(&self.withheld).clone()
    }
}

fn not_mounted(mount: &Path) -> WithheldReason {
    WithheldReason::NotMounted(PathBytes::from(mount.as_os_str()))
}

/// Doubts about a source before anything is read.
pub(crate) fn doubt(
    root: &Root,
    may_be_empty: bool,
    one_file_system: bool,
) -> Option<WithheldReason> {
    if let Some(mount) = missing(Path::new(""), root, !one_file_system) {
        return Some(not_mounted(&mount));
    }
    (!may_be_empty && is_empty(root)).then_some(WithheldReason::Empty)
}

/// Whether the source has no entries. An unreadable source is reported when it is scanned.
pub(crate) fn is_empty(root: &Root) -> bool {
    let mut any = false;
    let read = path::open_directory_at(&root.source.parent, b".").and_then(|fd| {
        DirectoryReader::default().read(&fd, |_, _| -> Result<bool, Errno> {
            any = true;
            Ok(false)
        })
    });
    read.is_ok() && !any
}

/// A file system that should be mounted at the source, above it or in it, and is not.
fn missing(base: &Path, root: &Root, below: bool) -> Option<PathBuf> {
    let source = base.join(root.source.display().to_path());
    let source = mount::path_of(path::open_directory(&source).ok()?)?;
    missing_at(&source, below)
}

fn missing_at(tree: &Path, below: bool) -> Option<PathBuf> {
    missing_mount(&mount::fstab(), &parse_mountinfo(&mount::mountinfo()), tree, below)
}

/// Refuses a destination on a mount point whose file system is not mounted: the data would fill the file system below.
pub(crate) fn refuse_missing_destination(root: &Root) -> Result<(), Fatal> {
    let Some(side) = &root.destination else { return Ok(()) };
    let Some(parent) = mount::path_of(&side.parent) else { return Ok(()) };
    let name = side.name.as_ref().map(|name| OsStr::from_bytes(name.as_bytes()));
    let place = name.map_or_else(|| parent.clone(), |name| parent.join(name));
    match missing_at(&place, false) {
        None => Ok(()),
        Some(point) => {
            let (point, shown) = (point.display(), side.display().to_path());
            let message = format!("'{}': {point} is in fstab but not mounted", shown.display());
            Err(Fatal::refused(message, "mount it, or remove it from /etc/fstab"))
        }
    }
}

impl Engine {
    pub(crate) fn delete_policy(&self) -> Option<&DeletePolicy> {
        self.spec.policy.sync.as_ref()?.delete.as_ref()
    }

    /// Adds an entry that would be deleted to the reason.
    pub(crate) fn name_example(&self, reason: &mut WithheldReason, names: &[ExtraNames]) {
        let WithheldReason::Unmeant(_, example) = reason else { return };
        if let Some(extra) = names.first().filter(|_| example.0.is_empty())
            && let Some(name) = extra.names.first()
        {
            let at = &extra.directory;
            let place = at.path.join_path(&extra.below);
            *example = self.destination_path(at.root, &place, name.name.as_bytes());
        }
    }

    /// In a dry run, records whether a real run would ask for a confirmation.
    pub(crate) fn foretell_withheld(&self) {
        if let Some(reason) = self.guard.foretold(self) {
            self.withhold(&[], &reason);
        }
    }

    /// Records that these names stay. An entry that needs one of these places is reported as an error.
    pub(crate) fn withhold(&self, names: &[ExtraNames], reason: &WithheldReason) {
        if self.tell(|| ReportItem::Withheld(names.to_vec(), reason.clone())) {
            return;
        }
        let mut withheld = lock(&self.guard.withheld);
        if withheld.is_none() {
            let (words, advice) = (reason.words(), reason.advice().to_owned());
            let dry_run = self.spec.policy.dry_run;
            let deleted = if dry_run { 0 } else { self.counters.get(Counter::EntriesDeleted) };
            self.monitor.event(&Event::Withheld { reason: words, advice, deleted, dry_run });
        }
        let kept = withheld.get_or_insert_with(|| Withheld { reason: reason.clone(), entries: 0 });
        for extra in names {
            kept.entries += extra.names.len() as u64;
            self.add(Counter::DeletesWithheld, extra.names.len() as u64);
            if !(extra.in_the_way && extra.below.is_root()) {
                continue;
            }
            for name in &extra.names {
                let at = &extra.directory;
                let path = self.destination_path(at.root, &at.path, name.name.as_bytes());
                let words =
                    format!("an entry of another type has to replace it, but {}", reason.words());
                let (side, class) = (Side::Destination, ErrorClass::TypeConflict);
                self.error(EntryError::plain(side, Operation::Unlink, class, path, words));
            }
        }
    }
}
