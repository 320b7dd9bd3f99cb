//! Directories and large files that wait for what is below them.
use dmover_model::{EntryError, ErrorClass, Operation, PathBytes, Side, TaskKind};
use std::collections::HashMap;

use super::{LeftNode, NodeId, PartNote};

/// A directory or large file that waits.
#[derive(Debug)]
pub(super) struct Node {
    /// The node that waits for it.
    pub parent: Option<NodeId>,
    /// The number of open tasks and nodes below it, and the task that reported it.
    holds: u64,
    /// The task that finishes it.
    pub finish: TaskKind,
    /// The results of its parts.
    pub note: PartNote,
    /// A mover of an earlier run may still write to its temporary file: this run starts the file again.
    pub begins_anew: bool,
    /// The task that reported it has begun again, and has its own node for the same directory: movers may still be at
    /// work in it when nothing below this node is left. It is finished with the directories that links have changed.
    pub is_of_earlier_holder: bool,
}

/// The nodes of a job.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    /// Nodes that wait.
    waiting: HashMap<NodeId, Node>,
    /// The number of the next node.
    next: u64,
}

impl Node {
    fn new(parent: Option<NodeId>, holds: u64, finish: TaskKind, note: PartNote) -> Self {
        Self { parent, holds, finish, note, begins_anew: false, is_of_earlier_holder: false }
    }

    /// The task that finishes it, with the results of its parts.
    pub fn into_finish(self) -> TaskKind {
        let Self { mut finish, note, .. } = self;
        let is_complete = note.covers(&finish);
        let PartNote { mut failure, pieces, mut differing, .. } = note;
        if failure.is_none() && !is_complete {
            let words = "some of its parts were not reported as done";
            failure = Some(Box::new(part_failure(ErrorClass::Fenced, words)));
        }
        match &mut finish {
            TaskKind::Seal(seal) => (seal.failure, seal.pieces) = (failure, pieces),
            TaskKind::FinishHash(conclude) => {
                (conclude.failure, conclude.pieces) = (failure, pieces);
            }
            TaskKind::FinishCompare(judge) => {
                judge.failure = failure;
                judge.differing.append(&mut differing);
            }
            _ => {}
        }
        finish
    }
}

impl Nodes {
    /// Numbers a new node.
    pub fn number(&mut self) -> NodeId {
        let id = NodeId(self.next);
        self.next += 1;
        id
    }

    /// Adds a new node that waits for the task that reported it.
    pub fn add(&mut self, id: NodeId, parent: Option<NodeId>, finish: TaskKind) {
        self.hold(parent);
        self.waiting.insert(id, Node::new(parent, 1, finish, PartNote::default()));
    }

    /// Takes over the nodes of an earlier run; `next` is the first number that it has not used. Returns nodes with
    /// nothing below them: each has one hold, so that it ends only when all are known.
    pub fn resume(&mut self, nodes: Vec<LeftNode>, next: NodeId) -> Vec<NodeId> {
        self.next = self.next.max(next.0);
        let mut ended = Vec::new();
        for LeftNode { id, parent, holds, finish, note } in nodes {
            ended.extend((holds == 0).then_some(id));
            let node = Node::new(parent, holds.max(1), finish, note);
            self.waiting.insert(id, Node { is_of_earlier_holder: true, ..node });
        }
        ended
    }

    /// Whether a node waits.
    pub fn has(&self, id: NodeId) -> bool {
        self.waiting.contains_key(&id)
    }

    /// Whether no node waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a task or node that a node waits for.
    pub fn hold(&mut self, node: Option<NodeId>) {
        if let Some(node) = node.and_then(|id| self.waiting.get_mut(&id)) {
            node.holds += 1;
        }
    }

    /// Ends a task or node that a node waits for. Returns the node if it was the last one; it waits no longer.
    pub fn release(&mut self, id: NodeId) -> Option<Node> {
        let node = self.waiting.get_mut(&id)?;
        node.holds -= 1;
        if node.holds > 0 {
            return None;
        }
        self.waiting.remove(&id)
    }

    /// Adds results of parts.
    pub fn note(&mut self, id: NodeId, note: PartNote) {
        if let Some(node) = self.waiting.get_mut(&id) {
            node.note.merge(note);
        }
    }

    /// Starts the file of a node again when nothing below the node is left.
    pub fn begin_anew(&mut self, id: NodeId) {
        if let Some(node) = self.waiting.get_mut(&id) {
            node.begins_anew = true;
        }
    }

    /// Marks a node whose task has begun again.
    pub fn leave_to_next_holder(&mut self, id: NodeId) {
        if let Some(node) = self.waiting.get_mut(&id) {
            node.is_of_earlier_holder = true;
        }
    }
}

/// The failure of a part; the task that ends the file adds the path.
pub(super) fn part_failure(class: ErrorClass, words: &str) -> EntryError {
    let (side, path) = (Side::Destination, PathBytes::default());
    EntryError::plain(side, Operation::Write, class, path, words)
}
