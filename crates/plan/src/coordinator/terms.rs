//! The inputs and commands of the coordinator.
use crate::verify::merged;
use dmover_model::{
    ByteRange, DirectoryRef, EntryError, ErrorClass, ExtraNames, HashedPieces, LinkGroup, LinkName,
    Outcome, Side, Surveyed, Task, TaskId, TaskKind, Work,
};
use serde::{Deserialize, Serialize};

/// Identifies a node: a directory or large file that is finished when everything below it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

/// A task with its node, as the ledger and the journal keep it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shelved {
    /// The node that counts it.
    pub node: Option<NodeId>,
    /// The task.
    pub task: Task,
}

/// A change of the remaining work of a job, for a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A task was added.
    Added {
        /// The task and its node.
        task: Shelved,
        /// The task that reported it; it is still running or ends with this report.
        origin: Option<TaskId>,
    },
    /// A task has ended, with the work it did.
    Ended(TaskId, Work),
    /// A node waits for the tasks below it.
    Waiting {
        /// The node.
        node: NodeId,
        /// Its parent node.
        parent: Option<NodeId>,
        /// The task that finishes it.
        finish: TaskKind,
    },
    /// A result about parts of a waiting node.
    Noted(NodeId, PartNote),
    /// Nothing below the node is left: the task that finishes it was added.
    Released(NodeId),
}

/// The results of the parts of a waiting file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PartNote {
    /// The failure of a part.
    pub failure: Option<Box<EntryError>>,
    /// Ranges that parts have completed, in order.
    pub covered: Vec<ByteRange>,
    /// Digests.
    pub pieces: Vec<HashedPieces>,
    /// Bytes that differ.
    pub differing: Vec<ByteRange>,
}

/// A node that an earlier run left waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftNode {
    /// The node.
    pub id: NodeId,
    /// Its parent node.
    pub parent: Option<NodeId>,
    /// The number of open tasks and nodes below it.
    pub holds: u64,
    /// The task that finishes it.
    pub finish: TaskKind,
    /// The results of its parts so far.
    pub note: PartNote,
}

/// An event for the coordinator.
#[derive(Debug)]
pub enum Input {
    /// The job starts with these tasks, or continues with them.
    Start {
        /// The tasks.
        tasks: Vec<TaskKind>,
        /// More tasks follow on [`Command::Supply`].
        more: bool,
    },
    /// The job resumes the work of an earlier run. This is the first input, if it comes.
    Resume {
        /// The waiting nodes.
        nodes: Vec<LeftNode>,
        /// The next free numbers of tasks and nodes.
        next: (TaskId, NodeId),
    },
    /// Tasks that an earlier run left.
    Left {
        /// The tasks, with their numbers.
        tasks: Vec<Shelved>,
        /// More of them follow.
        more: bool,
    },
    /// A mover has sent a report during a task.
    Report(TaskId, Outcome),
    /// A mover has finished a task.
    Done(TaskId, Outcome),
    /// The lease of a task expired; the queue has taken the task back.
    Expired(Task),
    /// A mover has ended a task that failed on its host; another mover should try the task in its present state.
    Returned(Task),
    /// After a stop, the queue returned a task that no mover had leased.
    Withdrawn(Task),
    /// A task cannot be done; the reason was already reported.
    GivenUp(Task),
    /// The ledger answers [`Command::Unshelve`].
    Unshelved(Vec<Shelved>),
    /// The ledger answers [`Command::FetchLinks`].
    Links(LinkSupply),
    /// The ledger answers [`Command::FetchDirty`]; empty when there are no more.
    Dirty(Vec<DirectoryRef>),
    /// The ledger answers [`Command::FetchExtra`] with one task for each group of names; empty when there are no more.
    Extra(Vec<TaskKind>),
    /// The driver answers [`Command::FetchSurvey`]; empty when there are no more.
    Survey(Vec<TaskKind>),
    /// The driver answers [`Command::TakeSurvey`] with tasks that follow.
    Surveyed(Vec<TaskKind>),
    /// The job stops: take no new work, and drop work that was not started.
    Stop,
}

/// Link groups from the ledger.
#[derive(Debug, Default)]
pub struct LinkSupply {
    /// The groups.
    pub groups: Vec<LinkGroup>,
    /// The last group continues, so that its rest must wait for this task.
    pub continues: bool,
    /// There are no more groups.
    pub exhausted: bool,
}

/// Counts of tasks, separately for large files and for all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TaskCounts {
    /// Tasks of large files, see [`TaskKind::is_large`].
    pub large: usize,
    /// All other tasks.
    pub small: usize,
}

impl PartNote {
    /// Whether parts have completed everything that the file needs. Missing ranges are not a failure of a part: a
    /// report of returned parts may have been lost.
    pub(super) fn covers(&self, finish: &TaskKind) -> bool {
        let end = match finish {
            TaskKind::Seal(seal) => seal.large.version.size,
            TaskKind::FinishHash(conclude) => conclude.file.shape.length(),
            TaskKind::FinishCompare(judge) => judge.compared,
            _ => 0,
        };
        end == 0 || self.covered == [ByteRange { start: 0, end }]
    }

    /// Adds the results of another part. The first failure of the worst kind is kept: an error at the destination may be
    /// about other parts as well, one at the source is about its part, and a stop says nothing of what was written.
    pub fn merge(&mut self, other: Self) {
        let weight = |failure: &Option<Box<EntryError>>| match failure.as_deref() {
            None => 0,
            Some(error) if error.class == ErrorClass::Cancelled => 1,
            Some(error) if error.side == Side::Source => 2,
            Some(_) => 3,
        };
        if weight(&other.failure) > weight(&self.failure) {
            self.failure = other.failure;
        }
        self.covered.extend(other.covered);
        self.covered = merged(std::mem::take(&mut self.covered));
        self.pieces.extend(other.pieces);
        self.differing.extend(other.differing);
    }
}

impl TaskCounts {
    pub(super) fn part(&mut self, large: bool) -> &mut usize {
        if large { &mut self.large } else { &mut self.small }
    }

    pub(super) fn of(&mut self, kind: &TaskKind) -> &mut usize {
        self.part(kind.is_large())
    }

    pub(super) fn total(self) -> usize {
        self.large + self.small
    }
}

/// A command for the driver.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// Put a task into the queue.
    Publish(Task),
    /// Supply the next tasks of the job, at most this many.
    Supply(usize),
    /// Keep these tasks in the ledger.
    Shelve(Vec<Shelved>),
    /// Return shelved tasks, newest first.
    Unshelve(TaskCounts),
    /// Store names of inodes with several names.
    RecordLinks(Vec<LinkName>),
    /// Store directories to finish again.
    RecordDirty(Vec<DirectoryRef>),
    /// Store names that only the destination has.
    RecordExtra(Vec<ExtraNames>),
    /// Return link groups.
    FetchLinks,
    /// Return names to delete, deepest first.
    FetchExtra,
    /// Return dirty directories, deepest first.
    FetchDirty,
    /// Take findings for the catalog, or from it.
    TakeSurvey(Vec<Surveyed>),
    /// Return the next tasks of the check before the tree, or of the one after it.
    FetchSurvey,
    /// Return the first tasks of the tree.
    Begin,
    /// Withdraw tasks from the queue that no mover has leased.
    Withdraw,
    /// Report that this work is not attempted.
    Abandon(TaskKind),
    /// Every task has ended.
    Finished,
}
