//! The example topologies below `contrib/` as they are printed, on hosts that are network namespaces.
use dmover_testkit::cluster::{Cluster, Host, Piece, needs};
use dmover_testkit::skip;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::PROGRAM;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// A process that ends with the test.
struct Part(Child);

impl Drop for Part {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A topology at work.
struct Topology {
    name: &'static str,
    cluster: Cluster,
    variables: Vec<(&'static str, String)>,
    parts: Vec<Part>,
}

impl Topology {
    fn new(name: &'static str, cluster: Cluster) -> Self {
        let at = |path: &str| cluster.directory().join(path).display().to_string();
        for directory in ["state", "source/some", "destination"] {
            std::fs::create_dir_all(at(directory)).unwrap();
        }
        let variables = vec![
            ("STATE", at("state")),
            ("JOIN_FILE", at("state/join.json")),
            ("SOURCE", at("source")),
            ("DESTINATION", at("destination")),
            ("DMOVER_STATE_DIR", at("jobs")),
            ("HOME", at("home")),
        ];
        Self { name, cluster, variables, parts: Vec::new() }
    }

    fn fill(&self, large_mib: u32) {
        let script = format!(
            "seq 2000 | (cd some; xargs touch); head -c {large_mib}M /dev/urandom > large; echo x > y"
        );
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).current_dir(self.cluster.directory().join("source"));
        assert!(shell.status().unwrap().success());
    }

    /// One of the scripts of the topology, on a host.
    fn script(&self, host: &str, script: &str, words: &[&str]) -> Command {
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/topologies");
        let host: &Host = self.cluster.host(host);
        let mut command = host.command(place.join(self.name).join(script));
        let programs = Path::new(PROGRAM).parent().unwrap().display().to_string();
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{programs}:{path}:/usr/sbin")).args(words);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn log(&self, of: &str) -> PathBuf {
        self.cluster.directory().join(format!("{of}.log"))
    }

    fn start(&mut self, host: &str, script: &str, words: &[&str]) {
        let log = std::fs::File::create(self.log(&format!("{script}-{host}"))).unwrap();
        let mut command = self.script(host, script, words);
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        self.parts.push(Part(child));
    }

    /// Waits until a part has said something.
    fn wait_for(&self, of: &str, words: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            let said = std::fs::read_to_string(self.log(of)).unwrap_or_default();
            if said.contains(words) {
                return;
            }
            assert!(Instant::now() < until, "{of} never said '{words}': {said}");
            // A poll: a log tells nobody.
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the job has ended well, and looks whether both trees are alike.
    fn end(&mut self, host: &str) {
        let until = Instant::now() + PATIENCE;
        let mut job = self.parts.pop().unwrap();
        let code = loop {
            if let Some(status) = job.0.try_wait().unwrap() {
                break status.code();
            }
            assert!(Instant::now() < until, "the job hangs");
            // A poll: it has a limit, which wait(2) has not.
            std::thread::sleep(Duration::from_millis(20));
        };
        let said = std::fs::read_to_string(self.log(&format!("job-{host}"))).unwrap();
        assert_eq!(code, Some(0), "{said}");
        let directory = self.cluster.directory();
        let mut rsync = Command::new("rsync");
        rsync.args(["-n", "-a", "-c", "-i", "--delete", "source/", "destination/"]);
        let output = rsync.current_dir(directory).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{output:?}");
    }
}

fn unless_possible() -> Result<(), String> {
    needs(&[Piece::Network, Piece::Nats])
}

#[test]
fn one_fabric() {
    if let Err(why) = unless_possible() {
        skip!("{why}");
    }
    let cluster = Cluster::new(&["login", "io1", "io2"]).unwrap();
    let mut topology = Topology::new("same-fabric", cluster);
    let address = topology.cluster.host("login").address().to_string();
    topology.variables.push(("ADDRESS", address));
    topology.fill(200);
    topology.start("login", "broker", &[]);
    topology.wait_for("broker-login", "the broker listens at");
    for host in ["io1", "io2"] {
        topology.start(host, "mover", &[]);
        topology.wait_for(&format!("mover-{host}"), "waiting for jobs");
    }
    // Slow enough for both to join.
    topology.start("login", "job", &["--bwlimit", "32M"]);
    topology.end("login");
    for host in ["io1", "io2"] {
        topology.wait_for(&format!("mover-{host}"), "working for a job");
    }
}

#[test]
fn two_networks_of_which_one_fails() {
    if let Err(why) = unless_possible() {
        skip!("{why}");
    }
    let cluster = Cluster::multi_homed(&["login", "io1", "io2"]).unwrap();
    let mut topology = Topology::new("multi-homed", cluster);
    let addresses = topology.cluster.host("login").addresses();
    topology.variables.push(("MANAGEMENT", addresses[0].to_string()));
    topology.variables.push(("FAST", addresses[1].to_string()));
    topology.fill(64);
    topology.start("login", "broker", &[]);
    topology.wait_for("broker-login", "the broker listens at");
    // One host has lost the first network from the start, and one the second.
    topology.cluster.host("io1").cut_link_of(0).unwrap();
    topology.cluster.host("io2").cut_link_of(1).unwrap();
    for host in ["io1", "io2"] {
        topology.start(host, "mover", &["--broker-wait", "1m"]);
        topology.wait_for(&format!("mover-{host}"), "waiting for jobs");
    }
    topology.start("login", "job", &["--bwlimit", "16M"]);
    for host in ["io1", "io2"] {
        topology.wait_for(&format!("mover-{host}"), "working for a job");
    }
    topology.end("login");
}

#[test]
fn movers_beyond_a_router_whose_link_is_cut_for_longer_than_a_lease() {
    if let Err(why) = unless_possible() {
        skip!("{why}");
    }
    let cluster = Cluster::routed(&["login"], &["far1", "far2"]).unwrap();
    let mut topology = Topology::new("routed", cluster);
    let address = topology.cluster.host("login").address().to_string();
    topology.variables.extend([("ADDRESS", address), ("LEASE", "2s".into())]);
    topology.fill(96);
    topology.start("login", "broker", &[]);
    topology.wait_for("broker-login", "the broker listens at");
    for host in ["far1", "far2"] {
        topology.start(host, "mover", &[]);
        topology.wait_for(&format!("mover-{host}"), "waiting for jobs");
    }
    topology.start("login", "job", &["--bwlimit", "8M"]);
    for host in ["far1", "far2"] {
        topology.wait_for(&format!("mover-{host}"), "working for a job");
    }
    let router = topology.cluster.router().unwrap();
    router.cut_link().unwrap();
    // Both are taken for dead, and their tasks for lost.
    topology.wait_for("job-login", "no mover is connected");
    router.mend_link().unwrap();
    topology.end("login");
}
