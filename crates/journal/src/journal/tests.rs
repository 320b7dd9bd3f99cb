use super::*;
use dmover_model::{
    DirectoryRef, ErrorClass, Identity, MountId, Name, Operation, PathBytes, RootId, ScanNames,
    Side, TaskId, TreePath,
};

fn entry() -> JournalEntry {
    let path = PathBytes(b"a/b".to_vec());
    let error =
        EntryError::plain(Side::Source, Operation::Open, ErrorClass::Denied, path, "a reason");
    JournalEntry { errors: vec![error], ..JournalEntry::default() }
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

fn spec() -> JobSpec {
    JobSpec {
        schema: JobSpec::SCHEMA,
        verb: dmover_model::Verb::Sync,
        sources: vec![PathBytes(b"s".to_vec())],
        sources_are_remote: false,
        host: None,
        destination: PathBytes(b"d".to_vec()),
        target_mode: dmover_model::TargetMode::As,
        selection: Selection::default(),
        policy: dmover_model::CopyPolicy::default(),
        limits: dmover_model::Limits::default(),
    }
}

fn begin(journal: &mut Journal, kind: PassKind<'_>) -> Begun {
    let spec = spec();
    let places = PassPlaces {
        source: "1".into(),
        roots: "2".into(),
        source_skew: Some(Duration::from_secs(2)),
        began_ms: now_ms(),
    };
    journal.begin(&spec, kind, &places).unwrap()
}

fn ended(ending: Ending, code: u8, counters: &str) -> RunEnd<'_> {
    RunEnd { ending, code, counters, is_flushed: true }
}

/// A task that is still to be done.
fn leave_a_task(journal: &Journal) {
    let sql = "INSERT OR IGNORE INTO task (id, kind, body) VALUES (1, 'scan', x'00')";
    journal.database.execute(sql, []).unwrap();
}

#[test]
fn only_a_pass_over_everything_is_gone_on_with() {
    let place = |path: &str| ChangedPlace {
        path: TreePath::new(path).unwrap(),
        what: dmover_model::Happened::default(),
    };
    let changed = [place("a"), place("b/c")];
    let directory = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(directory.path()).unwrap();
    for kind in [PassKind::Listed, PassKind::Changed(&changed)] {
        assert_eq!(begin(&mut journal, kind), Begun::Afresh);
        leave_a_task(&journal);
        assert_eq!(begin(&mut journal, PassKind::Whole), Begun::Afresh, "{kind:?}");
        leave_a_task(&journal);
        assert_eq!(begin(&mut journal, PassKind::Whole), Begun::Resumed);
    }
    let count =
        |sql: &str| -> i64 { journal.database.query_row(sql, [], |row| row.get(0)).unwrap() };
    assert_eq!(
        count("SELECT count(*) FROM changed"),
        2,
        "on record until everything was looked at"
    );
}

#[test]
fn passes_over_changes_do_not_pile_up_and_say_nothing_of_the_source() {
    let directory = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(directory.path()).unwrap();
    let end = |journal: &mut Journal, entries: u32| {
        let counters = format!("{{\"entries_found\": {entries}}}");
        journal.end(ended(Ending::Finished, 0, &counters), LookedInto::Everything).unwrap();
    };
    begin(&mut journal, PassKind::Whole);
    end(&mut journal, 500);
    for _ in 0..10 {
        begin(&mut journal, PassKind::Changed(&[]));
        end(&mut journal, 1);
    }
    let passes: i64 =
        journal.database.query_row("SELECT count(*) FROM pass", [], |row| row.get(0)).unwrap();
    assert_eq!(passes, 2);
    let last = journal.last_pass().unwrap().unwrap();
    assert_eq!((last.entries, last.unfinished_since_ms), (500, None));
    begin(&mut journal, PassKind::Changed(&[]));
    assert!(journal.last_pass().unwrap().unwrap().unfinished_since_ms.is_some(), "it was cut off");
    begin(&mut journal, PassKind::Whole);
    end(&mut journal, 500);
    assert_eq!(journal.last_pass().unwrap().unwrap().unfinished_since_ms, None);
}

/// What an interrupted run has done is not looked at again by the run that resumes the pass.
#[test]
fn a_resumed_pass_has_seen_the_destination_as_it_was_when_it_began() {
    let directory = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(directory.path()).unwrap();
    let until = |journal: &Journal| {
        let last = journal.last_pass().unwrap().unwrap();
        last.seen_until(&spec()).map(|time| time.seconds)
    };
    let date = |journal: &Journal, column: &str, ms: i64| {
        let sql =
            format!("UPDATE pass SET {column} = ?1 WHERE number = (SELECT max(number) FROM pass)");
        journal.database.execute(&sql, [ms]).unwrap();
    };
    begin(&mut journal, PassKind::Whole);
    journal.end(ended(Ending::Finished, 0, "{}"), LookedInto::Everything).unwrap();
    date(&journal, "begun_ms", 1_000_000);
    date(&journal, "ended_ms", 2_000_000);
    assert_eq!(until(&journal), Some(1999));
    date(&journal, "resumed_ms", 1_500_000);
    assert_eq!(until(&journal), Some(999));
}

/// An entry that failed half-way has a younger change time than its source, and looks as if it had been brought over.
#[test]
fn a_pass_has_seen_what_it_was_to_keep_and_only_if_nothing_failed() {
    let directory = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(directory.path()).unwrap();
    let seen = |journal: &Journal, spec: &JobSpec| {
        journal.last_pass().unwrap().and_then(|last| last.seen_before(spec))
    };
    let set_begun = |journal: &Journal, ms: i64| {
        let sql = "UPDATE pass SET begun_ms = ?1 WHERE number = (SELECT max(number) FROM pass)";
        journal.database.execute(sql, [ms]).unwrap();
    };
    begin(&mut journal, PassKind::Whole);
    set_begun(&journal, 1_000_000);
    assert_eq!(seen(&journal, &spec()), None, "it has not ended");
    journal.end(ended(Ending::Finished, 0, "{}"), LookedInto::Everything).unwrap();
    let first = seen(&journal, &spec()).unwrap();
    assert_eq!(first.seconds, 999);
    let until = journal.last_pass().unwrap().and_then(|last| last.seen_until(&spec()));
    assert!(until > Some(first), "it ended just now: {until:?}");
    let skew = journal.last_pass().unwrap().and_then(|last| last.source_skew(&spec()));
    assert_eq!(skew, Some(Duration::from_millis(2001)), "rounded up");
    let failures = [
        (Side::Destination, ErrorClass::Quota, 999),
        (Side::Source, ErrorClass::Denied, 999),
        (Side::Source, ErrorClass::Vanished, 3999),
    ];
    for (side, class, expected) in failures {
        begin(&mut journal, PassKind::Whole);
        set_begun(&journal, 1_000_000 * (expected + 1) / 1000);
        let path = PathBytes(b"a".to_vec());
        let error = EntryError::plain(side, Operation::SetXattr, class, path, "a reason");
        journal.commit(&JournalEntry { errors: vec![error], ..JournalEntry::default() }).unwrap();
        journal.end(ended(Ending::Finished, 3, "{}"), LookedInto::Everything).unwrap();
        let now = seen(&journal, &spec()).map(|time| time.seconds);
        assert_eq!(now, Some(expected), "{side:?} {class:?}");
    }
    let mut newer = spec();
    newer.selection.newer_than = Some(Timestamp { seconds: 1, nanoseconds: 0 });
    assert!(seen(&journal, &newer).is_some(), "it has looked at all of them");
    // What failed in older passes is not known any more.
    for _ in 0..=ERRORS_KEPT {
        begin(&mut journal, PassKind::Whole);
        let path = PathBytes(b"a".to_vec());
        let class = ErrorClass::Denied;
        let error = EntryError::plain(Side::Source, Operation::Open, class, path, "");
        journal.commit(&JournalEntry { errors: vec![error], ..JournalEntry::default() }).unwrap();
        journal.end(ended(Ending::Finished, 3, "{}"), LookedInto::Everything).unwrap();
    }
    assert_eq!(seen(&journal, &spec()), None, "no pass is known that saw everything");
    let mut other = spec();
    other.policy.preserve = dmover_model::AttributeSet::NONE;
    assert_eq!(seen(&journal, &other), None, "it did not keep that");
}

#[test]
fn a_journal_of_version_1_is_gone_on_with() {
    let directory = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(directory.path()).unwrap();
    begin(&mut journal, PassKind::Whole);
    leave_a_task(&journal);
    let back = "DROP INDEX error_pass; DROP TABLE changed; ALTER TABLE pass DROP COLUMN kind; \
                ALTER TABLE pass DROP COLUMN source_skew_ms; ALTER TABLE pass DROP COLUMN unflushed_ms; \
                PRAGMA user_version = 1";
    journal.database.execute_batch(back).unwrap();
    drop(journal);
    let mut journal = Journal::open(directory.path()).unwrap();
    let last = journal.last_pass().unwrap().unwrap();
    assert!(last.unfinished_since_ms.is_some());
    assert_eq!(
        last.unflushed_since_ms, last.unfinished_since_ms,
        "nothing shows that it was flushed"
    );
    assert_eq!(begin(&mut journal, PassKind::Whole), Begun::Resumed);
}

/// Only the end of a run that has flushed everything shows that its files are on storage, and it shows nothing about runs
/// before it.
#[test]
fn files_of_a_stopped_pass_are_on_storage_if_each_of_its_runs_has_flushed_them() {
    for ends in 0..1 << 3 {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(directory.path()).unwrap();
        let mut unflushed = false;
        for run in 0..3 {
            begin(&mut journal, PassKind::Whole);
            leave_a_task(&journal);
            let last = journal.last_pass().unwrap().unwrap();
            assert!(last.unflushed_since_ms.is_some(), "it runs, and may be killed");
            let is_flushed = ends >> run & 1 == 1;
            unflushed |= !is_flushed;
            // A run that is killed does not end here, and one that lost its source cannot.
            if is_flushed && run == 2 {
                journal.note_flushed().unwrap();
            } else if is_flushed || run == 1 {
                let end = RunEnd { is_flushed, ..ended(Ending::Stopped, 130, "{}") };
                journal.end(end, LookedInto::These(&[])).unwrap();
            }
            let last = journal.last_pass().unwrap().unwrap();
            assert_eq!(last.unflushed_since_ms.is_some(), unflushed, "{ends:b}, run {run}");
            assert!(last.unfinished_since_ms.is_some());
        }
        begin(&mut journal, PassKind::Whole);
        journal.end(ended(Ending::Finished, 0, "{}"), LookedInto::Everything).unwrap();
        let last = journal.last_pass().unwrap().unwrap();
        assert_eq!((last.unflushed_since_ms, last.unfinished_since_ms), (None, None));
    }
}

/// 200 bytes for each task: those that are to be done, and those that are done. Prints how many outcomes a second it commits;
/// in a release build that is the rate in docs/performance.md.
#[test]
fn a_task_takes_no_more_than_200_bytes() {
    const TASKS: u64 = 40_000;
    const AT_ONCE: u64 = 256;
    let directory = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(directory.path()).unwrap();
    begin(&mut journal, PassKind::Whole);
    let task = |number: u64| {
        let path = format!("projects/p{:03}/run{:05}/output", number % 97, number % 10_007);
        let name = Name::new(format!("{number:08}").into_bytes()).unwrap();
        let here = |inode| Identity { mount: MountId(1), inode };
        let directory = DirectoryRef {
            root: RootId(0),
            path: TreePath::new(path).unwrap(),
            source: here((1 << 40) + number * 64),
            destination: here((1 << 41) + number * 64),
            made: false,
            ancestors: Vec::new(),
        };
        let kind = TaskKind::Scan { directory, names: ScanNames::Directories(vec![name]) };
        let budget = dmover_model::Budget { entries: 8192, bytes: 1 << 29, time_ms: 500 };
        Shelved { node: None, task: dmover_model::Task::new(TaskId(number), kind, budget) }
    };
    // Each was reported by another one, which ends after it.
    let origin = |number: u64| (number > 0).then_some(TaskId(number / 2));
    let added = |number: u64| Change::Added { task: task(number), origin: origin(number) };
    let ended = |number: u64| {
        let work = dmover_model::Work { entries: 1500, bytes: 1 << 28, elapsed_ms: 480 };
        Change::Ended(TaskId(TASKS - 1 - number), work)
    };
    let size = |journal: &Journal| {
        journal.database.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        std::fs::metadata(&journal.path).unwrap().len() / TASKS
    };
    let commit = |journal: &mut Journal, change: &dyn Fn(u64) -> Change| {
        for first in (0..TASKS).step_by(AT_ONCE as usize) {
            let numbers = first..(first + AT_ONCE).min(TASKS);
            let changes = numbers.map(change).collect();
            journal.commit(&JournalEntry { changes, ..JournalEntry::default() }).unwrap();
        }
    };
    commit(&mut journal, &added);
    let waiting = size(&journal);
    let begun = dmover_schedule::time::Instant::now();
    commit(&mut journal, &ended);
    let rate = TASKS as f64 / begun.elapsed().as_secs_f64();
    let done = size(&journal);
    println!(
        "{waiting} bytes a task that waits, {done} in all when it is done, {rate:.0} outcomes/s"
    );
    let outcomes: u64 = journal
        .database
        .query_row("SELECT count(*) FROM outcome", [], |row| row.get::<_, i64>(0))
        .unwrap() as u64;
    assert_eq!(outcomes, TASKS);
    assert!(waiting.max(done) <= 200, "{waiting} bytes, then {done}");
}
