//! Why a job stops before its end.
use serde::{Deserialize, Serialize};

use crate::ErrorClass;

/// Why a job stops before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// A signal, by its number.
    Signal(i32),
    /// `--max-errors` was reached.
    Errors,
    /// `--max-duration` was reached.
    Duration,
    /// Output cannot be written.
    Output,
    /// The manifest cannot be written.
    Manifest,
    /// The user cancelled it.
    Cancelled,
    /// Errors of this class are systemic.
    Systemic(ErrorClass),
}
