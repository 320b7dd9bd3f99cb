//! What a job works on beside its roots: the content of a list file, or what another part of the program supplies.
use dmover_journal::FailedList;
use dmover_model::{ChangedPlace, PathBytes, RangeCopy, Record, SumItem, TreePath};
use std::sync::Arc;

/// Source, destination and ranges of one line of a batch list.
pub type Pair = (PathBytes, PathBytes, Option<RangeCopy>);

/// The content of a list file.
#[derive(Debug, Default)]
pub enum JobList {
    /// There is no list.
    #[default]
    None,
    /// Paths below the source.
    Paths(Vec<TreePath>),
    /// Paths below the source that failed in the last pass of this job.
    Failed(Arc<FailedList>),
    /// Paths of the source that a change feed has reported.
    Changed(Arc<[ChangedPlace]>),
    /// Pairs of source and destination.
    Pairs(Vec<Pair>),
    /// Files to hash.
    Sums(Arc<dyn SumSupply>),
    /// Entries of a manifest to compare the destination with.
    Records(Arc<dyn RecordSupply>),
}

/// Supplies the records of a manifest, in order.
pub trait RecordSupply: std::fmt::Debug + Send + Sync {
    /// The next records, at most `most`; empty if there are no more.
    fn next(&self, most: usize) -> Vec<Record>;
    /// Whether these were all records of the manifest, so that any other entry is extra.
    fn is_whole(&self) -> bool;
}

/// Supplies the files of a list of any length, in order.
pub trait SumSupply: std::fmt::Debug + Send + Sync {
    /// The next files, at most `most`; empty if there are no more. `None`: none are available yet; ask again.
    fn next(&self, most: usize) -> Option<Vec<SumItem>>;
}
