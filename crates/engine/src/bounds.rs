//! The trees and verbs that a process accepts, whatever a job demands.
use dmover_local::allowed_trees::{AllowedBy, AllowedTrees};
use dmover_model::{CopyPolicy, Fatal, FollowLinks, JobSpec, Selection, SyncPolicy, Verb};
use std::path::PathBuf;

/// The word for `verify --repair`, which writes.
pub const REPAIR: &str = "repair";

/// Trees and verbs that a process accepts.
#[derive(Debug, Clone, Default)]
pub struct Bounds {
    /// Trees in which the roots of a job may lie.
    pub(crate) trees: AllowedTrees,
    /// `None`: all of them.
    verbs: Option<Vec<String>>,
    /// The ports at which the process may listen for data streams; `None`: all of them.
    ports: Option<(u16, u16)>,
}

/// The most movers and the most memory that a client of an agent may ask for.
const THREADS_MAX: usize = 1024;
const MEMORY_MAX: u64 = 16 << 30;

impl Bounds {
    /// What a mover accepts. `roots`: existing directories; `verbs`: verbs by their words, and [`REPAIR`]. An empty list
    /// accepts everything.
    ///
    /// # Errors
    /// A directory cannot be opened.
    pub fn of_mover(roots: &[PathBuf], verbs: Vec<String>) -> Result<Self, Fatal> {
        let verbs = (!verbs.is_empty()).then_some(verbs);
        Ok(Self { trees: AllowedTrees::of_mover(roots)?, verbs, ports: None })
    }

    /// What an agent accepts from a client, and nothing else: the trees that it may read, those that it may write, verbs, and
    /// the ports at which it may listen.
    ///
    /// # Errors
    /// A directory cannot be opened, or its path leads through a symbolic link.
    pub fn of_client(
        (read, write): (&[PathBuf], &[PathBuf]),
        verbs: Vec<String>,
        ports: (u16, u16),
    ) -> Result<Self, Fatal> {
        let trees = AllowedTrees::of_client(read, write)?;
        Ok(Self { trees, verbs: Some(verbs), ports: Some(ports) })
    }

    /// Refuses a job whose roots, as they are named, lie elsewhere. They are checked again where they are opened; this is so that errors do
    /// not tell what is there.
    ///
    /// # Errors
    /// A root lies outside.
    pub fn check_places(&self, spec: &JobSpec) -> Result<(), Fatal> {
        if !spec.sources_are_remote {
            spec.sources.iter().try_for_each(|source| self.trees.check_named(&source.to_path()))?;
        }
        let destination = spec.destination.to_path();
        let repairs = spec.policy.verify.as_ref().is_some_and(|policy| policy.repair);
        if spec.verb.fills() || repairs {
            self.trees.check_place(&destination)
        } else {
            self.trees.check_look(&destination)
        }
    }

    /// Refuses to listen at other ports.
    ///
    /// # Errors
    /// A port is not accepted.
    pub fn check_ports(&self, (first, last): (u16, u16)) -> Result<(), Fatal> {
        match self.ports {
            Some((least, most)) if first < least || last > most => {
                let message =
                    format!("the agent listens for data streams at ports {least} to {most} only");
                Err(Fatal::refused(message, format!("use --data-ports {least}-{most}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether mounts may be cloned to keep access times. The limits of an agent's client are enforced by the kernel as
    /// well (Landlock), which finds no allowed directory above the root of a clone.
    pub(crate) fn permits_clones(&self) -> bool {
        dmover_host::user::is_privileged() && self.trees.by() == AllowedBy::Mover
    }

    /// The trees.
    pub fn trees(&self) -> &AllowedTrees {
        &self.trees
    }

    /// Who limits, the names of the two limits, and what a user can do.
    fn words(&self) -> [&'static str; 4] {
        match self.trees.by() {
            AllowedBy::Mover => {
                ["this mover", "--allow-verb", "--allow-root", "use another mover for this job"]
            }
            AllowedBy::Agent => [
                "the agent",
                "verbs in its configuration",
                "read and write in its configuration",
                "ask the administrator of the agent",
            ],
        }
    }

    /// Refuses other verbs.
    ///
    /// # Errors
    /// The verb is not accepted.
    pub fn check_verb(&self, needed: &str) -> Result<(), Fatal> {
        let Some(verbs) = &self.verbs else { return Ok(()) };
        if verbs.iter().any(|verb| verb == needed) {
            return Ok(());
        }
        let [who, option, _, hint] = self.words();
        let verbs = if verbs.is_empty() { "none".to_owned() } else { verbs.join(", ") };
        let message = format!("{who} does not run '{needed}' jobs; it accepts {verbs} ({option})");
        Err(Fatal::refused(message, hint))
    }

    /// Refuses jobs with other verbs, and jobs that could leave the trees.
    ///
    /// # Errors
    /// The job is not accepted.
    pub fn check_spec(&self, spec: &JobSpec) -> Result<(), Fatal> {
        let [who, _, trees_option, hint] = self.words();
        check_policies(spec)?;
        if self.trees.by() == AllowedBy::Agent {
            check_for_agent(spec)?;
        }
        let repairs = spec.policy.verify.as_ref().is_some_and(|policy| policy.repair);
        let needed = if spec.verb == Verb::Verify && repairs { REPAIR } else { spec.verb.word() };
        self.check_verb(needed)?;
        if !self.trees.is_everything() && spec.selection.follow != FollowLinks::Never {
            let message = format!(
                "the job follows symbolic links, which may lead out of the directories that {who} \
                 accepts ({trees_option})"
            );
            return Err(Fatal::refused(
                message,
                format!("omit -L and --dereference-args, or {hint}"),
            ));
        }
        Ok(())
    }
}

/// Refuses policies that do not fit the verb: whoever sends a job by another program could have one verb do the work of another.
fn check_policies(spec: &JobSpec) -> Result<(), Fatal> {
    let (compares, passes) = (spec.policy.verify.is_some(), spec.policy.sync.is_some());
    let wanted = match spec.verb {
        Verb::Copy | Verb::Sum => (false, false),
        Verb::Sync => (false, true),
        Verb::Verify => (true, false),
    };
    if (compares, passes) == wanted {
        return Ok(());
    }
    let message = format!("the job has policies that '{}' does not have", spec.verb.word());
    Err(Fatal::refused(message, "use one version of dmover on both hosts"))
}

/// Refuses what no client of an agent may ask for. Every field is named here, so that a new one is considered.
fn check_for_agent(spec: &JobSpec) -> Result<(), Fatal> {
    let JobSpec {
        schema: _,
        verb: _,
        // Roots are checked where they are opened.
        sources: _,
        sources_are_remote: _,
        host: _,
        destination: _,
        target_mode: _,
        selection,
        policy,
        limits,
    } = spec;
    let Selection {
        list,
        rules: _,
        min_size_bytes: _,
        max_size_bytes: _,
        newer_than: _,
        older_than: _,
        ages_ms: _,
        one_file_system: _,
        // For all that have limits.
        follow: _,
    } = selection;
    let refused =
        |what: &str| Err(Fatal::refused(format!("the agent does not accept {what}"), "omit it"));
    if list.is_some() {
        return refused("--files-from");
    }
    let CopyPolicy {
        preserve: _,
        demanded: _,
        allow_loss: _,
        overwrite: _,
        backup,
        inplace: _,
        whole_files: _,
        range: _,
        split_bytes: _,
        sparse: _,
        reflink: _,
        engine: _,
        buffer_bytes: _,
        direct_read: _,
        direct_write: _,
        forget_read: _,
        forget_written: _,
        fsync: _,
        skip_chmod: _,
        dry_run: _,
        digest: _,
        print_hash: _,
        // It fits the verb.
        verify: _,
        sync,
        user_map: _,
        owners_by_name: _,
        names: _,
        project_map: _,
        group_map: _,
    } = policy;
    let backup = backup.as_ref();
    if backup.is_some_and(|backup| backup.suffix.contains(&b'/')) {
        return refused("a suffix with a slash");
    }
    if let Some(sync) = sync {
        let SyncPolicy {
            // Its trash is checked where it is opened.
            delete: _,
            allow_empty_source: _,
            checksum: _,
            ctime: _,
            renames: _,
            clears_all: _,
            snapshot,
        } = sync;
        if snapshot.is_some() {
            return refused("snapshots");
        }
    }
    if limits.threads > THREADS_MAX || limits.memory_bytes > MEMORY_MAX {
        return refused("more than 1024 movers or 16 GiB of memory");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_model::{
        Confirmed, DeletePolicy, DeleteWhen, Limits, ListFile, PathBytes, Share, SnapshotPolicy,
        TargetMode, VerifyLevel, VerifyPolicy,
    };

    fn bounds(verbs: &[&str]) -> Bounds {
        let verbs = verbs.iter().map(|verb| (*verb).to_owned()).collect();
        Bounds::of_client((&[], &[]), verbs, (50_000, 51_000)).unwrap()
    }

    /// A job as dmover would not send it.
    fn crafted(verb: Verb, policy: CopyPolicy) -> JobSpec {
        JobSpec {
            schema: JobSpec::SCHEMA,
            verb,
            sources: vec![PathBytes(b"/s".to_vec())],
            sources_are_remote: false,
            host: None,
            destination: PathBytes(b"/d".to_vec()),
            target_mode: TargetMode::Auto,
            selection: Selection::default(),
            policy,
            limits: Limits::default(),
        }
    }

    fn deletes() -> DeletePolicy {
        let when = DeleteWhen::During;
        DeletePolicy { when, limit: None, trash: None, confirmed: Confirmed::default() }
    }

    fn compares(repair: bool) -> VerifyPolicy {
        VerifyPolicy {
            level: VerifyLevel::Digest,
            repair,
            extra: true,
            sample_millionths: None,
            seed: 0,
            since: None,
            stored: false,
            marks_unproven: false,
        }
    }

    #[test]
    fn no_verb_does_the_work_of_another() {
        let sync = || Some(SyncPolicy { delete: Some(deletes()), ..SyncPolicy::default() });
        let verify = || Some(compares(false));
        let plain = CopyPolicy::default;
        let all = bounds(&["copy", "sync", "verify"]);
        for (verb, policy, is_right) in [
            (Verb::Copy, plain(), true),
            (Verb::Copy, CopyPolicy { sync: sync(), ..plain() }, false),
            (Verb::Copy, CopyPolicy { verify: verify(), ..plain() }, false),
            (Verb::Sync, plain(), false),
            (Verb::Sync, CopyPolicy { sync: sync(), ..plain() }, true),
            (Verb::Verify, plain(), false),
            (Verb::Verify, CopyPolicy { verify: verify(), ..plain() }, true),
            (Verb::Verify, CopyPolicy { verify: verify(), sync: sync(), ..plain() }, false),
        ] {
            let checked = all.check_spec(&crafted(verb, policy));
            assert_eq!(checked.is_ok(), is_right, "{verb:?}: {checked:?}");
        }
        let repairs = CopyPolicy { verify: Some(compares(true)), ..plain() };
        assert!(all.check_spec(&crafted(Verb::Verify, repairs)).is_err());
        assert!(bounds(&[]).check_spec(&crafted(Verb::Copy, plain())).is_err());
    }

    #[test]
    fn what_would_lead_elsewhere_is_refused() {
        let bounds = bounds(&["copy", "sync"]);
        let snapshot = SnapshotPolicy {
            directory: PathBytes(b"/etc".to_vec()),
            base: None,
            share: Share::Reflink,
        };
        let sync = SyncPolicy { snapshot: Some(snapshot), ..SyncPolicy::default() };
        let snapshot =
            crafted(Verb::Sync, CopyPolicy { sync: Some(sync), ..CopyPolicy::default() });
        assert!(bounds.check_spec(&snapshot).unwrap_err().to_string().contains("snapshots"));
        let plain = || crafted(Verb::Copy, CopyPolicy::default());
        let mut list = plain();
        list.selection.list =
            Some(ListFile { path: PathBytes(b"/etc/shadow".to_vec()), nul: false, pairs: true });
        assert!(bounds.check_spec(&list).is_err());
        let mut follows = plain();
        follows.selection.follow = FollowLinks::Arguments;
        assert!(bounds.check_spec(&follows).is_err());
        let mut huge = plain();
        huge.limits.threads = 1 << 20;
        assert!(bounds.check_spec(&huge).is_err());
        assert!(bounds.check_spec(&plain()).is_ok());
    }

    #[test]
    fn an_agent_listens_at_its_ports_only() {
        let bounds = bounds(&[]);
        for (ports, is_right) in [
            ((50_000, 51_000), true),
            ((50_010, 50_010), true),
            ((0, 0), false),
            ((22, 22), false),
            ((50_000, 51_001), false),
        ] {
            assert_eq!(bounds.check_ports(ports).is_ok(), is_right, "{ports:?}");
        }
        assert!(Bounds::default().check_ports((0, 0)).is_ok());
    }
}
