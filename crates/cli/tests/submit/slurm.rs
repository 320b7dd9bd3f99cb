//! Jobs of a real Slurm.
use super::bench::guide::{self, steps};
use dmover_testkit::cluster::{Cluster, Piece, Slurm, needs};
use dmover_testkit::faultfs::Op;
use dmover_testkit::skip;
use std::process::{Command, Stdio};

use super::{
    Bench, PATIENCE, PROGRAM, bench, command_line, eventually, pattern, wait_for_the_middle,
};

/// A controller, where jobs are submitted, and four nodes.
struct Place {
    slurm: Slurm,
    cluster: Cluster,
    bench: Bench,
}

/// Takes some seconds, in small tasks.
const SLOW: [&str; 7] =
    ["copy", "--bwlimit=700K", "--split-size=500K", "--lease=3s", "--progress=never", "s", "d"];

impl Place {
    fn new() -> Self {
        Self::around(bench())
    }

    fn around(bench: Bench) -> Self {
        let cluster = Cluster::new(&["ctl", "n1", "n2", "n3", "n4"]).unwrap();
        let nodes: Vec<_> = cluster.hosts()[1..].iter().collect();
        let slurm = Slurm::start(&cluster, cluster.host("ctl"), &nodes).unwrap();
        Self { slurm, cluster, bench }
    }

    /// dmover on the controller's host, in the bench.
    fn command(&self) -> Command {
        let mut command = self.slurm.command("timeout");
        command.args(["-k", "5", "100", PROGRAM]).current_dir(self.bench.root());
        command.env_remove("DMOVER_STATE_DIR").stdin(Stdio::null());
        command
    }

    /// Submits a job to three nodes.
    #[track_caller]
    fn submit(&self, options: &[&str], job: &[&str]) -> u32 {
        let mut command = self.command();
        let own = ["submit", "--slurm", "--movers=3", "--state-dir=state", "--output=said"];
        let output = command.args(own).args(options).arg("--").args(job).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    }

    /// What the job has said.
    fn said(&self) -> String {
        std::fs::read_to_string(self.bench.at("said")).unwrap_or_default()
    }

    fn restarts(&self, job: u32) -> String {
        self.slurm.job_field(job, "Restarts").unwrap()
    }

    /// The node with the batch script.
    fn first_node(&self, job: u32) -> String {
        self.slurm.job_field(job, "BatchHost").unwrap()
    }

    #[track_caller]
    fn assert_requeued_and_complete(&self, job: u32) {
        let requeued = self
            .slurm
            .wait_until("the job to be requeued", PATIENCE, || Ok(self.restarts(job) == "1"));
        requeued.unwrap_or_else(|error| panic!("{error:#}\n{}", self.said()));
        self.assert_complete(job);
    }

    #[track_caller]
    fn assert_complete(&self, job: u32) {
        let ended = self.slurm.wait_for(job, "COMPLETED", PATIENCE);
        ended.unwrap_or_else(|error| panic!("{error:#}\n{}", self.said()));
        self.bench.assert_same("s", "d");
        let is_ours = |pid: &u32| {
            let line = command_line(*pid);
            line.contains(PROGRAM) || line.contains("nats-server")
        };
        eventually("nodes to be idle", || !self.cluster.pids().unwrap().iter().any(is_ours));
    }
}

macro_rules! place {
    () => {{
        if let Err(why) = needs(&[Piece::Network, Piece::Nats, Piece::Slurm]) {
            skip!("{why}");
        }
        Place::new()
    }};
}

#[test]
fn a_job_on_three_nodes_completes() {
    let place = place!();
    let job = place.submit(&["--job-name=moving", "--cpus=2"], &SLOW);
    wait_for_the_middle(&place.bench);
    eventually("movers on three nodes", || {
        let has_mover = |host: &&dmover_testkit::cluster::Host| {
            let pids = host.pids().unwrap();
            pids.iter().any(|pid| command_line(*pid).starts_with(&format!("{PROGRAM} mover")))
        };
        place.cluster.hosts().iter().filter(has_mover).count() == 3
    });
    assert_eq!(place.slurm.job_field(job, "JobName").unwrap(), "moving");
    place.assert_complete(job);
    assert_eq!(place.restarts(job), "0");
    // Without dmover's help: a broker here, srun and the job.
    let mut broker = place.command();
    broker.args(["broker", "--state=broker", "--until-eof", "--listen"]);
    broker.arg(place.cluster.host("ctl").address().to_string());
    let mut broker = broker.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    eventually("the broker's file", || place.bench.exists("broker/join.json"));
    let mut movers = place.slurm.command("timeout");
    movers.args([
        "-k",
        "5",
        "100",
        "srun",
        "-N3",
        PROGRAM,
        "mover",
        "--broker",
        "broker/join.json",
    ]);
    movers.current_dir(place.bench.root()).args(["--idle-exit", "2s"]).stderr(Stdio::null());
    let mut movers = movers.stdin(Stdio::null()).spawn().unwrap();
    let mut copy = place.command();
    copy.args(["copy", "--broker", "broker/join.json", "--state-dir=state2", "s", "by-srun"]);
    assert!(copy.status().unwrap().success());
    place.bench.assert_same("s", "by-srun");
    assert!(movers.wait().unwrap().success());
    // The job here, and an array of movers there.
    let mut array = place.command();
    array.args(["submit", "--slurm", "--movers=3", "--state-dir=state3", "--output=array-%a"]);
    array.args(["--broker", "broker/join.json", "--", "copy", "s", "by-array"]);
    let output = array.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    place.bench.assert_same("s", "by-array");
    drop(broker.stdin.take());
    assert!(broker.wait().unwrap().success());
    eventually("the array to be gone", || place.slurm.ask(["squeue", "-h"]).unwrap().is_empty());
}

#[test]
fn the_death_of_the_first_node_is_survived() {
    let mut place = place!();
    let job = place.submit(&[], &SLOW);
    wait_for_the_middle(&place.bench);
    let first = place.first_node(job);
    place.slurm.kill_node(&first).unwrap();
    place.assert_requeued_and_complete(job);
    assert_ne!(place.first_node(job), first, "the journal was not taken to another host");
}

#[test]
fn the_death_of_another_node_is_survived() {
    let mut place = place!();
    let job = place.submit(&[], &SLOW);
    wait_for_the_middle(&place.bench);
    let first = place.first_node(job);
    let nodes = place.slurm.ask(["squeue", "-h", "-j", &job.to_string(), "-o", "%N"]).unwrap();
    let other = ["n3", "n2", "n1"].into_iter().find(|name| *name != first);
    assert!(nodes.contains("n[1-3]"), "{nodes}");
    place.slurm.kill_node(other.unwrap()).unwrap();
    // Either the rest is done by the others before Slurm has noticed, or the job is requeued.
    place.assert_complete(job);
}

#[test]
fn a_warning_before_the_time_limit_parks_and_requeues() {
    let place = place!();
    let job = place.submit(&["--time=10"], &SLOW);
    wait_for_the_middle(&place.bench);
    place.slurm.ask(["scancel", "--signal=USR1", "--batch", &job.to_string()]).unwrap();
    place.assert_requeued_and_complete(job);
    let said = place.said();
    assert!(
        said.contains("the time limit is near: stopping the job so that it can resume"),
        "{said}"
    );
    assert!(said.contains("the job is requeued"), "{said}");
}

#[test]
fn an_administrator_may_requeue_it() {
    let place = place!();
    let job = place.submit(&[], &SLOW);
    wait_for_the_middle(&place.bench);
    place.slurm.ask(["scontrol", "requeue", &job.to_string()]).unwrap();
    place.assert_requeued_and_complete(job);
}

#[test]
fn an_urgent_job_goes_first() {
    let place = place!();
    let job = place.submit(&["--cpus=4"], &SLOW);
    wait_for_the_middle(&place.bench);
    let urgent = ["-o", "/dev/null", "-N4", "-c4", "-p", "urgent", "--wrap", "hostname"];
    place.slurm.submit(urgent).unwrap();
    place.assert_requeued_and_complete(job);
}

/// Slurm does not reach the first node any more, and begins the job on others while the old copy still runs.
#[test]
fn two_copies_at_once_do_no_harm() {
    let place = place!();
    // Longer than Slurm takes to notice.
    let slow =
        ["copy", "--bwlimit=120K", "--split-size=500K", "--lease=3s", "--progress=never", "s", "d"];
    let job = place.submit(&[], &slow);
    wait_for_the_middle(&place.bench);
    let first = place.first_node(job);
    let host = place.cluster.host(&first);
    host.cut_link().unwrap();
    place
        .slurm
        .wait_until("the second copy to wait", PATIENCE, || {
            Ok(place.said().contains("this job is already running"))
        })
        .unwrap_or_else(|error| panic!("{error:#}\n{}", place.said()));
    assert_ne!(place.first_node(job), first);
    // It may have done everything by itself; then it waits for movers that cannot hear it.
    let is_old = |pid: &u32| command_line(*pid).contains(" submit --allocation");
    let is_there = host.pids().unwrap().iter().any(is_old);
    assert!(is_there, "the old copy was to be there still: {}", place.said());
    // The node comes back, and Slurm ends the old copy.
    host.mend_link().unwrap();
    place.assert_complete(job);
}

/// The script that a person edits, submitted by root.
#[test]
fn the_template_works_for_root() {
    let place = place!();
    let root = place.bench.root().display().to_string();
    let script = place.bench.dmover("submit --template slurm").expect_code(0).text();
    let script = script
        .replace("--nodes=4", "--nodes=2")
        .replace("SRC=/path/of/the/source/root", &format!("SRC={root}/t"))
        .replace("'run* calibration/2026-*'", "'*'")
        .replace("DST=/path/of/the/destination", &format!("DST={root}/d"))
        .replace("STATE=/path/that/all/nodes/see", &format!("STATE={root}/state"))
        .replace("exec dmover", &format!("exec {PROGRAM}"));
    place.bench.sh("mkdir t d; mv s t/s");
    let path = place.bench.write("copy.sh", script);
    let job = place
        .slurm
        .submit(["--export=NONE", "-o", &format!("{root}/said"), path.to_str().unwrap()])
        .unwrap();
    let ended = place.slurm.wait_for(job, "COMPLETED", PATIENCE);
    ended.unwrap_or_else(|error| panic!("{error:#}\n{}", place.said()));
    place.bench.assert_same("t/s", "d/s");
}

/// The bar of time limits: each run of the batch job ends after a third of what one large file needs. The destination counts what is written to it.
#[test]
fn a_third_of_the_time_that_a_large_file_needs_is_enough() {
    const SIZE: u64 = 24 << 20;
    if let Err(why) = needs(&[Piece::Network, Piece::Nats, Piece::Slurm]) {
        skip!("{why}");
    }
    let Some((served, bench)) = Bench::faulty() else { skip!("no faultfs") };
    bench.write("s/large", pattern(SIZE as usize));
    let place = Place::around(bench);
    let written = || served.counters().of(Op::Write).bytes;
    let job = [
        "copy",
        "-T",
        "--bwlimit=3M",
        "--split-size=8M",
        "--lease=3s",
        "--progress=never",
        "s",
        "faulty/d",
    ];
    let job = place.submit(&["--time=10"], &job);
    for cut in 1..=2 {
        eventually("another third", || written() > SIZE * cut / 3);
        // What Slurm does before a time limit.
        place.slurm.ask(["scancel", "--signal=USR1", "--batch", &job.to_string()]).unwrap();
        let is_requeued = || Ok(place.restarts(job) == cut.to_string());
        let requeued = place.slurm.wait_until("the job to be requeued", PATIENCE, is_requeued);
        requeued.unwrap_or_else(|error| panic!("{error:#}\n{}", place.said()));
        assert!(!place.bench.exists("faulty/d/large"), "it was to take longer: {}", place.said());
    }
    let ended = place.slurm.wait_for(job, "COMPLETED", PATIENCE);
    ended.unwrap_or_else(|error| panic!("{error:#}\n{}", place.said()));
    place.bench.sh("sha256sum < s/large > a; sha256sum < faulty/d/large > b; cmp a b");
    place.bench.assert_same("s", "faulty/d");
    let written = written();
    assert!((SIZE..=SIZE * 6 / 5).contains(&written), "{written} bytes of {SIZE}");
}

/// What `docs/migration-100tb.md` says of Slurm, as written there.
#[test]
fn the_migration_guide_works_with_slurm() {
    const GUIDE: &str = include_str!("../../../../docs/migration-100tb.md");
    let place = place!();
    let root = place.bench.root().display();
    place.bench.sh(&format!("mkdir bin d; ln -s {PROGRAM} bin/dmover"));
    let mut broker = place.command();
    broker.args(["broker", "--state=broker", "--until-eof", "--listen"]);
    broker.arg(place.cluster.host("ctl").address().to_string());
    let mut broker = broker.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    eventually("the broker's file", || place.bench.exists("broker/join.json"));
    let steps = steps(GUIDE);
    let steps: Vec<_> = steps.iter().filter(|step| step.place == guide::Place::Slurm).collect();
    assert!(!steps.is_empty());
    for step in steps {
        let script = format!(
            "export PATH={root}/bin:$PATH OLD={root}/s NEW={root}/d SHARED={root}/shared \
             BROKER={root}/broker/join.json; {}",
            step.script
        );
        let mut shell = place.slurm.command("timeout");
        shell.args(["-k", "5", "100", "bash", "-euc", &script]).current_dir(place.bench.root());
        let output = shell.env_remove("DMOVER_STATE_DIR").stdin(Stdio::null()).output().unwrap();
        let code = output.status.code();
        assert_eq!(code, Some(step.code), "{}", String::from_utf8_lossy(&output.stderr));
    }
    place.bench.assert_same("s", "d");
    drop(broker.stdin.take());
    assert!(broker.wait().unwrap().success());
    eventually("the array to be gone", || place.slurm.ask(["squeue", "-h"]).unwrap().is_empty());
}
