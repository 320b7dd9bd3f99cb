//! A tree beside its manifest.
use super::{Bench, damage, is_root, pattern, two_trees};
use dmover_testkit::faultfs::{Action, Op, Rule};
use dmover_testkit::image::{FileSystem, Image};
use dmover_testkit::skip;

/// A tree, its copy, and the manifest of the copy.
fn recorded(bench: &Bench, more: &str) {
    two_trees(bench);
    bench.sh("rm -r b");
    bench.dmover(&format!("copy -q -T --manifest m {more} a b")).expect_code(0);
}

#[test]
fn an_intact_tree_is_as_its_manifest_says() {
    for more in
        ["", "--split-size=1M", "--hash-type=sha256", "--hash-type=md5 --hash-leaf-size=64K"]
    {
        let bench = Bench::new();
        recorded(&bench, more);
        for line in ["", "b", "--split-size=1M b", "--direct-read -j1 b", "--level=mtime b"] {
            assert_eq!(bench.verify(&format!("--manifest m {line}"), 0), [], "{more} {line}");
        }
        // Elsewhere as well: paths are relative.
        bench.sh("cp -a b moved; rm -r b");
        assert_eq!(bench.verify("--manifest m moved", 0), []);
        bench.dmover("verify --manifest m").expect_code(2);
    }
}

#[test]
fn differences_to_a_manifest_are_named_and_weighed() {
    let bench = Bench::new();
    recorded(&bench, "");
    bench.sh("chmod 700 b/d/e; touch b/more; touch -r a b");
    // Nothing is corrupt: 1.
    assert_eq!(bench.differences("--manifest m b", 1), ["b/d/e: mode", "b/more: extra"]);
    damage(&bench, "b/d/one", 1_048_577);
    bench.sh("rm b/pipe b/hard; cp -a b/d/two b/hard; ln -sfn nowhere b/link; touch -h -r a/link b/link; touch -r a b");
    let found = bench.differences("--manifest m b", 7);
    let expected =
        ["b/d/e: mode", "b/d/one: content", "b/link: target", "b/more: extra", "b/pipe: missing"];
    for line in expected {
        assert!(found.contains(&line.to_owned()), "{line}: {found:?}");
    }
    assert!(
        found.contains(&"b/hard: links".into()) || found.contains(&"b/d/two: links".into()),
        "{found:?}"
    );
    assert_eq!(found.len(), 6);
    let one = bench.verify("--manifest m b", 7);
    let one = one.iter().find(|one| one.path == "b/d/one").unwrap();
    assert_eq!(one.ranges, [(1_048_576, 2_097_152)], "a leaf");
}

#[test]
fn files_that_were_cut_or_grew_differ_where_they_do() {
    let bench = Bench::new();
    recorded(&bench, "");
    bench.sh("truncate -s 2500000 b/d/one; touch -r a/d/one b/d/one; printf more >> b/empty; touch -r a/empty b/empty");
    let found = bench.verify("--manifest m b", 7);
    let of = |path: &str| found.iter().find(|one| one.path == path).unwrap();
    assert_eq!(of("b/d/one").ranges, [(2_097_152, 3_000_000)]);
    assert_eq!((of("b/empty").kinds.as_str(), of("b/empty").ranges.len()), ("size", 0));
    assert_eq!(found.len(), 2);
}

#[test]
fn since_the_job_means_what_it_has_touched() {
    let bench = Bench::new();
    recorded(&bench, "");
    bench.write("a/later", "x");
    damage(&bench, "b/d/one", 7);
    // The second job finds all but one entry there, and its manifest names them as well.
    // Time has to pass in between, more than the tick by which change times may be late.
    bench.sh("sleep 0.1");
    bench.dmover("copy -q -T --manifest m a b").expect_code(0);
    assert_eq!(bench.verify("--manifest m --since=job --no-preserve=times b", 0), []);
    assert_eq!(bench.differences("--manifest m b", 7), ["b/d/one: content"]);
    damage(&bench, "b/later", 0);
    assert_eq!(bench.differences("--manifest m --since=job b", 7), ["b/later: content"]);
    bench.dmover("verify --since=job a b").expect_code(2);
}

#[test]
fn a_damaged_manifest_is_no_proof() {
    let bench = Bench::new();
    recorded(&bench, "");
    // Cut, changed in the middle, changed in its header, of something else, empty.
    bench.sh("head -c -20 m > cut; cp m flipped; printf '\\377' | dd of=flipped bs=1 seek=200 conv=notrunc status=none
        cp m head; printf '\\377' | dd of=head bs=1 seek=25 conv=notrunc status=none; : > none");
    for (name, code) in [("cut", 7), ("flipped", 7), ("head", 2), ("none", 2), ("a/d/one", 2)] {
        let run = bench.dmover(&format!("verify --manifest {name} b")).expect_code(code);
        assert!(run.stderr.contains(name), "{}", run.tell());
    }
}

#[test]
fn repairs_come_from_a_tree_that_is_as_the_manifest_says() {
    let bench = Bench::new();
    recorded(&bench, "--split-size=1M");
    damage(&bench, "b/d/one", 5);
    bench.sh("truncate -s 100000 b/d/two; rm b/pipe; rm -r b/d/e; chmod 600 b/empty; ln -sfn x b/link; truncate -s 4M b/hole");
    bench.dmover("verify --repair --manifest m b").expect_code(2);
    let run = bench.dmover("verify --level=bytes --manifest m b").expect_code(2);
    assert!(run.stderr.contains("digests, not bytes"), "{}", run.tell());
    let found = bench.verify("--repair --manifest m --from a b", 0);
    assert!(found.iter().all(|one| one.repaired == Some(true)), "{found:?}");
    assert_eq!(bench.rsync("a", "b"), "");
    assert_eq!(bench.verify("--manifest m b", 0), []);
}

/// `getfattr`, `getfacl` and `lsattr` of both trees say whether a repair has put back what they show.
const SHOWN: &str = "for tree in a b; do
    (cd $tree; find . ! -type l ! -type p -print0 | sort -z > ../names; xargs -0 -a ../names getfattr -d -m - -h
    xargs -0 -a ../names getfacl; xargs -0 -a ../names lsattr -d) > of-$tree
    done; cmp of-a of-b";

#[test]
fn attributes_that_no_look_shows_are_in_a_manifest() {
    let bench = Bench::new();
    two_trees(&bench);
    bench.sh(
        "setfacl -m u:99:rw a/d/one; setfacl -d -m u:98:rwx a/d; setfacl -m g:7:r a/d/e; chattr +d a/d/two; setfattr -n user.x -v 1 a
         truncate -s 9M a/large; setfattr -n user.x -v 1 a/large; ln a/large a/larger; rm -r b",
    );
    bench.dmover("copy -q -T --manifest m --split-size=4M a b").expect_code(0);
    assert_eq!(bench.verify("--manifest m b", 0), []);
    // A rerun, which leaves everything alone, has the same manifest, but for what names the job.
    bench.dmover("copy -q -T --manifest again --split-size=4M a b").expect_code(0);
    bench.dmover("manifest diff m again").expect_code(0);
    bench.sh(
        "setfattr -n user.x -v 2 b; setfacl -m u:99:r,m::rw b/d/one; setfacl -k b/d; setfacl -b b/d/e; chmod g=rx b/d/e
         chattr -d b/d/two; setfattr -n user.new -v 2 b/empty; setfattr -x user.x b/large",
    );
    assert_eq!(bench.differences("--manifest m --level=mtime b", 0), [] as [&str; 0]);
    let expected = [
        "b/d/e: acl",
        "b/d/one: acl",
        "b/d/two: flags",
        "b/d: acl",
        "b/empty: xattr",
        "b/hard: flags",
        "b/large: xattr",
        "b/larger: xattr",
        "b: xattr",
    ];
    assert_eq!(bench.differences("--manifest m b", 1), expected);
    let less = "--no-preserve=acl,flags --exclude=/large* --exclude=/empty";
    assert_eq!(bench.differences(&format!("--manifest m {less} b"), 1), ["b: xattr"]);
    // The manifests of both trees differ in the same.
    bench.dmover("copy -q -T --manifest other --split-size=4M b c").expect_code(0);
    let run = bench.dmover("manifest diff m other").expect_code(1);
    let text = String::from_utf8(run.stdout).unwrap();
    let told: Vec<_> = text.lines().map(|line| line.replace("changed  ", "b/")).collect();
    for line in expected {
        let line = line.replace("b: ", "b/.: ");
        assert!(told.contains(&line), "{line}: {told:?}");
    }
    assert_eq!(told.len(), expected.len(), "{told:?}");
    let found = bench.verify("--repair --manifest m --from a b", 0);
    assert!(found.iter().all(|one| one.repaired == Some(true)), "{found:?}");
    bench.sh(SHOWN);
    // A source that has other attributes than the manifest is no help.
    bench.sh("setfattr -n user.x -v 3 b/large; setfattr -n user.x -v 4 a/large");
    let run = bench.dmover("verify --repair --manifest m --from a b").expect_code(7);
    assert!(run.stderr.contains("does not match the manifest either: xattr"), "{}", run.tell());
    bench.sh("getfattr --only-values -n user.x b/large | grep -qx 3");
}

/// What links lead to has a name of its own in the copy, and a rerun knows as much of it as the first run.
#[test]
fn a_manifest_of_a_copy_that_follows_links_is_of_that_copy() {
    let bench = Bench::new();
    bench.sh("mkdir a; echo 1 > a/f; ln a/f a/hard; ln -s f a/link; mkfifo pipe; setfacl -m u:3:r pipe; ln -s ../pipe a/to-pipe");
    for manifest in ["first", "again"] {
        bench.dmover(&format!("copy -q -T -L --manifest {manifest} a b")).expect_code(0);
        assert_eq!(bench.verify(&format!("--manifest {manifest} b"), 0), [], "{manifest}");
    }
    bench.dmover("manifest diff first again").expect_code(0);
    bench.sh("setfacl -m u:4:r b/to-pipe");
    assert_eq!(bench.differences("--manifest again b", 1), ["b/to-pipe: acl"]);
}

/// What only a privileged reader sees is not missing for another.
#[test]
fn trusted_attributes_count_for_who_sees_them() {
    if !is_root() {
        skip!("needs root to set attributes of the namespace trusted");
    }
    let bench = Bench::new();
    bench.sh("mkdir a; echo 1 > a/f; setfattr -n trusted.t -v 1 a/f");
    bench.dmover("copy -q -T --manifest m a b").expect_code(0);
    let program = super::bench::PROGRAM;
    let unseeing =
        format!("capsh --drop=cap_sys_admin -- -c '\"{program}\" verify -q --manifest m b'");
    bench.sh(&unseeing);
    bench.sh("setfattr -n trusted.t -v 2 b/f");
    bench.sh(&unseeing);
    assert_eq!(bench.differences("--manifest m b", 1), ["b/f: xattr"]);
}

/// A copy leaves alone what the destination hands down, so it is no difference.
#[test]
fn a_project_that_is_handed_down_is_no_difference() {
    let test = "a_project_that_is_handed_down_is_no_difference";
    let Some(image) = Image::create_or_skip(test, FileSystem::Xfs, 400 << 20) else { return };
    let bench = Bench::inside(image.path());
    bench.sh("mkdir -p a/d up; echo 1 > a/d/f; chattr -p 42 up; chattr +P up");
    bench.dmover("copy -q -T --manifest m a up/b").expect_code(0);
    assert!(bench.sh("lsattr -p up/b/d/f").trim_start().starts_with("42 "), "it was handed down");
    assert_eq!(bench.verify("--manifest m up/b", 0), []);
    assert_eq!(bench.verify("a up/b", 0), []);
    // A project of the source's own is another matter.
    bench.sh("chattr -p 7 a/d/f");
    assert_eq!(bench.differences("a up/b", 1), ["up/b/d/f: project"]);
}

#[test]
fn what_is_wrong_at_the_source_of_repairs_is_not_used() {
    let bench = Bench::new();
    recorded(&bench, "");
    damage(&bench, "b/d/one", 5);
    damage(&bench, "a/d/one", 6);
    let before = bench.sh("sha256sum < b/d/one");
    let run = bench.dmover("verify --repair --manifest m --from a b").expect_code(7);
    assert!(run.stderr.contains("does not match the manifest either"), "{}", run.tell());
    assert_eq!(bench.sh("sha256sum < b/d/one"), before);
    // What a directory has there is not taken over either.
    bench.sh("chmod 700 a/d; touch -d 2022-01-01 a/d");
    damage(&bench, "b/d/e/three", 9);
    bench.dmover("verify --repair --manifest m --from a b").expect_code(7);
    bench.sh("cmp a/d/e/three b/d/e/three");
    assert_eq!(bench.mode("b/d"), 0o755);
    let found = bench.differences("--manifest m b", 7);
    assert_eq!(found, ["b/d/one: content"]);
}

#[test]
fn names_are_linked_again_without_a_look_at_the_source() {
    let bench = Bench::new();
    bench.sh("mkdir a; printf GOODGOOD > a/f; ln a/f a/g");
    bench.dmover("copy -q -T --manifest m a b").expect_code(0);
    bench.sh("rm b/g; cp -a b/f b/g; touch -r a b; old=$(stat -c %y a/f); printf EVILEVIL > a/f; touch -d \"$old\" a/f");
    bench.verify("--repair --manifest m --from a b", 0);
    assert_eq!(bench.read("b/f") + &bench.read("b/g"), "GOODGOODGOODGOOD");
    assert_eq!(bench.inode("b/f"), bench.inode("b/g"));
    assert_eq!(bench.verify("--manifest m b", 0), []);
}

#[test]
fn every_name_of_a_large_linked_file_has_its_digest() {
    let bench = Bench::new();
    bench.write("a/f", pattern(5_000_000));
    bench.sh("ln a/f a/g");
    bench.dmover("copy -q -T --manifest m --split-size=1M a b").expect_code(0);
    damage(&bench, "b/f", 4_000_000);
    let found = bench.differences("--manifest m --no-preserve=links b", 7);
    assert_eq!(found, ["b/f: content", "b/g: content"]);
}

#[test]
fn a_manifest_of_some_entries_says_nothing_of_others() {
    let bench = Bench::new();
    bench.sh("mkdir -p into/other/deep; touch into/other/deep/x into/y; printf z > x; mkdir t; touch t/in");
    bench.dmover("copy -q --manifest m x into/").expect_code(0);
    assert_eq!(bench.verify("--manifest m", 0), []);
    bench.dmover("copy -q --manifest m -t into x t").expect_code(0);
    assert_eq!(bench.verify("--manifest m into", 0), []);
    bench.sh("touch into/t/more; touch -r t into/t");
    assert_eq!(bench.differences("--manifest m into", 1), ["into/t/more: extra"]);
    bench.sh("rm into/x");
    let found = bench.differences("--manifest m --exclude=x --exclude=more into", 0);
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn a_file_that_never_rests_ends_the_check_of_it() {
    let bench = Bench::new();
    bench.write("a/f", pattern(16_000_000));
    bench.dmover("copy -q -T --manifest m a b").expect_code(0);
    // It has to be gone before the directory goes: it looks for a file that goes with it.
    let touching =
        bench.undo("touch stop; while kill -0 $(cat pid) 2> /dev/null; do sleep 0.01; done");
    bench.sh("(while [ ! -e stop ]; do touch b/f; sleep 0.02; done) > ended 2>&1 & echo $! > pid");
    let run = bench.dmover("verify --manifest m --split-size=1M --bwlimit=32M b").expect_code(3);
    assert!(run.stderr.contains("changed"), "{}", run.tell());
    drop(touching);
}

#[test]
fn missing_and_separate_names_become_one_inode_again_in_one_run() {
    let bench = Bench::new();
    bench.write("a/f", pattern(10_000));
    bench.sh("mkdir a/d; for n in 1 2 3 4 5; do ln a/f a/d/$n; done");
    bench.dmover("copy -q -T --manifest m a b").expect_code(0);
    bench.sh("rm b/d/1 b/f; for n in 2 3 4; do cp -a b/d/$n x; mv x b/d/$n; done; touch -r a/d b/d; touch -r a b");
    damage(&bench, "b/d/5", 77);
    bench.verify("--repair --manifest m --from a b", 0);
    assert_eq!(bench.rsync("a", "b"), "");
    assert_eq!(bench.verify("--manifest m b", 0), []);
    // Also a directory that is gone with the names in it.
    bench.sh("rm -r b/d; touch -r a b");
    bench.verify("--repair --manifest m --from a b", 0);
    assert_eq!(bench.rsync("a", "b"), "");
}

#[test]
fn a_manifest_finds_its_tree_from_anywhere() {
    let bench = Bench::new();
    bench.write("f", "content");
    bench.dmover("copy -q --manifest m f g").expect_code(0);
    bench.sh("mkdir elsewhere");
    bench.verify("--manifest m", 0);
    bench.sh(&format!("cd elsewhere; {} verify --manifest ../m", super::bench::PROGRAM));
    bench.sh("printf CONTENT > g; touch -r f g");
    assert_eq!(bench.verify("--manifest m", 7).len(), 1);
}

/// Another mover makes the directory of an entry, which hands its own ACL down, while the record of the directory is dealt with.
#[test]
fn a_missing_directory_gets_its_acl_whoever_makes_it() {
    let Some((handle, bench)) = Bench::faulty().filter(|_| is_root()) else {
        skip!("needs root and /dev/fuse");
    };
    bench.sh("mkdir -p a/q; setfacl -d -m u::rwx,g::rwx,o::rwx,u:55:rwx a
          for n in $(seq 20); do echo $n > a/q/x$n; setfacl -b a/q/x$n; chmod 640 a/q/x$n; done; ln a/q/x3 a/q/y
          setfacl -b -k a/q; chmod 750 a/q; setfacl -m u:77:rwx a/q");
    bench.dmover("copy -q -T --manifest m a backing").expect_code(0);
    let acls = |tree: &str| {
        bench.sh(&format!("cd {tree}; find . -print0 | sort -z | xargs -0 getfacl -pn; find . -printf '%p %m %t\\n' | sort"))
    };
    for _ in 0..10 {
        bench.sh("rm -r backing/q");
        // Between the making of a directory and what is done with it afterwards.
        let wait = Rule::new(Op::Opendir, Action::Hang { duration_ms: 100 }).name("q");
        handle.set_rules(&[wait]).unwrap();
        bench.verify("-j2 --repair --manifest m --from a faulty", 0);
        assert_eq!(acls("a"), acls("backing"));
    }
}

/// One time of change in a hundred is a multiple of 100 ns, which says nothing of the file system's steps.
#[test]
fn a_nanosecond_is_a_difference_whatever_the_time_of_the_change() {
    let bench = Bench::new();
    bench.sh(
        r#"mkdir a; echo 1 > a/f; touch -d '2001-01-01 00:00:00.123456700' a/f; cp -a a b; cp -a a c
          python3 - <<'END'
import os
for tree in "b", "c":
    before = os.stat("a/f").st_mtime_ns
    for _ in range(100000):
        os.utime(tree + "/f", ns=(before, before + 1))
        if os.stat(tree + "/f").st_ctime_ns % 100 == 0:
            break
    else:
        raise SystemExit("no such time of change")
END"#,
    );
    bench.dmover("copy -q -T --manifest m a d").expect_code(0);
    assert_eq!(bench.differences("a b", 1), ["b/f: mtime"]);
    assert_eq!(bench.differences("--repair --manifest m --from a c", 0), ["c/f: mtime"]);
    assert_eq!(bench.sh("stat -c %y a/f"), bench.sh("stat -c %y c/f"));
}
