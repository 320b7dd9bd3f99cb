use super::*;
use dmover_model::{ErrorClass, Operation, PathBytes, Side};

fn entry() -> Entry {
    let path = PathBytes(b"a/b".to_vec());
    let error =
        EntryError::plain(Side::Source, Operation::Open, ErrorClass::Denied, path, "a reason");
    Entry { errors: vec![error], ..Entry::default() }
}

#[test]
fn a_run_that_was_taken_over_commits_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = Journal::open(directory.path()).unwrap();
    first.commit(&entry()).unwrap();
    let mut second = Journal::open(directory.path()).unwrap();
    assert!(matches!(first.commit(&entry()), Err(Fatal::Fenced { .. })));
    second.commit(&entry()).unwrap();
    let count: i64 =
        second.database.query_row("SELECT count(*) FROM error", [], |row| row.get(0)).unwrap();
    assert_eq!(count, 2);
}
