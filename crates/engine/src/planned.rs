//! An entry with the decision about it, and what came of it.
use dmover_local::digest_tap::Made;
use dmover_local::file::Temporary;
use dmover_model::{EntryRecord, Extended, Metadata};
use dmover_plan::decide::Decision;

/// A record with the decision of `plan` about it.
#[derive(Debug, Clone)]
pub(crate) struct Planned {
    /// The entry.
    pub record: EntryRecord,
    /// The decision.
    pub decision: Decision,
    /// The existing entry at the destination.
    pub existing: Option<Metadata>,
    /// The entry of the previous snapshot, if the destination has none.
    pub base: Option<Based>,
}

/// The result of copying one entry.
#[derive(Debug, Default)]
pub(crate) struct CopyResult {
    pub bytes: u64,
    /// Digests of the content, if requested.
    pub made: Vec<Made>,
    /// The version that was read, which may be later than the one that the scan found.
    pub version: Option<Metadata>,
    /// The attributes for the manifest.
    pub extended: Extended,
    /// The decision that was needed in the end, if it is not the planned one.
    pub instead: Option<Decision>,
    /// The temporary file, if it waits to be renamed.
    pub later: Option<Temporary>,
}

impl CopyResult {
    pub fn bytes(bytes: u64) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// A result that copied nothing, because another decision is needed.
    pub fn otherwise(decision: Decision) -> Self {
        Self { instead: Some(decision), ..Self::default() }
    }
}

/// The entry of the base with the name of a new file.
#[derive(Debug, Clone)]
pub(crate) struct Based {
    /// Its metadata.
    pub metadata: Metadata,
    /// The decision about the file if this entry were at the destination.
    pub decision: Decision,
}

impl Planned {
    /// Whether the entry need not be copied if the base really has its content.
    pub(crate) fn is_in_base(&self) -> bool {
        self.base.as_ref().is_some_and(Based::is_equal)
    }
}

impl Based {
    /// Whether it looks equal to the source.
    pub(crate) fn is_equal(&self) -> bool {
        matches!(self.decision, Decision::Skip | Decision::Inspect | Decision::Compare)
    }
}
