//! Tests of the queue in one process.
use super::*;
use dmover_model::{
    Budget, ByteRange, ChunkTask, DirectoryRef, FileRef, Identity, LargeFile, Name, RootId,
    Timestamp, Version,
};

const LEASE: Duration = Duration::from_secs(9);

/// A chunk of a large file.
pub(crate) fn chunk(id: u64, range: ByteRange) -> Task {
    let (name, identity) = (Name::new(*b"big").unwrap(), Identity::default());
    let zero = Timestamp::default();
    let large = LargeFile {
        file: FileRef {
            directory: DirectoryRef::of_root(RootId(0)),
            name: name.clone(),
            destination_name: name.clone(),
        },
        temporary: name,
        temporary_identity: identity,
        version: Version { identity, size: 100, mtime: zero, ctime: zero },
        round: 1,
        replaces: false,
        opened_ms: 0,
        shape: None,
        patched: false,
    };
    let kind = TaskKind::Chunk(Box::new(ChunkTask { large, range }));
    Task::new(TaskId(id), kind, Budget { entries: 1, bytes: 1, time_ms: 1 })
}

#[test]
fn another_host_gets_chunks_and_nothing_that_has_failed_at_one() {
    let queue = LocalQueue::new(Duration::from_secs(9));
    let range = ByteRange { start: 0, end: 100 };
    queue.publish(vec![task(1), chunk(2, range), task(3)]);
    queue.allow(Class::Large, 0);
    let given = queue.lease_chunk(Duration::ZERO, LEASE).unwrap();
    assert_eq!(given.task.id, TaskId(2));
    assert!(queue.lease_chunk(Duration::ZERO, LEASE).is_none());
    assert!(!given.is_wanted_back(), "the limits here are not for it");
    let rest = ByteRange { start: 40, end: 100 };
    let left = Some(chunk(2, rest).kind);
    queue.end_of(&given, MoverReport::default(), (Outcome::default(), left.clone()));
    let mut reports = queue.reports(Duration::ZERO);
    let Some(Reported::Returned(back)) = reports.pop() else { panic!("{reports:?}") };
    assert_eq!((&back.lost, &Some(back.kind.clone())), (&vec![given.number], &left));
    queue.publish(vec![*back]);
    assert!(queue.lease_chunk(Duration::ZERO, LEASE).is_none(), "it has failed at another host");
    queue.allow(Class::Large, 1);
    assert_eq!(queue.lease(1, Duration::ZERO)[0].task.id, TaskId(2));
    // Its lease is over: what is said of it does not count.
    queue.end_of(&given, MoverReport::default(), (Outcome::default(), None));
    assert!(queue.reports(Duration::ZERO).is_empty());
}

#[test]
fn a_chunk_that_another_host_has_not_heard_of_is_as_before() {
    let queue = LocalQueue::new(Duration::from_secs(9));
    queue.publish(vec![chunk(2, ByteRange { start: 0, end: 100 })]);
    let given = queue.lease_chunk(Duration::ZERO, LEASE).unwrap();
    queue.put_back(&given);
    queue.put_back(&given);
    let again = queue.lease_chunk(Duration::ZERO, LEASE).unwrap();
    assert!(again.task == given.task && again.number != given.number);
    assert!(queue.lease_chunk(Duration::ZERO, LEASE).is_none() && queue.expired().is_empty());
}

#[test]
fn another_host_that_waits_has_chunks_divided() {
    let queue = Arc::new(LocalQueue::new(Duration::from_secs(9)));
    assert!(!queue.is_hungry(Class::Large));
    let waiter = Arc::clone(&queue);
    let waiting = std::thread::spawn(move || waiter.lease_chunk(Duration::from_mins(1), LEASE));
    while !queue.is_hungry(Class::Large) {
        std::thread::yield_now();
    }
    assert!(!queue.is_hungry(Class::Small));
    queue.publish(vec![chunk(7, ByteRange { start: 0, end: 100 })]);
    let lease = waiting.join().unwrap().unwrap();
    assert!(!queue.is_hungry(Class::Large));
    lease.lose();
    assert_eq!(queue.expired()[0].lost, [lease.number]);
}

fn task(id: u64) -> Task {
    let budget = Budget { entries: 1, bytes: 1, time_ms: 1 };
    Task::new(TaskId(id), TaskKind::Finish(Vec::new()), budget)
}

#[test]
fn movers_beyond_the_number_are_asked_to_come_back_once() {
    let queue = LocalQueue::new(Duration::from_secs(9));
    queue.publish((0..5).map(task).collect());
    let leases = queue.lease(4, Duration::ZERO);
    let asked = |leases: &[Lease]| leases.iter().filter(|l| l.is_wanted_back()).count();
    queue.allow(Class::Large, 0);
    assert_eq!(asked(&leases), 0, "of another class");
    queue.allow(Class::Small, 3);
    queue.allow(Class::Small, 3);
    assert_eq!(asked(&leases), 1);
    queue.allow(Class::Small, 2);
    assert_eq!(asked(&leases), 2);
    leases.iter().filter(|l| l.is_wanted_back()).for_each(|lease| {
        queue.complete(lease, Outcome::default());
    });
    assert!(queue.lease(1, Duration::ZERO).is_empty(), "two are still at work");
}

#[test]
fn the_newest_task_goes_first() {
    let queue = LocalQueue::new(Duration::from_secs(9));
    queue.publish(vec![task(1), task(2)]);
    queue.publish(vec![task(3)]);
    let ids: Vec<u64> = queue.lease(9, Duration::ZERO).iter().map(|l| l.task.id.0).collect();
    assert_eq!(ids, [3, 2, 1]);
}

#[test]
fn a_lease_that_ran_out_is_given_to_another_and_its_outcome_dropped() {
    let queue = LocalQueue::new(Duration::ZERO);
    queue.publish(vec![task(1)]);
    let old = queue.lease(1, Duration::ZERO).remove(0);
    assert!(!old.holds(), "a lease of no length has run out");
    old.extend();
    assert!(!old.holds(), "a lost lease cannot be extended");
    let back = queue.expired();
    assert_eq!(back.len(), 1);
    queue.publish(back);
    queue.complete(&old, Outcome::default());
    assert!(queue.reports(Duration::ZERO).is_empty());
    let new = queue.lease(1, Duration::ZERO).remove(0);
    assert_eq!(new.task.lost, [old.number]);
    queue.complete(&old, Outcome::default());
    assert!(queue.reports(Duration::ZERO).is_empty(), "the old holder speaks for nobody");
    queue.complete(&new, Outcome::default());
    assert_eq!(queue.reports(Duration::ZERO).len(), 1);
}

#[test]
fn what_was_made_is_undone_if_nothing_was_ever_said_of_it() {
    let undone = Arc::new(AtomicU64::new(0));
    let make = |lease: &Lease| {
        let undone = Arc::clone(&undone);
        lease.unless_said(move || _ = undone.fetch_add(1, Ordering::SeqCst));
    };
    for (length, ends, expected) in [
        (Duration::ZERO, true, 1),
        (Duration::from_secs(9), true, 0),
        (Duration::from_secs(9), false, 1),
    ] {
        undone.store(0, Ordering::SeqCst);
        let queue = LocalQueue::new(length);
        queue.publish(vec![task(1)]);
        let lease = queue.lease(1, Duration::ZERO).remove(0);
        make(&lease);
        drop(queue.expired());
        if ends {
            queue.complete(&lease, Outcome::default());
        }
        assert_eq!(undone.load(Ordering::SeqCst), 0, "somebody still has it in hand");
        drop((lease, queue));
        assert_eq!(undone.load(Ordering::SeqCst), expected, "{length:?} {ends}");
    }
}

#[test]
fn who_says_too_much_waits_until_it_is_heard() {
    let queue = Arc::new(LocalQueue::new(Duration::from_secs(9)));
    queue.publish(vec![task(1)]);
    let lease = queue.lease(1, Duration::ZERO).remove(0);
    let speaker = Arc::clone(&queue);
    let mover = std::thread::spawn(move || {
        for _ in 0..10 * UNHEARD_MAX {
            let dirty = vec![DirectoryRef::of_root(RootId(0))];
            speaker.report(&lease, Outcome { dirty, ..Outcome::default() });
        }
        speaker.complete(&lease, Outcome::default());
    });
    let mut heard = 0;
    while heard <= 10 * UNHEARD_MAX {
        let said = queue.reports(Duration::from_mins(1)).len();
        assert!(said <= UNHEARD_MAX + 2, "{said} at once");
        heard += said;
    }
    mover.join().unwrap();
}

/// One directory's names are one thing of an outcome, and may be more than memory holds.
#[test]
fn who_lists_many_names_waits_until_they_are_heard() {
    use dmover_model::{ListedName, Name, Object, Surveyed, TreePath};
    const NAMES: usize = 1024;
    const LISTS: usize = 5 * UNHEARD_MAX / NAMES;
    let queue = Arc::new(LocalQueue::new(Duration::from_secs(9)));
    queue.publish(vec![task(1)]);
    let lease = queue.lease(1, Duration::ZERO).remove(0);
    let speaker = Arc::clone(&queue);
    let mover = std::thread::spawn(move || {
        let name = Name::new(&b"n"[..]).unwrap();
        let listed = ListedName { name, inode: 1, is_directory: false };
        for _ in 0..LISTS {
            let names = vec![listed.clone(); NAMES];
            let object = Object { inode: 1, birth: None };
            let list = Surveyed::Listed { object, path: TreePath::root(), names, last: false };
            speaker.report(&lease, Outcome { survey: vec![list], ..Outcome::default() });
        }
        speaker.complete(&lease, Outcome::default());
    });
    while queue.state().unheard <= UNHEARD_MAX {
        assert!(!mover.is_finished(), "it never waits");
        std::thread::yield_now();
    }
    let (mut heard, most) = (0, UNHEARD_MAX / NAMES + 2);
    while heard <= LISTS {
        let said = queue.reports(Duration::from_mins(1)).len();
        assert!(said <= most, "{said} at once");
        heard += said;
    }
    mover.join().unwrap();
}

#[test]
fn who_ends_a_task_waits_until_it_is_on_record() {
    let queue = Arc::new(LocalQueue::new(Duration::from_secs(9)).on_record());
    queue.publish(vec![task(1)]);
    let lease = queue.lease(1, Duration::ZERO).remove(0);
    let speaker = Arc::clone(&queue);
    let mover = std::thread::spawn(move || speaker.complete(&lease, Outcome::default()));
    while queue.reports(Duration::from_mins(1)).is_empty() {}
    assert!(!mover.is_finished());
    queue.acknowledge();
    mover.join().unwrap();
    queue.publish(vec![task(2)]);
    let lease = queue.lease(1, Duration::ZERO).remove(0);
    queue.close();
    queue.complete(&lease, Outcome::default());
}

#[test]
fn hunger_needs_someone_who_waits() {
    let queue = Arc::new(LocalQueue::new(Duration::from_secs(9)));
    assert!(!queue.is_hungry(Class::Small));
    let other = Arc::clone(&queue);
    let mover = std::thread::spawn(move || other.lease(1, Duration::from_mins(1)));
    while !queue.is_hungry(Class::Small) {
        std::thread::yield_now();
    }
    queue.publish(vec![task(1)]);
    assert_eq!(mover.join().unwrap().len(), 1);
    assert!(!queue.is_hungry(Class::Small));
}

#[test]
fn a_class_that_is_full_does_not_keep_the_other_waiting() {
    let queue = LocalQueue::new(Duration::from_secs(9));
    let open = |id| {
        let directory = DirectoryRef::of_root(RootId(0));
        let name = Name::new(*b"f").unwrap();
        let file = FileRef { directory, name: name.clone(), destination_name: name };
        Task { kind: TaskKind::Open { file, round: 1 }, ..task(id) }
    };
    queue.allow(Class::Large, 1);
    queue.publish(vec![task(1), open(2), open(3)]);
    let leases = queue.lease(9, Duration::ZERO);
    let ids: Vec<u64> = leases.iter().map(|l| l.task.id.0).collect();
    assert_eq!(ids, [3, 1], "the newest of each class");
    assert!(queue.lease(9, Duration::ZERO).is_empty());
    queue.complete(&leases[0], Outcome::default());
    assert_eq!(queue.lease(9, Duration::ZERO)[0].task.id.0, 2);
}
