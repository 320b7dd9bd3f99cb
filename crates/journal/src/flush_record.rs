//! What a job has written and what of it is on storage: after a power cut the next run compares the rest.
//!
//! Two files in the directory of the job. The first one is on storage before the run writes anything. How the run ended
//! is in the second one, which is not flushed: without it less is known, and more files are checked.
use dmover_model::{Fatal, JobId, PathBytes, Selection};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::{DirEntry, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::failed_flushes::FailedFlush;
use crate::state::StateDirectory;

const ENDED: &str = "written-end.json";
/// Data that the kernel has had for this long is mostly on storage, so that a flush costs nothing.
const WRITTEN_BACK_MS: i64 = 60_000;

/// A directory, and the mount through which it was reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenPlace {
    /// Its path.
    pub path: PathBytes,
    /// Its device.
    pub device: u64,
    /// `None`: the kernel has no mount id that is never reused.
    pub mount: Option<u64>,
}

impl WrittenPlace {
    fn is_same_mount(&self, other: &Self) -> bool {
        self.mount.is_some() && (self.device, self.mount) == (other.device, other.mount)
    }

    /// Whether one is in the other.
    pub fn meets(&self, other: &Self) -> bool {
        let (own, other) = (self.path.to_path(), other.path.to_path());
        own.starts_with(&other) || other.starts_with(&own)
    }
}

/// Everything in a selection was scanned, and changes before this time are on storage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenWhole {
    /// That time.
    pub before_ms: i64,
    /// The selection.
    pub selection: String,
}

/// The record on storage before a run writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushRecord {
    /// The run.
    pub run: u64,
    /// The boot of the kernel.
    pub boot: String,
    /// The directories that it writes to.
    pub places: Vec<WrittenPlace>,
    /// The directories have been mounted since then.
    pub mounted_ms: i64,
    /// Writes since then were not flushed.
    pub unflushed_ms: Option<i64>,
    /// Everything was flushed at this time.
    pub flushed_ms: Option<i64>,
    /// Writes of runs since then may have been lost.
    pub cut_ms: Option<i64>,
    /// The selections of those runs.
    pub cut_selection: String,
    /// What was scanned as a whole.
    pub whole: Option<SeenWhole>,
    /// The selection of this run.
    pub selection: String,
    /// When the last flush began, or the run ended.
    pub updated_ms: i64,
    /// A flush is in progress or has failed. The kernel reports a failure once, and the waiting process may be killed.
    #[serde(default)]
    pub is_flushing: bool,
    /// The end of the run is recorded.
    #[serde(skip)]
    pub has_ended: bool,
}

/// How a run has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FlushEnd {
    run: u64,
    /// It has scanned everything of its selection without failure.
    is_complete: bool,
    at_ms: i64,
}

impl FlushRecord {
    /// Its file name in the directory of the job.
    pub const FILE: &str = "written.json";

    /// The records of earlier runs in a job's directory.
    pub fn read(directory: &Path) -> Option<Self> {
        let mut begun: Self = read(&directory.join(FlushRecord::FILE))?;
        let ended: Option<FlushEnd> = read(&directory.join(ENDED));
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

    /// Stores it in a job's directory. `durable`: it is on storage afterwards.
    pub fn save(&self, directory: &Path, durable: bool) -> std::io::Result<()> {
        put(directory, Self::FILE, self, durable)
    }

    /// Stores how the run has ended.
    pub fn save_end(&self, directory: &Path, is_complete: bool, at_ms: i64) -> std::io::Result<()> {
        put(directory, ENDED, &FlushEnd { run: self.run, is_complete, at_ms }, false)
    }

    /// The selection of everything.
    pub fn everything() -> String {
        serde_json::to_string(&Selection::default()).unwrap_or_default()
    }

    /// Records that everything was scanned.
    pub fn complete(&mut self) {
        if self.selection == Self::everything() || self.selection == self.cut_selection {
            self.cut_ms = None;
        }
        if let Some(before_ms) = self.flushed_ms {
            self.whole = Some(SeenWhole { before_ms, selection: self.selection.clone() });
        }
    }

    /// Records that unflushed writes may be lost.
    fn doubt_unflushed(&mut self) {
        self.cut_ms = [self.cut_ms, self.unflushed_ms].into_iter().flatten().min();
    }

    /// Whether what others wrote to these directories is still in memory or on storage.
    pub fn is_alive(&self, boot: &str, places: &[WrittenPlace]) -> bool {
        let concerned = self.places.iter().filter(|own| places.iter().any(|p| p.meets(own)));
        !boot.is_empty()
            && self.boot == boot
            && concerned.into_iter().all(|own| places.iter().any(|p| p.is_same_mount(own)))
    }

    /// Since when writes of runs may have been lost. `failures`: failed flushes, whichever job received the error.
    pub fn cut_since(&self, is_alive: bool, failures: &[FailedFlush]) -> Option<i64> {
        let has_failed = |since: i64| {
            let mut devices = self.places.iter().map(|place| place.device);
            devices.any(|device| failures.iter().any(|one| one.concerns(device, since)))
        };
        let unflushed = self.unflushed_ms.filter(|since| !is_alive || has_failed(*since));
        [self.cut_ms, unflushed].into_iter().flatten().min()
    }

    /// The combined selection of the runs whose writes may have been lost.
    pub fn cut_selection(&self) -> String {
        if self.cut_ms.is_none() || self.cut_selection == self.selection {
            return self.selection.clone();
        }
        Self::everything()
    }

    /// Whether it has the mounts of these directories.
    pub fn knows_mounts_of(&self, places: &[WrittenPlace]) -> bool {
        places.iter().all(|place| self.places.iter().any(|own| own.is_same_mount(place)))
    }

    /// Takes over unflushed writes of the previous run, unless a flush costs nothing now.
    pub fn settle(
        &mut self,
        before: Option<&Self>,
        (is_alive, flushes): (bool, bool),
        flush: impl FnOnce(&Self) -> Result<std::io::Result<()>, Fatal>,
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

/// Records of other jobs in this state directory, without those that wrote to another file system at the same path.
pub fn other_flush_records(
    state: &StateDirectory,
    own: &JobId,
    has_one_place: bool,
) -> Vec<FlushRecord> {
    let volumes = state.volumes().of_all_jobs();
    let volume = volumes.get(own).filter(|_| has_one_place);
    let jobs = std::fs::read_dir(state.path().join("jobs")).into_iter().flatten().flatten();
    let others = jobs.filter(|job| job.file_name() != own.0.as_str());
    let is_here = |name: &OsStr, one: &FlushRecord| {
        let theirs = volumes.get(&JobId(name.to_string_lossy().into_owned()));
        let theirs = theirs.filter(|_| one.places.len() == 1);
        !theirs.zip(volume).is_some_and(|(theirs, own)| theirs.differs(own))
    };
    let read =
        |job: DirEntry| FlushRecord::read(&job.path()).filter(|one| is_here(&job.file_name(), one));
    others.filter_map(read).collect()
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
            let flushed = File::open(above).and_then(|above| above.sync_all());
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

    fn begun(path: &str, mount: impl Into<Option<u64>>) -> FlushRecord {
        let path = PathBytes::from(OsStr::new(path));
        FlushRecord {
            run: 1,
            boot: "a".into(),
            places: vec![WrittenPlace { path, device: 1, mount: mount.into() }],
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
        let cut = FlushRecord { cut_ms: Some(500), ..one };
        assert_eq!(
            cut.cut_since(true, &[]),
            Some(500),
            "as long as nobody has looked at everything"
        );
    }

    #[test]
    fn a_run_that_is_over_vouches_only_for_what_was_flushed() {
        let cut_selection = "all".into();
        let mut one = FlushRecord { cut_ms: Some(500), cut_selection, ..begun("/d", 7) };
        let mut other = FlushRecord { selection: "part".into(), ..one.clone() };
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
        let mut next = FlushRecord { unflushed_ms: Some(4000), updated_ms: 4000, ..before.clone() };
        next.settle(Some(&before), (true, false), |_| panic!("it is too early")).unwrap();
        assert_eq!(next.unflushed_ms, Some(2000));
        let mut durable = FlushRecord { unflushed_ms: None, updated_ms: 4000, ..before.clone() };
        durable.settle(Some(&before), (true, true), |_| panic!("it is too early")).unwrap();
        assert_eq!(durable.unflushed_ms, Some(2000), "which the run before has left");
    }

    #[test]
    fn a_flush_that_fails_or_was_not_waited_for_leaves_doubts() {
        let before = begun("/nowhere", 7);
        let mut next =
            FlushRecord { unflushed_ms: Some(90_000), updated_ms: 90_000, ..before.clone() };
        next.settle(Some(&before), (true, false), |_| Ok(Err(std::io::Error::other("lost"))))
            .unwrap();
        assert_eq!(
            (next.cut_ms, next.flushed_ms, next.unflushed_ms),
            (Some(2000), None, Some(2000))
        );
        let directory = tempfile::tempdir().unwrap();
        let flushing = FlushRecord { is_flushing: true, ..before };
        put(directory.path(), FlushRecord::FILE, &flushing, false).unwrap();
        let ended = FlushEnd { run: 1, is_complete: true, at_ms: 9000 };
        put(directory.path(), ENDED, &ended, false).unwrap();
        assert_eq!(FlushRecord::read(directory.path()).unwrap().cut_ms, Some(2000));
    }

    #[test]
    fn a_record_survives_and_half_a_one_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let one = begun("/d", 7);
        put(directory.path(), FlushRecord::FILE, &one, true).unwrap();
        assert_eq!(FlushRecord::read(directory.path()), Some(one.clone()));
        let ended = FlushEnd { run: 2, is_complete: true, at_ms: 9000 };
        put(directory.path(), ENDED, &ended, false).unwrap();
        assert_eq!(FlushRecord::read(directory.path()), Some(one.clone()), "that was another run");
        std::fs::write(directory.path().join(ENDED), b"").unwrap();
        assert_eq!(FlushRecord::read(directory.path()), Some(one));
        std::fs::write(directory.path().join(FlushRecord::FILE), b"\0\0").unwrap();
        assert_eq!(FlushRecord::read(directory.path()), None);
    }
}
