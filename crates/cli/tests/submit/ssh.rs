//! Movers on hosts that ssh leads to.
use dmover_testkit::cluster::{Cluster, Host, Piece, Sshd, needs};
use dmover_testkit::skip;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{Bench, PROGRAM, bench, command_line, eventually, wait_for_the_middle};

/// Where the job runs, and three hosts for movers, of which two have a server for ssh.
struct Place {
    cluster: Cluster,
    servers: Vec<Sshd>,
    bench: Bench,
}

impl Place {
    fn new() -> Self {
        let cluster = Cluster::new(&["a", "b", "c", "d"]).unwrap();
        let servers = ["b", "c"].map(|name| Sshd::start(cluster.host(name)).unwrap());
        Self { cluster, servers: servers.into(), bench: bench() }
    }

    /// `dmover submit --ssh` on the first host.
    fn submit(&self, hosts: &str, job: &[&str]) -> Command {
        let mut command = self.cluster.host("a").command("timeout");
        command.args(["-k", "5", "100", PROGRAM, "submit", "--state-dir", "state", "--ssh", hosts]);
        let config = self.servers[0].client_config_path();
        command.arg("--ssh-command").arg(format!("ssh -F {}", config.display()));
        command.args(["--", "copy"]).args(job).current_dir(self.bench.root());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn movers_on(&self, host: &str) -> usize {
        let pids = self.cluster.host(host).pids().unwrap();
        pids.iter().filter(|pid| command_line(**pid).contains(" mover --broker -")).count()
    }

    #[track_caller]
    fn assert_nobody_is_left(&self) {
        let is_busy = |host: &&Host| {
            let pids = host.pids().unwrap();
            pids.iter().any(|pid| {
                let line = command_line(*pid);
                line.contains(PROGRAM) || line.contains("nats-server")
            })
        };
        eventually("hosts to be idle", || self.cluster.hosts().iter().find(is_busy).is_none());
    }
}

#[track_caller]
fn finish(child: Child, code: i32) -> String {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

/// Whether a secret stands on the command line of any process.
fn is_shown(secret: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let text = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&text).contains(secret)
    })
}

fn secret_below(directory: &Path) -> String {
    let mut found = std::fs::read_dir(directory.join("placement")).unwrap().flatten();
    let seed = found.next().unwrap().path().join("broker/user.nk");
    std::fs::read_to_string(seed).unwrap().trim().to_owned()
}

macro_rules! need_ssh {
    () => {
        if let Err(why) = needs(&[Piece::Network, Piece::Nats, Piece::Sshd]) {
            skip!("{why}");
        }
    };
}

#[test]
fn hosts_work_together_and_one_that_is_down_is_done_without() {
    need_ssh!();
    let place = Place::new();
    let down = place.cluster.host("d").address();
    let job = ["--bwlimit=1M", "--split-size=500K", "s", "d"];
    let child = place.submit(&format!("b,c,{down}"), &job).spawn().unwrap();
    wait_for_the_middle(&place.bench);
    eventually("movers on both hosts", || place.movers_on("b") == 1 && place.movers_on("c") == 1);
    let secret = secret_below(&place.bench.at("state"));
    assert!(secret.starts_with("SU") && !is_shown(&secret), "the secret is seen by everybody");
    let said = finish(child, 0);
    let note = format!("no movers at {down}; continuing without them: ssh: connect to host");
    assert!(said.contains(&note), "{said}");
    assert!(!said.contains("movers at b"), "{said}");
    place.bench.assert_same("s", "d");
    place.assert_nobody_is_left();
}

#[test]
fn a_host_that_dies_in_the_middle_costs_nothing() {
    need_ssh!();
    let place = Place::new();
    let job = ["--bwlimit=700K", "--split-size=500K", "--lease=3s", "s", "d"];
    let child = place.submit("b,c", &job).spawn().unwrap();
    wait_for_the_middle(&place.bench);
    eventually("movers on both hosts", || place.movers_on("b") == 1 && place.movers_on("c") == 1);
    place.cluster.host("b").kill_all().unwrap();
    let said = finish(child, 0);
    // Whether they count as having begun is a matter of moments.
    let lost =
        ["the movers at b ended; restarting them", "no movers at b; continuing without them"];
    assert!(lost.iter().any(|words| said.contains(words)), "{said}");
    place.bench.assert_same("s", "d");
    place.assert_nobody_is_left();
}

#[test]
fn without_any_host_it_is_temporary_trouble() {
    need_ssh!();
    let place = Place::new();
    let down = place.cluster.host("d").address().to_string();
    let said = finish(place.submit(&down, &["s", "d"]).spawn().unwrap(), 6);
    assert!(said.contains("no mover could be started on any host"), "{said}");
    let said = finish(place.submit("no-such-host", &["s", "d"]).spawn().unwrap(), 6);
    assert!(said.contains("cannot find the address of the host 'no-such-host'"), "{said}");
    assert!(!place.bench.exists("d"));
    place.assert_nobody_is_left();
}

#[test]
fn movers_leave_when_submit_is_killed() {
    need_ssh!();
    let place = Place::new();
    let job = ["--bwlimit=500K", "--lease=3s", "s", "d"];
    let child = place.submit("b,c", &job).spawn().unwrap();
    wait_for_the_middle(&place.bench);
    let submit = place.cluster.host("a").pids().unwrap();
    let is_it = |pid: &u32| {
        command_line(*pid).starts_with(PROGRAM) && command_line(*pid).contains(" submit ")
    };
    let submit = submit.into_iter().find(is_it).unwrap();
    let submit = rustix::process::Pid::from_raw(submit as i32).unwrap();
    rustix::process::kill_process(submit, rustix::process::Signal::KILL).unwrap();
    drop(child.wait_with_output().unwrap());
    place.assert_nobody_is_left();
    finish(place.submit("b,c", &["--lease=3s", "s", "d"]).spawn().unwrap(), 0);
    place.bench.assert_same("s", "d");
}
