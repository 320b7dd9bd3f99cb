//! Jobs over a line with delay, loss and outages, through the real ssh. The lane `outages` has more of them, and lines that
//! stay silent.
use super::bench::{Bench, PROGRAM, eventually, pattern};
use super::rig::{Far, Rig};
use dmover_testkit::cluster::{FarHost, LineOptions};
use std::path::Path;
use std::time::{Duration, Instant};

/// A continent away.
const ROUND_TRIP: Duration = Duration::from_millis(50);

macro_rules! rig {
    ($options:expr) => {{
        if let Some(why) = FarHost::missing() {
            dmover_testkit::skip!("{why}");
        }
        let far = FarHost::start(Path::new(PROGRAM), $options).unwrap();
        Rig { far, bench: Bench::new() }
    }};
}

fn tree(rig: &Rig) {
    for number in 0..120 {
        let path = format!("s/{}/{number}", number % 12);
        rig.bench.write(&path, pattern(10 + number * 60));
    }
    rig.bench.write("s/large", pattern(400_000));
    rig.complete();
}

#[test]
fn copies_and_passes_over_a_long_line_that_loses_packets_are_complete() {
    let loss = 0.01;
    let seed = std::process::id().into();
    let rig = rig!(&LineOptions { loss, seed, ..LineOptions::round_trip(ROUND_TRIP) });
    for far in Far::BOTH {
        tree(&rig);
        rig.run(far, "copy -T").expect_code(0);
        rig.assert_same();
        rig.bench.sh("cd s; rm -r 7 8/8; echo new > 1/1; chmod 600 2/2; mkdir more; echo > more/one; touch -d 1999-01-01 large");
        rig.run(far, "sync --delete --yes").expect_code(0);
        rig.assert_same();
        rig.bench.sh("rm -r s d");
    }
    let lost: u64 = rig.far.line.counts().iter().map(|counts| counts.lost).sum();
    assert!(lost > 0, "nothing was lost");
}

#[test]
fn a_job_survives_an_outage_that_ends() {
    let rig = rig!(&LineOptions::round_trip(ROUND_TRIP));
    tree(&rig);
    for far in Far::BOTH {
        // A login takes less than half of it, the whole job more than twice as much.
        rig.far.line.silence_after(150_000);
        let mut running = rig.start(far, "copy -T");
        eventually("the outage", || rig.far.line.is_silent() || running.has_ended().unwrap());
        assert!(!running.has_ended().unwrap(), "{far:?}: it ended before the outage");
        // TCP has sent some of it again by then.
        let end = Instant::now() + Duration::from_secs(3);
        eventually("the end of the outage", || Instant::now() > end);
        assert!(!running.has_ended().unwrap(), "{far:?}: it ended during the outage");
        rig.far.line.set_silent(false);
        running.finish().unwrap().expect_code(0);
        rig.assert_same();
        rig.bench.sh("rm -r d");
        let silenced: u64 = rig.far.line.counts().iter().map(|counts| counts.silenced).sum();
        assert!(silenced > 0, "nothing was dropped");
    }
}
