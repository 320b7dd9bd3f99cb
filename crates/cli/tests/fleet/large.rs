//! A large file that a fleet copies: coordinator, movers and broker are killed again and again, and the next run continues it.
use std::fs;

use dmover_testkit::cluster::{NatsServer, Piece, needs};
use dmover_testkit::image::{FileSystem, Image};
use dmover_testkit::lanes::run::Running;
use dmover_testkit::skip;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::path::Path;

use crate::Fleet;
use crate::bench::{Bench, eventually, is_root, pattern};

const SIZE: u64 = 24 << 20;

/// Bytes that a process has written by all system calls that write, as the kernel counts them.
pub fn written_by(pid: Pid) -> u64 {
    let io = fs::read_to_string(format!("/proc/{}/io", pid.as_raw_nonzero())).unwrap();
    let count = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    count.unwrap().parse().unwrap()
}

/// How many bytes of the temporary that was begun last are on record.
fn on_record(bench: &Bench) -> u64 {
    let state = bench.dmover.state_directory();
    let record = bench.sh(&format!("cat '{}'/jobs/*/large-files || true", state.display()));
    let mut temporary = Value::Null;
    let mut done = vec![false; SIZE as usize];
    // The last line may be half written.
    for line in record.lines().map_while(|line| serde_json::from_str::<Value>(line).ok()) {
        if let Some(begun) = line.get("begun") {
            temporary = begun["temporary"].clone();
            done.fill(false);
        }
        let flushed = &line["flushed"];
        if flushed["temporary"] != temporary {
            continue;
        }
        for range in flushed["done"]["ranges"].as_array().into_iter().flatten() {
            let border = |name: &str| range[name].as_u64().unwrap() as usize;
            done[border("start")..border("end")].fill(true);
        }
    }
    done.iter().filter(|done| **done).count() as u64
}

/// A broker, two movers and a coordinator for one run.
struct Round {
    broker: NatsServer,
    movers: [Running; 2],
    job: Running,
}

impl Round {
    fn start(bench: &Bench, verb: &str, destination: &Path, limit: &str) -> Self {
        let broker = NatsServer::start_local("").unwrap();
        let url = broker.url();
        let mover = || {
            let words = ["mover", "--insecure", "--broker", &url];
            let mover = bench.dmover.start(words).unwrap();
            assert!(mover.wait_for_stderr("waiting for jobs", 1), "{}", mover.stderr_so_far());
            mover
        };
        let movers = [mover(), mover()];
        let line = format!(
            "{verb} s {} {limit} --split-size=8M --lease=3s --reflink=auto --progress=never --insecure --broker {url}",
            destination.display()
        );
        let job = bench.dmover.start(line.split_whitespace()).unwrap();
        Self { broker, movers, job }
    }

    fn written(&self) -> u64 {
        self.movers.iter().map(|mover| written_by(mover.pid())).sum()
    }

    /// Kills everything. What is on record does not change afterwards.
    fn kill(mut self) {
        self.job.kill().unwrap();
        self.broker.kill();
        for mover in self.movers {
            mover.kill().unwrap();
        }
    }
}

/// What the next run does with a temporary that a killed mover may still write to.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    Continues,
    BeginsAnew,
}

/// Everything is killed when a third of the file is on record, and again after another third. The last run writes what
/// the record does not have.
#[track_caller]
fn in_thirds(file_system: FileSystem, verb: &str, next: Next) {
    let name = file_system.name();
    let Some(image) = Image::create_or_skip("fleet in thirds", file_system, 256 << 20) else {
        return;
    };
    let bench = Bench::new();
    bench.write("s/large", pattern(SIZE as usize));
    let destination = image.path().join("d");
    for cut in 1..=2 {
        let round = Round::start(&bench, verb, &destination, "--bwlimit=1M");
        let wanted = if next == Next::Continues { SIZE * cut / 3 } else { SIZE / 3 };
        // What is on record may be from the run before.
        eventually("a third on record", || {
            round.written() > SIZE / 4 && on_record(&bench) > wanted
        });
        assert!(!destination.join("large").exists(), "it was to take longer");
        round.kill();
    }
    let kept = if next == Next::Continues { on_record(&bench) } else { 0 };
    let Round { job, movers, broker } = Round::start(&bench, verb, &destination, "");
    let run = job.finish().unwrap().expect_code(0);
    let written = movers.iter().map(|mover| written_by(mover.pid())).sum::<u64>();
    for mover in movers {
        mover.kill().unwrap();
    }
    drop(broker);
    let large = destination.join("large");
    bench.sh(&format!(
        "cmp s/large {0}; test $(ls -A {1}) = large",
        large.display(),
        destination.display()
    ));
    // Messages to the broker count as written.
    let missing = SIZE - kept;
    assert!(
        (missing..=missing + (64 << 10)).contains(&written),
        "{name}, {verb}: {kept} bytes on record, {written} written; {}",
        run.tell()
    );
}

macro_rules! needed {
    () => {
        if let Err(why) = needs(&[Piece::Nats]) {
            skip!("{why}");
        }
        if !is_root() {
            skip!("no images without root");
        }
    };
}

#[test]
fn a_large_file_is_continued_where_blocks_can_be_shared() {
    needed!();
    in_thirds(FileSystem::Xfs, "copy -T", Next::Continues);
}

#[test]
fn a_large_file_is_begun_anew_where_blocks_cannot_be_shared() {
    needed!();
    // A mover of the run that was killed may still write to the temporary.
    in_thirds(FileSystem::Ext4, "copy -T", Next::BeginsAnew);
}

#[test]
fn a_cancelled_fleet_leaves_nothing_of_a_large_file() {
    needed!();
    let mut fleet = Fleet::new(0);
    fleet.call_mover("-j2");
    fleet.call_mover("-j2");
    fleet.bench.write("s/large", pattern(12 << 20));
    let written = || fleet.movers.iter().map(|mover| written_by(mover.pid())).sum::<u64>();
    let before = written();
    let url = fleet.broker.url();
    let line = format!(
        "copy -T --bwlimit=500K --split-size=512K --progress=never s d --insecure --broker {url}"
    );
    let job = fleet.bench.dmover.start(line.split_whitespace()).unwrap();
    eventually("a part of it", || written() - before > 2 << 20);
    fleet.bench.dmover("cancel").expect_code(0);
    let run = job.finish().unwrap().expect_code(3);
    assert!(run.stderr.contains("cancelled   1:"), "{}", run.tell());
    assert_eq!(fleet.bench.sh("ls -A d"), "");
}

/// Under a low limit, which many movers share, a job that is stopped keeps nearly all that it has written.
#[test]
fn a_stopped_job_loses_little_of_a_large_file_however_slow_its_movers_are() {
    const LARGE: u64 = 12 << 20;
    needed!();
    let mut fleet = Fleet::new(0);
    fleet.call_mover("-j16");
    fleet.call_mover("-j16");
    fleet.bench.write("s/large", pattern(LARGE as usize));
    let written = || fleet.movers.iter().map(|mover| written_by(mover.pid())).sum::<u64>();
    let before = written();
    let line = |limit: &str| {
        format!(
            "copy -T {limit} --split-size=512K --progress=never s d --insecure --broker {}",
            fleet.broker.url()
        )
    };
    for cut in 1..=2 {
        let job = fleet.bench.dmover.start(line("--bwlimit=300K").split_whitespace()).unwrap();
        eventually("another quarter", || written() - before > LARGE * cut / 4);
        job.signal(Signal::TERM);
        assert_eq!(job.finish().unwrap().signal(), Some(Signal::TERM.as_raw()));
    }
    fleet.bench.dmover(&line("")).expect_code(0);
    fleet.bench.sh("cmp s/large d/large");
    let written = written() - before;
    assert!((LARGE..=LARGE * 6 / 5).contains(&written), "{written} bytes of {LARGE}");
}
