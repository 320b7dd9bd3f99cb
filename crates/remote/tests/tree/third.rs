//! A third host that reads the root of another job's agent, on a channel.
use dmover_model::{FollowLinks, PathBytes, TreePath};
use dmover_net::connection::Broken;
use dmover_net::{ConnectOptions, RemoteAgent, SshOptions};
use dmover_remote::{Line, RemoteSource};
use dmover_tree::RemoteTree;
use dmover_wire::agent::{Measure, RelayOrder, Request};
use dmover_wire::encode;
use std::sync::Arc;

use super::near::{Near, opening, scratch};

/// The third host, which asks for another root.
fn connect(near: &Near, follow: FollowLinks) -> RemoteAgent {
    let channel = near.request(&encode(&Request::Connect { follow })).unwrap();
    let options = ConnectOptions::new(SshOptions::default(), "1");
    RemoteAgent::through(channel, "far", &PathBytes(b"/proc".to_vec()), &options).unwrap()
}

#[test]
fn it_reads_the_root_of_the_connection_whatever_it_asks_for() {
    let root = scratch();
    std::fs::write(root.path().join("f"), b"inside").unwrap();
    let near = Near::to_introduced(root.path());
    let line: Arc<dyn Line> = Arc::new(connect(&near, FollowLinks::Never));
    let tree = RemoteSource::open(line, opening(root.path(), FollowLinks::Never)).unwrap();
    let top = tree.open(&TreePath::root(), false).unwrap();
    let mut names = Vec::new();
    top.list(&mut |name, _, _| {
        names.push(name.to_vec());
        true
    })
    .unwrap();
    assert_eq!(names, [b"f"]);
    // The connection that it goes through serves as before.
    drop((top, tree));
    let line: Arc<dyn Line> = near.clone();
    assert!(RemoteSource::open(line, opening(root.path(), FollowLinks::Always)).is_ok());
}

#[test]
fn it_follows_no_links_but_those_of_the_job() {
    let root = scratch();
    let near = Near::to_introduced(root.path());
    let line: Arc<dyn Line> = Arc::new(connect(&near, FollowLinks::Never));
    let refused = RemoteSource::open(line, opening(root.path(), FollowLinks::Always)).unwrap_err();
    assert!(refused.to_string().contains("follows other symbolic links"), "{refused}");
}

#[test]
fn it_brings_no_other_hosts() {
    let root = scratch();
    let near = Near::to_introduced(root.path());
    let agent = connect(&near, FollowLinks::Never);
    let why = Broken::Cancelled("this host serves one other host".into());
    let order = RelayOrder {
        token: [0; 32],
        targets: Vec::new(),
        target_ports: (0, 0),
        ports: (0, 0),
        congestion: None,
        buffer_bytes: None,
    };
    for request in [
        Request::Connect { follow: FollowLinks::Always },
        Request::Relay(order),
        Request::Measure(Measure::Write),
    ] {
        let request = encode(&request);
        assert_eq!(agent.request(&request).unwrap().receive(), Err(why.clone()));
        // Nor does an agent that was not started for that.
        let near = Near::to(root.path());
        assert_eq!(near.request(&request).unwrap().receive(), Err(why.clone()));
    }
}

#[test]
fn it_ends_with_the_connection_that_it_goes_through() {
    let root = scratch();
    let near = Near::to_introduced(root.path());
    let agent = connect(&near, FollowLinks::Never);
    agent.inspect().unwrap();
    near.cut();
    let lost = agent.request(&encode(&Request::Inspect)).and_then(|channel| channel.receive());
    assert!(lost.is_err(), "{lost:?}");
}
