//! The job's numbers of file systems.
use dmover_model::{FileSystemName, MountId};

/// Knows the number that a job uses for a file system. Movers in other processes ask their coordinator.
pub trait VolumeNumbers: Send + Sync {
    /// The number of a file system. `None`: it is not mounted where the coordinator runs, or no answer came.
    fn number(&self, name: FileSystemName) -> Option<MountId>;
}
