//! What the coordinator hears and says.
use crate::verify::merged;
use dmover_model::{
    ByteRange, DirectoryRef, EntryError, ExtraNames, HashedPieces, LinkGroup, LinkName, Outcome,
    Surveyed, Task, TaskId, TaskKind, Work,
};
use serde::{Deserialize, Serialize};

/// Names a node: a directory or large file that ends when everything below it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

/// A task with the node it hangs on, as it waits in the ledger and in the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shelved {
    /// What it hangs on.
    pub node: Option<NodeId>,
    /// What to do.
    pub task: Task,
}

/// What has changed in what a job still has to do, for a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// There is a task more.
    Added {
        /// The task, and what it hangs on.
        task: Shelved,
        /// The task that has reported it, which is still at work or ends with this very report.
        origin: Option<TaskId>,
    },
    /// A task has ended, and this is what it took.
    Ended(TaskId, Work),
    /// Something waits for what hangs on it.
    Waiting {
        /// Its number.
        node: NodeId,
        /// What it hangs on.
        parent: Option<NodeId>,
        /// What ends it.
        finish: TaskKind,
    },
    /// Something is known about the parts of what waits.
    Noted(NodeId, PartNote),
    /// Nothing hangs on it any more: the task that ends it was added.
    Released(NodeId),
}

/// What is known about parts of a file that waits for them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PartNote {
    /// Why a part failed.
    pub failure: Option<Box<EntryError>>,
    /// Bytes that parts have dealt with, in order.
    pub covered: Vec<ByteRange>,
    /// Digests.
    pub pieces: Vec<HashedPieces>,
    /// Bytes that differ.
    pub differing: Vec<ByteRange>,
}

/// What an earlier run left to be waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftNode {
    /// Its number.
    pub id: NodeId,
    /// What it hangs on.
    pub parent: Option<NodeId>,
    /// Tasks and nodes that hang on it.
    pub holds: u64,
    /// What ends it.
    pub finish: TaskKind,
    /// What is known of its parts.
    pub note: PartNote,
}

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// The job begins with these tasks, or goes on with them.
    Start {
        /// The tasks.
        tasks: Vec<TaskKind>,
        /// There are more, to be asked for by [`Command::Supply`].
        more: bool,
    },
    /// The job goes on with what an earlier run has left. Comes first, if it comes.
    Resume {
        /// What waits for tasks.
        nodes: Vec<LeftNode>,
        /// Numbers above all that were given so far.
        next: (TaskId, NodeId),
    },
    /// Tasks that an earlier run has left.
    Left {
        /// The tasks, with their numbers.
        tasks: Vec<Shelved>,
        /// There are more to come.
        more: bool,
    },
    /// A mover reports in the middle of a task.
    Report(TaskId, Outcome),
    /// A mover has ended a task.
    Done(TaskId, Outcome),
    /// The lease of a task ran out; the queue has taken it back.
    Expired(Task),
    /// A mover has ended a task that has failed there, and somebody else is to try it, as it is now.
    Returned(Task),
    /// The queue gave back a task that nobody had leased, after a stop.
    Withdrawn(Task),
    /// A task cannot be done; why was told.
    GivenUp(Task),
    /// The ledger answers [`Command::Unshelve`].
    Unshelved(Vec<Shelved>),
    /// The ledger answers [`Command::FetchLinks`].
    Links(LinkSupply),
    /// The ledger answers [`Command::FetchDirty`]; empty when there are no more.
    Dirty(Vec<DirectoryRef>),
    /// The ledger answers [`Command::FetchExtra`], a task each; none when there are no more.
    Extra(Vec<TaskKind>),
    /// The driver answers [`Command::FetchSurvey`]; none when there are no more.
    Survey(Vec<TaskKind>),
    /// The driver answers [`Command::TakeSurvey`] with what follows from it.
    Surveyed(Vec<TaskKind>),
    /// Take no new work; what is not begun is given up.
    Stop,
}

/// Link groups from the ledger.
#[derive(Debug, Default)]
pub struct LinkSupply {
    /// The groups.
    pub groups: Vec<LinkGroup>,
    /// The last group goes on, so that its rest has to wait for this task.
    pub continues: bool,
    /// There are no more.
    pub exhausted: bool,
}

/// Numbers of tasks: those of large files, of which one file may have any number, and all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Portion {
    /// See [`TaskKind::is_large`].
    pub large: usize,
    /// Everything else.
    pub small: usize,
}

impl PartNote {
    /// Whether parts have dealt with everything that the file has for them. What is missing is none of their failures: a
    /// report of a part that others were to do may have been lost.
    pub(super) fn covers(&self, finish: &TaskKind) -> bool {
        let end = match finish {
            TaskKind::Seal(seal) => seal.large.version.size,
            TaskKind::Conclude(conclude) => conclude.file.shape.length(),
            TaskKind::Judge(judge) => judge.compared,
            _ => 0,
        };
        end == 0 || self.covered == [ByteRange { start: 0, end }]
    }

    /// Adds what is known of another part; the first failure counts.
    pub fn merge(&mut self, other: Self) {
        if self.failure.is_none() {
            self.failure = other.failure;
        }
        self.covered.extend(other.covered);
        self.covered = merged(std::mem::take(&mut self.covered));
        self.pieces.extend(other.pieces);
        self.differing.extend(other.differing);
    }
}

impl Portion {
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

/// What the driver has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// Put a task on the queue.
    Publish(Task),
    /// Give the next tasks of the job, at most so many.
    Supply(usize),
    /// Keep tasks in the ledger.
    Shelve(Vec<Shelved>),
    /// Give back shelved tasks, the newest first.
    Unshelve(Portion),
    /// Remember names of linked inodes.
    RecordLinks(Vec<LinkName>),
    /// Remember directories to finish again.
    RecordDirty(Vec<DirectoryRef>),
    /// Remember names that only the destination has.
    RecordExtra(Vec<ExtraNames>),
    /// Give back link groups.
    FetchLinks,
    /// Give back names that are to be removed, those that lie deepest.
    FetchExtra,
    /// Give back dirty directories, deepest first.
    FetchDirty,
    /// Take what was found for the catalog, or from it.
    TakeSurvey(Vec<Surveyed>),
    /// Give the next tasks of the survey before the tree, or of the one after it.
    FetchSurvey,
    /// Give the first tasks of the tree.
    Begin,
    /// Take back from the queue what nobody has leased.
    Withdraw,
    /// This will not be attempted.
    Abandon(TaskKind),
    /// Every task has ended.
    Finished,
}
