//! What was renamed at a SOURCE on another host is renamed in DEST, and its content is not sent again.
use super::bench::Bench;
use super::ends::{Ends, LOCAL, WAYS, Way, assert_idle, count, ends};
use dmover_testkit::lanes::run::Run;
use std::os::unix::fs::MetadataExt;

const TREE: &str = "mkdir -p s/a/deep/er s/b; head -c 3000000 /dev/urandom > s/a/deep/er/big
    seq 100 > s/a/deep/one; seq 9 > s/b/two; setfattr -n user.x -v 1 s/a/deep/er; ln -s one s/a/deep/link
    mkfifo s/b/pipe; seq 5 > s/b/linked; ln s/b/linked s/a/linked; chmod 750 s/b; chmod 640 s/b/two; chown 12:13 s/b/two";

fn inode(bench: &Bench, path: &str) -> u64 {
    std::fs::symlink_metadata(bench.at(path)).unwrap_or_else(|e| panic!("{path}: {e}")).ino()
}

fn between_hosts() -> impl Iterator<Item = Way> {
    WAYS.into_iter().filter(|way| way.source != way.destination)
}

fn sync(ends: &Ends, way: Way, options: &str) -> Run {
    ends.let_age("s");
    ends.job(way, &format!("sync --json {options}"), ("s", "d")).expect_code(0)
}

fn begin_again(ends: &Ends) {
    ends.bench.sh("rm -rf s d");
    ends.bench.sh(TREE);
}

#[test]
fn renames_at_a_source_on_another_host_send_nothing_again() {
    let ends = ends!("renames_at_a_source_on_another_host_send_nothing_again");
    let bench = &ends.bench;
    for way in between_hosts() {
        println!("{way:?}");
        begin_again(&ends);
        sync(&ends, way, "");
        let [directory, big, two] =
            ["d/a/deep", "d/a/deep/er/big", "d/b/two"].map(|p| inode(bench, p));
        // A directory into a new one, and a file into another directory, whose owner and mode stay.
        bench.sh("mkdir -p s/new/place; mv s/a/deep s/new/place/d2; mv s/b/two s/a/second");
        let pass = sync(&ends, way, "");
        assert_eq!(count(&pass, "bytes_copied"), 0);
        assert_eq!(count(&pass, "entries_renamed"), 2, "{}", pass.tell());
        assert_eq!(inode(bench, "d/new/place/d2"), directory);
        assert_eq!(inode(bench, "d/new/place/d2/er/big"), big);
        assert_eq!(inode(bench, "d/a/second"), two);
        bench.assert_same("s", "d");
        assert_idle(&sync(&ends, way, "--delete"));
        // Another one, with the catalog that the last pass has kept.
        bench.sh("mv s/new/place/d2/er s/b/er; mv s/a/second s/b/two");
        let pass = sync(&ends, way, "");
        assert_eq!((count(&pass, "bytes_copied"), count(&pass, "entries_renamed")), (0, 2));
        assert_eq!(inode(bench, "d/b/er/big"), big);
        bench.assert_same("s", "d");
    }
}

#[test]
fn files_of_another_host_that_change_places_are_told_by_their_inodes() {
    let ends = ends!("files_of_another_host_that_change_places_are_told_by_their_inodes");
    let bench = &ends.bench;
    for way in between_hosts() {
        println!("{way:?}");
        bench.sh("rm -rf s d; mkdir -p s/x s/y s/z; for f in x/1 y/1 z/1 x/2 x/3 x/4; do echo $f > s/$f; done; touch -d @1000000000 s/*/*");
        sync(&ends, way, "");
        let before = bench.sh("cd d; stat -c %i x/1 y/1 z/1 x/2 x/3");
        // A quick check sees no difference: a cycle of directories, one of files, and a chain onto a name that goes.
        bench.sh("cd s; mv x t; mv y x; mv z y; mv t z; mv z/1 t; mv z/2 z/1; mv t z/2; mv z/4 t; mv z/3 z/4; rm t");
        let pass = sync(&ends, way, "--delete");
        assert_eq!(count(&pass, "bytes_copied"), 0);
        assert_eq!(bench.sh("diff -r s d"), "");
        assert_eq!(bench.sh("cd d; stat -c %i z/2 x/1 y/1 z/1 z/4"), before);
        bench.assert_same("s", "d");
    }
}

#[test]
fn a_new_version_under_an_old_name_is_still_found_after_a_rename() {
    let ends = ends!("a_new_version_under_an_old_name_is_still_found_after_a_rename");
    let bench = &ends.bench;
    for way in between_hosts() {
        println!("{way:?}");
        begin_again(&ends);
        sync(&ends, way, "");
        // The pass renews the file under its name, and has to keep in mind which object it is.
        bench.sh("seq 300 > s/a/deep/one; seq 400 > s/a/deep/new");
        let pass = sync(&ends, way, "");
        assert_eq!(count(&pass, "files_copied"), 2);
        let [one, new] = ["d/a/deep/one", "d/a/deep/new"].map(|path| inode(bench, path));
        bench.sh("mv s/a/deep/one s/b/one; mv s/a/deep/new s/b/new");
        let pass = sync(&ends, way, "");
        assert_eq!((count(&pass, "bytes_copied"), count(&pass, "entries_renamed")), (0, 2));
        assert_eq!(["d/b/one", "d/b/new"].map(|path| inode(bench, path)), [one, new]);
        // What was renamed and written to is sent, to its new place.
        bench.sh("mv s/b/one s/a/third; echo more >> s/a/third");
        sync(&ends, way, "");
        bench.assert_same("s", "d");
        // What only looks like the old one is none: another inode.
        bench.sh("cp -p s/a/third s/a/fourth; rm s/a/third");
        let pass = sync(&ends, way, "--delete");
        assert_eq!((count(&pass, "files_copied"), count(&pass, "entries_renamed")), (1, 0));
        bench.assert_same("s", "d");
    }
}

#[test]
fn renames_at_another_host_are_not_followed_where_they_are_not_wanted() {
    let ends = ends!("renames_at_another_host_are_not_followed_where_they_are_not_wanted");
    let bench = &ends.bench;
    let way = WAYS[0];
    begin_again(&ends);
    sync(&ends, way, "--no-renames");
    bench.sh("mv s/a/deep s/a/d2");
    assert_eq!(count(&sync(&ends, way, "--no-renames"), "entries_renamed"), 0);
    assert!(bench.at("d/a/deep").exists());
    // A rule that excludes the new name.
    begin_again(&ends);
    sync(&ends, way, "--exclude=*.no");
    bench.sh("mv s/a/deep s/a/d2.no; mv s/b/two s/b/two.no");
    let pass = sync(&ends, way, "--exclude=*.no");
    assert_eq!(count(&pass, "entries_renamed"), 0);
    assert!(bench.at("d/a/deep/er/big").exists() && bench.at("d/b/two").exists());
}

/// Makes a deep tree, or moves its entries at random: tree.py ROOT SEED make|move.
const MOVES: &str = r#"
import os, random, sys
root, seed, verb = sys.argv[1], int(sys.argv[2]), sys.argv[3]
draw = random.Random(seed)
def entries():
    return [(at, sorted(below), sorted(files)) for at, below, files in os.walk(root)]
def move(source, target):
    try:
        os.rename(source, target)
    except OSError:
        pass
if verb == "make":
    for n in range(80):
        os.makedirs(os.path.join(draw.choice(entries())[0] if n else root, f"d{n}"))
    for n in range(250):
        with open(os.path.join(draw.choice(entries())[0], f"f{n}"), "w") as file:
            file.write(f"{n:05}\n")
        os.utime(file.name, (10**9, 10**9))
for n in range(40 if verb == "move" else 0):
    found = sorted(entries())
    at, below, files = draw.choice(found)
    names = below + files
    if not names:
        continue
    one, other = os.path.join(at, draw.choice(names)), draw.choice(found)
    # Into another directory, to another name, or in the place of another one.
    kind = draw.randrange(3)
    if kind == 0:
        move(one, os.path.join(other[0], f"m{n}"))
    elif kind == 1:
        move(one, one + "x")
    else:
        names = other[1] + other[2]
        if names:
            two, spare = os.path.join(other[0], draw.choice(names)), os.path.join(root, "spare")
            move(two, spare)
            move(one, two)
            move(spare, one if os.path.isdir(os.path.dirname(one)) else os.path.join(root, f"s{n}"))
"#;

#[test]
fn random_renames_at_another_host_are_followed_as_local_ones() {
    let ends = ends!("random_renames_at_another_host_are_followed_as_local_ones");
    let bench = &ends.bench;
    let line = "sync --json --delete --yes --max-delete=1000000";
    std::fs::write(bench.at("tree.py"), MOVES).unwrap();
    for (number, way) in between_hosts().enumerate() {
        let (mut followed, seed) = (0, 10 + number);
        println!("{way:?} seed {seed}");
        let [s, d, l] = ["s", "d", "l"].map(|tree| format!("{tree}{seed}"));
        bench.sh(&format!("mkdir {s}; python3 tree.py {s} {seed} make"));
        for round in 0..4 {
            ends.let_age(&s);
            let far = ends.job(way, line, (&s, &d)).expect_code(0);
            let local = ends.job(LOCAL, line, (&s, &l)).expect_code(0);
            for counter in ["entries_renamed", "bytes_copied", "entries_deleted", "errors"] {
                assert_eq!(count(&far, counter), count(&local, counter), "{counter} {round}");
            }
            assert_eq!(bench.sh(&format!("diff -r {s} {d}")), "", "{round}");
            bench.assert_same(&s, &d);
            followed += count(&far, "entries_renamed");
            bench.sh(&format!("python3 tree.py {s} {} move", seed * 10 + round));
        }
        assert!(followed > 40, "{followed} renames were followed");
    }
}

/// More directories than are asked about at once.
#[test]
fn renames_deep_in_a_large_tree_of_another_host_are_followed() {
    let ends = ends!("renames_deep_in_a_large_tree_of_another_host_are_followed");
    let bench = &ends.bench;
    let way = WAYS[0];
    bench.sh("for n in $(seq 100); do mkdir -p s/$n/$(seq -s / 60); seq $n > s/$n/$(seq -s / 60)/f; done");
    sync(&ends, way, "");
    let moved = "for n in $(seq 100); do at=s/$n/$(seq -s / 57); mv $at/58/59/60/f $at/g; mv $at/58 $at/x; done";
    bench.sh(moved);
    let pass = sync(&ends, way, "");
    assert_eq!((count(&pass, "bytes_copied"), count(&pass, "entries_renamed")), (0, 200));
    assert_eq!(bench.sh("diff -r s d"), "");
    assert_idle(&sync(&ends, way, "--delete"));
}

/// Another tree may share the inode of a copy, as a snapshot by hard links does.
#[test]
fn a_moved_file_is_not_closed_and_not_compared() {
    let ends = ends!("a_moved_file_is_not_closed_and_not_compared");
    let bench = &ends.bench;
    for way in between_hosts() {
        println!("{way:?}");
        begin_again(&ends);
        bench.sh("rm -rf e; mkdir s/w s/v; chmod 2775 s/w s/v; seq 50 > s/w/g; chmod 664 s/w/g; setfacl -m u:77:r s/w/g");
        sync(&ends, way, "");
        bench.sh("cp -al d e; mv s/a/deep/one s/b/one; mv s/w/g s/v/g; mv s/b/two s/w/two");
        let pass = sync(&ends, way, "");
        let counts = ["bytes_copied", "entries_renamed", "files_compared"];
        assert_eq!(counts.map(|counter| count(&pass, counter)), [0, 3, 0]);
        assert_eq!(bench.sh("stat -c %a e/a/deep/one e/w/g e/b/two"), "644\n664\n640\n");
        assert_eq!(
            bench.sh("stat -c %i d/b/one d/v/g d/w/two"),
            bench.sh("stat -c %i e/a/deep/one e/w/g e/b/two")
        );
        bench.assert_same("s", "d");
    }
}
