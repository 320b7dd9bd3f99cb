//! A watch: a feed of the simulator changes the source, and says where.
use dmover_engine::{Control, StopReason, WatchOptions};
use dmover_job::{WatchEnd, watch};
use dmover_memory::Errno;
use dmover_memory::faults::{Call, Fault, Rule, When, Where};
use dmover_model::{
    ChangeFeed, ChangedPlace, EntryKind, ExitCode, FeedBatch, FeedError, Happened, TreePath, Verb,
};
use dmover_schedule::thread;
use dmover_sys::simulated::Volume;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::super::TREE;
use super::super::compare::{Tree, tree_at};
use super::super::damage::{Damage, Place, damage};
use super::super::run::{Ended, Scene, Seat, Work, job, spec};
use super::policy;

/// What happens to the source.
const CHANGES: [Damage; 8] = [
    Damage::Blocked,
    Damage::Removed,
    Damage::Beside,
    Damage::Resized,
    Damage::Mode,
    Damage::Owner,
    Damage::Flipped,
    Damage::Xattr,
];
/// Longer than any place waits for its pass.
const QUIET: Duration = Duration::from_secs(30);
/// The same after trouble: the watch waits longer and longer before it scans everything again.
const QUIET_AFTER_TROUBLE: Duration = Duration::from_secs(400);

/// Changes the source, and reports that.
struct Feed {
    source: Arc<Volume>,
    random: ChaCha8Rng,
    changes_left: u32,
    quiet: Duration,
    had_trouble: bool,
    position: u64,
    control: Arc<Control>,
}

impl ChangeFeed for Feed {
    fn collect(&mut self, most: Duration) -> Result<FeedBatch, FeedError> {
        let wait = most.min(Duration::from_secs(1)).max(Duration::from_millis(1));
        thread::sleep(wait);
        self.position += 1;
        let mut batch = FeedBatch { position: self.position, ..FeedBatch::default() };
        if self.changes_left == 0 {
            self.quiet += wait;
            if self.quiet >= if self.had_trouble { QUIET_AFTER_TROUBLE } else { QUIET } {
                self.control.stop(StopReason::Signal(15));
            }
            return Ok(batch);
        }
        if self.random.random_bool(0.7) {
            return Ok(batch);
        }
        self.changes_left -= 1;
        let mut disk = self.source.disk();
        disk.faults_mut().clear();
        let before = tree_at(&mut disk, TREE);
        let place = Place { top: TREE, tree: &before, is_silent: false };
        damage(&mut disk, &place, &CHANGES, 3, &mut self.random);
        let after = tree_at(&mut disk, TREE);
        if self.changes_left > 0 && self.random.random_bool(0.2) {
            // Until the next change.
            self.had_trouble = true;
            let (call, at) = (Some(Call::Read), Where::Anywhere);
            let (when, fault) = (When::Chance(0.1), Fault::Error(Errno::IO));
            disk.faults_mut().add(Rule { call, at, when, fault });
        }
        drop(disk);
        match self.random.random_range(0..10_u32) {
            0 => batch.lost = Some("the simulator has lost events".into()),
            1 => {
                self.had_trouble = true;
                batch.elsewhere = Some("the simulator does not say where".into());
            }
            _ => batch.places = places(&before, &after),
        }
        Ok(batch)
    }

    fn acknowledge(&mut self, _: u64) -> Result<(), FeedError> {
        Ok(())
    }
}

/// What differs between two states of a tree.
fn places(before: &Tree, after: &Tree) -> Vec<ChangedPlace> {
    let paths: BTreeSet<&Vec<u8>> = before.keys().chain(after.keys()).collect();
    let differing = paths.into_iter().filter(|path| before.get(*path) != after.get(*path));
    let place = |path: &Vec<u8>| {
        let is_new = !before.contains_key(path);
        let is_directory = after.get(path).is_some_and(|it| it.kind == EntryKind::Directory);
        let arrived = is_new && is_directory;
        let path = TreePath::new(path.as_slice()).ok()?;
        Some(ChangedPlace { path, what: Happened { arrived, ..Happened::default() } })
    };
    differing.filter_map(place).collect()
}

/// Runs a watch until the source has been quiet for long, and compares.
pub(super) fn play(scene: &mut Scene<'_>, random: &mut ChaCha8Rng) {
    let spec = spec(Verb::Sync, policy(Verb::Sync, random));
    let (state, seed) = (scene.state.to_owned(), random.random());
    let reconcile_ms = if random.random_bool(0.3) { 20_000 } else { 0 };
    let options = WatchOptions { rest_ms: random.random_range(0..3000), reconcile_ms };
    let work: Work = Arc::new(move |seat: &Seat| {
        let job = job(spec.clone(), &state, seat);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut feed = Feed {
            source: Arc::clone(&seat.source),
            changes_left: random.random_range(0..6),
            random,
            quiet: Duration::ZERO,
            had_trouble: false,
            position: 0,
            control: Arc::clone(&job.control),
        };
        match watch(job, &mut feed, options, &mut |_| {}) {
            WatchEnd::Ended(report) => Ended::Code(report.exit_code(), report.state),
            WatchEnd::NotBegun(reason) => {
                Ended::Failed(ExitCode::Fatal, format!("not begun: {reason:?}"))
            }
            WatchEnd::Failed { error, .. } => Ended::Failed(error.exit_code(), error.to_string()),
        }
    });
    let was_killed = random.random_bool(0.3).then(|| random.random_range(100..3000));
    if was_killed.is_some() {
        scene.run_work(&work, (was_killed, false), "a watch, killed");
    }
    let ended = scene.run_work(&work, (None, false), "a watch");
    scene.expect(matches!(ended, Ended::Code(..)), || format!("a watch ended with {ended:?}"));
    scene.expect_equal("a watch", true);
}
