//! Parts of large files: what a run that was stopped or cut off leaves to the next one.
use super::*;
use dmover_model::LargeNews;

#[test]
fn chunks_of_a_run_whose_movers_may_live_are_not_written_again() {
    let chunk = |id| {
        let range = ByteRange { start: 0, end: 1 };
        let chunk = ChunkTask { large: large("d", 1), range };
        let task = Task::new(TaskId(id), TaskKind::Chunk(Box::new(chunk)), BUDGET);
        Shelved { node: Some(NodeId(0)), task }
    };
    let seal = SealTask { large: large("d", 1), failure: None, pieces: Vec::new() };
    let finish = TaskKind::Seal(Box::new(seal));
    let covered = vec![ByteRange { start: 1, end: CHUNKS as u64 }];
    let note = PartNote { covered, ..PartNote::default() };
    let node = LeftNode { id: NodeId(0), parent: None, holds: 2, finish, note };
    let mut coordinator = Coordinator::new(4, BUDGET).fenced();
    coordinator.handle(Input::Resume { nodes: vec![node], next: (TaskId(9), NodeId(9)) });
    let commands = coordinator.handle(Input::Left { tasks: vec![chunk(1), chunk(2)], more: false });
    let [Command::Publish(Task { kind: TaskKind::Open { .. }, partial: Some(partial), .. })] =
        &commands[..]
    else {
        panic!("{commands:?}")
    };
    assert!(partial.fenced, "somebody may still write to the temporary");
    assert_eq!(partial.done.ranges, [ByteRange { start: 1, end: CHUNKS as u64 }]);
}

/// A large file in two chunks, both of which are out.
fn begin_in_two_chunks(coordinator: &mut Coordinator) -> [Task; 2] {
    let commands =
        coordinator.handle(Input::Start { tasks: vec![scan_of("", &["d"])], more: false });
    let [Command::Publish(first)] = &commands[..] else { panic!("{commands:?}") };
    let seal = SealTask { large: large("d", 1), failure: None, pieces: Vec::new() };
    let nodes = vec![NewNode::new(Parent::Inherited, TaskKind::Seal(Box::new(seal)))];
    let chunk = |(start, end)| {
        let chunk = ChunkTask { large: large("d", 1), range: ByteRange { start, end } };
        NewTask { parent: Parent::New(0), kind: TaskKind::Chunk(Box::new(chunk)) }
    };
    let tasks = [(0, 2), (2, CHUNKS as u64)].map(chunk).into();
    let outcome = Outcome { nodes, tasks, ..Outcome::default() };
    let commands = coordinator.handle(Input::Done(first.id, outcome));
    let [Command::Publish(one), Command::Publish(other)] = &commands[..] else {
        panic!("{commands:?}")
    };
    [one.clone(), other.clone()]
}

fn part_done(start: u64, end: u64, flushed: bool) -> Outcome {
    let temporary = Name::new(*b"big").unwrap();
    let news = LargeNews::Flushed { temporary, done: DoneParts::default(), changed: None };
    let covered = Some(ByteRange { start, end });
    Outcome { covered, large: flushed.then_some(news).into_iter().collect(), ..Outcome::default() }
}

#[test]
fn a_file_that_a_stop_interrupts_comes_to_a_mover_with_its_worst_failure() {
    let at = |side, class| EntryError { side, ..part_failure(class, "lost") };
    let source = at(Side::Source, ErrorClass::Io);
    let destination = at(Side::Destination, ErrorClass::NoSpace);
    for (first, second, class) in [
        (None, None, ErrorClass::Cancelled),
        (Some(&source), None, ErrorClass::Io),
        (Some(&source), Some(&destination), ErrorClass::NoSpace),
        (Some(&destination), Some(&source), ErrorClass::NoSpace),
    ] {
        let mut coordinator = Coordinator::new(4, BUDGET);
        let [one, other] = begin_in_two_chunks(&mut coordinator);
        let failed = |failure: Option<&EntryError>| Outcome {
            chunk_failure: failure.cloned().map(Box::new),
            ..part_done(0, 2, false)
        };
        let mut commands = coordinator.handle(Input::Stop);
        let done = Input::Done(one.id, failed(first));
        commands.extend(coordinator.handle(done));
        let last = match second {
            Some(_) => Input::Done(other.id, failed(second)),
            None => Input::Withdrawn(other),
        };
        commands.extend(coordinator.handle(last));
        let seal = commands.iter().find_map(|command| match command {
            Command::Publish(Task { kind: TaskKind::Seal(seal), .. }) => Some(seal),
            _ => None,
        });
        let failure = seal.and_then(|seal| seal.failure.as_ref());
        assert_eq!(failure.map(|failure| failure.class), Some(class), "{commands:?}");
    }
}

#[test]
fn a_part_that_is_done_when_the_job_stops_goes_on_record() {
    let mut coordinator = Coordinator::new(4, BUDGET).journalled();
    let [one, other] = begin_in_two_chunks(&mut coordinator);
    coordinator.take_changes();
    coordinator.handle(Input::Stop);
    let chunk = ChunkTask { large: large("d", 1), range: ByteRange { start: 1, end: 2 } };
    let rest = NewTask { parent: Parent::Inherited, kind: TaskKind::Chunk(Box::new(chunk)) };
    let handed_on = Outcome { tasks: vec![rest], ..Outcome::default() };
    coordinator.handle(Input::Report(one.id, handed_on));
    coordinator.handle(Input::Done(one.id, part_done(0, 1, true)));
    coordinator.handle(Input::Withdrawn(other));
    let changes = coordinator.take_changes();
    let [Change::Added { task, .. }, Change::Noted(_, note), Change::Ended(ended, _)] =
        &changes[..]
    else {
        panic!("{changes:?}")
    };
    assert!(matches!(task.task.kind, TaskKind::Chunk(_)) && *ended == one.id);
    assert!(note.failure.is_none() && note.covered == [ByteRange { start: 0, end: 1 }]);
}

/// Another host ends its movers when the job stops, and says so.
#[test]
fn a_chunk_that_is_returned_during_a_stop_was_only_not_done() {
    for (returned, class) in [(true, ErrorClass::Cancelled), (false, ErrorClass::Fenced)] {
        let mut coordinator = Coordinator::new(4, BUDGET);
        let [one, other] = begin_in_two_chunks(&mut coordinator);
        coordinator.handle(Input::Done(other.id, part_done(2, CHUNKS as u64, true)));
        coordinator.handle(Input::Stop);
        let lost = Task { lost: vec![7], ..one };
        let commands =
            coordinator.handle(if returned { Input::Returned(lost) } else { Input::Expired(lost) });
        let [Command::Publish(Task { kind: TaskKind::Seal(seal), .. })] = &commands[..] else {
            panic!("{commands:?}")
        };
        assert_eq!(seal.failure.as_ref().unwrap().class, class);
    }
}
