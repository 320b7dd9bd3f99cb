//! `verify --repair`: what differs is brought over again, and only that.
use super::bench::wait_for_fault;
use super::{Bench, damage, found, is_root, pattern, two_trees};
use dmover_testkit::faultfs::{Action, Op, Rule, When};
use dmover_testkit::image::{FileSystem, Image};
use dmover_testkit::lanes::check::leftovers;
use dmover_testkit::skip;
use std::path::PathBuf;

fn spoil(bench: &Bench) {
    damage(bench, "b/d/one", 5);
    damage(bench, "b/d/one", 2_500_000);
    bench.sh(
        r"cd b; rm pipe hard; cp -a d/two hard; ln -sfn d/two link; rm -r d/e; chmod 600 empty
          setfattr -x user.a d/two; setfattr -n user.b -v 2 empty; setfattr -n user.d -v 2 d; rmdir none
          truncate -s 1M hole; touch -d 2001-02-03 hole d; printf x >> $'new\nline'",
    );
}

#[test]
fn everything_that_differs_is_right_afterwards() {
    let bench = Bench::new();
    two_trees(&bench);
    spoil(&bench);
    let run = bench.dmover("verify --repair --json a b").expect_code(0);
    let found = found(&run);
    assert!(found.len() > 8 && found.iter().all(|one| one.repaired == Some(true)), "{found:?}");
    assert_eq!(bench.rsync("a", "b"), "");
    bench.assert_same("a", "b");
    assert_eq!(bench.verify("a b", 0), []);
}

#[test]
fn extra_entries_stay_and_are_told() {
    let bench = Bench::new();
    two_trees(&bench);
    bench.sh("touch b/more; touch -r a b; rm b/pipe");
    let found = bench.verify("--repair a b", 1);
    let extra = found.iter().find(|one| one.kinds == "extra").unwrap();
    assert_eq!((extra.path.as_str(), extra.repaired), ("b/more", Some(false)));
    assert!(bench.exists("b/more") && bench.exists("b/pipe"));
    bench.verify("--repair --ignore-extra a b", 0);
}

#[test]
fn only_bytes_that_differ_are_written_and_the_inode_stays() {
    let bench = Bench::new();
    two_trees(&bench);
    damage(&bench, "b/d/one", 2_500_000);
    let inode = bench.inode("b/d/one");
    let run = bench.dmover("verify --repair --json a b").expect_code(0);
    let summary = run.said().unwrap().summary.unwrap();
    assert_eq!(summary.number("bytes_copied"), Some(1), "{}", run.tell());
    assert_eq!(bench.inode("b/d/one"), inode, "no blocks can be shared here");
    bench.sh("cmp a/d/one b/d/one");
}

#[test]
fn where_blocks_can_be_shared_a_mended_clone_takes_the_place() {
    let test = "where_blocks_can_be_shared_a_mended_clone_takes_the_place";
    let Some(image) = Image::create_or_skip(test, FileSystem::Xfs, 400 << 20) else { return };
    let bench = Bench::inside(image.path());
    two_trees(&bench);
    damage(&bench, "b/d/one", 2_500_000);
    let inode = bench.inode("b/d/one");
    let run = bench.dmover("verify --repair --json a b").expect_code(0);
    let summary = run.said().unwrap().summary.unwrap();
    assert_eq!(summary.number("bytes_copied"), Some(1), "{}", run.tell());
    assert_ne!(bench.inode("b/d/one"), inode);
    assert_eq!(bench.rsync("a", "b"), "");
    assert_eq!(leftovers(&bench.at("b")).unwrap(), Vec::<PathBuf>::new());
}

/// A time or size that differs says that the content may as well; what was not read must not look right.
#[test]
fn content_that_was_not_compared_is_copied_whole() {
    for level in ["size", "mtime"] {
        let bench = Bench::new();
        bench.write("a/f", pattern(5_000_000));
        bench.sh("mkdir b; head -c 3000000 /dev/urandom > b/f");
        if level == "mtime" {
            bench.sh("head -c 5000000 /dev/urandom > b/f");
        }
        bench.verify(&format!("--repair --level={level} a b"), 0);
        bench.sh("cmp a/f b/f");
    }
    let bench = Bench::new();
    bench.sh("mkdir a b; printf AAAA > a/f; printf BBBB > b/f; touch -d 2020-01-01 a/f");
    bench.verify("--repair --sample=0.0001 a b", 0);
    bench.sh("cmp a/f b/f");
}

#[test]
fn other_names_of_a_file_are_not_written_through() {
    let bench = Bench::new();
    bench.write("a/f", pattern(100_000));
    bench.sh("cp -a a b; ln b/f elsewhere");
    damage(&bench, "b/f", 50);
    let before = bench.sh("sha256sum < elsewhere");
    bench.verify("--repair a b", 0);
    assert_eq!(bench.sh("sha256sum < elsewhere"), before);
    bench.sh("cmp a/f b/f");
}

#[test]
fn linked_files_stay_linked() {
    for more in ["", "--split-size=1M", "--level=size"] {
        let bench = Bench::new();
        bench.write("a/f", pattern(3_000_000));
        bench.sh("ln a/f a/g; ln a/f a/h; cp -a a b");
        if more == "--level=size" {
            bench.sh("rm b/g");
        } else {
            damage(&bench, "b/f", 1_500_000);
        }
        bench.verify(&format!("--repair {more} a b"), 0);
        assert_eq!(bench.rsync("a", "b"), "", "{more}");
        assert_eq!(bench.inode("b/f"), bench.inode("b/h"));
        bench.verify("a b", 0);
    }
}

/// What was compared and what is brought over have to be one version, or the copy would be a mixture of two.
#[test]
fn a_source_that_changed_after_it_was_compared_is_compared_again() {
    let Some((handle, bench)) = Bench::faulty().filter(|_| is_root()) else {
        skip!("needs root and /dev/fuse");
    };
    bench.write("backing/a/f", pattern(6_000_000));
    bench.sh("cp -a backing/a b; printf damage | dd of=b/f bs=1 seek=5000 conv=notrunc status=none; touch -r backing/a/f b/f");
    // It is opened to be compared, and once more to be brought over.
    let hang = Rule::new(Op::Open, Action::Hang { duration_ms: 60_000 });
    handle.set_rules(&[hang.name("f").when(When::Nth(2))]).unwrap();
    let running = bench.dmover.start(["verify", "--repair", "faulty/a", "b"]).unwrap();
    wait_for_fault(&handle);
    bench.sh("printf later | dd of=backing/a/f bs=1 seek=3000000 conv=notrunc status=none");
    handle.set_rules(&[]).unwrap();
    handle.release_hangs();
    let run = running.finish().unwrap().expect_code(0);
    assert!(run.text().contains("[repaired]"), "{}", run.tell());
    bench.sh("cmp backing/a/f b/f");
}

/// Waits until a repair has begun to write into `b/f`.
fn until_written(bench: &Bench) {
    bench.sh(
        r#"n=0; while [ "$(stat -c %y b/f)" = "$(stat -c %y a/f)" ] && [ $n -lt 3000 ]; do sleep 0.01; n=$((n + 1)); done"#,
    );
}

#[test]
fn a_source_that_changes_is_not_mixed_with_what_was_compared() {
    let bench = Bench::new();
    bench.write("a/f", pattern(16_000_000));
    bench.sh("cp -a a b; dd if=/dev/urandom of=b/f bs=1M count=8 conv=notrunc status=none; touch -r a/f b/f");
    let line = "verify --repair --split-size=0 --bwlimit=16M a b";
    let running = bench.dmover.start(line.split_whitespace()).unwrap();
    // As soon as something was written, bytes change that were equal when they were compared.
    until_written(&bench);
    bench.sh("printf NEWDATA | dd of=a/f bs=1 seek=14000000 conv=notrunc status=none");
    let run = running.finish().unwrap();
    let equal = std::fs::read(bench.at("a/f")).unwrap() == std::fs::read(bench.at("b/f")).unwrap();
    let looks_done = bench.dmover("verify --level=mtime a b").code() == Some(0);
    assert!(equal || (run.code() != Some(0) && !looks_done), "{}", run.tell());
}

#[test]
fn what_may_not_be_set_is_not_called_repaired() {
    if !is_root() {
        skip!("needs root to run as somebody else");
    }
    let bench = Bench::new().unprivileged();
    bench.sh("mkdir a; printf x > a/f; cp -a a b; chown 0:0 a a/f; chown -R 65534:65534 b; chmod 755 a; chmod 644 a/f");
    bench.dmover("verify --repair a b").expect_code(0);
    let run = bench.dmover("verify --repair --preserve=owner --json a b").expect_code(1);
    assert!(found(&run).iter().all(|one| one.kinds == "owner" && one.repaired == Some(false)));
}

/// A flag that keeps a file as it is has to go before the file can be mended, and that is told.
#[test]
fn flags_that_are_taken_away_are_named() {
    if !is_root() {
        skip!("needs root to set flags");
    }
    taken_away(&Bench::new());
    // Where a clone takes the file's place.
    let test = "flags_that_are_taken_away_are_named";
    let Some(image) = Image::create_or_skip(test, FileSystem::Xfs, 400 << 20) else { return };
    taken_away(&Bench::inside(image.path()));
}

fn taken_away(bench: &Bench) {
    bench.sh("mkdir a; printf 1 > a/i; printf 1 > a/append; printf 1 > a/both; cp -a a b");
    let unlocked = bench.undo("chattr -R -i -a b");
    bench.dmover("copy -q -T --manifest m a c").expect_code(0);
    let unlocked_too = bench.undo("chattr -R -i -a c");
    for line in ["--repair a b", "--repair --manifest m --from a c"] {
        let tree = line.rsplit(' ').next().unwrap();
        damage(bench, &format!("{tree}/both"), 0);
        bench.sh(&format!("cd {tree} && chattr +i i both && chattr +a append"));
        let found = bench.verify(line, 0);
        let mut kinds: Vec<_> =
            found.iter().map(|one| (one.path.rsplit('/').next().unwrap(), &*one.kinds)).collect();
        kinds.sort_unstable();
        assert_eq!(
            kinds,
            [("append", "flags"), ("both", "content,flags"), ("i", "flags")],
            "{line}"
        );
        assert!(found.iter().all(|one| one.repaired == Some(true)), "{found:?}");
        bench.sh(&format!("cmp a/both {tree}/both; ! lsattr {tree} | cut -c1-20 | grep '[ia]'"));
    }
    drop((unlocked, unlocked_too));
}

#[test]
fn a_file_that_may_not_be_written_is_replaced() {
    if !is_root() {
        skip!("needs root to run as somebody else");
    }
    let bench = Bench::new().unprivileged();
    bench.write("a/f", pattern(100_000));
    bench.sh("chmod 444 a/f; cp -a a b; chown -R 65534:65534 a b; chmod 644 b/f");
    damage(&bench, "b/f", 50);
    bench.sh("chmod 444 b/f");
    bench.verify("--repair a b", 0);
    bench.sh("cmp a/f b/f");
    assert_eq!(bench.mode("b/f"), 0o444);
}

#[test]
fn locked_files_are_mended_and_locked_again() {
    let test = "locked_files_are_mended_and_locked_again";
    let Some(image) = Image::create_or_skip(test, FileSystem::Ext4, 64 << 20) else { return };
    let bench = Bench::inside(image.path());
    let _unlocked = bench.undo("chattr -R -i a b");
    bench.write("a/f", pattern(100_000));
    bench.sh("cp -a a b");
    damage(&bench, "b/f", 50);
    bench.sh("chattr +i a/f b/f");
    bench.verify("--repair a b", 0);
    bench.sh("cmp a/f b/f; lsattr b/f | grep -q -- i");
}

#[test]
fn directories_get_back_what_repairs_below_them_change() {
    let bench = Bench::new();
    two_trees(&bench);
    bench.sh("rm b/d/e/three b/pipe; touch -r a/d/e b/d/e; touch -r a b");
    let found = bench.differences("--repair a b", 0);
    assert_eq!(found, ["b/d/e/three: missing", "b/pipe: missing"]);
    assert_eq!(bench.rsync("a", "b"), "");
}

#[test]
fn killed_in_the_middle_it_looks_unfinished_and_can_be_repeated() {
    let bench = Bench::new();
    bench.write("a/f", pattern(30_000_000));
    bench.sh("cp -a a b; dd if=/dev/urandom of=b/f bs=1M count=20 conv=notrunc status=none; touch -r a/f b/f; touch -r a b");
    let line = "verify --repair --bwlimit=40M a b";
    let running = bench.dmover.start(line.split_whitespace()).unwrap();
    until_written(&bench);
    running.kill().unwrap();
    // Where blocks could be shared nothing would have been touched yet.
    let left = bench.differences("--level=mtime a b", 1);
    assert!(left.contains(&"b/f: mtime".into()), "{left:?}");
    bench.verify("--repair a b", 0);
    assert_eq!(bench.rsync("a", "b"), "");
    assert_eq!(leftovers(&bench.at("b")).unwrap(), Vec::<PathBuf>::new());
}

#[test]
fn the_directory_of_a_missing_directory_keeps_its_time() {
    let bench = Bench::new();
    bench.sh("mkdir -p a/d/e; touch a/d/e/f; touch -d 2001-01-01 a/d; cp -a a b; rm -r b/d/e; touch -r a/d b/d");
    let found = bench.differences("--repair a b", 0);
    assert_eq!(found, ["b/d/e/f: missing", "b/d/e: missing"]);
    assert_eq!(bench.rsync("a", "b"), "");
}
