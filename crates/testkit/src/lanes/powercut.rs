//! Power cuts at any moment: what a destination still holds, and that the same command finishes the job.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rusqlite::{Connection, OpenFlags};
use rustix::fs::{Mode, OFlags};
use tempfile::TempDir;

use super::check::{leftovers, lying_files};
use super::run::Dmover;
use super::stage::{OldVersions, plant_old_versions, source, torn_files};
use super::{LaneOptions, LaneReport, MEANT, rng};
use crate::compare::{CompareOptions, compare};
use crate::image::{FileSystem, ImageOptions, base_directory};
use crate::powercut::PowerCutDevice;
use crate::skip::skipped;
use crate::tree::{self, Features};

const SIZE: u64 = 320 << 20;
const ENTRIES: u64 = 200;
/// Groups of hard cases that say nothing about what reaches a disk.
const WITHOUT: [&str; 9] =
    ["names", "deep", "long-path", "huge", "modes", "owners", "times", "project", "flags"];
/// Seeds that share a source.
const SEEDS_PER_SOURCE: u64 = 20;

/// A source that is never cut off, and how long a copy of it takes on each file system.
struct Ground {
    directory: TempDir,
    source_seed: Option<u64>,
    whole_run: [Duration; 2],
}

/// Cuts the power of ext4 and XFS in turn.
pub fn powercut(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("powercut");
    let mut ground = Ground::new()?;
    report.each_seed(options, |seed, report| ground.experiment(options, seed, report, Cut::COPY));
    Ok(report)
}

/// Cuts the power of what passes write to, and has them go on with the journal as it was before the cut: what it calls
/// done has to be there, since nobody looks at it again.
pub fn journal(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("journal");
    let mut ground = Ground::new()?;
    report.each_seed(options, |seed, report| ground.experiment(options, seed, report, Cut::SYNC));
    Ok(report)
}

/// The control of that: how many seeds it took to find an entry that is on record and not on the disk.
pub fn journal_without_flushes(options: &LaneOptions) -> Result<Option<u64>> {
    let mut ground = Ground::new()?;
    let mut report = LaneReport::default();
    let cut = Cut { flushes: false, ..Cut::SYNC };
    for seed in options.range() {
        let failures = ground.experiment(options, seed, &mut report, cut)?;
        if failures.iter().any(|failure| failure.contains("second run")) {
            return Ok(Some(seed - options.seed + 1));
        }
    }
    Ok(None)
}

/// What is cut off.
#[derive(Clone, Copy)]
struct Cut {
    /// A pass with a journal, or a copy.
    syncs: bool,
    flushes: bool,
}

impl Cut {
    const COPY: Self = Self { syncs: false, flushes: true };
    const SYNC: Self = Self { syncs: true, flushes: true };
}

/// The control: the same cuts while flushes do nothing; how many seeds it took to find a file that lies.
///
/// None if no seed did, so that the lane would prove nothing.
pub fn powercut_without_flushes(options: &LaneOptions) -> Result<Option<u64>> {
    let mut ground = Ground::new()?;
    let mut report = LaneReport::default();
    for seed in options.range() {
        let failures =
            ground.experiment(options, seed, &mut report, Cut { flushes: false, ..Cut::COPY })?;
        if failures.iter().any(|failure| failure.contains("after the cut")) {
            return Ok(Some(seed - options.seed + 1));
        }
    }
    Ok(None)
}

/// Whether any file system here can be cut off.
pub fn is_possible() -> bool {
    [FileSystem::Ext4, FileSystem::Xfs].into_iter().any(|kind| device(kind).is_some())
}

fn kind(seed: u64) -> FileSystem {
    if seed.is_multiple_of(2) { FileSystem::Ext4 } else { FileSystem::Xfs }
}

fn device(kind: FileSystem) -> Option<PowerCutDevice> {
    // A commit every second brings names and sizes to the disk long before the data is due.
    let mount_options = if kind == FileSystem::Ext4 { vec!["commit=1".to_owned()] } else { vec![] };
    let options = ImageOptions { size_bytes: SIZE, mount_options, ..ImageOptions::default() };
    let made = PowerCutDevice::create_with(kind, options);
    made.map_err(|why| skipped("lane powercut", &why.to_string())).ok()
}

impl Ground {
    fn new() -> Result<Self> {
        let directory =
            tempfile::Builder::new().prefix("powercut-").tempdir_in(base_directory()?)?;
        Ok(Self { directory, source_seed: None, whole_run: [Duration::ZERO; 2] })
    }

    fn experiment(
        &mut self,
        options: &LaneOptions,
        seed: u64,
        report: &mut LaneReport,
        cut: Cut,
    ) -> Result<Vec<String>> {
        self.prepare(seed / SEEDS_PER_SOURCE)?;
        let kind = kind(seed);
        let Some(device) = device(kind) else {
            report.add("skipped", 1);
            return Ok(Vec::new());
        };
        let mut experiment = Experiment::new(options, seed, self, &device, cut)?;
        if !cut.flushes {
            // Refused with error number 0: the call does nothing and reports success.
            let calls = ["fsync", "fdatasync", "syncfs", "sync_file_range"];
            experiment.dmover = experiment.dmover.denied(&calls, 0);
        }
        let (took, failures) = experiment.run(device, report)?;
        if let Some(took) = took {
            self.whole_run[usize::from(kind == FileSystem::Xfs)] = took;
        }
        let told = (!failures.is_empty()).then(|| format!("that was {}", experiment.tell()));
        Ok(failures.into_iter().chain(told).map(|line| format!("{kind}: {line}")).collect())
    }

    fn source(&self) -> PathBuf {
        self.directory.path().join("source")
    }

    fn prepare(&mut self, source_seed: u64) -> Result<()> {
        if self.source_seed == Some(source_seed) {
            return Ok(());
        }
        if self.source_seed.take().is_some() {
            tree::remove(&self.source())?;
        }
        let mut features = Features::probe(self.directory.path())?;
        // What ext4 and XFS hold as well, so that nothing has to be lost.
        (features.xattr_bytes, features.symlink_bytes) = (1000, 1000);
        source(&self.source(), source_seed, &features, ENTRIES, &WITHOUT)?;
        self.source_seed = Some(source_seed);
        Ok(())
    }

    /// How long a copy takes; a guess until one has come to its end.
    fn whole_run(&self, kind: FileSystem) -> Duration {
        const GUESS: Duration = Duration::from_millis(150);
        let known = self.whole_run[usize::from(kind == FileSystem::Xfs)];
        if known.is_zero() { GUESS } else { known }
    }
}

struct Experiment {
    dmover: Dmover,
    words: Vec<OsString>,
    source: PathBuf,
    copy: PathBuf,
    olds: OldVersions,
    delay: Duration,
    /// Somebody else's fsync makes the journal commit, all the time or just before the cut.
    bystander: bool,
    commits_before_the_cut: bool,
    syncs: bool,
}

impl Experiment {
    fn new(
        options: &LaneOptions,
        seed: u64,
        ground: &Ground,
        device: &PowerCutDevice,
        cut: Cut,
    ) -> Result<Self> {
        let mut rng = rng(if cut.syncs { "journal" } else { "powercut" }, seed);
        let (source, copy) = (ground.source(), device.path().join("copy"));
        let mut olds = OldVersions::new();
        if rng.random_bool(0.7) {
            olds = plant_old_versions(&source, &copy, &mut rng)?;
            sync_file_system(device.path())?;
        }
        let mut words: Vec<OsString> = vec![format!("-j{}", rng.random_range(1..=4)).into()];
        if rng.random_bool(0.8) {
            words.push("--split-size=1M".into());
        }
        if cut.syncs {
            words.splice(0..0, ["sync", "--json", "--delete", MEANT].map(OsString::from));
        } else {
            words.splice(0..0, ["copy".into(), "--json".into()]);
            words.push("-T".into());
        }
        words.extend([source.clone().into_os_string(), copy.clone().into_os_string()]);
        let delay = draw_delay(&mut rng, ground.whole_run(device.file_system()));
        let dmover = Dmover::new(&options.program)?;
        let (bystander, commits_before_the_cut) = (rng.random_bool(0.5), rng.random_bool(0.7));
        let syncs = cut.syncs;
        Ok(Self {
            dmover,
            words,
            source,
            copy,
            olds,
            delay,
            bystander,
            commits_before_the_cut,
            syncs,
        })
    }

    fn tell(&self) -> String {
        format!("cut after {:?}, {:?}", self.delay, self.words)
    }

    /// What failed, and how long the copy took if the cut came too late to disturb it.
    fn run(
        &self,
        device: PowerCutDevice,
        report: &mut LaneReport,
    ) -> Result<(Option<Duration>, Vec<String>)> {
        let stop = AtomicBool::new(false);
        let took = std::thread::scope(|scope| {
            let path = device.path().join("bystander");
            let commits = self.bystander.then(|| {
                let stop = &stop;
                scope.spawn(move || commit_until(stop, &path))
            });
            let took = self.copy_and_cut(&device, report);
            stop.store(true, Ordering::Relaxed);
            if let Some(commits) = commits {
                // It ends with an error once the power is cut.
                let _ = commits.join();
            }
            took
        })?;
        report.add("cuts", 1);
        report.add("cuts_during_the_copy", u64::from(took.is_none()));
        let device = device.recover()?;
        // Whoever goes on with a journal compares what it does not call done, whatever it looks like.
        let mut failures = if self.syncs { Vec::new() } else { self.after_the_cut()? };
        failures.extend(self.again(report)?);
        drop(device);
        Ok((took, failures))
    }

    fn copy_and_cut(
        &self,
        device: &PowerCutDevice,
        report: &mut LaneReport,
    ) -> Result<Option<Duration>> {
        let mut running = self.dmover.start(&self.words)?;
        let deadline = Instant::now() + self.delay;
        let (started, mut took) = (Instant::now(), None);
        while Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
            if took.is_none() && running.has_ended()? {
                took = Some(started.elapsed());
            }
        }
        if self.commits_before_the_cut {
            commit(&device.path().join("last-commit"))?;
        }
        let before = self.syncs.then(|| Snapshot::take(&self.dmover)).transpose()?;
        device.cut_power()?;
        if took.is_none() {
            // It meets nothing but errors now, and holds the dead file system.
            running.kill()?;
            before.map(Snapshot::put_back).transpose()?;
            return Ok(None);
        }
        let run = running.finish()?;
        ensure!(run.code() == Some(0), "{}", run.tell());
        report.add("cuts_after_the_end", 1);
        Ok(took)
    }

    fn after_the_cut(&self) -> Result<Vec<String>> {
        let mut failures = lying_files(&self.source, &self.copy).context("look for lies")?;
        failures.extend(torn_files(&self.source, &self.copy, &self.olds)?);
        Ok(failures.into_iter().map(|failure| format!("after the cut: {failure}")).collect())
    }

    fn again(&self, report: &mut LaneReport) -> Result<Vec<String>> {
        let run = self.dmover.run(&self.words)?;
        let mut failures = Vec::new();
        if run.code() != Some(0) {
            failures.push(format!("ended with {:?}; said {}", run.code(), run.said()?.tell()));
        }
        let mut left = leftovers(&self.copy)?;
        let differences = compare(&self.source, &self.copy, &CompareOptions::default())?;
        let mut differences: Vec<String> = differences.iter().map(ToString::to_string).collect();
        if self.syncs && !left.is_empty() {
            // A temporary of which the journal of before knows and the disk has another: the next pass removes it.
            report.add("temporaries_left_to_the_next_pass", left.len() as u64);
            let is_left =
                |line: &String| left.iter().any(|path| line.contains(&*path.to_string_lossy()));
            differences.retain(|line| !is_left(line));
            self.dmover.run(&self.words)?;
            left = leftovers(&self.copy)?;
        }
        failures.extend(differences);
        failures.extend(left.iter().map(|path| format!("left over: {}", path.display())));
        Ok(failures.into_iter().map(|failure| format!("second run: {failure}")).collect())
    }
}

/// The databases of a job as they were at a moment before the cut.
struct Snapshot {
    directory: TempDir,
    /// Each with its place.
    databases: Vec<(PathBuf, PathBuf)>,
}

impl Snapshot {
    fn take(dmover: &Dmover) -> Result<Self> {
        let directory = tempfile::tempdir_in(base_directory()?)?;
        let mut databases = Vec::new();
        let jobs = dmover.state_directory().join("jobs");
        let job = std::fs::read_dir(jobs).ok().and_then(|mut jobs| jobs.next()).transpose()?;
        for name in ["journal.sqlite", "catalog.sqlite"] {
            let Some(path) = job.as_ref().map(|job| job.path().join(name)) else { continue };
            let copy = directory.path().join(name);
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
            // It may not have come so far.
            let Ok(database) = Connection::open_with_flags(&path, flags) else { continue };
            database.busy_timeout(Duration::from_secs(10))?;
            let words = copy.to_str().context("a plain path")?;
            let has_tables: i64 =
                database.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
            if has_tables > 0 {
                database.execute("VACUUM INTO ?1", [words])?;
                databases.push((path, copy));
            }
        }
        Ok(Self { directory, databases })
    }

    fn put_back(self) -> Result<()> {
        for (path, copy) in &self.databases {
            for log in ["-wal", "-shm"] {
                let mut log_path = path.clone().into_os_string();
                log_path.push(log);
                std::fs::remove_file(log_path).ok();
            }
            std::fs::copy(copy, path)?;
        }
        Ok(self.directory.close()?)
    }
}

/// Mostly during the copy; now and then some time after its end, when half of it is on the disk.
fn draw_delay(rng: &mut ChaCha8Rng, whole_run: Duration) -> Duration {
    if rng.random_bool(0.15) {
        return whole_run + Duration::from_millis(rng.random_range(0..1500));
    }
    whole_run.mul_f64(rng.random_range(0.05..1.1))
}

fn commit(path: &Path) -> Result<()> {
    Ok(File::create(path)?.sync_all()?)
}

fn commit_until(stop: &AtomicBool, path: &Path) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        commit(path)?;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn sync_file_system(path: &Path) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(path, flags, Mode::empty())?;
    Ok(rustix::fs::syncfs(root)?)
}
