//! Copies and passes with options that a tree alone does not show.
use dmover_engine::JobReport;
use dmover_job::{Client, Filter, Published, find, list};
use dmover_journal::StateDirectory;
use dmover_memory::Actor;
use dmover_model::{
    Attribute, Backup, Confirmed, CopyPolicy, DeleteLimit, DeleteWhen, EntryKind, ExitCode, Fatal,
    JobSpec, Overwrite, PathBytes, Verb,
};
use dmover_observe::Counters;
use dmover_schedule::thread;
use rand::Rng as _;
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::time::Duration;

use super::super::TREE;
use super::super::compare::{Tree, differences, tree_at};
use super::super::damage::{Damage, Place, damage};
use super::super::run::{
    DESTINATION, Ended, Nobody, SOURCE, Scene, Seat, Work, ended, job, look, request, spec,
};
use super::{one_job, policy};

/// What happens to the source before another copy.
const CHANGES: [Damage; 7] = [
    Damage::Removed,
    Damage::Beside,
    Damage::Retyped,
    Damage::Resized,
    Damage::Mode,
    Damage::Flipped,
    Damage::Mtime,
];

fn change_source(scene: &mut Scene<'_>, kinds: &[Damage], random: &mut ChaCha8Rng) {
    let tree = look(&mut scene.source);
    let place = Place { top: TREE, tree: &tree, is_silent: false };
    let most = random.random_range(0..8);
    damage(&mut scene.source, &place, kinds, most, random);
    scene.source.settle();
}

/// A dry run changes nothing, and the same command without it does what is to be done.
pub(super) fn dry_run(scene: &mut Scene<'_>, random: &mut ChaCha8Rng) {
    let verb = if random.random() { Verb::Copy } else { Verb::Sync };
    // A copy refuses to put one kind of entry in the place of another.
    let kinds: Vec<Damage> =
        CHANGES.into_iter().filter(|kind| verb == Verb::Sync || *kind != Damage::Retyped).collect();
    change_source(scene, &kinds, random);
    let spec = spec(verb, policy(verb, random));
    let before = scene.both();
    let only_told = CopyPolicy { dry_run: true, ..spec.policy.clone() };
    let work = one_job(scene, JobSpec { policy: only_told, ..spec.clone() });
    scene.finish_well(&work, "a dry run", random);
    let after = scene.both();
    scene.expect(after == before, || "a dry run changed something".into());
    if verb == Verb::Sync {
        let drifted = scene.both().1;
        let place = Place { top: TREE, tree: &drifted, is_silent: false };
        let kinds = [CHANGES.as_slice(), &[Damage::Blocked, Damage::Unlinked]].concat();
        damage(&mut scene.destination, &place, &kinds, 4, random);
        let work = one_job(scene, spec);
        scene.finish_well(&work, "a pass after a dry run", random);
        scene.expect_equal("a pass after a dry run", true);
    }
}

/// The old version of each replaced file stays beside it.
pub(super) fn backups(scene: &mut Scene<'_>, random: &mut ChaCha8Rng) {
    let (tree, before) = scene.both();
    let place = Place { top: TREE, tree: &tree, is_silent: false };
    let kinds = [Damage::Flipped, Damage::Resized];
    let changed = damage(&mut scene.source, &place, &kinds, 5, random);
    scene.source.settle();
    let numbered = random.random();
    let suffix = b".old".to_vec();
    let policy = CopyPolicy {
        backup: Some(Backup { numbered, suffix: suffix.clone() }),
        overwrite: if random.random() { Overwrite::Changed } else { Overwrite::Older },
        split_bytes: random.random_bool(0.7).then_some(64 << 10),
        // Nobody interrupts this copy: a killed probe of the destination leaves its directory (docs/roadmap.md).
        demanded: [Attribute::Mode, Attribute::Times, Attribute::Xattr].into_iter().collect(),
        ..CopyPolicy::default()
    };
    let work = one_job(scene, spec(Verb::Copy, policy));
    let ended = scene.run_work(&work, (None, false), "a copy with backups");
    scene.expect(ended == super::DONE, || format!("a copy with backups ended with {ended:?}"));
    let (source, after) = scene.both();
    let added = if numbered { b".~1~".to_vec() } else { suffix };
    for path in changed.keys() {
        let kept = after.get(&[path.as_slice(), &added].concat()).map(|it| &it.content);
        let is_kept = kept == before.get(path).map(|it| &it.content);
        let shown = String::from_utf8_lossy(path);
        scene.expect(is_kept, || format!("no backup of {shown:?}, numbered {numbered}"));
        let is_new =
            after.get(path).map(|it| &it.content) == source.get(path).map(|it| &it.content);
        scene.expect(is_new, || format!("{shown:?} was not replaced"));
    }
}

/// What a pass deletes is in the trash, with its content.
pub(super) fn trash(scene: &mut Scene<'_>, random: &mut ChaCha8Rng) {
    let (tree, before) = scene.both();
    let place = Place { top: TREE, tree: &tree, is_silent: false };
    damage(&mut scene.source, &place, &[Damage::Removed], 6, random);
    scene.source.settle();
    let source = look(&mut scene.source);
    let mut policy = policy(Verb::Sync, random);
    let at = [DESTINATION.as_bytes(), b"/trash"].concat();
    if let Some(delete) = policy.sync.as_mut().and_then(|sync| sync.delete.as_mut()) {
        delete.trash = Some(PathBytes(at));
    }
    let work = one_job(scene, spec(Verb::Sync, policy));
    scene.finish_well(&work, "a pass with a trash", random);
    scene.expect_equal("a pass with a trash", true);
    let kept = tree_at(&mut scene.destination, b"trash");
    let is_kept = |path: &[u8], content: &Vec<u8>| {
        let end = [b"/", path].concat();
        kept.iter().any(|(at, it)| at.ends_with(&end) && it.content == *content)
    };
    let gone = before.iter().filter(|(path, it)| {
        it.kind == EntryKind::File && it.links == 1 && !source.contains_key(*path)
    });
    let lost: Vec<_> = gone.filter(|(path, it)| !is_kept(path, &it.content)).collect();
    let lost: Vec<_> = lost.iter().map(|(path, _)| String::from_utf8_lossy(path)).collect();
    scene.expect(lost.is_empty(), || {
        format!("not in the trash: {lost:?}, there: {:?}", paths(&kept))
    });
}

fn paths(tree: &Tree) -> Vec<String> {
    tree.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
}

/// Somebody who confirms nothing.
struct Cautious;

impl Client for Cautious {
    fn say(&self, _: &str) {}

    fn confirms(&self, _: &Result<JobReport, Fatal>) -> bool {
        false
    }

    fn begins_again(&self, _: &Arc<Counters>) {}

    fn reads_back(&self, _: &Arc<Counters>) {}

    fn publish(&self, _: &JobReport, _: ExitCode) -> Result<Published, Fatal> {
        Ok(Published::Done)
    }
}

/// No more is deleted than the user has allowed, and nothing if the source is empty.
pub(super) fn limited(scene: &mut Scene<'_>, random: &mut ChaCha8Rng) {
    let tree = look(&mut scene.source);
    let place = Place { top: TREE, tree: &tree, is_silent: false };
    damage(&mut scene.source, &place, &[Damage::Removed, Damage::Retyped], 8, random);
    scene.source.settle();
    let (source, before) = scene.both();
    let extra: Vec<&Vec<u8>> = before.keys().filter(|path| !source.contains_key(*path)).collect();
    let limit = random.random_range(0..=extra.len() as u64 + 1);
    let mut spec = spec(Verb::Sync, policy(Verb::Sync, random));
    let is_emptied = random.random_bool(0.2);
    let whens = [DeleteWhen::During, DeleteWhen::Delay, DeleteWhen::After];
    if let Some(sync) = &mut spec.policy.sync {
        sync.allow_empty_source = !is_emptied;
        if let Some(delete) = &mut sync.delete {
            delete.when = whens[random.random_range(0..3_usize)];
            delete.limit = Some(match random.random_range(0..3_u32) {
                0 => DeleteLimit::Millionths(random.random_range(0..400_000)),
                _ => DeleteLimit::Entries(limit),
            });
            let confirmed = [Confirmed::None, Confirmed::Limit, Confirmed::All];
            delete.confirmed = confirmed[random.random_range(0..3_usize)];
        }
    }
    let by_entries = spec
        .policy
        .sync
        .as_ref()
        .and_then(|sync| sync.delete.as_ref())
        .is_some_and(|delete| matches!(delete.limit, Some(DeleteLimit::Entries(_))));
    if is_emptied {
        let root = Actor::root();
        let mut user = scene.source.as_user(&root);
        let top = user.root();
        let made = user.make_directory(top, b"empty", 0o755);
        spec.sources = vec![PathBytes([SOURCE.as_bytes(), b"/empty"].concat())];
        scene.expect(made.is_ok(), || "no empty directory".into());
    }
    let (state, one) = (scene.state.to_owned(), spec.clone());
    let work: Work = Arc::new(move |seat: &Seat| {
        ended(dmover_job::run(request(job(one.clone(), &state, seat)), &Cautious))
    });
    let end = scene.run_work(&work, (None, false), "a pass with a limit of deletes");
    let after = look(&mut scene.destination);
    let gone = before.keys().filter(|path| !after.contains_key(*path));
    let wrong: Vec<_> = gone.clone().filter(|path| is_emptied || !extra.contains(path)).collect();
    scene.expect(wrong.is_empty(), || format!("wrongly deleted: {wrong:?}"));
    let count = gone.count() as u64;
    if is_emptied {
        return;
    }
    scene.expect(!by_entries || count <= limit, || format!("{count} deletes instead of {limit}"));
    let is_complete = end == super::DONE;
    scene.expect(!is_complete || count == extra.len() as u64, || "deletes are missing".into());
    if let Some(delete) = spec.policy.sync.as_mut().and_then(|sync| sync.delete.as_mut()) {
        (delete.limit, delete.confirmed) = (None, Confirmed::All);
    }
    let work = one_job(scene, spec);
    scene.finish_well(&work, "a pass without a limit", random);
    scene.expect_equal("a pass without a limit", true);
}

/// A pass that is paused, resumed and cancelled by another process ends, and the same command completes it.
pub(super) fn steered(scene: &mut Scene<'_>, random: &mut ChaCha8Rng) {
    let mut spec = spec(Verb::Sync, policy(Verb::Sync, random));
    spec.destination = PathBytes([DESTINATION.as_bytes(), b"/other"].concat());
    spec.limits.bytes_per_s = Some(random.random_range(30_000..150_000));
    let (state, slow, cancels) = (scene.state.to_owned(), spec.clone(), random.random());
    let pauses_ms: Vec<u64> = (0..3).map(|_| random.random_range(100..6000)).collect();
    let work: Work = Arc::new(move |seat: &Seat| {
        let (at, pauses_ms) = (StateDirectory::new(&state), pauses_ms.clone());
        let destination = slow.destination.clone();
        thread::spawn(move || {
            let wait = |of: usize| thread::sleep(Duration::from_millis(pauses_ms[of]));
            wait(0);
            let jobs = list(&at, &Filter::default()).unwrap_or_default();
            let own = jobs.iter().find(|(file, _)| file.destination == destination);
            let Some(job) = own.and_then(|(file, _)| find(&at, &file.job).ok()) else { return };
            // It may have ended meanwhile.
            let _ = job.pause();
            wait(1);
            let _ = job.resume();
            wait(2);
            if cancels {
                let _ = job.cancel();
            }
        });
        ended(dmover_job::run(request(job(slow.clone(), &state, seat)), &Nobody))
    });
    let end = scene.run_work(&work, (None, false), "a steered pass");
    scene.expect(matches!(end, Ended::Code(..)), || format!("a steered pass ended with {end:?}"));
    spec.limits.bytes_per_s = None;
    let work = one_job(scene, spec);
    scene.finish_well(&work, "a pass after a steered one", random);
    let source = look(&mut scene.source);
    let there = tree_at(&mut scene.destination, b"other");
    let left = differences(&source, &there, true);
    scene.broken.extend(left.iter().map(|it| format!("a pass after a steered one: {it}")));
}
