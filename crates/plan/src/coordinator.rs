//! The coordinator of one job as a state machine: it takes events and returns commands.
//!
//! It knows which tasks are issued, which directories and large files wait for them (*nodes*), and the phase of the
//! job. When nothing below a node is left, a task of its own finishes the node: directories get their times last and
//! deepest first, and a large file is sealed after its chunks. Tasks that exceed the window go to the ledger (the
//! *shelf*) and return last in, first out. This order is depth first, so that memory grows with the depth of the tree
//! and not with its size.
use dmover_model::{
    Budget, DirectoryRef, DoneParts, EntryError, ErrorClass, NewNode, NewTask, Operation, Outcome,
    Parent, PartialFile, PathBytes, SealTask, Side, Task, TaskId, TaskKind, TreePath, Work,
};
use std::collections::HashMap;

mod terms;

pub use terms::{
    Change, Command, Input, LeftNode, LinkSupply, NodeId, PartNote, Shelved, TaskCounts,
};

/// If a task has returned more names than this, they are scanned again instead of being remembered.
const GIVEN_MAX: usize = 1 << 16;
/// The aimed number of tasks that end per second, whatever the number of movers.
const TASKS_PER_S: u64 = 2000;
/// The longest time budget of a task.
const TIME_MS_MAX: u64 = 30_000;
/// With this many large files that wait to be started, the scan for more entries waits.
const UNOPENED_MAX: usize = 4096;

#[derive(Debug)]
struct Node {
    parent: Option<NodeId>,
    /// The number of open tasks and nodes below it, and the task that reported it.
    holds: u64,
    finish: TaskKind,
    note: PartNote,
    /// A mover of an earlier run may still write to its temporary file: this run starts the file again.
    begins_anew: bool,
    /// The task that reported it has begun again, and has its own node for the same directory: movers may still be at
    /// work in it when nothing below this node is left. It is finished with the directories that links have changed.
    is_of_earlier_holder: bool,
}

#[derive(Debug)]
struct InFlightTask {
    node: Option<NodeId>,
    large: bool,
    /// It is a chunk of a large file.
    chunk: bool,
    /// It is not recorded in the journal.
    begun_anew: bool,
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

/// The phase of a job. The phases follow each other in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Renames at the source since the last pass are repeated at the destination.
    Renames,
    /// The tree is scanned and its entries are copied, compared or hashed.
    Tree,
    /// The additional names of files with several hard links are created.
    Links,
    /// Names that only the destination has are deleted.
    Extra,
    /// Completed directories get their times.
    Dirty,
    /// The catalog is updated with the state of both sides.
    Catalog,
    /// Every task has ended.
    Finished,
}

/// The state of one job.
#[derive(Debug)]
pub struct Coordinator {
    /// The most tasks that may be issued, counted for large files and for others separately, so that neither delays the
    /// other.
    window: usize,
    /// The budget of one task: the initial one, and the present one.
    base: Budget,
    budget: Budget,
    next_task: u64,
    next_node: u64,
    flights: HashMap<TaskId, InFlightTask>,
    out: TaskCounts,
    nodes: HashMap<NodeId, Node>,
    shelf: TaskCounts,
    /// The driver has more tasks to supply.
    more: bool,
    /// The number of shelved large files that no mover has started.
    unopened: usize,
    phase: Phase,
    /// A request to the ledger is not yet answered.
    fetching: bool,
    /// The next link groups continue a group that is still in progress.
    serial: bool,
    links_exhausted: bool,
    extra_exhausted: bool,
    /// The job has a catalog.
    surveys: bool,
    stopping: bool,
    ended: bool,
    /// Changes for the journal; `None`: there is no journal.
    changes: Option<Vec<Change>>,
    /// Paths that tasks return are remembered until the tasks end.
    remembers: bool,
    /// Movers of an earlier run may still be running.
    fenced: bool,
    /// The present change is recorded even though the job stops: a part of a large file is done.
    keeps_part: bool,
}

impl Coordinator {
    /// Applies `change` if `holds` is true.
    #[must_use]
    pub fn when(self, holds: bool, change: fn(Self) -> Self) -> Self {
        if holds { change(self) } else { self }
    }

    /// The present phase of the job.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// A coordinator that keeps at most about `window` tasks of large files in the queue, and as many others.
    pub fn new(window: usize, budget: Budget) -> Self {
        Self {
            window: window.max(1),
            base: budget,
            budget,
            next_task: 0,
            next_node: 0,
            flights: HashMap::new(),
            out: TaskCounts::default(),
            nodes: HashMap::new(),
            shelf: TaskCounts::default(),
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
            remembers: false,
            fenced: false,
            keeps_part: false,
        }
    }

    /// For movers that may lose a task at any time: the next holder of the task skips what was already returned.
    #[must_use]
    pub fn remembering(self) -> Self {
        Self { remembers: true, ..self }
    }

    /// For a run after movers that may still be running: no mover writes to files that they may write to.
    #[must_use]
    pub fn fenced(self) -> Self {
        Self { fenced: true, ..self }
    }

    /// Sets how many tasks can be in progress at a time. A larger fleet gets larger tasks, so that the coordinator
    /// keeps up with their ends.
    pub fn widen(&mut self, places: usize) {
        self.window = (places * 4).max(1);
        let time_ms = (places as u64 * 1000 / TASKS_PER_S).clamp(self.base.time_ms, TIME_MS_MAX);
        let entries = self.base.entries * time_ms / self.base.time_ms.max(1);
        self.budget = Budget { time_ms, entries, ..self.base };
    }

    /// Records changes for a journal. Then started work stays recorded after a stop.
    #[must_use]
    pub fn journalled(self) -> Self {
        Self { changes: Some(Vec::new()), ..self }
    }

    /// Uses a catalog: it is checked before the tree and written after it.
    #[must_use]
    pub fn surveying(self) -> Self {
        Self { surveys: true, phase: Phase::Renames, ..self }
    }

    /// The changes since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn change(&mut self, change: impl FnOnce() -> Change) {
        // The run that resumes the job repeats everything that happens after a stop.
        let counts = !self.stopping || self.keeps_part;
        if let Some(changes) = self.changes.as_mut().filter(|_| counts) {
            changes.push(change());
        }
    }

    /// The number of tasks that are issued or shelved.
    pub fn pending(&self) -> u64 {
        (self.flights.len() + self.shelf.total()) as u64
    }

    /// Takes an event and returns the commands that follow, in order.
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
                    if self.fenced && matches!(left.task.kind, TaskKind::Chunk(_)) {
                        self.give_up_chunk(left.node, left.task.id, &mut out);
                    } else {
                        self.place(left, &mut shelved, &mut out);
                    }
                }
                if !shelved.is_empty() {
                    out.push(Command::Shelve(shelved));
                }
            }
            Input::Report(task, outcome) => {
                self.keeps_part = self.is_part_done(task, &outcome);
                self.take_outcome(task, outcome, &mut out);
                self.keeps_part = false;
            }
            Input::Done(task, outcome) => {
                let work = outcome.work;
                self.keeps_part = self.is_part_done(task, &outcome);
                self.take_outcome(task, outcome, &mut out);
                if self.flights.get(&task).is_some_and(|flight| !flight.begun_anew) {
                    self.change(|| Change::Ended(task, work));
                }
                self.keeps_part = false;
                self.end_flight(task, &mut out);
            }
            Input::Expired(task) => self.expired(task, &mut out),
            Input::Returned(task) => self.returned(task, &mut out),
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
            Input::GivenUp(task) => {
                if let Some(flight) = self.flights.get(&task.id)
                    && matches!(
                        task.kind,
                        TaskKind::Chunk(_) | TaskKind::Hash(_) | TaskKind::Compare(_)
                    )
                {
                    let node = flight.node;
                    self.fail_node(
                        node,
                        ErrorClass::Fenced,
                        "all movers that had a part of it lost their lease",
                    );
                }
                self.change(|| Change::Ended(task.id, Work::default()));
                self.end_flight(task.id, &mut out);
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
        for NewNode { parent, finish, done } in outcome.nodes {
            let parent = self.resolve(task, inherited, parent);
            self.hold(parent);
            let id = NodeId(self.next_node);
            self.next_node += 1;
            self.change(|| Change::Waiting { node: id, parent, finish: finish.clone() });
            let note = PartNote::default();
            let node = Node {
                parent,
                holds: 1,
                finish,
                note,
                begins_anew: false,
                is_of_earlier_holder: false,
            };
            self.nodes.insert(id, node);
            let DoneParts { ranges: covered, pieces } = done;
            self.note_parts(id, PartNote { covered, pieces, ..PartNote::default() });
            if let Some(flight) = self.flights.get_mut(&task) {
                flight.reported.push(id);
            }
        }
        if let Some(id) = inherited.filter(|id| self.nodes.contains_key(id)) {
            let (failure, differing) = (outcome.chunk_failure, outcome.differing);
            let covered = outcome.covered.into_iter().collect();
            let pieces = outcome.pieces.into_iter().collect();
            self.note_parts(id, PartNote { failure, covered, pieces, differing });
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
        if self.remembers
            && let Some(flight) = self.flights.get_mut(&task)
            && flight.given.len() <= GIVEN_MAX
        {
            flight.given.extend(tasks.iter().flat_map(|(_, kind)| kind.gives()));
        }
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

    /// Takes over the state of an earlier run. Nodes with nothing below them were about to be finished.
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
            let holds = holds.max(1);
            let node = Node {
                parent,
                holds,
                finish,
                note,
                begins_anew: false,
                is_of_earlier_holder: true,
            };
            self.nodes.insert(id, node);
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

    fn room(&self) -> TaskCounts {
        let TaskCounts { large, small } = self.out;
        let left = |out: usize| self.window.saturating_sub(out);
        let mut room = TaskCounts { large: left(large), small: left(small) };
        if self.unopened >= UNOPENED_MAX {
            // Each holds a directory open in memory: the search waits until some are done.
            room.small = 0;
        }
        room
    }

    /// Publishes as many tasks as the window allows and shelves the rest.
    fn add(
        &mut self,
        tasks: impl Iterator<Item = (Option<NodeId>, TaskKind)>,
        origin: Option<TaskId>,
        out: &mut Vec<Command>,
    ) {
        let mut shelved = Vec::new();
        let from = origin.and_then(|origin| self.flights.get(&origin));
        let lost = from.map_or(Vec::new(), |flight| flight.lost.clone());
        for (node, kind) in tasks {
            self.hold(node);
            let mut task = Shelved { node, task: self.number(kind) };
            task.task.lost_above.clone_from(&lost);
            if !task.task.kind.is_begun_anew() {
                self.change(|| Change::Added { task: task.clone(), origin });
            }
            // Dropping it because of a stop is not recorded.
            let keeps_part = std::mem::take(&mut self.keeps_part);
            self.place(task, &mut shelved, out);
            self.keeps_part = keeps_part;
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

    /// Puts a task into the queue, or on the shelf if the window is full.
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

    /// Publishes a task that follows from completed work.
    fn publish_next(&mut self, node: Option<NodeId>, kind: TaskKind, out: &mut Vec<Command>) {
        let task = self.number(kind);
        self.change(|| Change::Added { task: Shelved { node, task: task.clone() }, origin: None });
        self.publish(node, task, out);
    }

    /// Publishes a task that `node` already counts.
    fn publish(&mut self, node: Option<NodeId>, task: Task, out: &mut Vec<Command>) {
        // A started large file is always sealed, so that its temporary file is removed; a job with a journal resumes it
        // instead.
        let sealed = matches!(task.kind, TaskKind::Seal(_)) && self.changes.is_none();
        if self.stopping && !sealed {
            self.abandon(node, task.kind, out);
            self.release(node, out);
            return;
        }
        *self.out.of(&task.kind) += 1;
        let (large, begun_anew) = (task.kind.is_large(), task.kind.is_begun_anew());
        let chunk = matches!(task.kind, TaskKind::Chunk(_));
        let (reported, earlier, given) = (Vec::new(), Vec::new(), task.given.clone());
        let lost = task.lost_leases().collect();
        let flight =
            InFlightTask { node, large, chunk, begun_anew, reported, earlier, given, lost };
        self.flights.insert(task.id, flight);
        out.push(Command::Publish(task));
    }

    fn abandon(&mut self, node: Option<NodeId>, kind: TaskKind, out: &mut Vec<Command>) {
        if matches!(kind, TaskKind::Chunk(_) | TaskKind::Hash(_) | TaskKind::Compare(_)) {
            self.fail_node(node, ErrorClass::Cancelled, "the job stopped");
        } else {
            out.push(Command::Abandon(kind));
        }
    }

    fn fail_node(&mut self, node: Option<NodeId>, class: ErrorClass, words: &str) {
        if let Some(id) = node.filter(|id| self.nodes.contains_key(id)) {
            let failure = Some(Box::new(part_failure(class, words)));
            self.note_parts(id, PartNote { failure, ..PartNote::default() });
        }
    }

    /// A chunk is never leased twice, because its old holder may still be writing: its file is started again with a new
    /// temporary file. Every other task can be repeated as it is.
    fn expired(&mut self, task: Task, out: &mut Vec<Command>) {
        let Some(flight) = self.flights.get_mut(&task.id) else { return };
        for id in &flight.reported {
            if let Some(node) = self.nodes.get_mut(id) {
                node.is_of_earlier_holder = true;
            }
        }
        flight.earlier.append(&mut flight.reported);
        flight.lost = task.lost_leases().collect();
        if matches!(task.kind, TaskKind::Chunk(_)) {
            let node = flight.node;
            self.fail_node(node, ErrorClass::Fenced, "a mover lost its lease on a chunk");
            self.change(|| Change::Ended(task.id, Work::default()));
            self.end_flight(task.id, out);
        } else if matches!(task.kind, TaskKind::Sums(_)) {
            // Its files may be pipes, of which a second reader would hash what the first one has left.
            out.push(Command::Abandon(task.kind));
            self.end_flight(task.id, out);
        } else if self.stopping && self.changes.is_some() {
            // No mover takes it any more, and the journal has it for the next run.
            let node = flight.node;
            self.abandon(node, task.kind, out);
            self.end_flight(task.id, out);
        } else {
            let mut given = flight.given.clone();
            if given.len() > GIVEN_MAX {
                given.clear();
            }
            given.sort_unstable();
            out.push(Command::Publish(Task { resumed: true, given, ..task }));
        }
    }

    /// Reissues a task that its mover has returned. Unlike after an expired lease, no mover writes to the file any
    /// more: others continue in the same temporary file.
    fn returned(&mut self, task: Task, out: &mut Vec<Command>) {
        if self.stopping || !matches!(task.kind, TaskKind::Chunk(_)) {
            return self.expired(task, out);
        }
        if let Some(flight) = self.flights.get_mut(&task.id) {
            flight.lost = task.lost_leases().collect();
            out.push(Command::Publish(task));
        }
    }

    /// Ends a chunk whose temporary file a mover of an earlier run may still write to: the file is started again in a
    /// new temporary file, with the content of the old one.
    fn give_up_chunk(&mut self, node: Option<NodeId>, task: TaskId, out: &mut Vec<Command>) {
        if let Some(node) = node.and_then(|id| self.nodes.get_mut(&id)) {
            node.begins_anew = true;
        }
        self.change(|| Change::Ended(task, Work::default()));
        self.release(node, out);
    }

    /// Begins a large file again, with what an earlier run has done of it.
    fn begin_again(
        &mut self,
        parent: Option<NodeId>,
        SealTask { large, .. }: SealTask,
        note: PartNote,
        out: &mut Vec<Command>,
    ) {
        let task = self.number(TaskKind::Open { file: large.file, round: large.round });
        let (node, added) = (parent, task.clone());
        self.change(|| Change::Added { task: Shelved { node, task: added }, origin: None });
        let partial = PartialFile {
            temporary: large.temporary,
            inode: large.temporary_identity.inode,
            version: Some(large.version),
            shape: large.shape,
            patched: large.patched,
            done: DoneParts { ranges: note.covered, pieces: note.pieces },
            fenced: true,
            changed: None,
            until: None,
        };
        self.publish(parent, Task { partial: Some(Box::new(partial)), ..task }, out);
    }

    /// Whether a part of a large file is done; this counts even if the job stops.
    fn is_part_done(&self, task: TaskId, outcome: &Outcome) -> bool {
        let is_chunk = self.flights.get(&task).is_some_and(|flight| flight.chunk);
        is_chunk && outcome.chunk_failure.is_none()
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
            if node.begins_anew
                && let TaskKind::Seal(seal) = node.finish
            {
                self.change(|| Change::Released(id));
                return self.begin_again(node.parent, *seal, node.note, out);
            }
            if node.note.failure.is_none() && !node.note.covers(&node.finish) {
                let words = "some of its parts were not reported as done";
                node.note.failure = Some(Box::new(part_failure(ErrorClass::Fenced, words)));
            }
            let PartNote { failure, pieces, mut differing, .. } = node.note;
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
            let is_seal = matches!(node.finish, TaskKind::Seal(_));
            // A file that was begun is left to the next run, or removed, by a mover.
            if self.stopping && !(is_seal && self.changes.is_none()) {
                // A directory stays closed until the next run finishes it; the driver names the rest.
                out.push(Command::Abandon(node.finish));
                next = node.parent;
                continue;
            }
            if node.is_of_earlier_holder
                && let TaskKind::Finish(directories) = node.finish
            {
                out.push(Command::RecordDirty(directories));
                next = node.parent;
                // What is above it stays open for whoever finishes it.
                if let Some(above) = next.and_then(|id| self.nodes.get_mut(&id)) {
                    above.is_of_earlier_holder = true;
                }
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

    /// Keeps the window full, and changes the phase when the present one has no work left.
    fn advance(&mut self, out: &mut Vec<Command>) {
        if self.fetching {
            return;
        }
        let room = self.room();
        let most = |room: usize| if self.stopping { self.window } else { room };
        let wanted = TaskCounts {
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
            // Deeper names are deleted before the directories that contain them.
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

/// The failure of a part; the task that ends the file adds the path.
fn part_failure(class: ErrorClass, words: &str) -> EntryError {
    let (side, path) = (Side::Destination, PathBytes::default());
    EntryError::plain(side, Operation::Write, class, path, words)
}

#[cfg(test)]
#[path = "coordinator_tests.rs"]
mod tests;
