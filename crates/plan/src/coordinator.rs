//! The coordinator as a state machine: events in, commands out.
//!
//! It owns one job. It knows which tasks are out, which directories and large files wait for them
//! (*nodes*), and in which phase the job is. A node ends with a task of its own as soon as nothing
//! below it is left, so directories get their times last and deepest first, and a large file is
//! sealed when its chunks have settled. What exceeds the window goes to the ledger (the *shelf*) and
//! comes back last in, first out: depth first, so that memory follows depth and not the tree.
use dmover_model::{
    Budget, DirectoryRef, DoneParts, EntryError, ErrorClass, LargeNews, NewNode, NewTask,
    Operation, Outcome, Parent, PartialFile, PathBytes, SealTask, Side, Task, TaskId, TaskKind,
    TreePath, Work,
};
use std::collections::HashMap;

mod terms;

pub use terms::{Change, Command, Input, LeftNode, LinkSupply, NodeId, PartNote, Portion, Shelved};

/// More names than these are looked at again instead of being remembered as handed on.
const GIVEN_MAX: usize = 1 << 16;
/// About so many tasks end in a second, however many movers there are.
const TASKS_PER_S: u64 = 2000;
/// No task takes longer on purpose.
const TIME_MS_MAX: u64 = 30_000;
/// From so many large files on that wait to be begun, the search for more entries waits for them.
const UNOPENED_MAX: usize = 4096;

#[derive(Debug)]
struct Node {
    parent: Option<NodeId>,
    /// Tasks and nodes that hang on it, and the task that reported it.
    holds: u64,
    finish: TaskKind,
    note: PartNote,
    resumption: Resumption,
}

/// What another run can do with a large file that this one does not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resumption {
    /// Nothing of it is on storage.
    Nothing,
    /// Parts of it are on storage, and nobody else writes to it.
    Continues,
    /// A mover that has lost a part of it may still write to it.
    Lost,
    /// The same of a mover of the run before: this run begins the file again.
    Anew,
}

#[derive(Debug)]
struct Flight {
    node: Option<NodeId>,
    large: bool,
    /// It is a chunk of a large file.
    chunk: bool,
    /// No journal hears of it.
    begun_anew: bool,
    /// Nodes this task has reported; they stay open as long as it may report more below them.
    reported: Vec<NodeId>,
    /// Nodes that holders of an earlier lease have reported: still to be finished, but the present
    /// holder counts its own from zero.
    earlier: Vec<NodeId>,
    /// What it has handed on, if that is remembered.
    given: Vec<TreePath>,
    /// Leases that ran out on it and on those above it: what it hands on may have been begun under them.
    lost: Vec<u32>,
}

/// What a job does at present. The phases follow each other in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Renames of the source since the last pass are repeated at the destination.
    Renames,
    /// The tree is read, and copied, compared or hashed.
    Tree,
    /// Further names of files with several hard links are made.
    Links,
    /// Names that only the destination has are deleted.
    Extra,
    /// Directories whose content is complete get their times.
    Dirty,
    /// The catalog is brought up to date with both sides.
    Catalog,
    /// Every task has ended.
    Finished,
}

/// The state of one job.
#[derive(Debug)]
pub struct Coordinator {
    /// Tasks that may be out, of large files and of others each, so that neither keeps the other waiting.
    window: usize,
    /// What one task may spend: at first, and now.
    base: Budget,
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
    /// What tasks hand on is remembered until they end.
    remembers: bool,
    /// Whoever had tasks of the earlier run may be at work still.
    fenced: bool,
    /// What changes now goes on record although the job stops: a part of a large file is done.
    keeps_part: bool,
}

impl Coordinator {
    /// The same, changed if a condition holds.
    #[must_use]
    pub fn when(self, holds: bool, change: fn(Self) -> Self) -> Self {
        if holds { change(self) } else { self }
    }

    /// What the job does at present.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// A coordinator that keeps at most about `window` tasks of large files on the queue, and as many others.
    pub fn new(window: usize, budget: Budget) -> Self {
        Self {
            window: window.max(1),
            base: budget,
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
            remembers: false,
            fenced: false,
            keeps_part: false,
        }
    }

    /// The same for movers that may lose a task any time: whoever gets it then leaves alone what was handed on.
    #[must_use]
    pub fn remembering(self) -> Self {
        Self { remembers: true, ..self }
    }

    /// The same after a run whose movers may have outlived it: nobody writes into what they may write into.
    #[must_use]
    pub fn fenced(self) -> Self {
        Self { fenced: true, ..self }
    }

    /// So many tasks can be in hand at a time. A large fleet gets larger tasks: who decides has to keep up with their ends.
    pub fn widen(&mut self, places: usize) {
        self.window = (places * 4).max(1);
        let time_ms = (places as u64 * 1000 / TASKS_PER_S).clamp(self.base.time_ms, TIME_MS_MAX);
        let entries = self.base.entries * time_ms / self.base.time_ms.max(1);
        self.budget = Budget { time_ms, entries, ..self.base };
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
        let counts = !self.stopping || self.keeps_part;
        if let Some(changes) = self.changes.as_mut().filter(|_| counts) {
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
            let is_known = !done.ranges.is_empty();
            let resumption = if is_known { Resumption::Continues } else { Resumption::Nothing };
            self.nodes.insert(id, Node { parent, holds: 1, finish, note, resumption });
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
            let is_flushed = |news: &LargeNews| matches!(news, LargeNews::Flushed { .. });
            if outcome.large.iter().any(is_flushed)
                && let Some(node) = self.nodes.get_mut(&id)
                && node.resumption == Resumption::Nothing
            {
                node.resumption = Resumption::Continues;
            }
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
            let (holds, resumption) = (holds.max(1), Resumption::Nothing);
            self.nodes.insert(id, Node { parent, holds, finish, note, resumption });
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
        let from = origin.and_then(|origin| self.flights.get(&origin));
        let lost = from.map_or(Vec::new(), |flight| flight.lost.clone());
        for (node, kind) in tasks {
            self.hold(node);
            let mut task = Shelved { node, task: self.number(kind) };
            task.task.lost_above.clone_from(&lost);
            if !task.task.kind.is_begun_anew() {
                self.change(|| Change::Added { task: task.clone(), origin });
            }
            // That it is given up because of a stop does not go on record.
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
        let chunk = matches!(task.kind, TaskKind::Chunk(_));
        let (reported, earlier, given) = (Vec::new(), Vec::new(), task.given.clone());
        let lost = task.lost_leases().collect();
        let flight = Flight { node, large, chunk, begun_anew, reported, earlier, given, lost };
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

    /// A chunk is never leased twice: whoever held it may still be writing. Its file is taken again
    /// with a fresh temporary. Every other task can be repeated as it is.
    fn expired(&mut self, task: Task, out: &mut Vec<Command>) {
        let Some(flight) = self.flights.get_mut(&task.id) else { return };
        flight.earlier.append(&mut flight.reported);
        flight.lost = task.lost_leases().collect();
        if matches!(task.kind, TaskKind::Chunk(_)) {
            let node = flight.node;
            self.fail_node(node, ErrorClass::Fenced, "a mover lost its lease on a chunk");
            if let Some(node) = node.and_then(|id| self.nodes.get_mut(&id)) {
                node.resumption = Resumption::Lost;
            }
            self.change(|| Change::Ended(task.id, Work::default()));
            self.end_flight(task.id, out);
        } else if matches!(task.kind, TaskKind::Sums(_)) {
            // Its files may be pipes, of which a second reader would hash what the first one has left.
            out.push(Command::Abandon(task.kind));
            self.end_flight(task.id, out);
        } else if self.stopping && self.changes.is_some() {
            // Nobody takes it any more, and whoever goes on has it on record.
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

    /// Unlike after a lease that ran out, nobody is at a part of a file any more: others do what is left of it in the very same temporary.
    fn returned(&mut self, task: Task, out: &mut Vec<Command>) {
        if self.stopping || !matches!(task.kind, TaskKind::Chunk(_)) {
            return self.expired(task, out);
        }
        if let Some(flight) = self.flights.get_mut(&task.id) {
            flight.lost = task.lost_leases().collect();
            out.push(Command::Publish(task));
        }
    }

    /// Somebody of an earlier run may be about to write into the file that this chunk belongs to: the file is begun again,
    /// with what its temporary has, but never in it.
    fn give_up_chunk(&mut self, node: Option<NodeId>, task: TaskId, out: &mut Vec<Command>) {
        if let Some(node) = node.and_then(|id| self.nodes.get_mut(&id)) {
            node.resumption = Resumption::Anew;
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

    /// Whether part of a large file is done, also if the job stops.
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
            if node.resumption == Resumption::Anew
                && let TaskKind::Seal(seal) = node.finish
            {
                self.change(|| Change::Released(id));
                return self.begin_again(node.parent, *seal, node.note, out);
            }
            if node.note.failure.is_none() && !node.note.covers(&node.finish) {
                let words = "some of its parts were not reported as done";
                node.note.failure = Some(Box::new(part_failure(ErrorClass::Fenced, words)));
            }
            let continues = node.resumption == Resumption::Continues && node.note.failure.is_some();
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
            let sealed = is_seal && self.changes.is_none() && !continues;
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

/// A failure of a part, of which whoever ends the file knows the path.
fn part_failure(class: ErrorClass, words: &str) -> EntryError {
    let (side, path) = (Side::Destination, PathBytes::default());
    EntryError::plain(side, Operation::Write, class, path, words)
}

#[cfg(test)]
#[path = "coordinator_tests.rs"]
mod tests;
