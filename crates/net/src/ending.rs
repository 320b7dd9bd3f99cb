//! How data streams have ended, for the connection above them.
use std::io;
use std::time::Duration;

/// Why nothing can be sent or received any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum End {
    /// This side has ended it.
    #[error("it was closed")]
    Closed,
    /// The other side has ended.
    #[error("the other side ended it")]
    Gone,
    /// Nothing was heard on any stream for this long.
    #[error("no sign of life for {} s", .0.as_secs_f32())]
    Unreachable(Duration),
    /// The other side does not keep to the protocol.
    #[error("the other side sent invalid data: {0}")]
    Violation(&'static str),
}

impl From<End> for io::Error {
    fn from(why: End) -> Self {
        match why {
            End::Closed | End::Gone => io::ErrorKind::BrokenPipe.into(),
            why => Self::other(why),
        }
    }
}
