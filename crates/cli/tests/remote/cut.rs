//! Jobs between hosts that are killed or cut at any moment: what is there is whole, and the same command completes it.
use super::bench::{eventually, pattern};
use super::command_line;
use super::ends::{Ends, WAYS, Way, ends};
use dmover_testkit::lanes::check::{leftovers, lying_files};
use dmover_testkit::lanes::run::{Run, Running};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Pid, Signal, kill_process};
use std::path::PathBuf;

const FILES: usize = 60;
const SLOW: &str = "copy --json -T --bwlimit=3M --split-size=500K -j2";

fn tree(ends: &Ends) {
    let bench = &ends.bench;
    for number in 0..FILES {
        bench.write(&format!("s/{}/{number:02}", number % 7), pattern(20_000 + number * 100));
    }
    bench.write("s/large", pattern(2_000_000));
    bench.sh("cd s; ln 3/03 4/link; ln -s nowhere dangling; mkfifo 5/pipe; touch -d 2001-02-03 large 1 2/02");
}

fn kill(pid: u32) {
    // It may have ended by itself.
    let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL);
}

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Near,
    Far,
    Ssh,
}

/// The ssh of this cluster, which run here.
fn clients(ends: &Ends) -> Vec<u32> {
    let begin = ends.ssh().replace(' ', "\0");
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| command_line(*pid).starts_with(&begin)).collect()
}

/// Names at DEST, below directories too.
fn names(ends: &Ends) -> usize {
    let count =
        |path: PathBuf| std::fs::read_dir(path).map_or(0, |listed| listed.flatten().count());
    let root = ends.bench.at("d");
    let below: usize = (0..7).map(|number| count(root.join(number.to_string()))).sum();
    below + count(root)
}

/// Nothing that looks whole is not, and both ends have ended.
#[track_caller]
fn assert_ended(ends: &Ends) {
    eventually("agents and ssh to end", || ends.agents().is_empty() && clients(ends).is_empty());
    let lying = lying_files(&ends.bench.at("s"), &ends.bench.at("d")).unwrap();
    assert_eq!(lying, Vec::<String>::new());
}

/// The same command completes the job.
#[track_caller]
fn assert_completes(ends: &Ends, way: Way) {
    ends.job(way, "copy --json -T --split-size=500K", ("s", "d")).expect_code(0);
    ends.bench.assert_same("s", "d");
    assert_eq!(leftovers(&ends.bench.at("d")).unwrap(), Vec::<PathBuf>::new());
    ends.bench.sh("rm -r d");
}

fn kill_when(ends: &Ends, mut running: Running, victim: Victim, entries: usize) -> Run {
    eventually("entries", || names(ends) >= entries || running.has_ended().unwrap());
    match victim {
        Victim::Near => running.signal(Signal::KILL),
        Victim::Far => ends.agents().into_iter().take(1).for_each(kill),
        Victim::Ssh => clients(ends).into_iter().take(1).for_each(kill),
    }
    running.finish().unwrap()
}

#[test]
fn killed_processes_and_connections_lose_nothing() {
    let ends = ends!();
    tree(&ends);
    let seed: u64 = std::process::id().into();
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut hits = 0;
    for way in WAYS {
        for victim in [Victim::Near, Victim::Far, Victim::Ssh] {
            let entries = rng.random_range(1..FILES);
            println!("{way:?} {victim:?} at {entries} entries");
            // Data streams would go on without ssh.
            let streams = if victim == Victim::Ssh { " --streams 0" } else { "" };
            let running = ends.start_job(way, &format!("{SLOW}{streams}"), ("s", "d"));
            let run = kill_when(&ends, running, victim, entries);
            hits += usize::from(run.code() != Some(0));
            if victim == Victim::Near {
                assert!(run.signal() == Some(9) || run.code() == Some(0), "{}", run.tell());
            } else if run.code() != Some(0) {
                assert_eq!(run.code(), Some(6), "{}", run.tell());
                let text = format!("{}{}", run.stderr, run.text());
                assert!(text.contains("was lost"), "{}", run.tell());
            }
            assert_ended(&ends);
            if ends.bench.exists("d") {
                assert_completes(&ends, way);
            }
        }
    }
    assert!(hits >= 10, "only {hits} of 12 jobs were interrupted");
}

/// Connects ssh to a host, and cuts the connection after so many bytes from the host or to it.
const PROXY: &str = r"#!/usr/bin/env python3
import os, select, socket, sys
host, port, left = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
peer = socket.create_connection((host, port))
while left > 0:
    ready, _, _ = select.select([0, peer], [], [])
    for one in ready:
        data = os.read(0, 4096) if one == 0 else peer.recv(4096)
        if not data:
            sys.exit(0)
        data, left = data[:max(left, 0)], left - len(data)
        if one == 0:
            peer.sendall(data)
        else:
            while data:
                data = data[os.write(1, data):]
";

#[test]
fn connections_that_are_cut_after_any_number_of_bytes_lose_nothing() {
    let ends = ends!();
    tree(&ends);
    let bench = &ends.bench;
    let proxy = bench.write("proxy", PROXY);
    bench.sh("chmod +x proxy");
    let seed: u64 = std::process::id().into();
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut hits = 0;
    for turn in 0..12 {
        let way = WAYS[turn % 2];
        // A login takes about 7 KB, the whole tree 3.4 MB.
        let bytes = rng.random_range(8_000..if turn < 4 { 60_000 } else { 3_000_000 });
        println!("{way:?} after {bytes} bytes");
        let config = bench.at("cutting");
        let command = format!("ProxyCommand {} %h %p {bytes}\n", proxy.display());
        let usual = ends.ssh().replace("ssh -F ", "");
        std::fs::write(&config, format!("{command}Include {usual}\n")).unwrap();
        let ssh = format!("ssh -F {}", config.display());
        let mut words: Vec<std::ffi::OsString> =
            ["copy", "--json", "-T", "--split-size=500K", "--streams=0", "--ssh-command", &ssh]
                .map(Into::into)
                .into();
        words.extend([ends.at(way.source, "s"), ends.at(way.destination, "d")]);
        let run = bench.dmover.run(&words).unwrap();
        assert!(matches!(run.code(), Some(0 | 6)), "{}", run.tell());
        hits += usize::from(run.code() == Some(6));
        eventually("agents to end", || ends.agents().is_empty());
        let lying = lying_files(&bench.at("s"), &bench.at("d")).unwrap();
        assert_eq!(lying, Vec::<String>::new());
        assert_completes(&ends, way);
    }
    assert!(hits >= 8, "only {hits} of 12 jobs were interrupted");
}

#[test]
fn signals_stop_the_job_there_as_here_and_the_same_command_goes_on() {
    let ends = ends!();
    tree(&ends);
    for (signal, number) in [(Signal::INT, 2), (Signal::TERM, 15), (Signal::HUP, 1)] {
        for way in WAYS {
            let running = ends.start_job(way, SLOW, ("s", "d"));
            assert!(running.wait_for_stdout("\"type\":\"item\"", 3), "{}", running.stderr_so_far());
            running.signal(signal);
            let run = running.finish().unwrap();
            assert_eq!(run.signal(), Some(number), "{way:?} {}", run.tell());
            let summary = run.said().unwrap().summary.unwrap_or_else(|| panic!("{}", run.tell()));
            assert_eq!(summary.number("exit_code"), Some(128 + number as u64));
            assert_eq!(summary.text("state"), "stopped");
            assert_ended(&ends);
            let left = leftovers(&ends.bench.at("d")).unwrap();
            assert!(left.len() <= 1, "more than the file that the next run continues: {left:?}");
            assert_completes(&ends, way);
        }
    }
}

/// The first pass of the next run completes what was interrupted, and another one compares everything.
#[test]
fn an_interrupted_pass_is_completed_and_checked_by_the_same_command() {
    let ends = ends!();
    tree(&ends);
    let mut resumed = 0;
    let line = "sync --json --split-size=500K -j2 --bwlimit=2M";
    for (number, way) in WAYS.into_iter().enumerate() {
        let destination = format!("d{number}");
        ends.bench.sh(&format!("mkdir {destination}"));
        let running = ends.start_job(way, line, ("s", &destination));
        // A job that ends within a moment has no journal.
        assert!(running.wait_for_stdout("\"type\":\"item\"", 40), "{}", running.stderr_so_far());
        running.signal(Signal::TERM);
        assert_eq!(running.finish().unwrap().signal(), Some(15), "{way:?}");
        eventually("agents to end", || ends.agents().is_empty());
        let run = ends.job(way, line, ("s", &destination)).expect_code(0);
        let summary = run.said().unwrap().summary.unwrap_or_else(|| panic!("{}", run.tell()));
        println!("{way:?} resumed: {}", summary.0["resumed"]);
        resumed += usize::from(summary.0["resumed"] == true);
        ends.bench.assert_same("s", &destination);
        assert_eq!(leftovers(&ends.bench.at(&destination)).unwrap(), Vec::<PathBuf>::new());
    }
    assert!(resumed > 0, "no pass was resumed");
}

/// SOURCE is known by what its host has there, not by what is at this path here: nothing.
#[test]
fn a_pass_from_another_host_is_resumed() {
    let ends = ends!();
    tree(&ends);
    let line = "sync --json --split-size=500K -j2 --bwlimit=2M";
    for (number, side) in ["", "other:"].into_iter().enumerate() {
        let destination = format!("d{number}");
        let home = ends.home("far", "below-home");
        ends.bench.sh(&format!("mkdir {destination}; cp -a s '{}'", home.display()));
        let words = ["far:below-home".into(), ends.at(side, &destination)];
        let running = ends.start_run(line, &words);
        assert!(running.wait_for_stdout("\"type\":\"item\"", 40), "{}", running.stderr_so_far());
        running.signal(Signal::TERM);
        assert_eq!(running.finish().unwrap().signal(), Some(15), "{side:?}");
        eventually("agents to end", || ends.agents().is_empty());
        let run = ends.run(line, &words).expect_code(0);
        let summary = run.said().unwrap().summary.unwrap_or_else(|| panic!("{}", run.tell()));
        assert_eq!(summary.0["resumed"], true, "{side:?}: {}", run.tell());
        ends.bench.assert_same("s", &destination);
        std::fs::remove_dir_all(home).unwrap();
    }
}

/// The movers are here, and have flushed what they wrote; of a pass that was killed nothing is known. (With a catalog of renames,
/// directories that changed within the last hour are compared: whether the pass had entered them is lost with it.)
#[test]
fn a_pass_that_lost_its_source_does_not_read_again_what_it_has_copied() {
    let ends = ends!();
    tree(&ends);
    let way = Way { source: "far:", destination: "" };
    for victim in [Victim::Far, Victim::Near] {
        let running = ends.start_job(way, "sync --no-renames --json -j2 --bwlimit=2M", ("s", "d"));
        let run = kill_when(&ends, running, victim, 20);
        assert!(run.code() == Some(6) || run.signal() == Some(9), "{victim:?} {}", run.tell());
        assert_ended(&ends);
        let run = ends.job(way, "sync --no-renames --json", ("s", "d")).expect_code(0);
        let summary = run.said().unwrap().summary.unwrap();
        let compared = summary.number("files_compared").unwrap_or_default();
        assert_eq!(compared > 0, victim == Victim::Near, "{victim:?} {}", run.tell());
        ends.bench.assert_same("s", "d");
        ends.bench.sh("rm -r d");
    }
}

#[test]
fn usr1_asks_the_job_there_for_a_line() {
    let ends = ends!();
    tree(&ends);
    let way = Way { source: "", destination: "far:" };
    let running = ends.start_job(way, &format!("{SLOW} --progress=never"), ("s", "d"));
    assert!(running.wait_for_stdout("\"type\":\"item\"", 3), "{}", running.stderr_so_far());
    running.signal(Signal::USR1);
    assert!(running.wait_for_stderr("\n", 1), "no line came");
    running.finish().unwrap().expect_code(0);
    ends.bench.assert_same("s", "d");
}
