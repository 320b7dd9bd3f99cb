//! Movers on hosts of their own, a coordinator and a broker, all of which are killed, stopped, cut off and made to forget at
//! any moment. Clocks of movers are minutes apart.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rustix::process::Signal;

use super::check::{leftovers, lying_files};
use super::run::{Dmover, Run, Running};
use super::{LaneOptions, LaneReport, MEANT, rng, stage};
use crate::clock::{self, WrongClock};
use crate::cluster::{Cluster, Host, NatsServer, Piece, needs};
use crate::compare::{CompareOptions, compare};
use crate::image::FileSystem;
use crate::skip::skipped;
use crate::tree;

const SIZE: u64 = 512 << 20;
/// Ordinary entries in the source, beside the hard cases.
const ENTRIES: u64 = 300;
/// Seeds that share a source.
const SEEDS_PER_SOURCE: u64 = 25;
/// Where the coordinator and the broker run, and where movers do.
const HEAD: &str = "head";
const HOSTS: [&str; 4] = ["m0", "m1", "m2", "m3"];
/// How wrong the clocks of movers are, in seconds: less than what is refused.
const AHEAD_S: [i64; 4] = [0, 0, 300, -300];
/// A mover that says nothing for so long has lost its tasks.
const LEASE: Duration = Duration::from_secs(1);
/// A job ends within this, whatever is done to it.
const PATIENCE: Duration = Duration::from_mins(2);

/// What is done to a running job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A mover is killed, and another one comes.
    KillMover,
    /// The coordinator is killed, and the same command begins again.
    KillCoordinator,
    /// The broker is killed, and starts again with what it has.
    KillBroker,
    /// The broker is killed and forgets everything.
    WipeBroker,
    /// A mover is stopped for longer than its lease, and goes on.
    StopMover,
    /// The host of a mover is cut off for longer than the lease.
    CutLink,
}

/// Disturbs jobs at seeded moments on one file system after the other.
///
/// # Errors
/// What keeps it from running at all.
pub fn fleet(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("fleet");
    let clocks = AHEAD_S.iter().map(|ahead| WrongClock::new(*ahead)).collect::<Result<Vec<_>, _>>();
    let needed = needs(&[Piece::Network, Piece::Nats]).and(clocks);
    let clocks = match needed {
        Ok(clocks) => clocks,
        Err(why) => {
            skipped("lane fleet", &why);
            report.add("skipped", 1);
            return Ok(report);
        }
    };
    let all = [FileSystem::Ext4, FileSystem::Tmpfs, FileSystem::Xfs];
    let mut grounds = Vec::new();
    for mounted in report.images(&all, SIZE) {
        grounds.push(stage::Ground::new(mounted)?);
    }
    if grounds.is_empty() {
        return Ok(report);
    }
    report.each_seed(options, |seed, report| {
        let turn = seed as usize % grounds.len();
        let ground = &mut grounds[turn];
        ground.renew(seed / SEEDS_PER_SOURCE, ENTRIES)?;
        let failures = Experiment::new(options, seed, ground, &clocks)?.run(report);
        let place = ground.mounted.path().join("place");
        if std::fs::symlink_metadata(&place).is_ok() {
            tree::remove(&place)?;
        }
        let name = ground.mounted.file_system();
        Ok(failures?.into_iter().map(|failure| format!("{name}: {failure}")).collect())
    });
    Ok(report)
}

struct Experiment<'a> {
    dmover: Dmover,
    clocks: &'a [WrongClock],
    rng: ChaCha8Rng,
    words: Vec<OsString>,
    source: PathBuf,
    place: PathBuf,
    broker: NatsServer,
    movers: Vec<(Running, Host)>,
    /// Movers that are stopped, and until when.
    stopped: Vec<((Running, Host), Instant)>,
    /// Hosts that are cut off, and until when.
    cut: Vec<(Host, Instant)>,
    /// Processes whose clock was wrong.
    deceived: Vec<u32>,
    cluster: Cluster,
    story: Vec<String>,
    /// Movers so far.
    called: u32,
}

impl Drop for Experiment<'_> {
    fn drop(&mut self) {
        self.movers.clear();
        self.stopped.clear();
        self.deceived.iter().for_each(|pid| clock::clear_after(*pid));
    }
}

impl<'a> Experiment<'a> {
    fn new(
        options: &LaneOptions,
        seed: u64,
        ground: &stage::Ground,
        clocks: &'a [WrongClock],
    ) -> Result<Self> {
        let mut rng = rng("fleet", seed);
        let (source, place) = (ground.source(), ground.mounted.path().join("place"));
        let names: Vec<&str> = std::iter::once(HEAD).chain(HOSTS).collect();
        let cluster = Cluster::new(&names)?;
        let broker = NatsServer::start(cluster.host(HEAD), "")?;
        let verb = if rng.random_bool(0.6) { "sync" } else { "copy" };
        let mut words: Vec<OsString> =
            vec![verb.into(), "--json".into(), "--progress=never".into()];
        words.extend(["--split-size=1M".into(), "--reflink=never".into()]);
        // Slow enough to be hit.
        words.push(format!("--bwlimit={}M", rng.random_range(8..40)).into());
        words.extend(["--insecure".into(), "--broker".into(), broker.url().into()]);
        words.push(format!("--lease={}ms", LEASE.as_millis()).into());
        if verb == "sync" {
            words.extend(["--delete".into(), MEANT.into()]);
        } else {
            words.push("-T".into());
        }
        words.extend([source.clone().into_os_string(), place.clone().into_os_string()]);
        if let Some(logs) = std::env::var_os("DMOVER_FLEET_LOGS") {
            words.extend(["-vv".into(), "--log-file".into()]);
            words.push(Path::new(&logs).join("coordinator").into());
        }
        // The kernel hangs up on stopped processes whose group has lost its parent.
        let dmover = Dmover::new(&options.program)?.patience(PATIENCE).wrapped(["nohup"]);
        Ok(Self {
            dmover,
            clocks,
            rng,
            words,
            source,
            place,
            broker,
            movers: Vec::new(),
            stopped: Vec::new(),
            cut: Vec::new(),
            deceived: Vec::new(),
            cluster,
            story: Vec::new(),
            called: 0,
        })
    }

    fn call_mover(&mut self) -> Result<()> {
        let threads = format!("-j{}", self.rng.random_range(1..=3));
        let url = self.broker.url();
        let mut words: Vec<OsString> =
            ["mover", "--insecure", "--broker", &url, &threads].map(Into::into).to_vec();
        if let Some(logs) = std::env::var_os("DMOVER_FLEET_LOGS") {
            let name = format!("mover-{}", self.called);
            words.extend(["-vv".into(), "--log-file".into(), Path::new(&logs).join(name).into()]);
        }
        let host = self.cluster.host(HOSTS[self.called as usize % HOSTS.len()]).clone();
        self.called += 1;
        let clock = &self.clocks[self.rng.random_range(0..self.clocks.len())];
        let front = [host.words(), clock.words()].concat();
        let mover = self.dmover.start_behind(&front, words)?;
        self.deceived.push(mover.pid().as_raw_nonzero().get() as u32);
        self.movers.push((mover, host));
        Ok(())
    }

    fn call_coordinator(&self) -> Result<Running> {
        self.dmover.start_behind(&self.cluster.host(HEAD).words(), &self.words)
    }

    fn run(mut self, report: &mut LaneReport) -> Result<Vec<String>> {
        for _ in 0..self.rng.random_range(1..=3) {
            self.call_mover()?;
        }
        let mut failures = Vec::new();
        let first = self.one_pass(report, &mut failures)?;
        self.check(&first, "after the job", &mut failures)?;
        // The next pass has something to do, and those who were stopped wake up in it.
        self.change_source()?;
        let second = self.one_pass(report, &mut failures)?;
        self.wake(true)?;
        self.check(&second, "after the next pass", &mut failures)?;
        let story = self.story.join("; ");
        Ok(failures.into_iter().map(|failure| format!("{failure} [{story}]")).collect())
    }

    /// Something to do for another pass, in a source that other seeds share: a file is written anew.
    fn change_source(&mut self) -> Result<()> {
        let path = self.source.join("large/file-3");
        let length = self.rng.random_range(1_000_000..3_000_000);
        let bytes = stage::random(length, &mut self.rng);
        std::fs::write(&path, bytes).context("change the source")
    }

    /// Runs the job to its end, however often it has to be begun.
    fn one_pass(&mut self, report: &mut LaneReport, failures: &mut Vec<String>) -> Result<Run> {
        let begun = Instant::now();
        let mut coordinator = self.call_coordinator()?;
        let mut faults = self.rng.random_range(1..=4);
        let mut next = begun + self.pause();
        loop {
            if coordinator.has_ended()? {
                let run = coordinator.finish()?;
                report.add("runs", 1);
                return Ok(run);
            }
            ensure!(begun.elapsed() < 2 * PATIENCE, "the job hangs: {}", self.story.join("; "));
            self.wake(false)?;
            for (mover, _) in &mut self.movers {
                ensure!(!mover.has_ended()?, "a mover has ended: {}", mover.stderr_so_far());
            }
            if faults > 0 && Instant::now() >= next {
                faults -= 1;
                next = Instant::now() + self.pause();
                let fault = self.draw();
                self.story.push(format!("{:.2} s: {fault:?}", begun.elapsed().as_secs_f64()));
                report.add(&format!("{fault:?}"), 1);
                if fault == Fault::KillCoordinator {
                    coordinator.kill()?;
                    let lies = lying_files(&self.source, &self.place).context("look for lies")?;
                    failures.extend(lies.into_iter().map(|lie| format!("after a kill: {lie}")));
                    coordinator = self.call_coordinator()?;
                } else {
                    self.disturb(fault)?;
                }
            }
            // Something has to be done at seeded moments: poll.
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn pause(&mut self) -> Duration {
        Duration::from_millis(self.rng.random_range(0..900))
    }

    fn draw(&mut self) -> Fault {
        match self.rng.random_range(0..100) {
            0..30 => Fault::KillMover,
            30..45 => Fault::KillCoordinator,
            45..57 => Fault::KillBroker,
            57..69 => Fault::WipeBroker,
            69..85 => Fault::StopMover,
            _ => Fault::CutLink,
        }
    }

    fn disturb(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::KillMover | Fault::StopMover => {
                let chosen = self.rng.random_range(0..self.movers.len());
                let (mover, host) = self.movers.swap_remove(chosen);
                if fault == Fault::KillMover {
                    mover.kill()?;
                } else {
                    mover.signal(Signal::STOP);
                    let until = self.longer_than_a_lease();
                    self.stopped.push(((mover, host), until));
                }
                // Somebody has to do the work.
                if self.movers.is_empty() || self.rng.random_bool(0.7) {
                    self.call_mover()?;
                }
            }
            Fault::CutLink => {
                let chosen = self.rng.random_range(0..self.movers.len());
                let host = self.movers[chosen].1.clone();
                host.cut_link()?;
                let until = self.longer_than_a_lease();
                self.cut.push((host, until));
                if self.rng.random_bool(0.5) {
                    self.call_mover()?;
                }
            }
            Fault::KillBroker => {
                self.broker.kill();
                self.broker.restart()?;
            }
            Fault::WipeBroker => {
                self.broker.wipe()?;
                self.broker.restart()?;
            }
            Fault::KillCoordinator => {}
        }
        Ok(())
    }

    fn longer_than_a_lease(&mut self) -> Instant {
        Instant::now() + LEASE.mul_f64(self.rng.random_range(1.5..6.0))
    }

    /// Has movers go on that were stopped or cut off for long enough; `all`: in any case.
    fn wake(&mut self, all: bool) -> Result<()> {
        let now = Instant::now();
        for (mover, until) in std::mem::take(&mut self.stopped) {
            if all || now >= until {
                mover.0.signal(Signal::CONT);
                self.movers.push(mover);
            } else {
                self.stopped.push((mover, until));
            }
        }
        for (host, until) in std::mem::take(&mut self.cut) {
            if all || now >= until {
                host.mend_link()?;
            } else {
                self.cut.push((host, until));
            }
        }
        Ok(())
    }

    fn check(&self, run: &Run, when: &str, failures: &mut Vec<String>) -> Result<()> {
        if run.code() != Some(0) {
            failures.push(format!("{when}: {}", run.tell()));
            if std::fs::symlink_metadata(&self.place).is_err() {
                return Ok(());
            }
        }
        let differences = compare(&self.source, &self.place, &CompareOptions::default())?;
        failures.extend(differences.iter().map(|difference| format!("{when}: {difference}")));
        let left = leftovers(&self.place)?;
        failures.extend(left.iter().map(|left| format!("{when}: left {}", left.display())));
        Ok(())
    }
}
