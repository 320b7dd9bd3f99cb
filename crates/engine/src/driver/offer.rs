//! The offer of a job to remote movers.
use dmover_journal::StateDirectory;
use dmover_local::root::Resolved;
use dmover_local::trash::Trash;
use dmover_model::{Fatal, JobId, Name, PathBytes};

use super::{Job, JobList};
use crate::delete_guard::Guard;
use crate::fleet::{JobOffer, Place, RootsKind};
use crate::run_facts::RunFacts;

impl RootsKind {
    /// How movers find the roots of a job.
    pub(super) fn of(job: &Job) -> Self {
        match &job.list {
            JobList::Records(_) => Self::Checked,
            _ if job.spec.verb.has_destination() => Self::Pairs,
            _ => Self::Sources,
        }
    }
}

/// Whether movers at other hosts can copy chunks of a job: it may have large files that nothing else writes to.
fn has_chunks(job: &Job) -> bool {
    let sync = job.spec.policy.sync.as_ref();
    let is_snapshot = sync.is_some_and(|sync| sync.snapshot.is_some());
    let is_pairs = matches!(job.list, JobList::Pairs(_));
    job.spec.verb.fills() && !job.spec.policy.dry_run && !is_snapshot && !is_pairs
}

/// Creates the offer of a job. `None`: other hosts have nothing to do.
pub(super) fn offer(
    job: &Job,
    id_and_run: (&JobId, u64),
    parts: (&Resolved, &Guard),
    facts: RunFacts,
    spared: Vec<Name>,
) -> Result<Option<JobOffer>, Fatal> {
    if job.fleets.is_none() {
        let facts = RunFacts { is_elsewhere: true, flushes_chunks: true, ..facts };
        let of_chunks = || {
            let mut offer = offer_of(job, id_and_run, parts, facts, spared)?;
            offer.spec.limits.threads = job.spec.limits.threads;
            Ok(offer)
        };
        return has_chunks(job).then(of_chunks).transpose();
    }
    let refuse = |what: &str, hint: &str| Err(Fatal::refused(what, hint));
    if matches!(job.list, JobList::Pairs(_)) {
        let hint = "omit --broker; a single process copies such a list";
        return refuse("--broker does not support a list of pairs yet", hint);
    }
    if job.spec.policy.sync.as_ref().is_some_and(|sync| sync.snapshot.is_some()) {
        let hint = "omit --broker; a single process makes the snapshot";
        return refuse("--broker does not support snapshots yet", hint);
    }
    if job.spec.policy.inplace {
        let hint = "omit --inplace or --broker";
        let what = "--inplace does not work with --broker: a mover that lost its connection could \
            write into a file that another mover has finished";
        return refuse(what, hint);
    }
    offer_of(job, id_and_run, parts, facts, spared).map(Some)
}

fn offer_of(
    job: &Job,
    (id, run): (&JobId, u64),
    (resolved, guard): (&Resolved, &Guard),
    facts: RunFacts,
    spared: Vec<Name>,
) -> Result<JobOffer, Fatal> {
    let mut spec = job.spec.clone();
    let directory = std::env::current_dir().map_err(|error| {
        let hint = "change to an existing directory";
        Fatal::refused(format!("cannot determine the current directory: {error}"), hint)
    })?;
    let repairs = spec.policy.verify.as_ref().is_some_and(|verify| verify.repair);
    let writes = (spec.verb.fills() || repairs) && !spec.policy.dry_run;
    // These are each mover's own.
    spec.limits.threads = 0;
    let state = job.files.state.as_ref().and_then(StateDirectory::real_path);
    Ok(JobOffer {
        // What writes nothing may be done any number of times at once.
        key: if writes { id.0.clone() } else { format!("{id}-{run:016x}") },
        job: id.clone(),
        run,
        spec,
        directory: PathBytes::from(directory.as_os_str()),
        uid: dmover_host::user::effective_uid(),
        capabilities: dmover_host::user::capabilities_that_matter(),
        kind: RootsKind::of(job),
        placement: resolved.placement,
        places: if writes {
            resolved.targets.iter().filter_map(|target| Place::of(target)).collect()
        } else {
            Vec::new()
        },
        boot: dmover_host::boot_id(),
        facts,
        spared,
        state: state.zip(guard.state()).map(|(path, own)| (PathBytes::from(path.as_os_str()), own)),
        trash: guard.trash().map(Trash::name).map(str::to_owned),
        records: job.manifest.as_ref().map(|manifest| manifest.is_of_written()),
        wants_items: job.observers.monitor.wants_items(),
        has_waited: false,
    })
}
