//! The connection of a remote mover to its coordinator.
use dmover_model::{Answer, CoordinatorRequest, FileSystemName, MountId};
use dmover_tree::VolumeNumbers;
use std::sync::Arc;

use crate::mover_report::{ReportItem, collect_item};

/// The connection to a remote coordinator.
pub trait CoordinatorClient: Send + Sync {
    /// Asks a question and waits for the answer. `None`: no answer, and all leases are lost.
    fn ask(&self, question: CoordinatorRequest) -> Option<Answer>;
}

/// The coordinator of this process's movers: in this process, or in another one.
#[derive(Clone, Default)]
pub(crate) struct CoordinatorLink(Option<Arc<dyn CoordinatorClient>>);

impl CoordinatorLink {
    /// `client`: the connection to a coordinator in another process.
    pub fn new(client: Option<Arc<dyn CoordinatorClient>>) -> Self {
        Self(client)
    }

    /// Whether the coordinator is in another process.
    pub fn is_remote(&self) -> bool {
        self.0.is_some()
    }

    /// Asks the coordinator, if it is in another process.
    pub fn ask(&self, question: impl FnOnce() -> CoordinatorRequest) -> Option<Answer> {
        self.0.as_ref().and_then(|client| client.ask(question()))
    }

    /// Reports to the coordinator. Returns whether it is remote; otherwise the caller must handle the report.
    pub fn tell(&self, said: impl FnOnce() -> ReportItem) -> bool {
        if self.is_remote() {
            collect_item(said());
        }
        self.is_remote()
    }
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
