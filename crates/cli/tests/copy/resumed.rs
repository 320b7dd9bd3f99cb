//! A large file that takes longer than a run may last: the next run of the job continues it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use dmover_testkit::faultfs::{Action, Config, FaultFsHandle, Latency, Op, Rule};
use dmover_testkit::image::{FileSystem, Image};
use dmover_testkit::lanes::check::leftovers;
use dmover_testkit::lanes::run::Running;
use dmover_testkit::skip;
use rustix::process::Signal;

use super::Bench;
use super::bench::disks::AWAY;
use super::bench::{append, eventually, pattern};

const SIZE: usize = 24 << 20;

/// A bench with a large file, and a destination that counts what is written to it.
fn bench() -> Option<(FaultFsHandle, Bench)> {
    let (served, bench) = Bench::faulty()?;
    bench.write("s/large", pattern(SIZE));
    Some((served, bench))
}

macro_rules! bench {
    () => {{
        let Some(made) = bench() else { skip!("no faultfs") };
        made
    }};
}

fn written(served: &FaultFsHandle) -> usize {
    served.counters().of(Op::Write).bytes as usize
}

fn trees(line: &str) -> &'static str {
    if line.starts_with("sync") { "s faulty/d" } else { "-T s faulty/d" }
}

/// Starts a slow copy and waits until so many bytes are at the destination, and some of them on record.
fn in_the_middle(bench: &Bench, served: &FaultFsHandle, line: &str) -> Running {
    let before = written(served);
    let words = format!("{line} --bwlimit=3M --split-size=8M -j2 --progress=never {}", trees(line));
    let running = bench.dmover.start(words.split_whitespace()).unwrap();
    eventually("half of it", || written(served) - before > SIZE / 2);
    eventually("a record", || is_recorded(bench));
    running
}

/// Whether parts of a large file are on record.
fn is_recorded(bench: &Bench) -> bool {
    let state = bench.dmover.state_directory();
    let found = format!("grep -c flushed '{}'/jobs/*/large-files 2>&1 || true", state.display());
    bench.sh(&found).trim().parse::<u32>().is_ok()
}

fn again(bench: &Bench, line: &str) {
    let options = "--split-size=8M --progress=never";
    bench.dmover(&format!("{line} {options} {}", trees(line))).expect_code(0);
    bench.sh("sha256sum < s/large > a; sha256sum < faulty/d/large > b; cmp a b");
    bench.assert_same("s", "faulty/d");
    let (state, none) = (bench.dmover.state_directory(), Vec::<PathBuf>::new());
    assert_eq!(leftovers(&bench.at("backing")).unwrap(), none);
    let record = bench.sh(&format!("ls '{}'/jobs/*", state.display()));
    assert!(!record.contains("large-files"), "nothing is under way any more: {record}");
}

#[test]
fn a_large_file_whose_copy_was_killed_is_continued() {
    for verb in ["copy", "sync", "copy --manifest=m"] {
        let (served, bench) = bench!();
        in_the_middle(&bench, &served, verb).kill().unwrap();
        again(&bench, verb);
        // What was not flushed yet is written again: three seconds at most.
        let written = written(&served);
        assert!((SIZE..SIZE * 3 / 2).contains(&written), "{verb}: {written} bytes of {SIZE}");
        if verb.contains("manifest") {
            bench.dmover("verify --manifest=m faulty/d").expect_code(0);
        }
    }
}

#[test]
fn a_large_file_whose_copy_was_stopped_is_continued_where_it_was() {
    for verb in ["copy", "sync"] {
        let (served, bench) = bench!();
        let running = in_the_middle(&bench, &served, verb);
        running.signal(Signal::TERM);
        assert_eq!(running.finish().unwrap().signal(), Some(15));
        again(&bench, verb);
        let written = written(&served);
        assert!((SIZE..SIZE * 11 / 10).contains(&written), "{verb}: {written} bytes of {SIZE}");
    }
}

/// Starts a copy in chunks of 1 MiB, of which each takes half a second.
fn slow(bench: &Bench, served: &FaultFsHandle) -> Running {
    served.set_latency(Latency::of_us(50_000));
    let line = format!("copy --split-size=1M -j1 --progress=never {}", trees("copy"));
    bench.dmover.start(line.split_whitespace()).unwrap()
}

/// When each chunk ends as it was meant to, what was written since the last flush is flushed at the end: also when
/// there was none yet.
#[test]
fn parts_that_no_mover_has_flushed_are_not_lost_by_a_stop() {
    for before in [SIZE / 12, SIZE / 3] {
        let (served, bench) = bench!();
        let running = slow(&bench, &served);
        eventually("a part of it", || written(&served) > before);
        running.signal(Signal::TERM);
        assert_eq!(running.finish().unwrap().signal(), Some(15));
        served.set_latency(Latency::of_us(0));
        again(&bench, "copy");
        let written = written(&served);
        assert!((SIZE..SIZE * 21 / 20).contains(&written), "{before}: {written} bytes of {SIZE}");
    }
}

#[test]
fn a_cancelled_copy_leaves_nothing_of_a_large_file() {
    for before in [SIZE / 12, SIZE / 3] {
        let (served, bench) = bench!();
        let running = slow(&bench, &served);
        eventually("a part of it", || written(&served) > before);
        bench.dmover("cancel").expect_code(0);
        assert_eq!(running.finish().unwrap().code(), Some(3));
        assert_eq!(leftovers(&bench.at("backing")).unwrap(), Vec::<PathBuf>::new());
    }
}

/// What is on storage is of use whatever else has failed at the source.
#[test]
fn a_file_of_which_a_part_was_not_read_is_continued_after_a_stop() {
    let Some((served, bench)) = Bench::faulty() else { skip!("no faultfs") };
    bench.write("backing/s/large", pattern(SIZE));
    let words = "copy -T --bwlimit=3M --split-size=1M -j2 --progress=never faulty/s d";
    let running = bench.dmover.start(words.split_whitespace()).unwrap();
    eventually("a record", || is_recorded(&bench));
    let rule = Rule::new(Op::Read, Action::Errno(rustix::io::Errno::IO.raw_os_error()));
    served.set_rules(&[rule.count(0)]).unwrap();
    eventually("an error", || served.counters().rules_fired[0] > 0);
    running.signal(Signal::TERM);
    let run = running.finish().unwrap();
    served.set_rules(&[]).unwrap();
    assert_eq!(leftovers(&bench.at("d")).unwrap().len(), 1, "{}", run.tell());
    bench.dmover("copy -T --split-size=1M faulty/s d").expect_code(0);
    bench.sh("cmp backing/s/large d/large");
    assert_eq!(leftovers(&bench.at("d")).unwrap(), Vec::<PathBuf>::new());
}

/// A server says when a file is closed that it has lost what was written. No later flush makes that good.
#[test]
fn a_part_whose_close_has_failed_is_written_again() {
    for recorded in [false, true] {
        let config = Config { threads: 8, keep_records: true, ..Config::default() };
        let Some((served, bench)) = Bench::faulty_by(config) else { skip!("no faultfs") };
        bench.write("s/large", pattern(SIZE));
        let running = slow(&bench, &served);
        let is_ready = || if recorded { is_recorded(&bench) } else { written(&served) > 0 };
        eventually("a part of it", is_ready);
        served
            .set_rules(&[Rule::new(
                Op::Flush,
                Action::ErrnoAfter(rustix::io::Errno::IO.raw_os_error()),
            )])
            .unwrap();
        eventually("the error", || served.counters().rules_fired == [1]);
        running.signal(Signal::TERM);
        assert_ne!(running.finish().unwrap().code(), Some(0));
        served.set_latency(Latency::of_us(0));
        lose_what_was_closed(&bench, &served);
        again(&bench, "copy");
    }
}

/// Takes the last write before the close that failed from the backing file, if it is still there.
fn lose_what_was_closed(bench: &Bench, served: &FaultFsHandle) {
    let records = served.records();
    let failed = records.iter().position(|r| r.op == Op::Flush && r.errno != 0).unwrap();
    let lost = records[..failed].iter().rfind(|record| record.op == Op::Write).unwrap();
    for left in leftovers(&bench.at("backing")).unwrap() {
        let file =
            std::fs::OpenOptions::new().write(true).open(bench.at("backing").join(left)).unwrap();
        file.write_all_at(&vec![0; lost.bytes as usize], lost.offset).unwrap();
    }
}

/// The bar of batch jobs: what needs three times as long as a run may take ends complete.
#[test]
fn a_third_of_the_time_that_a_file_needs_is_enough() {
    for verb in ["copy", "sync"] {
        let (served, bench) = bench!();
        let line = format!(
            "{verb} --bwlimit=3M --split-size=8M -j2 --max-duration=2s --progress=never {}",
            trees(verb)
        );
        let mut runs = 1;
        loop {
            let run = bench.dmover(&line);
            assert!(!run.stderr.contains("before they completed an entry"), "{}", run.tell());
            if run.code() == Some(0) {
                break;
            }
            runs += 1;
            assert!(runs < 12, "{verb}: {} bytes were written so far", written(&served));
        }
        assert!(runs > 2, "it was to take longer");
        again(&bench, verb);
        let written = written(&served);
        assert!((SIZE..SIZE * 6 / 5).contains(&written), "{verb}: {written} bytes of {SIZE}");
    }
}

#[test]
fn a_source_that_has_changed_is_begun_anew() {
    let (served, bench) = bench!();
    in_the_middle(&bench, &served, "copy").kill().unwrap();
    // The same size and time of the last write, other bytes.
    bench.sh("touch -r s/large t; tr '\\001-\\377' '\\002-\\377\\001' < s/large > n; cat n > s/large; touch -r t s/large");
    again(&bench, "copy");
    assert!(written(&served) >= SIZE * 3 / 2, "nothing of the old version may stay");
    in_the_middle(&bench, &served, "copy --overwrite=always").kill().unwrap();
    append(&bench.at("s/large"), "more");
    again(&bench, "copy");
}

#[test]
fn what_is_left_of_a_file_that_has_gone_goes_as_well() {
    let (served, bench) = bench!();
    bench.write("s/other", "x");
    in_the_middle(&bench, &served, "copy").kill().unwrap();
    assert_eq!(leftovers(&bench.at("backing")).unwrap().len(), 1);
    bench.sh("mv s/large s/renamed; cp s/other s/large");
    again(&bench, "copy");
}

/// Somebody has put something else in the place of what an interrupted run has left.
#[test]
fn what_stands_in_the_place_of_a_temporary_is_no_part_of_the_file() {
    let (served, bench) = bench!();
    in_the_middle(&bench, &served, "copy").kill().unwrap();
    bench.sh("cd backing/d; f=$(ls -A | grep ^.dmover); cp $f x; dd if=/dev/zero of=x bs=1M count=9 conv=notrunc; mv x $f");
    again(&bench, "copy");
}

#[test]
fn a_job_that_gets_nowhere_says_so() {
    let bench = Bench::new();
    bench.write("s/large", pattern(4 << 20));
    bench.sh("mkdir d");
    let line = "copy --bwlimit=300K --split-size=0 --progress=never -T s d";
    let mut said = Vec::new();
    for _ in 0..4 {
        let running = bench.dmover.start(line.split_whitespace()).unwrap();
        eventually("a file", || bench.exists("d/large"));
        let run = running.kill().unwrap();
        said.push(
            run.stderr.contains("the last 3 runs of this job ended before they completed an entry"),
        );
        bench.sh("rm -rf d/large");
    }
    assert_eq!(said, [false, false, false, true]);
    bench.copy("-T s d").expect_code(0);
    assert!(!bench.dmover("copy -T s d").expect_code(0).stderr.contains("the last"));
}

/// A bench on an image, whose destination is of the same file system, and a run that was killed in the middle of a large file.
fn killed_on(mounted: &dmover_testkit::image::Mounted, line: &str) -> Bench {
    let bench = Bench::inside(mounted.path());
    bench.write("s/large", pattern(SIZE));
    start_on(&bench, line).kill().unwrap();
    bench
}

fn start_on(bench: &Bench, line: &str) -> Running {
    let words = format!("{line} --bwlimit=3M --split-size=8M -j2 --progress=never");
    let running = bench.dmover.start(words.split_whitespace()).unwrap();
    let state = bench.dmover.state_directory();
    let found =
        format!("cat '{}'/jobs/*/large-files 2>&1 | grep -c flushed || true", state.display());
    eventually("a record", || bench.sh(&found).trim() != "0");
    running
}

#[track_caller]
fn ends_right(bench: &Bench, line: &str, file: &str) {
    bench.dmover(&format!("{line} --split-size=8M --progress=never")).expect_code(0);
    bench.sh(&format!("cmp s/large {file}"));
    assert_eq!(leftovers(bench.root()).unwrap(), Vec::<PathBuf>::new());
}

/// The names of temporaries below a directory.
fn temporary(bench: &Bench) -> String {
    let found = bench.sh("find . -name '.dmover*' -not -name '*.new'");
    assert_eq!(found.lines().count(), 1, "{found}");
    found.trim().to_owned()
}

macro_rules! image {
    () => {{
        let Some(mounted) = Image::create_or_skip("resumed", FileSystem::Ext4, 128 << 20) else {
            return;
        };
        mounted
    }};
}

/// Bytes that somebody has written into what an interrupted run has left, in place.
#[test]
fn a_temporary_that_was_changed_since_is_begun_anew() {
    let mounted = image!();
    let bench = killed_on(&mounted, "copy -T s d");
    let name = temporary(&bench);
    // Some time has passed since the run ended.
    let state = bench.dmover.state_directory();
    bench.sh(&format!("touch -d '5 minutes ago' '{}'/jobs/*/large-files", state.display()));
    bench.sh(&format!("head -c 16M /dev/zero | dd of={name} bs=1M conv=notrunc status=none"));
    ends_right(&bench, "copy -T s d", "d/large");
}

/// The file system of DEST is as it was when less was written than the record says.
#[test]
fn a_temporary_from_a_backup_of_its_file_system_is_begun_anew() {
    let bench = Bench::new();
    let _away = bench.undo(AWAY);
    if !bench.make_disks() {
        skip!("no loop devices");
    }
    // It takes twelve seconds: the next rounds of flushes come before its end, also after a freeze.
    bench.write("s/large", pattern(SIZE * 3 / 2));
    bench.put_disk(Some("A"));
    let running = start_on(&bench, "copy -T s disk/d");
    let state = bench.dmover.state_directory();
    let count = format!("grep -c flushed '{}'/jobs/*/large-files", state.display());
    let flushed = |script: &str| bench.sh(script).trim().parse::<u32>().unwrap();
    // While the file system is frozen: the file is not much larger than what two rounds of flushes write.
    let before = flushed(&format!("fsfreeze -f disk; {count}; cp A backup; fsfreeze -u disk"));
    eventually("more on record", || flushed(&count) > before + 1);
    running.kill().unwrap();
    bench.put_disk(None);
    bench.sh("mv backup A");
    bench.put_disk(Some("A"));
    ends_right(&bench, "copy -T s disk/d", "disk/d/large");
}

/// A source that was replaced by another file of the same size and times.
#[test]
fn a_source_that_was_replaced_is_begun_anew() {
    for line in ["copy -T s d", "sync s d"] {
        let mounted = image!();
        let bench = killed_on(&mounted, line);
        bench.sh(
            "tr '\\001-\\377' '\\002-\\377\\001' < s/large > n; touch -r s/large n; mv n s/large",
        );
        ends_right(&bench, line, "d/large");
    }
}

/// A program has the source mapped: what it writes moves no time while the page waits to be written back.
#[test]
fn a_source_that_is_mapped_for_writing_is_begun_anew() {
    const WRITER: &str = r#"
import mmap, os, sys
fd = os.open("s/large", os.O_RDWR)
data = mmap.mmap(fd, 0)
for at in range(0, len(data), 4096):
    data[at] = data[at]
print("mapped", flush=True)
sys.stdin.readline()
for at in range(0, len(data), 4096):
    data[at] = 255
print("written", flush=True)
sys.stdin.readline()
"#;
    for (line, file) in
        [("copy -T s d", "d/large"), ("sync s d", "d/large"), ("copy s/large other", "other")]
    {
        let mounted = image!();
        let bench = Bench::inside(mounted.path());
        bench.write("s/large", pattern(SIZE));
        bench.write("writer.py", WRITER);
        let mut writer = Command::new("python3")
            .arg("writer.py")
            .current_dir(bench.root())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(writer.stdout.take().unwrap()).lines();
        let mut tell = writer.stdin.take().unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "mapped");
        start_on(&bench, line).kill().unwrap();
        let times = || bench.sh("stat -c '%y %z' s/large");
        let before = times();
        tell.write_all(b"\n").unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "written");
        if times() == before {
            tell.write_all(b"\n").unwrap();
            drop(tell);
            assert!(writer.wait().unwrap().success());
        } else {
            // The kernel has written pages back meanwhile: the version tells it.
            drop(tell);
            writer.wait().unwrap();
        }
        ends_right(&bench, line, file);
    }
}
