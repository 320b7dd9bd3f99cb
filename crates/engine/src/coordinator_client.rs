//! The connection of a remote mover to its coordinator.
use dmover_model::{Answer, CoordinatorRequest};

/// The connection to a remote coordinator.
pub trait CoordinatorClient: Send + Sync {
    /// Asks a question and waits for the answer. `None`: no answer, and all leases are lost.
    fn ask(&self, question: CoordinatorRequest) -> Option<Answer>;
}
