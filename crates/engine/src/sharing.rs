//! What the movers of a job share that creates a snapshot.
use dmover_journal::{SnapshotRecord, SourceObject};
use dmover_local::base::BaseTop;
use dmover_model::{Fatal, Share, Timestamp};
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;

/// The shared state of the movers of a job that creates a snapshot.
#[derive(Debug)]
pub(crate) struct Sharing {
    pub share: Share,
    pub base: Option<Base>,
    /// The record of the new snapshot. A dry run has none.
    pub record: Option<Mutex<SnapshotRecord>>,
    /// Inodes with several names that are not recorded yet.
    pub linked: Mutex<Vec<(u64, SourceObject)>>,
}

/// The snapshot that unchanged files are shared with.
#[derive(Debug)]
pub(crate) struct Base {
    pub top: BaseTop,
    /// It has all changes at the source before this time. The change times of its files say less: each snapshot that
    /// shares a file with it changes them, and so does the removal of one.
    pub begun: Timestamp,
    /// `None`: each of its inodes has one name.
    pub record: Option<Mutex<SnapshotRecord>>,
}

impl Sharing {
    /// Whether there is a snapshot to share files with.
    pub fn has_base(&self) -> bool {
        self.base.is_some()
    }

    /// Records an inode with several names.
    pub fn note(&self, inode: u64, source: SourceObject) {
        lock(&self.linked).push((inode, source));
    }

    /// Whether an inode of the new snapshot is recorded as a copy of another source inode.
    pub fn is_of_another(&self, inode: u64, source: impl FnOnce() -> Option<SourceObject>) -> bool {
        let known = self.record.as_ref().map(|record| lock(record).linked(inode));
        match known {
            Some(Ok(Some(known))) => source().is_none_or(|now| now != known),
            Some(Err(_)) => true,
            Some(Ok(None)) | None => false,
        }
    }

    /// Writes the records; a task must not be reported before.
    pub fn settle(&self) -> Result<(), Fatal> {
        let linked = std::mem::take(&mut *lock(&self.linked));
        match &self.record {
            Some(record) if !linked.is_empty() => lock(record).note(&linked),
            _ => Ok(()),
        }
    }
}
