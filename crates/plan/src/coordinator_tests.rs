use super::window::UNOPENED_MAX;
use super::*;
use dmover_model::{
    ByteRange, ChunkTask, Digest, DirectoryRef, EntryError, ExtraNames, FileRef, FinishHashTask,
    HashTask, HashType, HashedFile, HashedPieces, Identity, LargeFile, Name, Operation, Parent,
    PathBytes, RootId, ScanNames, SealTask, Shape, Side, SumItem, Timestamp, TreePath, Version,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[path = "coordinator_parts_tests.rs"]
mod parts;

const BUDGET: Budget = Budget { entries: 10, bytes: 10, time_ms: 10 };

fn directory(path: &str) -> DirectoryRef {
    DirectoryRef {
        root: RootId(0),
        path: TreePath::new(path.as_bytes()).unwrap(),
        source: Identity::default(),
        destination: Identity::default(),
        made: false,
        ancestors: Vec::new(),
    }
}

fn name_of(directory: &DirectoryRef) -> String {
    String::from_utf8(directory.path.as_bytes().to_vec()).unwrap()
}

fn large(path: &str, round: u32) -> LargeFile {
    let name = Name::new(*b"big").unwrap();
    let zero = Timestamp::default();
    let identity = Identity::default();
    LargeFile {
        file: FileRef {
            directory: directory(path),
            name: name.clone(),
            destination_name: name.clone(),
        },
        temporary: name,
        temporary_identity: identity,
        version: Version { identity, size: CHUNKS as u64, mtime: zero, ctime: zero },
        round,
        replaces: false,
        opened_ms: 0,
        shape: None,
        patched: false,
    }
}

/// A world of directories, each with subdirectories and perhaps one large file, in which movers run
/// tasks in a random order, lose leases and are stopped.
struct World {
    coordinator: Coordinator,
    /// Subdirectories of each directory, by path.
    tree: BTreeMap<String, Vec<String>>,
    out: Vec<Task>,
    shelf: Vec<Shelved>,
    dirty: Vec<DirectoryRef>,
    extra: Vec<ExtraNames>,
    deleted: usize,
    finished: BTreeSet<String>,
    scanned: BTreeSet<String>,
    sealed: BTreeMap<String, bool>,
    chunks_done: BTreeMap<String, usize>,
    abandoned: usize,
    largest_window: usize,
    ended: bool,
    book: Book,
}

const CHUNKS: usize = 3;

/// What a journal would hold.
#[derive(Default)]
struct Book {
    tasks: BTreeMap<TaskId, Shelved>,
    nodes: BTreeMap<NodeId, LeftNode>,
    next: (u64, u64),
}

impl Book {
    fn take(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Added { task, .. } => {
                    self.next.0 = self.next.0.max(task.task.id.0 + 1);
                    self.tasks.insert(task.task.id, task);
                }
                Change::Ended(id, _) => assert!(self.tasks.remove(&id).is_some(), "{id:?}"),
                Change::Waiting { node, parent, finish } => {
                    self.next.1 = self.next.1.max(node.0 + 1);
                    let note = PartNote::default();
                    self.nodes.insert(node, LeftNode { id: node, parent, holds: 0, finish, note });
                }
                Change::Noted(id, note) => self.nodes.get_mut(&id).unwrap().note.merge(note),
                Change::Released(id) => assert!(self.nodes.remove(&id).is_some(), "{id:?}"),
            }
        }
    }

    fn left(&self) -> (Vec<LeftNode>, Vec<Shelved>) {
        let mut nodes = self.nodes.clone();
        let above = self.tasks.values().map(|task| task.node);
        for id in above.chain(self.nodes.values().map(|node| node.parent)).flatten() {
            nodes.get_mut(&id).unwrap().holds += 1;
        }
        (nodes.into_values().collect(), self.tasks.values().cloned().collect())
    }
}

impl World {
    fn new(tree: BTreeMap<String, Vec<String>>, window: usize) -> Self {
        let mut world = Self {
            coordinator: Coordinator::new(window, BUDGET),
            tree,
            out: Vec::new(),
            shelf: Vec::new(),
            dirty: Vec::new(),
            extra: Vec::new(),
            deleted: 0,
            finished: BTreeSet::new(),
            scanned: BTreeSet::new(),
            sealed: BTreeMap::new(),
            chunks_done: BTreeMap::new(),
            abandoned: 0,
            largest_window: 0,
            ended: false,
            book: Book::default(),
        };
        let first = TaskKind::Scan { directory: directory(""), names: ScanNames::Root };
        world.feed(Input::Start { tasks: vec![first], more: false });
        world
    }

    fn feed(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let commands = self.coordinator.handle(input);
            self.book.take(self.coordinator.take_changes());
            for command in commands {
                assert!(!self.ended, "a command after the end: {command:?}");
                match command {
                    Command::Publish(task) => self.out.push(task),
                    Command::Shelve(tasks) => self.shelf.extend(tasks),
                    Command::Unshelve(most) => {
                        assert!(most.total() > 0, "nothing was asked for");
                        inputs.push(Input::Unshelved(self.unshelve(most)));
                    }
                    Command::RecordDirty(dirty) => self.dirty.extend(dirty),
                    Command::FetchLinks => {
                        let supply = LinkSupply { exhausted: true, ..LinkSupply::default() };
                        inputs.push(Input::Links(supply));
                    }
                    Command::RecordExtra(names) => self.extra.extend(names),
                    Command::FetchExtra => {
                        assert_eq!(self.coordinator.pending(), 0, "names go when all else is done");
                        let deepest = self.extra.iter().map(ExtraNames::depth).max();
                        let (now, later) = std::mem::take(&mut self.extra)
                            .into_iter()
                            .partition(|names: &ExtraNames| Some(names.depth()) == deepest);
                        self.extra = later;
                        let now: Vec<ExtraNames> = now;
                        let tasks = now.into_iter().map(|names| TaskKind::Delete(vec![names]));
                        inputs.push(Input::Extra(tasks.collect()));
                    }
                    Command::FetchDirty => {
                        let mut dirty = std::mem::take(&mut self.dirty);
                        dirty.sort_by_key(|at| std::cmp::Reverse(at.path.as_bytes().len()));
                        inputs.push(Input::Dirty(dirty));
                    }
                    Command::Withdraw => {
                        inputs.extend(self.out.drain(..).map(Input::Withdrawn));
                    }
                    Command::Abandon(_) => self.abandoned += 1,
                    Command::RecordLinks(_) => unreachable!("no links in this world"),
                    Command::TakeSurvey(_) | Command::FetchSurvey | Command::Begin => {
                        unreachable!("no catalog in this world")
                    }
                    Command::Supply(_) => unreachable!("everything is known at the start"),
                    Command::Finished => self.ended = true,
                }
            }
            self.largest_window = self.largest_window.max(self.out.len());
        }
    }

    /// The process ends; another one goes on with what the journal has.
    fn kill(&mut self, window: usize) {
        self.out.clear();
        self.shelf.clear();
        self.ended = false;
        self.coordinator = Coordinator::new(window, BUDGET).journalled();
        let (nodes, mut tasks) = self.book.left();
        let next = (TaskId(self.book.next.0), NodeId(self.book.next.1));
        self.feed(Input::Resume { nodes, next });
        // Both sides are looked at again for names that are to go.
        self.deleted = 0;
        self.extra = self.scanned.iter().map(|path| extra_in(&directory(path))).collect();
        let rest = tasks.split_off(tasks.len() / 2);
        self.feed(Input::Left { tasks, more: true });
        self.feed(Input::Left { tasks: rest, more: false });
    }

    fn unshelve(&mut self, most: TaskCounts) -> Vec<Shelved> {
        let mut left = most;
        let mut taken = Vec::new();
        for index in (0..self.shelf.len()).rev() {
            let left = left.of(&self.shelf[index].task.kind);
            if *left > 0 {
                *left -= 1;
                taken.push(self.shelf.remove(index));
            }
        }
        assert_eq!(left, TaskCounts::default(), "more was asked for than there is");
        taken
    }

    fn out(&self) -> TaskCounts {
        let mut out = TaskCounts::default();
        self.out.iter().for_each(|task| *out.of(&task.kind) += 1);
        out
    }

    /// Runs one of the tasks that are out.
    fn run(&mut self, index: usize, fail_chunk: bool) {
        let task = self.out.swap_remove(index % self.out.len());
        let mut outcome = Outcome::default();
        match &task.kind {
            TaskKind::Scan { directory: at, .. } => self.scan(at, &mut outcome),
            TaskKind::Open { file, round } => open(file, *round, &mut outcome),
            TaskKind::Chunk(chunk) => {
                let path = name_of(&chunk.large.file.directory);
                *self.chunks_done.entry(path).or_default() += 1;
                outcome.covered = (!fail_chunk).then_some(chunk.range);
                if fail_chunk {
                    let (side, operation) = (Side::Source, Operation::Read);
                    let path = PathBytes::default();
                    let error = EntryError::plain(side, operation, ErrorClass::Changed, path, "");
                    outcome.chunk_failure = Some(Box::new(error));
                }
            }
            TaskKind::Seal(seal) => {
                let path = name_of(&seal.large.file.directory);
                let chunks = self.chunks_done.insert(path.clone(), 0).unwrap_or(0);
                if seal.failure.is_none() {
                    assert_eq!(chunks, CHUNKS, "sealed before its chunks had settled");
                } else if seal.large.round < 2 {
                    let file = seal.large.file.clone();
                    let kind = TaskKind::Open { file, round: seal.large.round + 1 };
                    outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
                }
                self.sealed.insert(path, seal.failure.is_none());
            }
            TaskKind::Finish(directories) => {
                for at in directories {
                    self.finish(&name_of(at));
                }
            }
            TaskKind::Delete(names) => {
                let depth = names[0].depth();
                assert!(self.extra.iter().all(|later| later.depth() < depth), "deepest first");
                let complete = self.finished.len() + self.dirty.len();
                assert!(complete > self.tree.values().map(Vec::len).sum::<usize>());
                self.deleted += names.len();
            }
            other => panic!("unexpected task {other:?}"),
        }
        self.feed(Input::Done(task.id, outcome));
    }

    fn scan(&mut self, at: &DirectoryRef, outcome: &mut Outcome) {
        let path = name_of(at);
        assert!(self.scanned.insert(path.clone()), "{path:?} was scanned twice");
        let finish = TaskKind::Finish(vec![at.clone()]);
        outcome.nodes.push(NewNode::new(Parent::Inherited, finish));
        for below in self.tree.get(&path).into_iter().flatten() {
            let kind = TaskKind::Scan { directory: directory(below), names: ScanNames::Root };
            outcome.tasks.push(NewTask { parent: Parent::New(0), kind });
        }
        outcome.extra.push(extra_in(at));
        let kind = TaskKind::Open { file: large(&path, 1).file, round: 1 };
        outcome.tasks.push(NewTask { parent: Parent::New(0), kind });
    }

    fn finish(&mut self, path: &str) {
        for below in self.tree.get(path).into_iter().flatten() {
            assert!(self.finished.contains(below), "{path:?} was finished before {below:?}");
        }
        assert!(self.sealed.contains_key(path), "{path:?} was finished before its large file");
        assert!(self.finished.insert(path.to_owned()), "{path:?} was finished twice");
    }
}

fn extra_in(at: &DirectoryRef) -> ExtraNames {
    ExtraNames {
        directory: at.clone(),
        below: TreePath::root(),
        holder: Identity::default(),
        in_the_way: false,
        names: Vec::new(),
    }
}

fn open(file: &FileRef, round: u32, outcome: &mut Outcome) {
    let begun = large(&name_of(&file.directory), round);
    let seal = SealTask { large: begun.clone(), failure: None, pieces: Vec::new() };
    let finish = TaskKind::Seal(Box::new(seal));
    outcome.nodes.push(NewNode::new(Parent::Inherited, finish));
    for i in 0..CHUNKS as u64 {
        outcome.tasks.push(NewTask { parent: Parent::New(0), kind: chunk_of(&begun, i) });
    }
}

fn trees() -> impl Strategy<Value = BTreeMap<String, Vec<String>>> {
    // Each number says under which earlier directory the next one lies.
    proptest::collection::vec(any::<prop::sample::Index>(), 0..40).prop_map(|parents| {
        let mut paths = vec![String::new()];
        let mut tree = BTreeMap::<String, Vec<String>>::new();
        for (number, parent) in parents.into_iter().enumerate() {
            let above = paths[parent.index(paths.len())].clone();
            let path =
                if above.is_empty() { format!("d{number}") } else { format!("{above}/d{number}") };
            tree.entry(above).or_default().push(path.clone());
            paths.push(path);
        }
        tree
    })
}

proptest! {
    /// Whatever the order of work: everything is scanned once, files are sealed after their chunks,
    /// directories are finished after everything below them, and then the job ends.
    #[test]
    fn every_order_of_work_completes(
        tree in trees(),
        window in 1usize..8,
        order in proptest::collection::vec((any::<usize>(), 0u8..10), 1..2000),
    ) {
        let directories = 1 + tree.values().map(Vec::len).sum::<usize>();
        let mut world = World::new(tree, window);
        let mut turns = order.iter().cycle();
        let mut steps = 0;
        while !world.ended {
            prop_assert!(!world.out.is_empty(), "nothing is out and the job has not ended");
            let (index, dice) = turns.next().copied().unwrap_or_default();
            world.run(index, dice == 0 && steps < 500);
            steps += 1;
            prop_assert!(steps < 20_000, "the job does not end");
        }
        prop_assert_eq!(world.finished.len(), directories);
        prop_assert_eq!(world.deleted, directories);
        prop_assert_eq!(world.coordinator.pending(), 0);
        prop_assert_eq!(world.abandoned, 0);
    }

    /// Stopped at any time, the job ends: large files that were begun are sealed (so that their
    /// temporaries go), and the rest is named as not attempted.
    #[test]
    fn a_stop_at_any_time_ends_the_job(
        tree in trees(),
        window in 1usize..8,
        before in 0usize..60,
        order in proptest::collection::vec(any::<usize>(), 1..100),
    ) {
        let mut world = World::new(tree, window);
        let mut turns = order.iter().cycle();
        for _ in 0..before {
            if !world.out.is_empty() {
                world.run(turns.next().copied().unwrap_or(0), false);
            }
        }
        let was_done = world.ended;
        if !was_done {
            world.feed(Input::Stop);
        }
        let mut steps = 0;
        while !world.ended {
            prop_assert!(!world.out.is_empty(), "nothing is out and the job has not ended");
            world.run(turns.next().copied().unwrap_or(0), false);
            steps += 1;
            prop_assert!(steps < 1000);
        }
        prop_assert!(world.chunks_done.values().all(|n| *n == 0), "a begun file was not sealed");
        prop_assert_eq!(world.coordinator.pending(), 0);
    }

    /// Killed or stopped at any times and resumed from its journal, a job does everything, and nothing twice that
    /// had been reported.
    #[test]
    fn a_journal_lets_another_run_go_on(
        tree in trees(),
        window in 1usize..8,
        order in proptest::collection::vec((any::<usize>(), 0u8..30), 1..1000),
    ) {
        let directories = 1 + tree.values().map(Vec::len).sum::<usize>();
        let mut world = World::new(tree.clone(), window);
        world.coordinator = Coordinator::new(window, BUDGET).journalled();
        world.out.clear();
        world.shelf.clear();
        let first = TaskKind::Scan { directory: directory(""), names: ScanNames::Root };
        world.feed(Input::Start { tasks: vec![first], more: false });
        let mut turns = order.iter().cycle();
        let mut steps = 0;
        while !world.ended {
            prop_assert!(!world.out.is_empty(), "nothing is out and the job has not ended");
            let (index, dice) = turns.next().copied().unwrap_or_default();
            match dice {
                0 if steps < 500 => world.kill(window),
                1 if steps < 500 => {
                    world.feed(Input::Stop);
                    // What is cut short by the stop tells nothing that counts.
                    while let Some(task) = world.out.pop() {
                        world.feed(Input::Done(task.id, Outcome::default()));
                    }
                    prop_assert!(world.ended);
                    world.kill(window);
                }
                _ => world.run(index, dice == 2 && steps < 500),
            }
            steps += 1;
            prop_assert!(steps < 20_000, "the job does not end");
        }
        prop_assert_eq!(world.finished.len(), directories);
        prop_assert_eq!(world.deleted, directories);
        prop_assert!(world.book.tasks.is_empty() && world.book.nodes.is_empty());
    }

    /// A lost lease on a chunk fails its file, which is taken again; on anything else, and if its mover has given it back, the task is
    /// simply handed out once more.
    #[test]
    fn lost_leases_lose_nothing(
        tree in trees(),
        order in proptest::collection::vec((any::<usize>(), 0u8..5), 1..1000),
    ) {
        let directories = 1 + tree.values().map(Vec::len).sum::<usize>();
        let mut world = World::new(tree, 4);
        let mut turns = order.iter().cycle();
        let mut steps = 0;
        while !world.ended {
            let (index, dice) = turns.next().copied().unwrap_or_default();
            let index = index % world.out.len();
            if dice == 0 && steps < 300 {
                let task = world.out.swap_remove(index);
                if let TaskKind::Chunk(chunk) = &task.kind {
                    // Its file fails as a whole; the count starts anew with the next round.
                    let path = name_of(&chunk.large.file.directory);
                    *world.chunks_done.entry(path).or_default() += 1;
                }
                world.feed(Input::Expired(task));
            } else if dice == 1 && steps < 300 {
                let task = world.out.swap_remove(index);
                world.feed(Input::Returned(task));
            } else {
                world.run(index, false);
            }
            steps += 1;
            prop_assert!(steps < 20_000, "the job does not end");
        }
        prop_assert_eq!(world.finished.len(), directories);
    }
}

/// A scan that an earlier run has begun begins again, and makes entries in directories that the earlier run has
/// reported, also when nothing is left below those.
#[test]
fn directories_of_an_earlier_run_are_finished_after_the_scan_that_begins_again() {
    let scan = |path: &str| TaskKind::Scan { directory: directory(path), names: ScanNames::Root };
    let finish = TaskKind::Finish(vec![directory("d")]);
    let node = NodeId(0);
    let note = PartNote::default();
    let left = |id, node, kind| Shelved { node, task: Task::new(TaskId(id), kind, BUDGET) };
    let mut coordinator = Coordinator::new(4, BUDGET).journalled();
    let nodes = vec![LeftNode { id: node, parent: None, holds: 1, finish, note }];
    coordinator.handle(Input::Resume { nodes, next: (TaskId(2), NodeId(1)) });
    let tasks = vec![left(0, None, scan("")), left(1, Some(node), scan("d/e"))];
    coordinator.handle(Input::Left { tasks, more: false });
    let commands = coordinator.handle(Input::Done(TaskId(1), Outcome::default()));
    assert_eq!(commands, [Command::RecordDirty(vec![directory("d")])]);
    assert!(coordinator.take_changes().contains(&Change::Released(node)));
}

#[test]
fn the_outcome_of_an_unknown_task_is_ignored() {
    let mut coordinator = Coordinator::new(1, BUDGET);
    let first = TaskKind::Scan { directory: directory(""), names: ScanNames::Root };
    coordinator.handle(Input::Start { tasks: vec![first], more: false });
    assert!(coordinator.handle(Input::Done(TaskId(77), Outcome::default())).is_empty());
}

/// One file of any number of chunks leaves room for other work, and is worked on all the same.
#[test]
fn chunks_keep_nothing_else_waiting() {
    let mut world = World::new(BTreeMap::new(), 8);
    let huge = large("", 1);
    let chunks = (0..100).map(|i| NewTask { parent: Parent::New(0), kind: chunk_of(&huge, i) });
    let seal = SealTask { large: huge.clone(), failure: None, pieces: Vec::new() };
    let outcome = Outcome {
        nodes: vec![NewNode::new(Parent::Inherited, TaskKind::Seal(Box::new(seal)))],
        tasks: chunks.collect(),
        ..Outcome::default()
    };
    let first = world.out[0].id;
    world.feed(Input::Report(first, outcome));
    assert_eq!(world.out(), TaskCounts { large: 8, small: 1 });
    let scans = (0..100).map(|i| NewTask {
        parent: Parent::Inherited,
        kind: TaskKind::Scan { directory: directory(&format!("d{i}")), names: ScanNames::Root },
    });
    let outcome = Outcome { tasks: scans.collect(), ..Outcome::default() };
    world.feed(Input::Report(first, outcome));
    assert_eq!(world.out(), TaskCounts { large: 8, small: 8 });
    while let Some(index) = world.out.iter().position(|t| matches!(t.kind, TaskKind::Chunk(_))) {
        let task = world.out.swap_remove(index);
        world.feed(Input::Done(task.id, Outcome::default()));
        assert_eq!(world.out().small, 8);
    }
    world.out.retain(|task| task.id != first);
    world.feed(Input::Done(first, Outcome::default()));
    assert!(world.out.iter().any(|task| matches!(task.kind, TaskKind::Seal(_))));
}

/// Movers take the newest task. A file that was begun takes space, so it is ended before many others begin.
#[test]
fn large_files_are_ended_before_all_are_begun() {
    let mut world = World::new(BTreeMap::new(), 4);
    let first = world.out.remove(0);
    let names: Vec<String> = (0..100).map(|i| format!("d{i}")).collect();
    let opens = names.iter().map(|name| NewTask {
        parent: Parent::Inherited,
        kind: TaskKind::Open { file: large(name, 1).file, round: 1 },
    });
    world.feed(Input::Done(first.id, Outcome { tasks: opens.collect(), ..Outcome::default() }));
    let (mut begun, mut most) = (0_usize, 0);
    while let Some(task) = world.out.last() {
        begun += usize::from(matches!(task.kind, TaskKind::Open { .. }));
        world.run(world.out.len() - 1, false);
        most = most.max(begun - world.sealed.len());
    }
    assert_eq!(world.sealed.len(), 100);
    assert!(most <= 5, "{most} files were begun at one time");
}

/// Every large file that waits holds its directory in memory.
#[test]
fn the_search_waits_when_very_many_large_files_are_found() {
    let mut world = World::new(BTreeMap::new(), 4);
    let first = world.out[0].id;
    let task = |kind| NewTask { parent: Parent::Inherited, kind };
    let open = |i| TaskKind::Open { file: large(&format!("d{i}"), 1).file, round: 1 };
    let opens = (0..2 * UNOPENED_MAX).map(|i| task(open(i))).collect();
    world.feed(Input::Report(first, Outcome { tasks: opens, ..Outcome::default() }));
    let scan = TaskKind::Scan { directory: directory("below"), names: ScanNames::Root };
    let outcome = Outcome { tasks: vec![task(scan)], ..Outcome::default() };
    world.feed(Input::Report(first, outcome));
    let searches = |world: &World| world.out().small > 1;
    assert!(!searches(&world));
    while !searches(&world) {
        let task = world.out.iter().position(|task| task.kind.is_large()).expect("a large file");
        let task = world.out.swap_remove(task);
        world.feed(Input::Done(task.id, Outcome::default()));
    }
    let is_open = |shelved: &&Shelved| matches!(shelved.task.kind, TaskKind::Open { .. });
    assert_eq!(world.shelf.iter().filter(is_open).count(), UNOPENED_MAX - 1);
}

fn chunk_of(large: &LargeFile, number: u64) -> TaskKind {
    let range = ByteRange { start: number, end: number + 1 };
    TaskKind::Chunk(Box::new(ChunkTask { large: large.clone(), range }))
}

fn item(number: u64) -> SumItem {
    let subject = dmover_model::Subject::Path(PathBytes(format!("f{number}").into_bytes()));
    SumItem { number, subject, range: None, expected: None, round: 1 }
}

/// A list of any length is asked for as it is worked on, and its end is waited for.
#[test]
fn a_long_list_is_taken_bit_by_bit() {
    let mut coordinator = Coordinator::new(4, BUDGET);
    let mut out = coordinator.handle(Input::Start { tasks: Vec::new(), more: true });
    let (mut given, mut done, mut waiting) = (0, 0, Vec::new());
    loop {
        let mut supply = None;
        for command in std::mem::take(&mut out) {
            match command {
                Command::Publish(task) => waiting.push(task),
                Command::Supply(most) => supply = Some(most as u64),
                Command::Finished => {
                    assert_eq!((given, done), (100, 100));
                    return;
                }
                Command::FetchLinks => {
                    let supply = LinkSupply { exhausted: true, ..LinkSupply::default() };
                    out.extend(coordinator.handle(Input::Links(supply)));
                }
                Command::FetchDirty => out.extend(coordinator.handle(Input::Dirty(Vec::new()))),
                Command::FetchExtra => out.extend(coordinator.handle(Input::Extra(Vec::new()))),
                other => panic!("{other:?}"),
            }
        }
        assert!(waiting.len() <= 4, "{} tasks are out", waiting.len());
        if let Some(most) = supply {
            let tasks = (given..(given + most).min(100)).map(|n| TaskKind::Sums(vec![item(n)]));
            let tasks: Vec<_> = tasks.collect();
            given += tasks.len() as u64;
            let more = !tasks.is_empty();
            out.extend(coordinator.handle(Input::Start { tasks, more }));
        } else if let Some(task) = waiting.pop() {
            done += 1;
            out.extend(coordinator.handle(Input::Done(task.id, Outcome::default())));
        }
    }
}

/// What ends a file that was hashed in parts gets the digests of all parts, or the failure of one.
#[test]
fn pieces_come_to_the_conclusion() {
    let shape = Shape::plain(HashType::Blake3, 8 << 20, 1 << 20);
    let metadata = Version {
        identity: Identity::default(),
        size: 8 << 20,
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
    };
    let file = HashedFile { item: item(0), version: metadata, start: 0, shape, begun_ms: 0 };
    for fails in [false, true] {
        let mut world = World::new(BTreeMap::new(), 8);
        let first = world.out.pop().unwrap().id;
        let conclude = FinishHashTask { file: file.clone(), pieces: Vec::new(), failure: None };
        let finish = TaskKind::FinishHash(Box::new(conclude));
        let parts = [0u64, 4 << 20].map(|start| {
            let range = ByteRange { start, end: start + (4 << 20) };
            let kind = TaskKind::Hash(Box::new(HashTask { file: file.clone(), range }));
            NewTask { parent: Parent::New(0), kind }
        });
        let nodes = vec![NewNode::new(Parent::Inherited, finish)];
        world
            .feed(Input::Done(first, Outcome { nodes, tasks: parts.into(), ..Outcome::default() }));
        for task in std::mem::take(&mut world.out) {
            let TaskKind::Hash(part) = &task.kind else { panic!("{task:?}") };
            let (start, digest) = (part.range.start, Digest::new(&[7; 32]).unwrap());
            let pieces = Some(HashedPieces { start, digests: vec![digest; 4] });
            let failure = fails.then(|| {
                let (class, path) = (ErrorClass::Changed, PathBytes::default());
                Box::new(EntryError::plain(Side::Source, Operation::Read, class, path, "changed"))
            });
            let covered = (!fails).then_some(part.range);
            let outcome = Outcome { pieces, covered, chunk_failure: failure, ..Outcome::default() };
            world.feed(Input::Done(task.id, outcome));
        }
        let [Task { kind: TaskKind::FinishHash(conclude), .. }] = &world.out[..] else {
            panic!("{:?}", world.out)
        };
        assert_eq!(conclude.failure.is_some(), fails);
        assert_eq!(conclude.pieces.iter().map(|part| part.digests.len()).sum::<usize>(), 8);
    }
}

/// A mover hands on half of a chunk, and what says so does not come.
#[test]
fn a_file_of_which_a_part_was_never_told_is_begun_again() {
    let halves = [0, 2].map(|start| ByteRange { start, end: (start + 2).min(CHUNKS as u64) });
    for lost in [false, true] {
        let mut world = World::new(BTreeMap::new(), 8);
        let first = world.out.pop().unwrap().id;
        let begun = large("d", 1);
        let seal = SealTask { large: begun.clone(), failure: None, pieces: Vec::new() };
        let finish = TaskKind::Seal(Box::new(seal));
        let nodes = vec![NewNode::new(Parent::Inherited, finish)];
        let chunk = |parent, range| {
            let chunk = ChunkTask { large: begun.clone(), range };
            NewTask { parent, kind: TaskKind::Chunk(Box::new(chunk)) }
        };
        let whole = ByteRange { start: 0, end: CHUNKS as u64 };
        let tasks = vec![chunk(Parent::New(0), whole)];
        world.feed(Input::Done(first, Outcome { nodes, tasks, ..Outcome::default() }));
        let whole = world.out.pop().unwrap();
        if !lost {
            let tasks = vec![chunk(Parent::Inherited, halves[1])];
            world.feed(Input::Report(whole.id, Outcome { tasks, ..Outcome::default() }));
        }
        let covered = Some(halves[0]);
        world.feed(Input::Done(whole.id, Outcome { covered, ..Outcome::default() }));
        if !lost {
            let half = world.out.pop().unwrap();
            let covered = Some(halves[1]);
            world.feed(Input::Done(half.id, Outcome { covered, ..Outcome::default() }));
        }
        let [Task { kind: TaskKind::Seal(seal), .. }] = &world.out[..] else {
            panic!("{:?}", world.out)
        };
        assert_eq!(seal.failure.as_ref().map(|e| e.class), lost.then_some(ErrorClass::Fenced));
    }
}

fn scan_of(path: &str, names: &[&str]) -> TaskKind {
    let names = names.iter().map(|name| Name::new(name.as_bytes()).unwrap()).collect();
    TaskKind::Scan { directory: directory(path), names: ScanNames::Directories(names) }
}

#[test]
fn whoever_gets_a_lost_task_leaves_alone_what_was_handed_on() {
    let mut coordinator = Coordinator::new(8, BUDGET).remembering();
    let tasks = vec![scan_of("", &["a", "b", "c"])];
    let commands = coordinator.handle(Input::Start { tasks, more: false });
    let [Command::Publish(task)] = &commands[..] else { panic!("{commands:?}") };
    let handed_on = NewTask { parent: Parent::Inherited, kind: scan_of("", &["c", "b"]) };
    let outcome = Outcome { tasks: vec![handed_on], ..Outcome::default() };
    coordinator.handle(Input::Report(task.id, outcome));
    let mut lost = task.clone();
    lost.lost.push(7);
    let commands = coordinator.handle(Input::Expired(lost));
    let [Command::Publish(again)] = &commands[..] else { panic!("{commands:?}") };
    let path = |name: &str| TreePath::new(name.as_bytes()).unwrap();
    assert_eq!(again.given, [path("b"), path("c")]);
    assert!(again.resumed && again.lost == [7], "leftovers of that lease are looked for");
    // Whoever gets a part of it now works where the holder of that lease was.
    let hand_on = |coordinator: &mut Coordinator, from: TaskId, names: &[&str]| {
        let part = NewTask { parent: Parent::Inherited, kind: scan_of("d", names) };
        let outcome = Outcome { tasks: vec![part], ..Outcome::default() };
        let commands = coordinator.handle(Input::Report(from, outcome));
        let [Command::Publish(part)] = &commands[..] else { panic!("{commands:?}") };
        part.clone()
    };
    let mut part = hand_on(&mut coordinator, again.id, &["x", "y"]);
    assert_eq!((&part.lost[..], &part.lost_above[..]), (&[][..], &[7][..]));
    let smaller = hand_on(&mut coordinator, part.id, &["x"]);
    assert_eq!(smaller.lost_above, [7]);
    part.lost.push(9);
    let commands = coordinator.handle(Input::Expired(part));
    let [Command::Publish(part)] = &commands[..] else { panic!("{commands:?}") };
    let smaller = hand_on(&mut coordinator, part.id, &["y"]);
    assert_eq!(smaller.lost_above, [7, 9]);
}

#[test]
fn a_task_that_is_given_up_does_not_keep_the_job() {
    let mut coordinator = Coordinator::new(4, BUDGET).remembering();
    let tasks = vec![scan_of("", &["a"])];
    let commands = coordinator.handle(Input::Start { tasks, more: false });
    let [Command::Publish(task)] = &commands[..] else { panic!("{commands:?}") };
    let commands = coordinator.handle(Input::GivenUp(task.clone()));
    assert_eq!(commands, [Command::FetchLinks], "the next phase");
}
