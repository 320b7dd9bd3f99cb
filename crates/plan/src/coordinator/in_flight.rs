//! Tasks that are issued.
use dmover_model::{Parent, Task, TaskId, TaskKind, TreePath};
use std::collections::HashMap;

use super::NodeId;

/// If a task has returned more names than this, they are scanned again instead of being remembered.
const GIVEN_MAX: usize = 1 << 16;

/// A task that is issued.
#[derive(Debug)]
pub(super) struct InFlightTask {
    /// The node that waits for it.
    pub node: Option<NodeId>,
    /// It is a task of a large file, see [`TaskKind::is_large`].
    pub is_large: bool,
    /// It is a chunk of a large file.
    is_chunk: bool,
    /// It is not recorded in the journal.
    is_begun_anew: bool,
    /// Nodes that this task has reported; they stay open as long as it may report more below them.
    reported: Vec<NodeId>,
    /// Nodes that earlier holders of the task have reported: they must still be finished, but the present holder counts
    /// its own nodes from zero.
    earlier: Vec<NodeId>,
    /// The paths that it has returned, if they are remembered.
    given: Vec<TreePath>,
    /// Expired leases of this task and its ancestors: work that it returns may have been started under them.
    lost: Vec<u32>,
}

/// The tasks that are issued.
#[derive(Debug, Default)]
pub(super) struct InFlightTasks {
    /// The tasks.
    all: HashMap<TaskId, InFlightTask>,
    /// Paths that tasks return are remembered until the tasks end.
    remembers: bool,
}

impl InFlightTask {
    /// The nodes that it holds open, in the order in which they close: children first, the node of the reporting task
    /// itself after what it reported.
    pub fn into_nodes(self) -> impl Iterator<Item = NodeId> {
        self.earlier.into_iter().chain(self.reported).rev()
    }
}

impl InFlightTasks {
    /// Remembers paths that tasks return from now on.
    pub fn remember(&mut self) {
        self.remembers = true;
    }

    /// The number of tasks.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether no task is issued.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds a task that `node` waits for.
    pub fn begin(&mut self, task: &Task, node: Option<NodeId>) {
        let flight = InFlightTask {
            node,
            is_large: task.kind.is_large(),
            is_chunk: matches!(task.kind, TaskKind::Chunk(_)),
            is_begun_anew: task.kind.is_begun_anew(),
            reported: Vec::new(),
            earlier: Vec::new(),
            given: task.given.clone(),
            lost: task.lost_leases().collect(),
        };
        self.all.insert(task.id, flight);
    }

    /// Removes a task that has ended.
    pub fn end(&mut self, task: TaskId) -> Option<InFlightTask> {
        self.all.remove(&task)
    }

    /// A task, if it is issued.
    pub fn get(&self, task: TaskId) -> Option<&InFlightTask> {
        self.all.get(&task)
    }

    /// Whether a task is issued and recorded in the journal.
    pub fn is_recorded(&self, task: TaskId) -> bool {
        self.all.get(&task).is_some_and(|flight| !flight.is_begun_anew)
    }

    /// Whether a task is issued and a chunk of a large file.
    pub fn is_chunk(&self, task: TaskId) -> bool {
        self.all.get(&task).is_some_and(|flight| flight.is_chunk)
    }

    /// The node that a task names as a parent.
    pub fn resolve(&self, task: TaskId, parent: Parent) -> Option<NodeId> {
        let flight = self.all.get(&task)?;
        match parent {
            Parent::Inherited => flight.node,
            Parent::New(index) => flight.reported.get(index).copied().or(flight.node),
        }
    }

    /// A task has reported a node.
    pub fn add_node(&mut self, task: TaskId, node: NodeId) {
        if let Some(flight) = self.all.get_mut(&task) {
            flight.reported.push(node);
        }
    }

    /// A task has returned work.
    pub fn give<'a>(&mut self, task: TaskId, returned: impl Iterator<Item = &'a TaskKind>) {
        if self.remembers
            && let Some(flight) = self.all.get_mut(&task)
            && flight.given.len() <= GIVEN_MAX
        {
            flight.given.extend(returned.flat_map(TaskKind::gives));
        }
    }

    /// Expired leases under which work that a task returns may have been started.
    pub fn lost(&self, task: TaskId) -> Vec<u32> {
        self.all.get(&task).map_or(Vec::new(), |flight| flight.lost.clone())
    }

    /// Records the expired leases of a task. Returns whether it is issued.
    pub fn lose(&mut self, task: &Task) -> bool {
        let flight = self.all.get_mut(&task.id);
        flight.map(|flight| flight.lost = task.lost_leases().collect()).is_some()
    }

    /// Another mover gets the task. Returns the nodes that the last one has reported.
    pub fn change_holder(&mut self, task: TaskId) -> Vec<NodeId> {
        let Some(flight) = self.all.get_mut(&task) else { return Vec::new() };
        let reported = std::mem::take(&mut flight.reported);
        flight.earlier.extend(&reported);
        reported
    }

    /// The paths that a task has returned, sorted. Empty: they are not remembered.
    pub fn given(&self, task: TaskId) -> Vec<TreePath> {
        let given = self.all.get(&task).map(|flight| &flight.given);
        let mut given = given.filter(|given| given.len() <= GIVEN_MAX).cloned().unwrap_or_default();
        given.sort_unstable();
        given
    }
}
