//! Movers of a broker that read a SOURCE on another host by connections of their own, where the command runs or at a DEST on a
//! third host.
use super::bench::{PROGRAM, eventually};
use super::ends::{self, Ends, Way, assert_idle, count};
use super::listening::left;
use super::third::{assert_same, passed, summary};
use dmover_testkit::cluster::{NatsServer, Piece, needs};
use dmover_testkit::lanes::run::{Dmover, Run, Running};
use dmover_testkit::skip;

const WAY: Way = Way { source: "far:", destination: "" };
/// The command sees neither end.
const THIRD: Way = Way { source: "far:", destination: "other:" };

/// A broker, and movers that find SOURCE at the host `far` only.
struct Far {
    ends: Ends,
    broker: NatsServer,
    /// As it runs where the movers are.
    program: Dmover,
    movers: Vec<Running>,
}

impl Far {
    fn with(movers: usize, options: &str) -> Self {
        let ends = Ends::start();
        let program = Dmover::new(PROGRAM).unwrap().with_state(ends.bench.dmover.state_directory());
        let broker = NatsServer::start_local("").unwrap();
        Self { ends, broker, program, movers: Vec::new() }.and(movers, options)
    }

    /// The broker and the movers are at `other`, and the command is at `near`.
    fn with_elsewhere(movers: usize, options: &str) -> Self {
        let ends = Ends::with_near_host();
        let host = ends.cluster.host("other");
        let broker = NatsServer::start(host, "").unwrap();
        // They have the key of the user there, who runs the job.
        let state = ends.home("other", ".local/state/dmover");
        let program = Dmover::new(PROGRAM).unwrap().wrapped(host.words()).with_state(state);
        Self { ends, broker, program, movers: Vec::new() }.and(movers, options)
    }

    fn and(mut self, movers: usize, options: &str) -> Self {
        (0..movers).for_each(|_| self.call_mover(options));
        self
    }

    fn call_mover(&mut self, options: &str) {
        let line = format!("mover --insecure --broker {} {options}", self.broker.url());
        let words = self.ends.words(&line, &[]);
        let mover = self.program.start(words).unwrap();
        assert!(mover.wait_for_stderr("waiting for jobs", 1), "{}", mover.stderr_so_far());
        self.movers.push(mover);
    }

    fn start(&self, way: Way, line: &str) -> Running {
        let line = format!("{line} --insecure --broker {}", self.broker.url());
        self.ends.start_job(way, &line, ("s", "d"))
    }

    #[track_caller]
    fn run(&self, line: &str) -> Run {
        self.start(WAY, line).finish().unwrap()
    }

    /// Which movers have said that they work for a job.
    fn at_work(&self) -> usize {
        let works = |mover: &&Running| mover.stderr_so_far().contains("working for a job");
        self.movers.iter().filter(works).count()
    }
}

macro_rules! far {
    ($movers:expr, $options:expr) => {
        far!(with, $movers, $options)
    };
    ($with:ident, $movers:expr, $options:expr) => {{
        if let Some(why) = ends::missing() {
            skip!("{why}");
        }
        if let Err(why) = needs(&[Piece::Nats]) {
            skip!("{why}");
        }
        Far::$with($movers, $options)
    }};
}

fn tree(far: &Far) {
    far.ends.bench.sh(
        "mkdir -p s/d/e; head -c 40M /dev/urandom > s/large; ln -s d s/symbolic; touch -d 2001-02-03 s/large
        for i in $(seq 400); do head -c 5K /dev/urandom > s/d/$i; done; ln s/d/7 s/link; chmod 640 s/d/7
        truncate -s 3M s/holes; setfattr -n user.x -v y s/d/9",
    );
}

#[test]
fn movers_copy_compare_and_update_what_another_host_has() {
    let far = far!(2, "");
    tree(&far);
    let run = far.run("copy --json -T --split-size 1M").expect_code(0);
    assert_same(&far.ends);
    // The process of the job asks for names only: all content came over the connections of the movers.
    let connection = &summary(&run)["connections"][0];
    assert!(connection["content_bytes"].as_u64().unwrap() < 1_000_000, "{connection}");
    assert_eq!(far.at_work(), 2);
    assert_idle(&far.run("sync --json").expect_code(0));
    far.run("verify").expect_code(0);
    far.ends.bench.sh("printf X | dd of=s/large bs=1 seek=9999999 conv=notrunc status=none; rm s/d/8; mv s/d/10 s/d/new");
    far.run("verify").expect_code(1);
    let run = far.run("sync --json --delete --yes").expect_code(0);
    assert_eq!(count(&run, "errors"), 0);
    assert_same(&far.ends);
}

#[test]
fn a_mover_that_dies_or_loses_its_connection_is_replaced() {
    let mut far = far!(2, "");
    tree(&far);
    far.ends.bench.sh("head -c 20M /dev/urandom > s/larger");
    let line = "copy --json -T --split-size 1M --bwlimit 4M --lease 10s --reconnect-for 5s";
    let running = far.start(WAY, line);
    eventually("agents for the job and both movers", || far.ends.agents().len() == 3);
    eventually("both to work", || far.at_work() == 2);
    // The agent that was started first is that of the job.
    let (mut agents, mut killed) = (far.ends.agents(), 0);
    agents.sort_unstable();
    for agent in &agents[1..] {
        killed += 1;
        let pid = agent.to_string();
        std::process::Command::new("kill").args(["-9", &pid]).status().unwrap();
    }
    assert_eq!(killed, 2);
    for mover in &far.movers {
        let lost = "it has lost the connection to SOURCE";
        assert!(mover.wait_for_stderr(lost, 1), "{}", mover.stderr_so_far());
    }
    // One dies for good, and another one comes.
    far.movers.pop().unwrap().kill().unwrap();
    far.call_mover("");
    running.finish().unwrap().expect_code(0);
    assert_same(&far.ends);
}

#[test]
fn a_mover_with_bounds_reads_only_from_hosts_that_are_named() {
    let mut far = far!(0, "");
    tree(&far);
    let root = far.ends.bench.root().display().to_string();
    let bounds = format!("--allow-root {root}");
    far.call_mover(&bounds);
    let running = far.start(WAY, "copy --json -T --mover-wait 30s");
    let refused = "this mover does not read from the host 'far'";
    assert!(far.movers[0].wait_for_stderr(refused, 1), "{}", far.movers[0].stderr_so_far());
    far.call_mover(&format!("{bounds} --allow-host far"));
    running.finish().unwrap().expect_code(0);
    assert_same(&far.ends);
}

#[test]
fn options_for_the_ways_of_one_host_are_refused() {
    let far = far!(0, "");
    tree(&far);
    for option in ["--relay gate", "--data-from 127.0.0.1", "--owners-by-name"] {
        let run = far.run(&format!("copy {option}")).expect_code(2);
        assert!(
            run.stderr.contains("does not work with a SOURCE on another host and --broker"),
            "{}",
            run.tell()
        );
    }
    let run = far.run("copy --groupmap daemon:games").expect_code(2);
    assert!(run.stderr.contains("do not work with --broker"), "{}", run.tell());
}

#[test]
fn several_hosts_of_source_serve_all_movers() {
    let far = far!(2, "");
    tree(&far);
    let way = Way { source: "far,other:", destination: "" };
    let running = far.start(way, "copy --json -T --split-size 1M --bwlimit 10M");
    // Of the job and two movers at each host.
    eventually("agents at both hosts", || far.ends.agents().len() == 6);
    running.finish().unwrap().expect_code(0);
    assert_same(&far.ends);
}

#[test]
fn movers_at_a_dest_elsewhere_read_source_themselves() {
    let far = far!(with_elsewhere, 2, "");
    tree(&far);
    let run = |way, line: &str| far.start(way, line).finish().unwrap();
    let before = passed(&far.ends, "near");
    let copied = run(THIRD, "copy --json -T --split-size 1M").expect_code(0);
    assert_same(&far.ends);
    assert_eq!(far.at_work(), 2);
    let connection = &summary(&copied)["connections"][0];
    assert!(connection["content_bytes"].as_u64().unwrap() < 1_000_000, "{connection}");
    assert_idle(&run(THIRD, "sync --json").expect_code(0));
    far.ends.bench.sh("printf X | dd of=s/large bs=1 seek=9999999 conv=notrunc status=none; rm s/d/8; mv s/d/10 s/d/new");
    run(THIRD, "verify").expect_code(1);
    let synced = run(THIRD, "sync --json --delete --yes").expect_code(0);
    assert_eq!(count(&synced, "errors"), 0);
    assert_same(&far.ends);
    let passed = passed(&far.ends, "near") - before;
    assert!(passed < 4_000_000, "{passed} bytes passed by the host of the command");
    // Both ends are at the host of the movers.
    far.ends.bench.sh("rm -r d");
    run(Way { source: "other:", destination: "other:" }, "copy --json -T").expect_code(0);
    assert_same(&far.ends);
}

#[test]
fn movers_read_a_source_of_the_command_by_the_name_of_its_host() {
    let far = far!(with_elsewhere, 1, "");
    tree(&far);
    let host = far.ends.cluster.host("gate");
    let program = Dmover::new(PROGRAM).unwrap().wrapped(host.words());
    let line = format!("copy --json -T --insecure --broker {}", far.broker.url());
    let places = [far.ends.at("", "s"), far.ends.at("other:", "d")];
    program.run(far.ends.words(&line, &places)).unwrap().expect_code(0);
    assert_same(&far.ends);
    assert_eq!(far.at_work(), 1);
}

#[test]
fn the_command_is_repeated_after_it_was_killed() {
    let far = far!(with_elsewhere, 2, "");
    tree(&far);
    let line = "copy --json -T --split-size 1M --lease 10s";
    let running = far.start(THIRD, &format!("{line} --bwlimit 4M"));
    eventually("both to work", || far.at_work() == 2);
    eventually("files to come", || far.ends.bench.sh("ls d 2>/dev/null | wc -l").trim() != "0");
    running.kill().unwrap();
    // The job there stops as by a hangup, and the same command is refused as long as it has not ended.
    let mut run = far.start(THIRD, line).finish().unwrap();
    eventually("the job to end there", || {
        let is_refused = run.code() == Some(6);
        if is_refused {
            run = far.start(THIRD, line).finish().unwrap();
        }
        !is_refused
    });
    run.expect_code(0);
    assert_same(&far.ends);
    assert_eq!(far.ends.bench.sh("find d -name '.dmover-*'"), "");
}

#[test]
fn a_job_of_movers_elsewhere_outlives_the_command() {
    let far = far!(with_elsewhere, 2, "");
    tree(&far);
    let run = far.start(THIRD, "copy --detach -T --bwlimit=10M").finish().unwrap().expect_code(0);
    let id = left(&run);
    let near = far.ends.cluster.host("near");
    near.cut_link().unwrap();
    eventually("both to work", || far.at_work() == 2);
    eventually("all to be there", || {
        far.ends.bench.sh("rsync -naHAXc -i s/ d/ | wc -l").trim() == "0"
    });
    near.mend_link().unwrap();
    let run = far.ends.run(&format!("wait {id} --at other"), &[]).expect_code(0);
    assert!(run.stderr.is_empty() || !run.stderr.contains("error"), "{}", run.tell());
    assert_same(&far.ends);
}

#[test]
fn a_broker_that_the_host_of_dest_would_not_know_of_is_refused() {
    let far = far!(with_elsewhere, 0, "");
    tree(&far);
    let refused = |way, line: &str, words: &str| {
        let run = far.start(way, line).finish().unwrap().expect_code(2);
        assert!(run.stderr.contains(words), "{}", run.tell());
        assert!(!far.ends.bench.at("d").exists());
    };
    let several = Way { source: "far:", destination: "other,gate:" };
    refused(several, "copy -T", "--broker does not work with a DEST on several hosts");
    let no = "does not work with a SOURCE on another host and --broker";
    refused(THIRD, "copy --relay gate", no);
    refused(THIRD, "copy --owners-by-name", no);
    refused(THIRD, "copy --usermap daemon:games", "do not work with --broker");
    let places = [far.ends.at("far:", "s"), far.ends.at("other:", "d")];
    let run = far.ends.run("copy --broker /no/such.json", &places).expect_code(2);
    assert!(run.stderr.contains("dmover: at other:\ndmover: error: --broker"), "{}", run.tell());
    let config = far.ends.bench.at("config.toml");
    std::fs::write(&config, format!("[copy]\nbroker = '{}'\ninsecure = true\n", far.broker.url()))
        .unwrap();
    let untyped = |line: &str| {
        let run = far.ends.run(line, &places).expect_code(2);
        assert!(run.stderr.contains("must be on the command line"), "{}", run.tell());
    };
    untyped(&format!("copy --config {}", config.display()));
    for setting in ["only-movers = ['site=b']", "data-ports = '40000-40100'"] {
        std::fs::write(&config, format!("[copy]\n{setting}\n")).unwrap();
        let url = far.broker.url();
        untyped(&format!("copy --config {} --insecure --broker {url}", config.display()));
    }
}
