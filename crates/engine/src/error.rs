//! What keeps a whole job from running. Errors of single entries are data, see `dmover_model`.
use dmover_model::ExitCode;
use std::path::PathBuf;

/// A job could not start or could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fatal {
    /// The arguments do not make a job; nothing was changed.
    #[error("{message}")]
    Refused {
        /// What is wrong, naming the path.
        message: String,
        /// What to do.
        hint: String,
    },
    /// Deletes may not be meant; nothing was changed.
    #[error("{message}")]
    Unmeant {
        /// What would go.
        message: String,
        /// What was likely meant.
        hint: String,
    },
    /// Another run holds the lock.
    #[error("this job, or another job with the same destination, is already running (lock {})", lock.display())]
    Locked {
        /// The lock file.
        lock: PathBuf,
    },
    /// Another job writes to the same place.
    #[error("{message}")]
    Occupied {
        /// Where, and which process that is.
        message: String,
    },
    /// The ledger cannot be written or read.
    #[error("cannot use {}: {reason}", path.display())]
    Ledger {
        /// Where it is.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Another process has taken the job over.
    #[error("another run has taken over this job (journal {})", journal.display())]
    Fenced {
        /// The journal.
        journal: PathBuf,
    },
    /// Changes of a source cannot be followed any more.
    #[error("{message}")]
    Watch {
        /// What is the matter.
        message: String,
        /// What to do.
        hint: String,
    },
    /// The copy has ended, and its manifest cannot be written.
    #[error("{0}")]
    Manifest(String),
    /// The broker, or the movers behind it, cannot be used now.
    #[error("{message}")]
    Unavailable {
        /// What is the matter.
        message: String,
        /// What to do.
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

    /// What may be different later, with a hint.
    pub fn unavailable(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Unavailable { message: message.into(), hint: hint.into() }
    }

    /// The exit code that fits.
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

    /// What a person can do.
    pub fn hint(&self) -> String {
        match self {
            Self::Refused { hint, .. }
            | Self::Unmeant { hint, .. }
            | Self::Watch { hint, .. }
            | Self::Unavailable { hint, .. } => hint.clone(),
            Self::Occupied { .. } => {
                "wait for the other job to end, or stop it; then run the same command again".into()
            }
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
