//! Brokers in trouble: what they notice, and what they and their jobs say of it.
use dmover_queue::Watchdog;
use dmover_testkit::cluster::{Piece, nats_request, needs};
use dmover_testkit::skip;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use crate::Fleet;
use crate::bench::{Bench, eventually, is_root};
use crate::large::written_by;

/// A server that was out of space for a moment answers for one stream and not for another.
#[test]
fn a_stream_that_does_not_answer_has_the_server_restarted() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    // What is not allowed gets no answer.
    let config = r#"
        authorization { users: [{ user: all, password: all, permissions: {
            publish: { deny: "$JS.API.STREAM.INFO.DMOVER_OUTCOMES_x" } } }] }
        no_auth_user: all
    "#;
    let fleet = Fleet::with(0, config);
    let address = fleet.broker.address();
    let make = |name: &str| {
        let body = format!("{{\"name\": \"{name}\", \"subjects\": [\"of.{name}\"]}}");
        let made = nats_request(address, &format!("$JS.API.STREAM.CREATE.{name}"), &body).unwrap();
        assert!(made.contains("stream_create_response") && !made.contains("error"), "{made}");
    };
    make("KV_dmover_jobs");
    let join = fleet.bench.at("join.json");
    fleet.bench.write("join.json", format!("{{\"url\": \"{}\"}}", fleet.broker.url()));
    std::fs::set_permissions(&join, std::fs::Permissions::from_mode(0o600)).unwrap();
    // All of them answer: nothing is wrong for longer than it takes to give up.
    let watchdog = Watchdog::start(&join).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(8) {
        assert_eq!(watchdog.trouble(), None);
        // It tells nothing while all is well: poll.
        std::thread::sleep(Duration::from_millis(100));
    }
    make("DMOVER_OUTCOMES_x");
    eventually("the trouble to be noticed", || watchdog.trouble().is_some());
    let trouble = watchdog.trouble().unwrap();
    assert!(trouble.contains("DMOVER_OUTCOMES_x"), "{trouble}");
}

/// Nobody can start a mover to mend a broker that is away.
#[test]
fn a_job_without_its_broker_names_the_broker_and_not_the_movers() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let mut fleet = Fleet::new(1);
    fleet.bench.sh("mkdir source; head -c 6M /dev/urandom >source/f");
    let url = fleet.broker.url();
    let line = format!("copy -T --lease 1s --bwlimit 1M source far --insecure --broker {url}");
    let job = fleet.bench.dmover.start(line.split(' ')).unwrap();
    eventually("a part of the file", || written_by(fleet.movers[0].pid()) > 1 << 20);
    fleet.broker.kill();
    let away = format!("the broker {url} does not answer");
    assert!(job.wait_for_stderr(&away, 1), "{}", job.stderr_so_far());
    fleet.broker.restart().unwrap();
    let again = format!("the broker {url} answers again");
    assert!(job.wait_for_stderr(&again, 1), "{}", job.stderr_so_far());
    let run = job.finish().unwrap().expect_code(0);
    fleet.bench.assert_same("source", "far");
    assert_eq!(run.stderr.matches(&away).count(), 1, "{}", run.tell());
    for wrong in ["no message from", "no mover is connected"] {
        assert!(!run.stderr.contains(wrong), "{}", run.tell());
    }
    fleet.movers.clear();
}

#[test]
fn a_broker_says_once_that_it_has_no_space_and_once_that_it_has_some_again() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    if !is_root() {
        skip!("cannot mount a tmpfs");
    }
    let bench = Bench::new();
    bench.sh("mkdir small; mount -t tmpfs -o size=24m,mode=700 none small");
    let words = ["broker", "--insecure", "--listen", "127.0.0.1", "--state", "small"];
    let broker = bench.dmover.start(words).unwrap();
    assert!(broker.wait_for_stderr("the broker listens at", 1), "{}", broker.stderr_so_far());
    bench.sh("dd if=/dev/zero of=small/filler bs=1M 2>/dev/null || true");
    let full = "no space left at 'small'";
    assert!(broker.wait_for_stderr(full, 1), "{}", broker.stderr_so_far());
    bench.sh("rm small/filler");
    let again = "'small' has space again";
    assert!(broker.wait_for_stderr(again, 1), "{}", broker.stderr_so_far());
    broker.signal(rustix::process::Signal::TERM);
    let run = broker.finish().unwrap().expect_code(0);
    bench.sh("umount small");
    for words in [full, again] {
        assert_eq!(run.stderr.matches(words).count(), 1, "{}", run.tell());
    }
}
