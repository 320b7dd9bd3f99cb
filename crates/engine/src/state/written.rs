//! Records what a job has written and what of it is on storage: after a power cut the next run compares the rest.
//!
//! A run that does not flush its writes stores a record before it begins: the boot of the kernel, the mounts that it
//! writes to, and since when nothing was flushed. While it runs, everything is flushed at intervals, and the record is
//! updated. How the run ended is in a file of its own, which is not flushed: without it less is known, and more files
//! are checked.
use dmover_model::{JobId, Operation, Overwrite, PathBytes, Selection, Side, Verb};
use dmover_observe::Counter;
use dmover_plan::overlap::parse_mountinfo;
use dmover_sys::{Errno, file, mount, path, process, stat};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::DirEntry;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::StateDirectory;
use super::flushes::{Failure, Flushes};
use crate::context::Engine;
use crate::control::Control;
use crate::driver::{Job, JobList};
use crate::error::{Fatal, entry_error};
use crate::flush::Flusher;
use crate::journal::now_ms;
use crate::mutex::lock;
use crate::storage::Trust;

const BEGUN: &str = "written.json";
const ENDED: &str = "written-end.json";
/// The interval of flushes, and its least ratio to the duration of the last flush.
const FLUSH_EVERY: Duration = Duration::from_secs(30);
const FLUSH_SHARE: u32 = 20;
/// Data that the kernel has had for this long is mostly on storage, so that a flush costs nothing.
const WRITTEN_BACK_MS: i64 = 60_000;

/// A smaller clock correction may go unnoticed.
const CLOCK_STEP_MS: i64 = 3000;

/// A run that wrote nothing but checked this many files flushes at the end, so that the next run need not check them
/// again.
const ASKED_MIN: u64 = 500;

/// A directory, and the mount through which it was reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    path: PathBytes,
    device: u64,
    /// `None`: the kernel has no mount id that is never reused.
    mount: Option<u64>,
}

impl Place {
    fn is_same_mount(&self, other: &Self) -> bool {
        self.mount.is_some() && (self.device, self.mount) == (other.device, other.mount)
    }

    fn meets(&self, other: &Self) -> bool {
        let (own, other) = (self.path.to_path(), other.path.to_path());
        own.starts_with(&other) || other.starts_with(&own)
    }
}

/// Everything in a selection was scanned, and changes before this time are on storage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Whole {
    before_ms: i64,
    selection: String,
}

/// The record on storage before a run writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Begun {
    run: u64,
    boot: String,
    places: Vec<Place>,
    /// The directories have been mounted since then.
    mounted_ms: i64,
    /// Writes since then were not flushed.
    unflushed_ms: Option<i64>,
    /// Everything was flushed at this time.
    flushed_ms: Option<i64>,
    /// Writes of runs since then may have been lost.
    cut_ms: Option<i64>,
    /// The selections of those runs.
    cut_selection: String,
    whole: Option<Whole>,
    selection: String,
    updated_ms: i64,
    /// A flush is in progress or has failed. The kernel reports a failure once, and the waiting process may be killed.
    #[serde(default)]
    is_flushing: bool,
    /// The end of the run is recorded.
    #[serde(skip)]
    has_ended: bool,
}

/// How a run has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Ended {
    run: u64,
    /// It has scanned everything of its selection without failure.
    is_complete: bool,
    at_ms: i64,
}

impl Begun {
    /// The records of earlier runs in a job's directory.
    fn read(directory: &Path) -> Option<Self> {
        let mut begun: Self = read(&directory.join(BEGUN))?;
        let ended: Option<Ended> = read(&directory.join(ENDED));
        if let Some(ended) = ended.filter(|ended| ended.run == begun.run) {
            begun.updated_ms = begun.updated_ms.max(ended.at_ms);
            begun.has_ended = true;
            if ended.is_complete {
                begun.complete();
            }
        }
        if begun.is_flushing {
            begun.doubt_unflushed();
        }
        Some(begun)
    }

    /// Records that everything was scanned.
    fn complete(&mut self) {
        if self.selection == everything() || self.selection == self.cut_selection {
            self.cut_ms = None;
        }
        if let Some(before_ms) = self.flushed_ms {
            self.whole = Some(Whole { before_ms, selection: self.selection.clone() });
        }
    }

    /// Records that unflushed writes may be lost.
    fn doubt_unflushed(&mut self) {
        self.cut_ms = [self.cut_ms, self.unflushed_ms].into_iter().flatten().min();
    }

    /// Whether what others wrote to these directories is still in memory or on storage.
    fn is_alive(&self, boot: &str, places: &[Place]) -> bool {
        let concerned = self.places.iter().filter(|own| places.iter().any(|p| p.meets(own)));
        !boot.is_empty()
            && self.boot == boot
            && concerned.into_iter().all(|own| places.iter().any(|p| p.is_same_mount(own)))
    }

    /// Since when writes of runs may have been lost. `failures`: failed flushes, whichever job received the error.
    fn cut_since(&self, is_alive: bool, failures: &[Failure]) -> Option<i64> {
        let has_failed = |since: i64| {
            let mut devices = self.places.iter().map(|place| place.device);
            devices.any(|device| failures.iter().any(|one| one.concerns(device, since)))
        };
        let unflushed = self.unflushed_ms.filter(|since| !is_alive || has_failed(*since));
        [self.cut_ms, unflushed].into_iter().flatten().min()
    }

    /// The combined selection of the runs whose writes may have been lost.
    fn cut_selection(&self) -> String {
        if self.cut_ms.is_none() || self.cut_selection == self.selection {
            return self.selection.clone();
        }
        everything()
    }

    fn knows_mounts_of(&self, places: &[Place]) -> bool {
        places.iter().all(|place| self.places.iter().any(|own| own.is_same_mount(place)))
    }
}

/// The record of a run.
#[derive(Debug)]
pub(crate) struct Written {
    /// Where it is stored; `None`: nowhere.
    directory: Option<PathBuf>,
    begun: Arc<Mutex<Begun>>,
    volumes: Arc<Flushes>,
    /// The run flushes everything that it writes.
    flushes: bool,
    /// The previous run was on the same mounts.
    goes_on: bool,
    trust: Trust,
}

/// Flushes everything at intervals until it is dropped. A flush in progress is not waited for then: a disk that hangs
/// must not block a stopped job.
#[derive(Debug)]
pub(crate) struct Flushing {
    _until: Sender<()>,
}

impl Written {
    /// Determines what is known about the destination, and records that it is written to.
    pub fn begin(job: &Job, id: &JobId, targets: &[PathBuf]) -> Result<Self, Fatal> {
        let spec = &job.spec;
        let now = now_ms();
        let flushes = spec.verb == Verb::Sync || spec.policy.fsync;
        let boot = mount::boot_id();
        let mut volumes = Flushes::new(job.state.as_ref(), &boot);
        let places = if spec.verb.fills() { places_of(targets, &mut volumes) } else { Vec::new() };
        let failures = volumes.failures();
        let volumes = Arc::new(volumes);
        let selection = serde_json::to_string(&spec.selection).unwrap_or_default();
        let directory = job.state.as_ref().map(|state| state.of_job(id));
        let before = directory.as_deref().and_then(Begun::read);
        let is_alive = before.as_ref().is_some_and(|before| before.is_alive(&boot, &places));
        let others = job.state.as_ref().map(|state| others(state, id, places.len() == 1));
        let others = others.unwrap_or_default();
        let others = others
            .iter()
            .filter(|one| one.places.iter().any(|p| places.iter().any(|o| o.meets(p))));
        let selects = |whole: &&Whole| [everything(), selection.clone()].contains(&whole.selection);
        let whole = before.as_ref().and_then(|before| before.whole.as_ref()).filter(selects);
        // Times of a clock that was set back since say nothing of what came first.
        let set_back = before.as_ref().is_some_and(|one| one.updated_ms > now + CLOCK_STEP_MS);
        let whole = whole.filter(|_| !set_back);
        let whole_before_ms = whole.map(|whole| whole.before_ms);
        // What ended before that was looked at.
        let is_over = |one: &Begun| {
            one.has_ended && whole_before_ms.is_some_and(|before| one.updated_ms < before)
        };
        let (mut cut_ms, mut mounted_ms) = (set_back.then_some(0), now);
        for (one, is_alive) in others
            .map(|other| (other, other.is_alive(&boot, &places)))
            .filter(|(other, is_alive)| *is_alive || !is_over(other))
            .chain(before.iter().map(|before| (before, is_alive)))
        {
            cut_ms = [cut_ms, one.cut_since(is_alive, &failures)].into_iter().flatten().min();
            if is_alive && one.knows_mounts_of(&places) {
                mounted_ms = mounted_ms.min(one.mounted_ms);
            }
        }
        let mut begun = Begun {
            run: process::random_u64(),
            boot,
            places,
            mounted_ms,
            unflushed_ms: (!flushes).then_some(now),
            flushed_ms: None,
            cut_ms,
            cut_selection: before.as_ref().map(Begun::cut_selection).unwrap_or_default(),
            whole: before.as_ref().and_then(|before| before.whole.clone()).filter(|_| !set_back),
            selection,
            updated_ms: now,
            is_flushing: false,
            has_ended: false,
        };
        let may_lose = !begun.places.is_empty() || (spec.verb.fills() && targets.is_empty());
        let kept = directory.filter(|_| !begun.places.is_empty() && !spec.policy.dry_run);
        let fail = |path: PathBuf| {
            move |error: std::io::Error| Fatal::Ledger { path, reason: error.to_string() }
        };
        if let Some(directory) = kept.as_ref().filter(|_| spec.verb != Verb::Sync) {
            let flush = |before: &Begun| {
                if is_alive && before.unflushed_ms.is_some() {
                    let before = Begun { is_flushing: true, ..before.clone() };
                    put(directory, BEGUN, &before, false).map_err(fail(directory.join(BEGUN)))?;
                }
                Ok(volumes.flush_unless_stopped(&job.control))
            };
            begun.settle(before.as_ref(), (is_alive, flushes), flush)?;
        }
        let trust = Trust {
            may_lose,
            whole_before_ms,
            cut_since_ms: begun.cut_ms,
            mounted_since_ms: Some(begun.mounted_ms).filter(|_| !begun.places.is_empty()),
        };
        if let Some(since) = begun.cut_ms {
            tracing::info!(
                since,
                "comparing files written since then, because the last run may not have flushed \
                them"
            );
        }
        if let Some(directory) = kept.as_ref().filter(|_| spec.verb != Verb::Sync) {
            put(directory, BEGUN, &begun, true).map_err(fail(directory.join(BEGUN)))?;
        }
        let begun = Arc::new(Mutex::new(begun));
        Ok(Self { directory: kept, begun, volumes, flushes, goes_on: is_alive, trust })
    }

    /// What is known about files of the destination.
    pub fn trust(&self) -> Trust {
        self.trust.clone()
    }

    /// Flushes the writes of the run at intervals. Not needed if they are flushed in any case.
    pub fn flush_now_and_then(&self, engine: &Arc<Engine>) -> Option<Flushing> {
        let directory = self.directory.clone().filter(|_| !self.flushes && !engine.is_elsewhere)?;
        let (engine, begun) = (Arc::clone(engine), Arc::clone(&self.begun));
        let volumes = Arc::clone(&self.volumes);
        let (stop, stopped) = channel::<()>();
        let work = move || {
            let mut pause = FLUSH_EVERY;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let (begin, at) = (Instant::now(), now_ms());
                let mut known = lock(&begun).clone();
                known.is_flushing = true;
                if let Err(error) = put(&directory, BEGUN, &known, false) {
                    tracing::warn!(%error, "cannot record the start of a flush");
                    continue;
                }
                if let Err(error) = volumes.flush() {
                    // The next run compares what was written since the last flush.
                    if let Err(error) = put(&directory, BEGUN, &known, true) {
                        tracing::warn!(%error, "cannot record a failed flush");
                    }
                    let path = engine.spec.destination.clone();
                    let (side, operation) = (Side::Destination, Operation::Sync);
                    engine.error(entry_error(side, operation, path, error));
                    return;
                }
                (known.unflushed_ms, known.flushed_ms, known.updated_ms) = (Some(at), Some(at), at);
                known.is_flushing = false;
                if let Err(error) = put(&directory, BEGUN, &known, true) {
                    tracing::warn!(%error, "cannot record a flush");
                } else {
                    *lock(&begun) = known;
                }
                pause = FLUSH_EVERY.max(begin.elapsed() * FLUSH_SHARE);
            }
        };
        let thread = std::thread::Builder::new().name("flush".into()).spawn(work);
        match thread {
            Ok(_) => Some(Flushing { _until: stop }),
            Err(error) => {
                tracing::warn!(%error, "cannot start the flush thread; nothing is flushed while the job runs");
                None
            }
        }
    }

    /// Flushes the writes of earlier runs and other jobs before a pass is recorded as complete. Records failed flushes
    /// during the job. `is_whole`: nothing has failed so far.
    pub fn flush_last(&self, engine: &Engine, is_whole: bool) {
        let failed = engine.flusher.as_ref().map(Flusher::failed).unwrap_or_default();
        let devices = failed.into_iter().filter_map(|mount| engine.mounts.device(mount));
        self.volumes.note(&devices.collect::<Vec<_>>());
        let is_pass = engine.spec.verb == Verb::Sync && self.directory.is_some();
        if !is_pass || !is_whole || engine.control.is_stopping() {
            return;
        }
        let mut begun = lock(&self.begun);
        let has_written = engine.counters.get(Counter::FilesCopied) > 0;
        if !has_written && self.goes_on && begun.whole.is_some() {
            return;
        }
        let at_ms = now_ms();
        match self.volumes.flush_unless_stopped(&engine.control) {
            Ok(()) => begun.flushed_ms = Some(at_ms),
            Err(Errno::INTR) => {}
            Err(error) => {
                let path = engine.spec.destination.clone();
                engine.error(entry_error(Side::Destination, Operation::Sync, path, error));
            }
        }
    }

    /// Records the end of the run.
    pub fn end(&self, job: &Job, engine: &Engine, is_complete: bool) {
        let Some(directory) = &self.directory else { return };
        let mut begun = lock(&self.begun).clone();
        let (spec, at_ms) = (&job.spec, now_ms());
        let looks = matches!(spec.policy.overwrite, Overwrite::Changed | Overwrite::Always);
        let ages = spec.selection.ages_ms != [None; 2];
        let is_complete = is_complete && looks && !ages && matches!(job.list, JobList::None);
        let put = if spec.verb == Verb::Sync {
            if !is_complete {
                return;
            }
            begun.complete();
            begun.updated_ms = at_ms;
            put(directory, BEGUN, &begun, false)
        } else {
            let has_asked = engine.files_asked.load(Ordering::Relaxed) >= ASKED_MIN;
            let has_written = engine.counters.get(Counter::FilesCopied) > 0;
            if is_complete && has_asked && !has_written && begun.flushed_ms.is_none() {
                let settled =
                    begun.settle_asked((&self.volumes, &engine.control), directory, at_ms);
                if let Err(error) = settled {
                    tracing::warn!(%error, "cannot record a flush");
                }
            }
            put(directory, ENDED, &Ended { run: begun.run, is_complete, at_ms }, false)
        };
        if let Err(error) = put {
            tracing::warn!(%error, "cannot record how the run ended");
        }
    }
}

impl Begun {
    /// Flushes the writes of others once, after everything was scanned and nothing was written.
    fn settle_asked(
        &mut self,
        (volumes, control): (&Arc<Flushes>, &Control),
        directory: &Path,
        at_ms: i64,
    ) -> std::io::Result<()> {
        self.is_flushing = true;
        put(directory, BEGUN, self, false)?;
        match volumes.flush_unless_stopped(control) {
            Ok(()) => {
                self.is_flushing = false;
                (self.flushed_ms, self.updated_ms) = (Some(at_ms), at_ms);
                self.unflushed_ms = self.unflushed_ms.map(|_| at_ms);
            }
            Err(error) => tracing::warn!(?error, "cannot flush earlier writes"),
        }
        put(directory, BEGUN, self, true)
    }

    /// Takes over unflushed writes of the previous run, unless a flush costs nothing now.
    fn settle(
        &mut self,
        before: Option<&Self>,
        (is_alive, flushes): (bool, bool),
        flush: impl FnOnce(&Self) -> Result<Result<(), Errno>, Fatal>,
    ) -> Result<(), Fatal> {
        let Some(before) = before else { return Ok(()) };
        let left = before.unflushed_ms.filter(|_| is_alive);
        let now = self.updated_ms;
        let is_cheap = !is_alive || now - before.updated_ms >= WRITTEN_BACK_MS;
        if is_cheap {
            match flush(before)? {
                Ok(()) => {
                    self.flushed_ms = Some(now);
                    return Ok(());
                }
                // The kernel reports it once: what the run before has written may not be on storage, and is compared.
                Err(error) => {
                    tracing::warn!(
                        ?error,
                        "cannot flush what an earlier run wrote; this run compares it"
                    );
                    self.cut_ms = [self.cut_ms, before.unflushed_ms].into_iter().flatten().min();
                }
            }
        }
        if is_alive {
            self.flushed_ms = before.flushed_ms;
        }
        if let Some(left) = left {
            let own = self.unflushed_ms.filter(|_| !flushes).unwrap_or(left);
            self.unflushed_ms = Some(own.min(left));
        }
        Ok(())
    }
}

/// The selection of everything.
fn everything() -> String {
    serde_json::to_string(&Selection::default()).unwrap_or_default()
}

/// Records of other jobs in this state directory, without those that wrote to another file system at the same path.
fn others(state: &StateDirectory, own: &JobId, has_one_place: bool) -> Vec<Begun> {
    let volumes = state.volumes();
    let volume = volumes.get(own).filter(|_| has_one_place);
    let jobs = std::fs::read_dir(state.path.join("jobs")).into_iter().flatten().flatten();
    let others = jobs.filter(|job| job.file_name() != own.0.as_str());
    let is_here = |name: &OsStr, one: &Begun| {
        let theirs = volumes.get(&JobId(name.to_string_lossy().into_owned()));
        let theirs = theirs.filter(|_| one.places.len() == 1);
        !theirs.zip(volume).is_some_and(|(theirs, own)| theirs.differs(own))
    };
    let read =
        |job: DirEntry| Begun::read(&job.path()).filter(|one| is_here(&job.file_name(), one));
    others.filter_map(read).collect()
}

/// Directories that are written to, with the mounts below them, as far as a power cut may lose data there.
fn places_of(targets: &[PathBuf], volumes: &mut Flushes) -> Vec<Place> {
    // Several sources go into one directory.
    let above: BTreeSet<&Path> = match targets {
        [one] => BTreeSet::from([one.as_path()]),
        many => many.iter().filter_map(|target| target.parent()).collect(),
    };
    let mounts = parse_mountinfo(&mount::mountinfo());
    let mut places: Vec<Place> = above.iter().filter_map(|path| place_of(path, volumes)).collect();
    for line in mounts {
        let point = &line.mount_point;
        let is_below = above.iter().any(|path| point.starts_with(path) && point != path);
        if is_below && may_lose(&line.file_system) {
            places.extend(place_of(point, volumes));
        }
    }
    places
}

fn place_of(target: &Path, volumes: &mut Flushes) -> Option<Place> {
    let directory = target.ancestors().find_map(|above| path::open_directory(above).ok())?;
    let magic = stat::file_system(&directory).ok()?.magic;
    let known = stat::file_system_name(magic);
    if stat::is_pseudo(known) || !known.is_none_or(may_lose) {
        return None;
    }
    let device = stat::stat_fd(&directory).ok()?.device;
    let mount = stat::mount_number(&directory);
    volumes.hold(device, directory);
    Some(Place { path: PathBytes::from(target.as_os_str()), device, mount })
}

/// Whether data of a file system may stay in the memory of this host for a while. After close(2), a file server is
/// responsible for its data.
pub(super) fn may_lose(file_system: &str) -> bool {
    let remote = ["nfs", "fuse", "cifs", "smb", "lustre", "gpfs", "ceph", "9p", "virtiofs", "afs"];
    let fleeting = ["tmpfs", "ramfs", "proc", "sysfs", "devtmpfs", "cgroup", "autofs", "bpf"];
    !remote.iter().chain(&fleeting).any(|name| file_system.starts_with(name))
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Replaces a file atomically. `durable`: it is on storage afterwards, with the directories above it.
fn put(directory: &Path, name: &str, value: &impl Serialize, durable: bool) -> std::io::Result<()> {
    /// The job's directory, the directory of jobs, the state directory and its parent.
    const LEVELS: usize = 4;
    let temporary = directory.join(format!("{name}.new"));
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    serde_json::to_writer(&mut file, value)?;
    file.write_all(b"\n")?;
    if durable {
        file.sync_all()?;
    }
    let is_new = std::fs::symlink_metadata(directory.join(name)).is_err();
    std::fs::rename(temporary, directory.join(name))?;
    if durable {
        let directory = std::path::absolute(directory)?;
        for above in directory.ancestors().take(if is_new { LEVELS } else { 1 }) {
            // An unreadable directory was not created by this program. Not every file system can flush directories.
            let flushed = path::open_directory(above).and_then(file::sync_all);
            if let Err(error) = flushed {
                tracing::debug!(%error, directory = %above.display(), "cannot flush a directory");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(path: &str, mount: impl Into<Option<u64>>) -> Begun {
        let path = PathBytes::from(OsStr::new(path));
        Begun {
            run: 1,
            boot: "a".into(),
            places: vec![Place { path, device: 1, mount: mount.into() }],
            mounted_ms: 1000,
            unflushed_ms: Some(2000),
            flushed_ms: None,
            cut_ms: None,
            cut_selection: String::new(),
            whole: None,
            selection: "all".into(),
            updated_ms: 3000,
            is_flushing: false,
            has_ended: false,
        }
    }

    #[test]
    fn what_was_not_flushed_is_cut_off_by_another_boot_or_mount() {
        let one = begun("/d", 7);
        assert!(one.is_alive("a", &begun("/d", 7).places));
        assert!(one.is_alive("a", &begun("/d/below", 7).places));
        assert!(!one.is_alive("b", &begun("/d", 7).places), "booted since");
        assert!(!one.is_alive("a", &begun("/d", 8).places), "mounted since");
        assert!(!one.is_alive("", &begun("/d", 7).places), "nobody knows");
        assert!(!begun("/d", None).is_alive("a", &begun("/d", None).places), "an old kernel");
        assert_eq!(one.cut_since(true, &[]), None);
        assert_eq!(one.cut_since(false, &[]), Some(2000));
        let cut = Begun { cut_ms: Some(500), ..one };
        assert_eq!(
            cut.cut_since(true, &[]),
            Some(500),
            "as long as nobody has looked at everything"
        );
    }

    #[test]
    fn a_run_that_is_over_vouches_only_for_what_was_flushed() {
        let cut_selection = "all".into();
        let mut one = Begun { cut_ms: Some(500), cut_selection, ..begun("/d", 7) };
        let mut other = Begun { selection: "part".into(), ..one.clone() };
        other.complete();
        assert_eq!(other.cut_ms, Some(500), "it did not look at everything");
        one.complete();
        assert_eq!((one.cut_ms, &one.whole), (None, &None));
        one.flushed_ms = Some(1500);
        one.complete();
        assert_eq!(one.whole.as_ref().map(|whole| whole.before_ms), Some(1500));
        assert_eq!(one.unflushed_ms, Some(2000), "the rest is still in memory only");
    }

    #[test]
    fn runs_that_follow_each_other_at_once_keep_what_is_not_flushed() {
        let before = begun("/nowhere", 7);
        let mut next = Begun { unflushed_ms: Some(4000), updated_ms: 4000, ..before.clone() };
        next.settle(Some(&before), (true, false), |_| panic!("it is too early")).unwrap();
        assert_eq!(next.unflushed_ms, Some(2000));
        let mut durable = Begun { unflushed_ms: None, updated_ms: 4000, ..before.clone() };
        durable.settle(Some(&before), (true, true), |_| panic!("it is too early")).unwrap();
        assert_eq!(durable.unflushed_ms, Some(2000), "which the run before has left");
    }

    #[test]
    fn a_flush_that_fails_or_was_not_waited_for_leaves_doubts() {
        let before = begun("/nowhere", 7);
        let mut next = Begun { unflushed_ms: Some(90_000), updated_ms: 90_000, ..before.clone() };
        next.settle(Some(&before), (true, false), |_| Ok(Err(Errno::IO))).unwrap();
        assert_eq!(
            (next.cut_ms, next.flushed_ms, next.unflushed_ms),
            (Some(2000), None, Some(2000))
        );
        let directory = tempfile::tempdir().unwrap();
        let flushing = Begun { is_flushing: true, ..before };
        put(directory.path(), BEGUN, &flushing, false).unwrap();
        let ended = Ended { run: 1, is_complete: true, at_ms: 9000 };
        put(directory.path(), ENDED, &ended, false).unwrap();
        assert_eq!(Begun::read(directory.path()).unwrap().cut_ms, Some(2000));
    }

    #[test]
    fn a_record_survives_and_half_a_one_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let one = begun("/d", 7);
        put(directory.path(), BEGUN, &one, true).unwrap();
        assert_eq!(Begun::read(directory.path()), Some(one.clone()));
        let ended = Ended { run: 2, is_complete: true, at_ms: 9000 };
        put(directory.path(), ENDED, &ended, false).unwrap();
        assert_eq!(Begun::read(directory.path()), Some(one.clone()), "that was another run");
        std::fs::write(directory.path().join(ENDED), b"").unwrap();
        assert_eq!(Begun::read(directory.path()), Some(one));
        std::fs::write(directory.path().join(BEGUN), b"\0\0").unwrap();
        assert_eq!(Begun::read(directory.path()), None);
    }
}
