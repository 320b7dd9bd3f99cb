//! Why something cannot be done with a job.
use dmover_model::ExitCode;
use std::fmt;

/// What is in the way, for programs. People read the message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The state directory cannot be read, or none is known.
    NoState,
    /// No job has this id, this label, or an id with this beginning.
    Unknown,
    /// Several jobs match, with these ids.
    Ambiguous(Vec<String>),
    /// No job is in a state that the request needs.
    NoneFits,
    /// The job has no process.
    NotRunning,
    /// The job has a process.
    Running,
    /// The job is being cancelled and takes no other request.
    BeingCancelled,
    /// The request cannot be sent to the process of the job.
    NotSent,
    /// The request does not suit this job.
    Unsuitable,
    /// The job has no such record.
    NoRecord,
    /// The label is the id of a job.
    LabelIsId,
    /// The label is that of this job.
    LabelTaken(String),
    /// It is not possible now.
    Unavailable,
    /// A signal ended the request.
    Interrupted,
    /// Something failed that should work.
    Failed,
}

/// A request that was refused. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What is in the way.
    pub reason: Reason,
    /// The same for people, with the job or the path.
    pub message: String,
    /// What the user can do.
    pub hint: String,
}

impl Refusal {
    /// A refusal with its message and its hint.
    pub fn new(reason: Reason, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { reason, message: message.into(), hint: hint.into() }
    }

    /// The exit code for this refusal.
    pub fn exit_code(&self) -> ExitCode {
        match self.reason {
            Reason::Running
            | Reason::BeingCancelled
            | Reason::Unavailable
            | Reason::Interrupted => ExitCode::Temporary,
            Reason::Failed => ExitCode::Fatal,
            Reason::NoState
            | Reason::Unknown
            | Reason::Ambiguous(_)
            | Reason::NoneFits
            | Reason::NotRunning
            | Reason::NotSent
            | Reason::Unsuitable
            | Reason::NoRecord
            | Reason::LabelIsId
            | Reason::LabelTaken(_) => ExitCode::Usage,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}
