//! Errors that prevent a whole job.
use std::path::PathBuf;

use crate::ExitCode;

/// A job could not start or could not continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fatal {
    /// The arguments are invalid; nothing was changed.
    #[error("{message}")]
    Refused {
        /// The error, with the path.
        message: String,
        /// What the user can do.
        hint: String,
    },
    /// Deletes may be unintended; nothing was changed.
    #[error("{message}")]
    Unmeant {
        /// What would be deleted.
        message: String,
        /// What was probably intended.
        hint: String,
    },
    /// Another run holds the lock.
    #[error("this job, or another job with the same destination, is already running (lock {})", lock.display())]
    Locked {
        /// The lock file.
        lock: PathBuf,
    },
    /// Another job writes to the same directory.
    #[error("{message}")]
    Occupied {
        /// The directory and the other process.
        message: String,
        /// What to do about it.
        hint: String,
    },
    /// The ledger cannot be written or read.
    #[error("cannot use {}: {reason}", path.display())]
    Ledger {
        /// Its path.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Another process has taken the job over.
    #[error("another run has taken over this job (journal {})", journal.display())]
    Fenced {
        /// The path of the journal.
        journal: PathBuf,
    },
    /// Changes of a source cannot be followed any more.
    #[error("{message}")]
    Watch {
        /// The error.
        message: String,
        /// What the user can do.
        hint: String,
    },
    /// The copy has ended, but its manifest cannot be written.
    #[error("{0}")]
    Manifest(String),
    /// The broker or the movers behind it cannot be used now.
    #[error("{message}")]
    Unavailable {
        /// The error.
        message: String,
        /// What the user can do.
        hint: String,
    },
    /// A thread could not be started.
    #[error("cannot start a mover thread: {0}")]
    Thread(std::io::Error),
}

impl Fatal {
    /// A refusal with a hint.
    pub fn refused(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Refused { message: message.into(), hint: hint.into() }
    }

    /// A temporary failure with a hint.
    pub fn unavailable(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Unavailable { message: message.into(), hint: hint.into() }
    }

    /// The exit code for this error.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Refused { .. } | Self::Unmeant { .. } => ExitCode::Usage,
            Self::Locked { .. }
            | Self::Occupied { .. }
            | Self::Fenced { .. }
            | Self::Unavailable { .. } => ExitCode::Temporary,
            Self::Ledger { .. } | Self::Thread(_) | Self::Manifest(_) | Self::Watch { .. } => {
                ExitCode::Fatal
            }
        }
    }

    /// What the user can do.
    pub fn hint(&self) -> String {
        match self {
            Self::Refused { hint, .. }
            | Self::Unmeant { hint, .. }
            | Self::Watch { hint, .. }
            | Self::Occupied { hint, .. }
            | Self::Unavailable { hint, .. } => hint.clone(),
            Self::Locked { .. } | Self::Fenced { .. } => {
                "wait for the other run to end, or stop it first".into()
            }
            Self::Ledger { .. } => "check free space and permissions, or choose other directories \
                with --state-dir and --spill-dir"
                .into(),
            Self::Manifest(_) => "run the same command again with a writable --manifest".into(),
            Self::Thread(_) => "use fewer threads (-j)".into(),
        }
    }
}
