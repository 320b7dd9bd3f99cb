//! Clusters come up with servers that do their real work, and leave nothing.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests stop and print their seeds")]

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use dmover_testkit::cluster::{
    Cluster, Host, NatsServer, Piece, Prometheus, Scrape, Slurm, Sshd, nats_request, needs,
};
use dmover_testkit::skip;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// The processes of an idle host.
const NOBODY: Vec<u32> = Vec::new();

/// Tells how long a test took, past the harness, when it ends.
struct Timed(&'static str, Instant);

impl Timed {
    fn start(name: &'static str) -> Self {
        Self(name, Instant::now())
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        let took = self.1.elapsed().as_secs_f64();
        let _ = writeln!(std::io::stderr().lock(), "TOOK {took:.1} s: {}", self.0);
    }
}

/// Standard output of a bounded command that succeeds.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {} {text}{said}", output.status);
    text
}

/// A shell's commands on a host, for at most 20 seconds.
fn shell(host: &Host, commands: &str) -> Command {
    let mut command = host.command("timeout");
    command.args(["-k", "1", "20", "bash", "-c", commands]);
    command
}

/// Whether a host can open a connection; lost packets are believed in after a second.
fn reaches(host: &Host, address: SocketAddr) -> bool {
    let attempt = format!("</dev/tcp/{}/{}", address.ip(), address.port());
    let mut command = host.command("timeout");
    command.args(["-k", "1", "1", "bash", "-c", &attempt]);
    command.output().unwrap().status.success()
}

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        // A poll: the kernel tells nobody.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What of a cluster is left in the kernel and in the file system.
struct Traces {
    id: String,
    directory: PathBuf,
    namespaces: Vec<String>,
}

impl Traces {
    fn of(cluster: &Cluster) -> Self {
        let namespaces = cluster.hosts().iter().map(|host| host.namespace().to_owned()).collect();
        let directory = cluster.directory().to_owned();
        let traces = Self { id: cluster.id().to_owned(), directory, namespaces };
        let found = traces.left();
        // The hosts, the switch, a veth in the root namespace, and the directory.
        assert!(found.len() >= traces.namespaces.len() + 3, "only {found:?}");
        traces
    }

    fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for directory in ["/run/netns", "/sys/class/net"] {
            for entry in std::fs::read_dir(directory).unwrap().flatten() {
                let name = entry.file_name().into_string().unwrap();
                // Not that of a cluster whose number begins with the same figures.
                let rest = name.strip_prefix(&self.id).map(str::as_bytes);
                if rest.is_some_and(|rest| !rest[0].is_ascii_hexdigit()) {
                    left.push(format!("{directory}/{name}"));
                }
            }
        }
        if self.directory.exists() {
            left.push(self.directory.display().to_string());
        }
        let arguments = self.directory.to_str().unwrap();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let text = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).replace('\0', " ");
            if text.contains(arguments) {
                left.push(format!("{} {text}", entry.path().display()));
            }
        }
        left
    }

    fn assert_gone(&self) {
        assert_eq!(self.left(), Vec::<String>::new());
    }
}

macro_rules! need {
    ($($piece:ident),*) => {
        if let Err(why) = needs(&[Piece::Network, $(Piece::$piece),*]) {
            skip!("{why}");
        }
    };
}

#[test]
fn hosts_have_names_addresses_and_processes_of_their_own() {
    let _timed = Timed::start("hosts");
    need!();
    let cluster = Cluster::new(&["a", "b"]).unwrap();
    let traces = Traces::of(&cluster);
    let (a, b) = (cluster.host("a"), cluster.host("b"));
    assert_ne!(a.address(), b.address());
    for host in cluster.hosts() {
        assert_eq!(output(host.command("hostname").env("LC_ALL", "C")).trim(), host.name());
        let addresses = output(host.command("hostname").arg("-I"));
        assert_eq!(addresses.trim(), host.address().to_string());
        assert_eq!(host.pids().unwrap(), NOBODY);
    }
    let mut sleeper = a.command("sleep").arg("600").spawn().unwrap();
    eventually("the process to be on its host", || a.pids().unwrap() == [sleeper.id()]);
    assert_eq!(b.pids().unwrap(), NOBODY);
    assert_eq!(cluster.pids().unwrap(), [sleeper.id()]);
    a.kill_all().unwrap();
    assert!(!sleeper.wait().unwrap().success());
    // A stray process that nobody keeps a handle of, as a job's, goes with the cluster.
    output(&mut shell(a, "setsid sleep 601 >/dev/null 2>&1 & echo started"));
    assert_eq!(a.pids().unwrap().len(), 1);
    let stray = PathBuf::from(format!("/proc/{}/ns/net", a.pids().unwrap()[0]));
    drop(cluster);
    traces.assert_gone();
    assert!(!stray.exists());
}

#[test]
fn a_cut_link_loses_packets_until_it_is_mended() {
    let _timed = Timed::start("links");
    need!(Nats);
    let cluster = Cluster::new(&["a", "b"]).unwrap();
    let traces = Traces::of(&cluster);
    let (a, b) = (cluster.host("a"), cluster.host("b"));
    let outside = TcpListener::bind((cluster.outside_address(), 0)).unwrap();
    let outside = outside.local_addr().unwrap();
    let server = NatsServer::start(b, "").unwrap();
    eventually("the link before the cut", || reaches(a, server.address()));
    eventually("the test's own process", || reaches(a, outside));
    a.cut_link().unwrap();
    assert!(!reaches(a, server.address()), "after the cut");
    assert!(!reaches(a, outside), "after the cut");
    eventually("the other host's link", || reaches(b, outside));
    a.mend_link().unwrap();
    eventually("the mended link", || reaches(a, server.address()));
    eventually("the mended link", || reaches(a, outside));
    // Handles in any order: the last one cleans up.
    drop(cluster);
    drop(server);
    traces.assert_gone();
}

#[test]
fn a_multi_homed_host_is_reached_on_what_is_left() {
    let _timed = Timed::start("multi-homed");
    need!(Nats);
    let cluster = Cluster::multi_homed(&["a", "b"]).unwrap();
    let traces = Traces::of(&cluster);
    let (a, b) = (cluster.host("a"), cluster.host("b"));
    let server = NatsServer::start(b, "").unwrap();
    let sshd = Sshd::start_with(b, &format!("ListenAddress {}", b.addresses()[1])).unwrap();
    let second = SocketAddr::new(b.addresses()[1].into(), 22);
    eventually("both networks", || reaches(a, server.address()) && reaches(a, second));
    a.cut_link_of(0).unwrap();
    assert!(!reaches(a, server.address()));
    eventually("the other network", || reaches(a, second));
    a.mend_link().unwrap();
    eventually("the mended link", || reaches(a, server.address()));
    drop((server, sshd, cluster));
    traces.assert_gone();
}

#[test]
fn hosts_of_two_networks_meet_through_the_router() {
    let _timed = Timed::start("routed");
    need!(Nats);
    let cluster = Cluster::routed(&["a", "b"], &["c"]).unwrap();
    let traces = Traces::of(&cluster);
    let (a, b, c) = (cluster.host("a"), cluster.host("b"), cluster.host("c"));
    assert_ne!(a.address().octets()[..3], c.address().octets()[..3]);
    let far = NatsServer::start(c, "").unwrap();
    let near = NatsServer::start(b, "").unwrap();
    eventually("both networks", || reaches(a, far.address()) && reaches(a, near.address()));
    cluster.router().unwrap().cut_link().unwrap();
    assert!(!reaches(a, far.address()), "there is another way than the router");
    eventually("a neighbour, without the router", || reaches(a, near.address()));
    assert!(nats_request(far.address(), "$JS.API.INFO", "").is_ok(), "the test is on both");
    cluster.router().unwrap().mend_link().unwrap();
    eventually("the router", || reaches(a, far.address()));
    drop((near, far, cluster));
    traces.assert_gone();
}

/// Makes a stream on disk with one message in it.
fn fill(address: SocketAddr) {
    let stream = r#"{"name":"kept","subjects":["kept.*"],"storage":"file"}"#;
    let made = nats_request(address, "$JS.API.STREAM.CREATE.kept", stream).unwrap();
    assert!(!made.contains("\"error\""), "{made}");
    let stored = nats_request(address, "kept.one", "message").unwrap();
    assert!(stored.contains("\"seq\":1"), "{stored}");
}

fn stream_info(address: SocketAddr) -> serde_json::Value {
    serde_json::from_str(&nats_request(address, "$JS.API.STREAM.INFO.kept", "").unwrap()).unwrap()
}

fn survives_and_forgets(mut server: NatsServer) {
    fill(server.address());
    let (first, url) = (server.pid().unwrap(), server.url());
    server.kill();
    assert!(server.pid().is_none());
    assert!(std::net::TcpStream::connect(server.address()).is_err(), "it still listens");
    server.restart().unwrap();
    assert_ne!(server.pid(), Some(first));
    assert_eq!(server.url(), url);
    let info = stream_info(server.address());
    assert_eq!(info["state"]["messages"], 1, "{info}");
    server.wipe().unwrap();
    assert!(server.pid().is_none());
    server.restart().unwrap();
    let info = stream_info(server.address());
    assert_eq!(info["error"]["code"], 404, "{info}");
}

#[test]
fn a_nats_server_keeps_its_store_until_it_is_wiped() {
    let _timed = Timed::start("nats");
    need!(Nats);
    let cluster = Cluster::new(&["a"]).unwrap();
    let traces = Traces::of(&cluster);
    survives_and_forgets(NatsServer::start(cluster.host("a"), "max_payload: 2MB").unwrap());
    drop(cluster);
    traces.assert_gone();
}

#[test]
fn a_nats_server_without_a_cluster_is_the_same() {
    let _timed = Timed::start("local nats");
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let server = NatsServer::start_local("").unwrap();
    let other = NatsServer::start_local("").unwrap();
    assert_ne!(server.address(), other.address());
    let process = PathBuf::from(format!("/proc/{}", other.pid().unwrap()));
    survives_and_forgets(server);
    drop(other);
    assert!(!process.exists());
}

#[test]
fn a_server_that_does_not_start_says_why() {
    let _timed = Timed::start("broken server");
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let error = format!("{:#}", NatsServer::start_local("no_such_key: 1").unwrap_err());
    assert!(error.contains("nats-server to be listening"), "{error}");
    assert!(error.contains("unknown field \"no_such_key\""), "{error}");
}

#[test]
fn ssh_leads_to_each_host_and_checks_its_key() {
    let _timed = Timed::start("ssh");
    need!(Sshd);
    let cluster = Cluster::new(&["a", "b", "c"]).unwrap();
    let traces = Traces::of(&cluster);
    let servers: Vec<_> = cluster.hosts().iter().map(|host| Sshd::start(host).unwrap()).collect();
    let config = servers[0].client_config_path();
    let ssh = |destination: &str| {
        let mut command = Command::new("timeout");
        command.args(["-k", "1", "20", "ssh", "-F"]).arg(&config).args([destination, "hostname"]);
        command
    };
    for host in cluster.hosts() {
        assert_eq!(output(&mut ssh(host.name())).trim(), host.name());
        assert_eq!(output(&mut ssh(&host.address().to_string())).trim(), host.name());
    }
    let from_a = format!("ssh -F {} b hostname", config.display());
    assert_eq!(output(&mut shell(cluster.host("a"), &from_a)).trim(), "b");
    // The key of another host is not taken.
    let known = servers[0].known_hosts_path();
    let text = std::fs::read_to_string(&known).unwrap();
    let key_of_b = text.lines().find(|line| line.starts_with("b,")).unwrap();
    let wrong = key_of_b.replacen('b', "a", 1).replace(
        &cluster.host("b").address().to_string(),
        &cluster.host("a").address().to_string(),
    );
    std::fs::write(&known, wrong).unwrap();
    let refused = ssh("a").output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("verification failed"), "{said}");
    drop(servers);
    drop(cluster);
    traces.assert_gone();
}

#[test]
fn prometheus_scrapes_itself_and_what_a_file_names() {
    let _timed = Timed::start("prometheus");
    need!(Prometheus);
    let cluster = Cluster::new(&["a", "b"]).unwrap();
    let traces = Traces::of(&cluster);
    let file = cluster.directory().join("targets.json");
    std::fs::write(&file, "[]").unwrap();
    let first = Prometheus::start(cluster.host("a"), &Scrape::File(file.clone())).unwrap();
    let itself = first.wait_for("up{job=\"prometheus\"} == 1", PATIENCE).unwrap();
    assert_eq!(itself.len(), 1, "{itself:?}");
    let answer = first.query("vector(1) + 2").unwrap();
    assert_eq!(answer["result"][0]["value"][1], "3", "{answer}");
    assert!(first.query("no such(").is_err());
    let targets = vec![first.address().to_string()];
    let second = Prometheus::start(cluster.host("b"), &Scrape::Targets(targets)).unwrap();
    let found = format!(r#"[{{"targets": ["{}"]}}]"#, second.address());
    std::fs::write(&file, found).unwrap();
    for server in [&first, &second] {
        let up = server.wait_for("up{job=\"test\"} == 1", PATIENCE).unwrap();
        assert_eq!(up.len(), 1, "{up:?}");
        assert_eq!(server.targets().unwrap()["activeTargets"].as_array().unwrap().len(), 2);
    }
    drop((first, second, cluster));
    traces.assert_gone();
}

#[test]
fn a_job_runs_on_three_nodes() {
    let _timed = Timed::start("slurm job");
    need!(Slurm);
    let cluster = Cluster::new(&["ctl", "n1", "n2", "n3"]).unwrap();
    let traces = Traces::of(&cluster);
    let nodes: Vec<_> = cluster.hosts()[1..].iter().collect();
    let slurm = Slurm::start(&cluster, cluster.host("ctl"), &nodes).unwrap();
    let said = cluster.directory().join("said");
    let wrap = ["--wrap", "srun hostname"];
    let arguments = ["-N3", "--ntasks-per-node=1", "-o", said.to_str().unwrap()];
    let arguments = arguments.into_iter().chain(wrap);
    let job = slurm.submit(arguments).unwrap();
    slurm.wait_for(job, "COMPLETED", PATIENCE).unwrap();
    let text = std::fs::read_to_string(&said).unwrap();
    let mut hosts: Vec<_> = text.lines().collect();
    hosts.sort_unstable();
    assert_eq!(hosts, ["n1", "n2", "n3"], "{}", slurm.logs());
    let failed = slurm.submit(["-o", "/dev/null", "--wrap", "exit 3"]).unwrap();
    let error = slurm.wait_for(failed, "COMPLETED", PATIENCE).unwrap_err();
    assert!(format!("{error:#}").contains("is FAILED"), "{error:#}");
    drop((slurm, cluster));
    traces.assert_gone();
}

#[test]
fn the_job_of_a_killed_node_runs_on_another() {
    let _timed = Timed::start("slurm node death");
    need!(Slurm);
    let cluster = Cluster::new(&["ctl", "n1", "n2"]).unwrap();
    let traces = Traces::of(&cluster);
    let nodes: Vec<_> = cluster.hosts()[1..].iter().collect();
    let mut slurm = Slurm::start(&cluster, cluster.host("ctl"), &nodes).unwrap();
    let said = cluster.directory().join("said");
    let arguments = ["--open-mode=append", "-o", said.to_str().unwrap()];
    let wrap = ["--requeue", "--wrap", "hostname; exec sleep 600"];
    let job = slurm.submit(arguments.into_iter().chain(wrap)).unwrap();
    let ran_on = |count| std::fs::read_to_string(&said).is_ok_and(|t| t.lines().count() == count);
    slurm.wait_until("the job to run", PATIENCE, || Ok(ran_on(1))).unwrap();
    slurm.wait_for(job, "RUNNING", PATIENCE).unwrap();
    let first = slurm.job_field(job, "NodeList").unwrap();
    slurm.kill_node(&first).unwrap();
    assert_eq!(cluster.host(&first).pids().unwrap(), NOBODY);
    slurm.wait_until("the job to run again", PATIENCE, || Ok(ran_on(2))).unwrap();
    let second = slurm.job_field(job, "NodeList").unwrap();
    assert_ne!(first, second);
    assert_eq!(slurm.job_field(job, "Restarts").unwrap(), "1");
    let text = std::fs::read_to_string(&said).unwrap();
    assert_eq!(text, format!("{first}\n{second}\n"));
    slurm.restart_node(&first).unwrap();
    // The controller remembers, and the job does not notice.
    slurm.restart_controller().unwrap();
    slurm.wait_for(job, "RUNNING", PATIENCE).unwrap();
    drop((slurm, cluster));
    traces.assert_gone();
}

#[test]
fn a_slurm_that_does_not_start_says_why() {
    let _timed = Timed::start("broken slurm");
    need!(Slurm);
    let cluster = Cluster::new(&["n1"]).unwrap();
    let traces = Traces::of(&cluster);
    let node = cluster.host("n1");
    let started = Slurm::start_with(&cluster, node, &[node], "NoSuchKey=1");
    let error = format!("{:#}", started.unwrap_err());
    assert!(error.contains("waited for nodes [\"n1\"]") && error.contains("NoSuchKey"), "{error}");
    drop(cluster);
    traces.assert_gone();
}

#[test]
fn an_urgent_job_has_another_one_requeued() {
    let _timed = Timed::start("slurm pre-emption");
    need!(Slurm);
    let cluster = Cluster::new(&["n1"]).unwrap();
    let node = cluster.host("n1");
    let slurm = Slurm::start(&cluster, node, &[node]).unwrap();
    let patient = slurm.submit(["-o", "/dev/null", "-c4", "--wrap", "sleep 600"]).unwrap();
    slurm.wait_for(patient, "RUNNING", PATIENCE).unwrap();
    let urgent = ["-o", "/dev/null", "-c4", "-p", "urgent", "--wrap", "hostname"];
    let urgent = slurm.submit(urgent).unwrap();
    slurm.wait_for(urgent, "COMPLETED", PATIENCE).unwrap();
    slurm.wait_for(patient, "PENDING", PATIENCE).unwrap();
    assert_eq!(slurm.job_field(patient, "Restarts").unwrap(), "1");
}

#[test]
fn a_panicking_test_leaves_nothing() {
    let _timed = Timed::start("panic");
    need!(Nats);
    let cluster = Cluster::new(&["a"]).unwrap();
    let traces = Traces::of(&cluster);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _server = NatsServer::start(cluster.host("a"), "").unwrap();
        panic!("as a failing test does");
    }));
    assert!(outcome.is_err());
    traces.assert_gone();
}

/// Set for the process that is to be killed: where it tells what it has made.
const ABANDON: &str = "DMOVER_TESTKIT_ABANDON";

/// Makes what a run leaves that is killed, and waits to be killed.
fn abandon(report: &std::ffi::OsStr) {
    let cluster = Cluster::new(&["a"]).unwrap();
    let server = NatsServer::start(cluster.host("a"), "").unwrap();
    output(&mut shell(cluster.host("a"), "setsid sleep 602 >/dev/null 2>&1 & echo started"));
    let local = NatsServer::start_local("").unwrap();
    let traces = Traces::of(&cluster);
    let local = local.pid().unwrap();
    let text = format!("{}\n{}\n{local}\n", traces.id, traces.directory.display());
    let made = PathBuf::from(report).with_extension("made");
    std::fs::write(&made, text).unwrap();
    std::fs::rename(made, report).unwrap();
    // Ends as well when the test that wants to kill it ends early.
    std::io::stdin().read_line(&mut String::new()).unwrap();
    drop(server);
}

#[test]
fn a_killed_run_is_swept_by_the_next_cluster() {
    if let Some(report) = std::env::var_os(ABANDON) {
        return abandon(&report);
    }
    let _timed = Timed::start("sweep");
    need!(Nats);
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report");
    let mut run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_killed_run_is_swept_by_the_next_cluster", "--nocapture"])
        .env(ABANDON, &report)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    eventually("the run to be ready", || report.exists() || run.try_wait().unwrap().is_some());
    run.kill().unwrap();
    run.wait().unwrap();
    let text = std::fs::read_to_string(&report).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let [id, directory, local] = lines[..] else { panic!("{text}") };
    let traces = Traces { id: id.into(), directory: directory.into(), namespaces: Vec::new() };
    let _next = Cluster::new(&["a"]).unwrap();
    traces.assert_gone();
    eventually("the local server to die", || {
        let arguments = std::fs::read(format!("/proc/{local}/cmdline")).unwrap_or_default();
        !String::from_utf8_lossy(&arguments).contains("nats-server")
    });
}
