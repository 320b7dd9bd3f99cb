//! Names that a job gives at the destination, beside those of the entry in progress.

/// Knows the names of other entries that a job brings into the same directory.
pub trait TargetNames {
    /// Whether another entry of the job gets this name.
    fn has(&self, name: &[u8]) -> bool;
}
