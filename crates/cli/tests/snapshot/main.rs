//! `dmover snapshot` as a black box: what is right is judged by rsync, stat, du and the copies that cp has made.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
#![allow(missing_docs, clippy::unwrap_used, reason = "tests stop")]

#[path = "../bench/mod.rs"]
mod bench;

use bench::{Bench, is_root, snapshot};
use dmover_testkit::image::{FileSystem, Image, Mounted};
use dmover_testkit::lanes::lines::Line;
use dmover_testkit::lanes::run::Run;
use dmover_testkit::skip;
use std::path::Path;

/// A source with an old file, one that will change, linked names and a link, and a directory for snapshots.
fn ground() -> Bench {
    let bench = Bench::new();
    furnish(&bench);
    bench
}

fn furnish(bench: &Bench) {
    bench.sh("mkdir -p src/d snaps; echo old >src/old; echo one >src/d/changes; echo both >src/both
        ln src/both src/d/both; ln -s old src/link; find src -exec touch -h -d '2020-02-03 04:05:06.789' {} +");
}

impl Bench {
    /// `snapshot create --json`, which has to end with this code.
    #[track_caller]
    fn create(&self, options: &str, code: i32) -> Run {
        let line = format!("snapshot create --json {options} src snaps");
        self.dmover(&line).expect_code(code)
    }

    /// The names of all snapshots, the oldest first.
    #[track_caller]
    fn names(&self) -> Vec<String> {
        let run = self.dmover("snapshot list --json snaps").expect_code(0);
        let lines = run.lines().unwrap();
        lines.iter().map(|line| line.0["name"].as_str().unwrap().to_owned()).collect()
    }

    /// What rsync would still do to make a snapshot as a tree is.
    #[track_caller]
    fn differs(&self, tree: &str, name: &str) -> String {
        self.sh(&format!("rsync -nrlptgoDHAXic --delete {tree}/ snaps/{name}/"))
    }
}

fn number(run: &Run, counter: &str) -> u64 {
    let summary: Line = run.said().unwrap().summary.unwrap();
    summary.number(counter).unwrap_or_else(|| panic!("no {counter}"))
}

fn images(test: &str) -> impl Iterator<Item = (FileSystem, Bench, Mounted)> {
    [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs].into_iter().filter_map(move |which| {
        let image = Image::create_or_skip(test, which, 400 << 20)?;
        let bench = Bench::inside(image.path());
        furnish(&bench);
        Some((which, bench, image))
    })
}

#[test]
fn what_has_not_changed_is_the_same_file_in_the_next_snapshot() {
    for (file_system, bench, _image) in images("what_has_not_changed") {
        bench.create("", 0);
        bench.sh("cp -a src first; echo two >src/d/changes; echo new >src/new; rm src/link");
        let run = bench.create("", 0);
        assert_eq!(number(&run, "files_unchanged"), 2, "{file_system}");
        let [first, second] = &bench.names()[..] else { panic!("two snapshots") };
        assert_eq!(bench.differs("first", first), "", "{file_system}");
        assert_eq!(bench.differs("src", second), "", "{file_system}");
        assert_eq!(bench.differs("src", "latest"), "", "{file_system}");
        for same in ["old", "both", "d/both"] {
            let inodes = [first, second].map(|name| bench.inode(&format!("snaps/{name}/{same}")));
            assert_eq!(inodes[0], inodes[1], "{file_system}: {same}");
        }
        let links = bench.sh(&format!("stat -c %h snaps/{first}/both snaps/{first}/old"));
        assert_eq!(links, "4\n2\n", "{file_system}");
    }
}

#[test]
fn attributes_that_alone_have_changed_do_not_reach_older_snapshots() {
    for (file_system, bench, _image) in images("attributes_that_alone") {
        bench.sh("cp src/old src/acl; touch -r src/old src/acl");
        bench.create("", 0);
        bench.sh("cp -a src first; chmod 600 src/old; setfattr -n user.a -v b src/d/changes; setfacl -m u:1:r src/acl");
        let run = bench.create("", 0);
        assert_eq!(number(&run, "files_unchanged"), 1, "{file_system}: only the linked one");
        let [first, second] = &bench.names()[..] else { panic!("two snapshots") };
        assert_eq!(bench.differs("first", first), "", "{file_system}");
        assert_eq!(bench.differs("src", second), "", "{file_system}");
    }
}

/// Removing a snapshot moves the change times of all files that others share with it.
#[test]
fn attributes_that_were_changed_before_an_older_snapshot_goes_are_seen() {
    let bench = ground();
    bench.create("", 0);
    bench.create("", 0);
    bench.sh("setfattr -n user.a -v b src/old; setfattr -n user.c -v d src/both");
    bench.dmover("snapshot prune --keep-last 1 snaps").expect_code(0);
    bench.create("", 0);
    assert_eq!(bench.differs("src", "latest"), "");
}

#[test]
fn files_that_were_one_and_are_two_now_are_two_in_the_snapshot() {
    let bench = ground();
    bench.create("", 0);
    // The same content, size and times, and another inode.
    bench.sh("cp -p src/both aside; mv aside src/d/both");
    bench.create("", 0);
    bench.create("", 0);
    let newest = bench.names().pop().unwrap();
    assert_ne!(
        bench.inode(&format!("snaps/{newest}/both")),
        bench.inode(&format!("snaps/{newest}/d/both"))
    );
    assert_eq!(bench.differs("src", &newest), "");
}

#[test]
fn a_name_that_is_linked_later_takes_the_file_of_the_snapshot_before() {
    let bench = ground();
    bench.create("", 0);
    bench.sh("ln src/old src/a_new_name");
    let run = bench.create("", 0);
    assert_eq!(number(&run, "bytes_copied"), 0);
    let [first, second] = &bench.names()[..] else { panic!("two snapshots") };
    let inode = |at: &str| bench.inode(&format!("snaps/{at}"));
    assert_eq!(inode(&format!("{first}/old")), inode(&format!("{second}/a_new_name")));
    assert_eq!(bench.differs("src", second), "");
}

#[test]
fn clones_share_blocks_and_nothing_else() {
    for which in [FileSystem::Xfs, FileSystem::Btrfs] {
        let Some(image) = Image::create_or_skip("clones_share", which, 400 << 20) else { continue };
        let bench = Bench::inside(image.path());
        // The source lies elsewhere, or its blocks would be shared.
        let source = Bench::new();
        source.sh(
            "mkdir src; head -c 60M /dev/urandom >src/big; echo x >src/small; chmod 600 src/small
            touch -d 2020-01-01 src/*",
        );
        bench.sh(&format!("mkdir snaps; ln -s {} src", source.at("src").display()));
        bench.create("--share=reflink", 0);
        source.sh("chmod 644 src/small; printf 12345678 | dd of=src/big bs=1M seek=30 conv=notrunc status=none");
        bench.create("--share=reflink", 0);
        let run = bench.create("--share=reflink", 0);
        assert_eq!(number(&run, "files_unchanged"), 2, "{which}");
        bench.sh("sync -f snaps");
        let used: u64 = bench.sh("df --output=used -B1 snaps | tail -1").trim().parse().unwrap();
        assert!(used < 140 << 20, "{which}: {used} bytes are in use for three times 60 MiB");
        let names = bench.names();
        for name in &names[1..] {
            assert_eq!(bench.differs("src", name), "", "{which}");
        }
        let mode = bench.sh(&format!("stat -c '%a %h' snaps/{}/small", names[0]));
        assert_eq!(mode, "600 1\n", "{which}: an older snapshot has what it had");
        let linked = bench.sh("find snaps -type f -links +1");
        assert_eq!(linked, "", "{which}");
    }
}

/// Writes through a mapping that is there already: no time of the file moves as long as the page has not been written back.
const MAPPER: &str = "
import mmap, os, sys
f = os.open('src/mapped', os.O_RDWR)
m = mmap.mmap(f, 4096)
m[0:5] = b'first'
os.close(f)
print('ready', flush=True)
sys.stdin.readline()
m[0:5] = b'later'
m.close()
print('done', flush=True)
sys.stdin.readline()
";

#[test]
fn what_is_written_through_a_mapping_is_in_the_next_snapshot() {
    use std::io::{BufRead, BufReader, Write};
    let Some(image) = Image::create_or_skip("written_through", FileSystem::Ext4, 64 << 20) else {
        return;
    };
    let (source, bench) = (Bench::inside(image.path()), Bench::new());
    source.sh("mkdir src; head -c 4096 /dev/zero >src/mapped");
    bench.sh(&format!("mkdir snaps; ln -s {} src", source.at("src").display()));
    let mut python = std::process::Command::new("python3");
    python.args(["-c", MAPPER]).current_dir(source.root());
    python.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = python.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(output.next().unwrap().unwrap(), "ready");
    bench.create("", 0);
    let before = source.sh("stat -c '%y %z' src/mapped");
    input.write_all(b"\n").unwrap();
    assert_eq!(output.next().unwrap().unwrap(), "done");
    let unseen = source.sh("stat -c '%y %z' src/mapped") == before;
    let run = bench.create("", 0);
    input.write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(bench.differs("src", "latest"), "");
    if unseen {
        assert_eq!(number(&run, "files_compared"), 1, "no time has told it");
    }
}

#[test]
fn an_interrupted_snapshot_has_no_name_and_is_gone_on_with() {
    let bench = ground();
    bench.create("", 0);
    bench.sh("mkdir src/many; for i in $(seq 300); do echo $i >src/many/$i; done; head -c 2M /dev/urandom >src/large");
    // The second one cannot be written to its end.
    let line = format!(
        "ulimit -f 1024; trap '' XFSZ; exec {} snapshot create -qq --state-dir state2 src snaps",
        bench::PROGRAM
    );
    let failed = bench.sh(&format!("code=0; ({line}) || code=$?; echo $code"));
    assert_eq!(failed, "3\n");
    assert_eq!(bench.names().len(), 1, "one in which something is missing is not named");
    assert!(bench.exists("snaps/.dmover-snapshots/unfinished/many/300"));
    bench.sh("rm src/many/7; echo other >src/many/8");
    bench.create("", 0);
    assert_eq!(bench.differs("src", "latest"), "");
    assert!(!bench.exists("snaps/.dmover-snapshots/unfinished"));
}

#[test]
fn what_is_missing_is_accepted_by_name_only_and_told() {
    let bench = ground();
    bench.create("", 0);
    bench.sh("head -c 2M /dev/urandom >src/large");
    let line = format!(
        "ulimit -f 1024; trap '' XFSZ; exec {} snapshot create -qq --accept-errors --state-dir s2 src snaps",
        bench::PROGRAM
    );
    assert_eq!(bench.sh(&format!("code=0; ({line}) || code=$?; echo $code")), "3\n");
    let run = bench.dmover("snapshot list snaps").expect_code(0);
    let text = String::from_utf8(run.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() == 2 && lines[1].ends_with("INCOMPLETE: 1 failed"), "{lines:?}");
    // It never takes the place of a whole one.
    bench.dmover("snapshot prune --keep-last 1 snaps").expect_code(0);
    assert_eq!(bench.names().len(), 2);
    bench.create("", 0);
    bench.dmover("snapshot prune --keep-last 1 snaps").expect_code(0);
    let names = bench.names();
    assert_eq!(names.len(), 1);
    assert_eq!(bench.differs("src", &names[0]), "");
}

#[test]
fn pruning_removes_what_is_not_kept_and_nothing_else() {
    let bench = ground();
    for round in 0..4 {
        bench.sh(&format!("echo {round} >src/d/changes; chmod 500 src/d; cp -a src copy{round}"));
        bench.create("", 0);
    }
    let before = bench.names();
    bench.sh("mkdir snaps/mine; echo x >snaps/mine/x");
    let foreseen = bench.dmover("snapshot prune -n --keep-last 2 snaps").expect_code(0);
    assert_eq!(bench.names(), before);
    let done = bench.dmover("snapshot prune --keep-last 2 snaps").expect_code(0);
    assert_eq!(foreseen.stdout, done.stdout);
    assert_eq!(bench.names(), before[2..]);
    for (name, copy) in before[2..].iter().zip(["copy2", "copy3"]) {
        assert_eq!(bench.differs(copy, name), "");
    }
    let left = bench.sh("ls -A snaps; ls snaps/.dmover-snapshots");
    let own = ["empty", "lock"].map(str::to_owned);
    let mut expected: Vec<String> = [".dmover-snapshots".to_owned()].to_vec();
    expected.extend(before[2..].iter().cloned());
    expected.extend(["latest".to_owned(), "mine".to_owned()]);
    expected.extend(before[2..].iter().map(|name| format!("{name}.sqlite")));
    expected.extend(own);
    let mut left: Vec<&str> = left.lines().collect();
    left.sort_unstable();
    expected.sort_unstable();
    assert_eq!(left, expected);
    let refused = bench.dmover("snapshot prune snaps").expect_code(2);
    assert!(refused.stderr.contains("no --keep option is given"));
}

/// India is five and a half hours ahead of UTC.
#[test]
fn hours_are_those_of_the_place() {
    let bench = ground();
    for begun in ["2024-05-01 10:20", "2024-05-01 10:40", "2024-05-01 11:20"] {
        bench.create("", 0);
        let name = bench.names().pop().unwrap();
        let record = bench.at(format!("snaps/.dmover-snapshots/{name}.sqlite"));
        let seconds: i64 = bench.sh(&format!("date -ud '{begun}' +%s")).trim().parse().unwrap();
        let database = rusqlite::Connection::open(record).unwrap();
        let sql = "UPDATE meta SET value = ?1 WHERE key = 'begun_ms'";
        assert_eq!(database.execute(sql, [seconds * 1000]).unwrap(), 1);
    }
    let kept = |zone: &str| {
        let words = format!("{} snapshot prune -n --keep-hourly 2 snaps", bench::PROGRAM);
        bench.sh(&format!("TZ={zone} {words} | cut -d' ' -f1 | tr '\\n' ' '"))
    };
    assert_eq!(kept("UTC"), "remove keep keep ");
    assert_eq!(kept("IST-5:30"), "keep remove keep ");
}

#[test]
fn a_source_that_is_not_the_one_before_is_refused() {
    let bench = ground();
    // What is refused binds nobody.
    bench.sh("mkdir empty");
    let refused = bench.dmover("snapshot create empty snaps").expect_code(2);
    assert!(refused.stderr.contains("empty"), "{}", refused.stderr);
    bench.create("", 0);
    bench.sh("mkdir other; echo x >other/x");
    let refused = bench.dmover("snapshot create other snaps").expect_code(2);
    assert!(refused.stderr.contains("holds snapshots of"), "{}", refused.stderr);
    // The same path, and another directory: a file system that is not mounted looks like that.
    bench.sh("mv src aside; mkdir src; echo y >src/y");
    let refused = bench.create("", 2);
    assert!(
        refused.stderr.contains("not the directory or file system of the last"),
        "{}",
        refused.stderr
    );
    bench.create("--other-source", 0);
    bench.create("", 0);
    assert_eq!(bench.names().len(), 3);
    bench.sh("rm src/y");
    let refused = bench.create("", 2);
    assert!(refused.stderr.contains("empty"), "{}", refused.stderr);
    bench.create("--allow-empty-source", 0);
}

#[test]
fn nothing_is_made_where_nothing_is_mounted_and_a_dry_run_makes_nothing() {
    let bench = ground();
    bench.sh("rmdir snaps");
    let refused = bench.create("", 2);
    assert!(refused.stderr.contains("create the directory first"), "{}", refused.stderr);
    assert!(!bench.exists("snaps"));
    bench.sh("mkdir snaps");
    let told = bench.create("-n", 0);
    assert_eq!(number(&told, "files_copied"), 3);
    assert_eq!(bench.sh("ls -A snaps"), "");
    bench.create("", 0);
    bench.sh("echo z >src/new");
    let before = snapshot(&bench.at("snaps"));
    let told = bench.create("-n", 0);
    assert_eq!((number(&told, "files_copied"), number(&told, "files_unchanged")), (1, 3));
    assert_eq!(before, snapshot(&bench.at("snaps")));
}

#[test]
fn one_process_at_a_time() {
    let bench = ground();
    bench.create("", 0);
    let line = |verb: &str| {
        format!("flock snaps/.dmover-snapshots/lock {} {verb} || echo $?", bench::PROGRAM)
    };
    assert_eq!(bench.sh(&line("snapshot create -qq --no-state src snaps 2>/dev/null")), "6\n");
    assert_eq!(bench.sh(&line("snapshot prune -qq --keep-last 1 snaps 2>/dev/null")), "6\n");
    let told = bench.sh(&line("snapshot create --json --no-state src snaps 2>/dev/null"));
    let fatal: serde_json::Value = serde_json::from_str(told.lines().next().unwrap()).unwrap();
    assert_eq!((&fatal["type"], &fatal["exit_code"]), (&"fatal".into(), &6.into()));
    assert_eq!(bench.names().len(), 1);
}

#[test]
fn a_crash_between_the_two_renames_is_put_in_order() {
    let bench = ground();
    bench.create("", 0);
    bench.sh("echo more >src/new; cp -a src second");
    bench.create("", 0);
    let name = bench.names().pop().unwrap();
    // As it was after the first rename.
    bench.sh(&format!("mv snaps/{name} snaps/.dmover-snapshots/unfinished; rm snaps/latest"));
    assert_eq!(bench.names().len(), 1);
    bench.create("", 0);
    assert_eq!(bench.names().len(), 3);
    assert_eq!(bench.differs("second", &name), "");
    assert!(Path::new(&bench.at("snaps/latest")).exists());
    // One that a person has removed is forgotten.
    let names = bench.names();
    bench.sh(&format!("rm -r snaps/{}", names[2]));
    bench.create("", 0);
    assert_eq!(bench.names().len(), 3);
    assert!(!bench.exists(&format!("snaps/.dmover-snapshots/{}.sqlite", names[2])));
    assert_eq!(bench.differs("src", "latest"), "");
}

#[test]
fn a_snapshot_from_the_future_is_refused() {
    let bench = ground();
    bench.create("", 0);
    let name = bench.names().pop().unwrap();
    let record = bench.at(format!("snaps/.dmover-snapshots/{name}.sqlite"));
    let database = rusqlite::Connection::open(record).unwrap();
    let sql = "UPDATE meta SET value = value + 86400000 WHERE key = 'begun_ms'";
    assert_eq!(database.execute(sql, []).unwrap(), 1);
    drop(database);
    let refused = bench.create("", 2);
    assert!(refused.stderr.contains("check the clock"), "{}", refused.stderr);
}

#[test]
fn a_snapshot_that_has_no_record_is_left_alone_and_shared_with_by_nobody() {
    let bench = ground();
    bench.create("", 0);
    let first = bench.names().pop().unwrap();
    bench.sh("rm snaps/.dmover-snapshots/*.sqlite");
    let run = bench.create("", 0);
    assert_eq!(number(&run, "files_unchanged"), 0);
    bench.dmover("snapshot prune --keep-last 1 snaps").expect_code(0);
    assert!(bench.exists(&format!("snaps/{first}/old")));
    bench.sh("echo damaged >$(ls snaps/.dmover-snapshots/*.sqlite)");
    for verb in ["list", "prune -n --keep-last 1"] {
        let told = bench.dmover(&format!("snapshot {verb} snaps")).expect_code(3);
        assert!(told.stderr.contains("cannot use the snapshot record"), "{}", told.stderr);
    }
    let run = bench.create("", 0);
    assert!(run.stderr.contains("cannot use the snapshot record"), "{}", run.stderr);
    assert_eq!(bench.differs("src", "latest"), "");
}

#[test]
fn one_that_was_interrupted_after_an_error_is_not_named_without_what_failed() {
    let bench = ground();
    bench.sh("mkdir src/later; for i in $(seq 3000); do echo $i >src/later/$i; done; head -c 2M /dev/urandom >src/a_large_one");
    let program = bench::PROGRAM;
    let state = bench.dmover.state_directory().display().to_string();
    let line = format!(
        "ulimit -f 1024; trap '' XFSZ; exec {program} snapshot create -qq -j1 --max-errors 1 --state-dir {state} src snaps"
    );
    assert_eq!(bench.sh(&format!("code=0; ({line}) || code=$?; echo $code")), "5\n");
    assert!(bench.dmover.state_directory().join("jobs").exists(), "variables count here as well");
    let run = bench.create("", 0);
    assert_eq!(run.said().unwrap().summary.unwrap().0["resumed"], true, "or this tests nothing");
    assert_eq!(bench.differs("src", "latest"), "");
}

/// Nothing looks at everything once more where the result is to be proven: what failed must not be forgotten.
#[test]
fn one_that_is_to_be_proven_is_not_named_without_what_failed_before_an_interruption() {
    let bench = ground();
    bench.sh("mkdir src/later; for i in $(seq 3000); do echo $i >src/later/$i; done; head -c 2M /dev/urandom >src/a_large_one");
    let program = bench::PROGRAM;
    let state = bench.dmover.state_directory().display().to_string();
    let line = format!(
        "ulimit -f 1024; trap '' XFSZ; exec {program} snapshot create -qq -j1 --max-errors 1 --verify=read-back --state-dir {state} src snaps"
    );
    assert_eq!(bench.sh(&format!("code=0; ({line}) || code=$?; echo $code")), "5\n");
    let create = "snapshot create -j1 --max-errors 1 --verify=read-back src snaps";
    let run = bench.dmover(create).expect_code(3);
    assert!(run.stderr.contains("run the same command again"), "{}", run.tell());
    assert_eq!(bench.names().len(), 0, "{}", run.tell());
    bench.dmover(create).expect_code(0);
    assert_eq!(bench.differs("src", "latest"), "");
}

#[test]
fn what_other_rules_had_not_finished_is_not_gone_on_with() {
    let bench = ground();
    bench.sh("mkdir src/cache; for i in $(seq 300); do echo $i >src/cache/$i; done; head -c 2M /dev/urandom >src/large");
    let state = bench.dmover.state_directory().display().to_string();
    let line = format!(
        "ulimit -f 1024; trap '' XFSZ; exec {} snapshot create -qq --state-dir {state} src snaps",
        bench::PROGRAM
    );
    assert_eq!(bench.sh(&format!("code=0; ({line}) || code=$?; echo $code")), "3\n");
    let run = bench.create("--exclude=/cache", 0);
    assert!(run.stderr.contains("is not resumed"), "{}", run.tell());
    let latest = bench.names().pop().unwrap();
    assert!(!bench.exists(&format!("snaps/{latest}/cache")));
    bench.dmover("snapshot prune --keep-last 1 snaps").expect_code(0);
    assert_eq!(bench.sh("ls snaps/.dmover-snapshots | grep -c removed || :"), "0\n");
}

/// A directory that may not be written to may not be moved either.
#[test]
fn a_source_that_nobody_may_write_to_becomes_a_snapshot() {
    if !is_root() {
        return skip::skipped("a_source_that_nobody_may_write_to_becomes_a_snapshot", "needs root");
    }
    let bench = ground().unprivileged();
    bench.sh("rm -rf src; mkdir -p src/d; echo 1 > src/d/f; chmod 555 src/d src; chown -R 65534:65534 src snaps; touch -d @1000000000 src");
    for _ in 0..2 {
        bench.create("", 0);
    }
    let names = bench.names();
    assert_eq!(bench.mode(&format!("snaps/{}", names[1])), 0o555);
    assert_eq!(bench.sh(&format!("stat -c %Y snaps/{}", names[0])), "1000000000\n");
    bench.dmover("snapshot prune --keep-last 1 snaps").expect_code(0);
    assert_eq!(bench.names(), names[1..]);
    assert_eq!(bench.differs("src", &names[1]), "");
}

/// An interrupted run has made two names of one file, and by the time it is gone on with they are two files.
#[test]
fn what_was_split_before_an_interrupted_snapshot_goes_on_is_two_files() {
    let bench = ground();
    bench.create("", 0);
    bench.sh("echo one > src/p; ln src/p src/q; head -c 2M /dev/urandom >src/large");
    let state = bench.dmover.state_directory().display().to_string();
    let line = format!(
        "ulimit -f 1024; trap '' XFSZ; exec {} snapshot create -qq --state-dir {state} src snaps",
        bench::PROGRAM
    );
    assert_eq!(bench.sh(&format!("code=0; ({line}) || code=$?; echo $code")), "3\n");
    assert!(bench.exists("snaps/.dmover-snapshots/unfinished/q"), "or this tests nothing");
    bench.sh("cd src; cp -p q t; mv t q");
    bench.create("", 0);
    assert_eq!(bench.sh("stat -c %i snaps/latest/p snaps/latest/q | uniq | wc -l"), "2\n");
    assert_eq!(bench.differs("src", "latest"), "");
}

/// What is on record of inodes is of the disk that it was made on.
#[test]
fn snapshots_that_were_copied_here_share_nothing_with_the_next_one() {
    let bench = ground();
    bench
        .sh("echo one > src/p; ln src/p src/q; for i in $(seq 50); do echo $i > src/other$i; done");
    bench.create("", 0);
    bench.sh("cp -a snaps copied; cd src; cp -p q t; mv t q");
    bench.dmover("snapshot create src copied").expect_code(0);
    bench.create("", 0);
    for directory in ["snaps", "copied"] {
        let inodes = bench
            .sh(&format!("stat -c %i {directory}/latest/p {directory}/latest/q | uniq | wc -l"));
        assert_eq!(inodes, "2\n", "{directory}");
        assert_eq!(
            bench.sh(&format!(
                "rsync -nrlptgoDHAXic --delete src/ {directory}/$(readlink {directory}/latest)/"
            )),
            ""
        );
    }
}

#[test]
fn a_tree_that_is_not_complete_never_gets_the_name_of_another() {
    let bench = ground();
    bench.create("", 0);
    bench.create("", 0);
    let first = bench.names().remove(0);
    bench.sh("head -c 2M /dev/urandom >src/large");
    let line = format!(
        "ulimit -f 1024; trap '' XFSZ; exec {} snapshot create -qq --state-dir s2 src snaps",
        bench::PROGRAM
    );
    assert_eq!(bench.sh(&format!("code=0; ({line}) || code=$?; echo $code")), "3\n");
    bench.sh(&format!("rm -r snaps/{first}; rm snaps/.dmover-snapshots/unfinished.sqlite"));
    bench.create("", 0);
    assert!(!bench.exists(&format!("snaps/{first}")));
    assert_eq!(bench.names().len(), 2);
    assert_eq!(bench.differs("src", "latest"), "");
}

#[test]
fn whatever_is_in_a_snapshot_is_removed_with_it() {
    let bench = ground();
    bench.sh("mkdir -p src/.trash/old src/d/t; : >src/.trash/.dmover-trash; echo x >src/.trash/old/x; : >src/d/t/.dmover-trash");
    bench.create("", 0);
    let first = bench.names().remove(0);
    let foreign = ".dmover-0123456789ab-0123456789abcdef-0123456789abcdef";
    bench.sh(&format!("echo left >snaps/{first}/d/{foreign}"));
    bench.create("", 0);
    bench.dmover("snapshot prune --keep-last 1 snaps").expect_code(0);
    assert_eq!(bench.sh("ls snaps/.dmover-snapshots | grep -c removed || true"), "0\n");
    assert_eq!(bench.names().len(), 1);
}

#[test]
fn pruning_makes_room_on_a_full_file_system() {
    for (file_system, bench, _image) in images("pruning_makes_room") {
        bench.sh(
            "mkdir -p src/d snaps fillers; head -c 4M /dev/urandom >src/f; touch src/d/{1..50}",
        );
        bench.create("", 0);
        bench.sh("head -c 4M /dev/urandom >src/f; rm -r src/d");
        bench.create("", 0);
        let names = bench.names();
        bench.sh("dd if=/dev/zero of=filler bs=1M status=none 2>/dev/null || :
             dd if=/dev/zero of=filler2 bs=1k status=none 2>/dev/null || :
             mkdir fillers/{1..5000} 2>/dev/null || :");
        bench.dmover("snapshot prune --keep-last 1 snaps").expect_code(0);
        assert_eq!(bench.names(), names[1..], "{file_system}");
        assert_eq!(bench.sh("ls snaps/.dmover-snapshots | grep -c removed || :"), "0\n");
        assert_eq!(bench.sh("readlink snaps/latest").trim(), names[1]);
    }
}

/// A flag belongs to the inode, which a snapshot that stays may share.
#[test]
fn pruning_takes_no_flag_from_what_stays() {
    for (file_system, bench, _image) in images("pruning_takes_no_flag") {
        bench.sh("mkdir -p src snaps; touch src/f src/g");
        bench.create("", 0);
        bench.create("", 0);
        bench.sh("chattr +i snaps/2*/f snaps/2*/g snaps/2*");
        let _undo = bench.undo("chattr -R -i snaps 2>/dev/null || :");
        bench.dmover("snapshot prune --keep-last 1 snaps").expect_code(0);
        assert_eq!(bench.names().len(), 1, "{file_system}");
        let flags = bench.sh("lsattr snaps/2*/f snaps/2*/g | cut -c5 | tr -d '\\n'");
        assert_eq!(flags, "ii", "{file_system}");
        assert_eq!(bench.sh("ls snaps/.dmover-snapshots | grep -c removed || :"), "0\n");
    }
}

/// As a crash leaves it between giving a tree its name and giving it back its mode.
#[test]
fn a_tree_that_was_loosened_to_be_moved_gets_its_mode_back() {
    let bench = ground();
    bench.sh("chmod 555 src");
    bench.create("", 0);
    let name = bench.names().pop().unwrap();
    bench.sh(&format!("chmod 755 snaps/{name}"));
    let record = bench.at(format!("snaps/.dmover-snapshots/{name}.sqlite"));
    let database = rusqlite::Connection::open(record).unwrap();
    database.execute("INSERT INTO meta VALUES ('loosened', '555 0')", []).unwrap();
    drop(database);
    bench.dmover("snapshot prune --keep-last 3 snaps").expect_code(0);
    assert_eq!(bench.mode(&format!("snaps/{name}")), 0o555);
    // Whoever changes it later has changed it.
    bench.sh(&format!("chmod 755 snaps/{name}"));
    bench.dmover("snapshot prune --keep-last 3 snaps").expect_code(0);
    assert_eq!(bench.mode(&format!("snaps/{name}")), 0o755);
}

/// Nobody knows what is one inode in a tree without a record, and a tree is of the time when everything was looked at.
#[test]
fn an_unfinished_tree_without_a_record_is_begun_anew() {
    let bench = ground().unprivileged();
    bench.sh("ln src/old src/other; chmod 777 . src snaps; echo x >src/closed; chmod 0 src/closed; chown 65534 -R src snaps; chown 0 src/closed");
    bench.create("", 3);
    bench.sh("cp -p src/other src/t; mv src/t src/other; chown 65534 src/other");
    let before: i64 = bench.sh("date +%s%3N").trim().parse().unwrap();
    bench.create("", 3);
    bench.sh("rm snaps/.dmover-snapshots/unfinished.sqlite*; chmod 644 src/closed");
    bench.create("", 0);
    assert_ne!(bench.inode("snaps/latest/old"), bench.inode("snaps/latest/other"));
    // The same for one that was refused, and not lost.
    bench.sh("chmod 0 src/closed; echo y >>src/closed");
    bench.create("", 3);
    let between: i64 = bench.sh("date +%s%3N").trim().parse().unwrap();
    assert!(between > before);
    bench.sh("chmod 644 src/closed");
    bench.create("", 0);
    let name = bench.names().pop().unwrap();
    let database =
        rusqlite::Connection::open(bench.at(format!("snaps/.dmover-snapshots/{name}.sqlite")))
            .unwrap();
    let sql = "SELECT value FROM meta WHERE key = 'begun_ms'";
    let begun: i64 = database.query_row(sql, [], |row| row.get(0)).unwrap();
    assert!(begun >= between, "it has the date of a look that failed");
}

#[test]
fn arguments_that_are_confused_change_nothing() {
    let bench = ground();
    bench.create("", 0);
    let before = snapshot(&bench.at("."));
    for line in ["snaps src", "src src", "src src/d", "nowhere src", "nowhere snaps"] {
        bench.dmover(&format!("snapshot create {line}")).expect_code(2);
        assert_eq!(before.changes(&snapshot(&bench.at("."))), [""; 0], "{line}");
    }
    let id: serde_json::Value =
        serde_json::from_str(&bench.dmover("status --json").expect_code(0).text()).unwrap();
    let refused = bench.dmover(&format!("retry {}", id["job"].as_str().unwrap())).expect_code(2);
    assert!(refused.stderr.contains("cannot retry only the failed entries"), "{}", refused.tell());
}

#[test]
fn who_is_notified_may_make_the_next_one() {
    let bench = ground();
    bench.sh(&format!(
        "printf '#!/bin/sh\\n{} snapshot create -qq src snaps 2>said\\necho $? >code\\n' >tell; chmod +x tell",
        bench::PROGRAM
    ));
    bench.create("--notify ./tell", 0);
    assert_eq!(bench.read("code"), "0\n", "{}", bench.read("said"));
    assert_eq!(bench.names().len(), 2);
}

/// The owner of a file in an earlier snapshot, or of a directory there, may have changed what lies under a name.
#[test]
fn a_clone_gets_rights_only_with_the_content_of_the_source() {
    let test = "a_clone_gets_rights_only_with_the_content_of_the_source";
    if !is_root() {
        return skip::skipped(test, "needs root");
    }
    let Some(image) = Image::create_or_skip(test, FileSystem::Xfs, 400 << 20) else { return };
    for forges in ["sh -c 'echo evil > $1/x; touch -r src/u/x $1/x' -", "sh -c 'mv $1/y $1/x' -"] {
        let bench = Bench::inside(image.path());
        bench.sh("mkdir -p src/u snaps; echo good > src/u/x; echo oops > src/u/y; touch -d 2020-01-01 src/u/x src/u/y");
        let owner = bench::NOBODY;
        let owned = if forges.contains("mv") { "src/u" } else { "src/u src/u/x" };
        bench.sh(&format!("chown {owner} {owned}"));
        bench.create("--share=reflink", 0);
        let first = &bench.names()[0];
        bench.sh(&format!(
            "chmod 755 . snaps snaps/{first}; setpriv --reuid {owner} --regid {owner} --clear-groups {forges} snaps/{first}/u
             chown 0 src/u/x; chmod 4755 src/u/x; touch -d 2020-01-01 src/u/x"
        ));
        bench.create("--share=reflink", 0);
        let second = &bench.names()[1];
        assert_eq!(bench.sh(&format!("cat snaps/{second}/u/x")), "good\n", "{forges}");
        assert_eq!(bench.mode(&format!("snaps/{second}/u/x")), 0o4755);
    }
}
