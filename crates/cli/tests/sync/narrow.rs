//! Secrets: what arrives is never open to anybody whom the source does not let in, also while a pass is at work.
use dmover_testkit::faultfs::{Action, Op, Rule};
use dmover_testkit::skip;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use std::mem::MaybeUninit;

use super::Bench;
use super::bench::{is_root, wait_for_fault};

/// Runs the program, and answers the access that a look finds while it reads `last`.
fn while_it_reads(line: &str, prepare: &str, change: &str, look: &str) -> Option<String> {
    let (handle, bench) = Bench::faulty()?;
    bench.sh(&format!("cd backing; {prepare}"));
    bench.sh("cp -a backing b");
    bench.dmover("sync faulty b").expect_code(0);
    bench.sh(change);
    let hang = Rule::new(Op::Read, Action::Hang { duration_ms: 60_000 }).name("last");
    handle.set_rules(&[hang]).unwrap();
    let running = bench.dmover.start(line.split_whitespace()).unwrap();
    wait_for_fault(&handle);
    let found = bench.sh(look);
    handle.release_hangs();
    running.finish().unwrap().expect_code(0);
    bench.sh("rsync -nrlptgoDHAXic --delete --ignore-times backing/ b/ | { ! grep .; }");
    Some(found.trim().to_owned())
}

const LINES: [&str; 5] = [
    "sync faulty b",
    "sync --delete --inplace faulty b",
    "copy -T faulty b",
    "copy -T --overwrite=older faulty b",
    "cp -aT faulty b",
];

#[test]
fn a_directory_is_narrowed_before_anything_enters_it() {
    let test = "a_directory_is_narrowed_before_anything_enters_it";
    if !is_root() {
        return skip::skipped(test, "needs root");
    }
    let prepare = "mkdir -p pub/below; seq 3 > pub/below/old; chmod 2775 pub";
    let new = "mkdir backing/pub/below/new; echo secret > backing/pub/below/new/last";
    // What is changed at the source, and what the directory is while the new file is brought over.
    for (change, expected) in [
        ("chmod 2700 backing/pub", "2700 0:0"),
        ("chown 4000:5000 backing/pub; chmod 750 backing/pub", "2750 4000:5000"),
        ("chmod 1777 backing/pub", "3775 0:0"),
        ("setfacl -m u:4000:rx b/pub; chmod 770 backing/pub", "2700 0:0"),
        ("chown 4000 b b/pub; chmod 755 backing/pub", "2755 0:0"),
    ] {
        for line in LINES {
            let change = format!("{change}; {new}");
            let look = "stat -c '%a %u:%g' b/pub";
            let Some(found) = while_it_reads(line, prepare, &change, look) else {
                return skip::skipped(test, "no FUSE");
            };
            assert_eq!(found, expected, "{line}: {change}");
        }
    }
}

/// The root of the tree is a directory like any other, and so are those that a list names.
#[test]
fn roots_and_listed_directories_are_narrowed() {
    let test = "roots_and_listed_directories_are_narrowed";
    if !is_root() {
        return skip::skipped(test, "needs root");
    }
    let prepare = "mkdir pub; chmod 755 . pub";
    let change =
        "chmod 711 backing; chmod 700 backing/pub; echo 1 > backing/pub/last; echo pub/last > list";
    for line in ["sync faulty b", "copy -T faulty b", "copy -T --files-from list faulty b"] {
        let look = "stat -c %a b b/pub | xargs";
        let Some(found) = while_it_reads(line, prepare, change, look) else {
            return skip::skipped(test, "no FUSE");
        };
        assert_eq!(found, "711 700", "{line}");
    }
}

/// What happens to directories while a command runs, in order: `name event`.
fn events(bench: &Bench, watched: &[&str], command: &str) -> Vec<String> {
    let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    let flags = WatchFlags::ATTRIB
        | WatchFlags::CREATE
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    let watches: Vec<i32> =
        watched.iter().map(|at| inotify::add_watch(&fd, bench.at(at), flags).unwrap()).collect();
    bench.dmover(command).expect_code(0);
    let mut buffer = vec![MaybeUninit::uninit(); 65_536];
    let mut reader = inotify::Reader::new(fd, &mut buffer);
    let mut all = Vec::new();
    while let Ok(event) = reader.next() {
        let at = watches.iter().position(|watch| *watch == event.wd()).unwrap();
        let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
        let what = match event.events() {
            events if events.contains(ReadFlags::ATTRIB) && name.is_none() => "attributes",
            events if events.contains(ReadFlags::MOVE_SELF) => "moved",
            events if events.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) => "entered",
            _ => continue,
        };
        all.push(format!("{} {what}", watched[at]));
    }
    all
}

#[test]
fn directories_are_narrowed_before_anything_moves_into_them() {
    if !is_root() {
        return skip::skipped(
            "directories_are_narrowed_before_anything_moves_into_them",
            "needs root",
        );
    }
    let bench = Bench::new();
    bench.sh(
        "mkdir -p a/private/d/e a/pub/c; seq 3 > a/private/secret; seq 4 > a/private/d/e/f; seq 5 > a/private/g
         chmod 700 a/private; chmod 755 a/private/d/e",
    );
    bench.sync("a b", 0);
    bench.sh(
        "chmod 700 a/pub; chmod 600 a/private/g a/private/d/e; mv a/private/secret a/pub/c; mv a/private/d a; mv a/private/g a",
    );
    let seen = events(&bench, &["b/pub", "b/pub/c", "b/private/d"], "sync a b");
    bench.assert_same("a", "b");
    let first = |what: &str| seen.iter().position(|event| event == what);
    assert!(first("b/pub/c entered").is_some() && first("b/private/d moved").is_some(), "{seen:?}");
    assert!(first("b/pub attributes").unwrap() < first("b/pub/c entered").unwrap(), "{seen:?}");
    let attributes = first("b/private/d attributes").unwrap();
    assert!(attributes < first("b/private/d moved").unwrap(), "{seen:?}");
}

#[test]
fn what_could_not_be_moved_keeps_its_mode_and_owner() {
    let bench = Bench::new();
    bench.sh("mkdir -p a/x/d a/y; echo f > a/x/d/f; chmod 755 a/x/d");
    bench.sync("a b", 0);
    // Its new place is taken by a directory that only DEST has something in.
    bench.sh("mv a/x/d a/y/d; mkdir b/y/d; echo other > b/y/d/other");
    let before = bench.sh("stat -c '%a %u:%g' b/x/d");
    bench.sync("a b", 0);
    assert_eq!(bench.sh("stat -c '%a %u:%g' b/x/d"), before, "nothing took its place");
}

#[test]
fn a_directory_that_changes_is_listed_once_by_the_pass_and_by_its_dry_run() {
    // Narrower and wider, with and without a change below it.
    for (change, below) in [
        ("chmod 700 a/d", false),
        ("chmod 700 a/d", true),
        ("chmod 755 a/d", false),
        ("chmod 755 a/d", true),
    ] {
        let bench = Bench::new();
        bench.sh("mkdir -p a/d; echo 1 > a/d/f; chmod 750 a/d");
        bench.sync("a b", 0);
        bench.sh(change);
        if below {
            bench.sh("echo 22 > a/d/f");
        }
        let rsync = bench.sh("rsync -aHAXni a/ b/ | grep -c '^[.]d.* d/$'");
        assert_eq!(rsync.trim(), "1", "{change}");
        for line in ["sync -n -i a b", "sync -i a b"] {
            let run = bench.dmover(line).expect_code(0);
            let listed = run.text().lines().filter(|line| line.ends_with(" a/d")).count();
            assert_eq!(listed, 1, "{line} after '{change}': {}", run.tell());
        }
    }
}
