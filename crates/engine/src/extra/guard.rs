//! The guard of deletes: a source that is missing or unreadable looks like an empty one.
use dmover_local::root::Root;
use dmover_model::{
    Answer, CoordinatorRequest, DeleteLimit, EntryError, ErrorClass, Event, ExtraNames, Fatal,
    OnTheWay, Operation, PathBytes, Side, WithheldReason,
};
use dmover_observe::{Counter, lock};
use dmover_schedule::time::Instant;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::context::Engine;
use crate::delete_guard::{Guard, Withheld};
use crate::mover_report::ReportItem;

/// The greatest age of the mount check.
const LOOK_EVERY: Duration = Duration::from_millis(200);

impl Guard {
    /// A file system of the source that was unmounted since the pass began: its entries look removed.
    pub fn unmounted(&self, engine: &Engine) -> Option<WithheldReason> {
        let mut looked = lock(&self.looked);
        if looked.as_ref().is_none_or(|(then, _)| then.elapsed() >= LOOK_EVERY) {
            let below = !engine.spec.selection.one_file_system;
            let root = engine.places.roots.ids().next().and_then(|id| engine.root(id).ok());
            let missing = root
                .and_then(|root| root.source.here()?.missing_mount(&engine.places.base, below))
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
        if engine.reports.coordinator.is_remote() {
            // How many may go, and what others could not read, the coordinator knows.
            let Some(Answer::OnTheWay(answer)) =
                engine.reports.coordinator.ask(|| CoordinatorRequest::OnTheWay(names))
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
        let limit = engine.spec.delete_policy().and_then(|policy| policy.limit);
        match limit.filter(|_| !self.allowance.take(names)) {
            Some(limit) => OnTheWay::Stay(WithheldReason::Limit(limit)),
            None => OnTheWay::Go,
        }
    }

    /// Why nothing may be deleted, if so.
    pub fn withholds_all(&self, engine: &Engine) -> Option<WithheldReason> {
        if let Some(doubt) = self.doubts(engine) {
            return Some(doubt);
        }
        let extra = engine.reports.counters.get(Counter::EntriesExtra) + self.gone;
        if let Some(unmeant) = self.unmeant(extra).filter(|_| !self.asks.only_listed) {
            return Some(unmeant);
        }
        let limit = engine.spec.delete_policy().and_then(|policy| policy.limit)?;
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
        let extra = engine.reports.counters.get(Counter::EntriesExtra) + self.gone;
        refused.or_else(|| self.unmeant(extra))
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
    let source = root.source.here();
    let missing = source.and_then(|source| source.missing_mount(Path::new(""), !one_file_system));
    if let Some(mount) = missing {
        return Some(not_mounted(&mount));
    }
    let remote = root.source.remote();
    if let Some(mount) = remote.and_then(|tree| tree.root().missing_mount.as_ref()) {
        return Some(not_mounted(&mount.to_path()));
    }
    // An unreadable source is reported when it is scanned.
    (!may_be_empty && root.source.is_empty()).then_some(WithheldReason::Empty)
}

/// Refuses a destination on a mount point whose file system is not mounted: the data would fill the file system below.
pub(crate) fn refuse_missing_destination(root: &Root) -> Result<(), Fatal> {
    let Some(side) = &root.destination else { return Ok(()) };
    match side.missing_mount_above() {
        None => Ok(()),
        Some(point) => {
            let (point, shown) = (point.display(), side.display().to_path());
            let message = format!("'{}': {point} is in fstab but not mounted", shown.display());
            Err(Fatal::refused(message, "mount it, or remove it from /etc/fstab"))
        }
    }
}

/// Adds an entry that would be deleted to the reason.
pub(crate) fn name_example(engine: &Engine, reason: &mut WithheldReason, names: &[ExtraNames]) {
    let WithheldReason::Unmeant(_, example) = reason else { return };
    if let Some(extra) = names.first().filter(|_| example.0.is_empty())
        && let Some(name) = extra.names.first()
    {
        let at = &extra.directory;
        let place = at.path.join_path(&extra.below);
        *example = engine.destination_path(at.root, &place, name.name.as_bytes());
    }
}

/// In a dry run, records whether a real run would ask for a confirmation.
pub(crate) fn foretell_withheld(engine: &Engine) {
    if let Some(reason) = engine.pass.guard.foretold(engine) {
        withhold(engine, &[], &reason);
    }
}

/// Records that these names stay. An entry that needs one of these places is reported as an error.
pub(crate) fn withhold(engine: &Engine, names: &[ExtraNames], reason: &WithheldReason) {
    if engine.reports.coordinator.tell(|| ReportItem::Withheld(names.to_vec(), reason.clone())) {
        return;
    }
    let mut withheld = lock(&engine.pass.guard.withheld);
    if withheld.is_none() {
        let (words, advice) = (reason.words(), reason.advice().to_owned());
        let dry_run = engine.spec.policy.dry_run;
        let deleted =
            if dry_run { 0 } else { engine.reports.counters.get(Counter::EntriesDeleted) };
        engine.reports.show(Event::Withheld { reason: words, advice, deleted, dry_run });
    }
    let kept = withheld.get_or_insert_with(|| Withheld { reason: reason.clone(), entries: 0 });
    for extra in names {
        kept.entries += extra.names.len() as u64;
        engine.reports.add(Counter::DeletesWithheld, extra.names.len() as u64);
        if !(extra.in_the_way && extra.below.is_root()) {
            continue;
        }
        for name in &extra.names {
            let at = &extra.directory;
            let path = engine.destination_path(at.root, &at.path, name.name.as_bytes());
            let words =
                format!("an entry of another type has to replace it, but {}", reason.words());
            let (side, class) = (Side::Destination, ErrorClass::TypeConflict);
            engine.error(EntryError::plain(side, Operation::Unlink, class, path, words));
        }
    }
}
