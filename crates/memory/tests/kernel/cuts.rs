//! Power cuts in the middle of random calls: each state that a cut leaves is whole, and was there once.
use std::collections::BTreeSet;

use dmover_memory::stored::{CrashModel, Order};
use dmover_memory::{Actor, Disk, Handle, Open, Profile, User};
use dmover_model::EntryKind;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::simulated::Simulated;
use crate::steps::{Step, random_step};

#[test]
fn a_cut_leaves_a_whole_file_system() {
    for seed in crate::seeds() {
        for crash in [CrashModel::EXT4, CrashModel::XFS, CrashModel::WEAK] {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let profile = Profile { crash, has_clones: true, ..Profile::default() };
            let mut simulated = Simulated::with(profile, seed);
            let root = Actor::root();
            // What the names were after each call since the last flush.
            let mut history = vec![entries(&mut simulated.disk)];
            for number in 0..150 {
                let step = match random.random_range(0..30) {
                    0 => Step::Sync { slot: random.random_range(0..crate::steps::SLOTS) },
                    1 => Step::SyncAll,
                    _ => random_step(&mut random),
                };
                let result = simulated.run(&root, &step);
                if let (Step::Sync { slot }, "ok") = (&step, result.as_str()) {
                    check_flushed(&mut simulated, *slot, &mut random, seed);
                }
                let is_flush = matches!(step, Step::Sync { .. } | Step::SyncAll) && result == "ok";
                if is_flush && matches!(step, Step::SyncAll) {
                    history.clear();
                }
                history.push(entries(&mut simulated.disk));
                if number % 5 == 0 || is_flush {
                    let mut after = simulated.disk.cut(random.random());
                    check_whole(&mut after, seed);
                    let found = entries(&mut after);
                    assert!(
                        crash.order != Order::Prefix || history.contains(&found),
                        "seed {seed}: {step:?}: the names were never {found:#?}"
                    );
                }
            }
            simulated.disk.kill();
            check_whole(&mut simulated.disk, seed);
        }
    }
}

/// A file whose content and metadata were flushed just now is the same after a cut, if its name was stored.
fn check_flushed(simulated: &mut Simulated, slot: usize, random: &mut ChaCha8Rng, seed: u64) {
    let actor = Actor::root();
    let handle = simulated.slots[slot].unwrap();
    let mut user = simulated.disk.as_user(&actor);
    let expected = user.stat(handle).unwrap();
    if expected.kind != EntryKind::File {
        return;
    }
    let inode = expected.identity.inode;
    let reread = user.reopen(handle, Open::READ).unwrap();
    let bytes = read(&mut user, reread);
    user.close(reread).unwrap();
    for _ in 0..5 {
        let mut after = simulated.disk.cut(random.random());
        let mut paths = Vec::new();
        visit(&mut after, |path, of, _| {
            if of.identity.inode == inode {
                paths.push((path.to_vec(), of.clone()));
            }
        });
        if simulated.disk.profile().crash.order == Order::Prefix {
            assert_eq!(paths.len() as u64, expected.links, "seed {seed}");
        }
        let mut user = after.as_user(&actor);
        let root = user.root();
        for (path, of) in paths {
            let file = user.walk(root, &path, false).unwrap();
            let file = user.reopen(file, Open::READ).unwrap();
            assert_eq!(read(&mut user, file), bytes, "seed {seed}");
            let known = |of: &dmover_model::Metadata| (of.mode, of.uid, of.gid, of.mtime, of.size);
            assert_eq!(known(&of), known(&expected), "seed {seed}");
        }
    }
}

fn read(user: &mut User<'_>, file: Handle) -> Vec<u8> {
    let mut bytes = vec![0; 100_000];
    let length = user.read(file, 0, &mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

/// All paths with kind, mode, owner and link count.
fn entries(disk: &mut Disk) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    visit(disk, |path, of, _| {
        let (kind, links, device) = (of.kind.word(), of.links, of.device);
        let path = path.escape_ascii();
        found.insert(format!("{path} {kind} {:o} {} {links} {device:?}", of.mode, of.uid));
    });
    found
}

/// Link counts, the parents of directories and the use of space are right.
fn check_whole(disk: &mut Disk, seed: u64) {
    let mut names = std::collections::BTreeMap::<u64, (u64, u64)>::new();
    let (mut inodes, mut blocks) = (BTreeSet::new(), 0);
    visit(disk, |_, of, below| {
        let inode = of.identity.inode;
        if inodes.insert(inode) && of.kind == EntryKind::File {
            blocks += of.blocks / 8;
        }
        let count = names.entry(inode).or_insert((of.links, 0));
        count.1 += if of.kind == EntryKind::Directory { 2 + below } else { 1 };
    });
    for (inode, (links, counted)) in names {
        assert_eq!(links, counted, "seed {seed}: inode {inode}");
    }
    let usage = disk.usage();
    assert_eq!(usage.inodes, inodes.len() as u64 + 1, "seed {seed}");
    assert_eq!(usage.blocks, blocks, "seed {seed}");
    let by_user: u64 = [0, 1000, 1001, 2000].iter().map(|uid| disk.usage_of(*uid).inodes).sum();
    assert_eq!(by_user, usage.inodes, "seed {seed}");
}

/// Shows every entry: its path, its metadata and the number of directories in it.
fn visit(disk: &mut Disk, mut see: impl FnMut(&[u8], &dmover_model::Metadata, u64)) {
    let actor = Actor::root();
    let mut user = disk.as_user(&actor);
    let root = user.root();
    visit_below(&mut user, root, b"", &mut see);
    user.close(root).unwrap();
}

/// Returns the number of directories in the directory.
fn visit_below(
    user: &mut User<'_>,
    directory: Handle,
    above: &[u8],
    see: &mut impl FnMut(&[u8], &dmover_model::Metadata, u64),
) -> u64 {
    let (listed, _) = user.list(directory, None, usize::MAX).unwrap();
    let mut directories = 0;
    for entry in listed {
        let path = [above, b"/", &entry.name].concat();
        let mut below = 0;
        if entry.kind == EntryKind::Directory {
            directories += 1;
            let opened = user.open(directory, &entry.name, Open::DIRECTORY).unwrap();
            let parent = user.walk(opened, b"..", true).unwrap();
            let expected = user.stat(directory).unwrap().identity;
            assert_eq!(user.stat(parent).unwrap().identity, expected);
            below = visit_below(user, opened, &path, see);
            user.close(parent).unwrap();
            user.close(opened).unwrap();
        }
        let of = user.stat((directory, entry.name.as_slice())).unwrap();
        see(&path, &of, below);
    }
    directories
}
