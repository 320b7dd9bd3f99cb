//! Exit codes: one enum for all verbs, and the rule which code wins when several apply.
use serde::{Deserialize, Serialize};

/// The result of a verb. `docs/scripting.md` has the same table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ExitCode {
    /// Everything was done without errors.
    Done = 0,
    /// The two sides were compared and differ.
    Different = 1,
    /// Wrong usage or configuration, or a refused loss: nothing was changed.
    Usage = 2,
    /// Finished, but some entries failed, lost an attribute or were withheld.
    Partial = 3,
    /// Finished; only entries that vanished or changed at the source are missing.
    SourceMoved = 4,
    /// Stopped by a limit such as `--max-errors`.
    Limit = 5,
    /// Temporary trouble, such as a lock that another run holds.
    Temporary = 6,
    /// Written content does not read back equal.
    Integrity = 7,
    /// A fatal error: the job could not continue.
    Fatal = 8,
    /// Waits for a human decision.
    Waiting = 9,
}

impl ExitCode {
    /// The number for the shell.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The stronger of two codes, in the order 8, 7, 9, 3, 6, 5, 4, 1, 0; usage errors end a run at once.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        if self.rank() >= other.rank() { self } else { other }
    }

    fn rank(self) -> u8 {
        match self {
            Self::Usage => 9,
            Self::Fatal => 8,
            Self::Integrity => 7,
            Self::Waiting => 6,
            Self::Partial => 5,
            Self::Temporary => 4,
            Self::Limit => 3,
            Self::SourceMoved => 2,
            Self::Different => 1,
            Self::Done => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ExitCode::{Done, Limit, Partial, SourceMoved};

    #[test]
    fn the_worse_one_wins() {
        assert_eq!(SourceMoved.merge(Partial), Partial);
        assert_eq!(Limit.merge(SourceMoved), Limit);
        assert_eq!(Done.merge(Done), Done);
    }
}
