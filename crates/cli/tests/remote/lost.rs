//! Connections that end in the middle: neither side is left behind.
use dmover_model::PathBytes;
use dmover_net::connection::Broken;
use dmover_net::{ConnectOptions, RemoteAgent, RemoteHost, SshOptions};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::bench::{PROGRAM, eventually};
use super::{Far, command_line, far};

fn connect(far: &Far, silence: Duration) -> RemoteAgent {
    far.link_program();
    let program = far.ssh("").split_whitespace().map(OsString::from).collect();
    let ssh = SshOptions { program, agent: None };
    let options = ConnectOptions { silence, ..ConnectOptions::new(ssh, "test") };
    let host = RemoteHost::parse(OsStr::new("far")).unwrap();
    RemoteAgent::connect(&host, &PathBytes(b"/".to_vec()), &options).unwrap()
}

pub fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

/// The error of a request that is made when the connection is lost.
#[track_caller]
fn lost(agent: &RemoteAgent) -> String {
    let mut said = None;
    // Polls: the kernel needs a moment to tell.
    eventually("the connection to be lost", || {
        said = agent.inspect().err();
        said.is_some()
    });
    let said = said.unwrap();
    assert_eq!(said.exit_code().code(), 6);
    said.to_string()
}

#[test]
fn a_killed_agent_is_a_lost_connection() {
    let far = far!();
    let agent = connect(&far, Duration::from_mins(1));
    agent.inspect().unwrap();
    let pids = far.agents();
    assert_eq!(pids.len(), 1);
    kill(pids[0]);
    let said = lost(&agent);
    assert!(said.starts_with("the connection to the host 'far' was lost: "), "{said}");
}

#[test]
fn an_agent_ends_with_a_client_that_closes_or_drops_the_connection() {
    let far = far!();
    let agent = connect(&far, Duration::from_mins(1));
    agent.inspect().unwrap();
    let begin = Instant::now();
    agent.close();
    assert!(begin.elapsed() < Duration::from_secs(4), "ssh had to be killed");
    eventually("the agent to end", || far.agents().is_empty());
    std::fs::remove_file(far.home(".local/bin/dmover")).unwrap();
    drop(connect(&far, Duration::from_mins(1)));
    eventually("the agent to end", || far.agents().is_empty());
}

#[test]
fn a_link_that_goes_silent_ends_both_sides() {
    let far = far!();
    let agent = connect(&far, Duration::from_secs(5));
    agent.inspect().unwrap();
    far.cluster.host("far").cut_link().unwrap();
    let why = agent.request(b"").unwrap().receive().unwrap_err();
    assert_eq!(why, Broken::Silent(Duration::from_secs(5)));
    let said = agent.fatal(&why).to_string();
    assert_eq!(said, "the connection to the host 'far' was lost: no sign of life for 5 s");
    eventually("the agent to end", || far.agents().is_empty());
}

#[test]
fn a_killed_client_takes_ssh_and_the_agent_with_it() {
    let far = far!();
    let script = format!(
        "#!/bin/sh\ncd; touch here; while [ ! -e go ]; do sleep 0.02; done; exec {PROGRAM} \"$@\"\n"
    );
    far.place(".local/bin/dmover", script);
    let mut client = Command::new(PROGRAM);
    client.args(["agent", "--check", "far", "--ssh-command", &far.ssh("")]);
    let mut client =
        client.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the login", || far.home("here").exists());
    let config = far.server.client_config_path().display().to_string();
    let ssh = || {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| command_line(*pid).starts_with(&format!("ssh\0-F\0{config}\0"))).count()
    };
    assert_eq!(ssh(), 1);
    client.kill().unwrap();
    client.wait().unwrap();
    eventually("ssh to end", || ssh() == 0);
    std::fs::write(far.home("go"), "").unwrap();
    let is_busy = || {
        let pids = far.cluster.host("far").pids().unwrap();
        pids.into_iter().any(|pid| command_line(pid).contains("--stdio"))
    };
    eventually("the agent to end", || !is_busy());
}

#[test]
fn a_host_that_says_nothing_is_given_up() {
    let far = far!("exec sleep 1000");
    let program = far.ssh("").split_whitespace().map(OsString::from).collect();
    let options = ConnectOptions {
        hello_within: Some(Duration::from_secs(1)),
        ..ConnectOptions::new(SshOptions { program, agent: None }, "test")
    };
    let host = RemoteHost::parse(OsStr::new("far")).unwrap();
    let said = RemoteAgent::connect(&host, &PathBytes::default(), &options).unwrap_err();
    assert_eq!(said.to_string(), "the host 'far' did not answer within 1 s");
    assert_eq!(said.exit_code().code(), 6);
}
