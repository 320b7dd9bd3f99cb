//! Power cuts at any point of a recording of what arrived at the disk, with default options everywhere. After each the same
//! command runs once more: if it ends with 0, nothing differs.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use rand::{Rng, RngCore};
use rand_chacha::ChaCha8Rng;
use rustix::fs::{Mode, OFlags};
use tempfile::TempDir;

use super::check::{leftovers, lying_files};
use super::run::Dmover;
use super::{LaneOptions, LaneReport, rng};
use crate::compare::{CompareOptions, compare};
use crate::image::{FileSystem, base_directory};
use crate::recorder::RecordedDevice;
use crate::tree;

const SIZE: u64 = 200 << 20;
/// Cuts of one recording.
const CUTS: usize = 10;
const FILE_SYSTEMS: [FileSystem; 3] = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs];
/// Small files, and files of some hundred KiB.
const FILES: [(u64, u64); 2] = [(1200, 24 << 10), (40, 1 << 20)];

/// A program whose writes are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// `copy` with an engine.
    Copy(&'static str),
    /// `sync` whose state is lost by the cut.
    Sync,
    /// rsync, which looks at sizes and times only: the control.
    Rsync,
}

const WAYS: [Way; 5] =
    [Way::Copy("auto"), Way::Copy("buffered"), Way::Copy("uring"), Way::Sync, Way::Copy("direct")];

/// Where the program keeps its state, and what the cut does to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// On another disk, which the cut spares.
    Elsewhere,
    /// On the disk that is cut.
    OnTheDisk,
    /// Nothing is left of it.
    Lost,
}

const STATES: [State; 3] = [State::Elsewhere, State::OnTheDisk, State::Lost];

/// Each file system with each way in turn.
pub fn recorded(options: &LaneOptions) -> Result<LaneReport> {
    recorded_times(options, CUTS)
}

/// The same with another number of cuts for each recording.
pub fn recorded_times(options: &LaneOptions, cuts: usize) -> Result<LaneReport> {
    let mut report = LaneReport::new("recorded");
    let source = Source::make()?;
    report.each_seed(options, |seed, report| {
        let seed_index = seed as usize;
        let file_system = FILE_SYSTEMS[seed_index % FILE_SYSTEMS.len()];
        let way = WAYS[seed_index / FILE_SYSTEMS.len() % WAYS.len()];
        let experiment = Experiment { options, source: &source, file_system, way, cuts };
        experiment.run(seed, report)
    });
    Ok(report)
}

/// The control: how many cuts of ext4 it took until rsync has left a file that differs. `None`: they left none, or nothing
/// can be recorded here.
pub fn recorded_rsync(options: &LaneOptions) -> Result<Option<u64>> {
    let source = Source::make()?;
    let mut report = LaneReport::default();
    let (file_system, way, cuts) = (FileSystem::Ext4, Way::Rsync, CUTS);
    for seed in options.range() {
        let experiment = Experiment { options, source: &source, file_system, way, cuts };
        if !experiment.run(seed, &mut report)?.is_empty() {
            return Ok(Some(report.count("cuts")));
        }
    }
    Ok(None)
}

/// Whether anything can be recorded here.
pub fn is_possible() -> bool {
    RecordedDevice::create_or_skip("lane recorded", FileSystem::Ext4, SIZE).is_some()
}

/// A source on a file system that is never cut.
struct Source(TempDir);

impl Source {
    fn make() -> Result<Self> {
        let directory =
            tempfile::Builder::new().prefix("recorded-").tempdir_in(base_directory()?)?;
        let mut rng = rng("recorded source", 1);
        for (kind, (count, size)) in FILES.into_iter().enumerate() {
            for number in 0..count {
                let place =
                    directory.path().join("source").join(format!("d{kind}-{}", number / 50));
                std::fs::create_dir_all(&place)?;
                let mut bytes = vec![0; rng.random_range(size / 8..=size) as usize];
                rng.fill_bytes(&mut bytes);
                let file = File::create(place.join(format!("file-{number}")))?;
                file.write_all_at(&bytes, 0)?;
                let past = rng.random_range(1..1 << 30);
                file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(past))?;
            }
        }
        Ok(Self(directory))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("source")
    }
}

struct Experiment<'a> {
    options: &'a LaneOptions,
    source: &'a Source,
    file_system: FileSystem,
    way: Way,
    cuts: usize,
}

/// A recorded run.
struct Take {
    dmover: Dmover,
    words: Vec<OsString>,
    copy: PathBuf,
    state: State,
    /// State of the program during its run and after it, and the events before each.
    kept: Vec<(PathBuf, usize)>,
    /// Events before the end of the program.
    end: usize,
    /// Cuts lie between these.
    range: (usize, usize),
}

impl Experiment<'_> {
    fn run(&self, seed: u64, report: &mut LaneReport) -> Result<Vec<String>> {
        let mut rng = rng("recorded", seed);
        let Some(mut device) =
            RecordedDevice::create_or_skip("lane recorded", self.file_system, SIZE)
        else {
            report.add("skipped", 1);
            return Ok(Vec::new());
        };
        let take = self.record(&mut device, (seed, &mut rng))?;
        let mut points: Vec<usize> =
            (0..self.cuts).map(|_| rng.random_range(take.range.0..=take.range.1)).collect();
        points.sort_unstable();
        let mut failures = Vec::new();
        for (number, events) in points.into_iter().enumerate() {
            device.mount_cut(events, &mut rng).with_context(|| format!("cut at {events}"))?;
            report.add("cuts", 1);
            report.add("cuts_after_the_end", u64::from(events >= take.end));
            let found = self.again(&take, (number, events), report)?;
            let label = format!("{}, {:?}, {:?}", self.file_system, self.way, take.state);
            let when = if events >= take.end { "after" } else { "before" };
            if let Some(first) = found.first() {
                report.add("cuts_that_were_not_mended", 1);
                let count = found.len();
                failures.push(format!(
                    "{label}, cut at event {events}, {when} the end: {count} faults, first: {first}"
                ));
            }
            device.unmount_cut()?;
        }
        Ok(failures)
    }

    /// Runs the program on the recording disk, while others have its journal commit and its data written back.
    fn record(
        &self,
        device: &mut RecordedDevice,
        (seed, rng): (u64, &mut ChaCha8Rng),
    ) -> Result<Take> {
        let dmover = Dmover::new(&self.options.program)?;
        let copy = device.path().join("copy");
        let state = match self.way {
            Way::Copy(_) => STATES[(seed / WAYS.len() as u64 + seed) as usize % STATES.len()],
            Way::Sync | Way::Rsync => State::Lost,
        };
        let state_directory = match state {
            State::OnTheDisk => device.path().join("state"),
            State::Elsewhere | State::Lost => dmover.state_directory(),
        };
        let words = self.words(&copy, &state_directory);
        let mut kept = Vec::new();
        let stop = AtomicBool::new(false);
        let begin = device.events();
        let pauses = [rng.random_range(5..40), rng.random_range(20..200)];
        let linger = Duration::from_millis(rng.random_range(0..800));
        let end = std::thread::scope(|scope| -> Result<usize> {
            let (stop, root) = (&stop, device.path());
            scope.spawn(move || disturb(stop, pauses[0], || commit(&root.join("bystander"))));
            scope.spawn(move || disturb(stop, pauses[1], || write_back(root)));
            let ended = self.run_recorded(device, &dmover, &words, (&state_directory, &mut kept));
            if ended.is_ok() {
                std::thread::sleep(linger);
            }
            stop.store(true, Ordering::Relaxed);
            ended
        })?;
        let last = device.events();
        device.stop()?;
        let first = kept.first().map_or(begin, |(_, events)| (*events).min(end));
        let range = (first, last.max(first));
        Ok(Take { dmover, words, copy, state, kept, end, range })
    }

    fn words(&self, copy: &Path, state: &Path) -> Vec<OsString> {
        let (source, copy) = (self.source.path(), copy.to_owned());
        let words: Vec<String> = match self.way {
            Way::Rsync => {
                let (source, copy) = (source.display(), copy.display());
                return ["-a".into(), format!("{source}/"), format!("{copy}/")]
                    .map(OsString::from)
                    .to_vec();
            }
            Way::Copy(engine) => ["copy", "-T", "--engine", engine].map(str::to_owned).to_vec(),
            Way::Sync => vec!["sync".into()],
        };
        let mut words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        words.extend(["--json".into(), "--state-dir".into(), state.into()]);
        words.extend([source.into_os_string(), copy.into_os_string()]);
        words
    }

    /// Answers how many events there were at the end of the program.
    fn run_recorded(
        &self,
        device: &RecordedDevice,
        dmover: &Dmover,
        words: &[OsString],
        (state, kept): (&Path, &mut Vec<(PathBuf, usize)>),
    ) -> Result<usize> {
        let keep = |number: u32, kept: &mut Vec<_>| -> Result<()> {
            let to = dmover.state_directory().with_extension(format!("kept-{number}"));
            let copied = Command::new("cp").arg("-a").args([state, &to]).output()?;
            ensure!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
            kept.push((to, device.events()));
            Ok(())
        };
        if self.way == Way::Rsync {
            let status = Command::new("rsync").args(words).status()?;
            ensure!(status.success(), "rsync ended with {status}");
            return Ok(device.events());
        }
        let mut running = dmover.start(words)?;
        let begun = device.path().join("copy");
        while !begun.exists() && !running.has_ended()? {
            std::thread::sleep(Duration::from_millis(1));
        }
        if state.exists() {
            // Files come and go below it while it is copied; the second attempt meets a quieter moment.
            keep(1, kept).or_else(|_| keep(2, kept))?;
        }
        let run = running.finish()?;
        let end = device.events();
        ensure!(run.code() == Some(0), "{}", run.tell());
        keep(3, kept)?;
        Ok(end)
    }

    /// Runs the command again after a cut, and answers what is wrong then.
    fn again(
        &self,
        take: &Take,
        (number, events): (usize, usize),
        report: &mut LaneReport,
    ) -> Result<Vec<String>> {
        let source = self.source.path();
        if number % 2 == 0 {
            // Whoever looks has the page cache filled with what is wrong.
            let lying = lying_files(&source, &take.copy)?.len() as u64;
            report.add("files_that_look_complete_and_are_not", lying);
        }
        if self.way == Way::Rsync {
            let status = Command::new("rsync").args(&take.words).status()?;
            ensure!(status.success(), "rsync ended with {status}");
            let differences = compare(&source, &take.copy, &CompareOptions::default())?;
            return Ok(differences.iter().map(ToString::to_string).collect());
        }
        let state = take.dmover.state_directory();
        if state.exists() {
            tree::remove(&state)?;
        }
        if take.state == State::Elsewhere
            && let Some((kept, _)) = take.kept.iter().rfind(|(_, at)| *at <= events)
        {
            let copied = Command::new("cp").arg("-a").args([kept, &state]).output()?;
            ensure!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        }
        let run = if number % 3 == 0 && tells_mounts_apart() {
            // The host went on, and the disk was away for a moment.
            take.dmover.run(&take.words)?
        } else {
            let booted = take.dmover.booted_words();
            take.dmover.start_behind(&booted, &take.words)?.finish()?
        };
        if run.code() != Some(0) {
            return Ok(vec![run.tell()]);
        }
        let mut failures: Vec<String> = compare(&source, &take.copy, &CompareOptions::default())?
            .iter()
            .map(ToString::to_string)
            .collect();
        let left = leftovers(&take.copy)?;
        failures.extend(left.iter().map(|path| format!("left over: {}", path.display())));
        Ok(failures)
    }
}

/// Whether the kernel has numbers of mounts that are not used again (Linux 6.8).
fn tells_mounts_apart() -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(8))
}

fn disturb(stop: &AtomicBool, pause_ms: u64, act: impl Fn() -> Result<()>) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        act()?;
        std::thread::sleep(Duration::from_millis(pause_ms));
    }
    Ok(())
}

/// Has the journal commit whatever is in it.
fn commit(path: &Path) -> Result<()> {
    let file = File::create(path)?;
    file.write_all_at(b"x", 0)?;
    Ok(file.sync_all()?)
}

fn write_back(root: &Path) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::syncfs(rustix::fs::open(root, flags, Mode::empty())?)?)
}
