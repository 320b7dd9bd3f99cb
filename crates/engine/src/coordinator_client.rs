//! The connection of a remote mover to its coordinator.
use dmover_model::{Answer, CoordinatorRequest, FileSystemName, MountId};
use dmover_tree::VolumeNumbers;
use std::sync::Arc;

/// The connection to a remote coordinator.
pub trait CoordinatorClient: Send + Sync {
    /// Asks a question and waits for the answer. `None`: no answer, and all leases are lost.
    fn ask(&self, question: CoordinatorRequest) -> Option<Answer>;
}

/// The numbers that a remote coordinator gives to file systems.
pub(crate) struct CoordinatorNumbers(pub Arc<dyn CoordinatorClient>);

impl VolumeNumbers for CoordinatorNumbers {
    fn number(&self, name: FileSystemName) -> Option<MountId> {
        match self.0.ask(CoordinatorRequest::Mount(name)) {
            Some(Answer::Mount(id)) => id,
            _ => None,
        }
    }
}
