//! The coordinator of one job as a state machine: it takes events and returns commands.
//!
//! It knows which tasks are issued, which directories and large files wait for them (*nodes*), and the phase of the
//! job. When nothing below a node is left, a task of its own finishes the node: directories get their times last and
//! deepest first, and a large file is sealed after its chunks. Tasks that exceed the window go to the ledger (the
//! *shelf*) and return last in, first out. This order is depth first, so that memory grows with the depth of the tree
//! and not with its size.
use dmover_model::{
    Budget, DirectoryRef, DoneParts, ErrorClass, NewNode, NewTask, Outcome, PartialFile, SealTask,
    Task, TaskId, TaskKind, Work,
};

mod change_log;
mod in_flight;
mod nodes;
mod phases;
mod task_maker;
mod terms;
mod window;
use change_log::ChangeLog;
use in_flight::InFlightTasks;
use nodes::{Node, Nodes, part_failure};
use phases::Phases;
use task_maker::TaskMaker;
use window::TaskWindow;

pub use phases::Phase;
pub use terms::{
    Change, Command, Input, LeftNode, LinkSupply, NodeId, PartNote, Shelved, TaskCounts,
};

/// The state of one job.
#[derive(Debug)]
pub struct Coordinator {
    /// How many tasks may be issued, and how many are.
    window: TaskWindow,
    /// Numbers new tasks.
    tasks: TaskMaker,
    /// Issued tasks.
    in_flight: InFlightTasks,
    /// Directories and large files that wait for tasks.
    nodes: Nodes,
    /// What the job does at present.
    phases: Phases,
    /// Changes for the journal.
    changes: ChangeLog,
    /// The driver has more tasks to supply.
    more: bool,
    /// A request to the ledger or the driver is not yet answered.
    fetching: bool,
    /// The job takes no new work.
    stopping: bool,
    /// The last command was sent.
    ended: bool,
    /// Movers of an earlier run may still be running.
    fenced: bool,
}

impl Coordinator {
    /// Applies `change` if `holds` is true.
    #[must_use]
    pub fn when(self, holds: bool, change: fn(Self) -> Self) -> Self {
        if holds { change(self) } else { self }
    }

    /// The present phase of the job.
    pub fn phase(&self) -> Phase {
        self.phases.present()
    }

    /// A coordinator that keeps at most about `window` tasks of large files in the queue, and as many others.
    pub fn new(window: usize, budget: Budget) -> Self {
        Self {
            window: TaskWindow::new(window),
            tasks: TaskMaker::new(budget),
            in_flight: InFlightTasks::default(),
            nodes: Nodes::default(),
            phases: Phases::new(),
            changes: ChangeLog::default(),
            more: false,
            fetching: false,
            stopping: false,
            ended: false,
            fenced: false,
        }
    }

    /// For movers that may lose a task at any time: the next holder of the task skips what was already returned.
    #[must_use]
    pub fn remembering(mut self) -> Self {
        self.in_flight.remember();
        self
    }

    /// For a run after movers that may still be running: no mover writes to files that they may write to.
    #[must_use]
    pub fn fenced(self) -> Self {
        Self { fenced: true, ..self }
    }

    /// Sets how many tasks can be in progress at a time. A larger fleet gets larger tasks, so that the coordinator
    /// keeps up with their ends.
    pub fn widen(&mut self, places: usize) {
        self.window.resize(places * 4);
        self.tasks.widen(places);
    }

    /// Records changes for a journal. Then started work stays recorded after a stop.
    #[must_use]
    pub fn journalled(mut self) -> Self {
        self.changes.open();
        self
    }

    /// Uses a catalog: it is checked before the tree and written after it.
    #[must_use]
    pub fn surveying(self) -> Self {
        Self { phases: Phases::surveying(), ..self }
    }

    /// The changes since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.changes.take()
    }

    fn change(&mut self, change: impl FnOnce() -> Change) {
        self.changes.record(self.stopping, change);
    }

    /// The number of tasks that are issued or shelved.
    pub fn pending(&self) -> u64 {
        (self.in_flight.len() + self.window.shelved()) as u64
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
                self.changes.keep_part(self.is_part_done(task, &outcome));
                self.take_outcome(task, outcome, &mut out);
                self.changes.keep_part(false);
            }
            Input::Done(task, outcome) => {
                let work = outcome.work;
                self.changes.keep_part(self.is_part_done(task, &outcome));
                self.take_outcome(task, outcome, &mut out);
                if self.in_flight.is_recorded(task) {
                    self.change(|| Change::Ended(task, work));
                }
                self.changes.keep_part(false);
                self.end_flight(task, &mut out);
            }
            Input::Expired(task) => self.expired(task, &mut out),
            Input::Returned(task) => self.returned(task, &mut out),
            Input::Withdrawn(task) => {
                if matches!(task.kind, TaskKind::Seal(_)) && !self.changes.is_open() {
                    // A large file that was begun is always sealed, or its temporary would stay.
                    out.push(Command::Publish(task));
                } else if let Some(node) = self.in_flight.get(task.id).map(|flight| flight.node) {
                    self.abandon(node, task.kind, &mut out);
                    self.end_flight(task.id, &mut out);
                }
            }
            Input::GivenUp(task) => {
                if let Some(node) = self.in_flight.get(task.id).map(|flight| flight.node)
                    && matches!(
                        task.kind,
                        TaskKind::Chunk(_) | TaskKind::Hash(_) | TaskKind::Compare(_)
                    )
                {
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
                    self.window.unshelve(&task.kind);
                    self.publish(node, task, &mut out);
                }
            }
            Input::Links(supply) => self.take_links(supply, &mut out),
            Input::Dirty(directories) => self.take_dirty(directories, &mut out),
            Input::Extra(tasks) => {
                self.fetching = false;
                self.phases.set_extra(!tasks.is_empty());
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
        let Some(inherited) = self.in_flight.get(task).map(|flight| flight.node) else { return };
        for NewNode { parent, finish, done } in outcome.nodes {
            let parent = self.in_flight.resolve(task, parent);
            let node = self.nodes.number();
            self.change(|| Change::Waiting { node, parent, finish: finish.clone() });
            self.nodes.add(node, parent, finish);
            let DoneParts { ranges: covered, pieces } = done;
            self.note_parts(node, PartNote { covered, pieces, ..PartNote::default() });
            self.in_flight.add_node(task, node);
        }
        if let Some(id) = inherited.filter(|id| self.nodes.has(*id)) {
            let (failure, differing) = (outcome.chunk_failure, outcome.differing);
            let covered = outcome.covered.into_iter().collect();
            let pieces = outcome.pieces.into_iter().collect();
            self.note_parts(id, PartNote { failure, covered, pieces, differing });
        }
        if !outcome.links.is_empty() {
            self.phases.add_links();
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
            self.phases.set_extra(true);
            out.push(Command::RecordExtra(outcome.extra));
        }
        let tasks: Vec<_> = outcome
            .tasks
            .into_iter()
            .map(|NewTask { parent, kind }| (self.in_flight.resolve(task, parent), kind))
            .collect();
        self.in_flight.give(task, tasks.iter().map(|(_, kind)| kind));
        self.add(tasks.into_iter(), Some(task), out);
    }

    fn note_parts(&mut self, id: NodeId, note: PartNote) {
        if note == PartNote::default() {
            return;
        }
        self.change(|| Change::Noted(id, note.clone()));
        self.nodes.note(id, note);
    }

    /// Takes over the state of an earlier run. Nodes with nothing below them were about to be finished.
    fn resume(
        &mut self,
        nodes: Vec<LeftNode>,
        (task, node): (TaskId, NodeId),
        out: &mut Vec<Command>,
    ) {
        self.tasks.skip_to(task);
        self.phases.begin_tree();
        // The tasks come next.
        self.fetching = true;
        for id in self.nodes.resume(nodes, node) {
            self.release(Some(id), out);
        }
    }

    /// Publishes as many tasks as the window allows and shelves the rest.
    fn add(
        &mut self,
        tasks: impl Iterator<Item = (Option<NodeId>, TaskKind)>,
        origin: Option<TaskId>,
        out: &mut Vec<Command>,
    ) {
        let mut shelved = Vec::new();
        let lost = origin.map_or(Vec::new(), |origin| self.in_flight.lost(origin));
        for (node, kind) in tasks {
            self.nodes.hold(node);
            let mut task = Shelved { node, task: self.tasks.make(kind) };
            task.task.lost_above.clone_from(&lost);
            if !task.task.kind.is_begun_anew() {
                self.change(|| Change::Added { task: task.clone(), origin });
            }
            // Dropping it because of a stop is not recorded.
            let keeps_part = self.changes.keep_part(false);
            self.place(task, &mut shelved, out);
            self.changes.keep_part(keeps_part);
        }
        if !shelved.is_empty() {
            out.push(Command::Shelve(shelved));
        }
    }

    /// Puts a task into the queue, or on the shelf if the window is full.
    fn place(&mut self, task: Shelved, shelved: &mut Vec<Shelved>, out: &mut Vec<Command>) {
        let kind = &task.task.kind;
        if self.stopping || *self.window.room().of(kind) > 0 {
            self.publish(task.node, task.task, out);
        } else {
            self.window.shelve(kind);
            shelved.push(task);
        }
    }

    /// Publishes a task that follows from completed work.
    fn publish_next(&mut self, node: Option<NodeId>, kind: TaskKind, out: &mut Vec<Command>) {
        let task = self.tasks.make(kind);
        self.change(|| Change::Added { task: Shelved { node, task: task.clone() }, origin: None });
        self.publish(node, task, out);
    }

    /// Publishes a task that `node` already counts.
    fn publish(&mut self, node: Option<NodeId>, task: Task, out: &mut Vec<Command>) {
        if self.drops(&task.kind) {
            self.abandon(node, task.kind, out);
            self.release(node, out);
            return;
        }
        self.window.issue(&task.kind);
        self.in_flight.begin(&task, node);
        out.push(Command::Publish(task));
    }

    /// Whether a stopping job ends without this task. A started large file is always sealed, so that its temporary file
    /// is removed; a job with a journal resumes it instead.
    fn drops(&self, kind: &TaskKind) -> bool {
        self.stopping && (self.changes.is_open() || !matches!(kind, TaskKind::Seal(_)))
    }

    fn abandon(&mut self, node: Option<NodeId>, kind: TaskKind, out: &mut Vec<Command>) {
        if matches!(kind, TaskKind::Chunk(_) | TaskKind::Hash(_) | TaskKind::Compare(_)) {
            self.fail_node(node, ErrorClass::Cancelled, "the job stopped");
        } else {
            out.push(Command::Abandon(kind));
        }
    }

    fn fail_node(&mut self, node: Option<NodeId>, class: ErrorClass, words: &str) {
        if let Some(id) = node.filter(|id| self.nodes.has(*id)) {
            let failure = Some(Box::new(part_failure(class, words)));
            self.note_parts(id, PartNote { failure, ..PartNote::default() });
        }
    }

    /// A chunk is never leased twice, because its old holder may still be writing: its file is started again with a new
    /// temporary file. Every other task can be repeated as it is.
    fn expired(&mut self, task: Task, out: &mut Vec<Command>) {
        let Some(node) = self.in_flight.get(task.id).map(|flight| flight.node) else { return };
        for id in self.in_flight.change_holder(task.id) {
            self.nodes.leave_to_next_holder(id);
        }
        self.in_flight.lose(&task);
        if matches!(task.kind, TaskKind::Chunk(_)) {
            self.fail_node(node, ErrorClass::Fenced, "a mover lost its lease on a chunk");
            self.change(|| Change::Ended(task.id, Work::default()));
            self.end_flight(task.id, out);
        } else if matches!(task.kind, TaskKind::Sums(_)) {
            // Its files may be pipes, of which a second reader would hash what the first one has left.
            out.push(Command::Abandon(task.kind));
            self.end_flight(task.id, out);
        } else if self.stopping && self.changes.is_open() {
            // No mover takes it any more, and the journal has it for the next run.
            self.abandon(node, task.kind, out);
            self.end_flight(task.id, out);
        } else {
            let given = self.in_flight.given(task.id);
            out.push(Command::Publish(Task { resumed: true, given, ..task }));
        }
    }

    /// Reissues a task that its mover has returned. Unlike after an expired lease, no mover writes to the file any
    /// more: others continue in the same temporary file.
    fn returned(&mut self, task: Task, out: &mut Vec<Command>) {
        if !matches!(task.kind, TaskKind::Chunk(_)) {
            return self.expired(task, out);
        }
        if self.stopping {
            // As one that nobody has taken: what is on record of its file stays.
            if let Some(node) = self.in_flight.get(task.id).map(|flight| flight.node) {
                self.abandon(node, task.kind, out);
                self.end_flight(task.id, out);
            }
        } else if self.in_flight.lose(&task) {
            out.push(Command::Publish(task));
        }
    }

    /// Ends a chunk whose temporary file a mover of an earlier run may still write to: the file is started again in a
    /// new temporary file, with the content of the old one.
    fn give_up_chunk(&mut self, node: Option<NodeId>, task: TaskId, out: &mut Vec<Command>) {
        if let Some(id) = node {
            self.nodes.begin_anew(id);
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
        let task = self.tasks.make(TaskKind::Open { file: large.file, round: large.round });
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
        self.in_flight.is_chunk(task) && outcome.chunk_failure.is_none()
    }

    fn end_flight(&mut self, task: TaskId, out: &mut Vec<Command>) {
        if let Some(flight) = self.in_flight.end(task) {
            self.window.end(flight.is_large);
            let above = flight.node;
            for node in flight.into_nodes() {
                self.release(Some(node), out);
            }
            self.release(above, out);
        }
    }

    fn release(&mut self, mut next: Option<NodeId>, out: &mut Vec<Command>) {
        while let Some(id) = next {
            let Some(node) = self.nodes.release(id) else { return };
            self.change(|| Change::Released(id));
            let Node { parent, is_of_earlier_holder, .. } = node;
            if node.begins_anew
                && let TaskKind::Seal(seal) = node.finish
            {
                return self.begin_again(parent, *seal, node.note, out);
            }
            let finish = node.into_finish();
            next = parent;
            if self.drops(&finish) {
                // A directory stays closed until the next run finishes it; the driver names the rest.
                out.push(Command::Abandon(finish));
                continue;
            }
            if is_of_earlier_holder && let TaskKind::Finish(directories) = finish {
                out.push(Command::RecordDirty(directories));
                // What is above it stays open for whoever finishes it.
                if let Some(above) = parent {
                    self.nodes.leave_to_next_holder(above);
                }
                continue;
            }
            // The finishing task inherits the node's hold on its parent.
            self.publish_next(parent, finish, out);
            return;
        }
    }

    fn take_links(&mut self, supply: LinkSupply, out: &mut Vec<Command>) {
        self.fetching = false;
        self.phases.supply_links(&supply);
        if !supply.groups.is_empty() {
            self.publish_next(None, TaskKind::Links(supply.groups), out);
        }
    }

    fn take_dirty(&mut self, directories: Vec<DirectoryRef>, out: &mut Vec<Command>) {
        self.fetching = false;
        if directories.is_empty() {
            self.phases.end_directories();
        } else {
            self.publish_next(None, TaskKind::Finish(directories), out);
        }
    }

    fn take_survey(&mut self, tasks: Vec<TaskKind>, out: &mut Vec<Command>) {
        self.fetching = false;
        if !tasks.is_empty() {
            self.add(tasks.into_iter().map(|kind| (None, kind)), None, out);
        } else if self.phases.end_survey() {
            self.fetching = true;
            out.push(Command::Begin);
        }
    }

    /// Keeps the window full, and changes the phase when the present one has no work left.
    fn advance(&mut self, out: &mut Vec<Command>) {
        if self.fetching {
            return;
        }
        let room = self.window.room();
        let wanted = self.window.wanted(self.stopping);
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
        let idle = self.in_flight.is_empty() && self.window.shelved() == 0;
        if idle && !self.ended && (self.stopping || self.phase() == Phase::Finished) {
            self.ended = true;
            self.phases.finish();
            out.push(Command::Finished);
            return;
        }
        debug_assert!(
            !idle || self.phase() != Phase::Tree || self.nodes.is_empty(),
            "a node without tasks below it is finished"
        );
        if let Some(request) = self.phases.request(idle, room.small > 0) {
            self.fetching = true;
            out.push(request);
        }
    }
}

#[cfg(test)]
#[path = "coordinator_tests.rs"]
mod tests;
