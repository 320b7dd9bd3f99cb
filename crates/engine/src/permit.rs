//! The permission to work on a task.

/// Held by a mover while it works on a task. It ends when another mover gets the task.
pub(crate) trait Permit {
    /// Whether the mover still has the task.
    fn holds(&self) -> bool;

    /// Records progress, or a wait that a limit of the user demands: the task is not stalled.
    fn extend(&self);
}
