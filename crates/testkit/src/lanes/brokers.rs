//! A cluster of three brokers: each is killed in turn, one runs out of space, and one is lost for good. Jobs end all the same, and nobody
//! helps.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::check::leftovers;
use super::run::{Dmover, Run, Running};
use super::{LaneOptions, LaneReport, rng, stage};
use crate::cluster::{Cluster, Host, NatsServer, Piece, needs};
use crate::compare::{CompareOptions, compare};
use crate::image::FileSystem;
use crate::skip::skipped;
use crate::tree;

const SIZE: u64 = 512 << 20;
/// Space for the streams of one broker.
const STORE: &str = "size=32M";
/// Ordinary entries in the source, beside the hard cases.
const ENTRIES: u64 = 300;
const BROKERS: [&str; 3] = ["b0", "b1", "b2"];
const HEAD: &str = "head";
const MOVERS: [&str; 2] = ["m0", "m1"];
/// So long a broker has no space.
const FULL: Duration = Duration::from_secs(15);
/// A job ends within this, whatever is done to it.
const PATIENCE: Duration = Duration::from_mins(4);

/// Disturbs the brokers of running jobs at seeded moments.
///
/// # Errors
/// What keeps it from running at all.
pub fn brokers(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("brokers");
    if let Err(why) = needs(&[Piece::Network, Piece::Nats]) {
        skipped("lane brokers", &why);
        report.add("skipped", 1);
        return Ok(report);
    }
    let Some(mounted) = report.images(&[FileSystem::Tmpfs], SIZE).pop() else { return Ok(report) };
    let mut ground = stage::Ground::new(mounted)?;
    report.each_seed(options, |seed, report| {
        ground.renew(0, ENTRIES)?;
        let failures = Experiment::new(options, seed, &ground)?.run(report);
        let place = ground.mounted.path().join("place");
        if std::fs::symlink_metadata(&place).is_ok() {
            tree::remove(&place)?;
        }
        failures
    });
    Ok(report)
}

/// A broker whose streams have a file system of their own.
struct Broker(NatsServer);

/// Gives a store a file system of limited size.
fn confine(store: &Path) -> Result<()> {
    let mount = ["-t", "tmpfs", "-o", STORE, "tmpfs"];
    let status = Command::new("mount").args(mount).arg(store).status()?;
    ensure!(status.success(), "cannot mount {}", store.display());
    Ok(())
}

impl Broker {
    fn filler(&self) -> PathBuf {
        self.0.store().join("filler")
    }

    fn fill(&self) -> Result<()> {
        let mut file = std::fs::File::create(self.filler())?;
        let ended = std::io::copy(&mut std::io::repeat(7), &mut file);
        let full = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::StorageFull);
        ensure!(full, "the store of a broker cannot be filled");
        Ok(())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.0.kill();
        // A failure shows when the directory of the cluster cannot be removed.
        let _ = Command::new("umount").arg(self.0.store()).status();
    }
}

struct Experiment {
    dmover: Dmover,
    rng: ChaCha8Rng,
    words: Vec<OsString>,
    source: PathBuf,
    place: PathBuf,
    url: String,
    movers: Vec<Running>,
    brokers: Vec<Broker>,
    cluster: Cluster,
    story: Vec<String>,
    begun: Instant,
}

impl Experiment {
    fn new(options: &LaneOptions, seed: u64, ground: &stage::Ground) -> Result<Self> {
        let mut rng = rng("brokers", seed);
        let (source, place) = (ground.source(), ground.mounted.path().join("place"));
        let names: Vec<&str> = BROKERS.into_iter().chain([HEAD]).chain(MOVERS).collect();
        let cluster = Cluster::new(&names)?;
        let hosts: Vec<&Host> = BROKERS.iter().map(|name| cluster.host(name)).collect();
        let servers = NatsServer::start_cluster(&hosts, confine)?;
        let brokers: Vec<Broker> = servers.into_iter().map(Broker).collect();
        let urls: Vec<String> = brokers.iter().map(|broker| broker.0.url()).collect();
        let url = urls.join(",");
        let verb = if rng.random_bool(0.5) { "sync" } else { "copy" };
        let words = [verb, "--json", "--progress=never", "--split-size=1M", "--reflink=never"];
        let mut words: Vec<OsString> = words.map(Into::into).to_vec();
        // It has to last until the last broker is lost.
        words.extend(
            ["--bwlimit=550K", "--lease=3s", "--insecure", "--broker", &url].map(Into::into),
        );
        if verb == "copy" {
            words.push("-T".into());
        }
        words.extend([source.clone().into_os_string(), place.clone().into_os_string()]);
        let dmover = Dmover::new(&options.program)?.patience(PATIENCE);
        let (movers, story, begun) = (Vec::new(), Vec::new(), Instant::now());
        Ok(Self { dmover, rng, words, source, place, url, movers, brokers, cluster, story, begun })
    }

    fn tell(&mut self, what: &str) {
        self.story.push(format!("{:.1} s: {what}", self.begun.elapsed().as_secs_f64()));
    }

    fn run(mut self, report: &mut LaneReport) -> Result<Vec<String>> {
        for name in MOVERS {
            let words = ["mover", "--insecure", "--broker", &self.url];
            let mover = self.dmover.start_behind(&self.cluster.host(name).words(), words)?;
            self.movers.push(mover);
        }
        let front = self.cluster.host(HEAD).words();
        let mut job = self.dmover.start_behind(&front, &self.words)?;
        self.wait_for_work(&mut job)?;
        let mut order = [0, 1, 2];
        order.shuffle(&mut self.rng);
        for chosen in order {
            self.kill_and_restart(chosen, report)?;
        }
        let chosen = order[self.rng.random_range(0..3)];
        if self.rng.random_bool(0.5) {
            // Nobody restarts a server that has switched its JetStream off, so the same one is lost.
            self.fill(chosen, report)?;
        }
        let missed = usize::from(job.has_ended()?);
        report.add("jobs_that_ended_too_soon", missed as u64);
        self.tell(&format!("{} is lost for good", BROKERS[chosen]));
        self.brokers[chosen].0.kill();
        report.add("lost", 1);
        let run = job.finish()?;
        self.check(&run)
    }

    fn wait_for_work(&mut self, job: &mut Running) -> Result<()> {
        let until = Instant::now() + Duration::from_mins(1);
        while std::fs::symlink_metadata(&self.place).is_err() {
            ensure!(Instant::now() < until && !job.has_ended()?, "no job: {}", job.stderr_so_far());
            // What is waited for is made by another process: poll.
            std::thread::sleep(Duration::from_millis(20));
        }
        self.tell("at work");
        Ok(())
    }

    fn kill_and_restart(&mut self, chosen: usize, report: &mut LaneReport) -> Result<()> {
        self.tell(&format!("kill -9 of {}", BROKERS[chosen]));
        self.brokers[chosen].0.kill();
        report.add("kills", 1);
        // The others go on alone for a while.
        std::thread::sleep(Duration::from_millis(self.rng.random_range(0..2500)));
        // After a kill, a consumer of nats-server 2.9 now and then stays "not current" until the server starts once more; docs/fleet.md
        // tells administrators to let the service manager see to that.
        let broker = &mut self.brokers[chosen].0;
        if let Err(error) = broker.restart() {
            report.add("started_again", 1);
            broker.restart().with_context(|| {
                format!("a broker that was killed, for the second time after {error:#}")
            })?;
        }
        self.tell(&format!("{} is back", BROKERS[chosen]));
        Ok(())
    }

    fn fill(&mut self, chosen: usize, report: &mut LaneReport) -> Result<()> {
        self.tell(&format!("{} has no space", BROKERS[chosen]));
        self.brokers[chosen].fill()?;
        let until = Instant::now() + FULL;
        while Instant::now() < until {
            // What is waited for is the time itself.
            std::thread::sleep(Duration::from_millis(50));
        }
        std::fs::remove_file(self.brokers[chosen].filler())?;
        let wedged = !self.brokers[chosen].0.is_healthy();
        report.add("full", 1);
        report.add("full_and_switched_off", u64::from(wedged));
        Ok(())
    }

    fn check(&mut self, run: &Run) -> Result<Vec<String>> {
        let mut failures = Vec::new();
        for mover in &mut self.movers {
            if mover.has_ended()? {
                failures.push(format!("a mover has ended: {}", mover.stderr_so_far()));
            }
        }
        if run.code() != Some(0) {
            failures.push(run.tell());
        }
        let differences = compare(&self.source, &self.place, &CompareOptions::default())?;
        failures.extend(differences.iter().map(ToString::to_string));
        let left = leftovers(&self.place)?;
        failures.extend(left.iter().map(|left| format!("left {}", left.display())));
        let story = self.story.join("; ");
        Ok(failures.into_iter().map(|failure| format!("{failure} [{story}]")).collect())
    }
}
