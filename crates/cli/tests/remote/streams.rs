//! Data streams beside ssh, over a line between two hosts.
use super::bench::{Bench, PROGRAM, eventually, pattern};
use super::rig::{Far, Rig};
use dmover_testkit::cluster::{FarHost, LineOptions};
use dmover_testkit::lanes::run::Run;
use serde_json::Value;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

const ROUND_TRIP: Duration = Duration::from_millis(20);

macro_rules! rig {
    () => {
        rig!(LineOptions::round_trip(ROUND_TRIP))
    };
    ($line:expr) => {{
        if let Some(why) = FarHost::missing() {
            dmover_testkit::skip!("{why}");
        }
        let far = FarHost::start(Path::new(PROGRAM), &$line).unwrap();
        // dmover opens the streams itself, so it has to be at the near end.
        let words = far.line.near().words();
        let bench = Bench::new().with(|dmover| dmover.wrapped(words));
        let rig = Rig { far, bench };
        tree(&rig);
        rig
    }};
}

fn tree(rig: &Rig) {
    for number in 0..200 {
        rig.bench.write(&format!("s/{}/{number}", number % 7), pattern(number * 40));
    }
    // Cannot be compressed: some tests need it to be under way for a while.
    rig.bench.sh("head -c 12M /dev/urandom > s/large");
    rig.complete();
}

/// What the summary says of the only connection.
#[track_caller]
fn connection(run: &Run) -> Value {
    let lines = run.text();
    let objects = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut summaries = objects.filter(|object| object["type"] == "summary");
    let summary = summaries.next_back();
    let summary = summary.unwrap_or_else(|| panic!("no summary in {}", run.tell()));
    summary["connections"][0].clone()
}

#[test]
fn trees_go_over_data_streams_with_each_protection() {
    let rig = rig!();
    for (level, word) in [("full", "tls"), ("integrity", "integrity"), ("none", "none")] {
        for far in Far::BOTH {
            let line = format!("copy -T --streams 4 --congestion reno --encrypt {level}");
            let run = rig.run(far, &line).expect_code(0);
            rig.assert_same();
            let known = connection(&run);
            assert_eq!(known["streams"], 4, "{known}");
            assert_eq!(known["protection"], word, "{known}");
            assert_eq!(known["congestion"], "reno", "{known}");
            let round_trip = known["least_round_trip_us"].as_u64().unwrap();
            assert!(round_trip >= ROUND_TRIP.as_micros() as u64, "{known}");
            rig.bench.sh("rm -r d");
        }
    }
}

#[test]
fn what_is_encrypted_cannot_be_read_on_the_way() {
    let rig = rig!();
    let text = "a line that nobody on the way may read\n";
    rig.bench.write("s/secret", text.repeat(40_000));
    for (level, is_seen) in [("full", false), ("integrity", true), ("none", true)] {
        rig.far.line.look_for(text.as_bytes());
        rig.run(Far::Destination, &format!("copy -T --compress=never --encrypt {level}"))
            .expect_code(0);
        rig.assert_same();
        assert_eq!(rig.far.line.has_seen(), is_seen, "{level}");
        rig.bench.sh("rm -r d");
    }
}

/// Options for a job that finds no open port: nobody listens at this end of the line. It is longer than the attempts.
fn without_port(rig: &Rig) -> String {
    format!("--bwlimit 1M --data-address {}", rig.far.line.near_address())
}

#[test]
fn without_an_open_port_ssh_carries_the_streams_and_it_says_so() {
    let rig = rig!();
    for far in Far::BOTH {
        let run = rig.run(far, &format!("copy -T {}", without_port(&rig))).expect_code(0);
        rig.assert_same();
        let said = "no port of far can be used for data streams, so up to 8 connections of ssh carry them: ";
        assert!(run.stderr.contains(said) && run.stderr.contains("refused"), "{}", run.tell());
        let known = connection(&run);
        assert_eq!(known["protection"], "ssh_streams", "{known}");
        assert_eq!(known["streams"], 8, "{known}");
        // What the kernel knows are connections within a host.
        assert_eq!(known["round_trip_us"], Value::Null, "{known}");
        rig.bench.sh("rm -r d");
        rig.far.wait_quiet().unwrap();
    }
}

/// What ssh has been started as for streams, on this host.
fn carriers(rig: &Rig) -> Vec<u32> {
    let config = rig.far.ssh_command().rsplit(' ').next().unwrap().to_owned();
    let found = rig.bench.sh(&format!("pgrep -f '^ssh -F {config} .*BatchMode=yes' || true"));
    found.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn streams_that_ssh_carries_are_replaced_and_end_with_the_job() {
    let rig = rig!();
    let line = format!("copy -T --streams 3 {}", without_port(&rig));
    let mut running = rig.start(Far::Source, &line);
    eventually("connections of ssh", || carriers(&rig).len() == 3 || running.has_ended().unwrap());
    // The others are started once the first one carries a stream; they may still log in.
    let before = carriers(&rig);
    rig.bench.sh(&format!("kill -KILL {} {}", before[0], before[1]));
    eventually("others", || {
        let now = carriers(&rig);
        now.len() == 3 && !now.contains(&before[0]) || running.has_ended().unwrap()
    });
    let run = running.finish().unwrap().expect_code(0);
    rig.assert_same();
    assert!(connection(&run)["lost_streams"].as_u64().unwrap() >= 1, "{}", run.tell());
    eventually("the end of all of them", || carriers(&rig).is_empty());
}

#[test]
fn everything_goes_through_ssh_if_there_is_no_second_connection() {
    let rig = rig!();
    let script =
        "case \"$*\" in *BatchMode*) echo there is one already >&2; exit 255;; esac; exec \"$@\"";
    rig.bench.write("once", format!("#!/bin/sh\n{script}\n"));
    rig.bench.sh("chmod +x once");
    let ssh = format!("{} {}", rig.bench.at("once").display(), rig.far.ssh_command());
    let mut words: Vec<OsString> = format!("copy -T --json {}", without_port(&rig))
        .split_whitespace()
        .map(OsString::from)
        .collect();
    words.extend(["--ssh-command".into(), ssh.into()]);
    words.push(format!("far:{}", rig.bench.at("s").display()).into());
    words.push(rig.bench.at("d").into());
    let run = rig.bench.dmover.run(words).unwrap().expect_code(0);
    rig.assert_same();
    let said = "no data streams to far, everything goes through ssh: ";
    let why = "a second connection of ssh: there is one already";
    assert!(run.stderr.contains(said) && run.stderr.contains(why), "{}", run.tell());
    assert_eq!(connection(&run)["protection"], "ssh");
}

#[test]
fn without_streams_there_is_no_connection_but_ssh() {
    let rig = rig!();
    let run = rig.run(Far::Destination, "copy -T --streams 0").expect_code(0);
    rig.assert_same();
    assert_eq!(connection(&run), Value::Null);
}

#[test]
fn a_job_goes_on_when_ssh_has_ended() {
    let rig = rig!();
    for far in Far::BOTH {
        let mut running = rig.start(far, "copy -T --bwlimit 6M");
        let begun = || std::fs::read_dir(rig.bench.at("d")).is_ok_and(|names| names.count() > 3);
        eventually("the copy", || begun() || running.has_ended().unwrap());
        // Streams are there before the first content is.
        let config = rig.far.ssh_command().rsplit(' ').next().unwrap().to_owned();
        rig.bench.sh(&format!("pkill -KILL -f '^ssh -F {config}'"));
        let run = running.finish().unwrap().expect_code(0);
        rig.assert_same();
        assert_eq!(connection(&run)["streams"], 8, "{}", run.tell());
        rig.bench.sh("rm -r d");
    }
}

#[test]
fn a_job_survives_an_outage_that_is_longer_than_its_streams_live() {
    let rig = rig!();
    for far in Far::BOTH {
        rig.far.line.silence_after(6 << 20);
        let mut running = rig.start(far, "copy -T");
        eventually("the outage", || rig.far.line.is_silent() || running.has_ended().unwrap());
        assert!(!running.has_ended().unwrap(), "it ended before the outage");
        let end = Instant::now() + Duration::from_secs(12);
        eventually("the end of the outage", || Instant::now() > end);
        assert!(!running.has_ended().unwrap(), "it ended during the outage");
        rig.far.line.set_silent(false);
        let run = running.finish().unwrap().expect_code(0);
        rig.assert_same();
        let lost = connection(&run)["lost_streams"].as_u64().unwrap();
        assert!(lost >= 8, "{lost} streams were lost");
        rig.bench.sh("rm -r d");
    }
}

#[test]
fn a_host_that_stays_away_is_given_up_after_the_time_that_the_user_sets() {
    let rig = rig!();
    rig.far.line.silence_after(6 << 20);
    let run = rig.run(Far::Source, "copy -T --reconnect-for 5s").expect_code(6);
    assert!(run.stderr.contains("no sign of life for"), "{}", run.tell());
    rig.far.line.set_silent(false);
    rig.far.wait_quiet().unwrap();
    rig.run(Far::Source, "copy -T").expect_code(0);
    rig.assert_same();
}

/// Only the host that sends knows what it has sent again.
#[test]
fn a_copy_from_there_tells_what_was_sent_again_there() {
    let seed = std::process::id().into();
    let rig = rig!(LineOptions { loss: 0.01, seed, ..LineOptions::round_trip(ROUND_TRIP) });
    // Longer than the second after which the other host is asked again.
    let line = "copy -T --streams 4 --bwlimit 4M";
    let run = rig.run(Far::Source, line).expect_code(0);
    rig.assert_same();
    let connection = connection(&run);
    let number = |name: &str| connection[name].as_u64().unwrap_or_else(|| panic!("{connection}"));
    assert!(number("retransmits_there") > 0, "{connection}");
    assert!(number("segments_there") > number("segments"), "{connection}");
    assert!(number("segments_there") > 10 * number("retransmits_there"), "{connection}");
}
