//! The coordinator as a state machine: events in, commands out.
//!
//! It owns one job. It knows which tasks are out, which directories and large files wait for them
//! (*nodes*), and in which phase the job is. A node ends with a task of its own as soon as nothing
//! below it is left, so directories get their times last and deepest first, and a large file is
//! sealed when its chunks have settled. What exceeds the window goes to the ledger (the *shelf*) and
//! comes back last in, first out: depth first, so that memory follows depth and not the tree.
use dmover_model::{
    Budget, ByteRange, DirectoryRef, EntryError, ErrorClass, ExtraNames, HashedPieces, LinkGroup,
    LinkName, NewNode, NewTask, Operation, Outcome, Parent, PathBytes, Side, Surveyed, Task,
    TaskId, TaskKind, Work,
};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// From so many large files on that wait to be begun, the search for more entries waits for them.
const UNOPENED_MAX: usize = 4096;

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
    /// The queue gave back a task that nobody had leased, after a stop.
    Withdrawn(Task),
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
    /// Adds what is known of another part; the first failure counts.
    pub fn merge(&mut self, other: Self) {
        if self.failure.is_none() {
            self.failure = other.failure;
        }
        self.pieces.extend(other.pieces);
        self.differing.extend(other.differing);
    }
}

impl Portion {
    fn part(&mut self, large: bool) -> &mut usize {
        if large { &mut self.large } else { &mut self.small }
    }

    fn of(&mut self, kind: &TaskKind) -> &mut usize {
        self.part(kind.is_large())
    }

    fn total(self) -> usize {
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

#[derive(Debug)]
struct Node {
    parent: Option<NodeId>,
    /// Tasks and nodes that hang on it, and the task that reported it.
    holds: u64,
    finish: TaskKind,
    note: PartNote,
}

#[derive(Debug)]
struct Flight {
    node: Option<NodeId>,
    large: bool,
    /// No journal hears of it.
    begun_anew: bool,
    /// Nodes this task has reported; they stay open as long as it may report more below them.
    reported: Vec<NodeId>,
    /// Nodes that holders of an earlier lease have reported: still to be finished, but the present
    /// holder counts its own from zero.
    earlier: Vec<NodeId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// What was renamed at the source since the last pass.
    Renames,
    Tree,
    Links,
    Extra,
    Dirty,
    /// What both sides have now.
    Catalog,
    Finished,
}

/// The state of one job.
#[derive(Debug)]
pub struct Coordinator {
    /// Tasks that may be out, of large files and of others each, so that neither keeps the other waiting.
    window: usize,
    budget: Budget,
    next_task: u64,
    next_node: u64,
    flights: HashMap<TaskId, Flight>,
    out: Portion,
    nodes: HashMap<NodeId, Node>,
    shelf: Portion,
    /// The driver has tasks that it was not asked for yet.
    more: bool,
    /// Large files on the shelf that nobody has begun.
    unopened: usize,
    phase: Phase,
    /// An answer of the ledger is outstanding.
    fetching: bool,
    /// The next link groups continue one that is still being worked on.
    serial: bool,
    links_exhausted: bool,
    extra_exhausted: bool,
    /// There is a catalog.
    surveys: bool,
    stopping: bool,
    ended: bool,
    /// What a journal has to know; `None`: there is none.
    changes: Option<Vec<Change>>,
}

impl Coordinator {
    /// A coordinator that keeps at most about `window` tasks of large files on the queue, and as many others.
    pub fn new(window: usize, budget: Budget) -> Self {
        Self {
            window: window.max(1),
            budget,
            next_task: 0,
            next_node: 0,
            flights: HashMap::new(),
            out: Portion::default(),
            nodes: HashMap::new(),
            shelf: Portion::default(),
            more: false,
            unopened: 0,
            phase: Phase::Tree,
            fetching: false,
            serial: false,
            links_exhausted: false,
            extra_exhausted: false,
            surveys: false,
            stopping: false,
            ended: false,
            changes: None,
        }
    }

    /// The same, telling a journal what changes. Then what is begun stays begun after a stop.
    #[must_use]
    pub fn journalled(self) -> Self {
        Self { changes: Some(Vec::new()), ..self }
    }

    /// The same with a catalog, which is looked at before the tree and written after it.
    #[must_use]
    pub fn surveying(self) -> Self {
        Self { surveys: true, phase: Phase::Renames, ..self }
    }

    /// What has changed since it was asked last.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn change(&mut self, change: impl FnOnce() -> Change) {
        // What happens after a stop is done again by whoever goes on.
        if let Some(changes) = self.changes.as_mut().filter(|_| !self.stopping) {
            changes.push(change());
        }
    }

    /// Tasks that are out or on the shelf.
    pub fn pending(&self) -> u64 {
        (self.flights.len() + self.shelf.total()) as u64
    }

    /// Takes in what happened and answers what to do, in order.
    pub fn handle(&mut self, input: Input) -> Vec<Command> {
        let mut out = Vec::new();
        match input {
            Input::Start { tasks, more } => {
                self.fetching = false;
                self.more = more;
                self.add(tasks.into_iter().map(|k| (None, k)), None, &mut out);
            }
            Input::Resume { nodes, next } => self.resume(nodes, next, &mut out),
            Input::Left { tasks, more } => {
                self.fetching = more;
                let mut shelved = Vec::new();
                for left in tasks {
                    self.place(left, &mut shelved, &mut out);
                }
                if !shelved.is_empty() {
                    out.push(Command::Shelve(shelved));
                }
            }
            Input::Report(task, outcome) => self.take_outcome(task, outcome, &mut out),
            Input::Done(task, outcome) => {
                let work = outcome.work;
                self.take_outcome(task, outcome, &mut out);
                if self.flights.get(&task).is_some_and(|flight| !flight.begun_anew) {
                    self.change(|| Change::Ended(task, work));
                }
                self.end_flight(task, &mut out);
            }
            Input::Expired(task) => self.expired(task, &mut out),
            Input::Withdrawn(task) => {
                if matches!(task.kind, TaskKind::Seal(_)) && self.changes.is_none() {
                    // A large file that was begun is always sealed, or its temporary would stay.
                    out.push(Command::Publish(task));
                } else if let Some(flight) = self.flights.get(&task.id) {
                    let node = flight.node;
                    self.abandon(node, task.kind, &mut out);
                    self.end_flight(task.id, &mut out);
                }
            }
            Input::Unshelved(tasks) => {
                self.fetching = false;
                for Shelved { node, task } in tasks {
                    *self.shelf.of(&task.kind) -= 1;
                    self.unopened -= usize::from(matches!(task.kind, TaskKind::Open { .. }));
                    self.publish(node, task, &mut out);
                }
            }
            Input::Links(supply) => self.take_links(supply, &mut out),
            Input::Dirty(directories) => self.take_dirty(directories, &mut out),
            Input::Extra(tasks) => {
                self.fetching = false;
                self.extra_exhausted = tasks.is_empty();
                self.add(tasks.into_iter().map(|kind| (None, kind)), None, &mut out);
            }
            Input::Survey(tasks) => self.take_survey(tasks, &mut out),
            Input::Surveyed(tasks) => {
                self.fetching = false;
                self.add(tasks.into_iter().map(|kind| (None, kind)), None, &mut out);
            }
            Input::Stop => {
                if !self.stopping {
                    self.stopping = true;
                    out.push(Command::Withdraw);
                }
            }
        }
        self.advance(&mut out);
        out
    }

    fn take_outcome(&mut self, task: TaskId, outcome: Outcome, out: &mut Vec<Command>) {
        let Some(flight) = self.flights.get(&task) else { return };
        let inherited = flight.node;
        for NewNode { parent, finish } in outcome.nodes {
            let parent = self.resolve(task, inherited, parent);
            self.hold(parent);
            let id = NodeId(self.next_node);
            self.next_node += 1;
            self.change(|| Change::Waiting { node: id, parent, finish: finish.clone() });
            let note = PartNote::default();
            self.nodes.insert(id, Node { parent, holds: 1, finish, note });
            if let Some(flight) = self.flights.get_mut(&task) {
                flight.reported.push(id);
            }
        }
        if let Some(id) = inherited.filter(|id| self.nodes.contains_key(id)) {
            let pieces = outcome.pieces.into_iter().collect();
            let (failure, differing) = (outcome.chunk_failure, outcome.differing);
            self.note_parts(id, PartNote { failure, pieces, differing });
        }
        if !outcome.links.is_empty() {
            // Also when the link phase has seen all names already: these are new.
            self.links_exhausted = false;
            if matches!(self.phase, Phase::Extra | Phase::Dirty) {
                self.phase = Phase::Links;
            }
            out.push(Command::RecordLinks(outcome.links));
        }
        if !outcome.dirty.is_empty() {
            out.push(Command::RecordDirty(outcome.dirty));
        }
        if !outcome.survey.is_empty() {
            // What follows from it comes before anything is taken for done.
            self.fetching = true;
            out.push(Command::TakeSurvey(outcome.survey));
        }
        if !outcome.extra.is_empty() {
            self.extra_exhausted = false;
            out.push(Command::RecordExtra(outcome.extra));
        }
        let tasks: Vec<_> = outcome
            .tasks
            .into_iter()
            .map(|NewTask { parent, kind }| (self.resolve(task, inherited, parent), kind))
            .collect();
        self.add(tasks.into_iter(), Some(task), out);
    }

    fn note_parts(&mut self, id: NodeId, note: PartNote) {
        if note == PartNote::default() {
            return;
        }
        self.change(|| Change::Noted(id, note.clone()));
        let Some(Node { note: known, .. }) = self.nodes.get_mut(&id) else { return };
        known.merge(note);
    }

    /// Takes over what an earlier run has left. What nothing hangs on was about to be ended.
    fn resume(
        &mut self,
        nodes: Vec<LeftNode>,
        (task, node): (TaskId, NodeId),
        out: &mut Vec<Command>,
    ) {
        self.next_task = self.next_task.max(task.0);
        self.next_node = self.next_node.max(node.0);
        self.phase = Phase::Tree;
        // The tasks come next.
        self.fetching = true;
        let mut ended = Vec::new();
        for LeftNode { id, parent, holds, finish, note } in nodes {
            // One hold more, so that nothing ends before all are known.
            ended.extend((holds == 0).then_some(id));
            self.nodes.insert(id, Node { parent, holds: holds.max(1), finish, note });
        }
        for id in ended {
            self.release(Some(id), out);
        }
    }

    fn resolve(&self, task: TaskId, inherited: Option<NodeId>, parent: Parent) -> Option<NodeId> {
        match parent {
            Parent::Inherited => inherited,
            Parent::New(index) => {
                self.flights.get(&task).and_then(|f| f.reported.get(index)).copied().or(inherited)
            }
        }
    }

    fn hold(&mut self, node: Option<NodeId>) {
        if let Some(node) = node.and_then(|n| self.nodes.get_mut(&n)) {
            node.holds += 1;
        }
    }

    fn room(&self) -> Portion {
        let Portion { large, small } = self.out;
        let left = |out: usize| self.window.saturating_sub(out);
        let mut room = Portion { large: left(large), small: left(small) };
        if self.unopened >= UNOPENED_MAX {
            // Each holds a directory open in memory: the search waits until some are done.
            room.small = 0;
        }
        room
    }

    /// Publishes as far as the window allows and shelves the rest.
    fn add(
        &mut self,
        tasks: impl Iterator<Item = (Option<NodeId>, TaskKind)>,
        origin: Option<TaskId>,
        out: &mut Vec<Command>,
    ) {
        let mut shelved = Vec::new();
        for (node, kind) in tasks {
            self.hold(node);
            let task = Shelved { node, task: self.number(kind) };
            if !task.task.kind.is_begun_anew() {
                self.change(|| Change::Added { task: task.clone(), origin });
            }
            self.place(task, &mut shelved, out);
        }
        if !shelved.is_empty() {
            out.push(Command::Shelve(shelved));
        }
    }

    fn number(&mut self, kind: TaskKind) -> Task {
        let id = TaskId(self.next_task);
        self.next_task += 1;
        Task::new(id, kind, self.budget)
    }

    /// Puts a task on the queue, or on the shelf if there is no room.
    fn place(&mut self, task: Shelved, shelved: &mut Vec<Shelved>, out: &mut Vec<Command>) {
        let kind = &task.task.kind;
        if self.stopping || *self.room().of(kind) > 0 {
            self.publish(task.node, task.task, out);
        } else {
            *self.shelf.of(kind) += 1;
            self.unopened += usize::from(matches!(kind, TaskKind::Open { .. }));
            shelved.push(task);
        }
    }

    /// A task that follows from what is done now.
    fn publish_next(&mut self, node: Option<NodeId>, kind: TaskKind, out: &mut Vec<Command>) {
        let task = self.number(kind);
        self.change(|| Change::Added { task: Shelved { node, task: task.clone() }, origin: None });
        self.publish(node, task, out);
    }

    /// Hands out a task whose hold on `node` exists already.
    fn publish(&mut self, node: Option<NodeId>, task: Task, out: &mut Vec<Command>) {
        // A large file that was begun is always sealed, so that its temporary is removed; whoever has a journal goes
        // on with it.
        let sealed = matches!(task.kind, TaskKind::Seal(_)) && self.changes.is_none();
        if self.stopping && !sealed {
            self.abandon(node, task.kind, out);
            self.release(node, out);
            return;
        }
        *self.out.of(&task.kind) += 1;
        let (large, begun_anew) = (task.kind.is_large(), task.kind.is_begun_anew());
        let flight = Flight { node, large, begun_anew, reported: Vec::new(), earlier: Vec::new() };
        self.flights.insert(task.id, flight);
        out.push(Command::Publish(task));
    }

    fn abandon(&mut self, node: Option<NodeId>, kind: TaskKind, out: &mut Vec<Command>) {
        if matches!(kind, TaskKind::Chunk(_) | TaskKind::Hash(_) | TaskKind::Compare(_)) {
            self.fail_node(node, ErrorClass::Cancelled, "the job was stopped");
        } else {
            out.push(Command::Abandon(kind));
        }
    }

    fn fail_node(&mut self, node: Option<NodeId>, class: ErrorClass, words: &str) {
        if let Some(id) = node.filter(|id| self.nodes.contains_key(id)) {
            let (side, path) = (Side::Destination, PathBytes::default());
            let failure = EntryError::plain(side, Operation::Write, class, path, words);
            self.note_parts(
                id,
                PartNote { failure: Some(Box::new(failure)), ..PartNote::default() },
            );
        }
    }

    /// A chunk is never leased twice: whoever held it may still be writing. Its file is taken again
    /// with a fresh temporary. Every other task can be repeated as it is.
    fn expired(&mut self, task: Task, out: &mut Vec<Command>) {
        let Some(flight) = self.flights.get_mut(&task.id) else { return };
        flight.earlier.append(&mut flight.reported);
        if matches!(task.kind, TaskKind::Chunk(_)) {
            let node = flight.node;
            self.fail_node(node, ErrorClass::Fenced, "a mover lost its lease on a chunk");
            self.change(|| Change::Ended(task.id, Work::default()));
            self.end_flight(task.id, out);
        } else if matches!(task.kind, TaskKind::Sums(_)) {
            // Its files may be pipes, of which a second reader would hash what the first one has left.
            out.push(Command::Abandon(task.kind));
            self.end_flight(task.id, out);
        } else {
            out.push(Command::Publish(task));
        }
    }

    fn end_flight(&mut self, task: TaskId, out: &mut Vec<Command>) {
        if let Some(flight) = self.flights.remove(&task) {
            *self.out.part(flight.large) -= 1;
            // Children first: the reporting task's own node closes after what it reported.
            for node in flight.earlier.into_iter().chain(flight.reported).rev() {
                self.release(Some(node), out);
            }
            self.release(flight.node, out);
        }
    }

    fn release(&mut self, mut next: Option<NodeId>, out: &mut Vec<Command>) {
        while let Some(id) = next {
            let Some(node) = self.nodes.get_mut(&id) else { return };
            node.holds -= 1;
            if node.holds > 0 {
                return;
            }
            let Some(mut node) = self.nodes.remove(&id) else { return };
            let PartNote { failure, pieces, mut differing } = node.note;
            match &mut node.finish {
                TaskKind::Seal(seal) => (seal.failure, seal.pieces) = (failure, pieces),
                TaskKind::Conclude(conclude) => {
                    (conclude.failure, conclude.pieces) = (failure, pieces);
                }
                TaskKind::Judge(judge) => {
                    judge.failure = failure;
                    judge.differing.append(&mut differing);
                }
                _ => {}
            }
            self.change(|| Change::Released(id));
            let sealed = matches!(node.finish, TaskKind::Seal(_)) && self.changes.is_none();
            if self.stopping && !sealed {
                // A directory stays closed until the next run finishes it; the driver names the rest.
                out.push(Command::Abandon(node.finish));
                next = node.parent;
                continue;
            }
            // The finishing task inherits the node's hold on its parent.
            self.publish_next(node.parent, node.finish, out);
            return;
        }
    }

    fn take_links(&mut self, supply: LinkSupply, out: &mut Vec<Command>) {
        self.fetching = false;
        self.serial = supply.continues;
        self.links_exhausted = supply.exhausted;
        if !supply.groups.is_empty() {
            self.publish_next(None, TaskKind::Links(supply.groups), out);
        }
    }

    fn take_dirty(&mut self, directories: Vec<DirectoryRef>, out: &mut Vec<Command>) {
        self.fetching = false;
        if directories.is_empty() {
            self.phase = if self.surveys { Phase::Catalog } else { Phase::Finished };
        } else {
            self.publish_next(None, TaskKind::Finish(directories), out);
        }
    }

    fn take_survey(&mut self, tasks: Vec<TaskKind>, out: &mut Vec<Command>) {
        self.fetching = false;
        match self.phase {
            Phase::Renames if tasks.is_empty() => {
                self.phase = Phase::Tree;
                self.fetching = true;
                out.push(Command::Begin);
            }
            Phase::Catalog if tasks.is_empty() => self.phase = Phase::Finished,
            _ => self.add(tasks.into_iter().map(|kind| (None, kind)), None, out),
        }
    }

    /// Keeps the window full and changes the phase when the present one has run dry.
    fn advance(&mut self, out: &mut Vec<Command>) {
        if self.fetching {
            return;
        }
        let room = self.room();
        let most = |room: usize| if self.stopping { self.window } else { room };
        let wanted = Portion {
            large: self.shelf.large.min(most(room.large)),
            small: self.shelf.small.min(most(room.small)),
        };
        if wanted.total() > 0 {
            self.fetching = true;
            out.push(Command::Unshelve(wanted));
            return;
        }
        if self.more && !self.stopping && room.small > 0 {
            self.fetching = true;
            out.push(Command::Supply(room.small));
            return;
        }
        let idle = self.flights.is_empty() && self.shelf.total() == 0;
        if idle && !self.ended && (self.stopping || self.phase == Phase::Finished) {
            self.ended = true;
            self.phase = Phase::Finished;
            out.push(Command::Finished);
            return;
        }
        match self.phase {
            Phase::Tree if idle => {
                debug_assert!(self.nodes.is_empty(), "a node without tasks below it is finished");
                self.phase = Phase::Links;
                self.advance(out);
            }
            Phase::Links if self.links_exhausted && idle => {
                self.phase = Phase::Extra;
                self.advance(out);
            }
            Phase::Extra if self.extra_exhausted && idle => {
                self.phase = Phase::Dirty;
                self.advance(out);
            }
            // What lies deeper is gone before anything that holds it goes.
            Phase::Extra if idle => {
                self.fetching = true;
                out.push(Command::FetchExtra);
            }
            Phase::Links if !self.links_exhausted && room.small > 0 && (!self.serial || idle) => {
                self.fetching = true;
                out.push(Command::FetchLinks);
            }
            Phase::Renames | Phase::Catalog if idle => {
                self.fetching = true;
                out.push(Command::FetchSurvey);
            }
            // One batch at a time keeps the order from the deepest directory up.
            Phase::Dirty if idle => {
                self.fetching = true;
                out.push(Command::FetchDirty);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
#[path = "coordinator_tests.rs"]
mod tests;
