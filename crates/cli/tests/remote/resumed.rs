//! Large files of jobs between hosts: the next run continues what an end has left of one.
use super::bench::{eventually, pattern};
use super::ends::{Ends, WAYS, Way, count, ends};
use dmover_testkit::lanes::check::leftovers;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

const SIZE: u64 = 24 << 20;
const COPY: &str = "copy --json -T --split-size=4M -j2";

/// What ends the first run, while the end that writes goes on until it has noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Terminated,
    ReaderKilled,
}

/// The bytes of the temporary file at DEST.
fn there(ends: &Ends) -> u64 {
    let listed = std::fs::read_dir(ends.bench.at("d")).into_iter().flatten().flatten();
    listed.filter_map(|entry| Some(entry.metadata().ok()?.blocks())).sum::<u64>() * 512
}

fn interrupt(ends: &Ends, way: Way, end: End) {
    let mut running = ends.start_job(way, &format!("{COPY} --bwlimit=4M"), ("s", "d"));
    eventually("half of it", || there(ends) > SIZE / 2 || running.has_ended().unwrap());
    match end {
        End::Terminated => running.signal(Signal::TERM),
        End::ReaderKilled if way.source.is_empty() => running.signal(Signal::KILL),
        End::ReaderKilled => {
            for agent in ends.agents() {
                // It may have ended by itself.
                let _ = kill_process(Pid::from_raw(agent as i32).unwrap(), Signal::KILL);
            }
        }
    }
    let run = running.finish().unwrap();
    assert_ne!(run.code(), Some(0), "{}", run.tell());
    eventually("agents to end", || ends.agents().is_empty());
}

#[test]
fn the_next_run_continues_a_large_file_across_hosts() {
    let ends = ends!();
    ends.bench.write("s/large", pattern(SIZE as usize));
    for way in [WAYS[0], WAYS[1]] {
        for end in [End::Terminated, End::ReaderKilled] {
            interrupt(&ends, way, end);
            let run = ends.job(way, COPY, ("s", "d")).expect_code(0);
            let copied = count(&run, "bytes_copied");
            assert!(copied < SIZE * 3 / 4, "{way:?} {end:?} began again: {copied} of {SIZE}");
            ends.bench.assert_same("s", "d");
            assert_eq!(leftovers(&ends.bench.at("d")).unwrap(), Vec::<PathBuf>::new());
            ends.bench.sh("rm -r d");
        }
    }
}

#[test]
fn a_large_file_of_another_version_is_not_continued() {
    let ends = ends!();
    for way in [WAYS[0], WAYS[1]] {
        ends.bench.write("s/large", pattern(SIZE as usize));
        interrupt(&ends, way, End::Terminated);
        // The same size and time: its inode shows that it is another file.
        ends.bench.sh("cd s; cp -p large new; printf x | dd of=new conv=notrunc status=none; touch -r large new; mv new large");
        ends.job(way, COPY, ("s", "d")).expect_code(0);
        ends.bench.assert_same("s", "d");
        ends.bench.sh("rm -r d");
    }
}
