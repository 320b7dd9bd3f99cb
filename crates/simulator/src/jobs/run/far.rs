//! Runs whose source is at another host.
use dmover_memory::faults::{Fault as DiskFault, Rule, When, Where};
use dmover_memory::{Errno, Profile};
use dmover_model::{ExitCode, MountId, Verb};
use dmover_sys::simulated::Volume;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Ended, Scene, is_refusal, look};
use crate::jobs::compare::{Seen, Tree, false_files};
use crate::jobs::far_plan::BadRun;
use crate::jobs::line::{Change, Line};
use crate::jobs::plan::{Fault, Plan};

/// The number of the far file system. Those of this host are counted from 0.
const FAR: MountId = MountId(0x8000_0007);

/// What goes wrong with the connection of one run.
pub(super) struct Bad {
    lost_at: Option<u64>,
    change: Option<(u64, Change)>,
}

/// The file system of the source.
pub(super) fn profile(plan: &Plan) -> Profile {
    let mount = if plan.far.is_some() { FAR } else { MountId::default() };
    Profile { mount, ..Profile::ext4() }
}

impl Scene<'_> {
    /// The connection of the next run, if it needs one.
    pub(super) fn line(&mut self, source: &Arc<Volume>) -> Option<Arc<Line>> {
        let far = self.plan.far.as_ref()?;
        let bad = self.bad.take().unwrap_or(Bad { lost_at: None, change: None });
        let (volume, skew, requests) = (Arc::clone(source), far.skew(), 0.into());
        let change = Mutex::new(bad.change);
        Some(Arc::new(Line { volume, skew, lost_at: bad.lost_at, change, requests }))
    }

    /// A lost connection has its own exit code, unless something else went wrong as well.
    pub(super) fn check_line(&mut self, line: Option<&Line>, ended: &Ended) {
        let Some(line) = line else { return };
        let is_lost = line.lost().is_some();
        if is_lost {
            self.story.push("the connection was lost".into());
        }
        if *ended == Ended::Killed || self.plan.fault != Fault::None || is_refusal(ended) {
            return;
        }
        let is_temporary = match ended {
            Ended::Code(code, _) | Ended::Failed(code, _) => *code == ExitCode::Temporary,
            _ => false,
        };
        if is_lost != is_temporary {
            let words =
                format!("the connection was lost: {is_lost}, and the run ended with {ended:?}");
            self.broken.push(words);
        }
    }

    /// The runs with a bad connection.
    pub(super) fn far_runs(&mut self) {
        let plan = self.plan;
        for run in plan.far.iter().flat_map(|far| &far.runs) {
            self.far_run(*run);
        }
    }

    fn far_run(&mut self, run: BadRun) {
        let (before, there) = (look(&mut self.source), look(&mut self.destination));
        if run.errors > 0.0 {
            let (at, when) = (Where::Anywhere, When::Chance(run.errors));
            let fault = DiskFault::Error(Errno::IO);
            self.source.faults_mut().add(Rule { call: None, at, when, fault });
        }
        let grower = Arc::clone(&self.grower);
        let change = move |disk: &mut dmover_memory::Disk| {
            let faults = disk.faults().clone();
            disk.faults_mut().clear();
            let mut grower = grower.lock().unwrap_or_else(PoisonError::into_inner);
            grower.overwrite(disk, 40);
            grower.change(disk, 4);
            *disk.faults_mut() = faults;
        };
        let change = run.changes_at.map(|at| (at, Box::new(change) as Change));
        self.bad = Some(Bad { lost_at: run.lost_at, change });
        self.run(run.killed_at, "a run with a bad connection");
        self.source.faults_mut().clear();
        self.destination.faults_mut().clear();
        self.disturb();
        let (after, left) = (look(&mut self.source), look(&mut self.destination));
        // Each file has the content of one version of the source, if it looks like one.
        self.broken
            .extend([&before, &after].into_iter().flat_map(|version| false_files(version, &left)));
        if after == before {
            self.broken.extend(deleted(&before, &there, &left));
        }
    }

    /// Extended attributes change right after a complete pass, which nothing but the time of the change shows.
    pub(super) fn annotate(&mut self) {
        let plan = self.plan;
        if plan.verb == Verb::Sync && plan.far.as_ref().is_some_and(|far| far.is_annotated) {
            self.run(None, "a complete run");
            self.grow(|grower, disk| grower.annotate(disk, 4));
        }
    }
}

/// What a run has removed at the destination, though the source has it.
fn deleted(source: &Tree, before: &Tree, after: &Tree) -> Vec<String> {
    let left: BTreeSet<u64> = after.values().map(|entry| entry.inode).collect();
    let is_deleted = |(path, entry): &(&Vec<u8>, &Seen)| {
        let is_same = source.get(*path).is_some_and(|there| there.kind == entry.kind);
        // An entry that was moved away had another place at the source.
        is_same && !after.contains_key(*path) && !left.contains(&entry.inode)
    };
    let words = |path: &[u8]| format!("{:?} was removed", String::from_utf8_lossy(path));
    before.iter().filter(is_deleted).map(|(path, _)| words(path)).collect()
}
