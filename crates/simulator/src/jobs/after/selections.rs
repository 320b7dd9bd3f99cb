//! Copies of some entries only, to another place on the same disk.
use dmover_engine::JobList;
use dmover_job::run;
use dmover_memory::{Actor, Disk, Profile};
use dmover_model::{
    ByteRange, CopyPolicy, EntryKind, FilterRule, FollowLinks, JobSpec, Limits, ListFile, LossKind,
    PathBytes, RangeCopy, Selection, TargetMode, TreePath, Verb,
};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::TREE;
use super::super::compare::{Tree, differences, tree_at};
use super::super::grow::Grower;
use super::super::run::{
    DESTINATION, Ended, Nobody, SOURCE, Scene, Seat, Work, below, ended, job, look, request, spec,
};
use super::{DONE, one_job};

/// Where these copies go.
const OTHER: &[u8] = b"other";

fn other() -> PathBytes {
    PathBytes([DESTINATION.as_bytes(), b"/", OTHER].concat())
}

fn copy_to_other(selection: Selection, random: &mut ChaCha8Rng) -> JobSpec {
    let policy = CopyPolicy {
        split_bytes: random.random_bool(0.7).then_some(64 << 10),
        ..CopyPolicy::default()
    };
    JobSpec { destination: other(), selection, ..spec(Verb::Copy, policy) }
}

/// Compares the other place with a part of the source.
fn expect_other(scene: &mut Scene<'_>, expected: &Tree, what: &str) {
    let there = tree_at(&mut scene.destination, OTHER);
    let left = differences(expected, &there, true);
    scene.broken.extend(left.iter().map(|it| format!("{what}: {it}")));
}

/// Names that end with some digits are left out.
pub(super) fn rules(scene: &mut Scene<'_>, random: &mut ChaCha8Rng) {
    let rule =
        |include, pattern: &[u8]| FilterRule { include, pattern: PathBytes(pattern.to_vec()) };
    let kept_ending = [b'0' + random.random_range(0..10_u8), b'1'];
    let rules = vec![
        rule(true, &[b"*".as_slice(), &kept_ending].concat()),
        rule(false, b"*1"),
        rule(false, b"*2"),
    ];
    let size_max = random.random_bool(0.5).then(|| random.random_range(0..20_000));
    let selection = Selection { rules, max_size_bytes: size_max, ..Selection::default() };
    let work = one_job(scene, copy_to_other(selection, random));
    scene.finish_well(&work, "a copy with rules", random);
    let source = look(&mut scene.source);
    let is_out = |name: &[u8]| {
        !name.ends_with(&kept_ending) && (name.ends_with(b"1") || name.ends_with(b"2"))
    };
    let too_large = |size: usize| size_max.is_some_and(|most| size as u64 > most);
    let expected: Tree = source
        .into_iter()
        .filter(|(path, _)| !path.split(|byte| *byte == b'/').any(is_out))
        .filter(|(_, it)| it.kind != EntryKind::File || !too_large(it.content.len()))
        .collect();
    expect_other(scene, &expected, "a copy with rules");
}

/// Only the entries of a list, and the directories above them.
pub(super) fn list(scene: &mut Scene<'_>, random: &mut ChaCha8Rng) {
    let source = look(&mut scene.source);
    let chosen: Vec<Vec<u8>> = source
        .iter()
        .filter(|(path, it)| !path.is_empty() && it.kind != EntryKind::Directory)
        .filter(|_| random.random_bool(0.4))
        .map(|(path, _)| path.clone())
        .collect();
    let file = ListFile { path: PathBytes(b"-".to_vec()), nul: true, pairs: false };
    let selection = Selection { list: Some(file), ..Selection::default() };
    let (spec, state) = (copy_to_other(selection, random), scene.state.to_owned());
    let listed = chosen.clone();
    // One that is not there is reported, and the others are copied.
    let misses = random.random_bool(0.3);
    let work: Work = Arc::new(move |seat: &Seat| {
        let missing: &[u8] = b"not-there/at-all";
        let paths = listed.iter().map(Vec::as_slice).chain(misses.then_some(missing));
        let paths = paths.filter_map(|path| TreePath::new(path).ok());
        let mut job = job(spec.clone(), &state, seat);
        job.list = JobList::Paths(paths.collect());
        ended(run(request(job), &Nobody))
    });
    let end = scene.finish(&work, "a copy of a list", random);
    scene.expect((end == DONE) != misses, || format!("a copy of a list ended with {end:?}"));
    let mut wanted: BTreeSet<Vec<u8>> = chosen.iter().cloned().collect();
    wanted.extend(misses.then(Vec::new));
    for path in &chosen {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        wanted.extend(ends.chain([0]).map(|end| path[..end].to_vec()));
    }
    let expected: Tree = source.into_iter().filter(|(path, _)| wanted.contains(path)).collect();
    expect_other(scene, &expected, "a copy of a list");
}

/// Files one by one, some of them only in part.
pub(super) fn pairs(scene: &mut Scene<'_>, random: &mut ChaCha8Rng) {
    let source = look(&mut scene.source);
    let mut pairs = Vec::new();
    let mut wanted = Vec::new();
    for (path, it) in source.iter().filter(|(_, it)| it.kind == EntryKind::File && it.links == 1) {
        let name = format!("pair-{}", pairs.len());
        let from = PathBytes([&below(SOURCE), &b"/"[..], path].concat());
        let to = PathBytes([DESTINATION.as_bytes(), b"/", name.as_bytes()].concat());
        let size = it.content.len() as u64;
        let range = (size > 0 && random.random_bool(0.5)).then(|| {
            let start = random.random_range(0..size);
            ByteRange { start, end: random.random_range(start + 1..=size) }
        });
        let copied = range.map(|range| RangeCopy { ranges: vec![range], destination_offset: None });
        pairs.push((from, to, copied));
        wanted.push((name, range, it.content.clone()));
    }
    let file = ListFile { path: PathBytes(b"-".to_vec()), nul: false, pairs: true };
    let selection = Selection { list: Some(file), ..Selection::default() };
    let mut spec = copy_to_other(selection, random);
    (spec.sources, spec.destination) = (Vec::new(), PathBytes::default());
    spec.target_mode = TargetMode::Auto;
    let state = scene.state.to_owned();
    let listed = pairs.clone();
    let work: Work = Arc::new(move |seat: &Seat| {
        let mut job = job(spec.clone(), &state, seat);
        job.list = JobList::Pairs(listed.clone());
        ended(run(request(job), &Nobody))
    });
    if pairs.is_empty() {
        return;
    }
    let end = scene.run_work(&work, (None, false), "a copy of pairs");
    scene.expect(end == DONE, || format!("a copy of pairs ended with {end:?}"));
    for (name, range, content) in wanted {
        let there = tree_at(&mut scene.destination, name.as_bytes()).remove(&Vec::new());
        let there = there.map(|it| it.content).unwrap_or_default();
        let is_right = match range {
            None => there == content,
            Some(ByteRange { start, end }) => {
                let part = start as usize..end as usize;
                there.get(part.clone()) == Some(&content[part])
            }
        };
        scene.expect(is_right, || format!("a copy of pairs: {name} {range:?}"));
    }
}

/// Links to files and directories become what they lead to.
pub(super) fn links(scene: &mut Scene<'_>, random: &mut ChaCha8Rng) {
    let root = Actor::root();
    let tree = look(&mut scene.source);
    let mut user = scene.source.as_user(&root);
    let top = user.root();
    let made = (|| {
        user.make_directory(top, b"linked", 0o755)?;
        let linked = user.open(top, b"linked", dmover_memory::Open::DIRECTORY)?;
        user.symlink(b"../tree", linked, b"all")?;
        for (number, path) in tree.keys().filter(|path| !path.is_empty()).take(5).enumerate() {
            let target = [b"../tree/", path.as_slice()].concat();
            user.symlink(&target, linked, format!("link-{number}").as_bytes())?;
        }
        user.close(linked)
    })();
    scene.expect(made.is_ok(), || format!("no links: {made:?}"));
    let dangles = tree.values().any(|it| it.kind == EntryKind::Symlink);
    let follows = [FollowLinks::Arguments, FollowLinks::Always, FollowLinks::AlwaysLinked];
    let follow =
        if dangles { FollowLinks::Arguments } else { follows[random.random_range(0..3_usize)] };
    let mut spec = copy_to_other(Selection { follow, ..Selection::default() }, random);
    spec.sources = vec![PathBytes([SOURCE.as_bytes(), b"/linked/all"].concat())];
    if !dangles && follow != FollowLinks::Arguments {
        spec.sources = vec![PathBytes([SOURCE.as_bytes(), b"/linked"].concat())];
    }
    spec.limits = Limits { threads: 3, ..Limits::default() };
    let is_whole = follow == FollowLinks::Arguments;
    let work = one_job(scene, spec);
    scene.finish_well(&work, &format!("a copy that follows links ({follow:?})"), random);
    let at: &[u8] = if is_whole { OTHER } else { b"other/all" };
    let there = tree_at(&mut scene.destination, at);
    // Names of one inode are copied as several files unless they are found again.
    let missing = differences(&tree, &there, true);
    let missing = missing.iter().filter(|it| is_whole || !it.contains("linked in another way"));
    scene.broken.extend(missing.map(|it| format!("a copy that follows links: {it}")));
}

/// One source has its place inside the other one: directories are merged, and of two entries for one place one stays.
pub(super) fn merged(scene: &mut Scene<'_>, random: &mut ChaCha8Rng) {
    let root = Actor::root();
    let first = look(&mut scene.source);
    let is_top = |path: &[u8]| !path.is_empty() && !path.contains(&b'/');
    let name = first
        .iter()
        .find(|(path, it)| is_top(path) && it.kind == EntryKind::Directory)
        .map_or_else(|| b"second".to_vec(), |(path, _)| path.clone());
    let mut user = scene.source.as_user(&root);
    let top = user.root();
    let made = user.make_directory(top, b"more", 0o755);
    scene.expect(made.is_ok(), || "no second source".into());
    let other = ChaCha8Rng::seed_from_u64(random.random());
    Grower::below(other, &[b"more", &name]).grow(&mut scene.source, 12);
    scene.source.settle();
    let slash = |path: &[u8]| if path.is_empty() { Vec::new() } else { [b"/", path].concat() };
    let second: Tree = tree_at(&mut scene.source, &[b"more/", name.as_slice()].concat())
        .into_iter()
        .map(|(path, it)| ([name.clone(), slash(&path)].concat(), it))
        .collect();
    let mut spec = copy_to_other(Selection::default(), random);
    let more = PathBytes([SOURCE.as_bytes(), b"/more/", &name].concat());
    // The content of the first one, the second one itself.
    spec.sources = vec![PathBytes([&below(SOURCE), &b"/."[..]].concat()), more];
    spec.target_mode = TargetMode::Into;
    let is_made = {
        let mut user = scene.destination.as_user(&root);
        let top = user.root();
        user.make_directory(top, OTHER, 0o755)
    };
    scene.expect(is_made.is_ok(), || "no place for the copies".into());
    let work = one_job(scene, spec);
    let end = scene.run_work(&work, (None, false), "a copy of two sources");
    let clashes: Vec<&Vec<u8>> = second
        .iter()
        .filter(|(path, it)| {
            let of_first = first.get(*path);
            of_first.is_some_and(|of_first| {
                of_first.kind != EntryKind::Directory || it.kind != EntryKind::Directory
            })
        })
        .map(|(path, _)| path)
        .collect();
    scene.expect((end == DONE) == clashes.is_empty(), || {
        format!("a copy of two sources ended with {end:?}, clashes {clashes:?}")
    });
    let there = tree_at(&mut scene.destination, OTHER);
    let is_below = |path: &[u8]| clashes.iter().any(|above| path.starts_with(above));
    for path in first.keys().chain(second.keys()).filter(|path| !is_below(path)) {
        let is_one = [&first, &second].into_iter().filter_map(|tree| tree.get(path)).any(|it| {
            there.get(path).is_some_and(|copy| copy.kind == it.kind && copy.content == it.content)
        });
        let shown = String::from_utf8_lossy(path);
        scene.expect(is_one, || format!("a copy of two sources: {shown:?} is another one"));
    }
}

/// A file system without owners, links, special files and attributes, in which upper case is lower case: files and
/// directories are there with their content, and whatever is lost is reported.
pub(super) fn plain_file_system(scene: &mut Scene<'_>, random: &mut ChaCha8Rng) {
    let root = Actor::root();
    let clash = [b"tree/CLASH".as_slice(), b"tree/clash"];
    let clashes = random.random_bool(0.5);
    {
        let mut user = scene.source.as_user(&root);
        let top = user.root();
        for path in clash.iter().filter(|_| clashes) {
            let made = user.walk(top, TREE, false).and_then(|tree| {
                let tree = user.reopen(tree, dmover_memory::Open::DIRECTORY)?;
                user.open(tree, &path[5..], dmover_memory::Open::new_file(0o644))
            });
            scene.broken.extend(made.err().map(|error| format!("no file: {error:?}")));
        }
    }
    let clock = scene.destination.clock().clone();
    scene.destination = Disk::new(Profile::fat(), clock, scene.plan.seed);
    let mut spec = spec(Verb::Copy, CopyPolicy::default());
    let accepts = random.random();
    if accepts {
        spec.policy.allow_loss = LossKind::ALL.iter().copied().collect();
    }
    let work = one_job(scene, spec);
    let end = scene.run_work(&work, (None, false), "a copy to a plain file system");
    let (source, there) = scene.both();
    let plain = [EntryKind::File, EntryKind::Directory];
    let has_special = source.values().any(|it| !plain.contains(&it.kind));
    if has_special || clashes {
        scene
            .expect(end != DONE, || "what a plain file system cannot hold was not reported".into());
    }
    scene.expect(matches!(end, Ended::Code(..)), || format!("a copy ended with {end:?}"));
    let names = [b"CLASH".as_slice(), b"clash"];
    for (path, it) in source.iter().filter(|(_, it)| plain.contains(&it.kind)) {
        let is_there = there.get(path).is_some_and(|copy| copy.content == it.content);
        let shown = String::from_utf8_lossy(path);
        let is_right = is_there || names.contains(&path.as_slice());
        scene.expect(is_right, || format!("a copy to a plain file system: {shown:?}"));
    }
}
