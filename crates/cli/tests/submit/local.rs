//! Movers on this host.
use dmover_testkit::cluster::{Piece, needs};
use dmover_testkit::lanes::run::Running;
use dmover_testkit::skip;
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

use super::{Bench, bench, eventually, processes_in, wait_for_the_middle};

const SLOW: [&str; 9] =
    ["submit", "--local", "--movers=2", "--", "copy", "--bwlimit=1M", "--lease=3s", "s", "d"];

macro_rules! need_a_broker {
    () => {
        if let Err(why) = needs(&[Piece::Nats]) {
            skip!("{why}");
        }
    };
}

#[track_caller]
fn assert_nobody_is_left(bench: &Bench) {
    eventually("all processes to be gone", || processes_in(bench.root()).is_empty());
}

fn in_the_middle(bench: &Bench) -> Running {
    let running = bench.dmover.start(SLOW).unwrap();
    wait_for_the_middle(bench);
    running
}

/// Kills a process of the bench by what is on its command line.
#[track_caller]
fn kill(bench: &Bench, wanted: &str) {
    signal(bench, wanted, Signal::KILL);
}

#[track_caller]
fn signal(bench: &Bench, wanted: &str, signal: Signal) {
    let found = processes_in(bench.root());
    let found = found.iter().find(|(_, line)| line.contains(wanted));
    let (pid, _) = found.unwrap_or_else(|| panic!("no process with {wanted:?}"));
    kill_process(Pid::from_raw(*pid as i32).unwrap(), signal).unwrap();
}

#[test]
fn a_tree_is_copied_and_nothing_is_left() {
    need_a_broker!();
    let bench = bench();
    let run = bench.dmover("submit --local --movers 3 -- copy s d").expect_code(0);
    assert!(run.stderr.contains("copied"), "{}", run.stderr);
    bench.assert_same("s", "d");
    assert_eq!(processes_in(bench.root()), Vec::new(), "the end was not waited for");
    let left = bench.dmover.state_directory().join("placement");
    assert_eq!(std::fs::read_dir(left).unwrap().count(), 0, "the broker's data is left");
}

#[test]
fn every_verb_passes_its_output_and_its_code_on() {
    need_a_broker!();
    let bench = Bench::new();
    bench.write("s/a", "content");
    let run = bench.dmover("submit --local -- sync s d").expect_code(0);
    bench.assert_same("s", "d");
    drop(run);
    bench.dmover("submit --local -- verify s d").expect_code(0);
    bench.write("d/a", "another");
    bench.dmover("submit --local -- verify s d").expect_code(1);
    let run = bench.dmover("submit --local --movers 1 -- sum s").expect_code(0);
    assert_eq!(run.text(), bench.dmover("sum s").text());
    bench.dmover("submit --local -- copy no-such-thing d").expect_code(2);
}

#[test]
fn a_signal_parks_the_job_first_and_the_same_command_goes_on() {
    need_a_broker!();
    for (signal, number) in [(Signal::INT, 2), (Signal::TERM, 15)] {
        let bench = bench();
        let running = in_the_middle(&bench);
        running.signal(signal);
        let run = running.finish().unwrap();
        assert_eq!(run.signal(), Some(number), "{}", run.tell());
        assert!(run.stderr.contains("finishing the tasks in progress"), "{}", run.stderr);
        let line = run.stderr.lines().find(|line| line.contains("resume with")).unwrap();
        assert!(line.contains("submit --local --movers=2 -- copy"), "{line}");
        assert!(!line.contains("--broker"), "{line}");
        assert_nobody_is_left(&bench);
        bench.dmover("submit --local -- copy s d").expect_code(0);
        bench.assert_same("s", "d");
    }
}

/// A batch system and an init system kill what does not end in time.
#[test]
fn a_submit_ends_in_time_though_its_broker_hangs() {
    need_a_broker!();
    let bench = bench();
    let running = in_the_middle(&bench);
    signal(&bench, "nats-server --config", Signal::STOP);
    let stopped = Instant::now();
    running.signal(Signal::TERM);
    let run = running.finish().unwrap();
    let taken = stopped.elapsed();
    assert_eq!(run.signal(), Some(15), "{}", run.tell());
    assert_eq!(processes_in(bench.root()), Vec::new(), "the end was not waited for");
    // Twelve seconds are promised; the rest is for a busy machine.
    assert!(taken < Duration::from_secs(18), "{taken:?}: {}", run.tell());
    bench.dmover("submit --local -- copy s d").expect_code(0);
    bench.assert_same("s", "d");
}

#[test]
fn a_killed_submit_takes_everything_along() {
    need_a_broker!();
    let bench = bench();
    let running = in_the_middle(&bench);
    kill(&bench, "submit --local");
    assert_eq!(running.finish().unwrap().signal(), Some(9));
    assert_nobody_is_left(&bench);
    bench.dmover.run(SLOW).unwrap().expect_code(0);
    bench.assert_same("s", "d");
}

#[test]
fn a_second_copy_that_tries_again_says_why_once() {
    need_a_broker!();
    let bench = bench();
    let running = in_the_middle(&bench);
    // It lasts as long as this takes.
    signal(&bench, "copy --broker", Signal::STOP);
    let words = ["submit", "--local", "--movers=2", "--retry-for=12s"];
    let second = bench.dmover.run(words.into_iter().chain(SLOW.into_iter().skip(3))).unwrap();
    let second = second.expect_code(6);
    assert_eq!(second.stderr.matches("retrying").count(), 1, "{}", second.tell());
    signal(&bench, "copy --broker", Signal::CONT);
    running.signal(Signal::TERM);
    running.finish().unwrap();
}

/// They have leases, and nobody to tell what they do.
#[test]
fn movers_of_a_killed_submit_end_before_their_leases() {
    need_a_broker!();
    let bench = Bench::new();
    bench.sh("mkdir large; head -c 60M /dev/urandom >large/f");
    let line = "submit --local --movers 2 -- copy --bwlimit 1M large d";
    let running = bench.dmover.start(line.split(' ')).unwrap();
    let begun = "find d -type f 2>/dev/null || true";
    eventually("a part of the file", || !bench.sh(begun).is_empty());
    kill(&bench, "submit --local");
    let killed = Instant::now();
    running.finish().unwrap();
    let movers = || processes_in(bench.root()).iter().any(|(_, line)| line.contains("mover --"));
    eventually("all movers to be gone", || !movers());
    // A few seconds, where a lease has thirty; the rest is for a busy machine.
    assert!(killed.elapsed() < Duration::from_secs(25), "{:?}", killed.elapsed());
    assert_nobody_is_left(&bench);
}

/// What one that was killed has left goes with the next one, whatever that does; what was left on purpose stays.
#[test]
fn what_a_killed_submit_has_left_goes_with_the_next_one() {
    need_a_broker!();
    let bench = bench();
    let places = || {
        let placement = bench.dmover.state_directory().join("placement");
        let all = std::fs::read_dir(placement).unwrap();
        all.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
    };
    let running = in_the_middle(&bench);
    kill(&bench, "submit --local");
    running.finish().unwrap();
    assert_nobody_is_left(&bench);
    assert_eq!(places().len(), 1, "nobody could tidy up");
    bench.write("e/f", "content");
    bench.dmover("submit --local -- copy e g").expect_code(0);
    assert_eq!(places().len(), 0);
    // One that was asked to end leaves its logs.
    bench.sh("rm -r d");
    let running = in_the_middle(&bench);
    running.signal(Signal::TERM);
    let run = running.finish().unwrap();
    assert!(
        run.stderr.contains("stopped by SIGTERM; run the same command again to resume"),
        "{}",
        run.stderr
    );
    bench.dmover("submit --local -- copy e h").expect_code(0);
    assert_eq!(places().len(), 1);
    bench.dmover("cleanup --all").expect_code(0);
    assert_eq!(places().len(), 0);
}

#[test]
fn a_job_that_is_killed_beside_its_submit_is_told_of() {
    need_a_broker!();
    let bench = bench();
    let running = in_the_middle(&bench);
    kill(&bench, "dmover copy --broker");
    let run = running.finish().unwrap();
    assert_eq!(run.signal(), Some(9), "{}", run.tell());
    let words = "the job died by SIGKILL; run the same command again to resume";
    assert!(run.stderr.contains(words), "{}", run.stderr);
    assert_nobody_is_left(&bench);
}

#[test]
fn a_killed_broker_takes_its_server_along_and_leaves_nothing_after_a_cleanup() {
    need_a_broker!();
    let bench = bench();
    let state = bench.dmover.state_directory();
    for _ in 0..2 {
        let broker = bench.dmover.start(["broker"]).unwrap();
        assert!(broker.wait_for_stdout("join.json", 1), "{}", broker.stderr_so_far());
        // It runs.
        bench.dmover("cleanup --all").expect_code(0);
        assert!(state.join("broker/user.nk").exists());
        broker.kill().unwrap();
        assert_nobody_is_left(&bench);
    }
    let run = bench.dmover("cleanup --all -n").expect_code(0);
    assert!(run.stderr.contains("would remove data and secret"), "{}", run.stderr);
    assert!(state.join("broker/user.nk").exists());
    bench.dmover("cleanup --all").expect_code(0);
    assert!(!state.join("broker").exists());
}

/// A job with movers behind a broker of `dmover broker`, which is at work for some seconds.
fn behind_a_broker(bench: &Bench, state: &str) -> (Running, Vec<Running>, Running) {
    let broker = bench.dmover.start(["broker", "--state", state]).unwrap();
    assert!(broker.wait_for_stdout("join.json", 1), "{}", broker.stderr_so_far());
    let file = format!("{state}/join.json");
    let movers = (0..2).map(|_| bench.dmover.start(["mover", "--broker", &file]).unwrap());
    let movers = movers.collect();
    let words = ["copy", "-T", "--ops-limit=100", "--lease=3s", "--broker", &file, "s", "d"];
    let job = bench.dmover.start(words).unwrap();
    wait_for_the_middle(bench);
    (broker, movers, job)
}

#[test]
fn a_server_that_hangs_is_restarted_and_the_job_goes_on() {
    need_a_broker!();
    let bench = bench();
    bench.sh("cd s; mkdir many; cd many; seq 400 | xargs touch");
    let (broker, movers, job) = behind_a_broker(&bench, "broker");
    signal(&bench, "nats-server --config", Signal::STOP);
    assert!(broker.wait_for_stderr("the broker listens again", 1), "{}", broker.stderr_so_far());
    let said = broker.stderr_so_far();
    assert!(said.contains("restarting nats-server: JetStream does not answer"), "{said}");
    assert!(said.contains("free at 'broker'"), "{said}");
    job.finish().unwrap().expect_code(0);
    bench.assert_same("s", "d");
    drop(movers);
    broker.signal(Signal::TERM);
    assert_eq!(broker.finish().unwrap().code(), Some(0));
}

#[test]
fn a_broker_without_space_for_a_moment_works_on_when_it_has_some() {
    need_a_broker!();
    if !rustix::process::geteuid().is_root() {
        skip!("it needs a file system of its own, and so root");
    }
    let bench = bench();
    bench.sh("mkdir full; mount -t tmpfs -o size=24M tmpfs full");
    let _undo = bench.undo("umount -l full");
    bench.sh("cd s; for i in 1 2 3 4; do mkdir m$i; (cd m$i; seq 300 | xargs touch); done");
    let (broker, movers, job) = behind_a_broker(&bench, "full/broker");
    bench.sh("head -c 30M /dev/zero > full/filler || true; sleep 5; rm full/filler");
    job.finish().unwrap().expect_code(0);
    bench.assert_same("s", "d");
    drop(movers);
    broker.signal(Signal::TERM);
    assert_eq!(broker.finish().unwrap().code(), Some(0));
}

#[test]
fn a_killed_mover_and_a_killed_broker_are_started_again() {
    need_a_broker!();
    let bench = bench();
    let running = in_the_middle(&bench);
    kill(&bench, " mover --broker -");
    kill(&bench, "nats-server");
    let run = running.finish().unwrap().expect_code(0);
    assert!(run.stderr.contains("the broker ended; restarting it"), "{}", run.stderr);
    assert!(run.stderr.contains("ended; restarting them"), "{}", run.stderr);
    bench.assert_same("s", "d");
    assert_nobody_is_left(&bench);
}

#[test]
fn a_broker_that_is_there_is_used_and_stays() {
    need_a_broker!();
    let bench = bench();
    let broker = bench.dmover.start(["broker", "--state", "broker"]).unwrap();
    assert!(broker.wait_for_stdout("join.json", 1), "{}", broker.stderr_so_far());
    let words = "submit --local --broker broker/join.json -- copy s d";
    bench.dmover(words).expect_code(0);
    bench.assert_same("s", "d");
    // Two over one store would ruin it.
    let second = bench.dmover("broker --state broker").expect_code(6);
    assert!(second.stderr.contains("another broker uses 'broker'"), "{}", second.stderr);
    // Movers alone, until a signal comes.
    let movers = ["submit", "--local", "--movers=1", "--broker", "broker/join.json"];
    let movers = bench.dmover.start(movers).unwrap();
    bench.dmover("copy --broker broker/join.json s e").expect_code(0);
    bench.assert_same("s", "e");
    movers.signal(Signal::TERM);
    assert_eq!(movers.finish().unwrap().code(), Some(0));
    broker.signal(Signal::TERM);
    assert_eq!(broker.finish().unwrap().code(), Some(0));
    assert_nobody_is_left(&bench);
}
