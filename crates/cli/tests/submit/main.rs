//! `dmover submit` as a black box: movers here, over ssh and in batch jobs, and what becomes of them.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
#![allow(missing_docs, clippy::unwrap_used, reason = "tests stop")]
#![allow(clippy::unnecessary_debug_formatting, reason = "names hold control characters")]

#[path = "../bench/mod.rs"]
mod bench;
mod local;
mod pbs;
mod slurm;
mod ssh;
mod usage;

use bench::{Bench, PROGRAM, eventually, pattern};
use std::path::Path;
use std::time::Duration;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(100);

/// A bench with a tree `s` of a few megabytes, whose copy at a limited rate takes seconds.
fn bench() -> Bench {
    let bench = Bench::new();
    for number in 0..60 {
        bench.write(&format!("s/{}/{number:02}", number % 7), pattern(50_000));
    }
    bench.write("s/large", pattern(2_000_000));
    bench.sh("ln -s large s/link; ln s/large s/1/other-name; mkdir s/empty; chmod 751 s/empty");
    bench
}

/// Waits until files have come over, and more are to come.
#[track_caller]
fn wait_for_the_middle(bench: &Bench) {
    eventually("the job to be in the middle", || count(&bench.at("d")) >= 3);
}

/// Files in a tree.
fn count(directory: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let number = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => count(&entry.path()),
        Ok(_) => usize::from(!entry.file_name().as_encoded_bytes().starts_with(b".dmover")),
        Err(_) => 0,
    };
    entries.flatten().map(number).sum()
}

/// Processes that work in a directory, with their command lines.
fn processes_in(directory: &Path) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let place = std::fs::read_link(entry.path().join("cwd"));
        if place.is_ok_and(|place| place.starts_with(directory)) {
            found.push((pid, command_line(pid)));
        }
    }
    found
}

fn command_line(pid: u32) -> String {
    let text = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&text).replace('\0', " ")
}
