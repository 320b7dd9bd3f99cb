//! Signals: parking and going on, leaving at once, and a word about how it stands.

use dmover_testkit::image::{FileSystem, Image};
use dmover_testkit::lanes::check::{leftovers, lying_files};
use dmover_testkit::lanes::run::Running;
use rustix::process::Signal;

use super::Bench;
use super::bench::{PROGRAM, eventually, pattern};

/// A bench with many files, whose copy at a limited rate takes seconds.
fn bench() -> Bench {
    let bench = Bench::new();
    for number in 0..60 {
        bench.write(&format!("s/{number:02}"), pattern(50_000));
    }
    bench.write("s/large", pattern(2_000_000));
    bench
}

/// Starts a slow copy and waits until it is in the middle.
fn in_the_middle(bench: &Bench, flags: &[&str]) -> Running {
    let slow = ["copy", "--json", "--bwlimit=1M", "--split-size=500K", "-j2"];
    let words = slow.iter().chain(flags).chain(&["s", "d"]);
    let running = bench.dmover.start(words).unwrap();
    assert!(running.wait_for_stdout("\"type\":\"item\"", 3), "{}", running.stderr_so_far());
    running
}

fn assert_nothing_lies(bench: &Bench) {
    let lying = lying_files(&bench.at("s"), &bench.at("d")).unwrap();
    assert_eq!(lying, Vec::<String>::new());
}

#[test]
fn interrupt_terminate_and_hangup_park_the_job_and_the_same_command_goes_on() {
    for (signal, number) in [(Signal::INT, 2), (Signal::TERM, 15), (Signal::HUP, 1)] {
        let bench = bench();
        let running = in_the_middle(&bench, &[]);
        running.signal(signal);
        let run = running.finish().unwrap();
        assert_eq!(run.signal(), Some(number), "{}", run.tell());
        let said = run.said().unwrap();
        let summary = said.summary.clone().unwrap_or_else(|| panic!("{}", run.tell()));
        assert_eq!(summary.number("exit_code"), Some(128 + number as u64));
        assert_eq!(summary.text("state"), "stopped");
        assert!(summary.number("files_copied").unwrap() < 61);
        assert_nothing_lies(&bench);
        let left = leftovers(&bench.at("d")).unwrap();
        assert!(left.len() <= 1, "more than the large file that the next run continues: {left:?}");
        bench.copy("--split-size=500K s d").expect_code(0);
        bench.assert_same("s", "d");
    }
}

#[test]
fn what_was_not_done_is_named_or_counted_when_a_job_is_parked() {
    let bench = bench();
    let running = in_the_middle(&bench, &[]);
    running.signal(Signal::INT);
    let run = running.finish().unwrap();
    let said = run.said().unwrap();
    let summary = said.summary.clone().unwrap();
    let done = summary.number("files_copied").unwrap();
    let left = said.errors.iter().filter(|line| line.text("class") == "cancelled").count();
    let vague = said.errors.iter().any(|line| line.text("message").contains("not attempted"));
    assert!(done as usize + left >= 61 || vague, "{}", run.tell());
}

#[test]
fn the_command_that_goes_on_is_printed_and_works() {
    let bench = bench();
    bench.sh("mv s 's p a c e'");
    let words = ["copy", "--bwlimit=1M", "-j2", "s p a c e", "d"];
    let running = bench.dmover.start(words).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !bench.exists("d/00") && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    running.signal(Signal::INT);
    let run = running.finish().unwrap();
    assert_eq!(run.signal(), Some(2), "{}", run.tell());
    let line = run
        .stderr
        .lines()
        .map(str::trim)
        .find_map(|line| line.find("dmover copy ").map(|at| &line[at..]));
    let line = line.unwrap_or_else(|| panic!("no command in {}", run.stderr));
    let program = bench.dmover.command().get_program().to_string_lossy().into_owned();
    let state = bench.dmover.state_directory();
    let command = line.replacen("dmover", &program, 1).replace("--bwlimit=1M", "");
    bench.sh(&format!("export DMOVER_STATE_DIR='{}'; {command}", state.display()));
    bench.assert_same("s p a c e", "d");
}

#[test]
fn a_second_signal_leaves_at_once() {
    let bench = Bench::new();
    bench.write("s/large", pattern(8_000_000));
    let running = bench.dmover.start(["copy", "--bwlimit=300K", "s", "d"]).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !bench.exists("d/large") && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    running.signal(Signal::INT);
    assert!(running.wait_for_stderr("SIGINT", 1), "{}", running.stderr_so_far());
    running.signal(Signal::INT);
    let run = running.finish().unwrap();
    assert_eq!(run.signal(), Some(2), "{}", run.tell());
    assert!(run.elapsed.as_secs() < 9, "longer than the grace: {:?}", run.elapsed);
    assert_nothing_lies(&bench);
    bench.copy("s d").expect_code(0);
    bench.assert_same("s", "d");
}

#[test]
fn usr1_asks_for_a_line_and_changes_nothing() {
    let bench = bench();
    let running = in_the_middle(&bench, &["--progress=never"]);
    let before = running.stderr_so_far().lines().count();
    running.signal(Signal::USR1);
    assert!(running.wait_for_stderr("\n", before + 1), "{}", running.stderr_so_far());
    let run = running.finish().unwrap().expect_code(0);
    assert!(run.stderr.contains("copied"), "{}", run.stderr);
    bench.assert_same("s", "d");
}

#[test]
fn a_killed_run_leaves_no_lock() {
    let bench = bench();
    in_the_middle(&bench, &[]).kill().unwrap();
    assert_nothing_lies(&bench);
    bench.copy("--split-size=500K s d").expect_code(0);
    bench.assert_same("s", "d");
}

#[test]
fn a_limit_holds_while_the_job_is_stopped() {
    let bench = Bench::new();
    // Far more than the limit lets through within the grace of a stop.
    bench.write("s/large", pattern(40_000_000));
    let words = ["copy", "--bwlimit=1M", "--split-size=0", "--reflink=never", "s", "d"];
    let running = bench.dmover.start(words).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !bench.exists("d/large") && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    running.signal(Signal::INT);
    let run = running.finish().unwrap();
    assert_eq!(run.signal(), Some(2), "{}", run.tell());
    assert!(!bench.exists("d/large"), "it was finished past the limit: {}", run.tell());
    bench.copy("s d").expect_code(0);
    bench.assert_same("s", "d");
}

/// nohup(1) means what it says.
#[test]
fn a_signal_that_was_ignored_from_the_start_stays_ignored() {
    let bench = bench();
    bench.sh(&format!(
        "(trap '' HUP; exec \"{PROGRAM}\" copy --json --bwlimit=2M -j2 s d > log) &
         for wait in $(seq 400); do grep -q '\"item\"' log && break; sleep 0.05; done
         kill -HUP $!; wait $!; grep -q '\"state\":\"finished\"' log"
    ));
    bench.assert_same("s", "d");
}

/// What a mover writes whose system call hangs must not meet what the next run does.
#[test]
fn a_job_stays_locked_while_a_system_call_of_its_movers_hangs() {
    let Some(image) = Image::create_or_skip("frozen", FileSystem::Ext4, 256 << 20) else { return };
    let bench = Bench::new();
    bench.write("s/large", pattern(100_000_000));
    let destination = image.path().join("d").display().to_string();
    let copy =
        ["copy", "--bwlimit=10M", "--split-size=8M", "--progress=never", "-T", "s", &destination];
    let running = bench.dmover.start(copy).unwrap();
    let on_record = format!(
        "cat '{}'/jobs/*/large-files | grep -c flushed || true",
        bench.dmover.state_directory().display()
    );
    eventually("a part on record", || bench.sh(&on_record).trim() != "0");
    bench.sh(&format!("fsfreeze -f {}", image.path().display()));
    let thaw = || bench.sh(&format!("fsfreeze -u {}", image.path().display()));
    running.signal(Signal::TERM);
    let is_over = running.wait_for_stderr("stopped by SIGTERM", 1);
    let second = bench.dmover.run(copy).unwrap();
    let record = bench.sh(&format!(
        "tail -n 1 '{}'/jobs/*/large-files",
        bench.dmover.state_directory().display()
    ));
    thaw();
    assert!(is_over, "{}", running.stderr_so_far());
    assert_eq!(second.code(), Some(6), "{}", second.tell());
    assert!(!record.contains("stopped"), "{record}");
    assert_eq!(running.finish().unwrap().signal(), Some(15));
    bench
        .dmover
        .run(copy.map(|word| if word == "--bwlimit=10M" { "-q" } else { word }))
        .unwrap()
        .expect_code(0);
    bench.sh(&format!("diff -r s {destination}"));
}
