//! Jobs of other kinds, on the trees that the disturbed job has made equal.
use dmover_engine::JobState;
use dmover_model::{CopyPolicy, DeletePolicy, DeleteWhen, ExitCode, JobSpec, SyncPolicy, Verb};
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

use super::compare::{Tree, differences};
use super::run::{Ended, Nobody, Scene, Seat, Work, ended, job, look, request};

mod comparisons;
mod passes;
mod selections;
mod sums;
mod watches;

/// The kind of these jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// The destination is damaged, then compared with the source, and perhaps repaired.
    Comparison,
    /// The same with a manifest, which a copy has written.
    Manifest,
    /// The files are hashed, and checked against lists.
    Sums,
    /// A watch follows changes of the source.
    Watch,
    /// The source changes; a dry run changes nothing, then a pass makes the trees equal.
    DryRun,
    /// Replaced files are kept as backups.
    Backups,
    /// Deleted entries are moved to a trash.
    Trash,
    /// Only some entries are copied, by rules.
    Rules,
    /// Only some entries are copied, by a list.
    List,
    /// Files and ranges are copied one by one.
    Pairs,
    /// Symbolic links are followed.
    Links,
    /// A pass may delete only so much.
    Limited,
    /// A pass is paused, resumed and cancelled.
    Steered,
    /// Two sources are merged.
    Merged,
    /// The destination is a file system without most attributes.
    Plain,
}

impl After {
    /// The one of a seed, if there is one. It has its own random numbers, so the job before is the same without it. `is_far`:
    /// the source is at another host.
    pub fn of(seed: u64, is_far: bool) -> Option<Self> {
        use After::{
            Backups, Comparison, DryRun, Limited, Links, List, Manifest, Merged, Pairs, Plain,
            Rules, Steered, Sums, Trash, Watch,
        };
        // Those with the most code behind them come more often.
        let all = [
            Comparison, Comparison, Comparison, Manifest, Manifest, Sums, Sums, Watch, Watch,
            DryRun, DryRun, Backups, Trash, Rules, List, Pairs, Links, Limited, Limited, Steered,
            Merged, Plain,
        ];
        let chosen = all.choose(&mut random(seed)).copied();
        // All others read the source from a disk that is mounted here. The disk of a far source is not, and its clock is that
        // of another host, which no file system of this host has.
        chosen.filter(|chosen| !is_far || *chosen == Sums)
    }
}

fn random(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed ^ 0x0061_6674_6572)
}

/// Runs them.
pub(super) fn play(scene: &mut Scene<'_>) {
    let mut random = random(scene.plan.seed);
    let _: u64 = random.random();
    let random = &mut random;
    let Some(after) = scene.plan.after else { return };
    match after {
        After::Comparison => comparisons::with_source(scene, random),
        After::Manifest => comparisons::with_manifest(scene, random),
        After::Sums => sums::play(scene, random),
        After::Watch => watches::play(scene, random),
        After::DryRun => passes::dry_run(scene, random),
        After::Backups => passes::backups(scene, random),
        After::Trash => passes::trash(scene, random),
        After::Rules => selections::rules(scene, random),
        After::List => selections::list(scene, random),
        After::Pairs => selections::pairs(scene, random),
        After::Links => selections::links(scene, random),
        After::Limited => passes::limited(scene, random),
        After::Steered => passes::steered(scene, random),
        After::Merged => selections::merged(scene, random),
        After::Plain => selections::plain_file_system(scene, random),
    }
}

/// The end of a job without trouble.
const DONE: Ended = Ended::Code(ExitCode::Done, JobState::Finished);

/// A pass with deletes, or a copy.
fn policy(verb: Verb, random: &mut ChaCha8Rng) -> CopyPolicy {
    let delete = DeletePolicy {
        when: DeleteWhen::Delay,
        limit: None,
        trash: None,
        confirmed: dmover_model::Confirmed::All,
    };
    let sync = SyncPolicy {
        delete: Some(delete),
        allow_empty_source: true,
        renames: random.random(),
        ..SyncPolicy::default()
    };
    CopyPolicy {
        split_bytes: random.random_bool(0.7).then_some(64 << 10),
        sync: (verb == Verb::Sync).then_some(sync),
        ..CopyPolicy::default()
    }
}

/// A process that runs one job.
fn one_job(scene: &Scene<'_>, spec: JobSpec) -> Work {
    let state = scene.state.to_owned();
    let work = move |seat: &Seat| {
        ended(dmover_job::run(request(job(spec.clone(), &state, seat)), &Nobody))
    };
    Arc::new(work)
}

impl Scene<'_> {
    /// Runs a process that is killed or stopped, or whose calls fail. Returns whether this disturbed it.
    fn interrupt(&mut self, work: &Work, what: &str, random: &mut ChaCha8Rng) -> bool {
        let at = 10_f64.powf(random.random_range(1.5..3.3)) as u64;
        if random.random_bool(0.6) {
            return self.run_work(work, (Some(at), false), what).is_interrupted();
        }
        self.fail_some(0.02);
        self.run_work(work, (None, false), what);
        self.clear_faults();
        true
    }

    /// Runs a process, half of the time after one that was interrupted, and again if that one was to be resumed.
    fn finish(&mut self, work: &Work, what: &str, random: &mut ChaCha8Rng) -> Ended {
        if random.random_bool(0.5) {
            self.interrupt(work, what, random);
        }
        let ended = self.run_work(work, (None, false), what);
        if ended == DONE { ended } else { self.run_work(work, (None, false), what) }
    }

    /// Runs a process that has to end without trouble.
    fn finish_well(&mut self, work: &Work, what: &str, random: &mut ChaCha8Rng) {
        let ended = self.finish(work, what, random);
        self.expect(ended == DONE, || format!("{what} ended with {ended:?}"));
    }

    /// Both trees.
    fn both(&mut self) -> (Tree, Tree) {
        (look(&mut self.source), look(&mut self.destination))
    }

    /// Something that was promised.
    fn expect(&mut self, is_so: bool, what: impl FnOnce() -> String) {
        if !is_so {
            self.broken.push(what());
        }
    }

    /// The trees are equal. `is_whole`: the destination has nothing else.
    fn expect_equal(&mut self, what: &str, is_whole: bool) {
        let (source, destination) = self.both();
        let left = differences(&source, &destination, is_whole);
        self.broken.extend(left.iter().map(|it| format!("{what}: {it}")));
    }
}
