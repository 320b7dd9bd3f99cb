//! Two passes over a directory, as movers report them.
use dmover_model::{
    CatalogEntry, DirectoryState, EntryKind, JobId, ListedName, MoveResult, Name, Object, Segment,
    Surveyed, TaskKind, Timestamp, TreePath,
};
use std::path::Path;

use super::{Scope, Survey};
use crate::catalog::Catalog;

const BEGIN: Timestamp = Timestamp { seconds: 1_000_000, nanoseconds: 0 };
const TOP: u64 = 2;

fn object(inode: u64) -> Object {
    Object { inode, birth: Some(BEGIN) }
}

fn path(text: &str) -> TreePath {
    TreePath::new(text).unwrap()
}

/// A file whose copy has a number that is larger by a thousand than that of `copied`.
fn file(name: &str, inode: u64, copied: u64) -> CatalogEntry {
    let (source, copy) = (object(inode), object(copied + 1000));
    let name = Name::new(name.as_bytes()).unwrap();
    CatalogEntry { name, kind: EntryKind::File, source, copy, size: 1, mtime: BEGIN }
}

fn recorded(entries: Vec<CatalogEntry>, changed: i64) -> Vec<Surveyed> {
    let time = Timestamp { seconds: BEGIN.seconds + changed, nanoseconds: 0 };
    let segment = Segment {
        state: DirectoryState { object: object(TOP), mtime: time, ctime: time },
        copy: object(1000 + TOP),
        path: TreePath::root(),
        entries,
        recent: Vec::new(),
        left: Vec::new(),
        settled: true,
        first: true,
        last: true,
    };
    vec![Surveyed::Recorded(Box::new(segment))]
}

fn begin(directory: &Path) -> Survey {
    let catalog = Catalog::open(directory, &JobId("a1".into())).unwrap();
    Survey::begin(catalog, directory, object(TOP), Scope::All).unwrap()
}

/// The first pass: the files `a` and `c`, which look alike.
fn first_pass(directory: &Path) {
    let mut survey = begin(directory);
    assert_eq!(survey.next(true).unwrap(), []);
    assert_eq!(survey.next(true).unwrap(), [TaskKind::Catalog(vec![TreePath::root()])]);
    let files = vec![file("a", 11, 11), file("c", 12, 12)];
    assert_eq!(survey.take(recorded(files, 0)).unwrap(), []);
    assert_eq!(survey.next(true).unwrap(), []);
}

/// The second pass: `a` is `b` by now, and is renamed.
fn second_pass(directory: &Path) -> Survey {
    let mut survey = begin(directory);
    assert!(matches!(survey.next(true).unwrap()[..], [TaskKind::Revisit(_)]));
    let listed = |name: &str, inode| ListedName {
        name: Name::new(name.as_bytes()).unwrap(),
        inode,
        is_directory: false,
    };
    let names = vec![listed("b", 11), listed("c", 12)];
    let (object, path) = (object(TOP), TreePath::root());
    survey.take(vec![Surveyed::Listed { object, path, names, last: true }]).unwrap();
    let tasks = survey.next(true).unwrap();
    let [TaskKind::Rename(moves)] = &tasks[..] else { panic!("{tasks:?}") };
    let number = moves[0].number;
    survey.take(vec![Surveyed::Moved(number, MoveResult::Moved)]).unwrap();
    assert_eq!(survey.next(true).unwrap(), []);
    assert!(matches!(survey.next(true).unwrap()[..], [TaskKind::Catalog(_)]));
    survey
}

#[test]
fn what_replaces_a_renamed_file_after_the_rename_is_compared() {
    // The renamed file; another one with its copy; another one that was copied.
    for (now, doubted) in
        [(file("b", 11, 11), false), (file("b", 12, 11), true), (file("b", 13, 13), false)]
    {
        let directory = tempfile::tempdir().unwrap();
        first_pass(directory.path());
        let mut survey = second_pass(directory.path());
        let trusted = [path("b")];
        survey.take(recorded(vec![now.clone(), file("c", 12, 12)], 5)).unwrap();
        // The scan has found it equal.
        survey.trust(&trusted).unwrap();
        assert_eq!(survey.next(true).unwrap(), []);
        let mut next = begin(directory.path());
        let doubts = next.doubts().unwrap();
        assert_eq!(doubts.content.contains(&path("b")), doubted, "{now:?}: {doubts:?}");
    }
}

#[test]
fn a_directory_is_recorded_where_it_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let mut survey = begin(directory.path());
    assert_eq!(survey.next(true).unwrap(), []);
    // It was entered under two paths, and is at the second one now.
    for at in ["old", "z"] {
        let (object, path) = (object(20), path(at));
        survey.take(vec![Surveyed::Entered { object, path, above: TOP, late: false }]).unwrap();
    }
    let first = survey.next(true).unwrap();
    let asked = |tasks: &[TaskKind], at: &str| {
        tasks.iter().any(|task| matches!(task, TaskKind::Catalog(all) if all.contains(&path(at))))
    };
    assert!(asked(&first, "old") && !asked(&first, "z"), "{first:?}");
    let entry = CatalogEntry { kind: EntryKind::Directory, ..file("z", 20, 20) };
    let more = survey.take(recorded(vec![entry], 0)).unwrap();
    assert!(asked(&more, "z"), "{more:?}");
}
