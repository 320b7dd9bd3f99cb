//! Checks before a job starts, and what is recorded about them.
use dmover_digest::manifest::Header;
use dmover_journal::{ErrorList, Failures, LastPass, OpenFiles, StateDirectory};
use dmover_local::mounts::MountTable;
use dmover_local::named_directory::identity_at;
use dmover_local::root::{OverlappingRoots, Resolved, Resolver, Root};
use dmover_local::trash::Trash;
use dmover_model::{
    Confirmed, DirectoryRef, Fatal, Identity, JobId, JobSpec, LossKind, Overwrite, PathBytes,
    Placement, ScanNames, TaskKind, Timestamp, TreePath, Verb, WithheldReason,
};
use dmover_observe::Counter;
use dmover_schedule::time::since_1970;
use std::collections::BTreeMap;
use std::path::PathBuf;

use super::record::{Recording, other_source};
use super::{Job, JobList};
use crate::context::Engine;
use crate::delete_guard::{Asks, Guard};
use crate::extra::{doubt, refuse_unmeant};
use crate::fleet::RootsKind;
use crate::report::JobReport;
use crate::sharing::Sharing;

pub(super) fn header(job: &Job, id: &JobId, resolved: &Resolved) -> Header {
    let mut base = job.spec.destination.to_path();
    let is_file = resolved.roots.first().is_some_and(|root| !root.is_directory);
    if is_file && resolved.placement == Placement::As {
        base = base.parent().map(std::path::Path::to_path_buf).unwrap_or_default();
        if base.as_os_str().is_empty() {
            base = PathBuf::from(".");
        }
    }
    // The manifest may be read from another directory.
    let base = std::path::absolute(&base).unwrap_or(base);
    let now = since_1970();
    Header {
        program: concat!("dmover ", env!("CARGO_PKG_VERSION")).into(),
        job: id.0.clone(),
        base: PathBytes::from(base.as_os_str()).0,
        hash: job.spec.policy.digest.as_ref().map(|policy| policy.hash),
        begun: Timestamp { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() },
    }
}

pub(super) fn remember(
    state: &StateDirectory,
    id: &JobId,
    placement: Placement,
    destination: &std::path::Path,
) {
    if let Err(error) = state.remember(id, placement, destination) {
        tracing::warn!(%error, "cannot record whether the destination is the copy or contains it");
    }
}

/// Losses of earlier runs on entries that were skipped now: equal type, size and time do not make the job complete.
fn losses_still_there(
    state: &StateDirectory,
    report: &JobReport,
    spec: &JobSpec,
    destination: &std::path::Path,
) -> BTreeMap<LossKind, u64> {
    let policy = &spec.policy;
    let looks_at_all = policy.overwrite == Overwrite::Always
        || policy.sync.as_ref().is_some_and(|sync| sync.checksum);
    if report.counters.get(Counter::EntriesSkipped) == 0 || looks_at_all {
        return BTreeMap::new();
    }
    state.losses(&report.job, destination)
}

/// The files that were open for writing when earlier runs of a copy read them. `None`: another verb, which has a journal,
/// or no state.
pub(super) fn open_files(job: &Job, id: &JobId) -> Option<OpenFiles> {
    let state = job.files.state.as_ref().filter(|_| job.spec.verb == Verb::Copy)?;
    Some(OpenFiles::open(state, id, !job.spec.policy.dry_run))
}

/// The list of errors of a run, whose job has to be locked. `None`: its errors go to a journal, or nowhere.
pub(super) fn failures(job: &Job, id: &JobId, has_journal: bool) -> Option<Failures> {
    if let Some((state, whole)) = &job.files.part_of {
        return Some(Failures::new(state, whole, false));
    }
    let state = job.files.state.as_ref().filter(|_| !job.spec.policy.dry_run && !has_journal)?;
    Some(Failures::new(state, id, true))
}

/// Begins the list of errors of a run: that of the run before is removed.
pub(super) fn begin_error_list(job: &Job, id: &JobId, engine: &Engine) {
    match (&engine.reports.failures, &job.files.state) {
        (Some(failures), _) => failures.begin(),
        (None, Some(state)) if engine.facts.keeps_journal => state.forget_errors(id),
        (None, _) => {}
    }
}

/// Where the errors of a run are listed.
pub(super) fn error_list(job: &Job, engine: &Engine) -> ErrorList {
    match (&engine.reports.failures, &job.files.state) {
        (Some(failures), _) => failures.list(),
        (None, Some(state)) if engine.facts.keeps_journal => ErrorList::In(state.path().to_owned()),
        (None, _) => ErrorList::Nowhere,
    }
}

/// Adds losses of earlier runs to a report, and records all losses for the next run.
pub(super) fn settle_losses(
    job: &Job,
    state: &StateDirectory,
    report: &mut JobReport,
    destination: &std::path::Path,
) {
    let mut known = losses_still_there(state, report, &job.spec, destination);
    report.earlier_losses.clone_from(&known);
    report.earlier_losses.retain(|kind, _| !job.spec.policy.allow_loss.has(*kind));
    if job.spec.policy.dry_run {
        return;
    }
    for (kind, count) in &report.losses {
        let known = known.entry(*kind).or_default();
        // Another pass tries the same again.
        let again = job.spec.verb == Verb::Sync;
        *known = if again { *count.max(known) } else { *known + count };
    }
    if let Err(error) = state.remember_losses(&report.job, destination, &known) {
        tracing::warn!(%error, "cannot record the lost attributes");
    }
}

/// The shared state of movers for a job that creates a snapshot.
pub(super) fn sharing(spec: &JobSpec) -> Result<Option<Sharing>, Fatal> {
    let policy = spec.policy.sync.as_ref().and_then(|sync| sync.snapshot.as_ref());
    policy.map(|policy| Sharing::open(policy, spec.policy.dry_run)).transpose()
}

/// Refuses attributes from the command line that the destination cannot hold.
pub(super) fn refuse_what_cannot_be_held(spec: &JobSpec, roots: &[Root]) -> Result<(), Fatal> {
    // A repair does what can be done, and what is left counts as a difference.
    let repairs = spec.verb == Verb::Verify;
    if spec.policy.demanded.is_empty() || spec.policy.dry_run || repairs {
        return Ok(());
    }
    for root in roots {
        let Some(destination) = &root.destination else { continue };
        let display = destination.display().to_path();
        let can = destination.probe().map_err(|reason| {
            Fatal::refused(
                format!(
                    "cannot determine which attributes '{}' supports: {reason}",
                    display.display()
                ),
                "omit --preserve, or check permissions",
            )
        })?;
        let missing: Vec<&str> = spec
            .policy
            .demanded
            .iter()
            .filter(|a| !can.attributes.has(*a) && !may_be_kept(*a))
            .map(dmover_model::Attribute::word)
            .collect();
        if !missing.is_empty() {
            return Err(Fatal::refused(
                format!("'{}' does not support: {}", display.display(), missing.join(", ")),
                "exclude them with --no-preserve, or choose another destination ('dmover doctor' \
                shows what a file system supports)",
            ));
        }
    }
    Ok(())
}

/// Whether an attribute may be kept: without privilege, entries of this user keep their owner, and any other entry is
/// reported as a loss.
fn may_be_kept(attribute: dmover_model::Attribute) -> bool {
    attribute == dmover_model::Attribute::Owner && !dmover_host::user::is_privileged()
}

/// The guard of deletes, if the job has any.
pub(super) fn guard(
    job: &Job,
    id: &JobId,
    (resolved, mounts): (&Resolved, &MountTable),
    last: Option<&LastPass>,
    record: Option<&Recording>,
) -> Result<Guard, Fatal> {
    let policy = job.spec.policy.sync.as_ref();
    let root = resolved.roots.first();
    let Some(delete) = policy.and_then(|sync| sync.delete.as_ref()) else {
        if policy.is_some_and(|sync| sync.snapshot.is_none()) {
            // A later pass may delete.
            asks(job, root, (mounts, None), last, record)?;
        }
        return Ok(Guard::default());
    };
    let one = job.spec.selection.one_file_system;
    let may_be_empty = policy.is_some_and(|policy| policy.allow_empty_source);
    let doubt = root.and_then(|root| doubt(root, may_be_empty, one));
    if policy.is_some_and(|policy| policy.snapshot.is_some()) {
        // The directory of snapshots knows what its source is. Nothing that is doubtful becomes one.
        return match (doubt, root) {
            (Some(doubt), Some(root)) => {
                let source = root.source.display().to_path();
                let message =
                    format!("cannot make a snapshot of '{}': {}", source.display(), doubt.words());
                let hint = "if it should be empty, use --allow-empty-source";
                Err(Fatal::refused(message, hint))
            }
            _ => Ok(Guard::new(Some(delete), None, None, None, 0)),
        };
    }
    let doubt = doubt.or_else(|| other_source(&resolved.roots, last));
    let named = delete.trash.as_ref().filter(|_| !job.spec.policy.dry_run);
    let trash = named.zip(root.and_then(|root| root.destination.as_ref()));
    let to_be_made = trash.is_some_and(|(named, place)| Trash::has_no_place_yet(named, place));
    let doubt = doubt.or_else(|| to_be_made.then_some(WithheldReason::NoTrash));
    let trash = trash.filter(|_| !to_be_made);
    if let Some((named, _)) = trash {
        job.process.bounds.trees.check_place(&named.to_path())?;
    }
    let trash = trash
        .map(|(named, place)| Trash::open(&named.to_path(), place, name_of_run(id)))
        .transpose()?;
    let state = job.files.state.as_ref().and_then(|state| identity_at(state.path(), mounts));
    let gone = job.observers.counters.get(Counter::EntriesDeleted);
    let asks = asks(job, root, (mounts, state), last, record)?;
    let guard = Guard::new(Some(delete), doubt, trash, state, gone).asking(asks);
    Ok(guard.counting(last.and_then(|last| last.had_when_withheld)))
}

/// The question to ask about deletes. Refuses deletes that look like a habit of other tools, before anything is done.
fn asks(
    job: &Job,
    root: Option<&Root>,
    (mounts, state): (&MountTable, Option<Identity>),
    last: Option<&LastPass>,
    record: Option<&Recording>,
) -> Result<Asks, Fatal> {
    let delete = job.spec.policy.sync.as_ref().and_then(|sync| sync.delete.as_ref());
    let (Some(root), JobList::None) = (root, &job.list) else {
        return Ok(Asks::default());
    };
    // A further pass of the same command keeps the permission of the first one.
    let is_new = last.is_none() && job.before.is_zero();
    let only_listed = job.spec.policy.dry_run;
    // A limit on the command line confirms that what this job has brought may go.
    let is_own = last.is_some_and(|last| !last.is_foreign);
    let asks_for_copy = delete.is_some_and(|delete| match delete.confirmed {
        Confirmed::All => false,
        Confirmed::Limit => !is_own,
        Confirmed::None => true,
    });
    let asked = (is_new, asks_for_copy);
    let (has_content, refused) =
        match refuse_unmeant(&job.spec.selection, root, (mounts, state), delete, asked) {
            Err(Fatal::Unmeant { message, hint }) if only_listed => (true, Some((message, hint))),
            answer => (answer?, None),
        };
    let foreign = match record {
        Some(record) if is_new && has_content => record.note_foreign().map(|()| true)?,
        _ if is_new => has_content,
        _ => last.is_some_and(|last| last.is_foreign),
    };
    Ok(match delete {
        Some(delete) if delete.confirmed == Confirmed::All => Asks::default(),
        None => Asks::default(),
        Some(delete) => {
            let asks = delete.confirmed == Confirmed::None;
            Asks { only_listed, refused, foreign: foreign && asks, half: asks }
        }
    })
}

/// Paths of a list in one task.
pub(super) const SHARD: usize = 1000;

/// Tasks that scan these paths below each root.
pub(super) fn scans_of(paths: &[TreePath], engine: &Engine) -> Vec<TaskKind> {
    let of_root = |root| {
        paths.chunks(SHARD).map(move |shard| TaskKind::Scan {
            directory: DirectoryRef::of_root(root),
            names: ScanNames::Paths(shard.to_vec()),
        })
    };
    engine.places.roots.ids().flat_map(of_root).collect()
}

/// The first tasks of a job.
pub(super) fn first_tasks(list: &JobList, engine: &Engine) -> Vec<TaskKind> {
    let all_roots = || engine.places.roots.ids();
    match list {
        // All are supplied: records come first, then a scan for other entries.
        JobList::Records(_) | JobList::Failed(_) => Vec::new(),
        JobList::None | JobList::Sums(_) => all_roots()
            .map(|root| TaskKind::Scan {
                directory: DirectoryRef::of_root(root),
                names: ScanNames::Root,
            })
            .collect(),
        JobList::Paths(paths) => scans_of(paths, engine),
        JobList::Changed(places) => {
            let tasks = places.chunks(SHARD).flat_map(|shard| {
                let names = ScanNames::Changed(shard.to_vec());
                let scan = move |root| TaskKind::Scan {
                    directory: DirectoryRef::of_root(root),
                    names: names.clone(),
                };
                all_roots().map(scan)
            });
            tasks.collect()
        }
        JobList::Pairs(pairs) => {
            pairs.chunks(SHARD).map(|shard| TaskKind::Pairs(shard.to_vec())).collect()
        }
    }
}

/// The name of a run's directory in the trash: its start time (in UTC, without colons), and the job.
fn name_of_run(job: &JobId) -> String {
    format!("{}-{job}", jiff::Timestamp::now().strftime("%Y-%m-%dT%H-%M-%SZ"))
}

/// The roots of a job. Those of a batch list are resolved when their line is read.
pub(super) fn resolve(
    job: &Job,
    mounts: &MountTable,
    remembered: Option<Placement>,
) -> Result<Resolved, Fatal> {
    if matches!(job.list, JobList::Pairs(_)) {
        let (roots, sources, targets) = Default::default();
        let (placement, meetings) = (Placement::As, OverlappingRoots::default());
        return Ok(Resolved { roots, placement, meetings, sources, targets });
    }
    RootsKind::of(job).resolve(&Resolver {
        spec: &job.spec,
        mounts,
        remembered,
        privileged: job.process.bounds.permits_clones(),
        base: std::path::Path::new(""),
        bounds: &job.process.bounds.trees,
        remote: job.remote.as_deref(),
    })
}
