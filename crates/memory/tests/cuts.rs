//! Power cuts: what was flushed is there, what was not may be lost, and nothing else happens.
#![allow(clippy::unwrap_used, reason = "functions of a test are test code as well")]

use std::collections::BTreeSet;

use dmover_memory::faults::{Call, Fault, Rule, When, Where};
use dmover_memory::stored::CrashModel;
use dmover_memory::{
    Actor, Clock, Disk, Errno, Handle, Open, Profile, Renaming, SetTime, SimulatedTime, User,
};
use dmover_model::Timestamp;

const MODELS: [CrashModel; 3] = [CrashModel::EXT4, CrashModel::XFS, CrashModel::WEAK];
const CUTS: u64 = 200;
/// More than two blocks.
const LENGTH: usize = 10_000;

fn disk(crash: CrashModel) -> Disk {
    let clock = Clock::new(SimulatedTime::starting_at(1_700_000_000), 1000);
    Disk::new(Profile { crash, ..Profile::default() }, clock, 1)
}

/// Calls of root on a disk.
fn with<T>(disk: &mut Disk, calls: impl FnOnce(&mut User<'_>, Handle) -> T) -> T {
    let actor = Actor::root();
    let mut user = disk.as_user(&actor);
    let root = user.root();
    let result = calls(&mut user, root);
    user.close(root).unwrap();
    result
}

/// A file of `byte`, which stays open.
fn write_file(user: &mut User<'_>, directory: Handle, name: &[u8], byte: u8) -> Handle {
    let file = user.open(directory, name, Open::new_file(0o644)).unwrap();
    assert_eq!(user.write(file, 0, &[byte; LENGTH]), Ok(LENGTH));
    file
}

/// The content of a file in the root, if there is one.
fn content(disk: &mut Disk, name: &[u8]) -> Option<Vec<u8>> {
    with(disk, |user, root| {
        let file = user.open(root, name, Open::READ).ok()?;
        let mut bytes = vec![0; 2 * LENGTH];
        let length = user.read(file, 0, &mut bytes).unwrap();
        user.close(file).unwrap();
        bytes.truncate(length);
        Some(bytes)
    })
}

fn names(disk: &mut Disk) -> Vec<Vec<u8>> {
    with(disk, |user, root| {
        let (listed, _) = user.list(root, None, usize::MAX).unwrap();
        let mut names: Vec<Vec<u8>> = listed.into_iter().map(|entry| entry.name).collect();
        names.sort();
        names
    })
}

/// What a file in the root is after each of many cuts: absent, empty, short, whole, partly or only zeros.
fn outcomes(disk: &Disk, name: &[u8], byte: u8) -> BTreeSet<&'static str> {
    let outcome = |seed| match content(&mut disk.cut(seed), name) {
        None => "absent",
        Some(bytes) if bytes.is_empty() => "empty",
        Some(bytes) if bytes == [byte; LENGTH] => "whole",
        Some(bytes) if bytes.len() < LENGTH => "short",
        Some(bytes) if bytes.iter().all(|found| *found == 0) => "zeros",
        Some(bytes) if bytes.iter().all(|found| [0, byte].contains(found)) => "with zeros",
        Some(_) => "other",
    };
    (0..CUTS).map(outcome).collect()
}

#[test]
fn a_file_is_there_after_it_and_its_directory_were_flushed() {
    for model in MODELS {
        let mut disk = disk(model);
        with(&mut disk, |user, root| {
            let file = write_file(user, root, b"f", 1);
            user.sync(file).unwrap();
            user.sync(root).unwrap();
            user.close(file).unwrap();
            user.make_directory(root, b"later", 0o755).unwrap();
        });
        assert_eq!(outcomes(&disk, b"f", 1), BTreeSet::from(["whole"]), "{model:?}");
    }
}

#[test]
fn a_new_file_may_be_anything_before_a_flush() {
    for model in [CrashModel::EXT4, CrashModel::XFS] {
        let mut disk = disk(model);
        with(&mut disk, |user, root| {
            let file = write_file(user, root, b"f", 1);
            user.close(file).unwrap();
        });
        let expected = BTreeSet::from(["absent", "empty", "short", "whole", "with zeros"]);
        assert_eq!(outcomes(&disk, b"f", 1), expected, "{model:?}");
    }
    let mut disk = disk(CrashModel::WEAK);
    with(&mut disk, |user, root| {
        let file = write_file(user, root, b"f", 1);
        user.close(file).unwrap();
    });
    let outcomes = outcomes(&disk, b"f", 1);
    assert!(outcomes.is_superset(&BTreeSet::from(["absent", "empty", "zeros", "whole"])));
}

#[test]
fn metadata_survives_without_the_data() {
    let mut disk = disk(CrashModel::EXT4);
    let time = Timestamp { seconds: 1_000_000, nanoseconds: 7 };
    with(&mut disk, |user, root| {
        let file = write_file(user, root, b"f", 1);
        user.set_times(file, SetTime::To(time), SetTime::To(time)).unwrap();
        user.close(file).unwrap();
    });
    let looks_complete_and_is_not = |seed| {
        let mut disk = disk.cut(seed);
        let stat = with(&mut disk, |user, root| user.stat((root, b"f")));
        stat.is_ok_and(|of| of.mtime == time) && content(&mut disk, b"f") != Some(vec![1; LENGTH])
    };
    assert!((0..CUTS).any(looks_complete_and_is_not));
}

#[test]
fn a_replaced_file_is_old_or_new_only_where_the_file_system_or_a_flush_says_so() {
    for (model, flushes, may_be_empty) in [
        (CrashModel::EXT4, false, false),
        (CrashModel::XFS, false, true),
        (CrashModel::XFS, true, false),
        (CrashModel::WEAK, false, true),
        (CrashModel::WEAK, true, false),
    ] {
        let mut disk = disk(model);
        with(&mut disk, |user, root| {
            let old = write_file(user, root, b"f", 1);
            user.close(old).unwrap();
        });
        disk.settle();
        with(&mut disk, |user, root| {
            let new = write_file(user, root, b"new", 2);
            if flushes {
                user.sync_data(new).unwrap();
            }
            user.close(new).unwrap();
            user.rename((root, b"new"), (root, b"f"), Renaming::Replace).unwrap();
        });
        let mut seen = BTreeSet::new();
        for seed in 0..CUTS {
            let mut disk = disk.cut(seed);
            seen.insert(match content(&mut disk, b"f") {
                Some(bytes) if bytes == [1; LENGTH] => "old",
                Some(bytes) if bytes == [2; LENGTH] => "new",
                Some(bytes) if bytes.is_empty() => "empty",
                _ => "broken",
            });
        }
        assert!(seen.is_superset(&BTreeSet::from(["old", "new"])), "{model:?} {flushes}: {seen:?}");
        let is_broken = seen.contains("empty") && seen.contains("broken");
        assert_eq!(is_broken, may_be_empty, "{model:?} {flushes}: {seen:?}");
        assert_eq!(seen.len() == 2, !may_be_empty, "{model:?} {flushes}: {seen:?}");
    }
}

#[test]
fn a_large_file_that_replaces_another_may_be_short() {
    let mut disk = disk(CrashModel::EXT4);
    let length = 3 << 20;
    with(&mut disk, |user, root| {
        let old = write_file(user, root, b"f", 1);
        user.sync_all(root).unwrap();
        user.close(old).unwrap();
        let new = user.open(root, b"new", Open::new_file(0o644)).unwrap();
        for start in (0..length).step_by(1 << 18) {
            user.write(new, start, &vec![2; 1 << 18]).unwrap();
        }
        user.close(new).unwrap();
        user.rename((root, b"new"), (root, b"f"), Renaming::Replace).unwrap();
    });
    let sizes: BTreeSet<u64> = (0..CUTS)
        .map(|seed| with(&mut disk.cut(seed), |user, root| user.stat((root, b"f")).unwrap().size))
        .collect();
    assert!(sizes.contains(&(1 << 20)) && sizes.contains(&length), "{sizes:?}");
    let is_possible = |size: &u64| *size == LENGTH as u64 || *size >= 1 << 20;
    assert!(sizes.iter().all(is_possible), "{sizes:?}");
}

#[test]
fn operations_survive_in_order_where_they_are_journalled() {
    for (model, is_ordered) in [(CrashModel::EXT4, true), (CrashModel::WEAK, false)] {
        let mut disk = disk(model);
        let made: Vec<Vec<u8>> = (0..10).map(|number| vec![b'a' + number]).collect();
        with(&mut disk, |user, root| {
            for name in &made {
                // Each in a directory of its own, so that only the journal gives them an order.
                user.make_directory(root, name, 0o755).unwrap();
            }
            user.sync_all(root).unwrap();
            for name in &made {
                let directory = user.open(root, name, Open::DIRECTORY).unwrap();
                user.make_directory(directory, b"x", 0o755).unwrap();
                user.close(directory).unwrap();
            }
        });
        let mut lengths = BTreeSet::new();
        let mut has_gaps = false;
        for seed in 0..CUTS {
            let mut disk = disk.cut(seed);
            let survived: Vec<bool> = with(&mut disk, |user, root| {
                let is_there =
                    |name: &Vec<u8>| user.walk(root, &[name, &b"/x"[..]].concat(), true).is_ok();
                made.iter().map(is_there).collect()
            });
            lengths.insert(survived.iter().filter(|is_there| **is_there).count());
            has_gaps |= survived.windows(2).any(|pair| !pair[0] && pair[1]);
        }
        assert_eq!(has_gaps, !is_ordered, "{model:?}");
        assert!(!is_ordered || lengths.len() == made.len() + 1, "{lengths:?}");
    }
}

#[test]
fn a_flush_of_a_file_stores_its_name_only_where_there_is_one_journal() {
    for (model, may_be_absent) in [(CrashModel::EXT4, false), (CrashModel::WEAK, true)] {
        let mut disk = disk(model);
        with(&mut disk, |user, root| {
            let file = write_file(user, root, b"f", 1);
            user.sync(file).unwrap();
            user.close(file).unwrap();
        });
        let mut expected = BTreeSet::from(["whole"]);
        expected.extend(may_be_absent.then_some("absent"));
        assert_eq!(outcomes(&disk, b"f", 1), expected, "{model:?}");
    }
}

#[test]
fn a_flush_of_a_directory_stores_no_content() {
    for model in MODELS {
        let mut disk = disk(model);
        with(&mut disk, |user, root| {
            let file = write_file(user, root, b"f", 1);
            user.sync(root).unwrap();
            user.close(file).unwrap();
        });
        let outcomes = outcomes(&disk, b"f", 1);
        assert!(!outcomes.contains("absent") && outcomes.contains("whole"), "{outcomes:?}");
        assert!(outcomes.contains("empty") || outcomes.contains("zeros"), "{outcomes:?}");
    }
}

#[test]
fn data_that_is_overwritten_in_place_may_be_old_or_new_block_by_block() {
    let mut disk = disk(CrashModel::EXT4);
    with(&mut disk, |user, root| {
        let file = write_file(user, root, b"f", 1);
        user.sync_all(root).unwrap();
        user.write(file, 0, &[2; LENGTH]).unwrap();
        user.close(file).unwrap();
    });
    let mut mixed = false;
    for seed in 0..CUTS {
        let bytes = content(&mut disk.cut(seed), b"f").unwrap();
        assert_eq!(bytes.len(), LENGTH);
        for block in bytes.chunks(4096) {
            assert!(block.iter().all(|byte| byte == &block[0]) && [1, 2].contains(&block[0]));
        }
        mixed |= bytes.contains(&1) && bytes.contains(&2);
    }
    assert!(mixed);
}

#[test]
fn a_failed_flush_is_reported_once_and_its_data_is_lost() {
    let mut disk = disk(CrashModel::EXT4);
    disk.faults_mut().add(Rule {
        call: Some(Call::SyncData),
        at: Where::Path(b"f".to_vec()),
        when: When::Nth(1),
        fault: Fault::LosesData(Errno::IO),
    });
    with(&mut disk, |user, root| {
        let file = write_file(user, root, b"f", 1);
        assert_eq!(user.sync_data(file), Err(Errno::IO));
        assert_eq!(user.sync_data(file), Ok(()));
        user.sync_all(root).unwrap();
        user.close(file).unwrap();
    });
    assert_eq!(content(&mut disk, b"f"), Some(vec![1; LENGTH]), "the cache has it");
    assert_eq!(outcomes(&disk, b"f", 1), BTreeSet::from(["empty"]));
    // Written and flushed again, it is there.
    with(&mut disk, |user, root| {
        let file = user.open(root, b"f", Open::WRITE).unwrap();
        user.write(file, 0, &[1; LENGTH]).unwrap();
        user.sync_data(file).unwrap();
        user.close(file).unwrap();
    });
    assert_eq!(outcomes(&disk, b"f", 1), BTreeSet::from(["whole"]));
}

#[test]
fn what_only_a_handle_has_is_gone_and_its_space_is_free() {
    for model in MODELS {
        let mut disk = disk(model);
        with(&mut disk, |user, root| {
            let file = write_file(user, root, b"f", 1);
            user.sync_all(root).unwrap();
            user.unlink(root, b"f").unwrap();
            user.sync(root).unwrap();
            assert_eq!(user.stat(file).unwrap().links, 0);
        });
        assert_eq!(disk.usage().blocks, 3);
        let after = disk.cut(0);
        assert_eq!((after.usage().blocks, after.usage().inodes), (0, 1), "{model:?}");
        disk.kill();
        assert_eq!((disk.usage().blocks, disk.usage().inodes), (0, 1), "{model:?}");
    }
}

#[test]
fn a_process_that_is_killed_loses_nothing() {
    let mut disk = disk(CrashModel::WEAK);
    with(&mut disk, |user, root| write_file(user, root, b"f", 1));
    disk.kill();
    assert_eq!(disk.open_handles(), 0);
    assert_eq!(content(&mut disk, b"f"), Some(vec![1; LENGTH]));
}

#[test]
fn one_seed_is_one_cut() {
    let mut disk = disk(CrashModel::WEAK);
    with(&mut disk, |user, root| {
        for number in 0..20 {
            let file = write_file(user, root, &[b'a' + number], number + 1);
            user.close(file).unwrap();
        }
    });
    let seen = |seed| {
        let mut disk = disk.cut(seed);
        let names = names(&mut disk);
        let contents: Vec<_> = names.iter().map(|name| content(&mut disk, name)).collect();
        (names, contents)
    };
    for seed in 0..20 {
        assert_eq!(seen(seed), seen(seed));
    }
    assert!((1..20).any(|seed| seen(seed) != seen(0)));
}

/// A file `f` that is on storage, and then a directory `a` and a write into the file.
fn file_and_later_directory(model: CrashModel, offset: u64, flushes: bool) -> Disk {
    let mut disk = disk(model);
    with(&mut disk, |user, root| {
        let file = write_file(user, root, b"f", 1);
        user.sync_all(root).unwrap();
        user.make_directory(root, b"a", 0o755).unwrap();
        user.write(file, offset, &[2; LENGTH]).unwrap();
        if flushes {
            user.sync_data(file).unwrap();
        }
        user.close(file).unwrap();
    });
    disk
}

#[test]
fn new_blocks_are_not_there_before_earlier_operations() {
    for (offset, comes_later) in [(LENGTH as u64, true), (0, false)] {
        let disk = file_and_later_directory(CrashModel::EXT4, offset, false);
        let mut seen = BTreeSet::new();
        for seed in 0..CUTS {
            let mut disk = disk.cut(seed);
            let is_written = content(&mut disk, b"f").unwrap().contains(&2);
            seen.insert((names(&mut disk).contains(&b"a".to_vec()), is_written));
        }
        let mut expected = BTreeSet::from([(false, false), (true, false), (true, true)]);
        expected.extend((!comes_later).then_some((false, true)));
        assert_eq!(seen, expected, "at {offset}");
    }
}

#[test]
fn a_flush_commits_earlier_operations_only_if_it_has_to_commit_something() {
    for (offset, commits) in [(LENGTH as u64, true), (0, false)] {
        let disk = file_and_later_directory(CrashModel::EXT4, offset, true);
        let mut is_there = BTreeSet::new();
        for seed in 0..CUTS {
            let mut disk = disk.cut(seed);
            let bytes = content(&mut disk, b"f").unwrap();
            assert_eq!(bytes[offset as usize..][..LENGTH], [2; LENGTH]);
            is_there.insert(names(&mut disk).contains(&b"a".to_vec()));
        }
        assert_eq!(is_there.contains(&false), !commits, "at {offset}");
    }
}

#[test]
fn a_flush_of_a_file_may_leave_later_operations_in_the_cache() {
    let mut disk = disk(CrashModel::EXT4);
    with(&mut disk, |user, root| {
        let file = write_file(user, root, b"f", 1);
        user.sync_all(root).unwrap();
        user.make_directory(root, b"a", 0o755).unwrap();
        user.set_mode(file, 0o600).unwrap();
        user.make_directory(root, b"b", 0o755).unwrap();
        user.sync(file).unwrap();
        user.close(file).unwrap();
    });
    let mut seen = BTreeSet::new();
    for seed in 0..CUTS {
        let mut disk = disk.cut(seed);
        assert_eq!(with(&mut disk, |user, root| user.stat((root, b"f"))).unwrap().mode, 0o600);
        seen.insert(names(&mut disk).concat());
    }
    assert_eq!(seen, BTreeSet::from([b"abf".to_vec(), b"af".to_vec()]));
}

#[test]
fn operations_on_one_directory_keep_their_order_everywhere() {
    for model in MODELS {
        let mut disk = disk(model);
        with(&mut disk, |user, root| {
            for name in b"abc" {
                user.make_directory(root, &[*name], 0o755).unwrap();
            }
            user.remove_directory(root, b"a").unwrap();
        });
        let letters = |seed| names(&mut disk.cut(seed)).concat();
        let seen: BTreeSet<Vec<u8>> = (0..CUTS).map(letters).collect();
        let states = [b"".as_slice(), b"a", b"ab", b"abc", b"bc"].map(<[u8]>::to_vec);
        assert_eq!(seen, BTreeSet::from(states), "{model:?}");
    }
}

#[test]
fn what_a_failed_flush_has_lost_is_read_as_written_until_the_cache_forgets_it() {
    let mut disk = Disk::new(Profile::ext4(), Clock::new(SimulatedTime::starting_at(1), 1), 1);
    let root = Actor::root();
    let mut user = disk.as_user(&root);
    let top = user.root();
    let file = user.open(top, b"f", Open::new_file(0o644)).unwrap();
    user.write(file, 0, &[1; 9000]).unwrap();
    user.sync(file).unwrap();
    user.write(file, 5000, &[2; 100]).unwrap();
    let (fault, when) = (Fault::LosesData(Errno::IO), When::Nth(1));
    let rule = Rule { call: Some(Call::SyncData), at: Where::Anywhere, when, fault };
    disk.faults_mut().add(rule);
    let mut user = disk.as_user(&root);
    assert_eq!(user.sync_data(file), Err(Errno::IO));
    assert_eq!(user.sync_data(file), Ok(()), "the error is reported once");
    let read = |user: &mut User<'_>| {
        let mut bytes = [0; 2];
        user.read(file, 4999, &mut bytes).map(|_| bytes)
    };
    assert_eq!(read(&mut user), Ok([1, 2]));
    user.forget(file, 0, 0).unwrap();
    assert_eq!(read(&mut user), Ok([1, 1]));
    user.write(file, 5000, &[3]).unwrap();
    user.forget(file, 0, 0).unwrap();
    assert_eq!(read(&mut user), Ok([1, 3]), "what waits to be written is not forgotten");
}
