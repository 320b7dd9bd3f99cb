use super::*;
use dmover_model::{
    Budget, ByteRange, ChunkTask, EntryKind, ExtraName, Identity, LargeFile, MountId, Name, RootId,
    Task, TaskId, TaskKind, Timestamp, Version,
};
use dmover_plan::coordinator::NodeId;

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

fn shelved(number: u64, kind: TaskKind) -> Shelved {
    let budget = Budget { entries: 1, bytes: 1, time_ms: 1 };
    Shelved { node: Some(NodeId(number)), task: Task::new(TaskId(number), kind, budget) }
}

fn link(inode: u64, dir: &str, name: &str) -> LinkName {
    let name = Name::new(name.as_bytes()).unwrap();
    let file = FileRef { directory: directory(dir), name: name.clone(), destination_name: name };
    LinkName { identity: Identity { mount: MountId(0), inode }, file }
}

/// Every test runs in memory, spilled from the first record on, and spilling in the middle.
fn for_each_size(test: impl Fn(&mut SpillLedger)) {
    let dir = tempfile::tempdir().unwrap();
    for memory in [usize::MAX, 0, 3000] {
        test(&mut SpillLedger::new(dir.path(), memory));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a spill file has a name");
    }
}

#[test]
fn tasks_come_back_last_in_first_out() {
    for_each_size(|ledger| {
        for i in 0..40 {
            let kind = TaskKind::Finish(vec![directory(&format!("d{i}"))]);
            ledger.shelve(vec![shelved(i, kind)]).unwrap();
        }
        let mut order = Vec::new();
        loop {
            let tasks = ledger.unshelve(TaskCounts { large: 1, small: 7 }).unwrap();
            if tasks.is_empty() {
                break;
            }
            order.extend(tasks.iter().map(|t| t.node.unwrap().0));
        }
        assert_eq!(order, (0..40).rev().collect::<Vec<_>>());
    });
}

#[test]
fn large_and_small_tasks_come_back_apart() {
    let name = Name::new(*b"large").unwrap();
    let (identity, time) = (Identity::default(), Timestamp::default());
    let large = LargeFile {
        file: link(0, "d", "large").file,
        temporary: name,
        temporary_identity: identity,
        version: Version { identity, size: 0, mtime: time, ctime: time },
        round: 1,
        replaces: false,
        opened_ms: 0,
        shape: None,
        patched: false,
    };
    for_each_size(|ledger| {
        for i in 0..40 {
            let range = ByteRange { start: i, end: i + 1 };
            let kind = if i % 4 == 0 {
                TaskKind::Finish(vec![directory("d")])
            } else {
                TaskKind::Chunk(Box::new(ChunkTask { large: large.clone(), range }))
            };
            ledger.shelve(vec![shelved(i, kind)]).unwrap();
        }
        let mut taken = |large, small| -> Vec<u64> {
            let tasks = ledger.unshelve(TaskCounts { large, small }).unwrap();
            tasks.iter().map(|t| t.node.unwrap().0).collect()
        };
        assert_eq!(taken(0, 3), [36, 32, 28]);
        assert_eq!(taken(2, 0), [39, 38]);
        assert_eq!(taken(1, 1), [37, 24]);
        assert_eq!(taken(99, 99).len(), 40 - 7);
        assert!(taken(99, 99).is_empty());
    });
}

#[test]
fn every_name_of_an_inode_comes_back_in_one_chain_of_groups() {
    for_each_size(|ledger| {
        for i in 0..50u64 {
            let name = link(i % 5, &format!("dir{}", i % 7), &format!("n{i}"));
            ledger.record_links(vec![name]).unwrap();
        }
        let mut names = BTreeMap::<String, usize>::new();
        let mut groups = 0;
        loop {
            let supply = ledger.take_links(4).unwrap();
            for group in &supply.groups {
                groups += usize::from(!group.first_is_done);
                let firsts = if group.first_is_done { None } else { Some(&group.first) };
                for file in firsts.into_iter().chain(&group.rest) {
                    *names.entry(format!("{:?}", file.name)).or_default() += 1;
                }
            }
            if supply.exhausted {
                break;
            }
        }
        assert_eq!(groups, 5);
        assert_eq!(names.len(), 50);
        assert!(names.values().all(|n| *n == 1), "{names:?}");
    });
}

#[test]
fn dirty_directories_come_deepest_first_and_once() {
    for_each_size(|ledger| {
        for path in ["a", "a/b/c", "a", "x/y", "a/b/c", ""] {
            ledger.record_dirty(vec![directory(path)]).unwrap();
        }
        let mut order = Vec::new();
        loop {
            let batch = ledger.take_dirty(2).unwrap();
            if batch.is_empty() {
                break;
            }
            order.extend(batch.into_iter().map(|d| format!("{:?}", d.path)));
        }
        assert_eq!(order, ["\"a/b/c\"", "\"x/y\"", "\"a\"", "\"\""]);
    });
}

#[test]
fn what_lies_deepest_goes_first_and_nothing_goes_with_what_holds_it() {
    let extra = |below: &str, number: u64| ExtraNames {
        directory: directory("d"),
        below: TreePath::new(below.as_bytes()).unwrap(),
        holder: Identity::default(),
        in_the_way: false,
        names: vec![ExtraName {
            name: Name::new(format!("n{number}").into_bytes()).unwrap(),
            kind: EntryKind::File,
            identity: Identity { mount: MountId(0), inode: number },
            links: 1,
            size: 0,
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
        }],
    };
    for_each_size(|ledger| {
        for (number, below) in ["", "x", "x/y", "x", "x/y/z", ""].into_iter().enumerate() {
            ledger.record_extra(vec![extra(below, number as u64)]).unwrap();
        }
        let mut depths = Vec::new();
        loop {
            let batch = ledger.take_extra(100).unwrap();
            if batch.is_empty() {
                break;
            }
            depths.push(batch.iter().map(ExtraNames::depth).collect::<Vec<_>>());
        }
        assert_eq!(depths, [vec![4], vec![3], vec![2, 2], vec![1, 1]]);
    });
}
