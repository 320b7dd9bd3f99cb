//! How many system calls an entry takes: on a slow server each of them is a round trip.
//!
//! The numbers are the differences between trees of 600 and of 200 entries, with one mover, so that calls that a job makes
//! once do not count. A change that needs more calls says so here; one that needs fewer makes the number smaller.
use std::collections::BTreeMap;
use std::time::Duration;

use dmover_testkit::image::{FileSystem, Image};

use super::bench::{Bench, eventually};

const FEW: u32 = 200;
const MANY: u32 = 600;
/// Some calls are made by the clock: so far a call may be from a whole number an entry.
const TOLERANCE: f64 = 0.3;
/// A longer run counts its source ahead, which adds calls by the clock.
const RUN_MAX: Duration = Duration::from_secs(3);
/// Calls that are not made for an entry: memory, threads, output, the journal. Before each close a debug build makes a
/// call of fcntl.
const IGNORED: &[&str] = &[
    "brk",
    "clock_gettime",
    "clock_nanosleep",
    "clone3",
    "epoll_wait",
    "fcntl",
    "fdatasync",
    "futex",
    "madvise",
    "mmap",
    "munmap",
    "pwrite64",
    "read",
    "restart_syscall",
    "rt_sigprocmask",
    "sched_yield",
    "write",
];

const COPY_NEW_FILE: i64 = 11;
const COPY_EQUAL_FILE: i64 = 2;
const SYNC_NEW_FILE: i64 = 14;
const SYNC_EQUAL_FILE: i64 = 2;
const SYNC_CHANGED_FILE: i64 = 21;
const VERIFY_EQUAL_FILE: i64 = 16;
const SUM_FILE: i64 = 5;
const COPY_NEW_DIRECTORY: i64 = 24;
const COPY_EQUAL_DIRECTORY: i64 = 33;
const SYNC_NEW_DIRECTORY: i64 = 44;
const SYNC_EQUAL_DIRECTORY: i64 = 18;

/// A command, and its calls an entry. `N` is the number of entries.
struct Row {
    /// A shell script that makes the source, in `sN`; empty: it stays as it is.
    before: &'static str,
    line: &'static str,
    calls: i64,
}

impl Row {
    const fn new(before: &'static str, line: &'static str, calls: i64) -> Self {
        Self { before, line, calls }
    }

    /// The calls an entry by name, and the time of the longer run.
    fn measured(&self, bench: &Bench) -> (BTreeMap<String, f64>, Duration) {
        let of = |text: &str, entries: u32| text.replace('N', &entries.to_string());
        if !self.before.is_empty() {
            bench.sh(&of(self.before, FEW));
            bench.sh(&of(self.before, MANY));
            // What was changed a moment ago is looked at more closely.
            bench.sh("sync -f .");
            eventually("sources that rest", || {
                bench.sh("find s* -newerct '5 seconds ago'").is_empty()
            });
        }
        let (_, few) = bench.calls(&of(self.line, FEW));
        let (run, many) = bench.calls(&of(self.line, MANY));
        let each = many.iter().filter(|(name, _)| !IGNORED.contains(&name.as_str()));
        let each = each.map(|(name, count)| {
            let more = f64::from(*count) - f64::from(few.get(name).copied().unwrap_or(0));
            (name.clone(), more / f64::from(MANY - FEW))
        });
        (each.collect(), run.elapsed)
    }

    fn check(&self, each: &BTreeMap<String, f64>) {
        let total: i64 = each.values().map(|calls| calls.round() as i64).sum();
        let line = self.line;
        assert_eq!(total, self.calls, "calls an entry of '{line}': {each:?}");
        let is_whole = |calls: &f64| (calls - calls.round()).abs() <= TOLERANCE;
        assert!(each.values().all(is_whole), "{line}: {each:?}");
    }
}

/// Runs the rows one after the other; once more, with new trees, on a machine that is too busy.
fn check(test: &str, rows: &[Row]) {
    let Some(mounted) = Image::create_or_skip(test, FileSystem::Ext4, 700 << 20) else { return };
    for is_last in [false, false, true] {
        let bench = Bench::inside(mounted.path());
        let measured: Vec<_> = rows.iter().map(|row| row.measured(&bench)).collect();
        if is_last || measured.iter().all(|(_, elapsed)| *elapsed < RUN_MAX) {
            rows.iter().zip(&measured).for_each(|(row, (each, _))| row.check(each));
            return;
        }
    }
}

#[test]
fn files_take_as_many_calls_as_before() {
    const NEW: &str = "mkdir sN; for i in $(seq N); do head -c 4096 /dev/urandom > sN/$i; done";
    const CHANGED: &str = "for file in sN/*; do echo x >> $file; done";
    check(
        "calls of files",
        &[
            Row::new(NEW, "copy -q -j1 -T sN cN", COPY_NEW_FILE),
            Row::new("", "copy -q -j1 -T sN cN", COPY_EQUAL_FILE),
            Row::new("", "sync -q -j1 sN dN", SYNC_NEW_FILE),
            Row::new("", "sync -q -j1 sN dN", SYNC_EQUAL_FILE),
            Row::new("", "verify -q -j1 sN dN", VERIFY_EQUAL_FILE),
            Row::new("", "sum -q -j1 sN", SUM_FILE),
            Row::new(CHANGED, "sync -q -j1 sN dN", SYNC_CHANGED_FILE),
        ],
    );
}

#[test]
fn directories_take_as_many_calls_as_before() {
    check(
        "calls of directories",
        &[
            Row::new("mkdir -p sN/{1..N}", "copy -q -j1 -T sN cN", COPY_NEW_DIRECTORY),
            Row::new("", "copy -q -j1 -T sN cN", COPY_EQUAL_DIRECTORY),
            Row::new("", "sync -q -j1 sN dN", SYNC_NEW_DIRECTORY),
            Row::new("", "sync -q -j1 sN dN", SYNC_EQUAL_DIRECTORY),
        ],
    );
}
