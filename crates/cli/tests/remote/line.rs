//! Jobs over a line with delay, loss and outages, through the real ssh. The lane `outages` has more of them, and lines that
//! stay silent.
use super::bench::{Bench, PROGRAM, eventually, pattern};
use dmover_testkit::cluster::{FarHost, LineOptions};
use dmover_testkit::lanes::check::leftovers;
use dmover_testkit::lanes::run::{Run, Running};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A continent away.
const ROUND_TRIP: Duration = Duration::from_millis(50);

struct Rig {
    far: FarHost,
    bench: Bench,
}

macro_rules! rig {
    ($options:expr) => {{
        if let Some(why) = FarHost::missing() {
            dmover_testkit::skip!("{why}");
        }
        let far = FarHost::start(Path::new(PROGRAM), $options).unwrap();
        Rig { far, bench: Bench::new() }
    }};
}

/// Which side is at the other end of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Far {
    Source,
    Destination,
}

impl Rig {
    fn tree(&self) {
        for number in 0..120 {
            let path = format!("s/{}/{number}", number % 12);
            self.bench.write(&path, pattern(10 + number * 60));
        }
        self.bench.write("s/large", pattern(400_000));
        self.bench.sh("cd s; mkdir empty; ln 3/3 4/link; ln -s nowhere dangling; chmod 2750 5; touch -d 2001-02-03 6/6");
    }

    fn start_job(&self, far: Far, line: &str) -> Running {
        let mut words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        words.extend(["--json".into(), "--ssh-command".into(), self.far.ssh_command().into()]);
        if far == Far::Destination {
            words.extend(["--state-dir".into(), self.far.state().into()]);
        }
        let name = |path: &str, is_far: bool| {
            let mut name = OsString::from(if is_far { "far:" } else { "" });
            name.push(self.bench.at(path));
            name
        };
        words.push(name("s", far == Far::Source));
        words.push(name("d", far == Far::Destination));
        self.bench.dmover.start(words).unwrap()
    }

    fn job(&self, far: Far, line: &str) -> Run {
        self.start_job(far, line).finish().unwrap()
    }

    /// By other programs than those of dmover's own tests.
    #[track_caller]
    fn assert_same(&self) {
        self.bench.sh("diff -r --no-dereference s d");
        let listed = self.bench.sh("rsync -naHAXi --checksum --delete s/ d/");
        assert_eq!(listed, "", "rsync finds differences");
        assert_eq!(leftovers(&self.bench.at("d")).unwrap(), Vec::<PathBuf>::new());
    }
}

#[test]
fn copies_and_passes_over_a_long_line_that_loses_packets_are_complete() {
    let loss = 0.01;
    let seed = std::process::id().into();
    let rig = rig!(&LineOptions { loss, seed, ..LineOptions::round_trip(ROUND_TRIP) });
    for far in [Far::Source, Far::Destination] {
        rig.tree();
        rig.job(far, "copy -T").expect_code(0);
        rig.assert_same();
        rig.bench.sh("cd s; rm -r 7 8/8; echo new > 1/1; chmod 600 2/2; mkdir more; echo > more/one; touch -d 1999-01-01 large");
        rig.job(far, "sync --delete --yes").expect_code(0);
        rig.assert_same();
        rig.bench.sh("rm -r s d");
    }
    let lost: u64 = rig.far.line.counts().iter().map(|counts| counts.lost).sum();
    assert!(lost > 0, "nothing was lost");
}

#[test]
fn a_job_survives_an_outage_that_ends() {
    let rig = rig!(&LineOptions::round_trip(ROUND_TRIP));
    rig.tree();
    for far in [Far::Source, Far::Destination] {
        // A login takes less than half of it, the whole job more than twice as much.
        rig.far.line.silence_after(150_000);
        let mut running = rig.start_job(far, "copy -T");
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
