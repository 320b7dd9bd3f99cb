//! The permission to work on a task.

/// Why an end must not continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// The job stops, and drops what is in progress.
    Dropped,
    /// Another mover has the task now.
    Fenced,
}

/// Actions whose rate the user can limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Source files that are opened.
    Opens,
    /// Entries that are created at the destination.
    Creates,
}

/// The permission to work on a task. It ends when the job drops its work, or when another mover gets the task.
pub trait Permit {
    /// Whether to continue: asked before each block.
    ///
    /// # Errors
    /// The work ends here; what is unfinished is removed.
    fn step(&self) -> Result<(), Denied>;

    /// Whether a step may be taken that cannot be undone. A job that stops completes what is ready.
    ///
    /// # Errors
    /// Another mover has the task.
    fn may_commit(&self) -> Result<(), Denied>;

    /// Records progress: the task does not hang.
    fn progress(&self);

    /// Whether the job stops, so that waiting for another process is pointless. What is in progress may be completed.
    fn is_stopping(&self) -> bool;

    /// Waits until so many bytes may be moved.
    fn bytes(&self, amount: u64);

    /// Whether there is a limit of bytes.
    fn limits_bytes(&self) -> bool;

    /// The size of the blocks in which bytes are moved: at most `block`, and less where the rate is limited.
    fn block_bytes(&self, block: usize) -> usize;

    /// Waits until one more of these actions is allowed.
    fn one_more(&self, what: Limit);
}
