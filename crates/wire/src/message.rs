//! Tasks, outcomes, calls, answers and broadcasts.
use bytes::Bytes;
use dmover_model::{Answer, CoordinatorRequest, Limit, Notice, Outcome, Task};
use dmover_observe::{CLASSES, LogLine, MountView, NicView};
use dmover_plan::leases::MoverId;
use dmover_plan::stragglers::Done;
use serde::{Deserialize, Serialize};

use crate::encoding::{DecodeError, decode_beginning, encode};
use crate::report::MoverReport;

/// A mover process as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoverInfo {
    /// Its id, for its lifetime.
    pub id: MoverId,
    /// The protocol that it speaks with this coordinator.
    pub protocol: u32,
    /// The version of its program.
    pub version: String,
    /// Its host.
    pub host: String,
    /// Its process id.
    pub pid: u32,
    /// Processors that it may use.
    pub cores: u32,
    /// Memory that it may use for buffers, in bytes.
    pub memory_bytes: u64,
    /// Its labels, such as `site=…` and `rack=…`.
    pub labels: Vec<(String, String)>,
    /// The file systems that are mounted on its host.
    pub mounts: Vec<MountView>,
}

impl MoverInfo {
    /// The name in messages to users.
    pub fn describe(&self) -> String {
        format!("{} (process {})", self.host, self.pid)
    }
}

/// A task in a message.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskMessage {
    /// The number under which it is offered.
    pub number: u32,
    /// The task.
    pub task: Task,
}

impl TaskMessage {
    /// Decodes the task of a message, whatever follows it. A mover claims the task with the digest of the whole message,
    /// so that the coordinator learns of one that somebody has changed.
    ///
    /// # Errors
    /// The message does not begin with a task, or is too large.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode_beginning(bytes)
    }
}

/// A report of a mover about a task.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct OutcomeMessage {
    /// The mover.
    pub mover: MoverId,
    /// The number of the task.
    pub number: u32,
    /// The number of the report within this lease, from 1.
    pub sequence: u32,
    /// Reports about entries, and counts.
    pub told: MoverReport,
    /// What the task has found and done.
    pub outcome: Outcome,
    /// The task has ended.
    pub ended: bool,
    /// More pieces of this report follow.
    pub more: bool,
    /// Some errors may be caused by this host: they do not count if another mover can try the task.
    pub hosts: bool,
}

/// Log lines of a mover.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct LogMessage {
    /// The host of the mover.
    pub host: String,
    /// Its process id.
    pub pid: u32,
    /// The lines.
    pub lines: Vec<LogLine>,
}

/// A call of a mover to the coordinator.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum Call {
    /// The mover wants to join the job.
    Hello {
        /// The mover.
        info: MoverInfo,
        /// The time on its host, in milliseconds since 1970.
        clock_ms: i64,
        /// The number of the handshake.
        turn: u32,
        /// The public half of its ephemeral key.
        key: [u8; 32],
        /// The digest of the offer that it has read.
        offer: [u8; 32],
    },
    /// The mover has joined.
    Join(MoverId),
    /// The mover cannot work for the job, for this reason.
    Unable {
        /// The mover.
        info: MoverInfo,
        /// The reason.
        why: String,
        /// It worked for the job before, and had tasks.
        has_worked: bool,
    },
    /// The mover claims tasks.
    Claim {
        /// The mover.
        mover: MoverId,
        /// The numbers of the tasks, and digests of their messages.
        tasks: Vec<(u32, [u8; 32])>,
        /// How many facts it knows.
        facts: u32,
    },
    /// The mover renews its leases.
    Renew {
        /// The mover.
        mover: MoverId,
        /// The numbers of its tasks, and for each the milliseconds without progress.
        held: Vec<(u32, u64)>,
        /// Its state.
        load: Load,
        /// The time on its host, in milliseconds since 1970.
        clock_ms: i64,
    },
    /// Threads wait for work of these classes. There is no answer.
    Waiting(MoverId, [bool; CLASSES]),
    /// The mover asks a question.
    Ask {
        /// The mover.
        mover: MoverId,
        /// The question.
        question: CoordinatorRequest,
    },
    /// The mover leaves; its remaining tasks will not be done by it.
    Bye(MoverId),
}

impl Call {
    /// The mover that sent the call, for calls that need keys.
    pub fn mover(&self) -> Option<MoverId> {
        match self {
            Self::Hello { .. } | Self::Unable { .. } => None,
            Self::Join(mover) | Self::Waiting(mover, _) | Self::Bye(mover) => Some(*mover),
            Self::Claim { mover, .. } | Self::Renew { mover, .. } | Self::Ask { mover, .. } => {
                Some(*mover)
            }
        }
    }
}

/// The state of a mover.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Tasks of each class that it can have in progress.
    pub places: u32,
    /// What limits its speed.
    pub limit: Option<Limit>,
    /// Why the broker does not accept its messages.
    pub trouble: Option<String>,
    /// The work that it has done since it joined.
    pub done: Done,
    /// Bytes of content that it has copied or read.
    pub bytes: u64,
    /// Entries that it has completed.
    pub entries: u64,
    /// Traffic of the network interfaces of its host.
    pub nics: Vec<NicView>,
}

/// The answer of the coordinator.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// The mover may join.
    Welcome {
        /// The public half of the coordinator's ephemeral key.
        key: [u8; 32],
    },
    /// The mover may not join.
    Refused {
        /// The reason.
        why: String,
        /// What the user can do.
        hint: String,
    },
    /// The claimed tasks are granted.
    Granted {
        /// Except these.
        gone: Vec<u32>,
        /// And except these, which other movers should try first.
        others: Vec<u32>,
        /// Facts that the mover must learn first.
        facts: Vec<Notice>,
        /// How many further tasks it may prefetch.
        spare: u32,
        /// Tasks that the coordinator did not publish under their numbers.
        forged: Vec<u32>,
    },
    /// The claim is not granted now; try again later.
    Later,
    /// The coordinator does not know the mover: it must join again, and has lost its leases.
    Stranger,
    /// The leases are renewed, except these.
    Renewed {
        /// Tasks that the mover has lost.
        lost: Vec<u32>,
        /// The present state, in case a broadcast was lost.
        control: Control,
        /// The mover is much slower than the others.
        is_slow: bool,
        /// Every task fails there: it gets no tasks for now.
        is_left_out: bool,
    },
    /// The answer to a question.
    Answer(Answer),
    /// The coordinator has received the call.
    Noted,
    /// The coordinator is alive: its host and process id.
    Pong(String, u32),
}

/// The state that the coordinator broadcasts to all movers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// The job is paused: take no tasks.
    pub held: bool,
    /// The job is stopping: end tasks in progress early.
    pub stopping: bool,
    /// Drop tasks in progress.
    pub dropping: bool,
    /// For each class, whether movers wait for work and no tasks are left.
    pub hungry: [bool; CLASSES],
    /// The number of mover processes that share the limits of the job.
    pub movers: u32,
    /// The number of jobs that share the limits; 0 and 1: this job alone.
    pub jobs: u32,
    /// The run has ended.
    pub closed: bool,
}

impl Control {
    /// The number of movers that share the limits of the job.
    pub fn shares(&self) -> u32 {
        self.movers.max(1).saturating_mul(self.jobs.max(1))
    }
}

/// The announcement of a job in a pool of shared limits.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolMessage {
    /// The name of its offer.
    pub job: String,
    /// The number of its run.
    pub run: u64,
    /// The job is new: the others must announce themselves as well.
    pub is_new: bool,
    /// The job leaves.
    pub is_last: bool,
}

/// Cuts a report into messages of at most `most` bytes.
pub fn cut(said: OutcomeMessage, most: usize) -> Vec<(OutcomeMessage, Bytes)> {
    let whole = encode(&said);
    let things = said.told.len() + said.outcome.len();
    if whole.len() <= most || things <= 1 {
        return vec![(said, whole)];
    }
    let OutcomeMessage { mover, number, sequence, told, outcome, ended, hosts, .. } = said;
    let each = things.div_ceil(2 * whole.len().div_ceil(most)).max(1);
    // Reports come before what depends on them, and the end of the task comes last.
    let told = told.split(each).into_iter().map(|told| (told, Outcome::default()));
    let outcomes = outcome.split(each).into_iter().map(|outcome| (MoverReport::default(), outcome));
    let pieces: Vec<_> = told.chain(outcomes).collect();
    let last = pieces.len() - 1;
    let message = |(index, (told, outcome)): (usize, (MoverReport, Outcome))| {
        let (sequence, more) = (sequence + index as u32, index < last);
        OutcomeMessage { mover, number, sequence, told, outcome, ended, more, hosts }
    };
    let messages = pieces.into_iter().enumerate().map(message);
    messages.map(|message| (encode(&message), message)).map(|(b, m)| (m, b)).collect()
}
