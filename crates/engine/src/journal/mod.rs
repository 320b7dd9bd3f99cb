//! The journal of a job: what it still has to do, what it has done and what went wrong, on disk.
//!
//! It is one SQLite file for each job. What a mover reports is on the destination's storage before it is reported,
//! and what follows from a report is committed as one before the mover hears that it was. So whatever the journal
//! calls done is done, also after a power cut; that the journal itself loses its last commits then costs work only.
use dmover_model::{
    ChangedPlace, DirectoryRef, EntryError, FileRef, JobSpec, LinkName, Name, Selection, TaskKind,
    Timestamp, TreePath,
};
use dmover_plan::coordinator::{Change, NodeId, Shelved};
use dmover_sys::{file, path, stat};
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::Fatal;
use crate::report::Failed;

mod ask;
mod failed;
mod resume;
mod schema;

pub use ask::{JournalReader, RecordedError, RecordedPass};
pub use failed::{FailedList, FailedPaths};
pub(crate) use resume::Left;

/// Its name in the directory of the job.
const FILE: &str = "journal.sqlite";
/// What to do about a journal that cannot be used.
const FORGETTING: &str = "move it away; the next run starts over. If the last pass was \
    interrupted, give that run --checksum, because the list of files to compare is lost";
/// Errors are kept of so many passes, and passes themselves of so many.
const ERRORS_KEPT: i64 = 100;
const PASSES_KEPT: i64 = 1000;

/// An open journal, of which this process is the only writer.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    database: Connection,
    generation: i64,
    pass: i64,
}

/// What a pass looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PassKind<'a> {
    /// Everything.
    Whole,
    /// Paths of a list.
    Listed,
    /// What a feed has told. It is on record before it is looked at.
    Changed(&'a [ChangedPlace]),
}

impl PassKind<'_> {
    fn word(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Listed => "listed",
            Self::Changed(_) => "changed",
        }
    }
}

/// How a pass begins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// From the start.
    Afresh,
    /// With what an earlier run has left.
    Resumed,
}

/// How a pass ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Everything was done.
    Finished,
    /// It was given up.
    Cancelled,
    /// Another run goes on with it.
    Stopped,
}

/// Doubts of earlier passes that one has looked into.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LookedInto<'a> {
    /// Every entry was looked at, and none failed.
    Everything,
    /// Those about these.
    These(&'a [TreePath]),
}

/// What the last pass was, and of what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LastPass {
    /// The source, so that another one in its place is noticed.
    pub source: String,
    /// It came to its end, and nothing was wrong.
    pub clean: bool,
    /// Entries that the source had, the last time that it had any or was allowed to have none.
    pub entries: u64,
    /// When the last pass over everything began that came to its end, and failed at nothing: whatever was changed at the source
    /// before, it has seen, and brought over what it was to keep. Of older ones it is not known any more what failed.
    pub seen_before_ms: Option<i64>,
    /// When that pass ended: others made the changes of the destination that are later. A pass that was interrupted has looked at
    /// nothing again after it was resumed, so that only the time when it began counts.
    pub seen_until_ms: Option<i64>,
    /// What that pass was to keep, and of what (JSON).
    pub seen_spec: Option<String>,
    /// When the first of the passes began that did not come to their end, if the last one did not.
    pub unfinished_since_ms: Option<i64>,
    /// The destination had content when the job met it first, and no pass has deleted since.
    pub is_foreign: bool,
    /// Entries of the source that the destination had when deletes were withheld for their share, if no pass has deleted since.
    pub had_when_withheld: Option<u64>,
}

impl LastPass {
    /// See `seen_before_ms`: by the clock of file systems, and only if that pass has looked at what this one is about.
    pub fn seen_before(&self, spec: &JobSpec) -> Option<Timestamp> {
        self.seen_before_ms.filter(|_| self.has_seen(spec)).map(ticked)
    }

    /// See `seen_until_ms`, under the same conditions.
    pub fn seen_until(&self, spec: &JobSpec) -> Option<Timestamp> {
        self.seen_until_ms.filter(|_| self.has_seen(spec)).map(ticked)
    }

    /// Whether that pass has looked at what a job is about.
    fn has_seen(&self, spec: &JobSpec) -> bool {
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
        let known = self.seen_spec.as_deref().and_then(read);
        let Some((known, now)) = known.zip(read(&same_work(spec))) else { return false };
        let selection = serde_json::from_value(known[1].clone());
        selection.is_ok_and(|then| has_looked_at(&then, &spec.selection))
            && known[2]["preserve"] == now[2]["preserve"]
    }

    /// The last pass of the job that has this directory, of which nothing is changed; `None` if there was none.
    pub fn of_job(directory: &Path) -> Result<Option<Self>, Fatal> {
        let path = directory.join(FILE);
        match JournalReader::open(directory) {
            Ok(None) => Ok(None),
            Ok(Some(reader)) => Self::read(&reader.0, &path),
            Err(reason) => Err(Fatal::Ledger { path, reason }),
        }
    }

    /// A clock that was set back is refused: times would say the opposite of what happened.
    fn read(database: &Connection, path: &Path) -> Result<Option<Self>, Fatal> {
        // A source that was empty when nothing could follow from it does not count as one that may be.
        let sql = "SELECT source, state, exit_code, \
                   coalesce((SELECT json_extract(counters, '$.entries_found') FROM pass WHERE kind = 'whole' AND \
                     (json_extract(counters, '$.entries_found') > 1 OR json_extract(spec, '$[2].sync.allow_empty_source')) \
                    ORDER BY number DESC LIMIT 1), 0), \
                   (SELECT max(coalesce(ended_ms, resumed_ms, begun_ms)) FROM pass), \
                   (SELECT min(begun_ms) FROM pass AS one WHERE state != 'finished' AND NOT EXISTS \
                    (SELECT 1 FROM pass AS later WHERE later.number > one.number \
                     AND later.state = 'finished' AND later.kind = 'whole' \
                     AND json_extract(later.spec, '$[1]') IN (json_extract(one.spec, '$[1]'), ?1))), \
                   seen.begun_ms, seen.spec, seen.until_ms, EXISTS (SELECT 1 FROM meta WHERE key = 'foreign'), \
                   (SELECT value FROM meta WHERE key = 'had when withheld') \
                   FROM pass LEFT JOIN (SELECT begun_ms, spec, \
                     CASE WHEN resumed_ms IS NULL THEN ended_ms ELSE begun_ms END AS until_ms FROM pass AS one \
                    WHERE state = 'finished' AND kind = 'whole' AND number > (SELECT max(number) FROM pass) - ?2 \
                     AND NOT EXISTS (SELECT 1 FROM error WHERE error.pass = one.number \
                      AND NOT (side = 'source' AND class IN ('vanished', 'changed'))) \
                    ORDER BY number DESC LIMIT 1) AS seen \
                   WHERE kind = 'whole' ORDER BY number DESC LIMIT 1";
        // A pass without rules has looked at whatever one with rules has brought over, and not the other way round.
        let all = serde_json::to_string(&Selection::default()).unwrap_or_default();
        let row = database.query_row(sql, params![all, ERRORS_KEPT], |row| {
            let (state, code): (String, Option<i64>) = (row.get(1)?, row.get(2)?);
            let clean = state == "finished" && code == Some(0);
            let entries: i64 = row.get(3)?;
            let (source, unfinished_since_ms) = (row.get(0)?, row.get(5)?);
            let (seen_before_ms, seen_spec) = (row.get(6)?, row.get(7)?);
            let last = Self {
                source,
                clean,
                entries: entries as u64,
                seen_before_ms,
                seen_until_ms: row.get(8)?,
                seen_spec,
                unfinished_since_ms,
                is_foreign: row.get(9)?,
                had_when_withheld: row.get::<_, Option<i64>>(10)?.map(|had| had as u64),
            };
            Ok((last, row.get::<_, i64>(4)?))
        });
        let Some((last, then)) = row.optional().map_err(|error| failure(path, &error))? else {
            return Ok(None);
        };
        let back = then - now_ms();
        if back > CLOCK_SLACK_MS {
            let message = format!(
                "the clock was set back: the last pass of this job ended {} s in the future",
                back / 1000
            );
            let path = path.display();
            let hint = format!(
                "correct the clock. If it is correct now, discard the journal \
                {path}: {FORGETTING}"
            );
            return Err(Fatal::refused(message, hint));
        }
        Ok(Some(last))
    }
}

/// Where a pass reads and writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Places {
    /// What tells the source from another one that is put in its place.
    pub source: String,
    /// Roots of both sides by device and inode: tasks name directories below these very ones.
    pub roots: String,
}

/// What is committed at once.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub changes: Vec<Change>,
    pub links: Vec<LinkName>,
    pub dirty: Vec<DirectoryRef>,
    /// Directories of `dirty` that tasks have now.
    pub taken: Vec<DirectoryRef>,
    pub errors: Vec<EntryError>,
    /// Files that somebody had open for writing when they were brought over.
    pub doubts: Vec<TreePath>,
    /// Both ends of the roots, once all are there.
    pub roots: Option<String>,
    /// Devices in the order of their numbers, from this one on.
    pub mounts: (usize, Vec<u64>),
    /// Entries of the source that the destination had before the pass, as far as it got.
    pub had: u64,
}

impl Entry {
    fn is_empty(&self) -> bool {
        let lists = self.changes.is_empty() && self.links.is_empty() && self.errors.is_empty();
        let lists = lists && self.roots.is_none() && self.doubts.is_empty();
        lists && self.dirty.is_empty() && self.taken.is_empty() && self.mounts.1.is_empty()
    }
}

/// A clock may be corrected by a little between two runs.
const CLOCK_SLACK_MS: i64 = 60_000;

/// A time as file systems may have kept it, whose clock may be a tick behind; ten milliseconds is the longest (CONFIG_HZ=100),
/// and what is measured in milliseconds has lost one more.
pub(crate) fn ticked(ms: i64) -> Timestamp {
    let ms = ms - 11;
    let nanoseconds = (ms.rem_euclid(1000) * 1_000_000) as u32;
    Timestamp { seconds: ms.div_euclid(1000), nanoseconds }
}

pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as i64
}

impl Journal {
    /// Opens the journal in a job's directory, making it if there is none. The job has to be locked.
    pub fn open(directory: &Path) -> Result<Self, Fatal> {
        let path = directory.join(FILE);
        let fail = |error: &rusqlite::Error| failure(&path, error);
        let database = Connection::open(&path).map_err(|e| fail(&e))?;
        settle(&database, directory).map_err(|e| fail(&e))?;
        if let Some(version) = schema::prepare(&database).map_err(|e| fail(&e))? {
            let known = schema::VERSION;
            let message = format!(
                "{} has version {version}; this dmover reads version {known}",
                path.display()
            );
            let hint = "use the newer dmover, or remove the file; if the last pass was \
                interrupted, the next one then needs --checksum";
            return Err(Fatal::refused(message, hint));
        }
        let sql = "UPDATE meta SET value = value + 1 WHERE key = 'generation' RETURNING value";
        let generation = database.query_row(sql, [], |row| row.get(0)).map_err(|e| fail(&e))?;
        Ok(Self { path, database, generation, pass: 0 })
    }

    fn fail(&self, error: &rusqlite::Error) -> Fatal {
        failure(&self.path, error)
    }

    /// The last pass, if there was one.
    pub fn last_pass(&self) -> Result<Option<LastPass>, Fatal> {
        LastPass::read(&self.database, &self.path)
    }

    /// Begins a pass, or goes on with one that did not come to its end and had the same to do.
    pub fn begin(
        &mut self,
        spec: &JobSpec,
        kind: PassKind<'_>,
        places: &Places,
    ) -> Result<Begun, Fatal> {
        let text = same_work(spec);
        // That it has begun is all that says after a power cut which files may look like what they are not, and the journal
        // may lie on other storage than they do.
        self.flushes(true)?;
        let begun = self.begin_or_go_on(&text, kind, places).map_err(|e| self.fail(&e))?;
        self.flushes(false)?;
        if let Some(directory) = self.path.parent()
            && let Err(error) = path::open_directory(directory).and_then(file::sync_all)
        {
            tracing::warn!(%error, "cannot flush the directory of the journal");
        }
        Ok(begun)
    }

    /// Whether commits wait until they are on storage.
    fn flushes(&self, on: bool) -> Result<(), Fatal> {
        let level = if on { "FULL" } else { "NORMAL" };
        self.database.pragma_update(None, "synchronous", level).map_err(|e| self.fail(&e))
    }

    fn begin_or_go_on(
        &mut self,
        text: &str,
        kind: PassKind<'_>,
        places: &Places,
    ) -> rusqlite::Result<Begun> {
        // One that had not begun with the tree has nothing to go on with, and what one over a list has left is not what
        // another one has to do.
        let sql = "SELECT number FROM pass WHERE ended_ms IS NULL AND spec = ?1 AND places = ?2 \
                   AND places != '' AND kind = 'whole' \
                   AND number = (SELECT max(number) FROM pass) \
                   AND (EXISTS (SELECT 1 FROM task) OR EXISTS (SELECT 1 FROM outcome))";
        let open: Option<i64> = self
            .database
            .query_row(sql, params![text, places.roots], |row| row.get(0))
            .optional()?;
        if let Some(number) = open.filter(|_| kind == PassKind::Whole) {
            self.pass = number;
            let sql = "UPDATE pass SET resumed_ms = ?1, state = 'running' WHERE number = ?2";
            self.database.execute(sql, params![now_ms(), number])?;
            return Ok(Begun::Resumed);
        }
        let transaction = self.database.transaction()?;
        transaction.execute_batch(schema::FORGET)?;
        let sql = "UPDATE pass SET ended_ms = ?1, state = 'given up' WHERE ended_ms IS NULL";
        transaction.execute(sql, [now_ms()])?;
        if let PassKind::Changed(changed) = kind {
            // There may be one a second: the last one stands for all that have ended.
            transaction.execute_batch(
                "DELETE FROM error WHERE pass IN
                    (SELECT number FROM pass WHERE kind = 'changed' AND state = 'finished');
                 DELETE FROM pass WHERE kind = 'changed' AND state = 'finished';",
            )?;
            let mut insert =
                transaction.prepare_cached("INSERT OR IGNORE INTO changed VALUES (?1)")?;
            for place in changed {
                insert.execute([place.path.as_bytes()])?;
            }
        }
        let sql = "INSERT INTO pass (kind, spec, source, places, begun_ms, state) \
                   VALUES (?1, ?2, ?3, ?4, ?5, 'running')";
        let Places { source, roots } = places;
        transaction.execute(sql, params![kind.word(), text, source, roots, now_ms()])?;
        self.pass = transaction.last_insert_rowid();
        transaction.execute("DELETE FROM error WHERE pass <= ?1", [self.pass - ERRORS_KEPT])?;
        transaction.execute(
            "DELETE FROM pass WHERE number <= ?1 AND state = 'finished'",
            [self.pass - PASSES_KEPT],
        )?;
        transaction.commit()?;
        Ok(Begun::Afresh)
    }

    /// Entries that have failed in this pass so far.
    pub fn failed(&self) -> Result<Failed, Fatal> {
        let sql = "SELECT count(DISTINCT CASE WHEN side = 'source' AND class IN ('vanished', 'changed') THEN path END), \
                   count(DISTINCT CASE WHEN side = 'source' AND class NOT IN ('vanished', 'changed') THEN path END), \
                   count(DISTINCT CASE WHEN side != 'source' THEN path END) FROM error WHERE pass = ?1";
        let read = |row: &rusqlite::Row<'_>| {
            let get = |column| row.get::<_, i64>(column).map(|count| count as u64);
            Ok(Failed { moved_on: get(0)?, unseen: get(1)?, there: get(2)? })
        };
        self.database.query_row(sql, [self.pass], read).map_err(|e| self.fail(&e))
    }

    /// See `LastPass::is_foreign`.
    pub fn set_foreign(&self, foreign: bool) -> Result<(), Fatal> {
        let sql = if foreign {
            "INSERT OR REPLACE INTO meta VALUES ('foreign', 1)"
        } else {
            "DELETE FROM meta WHERE key = 'foreign'"
        };
        self.database.execute(sql, []).map(drop).map_err(|e| self.fail(&e))
    }

    /// See `LastPass::had_when_withheld`. What later passes bring does not make it more.
    pub fn set_had_when_withheld(&self, had: Option<u64>) -> Result<(), Fatal> {
        let done = match had {
            Some(had) => self.database.execute(
                "INSERT INTO meta VALUES ('had when withheld', ?1) \
                 ON CONFLICT (key) DO UPDATE SET value = min(value, excluded.value)",
                [had as i64],
            ),
            None => self.database.execute("DELETE FROM meta WHERE key = 'had when withheld'", []),
        };
        done.map(drop).map_err(|e| self.fail(&e))
    }

    /// Entries of the source that the destination had before the pass that this run goes on with.
    pub fn had(&self) -> Result<u64, Fatal> {
        let sql = "SELECT value FROM meta WHERE key = 'had'";
        let read = self.database.query_row(sql, [], |row| row.get::<_, i64>(0)).optional();
        Ok(read.map_err(|e| self.fail(&e))?.unwrap_or_default() as u64)
    }

    /// Commits what follows from what movers have said.
    pub fn commit(&mut self, entry: &Entry) -> Result<(), Fatal> {
        if entry.is_empty() {
            return Ok(());
        }
        // What else is lost is done again. What is in doubt would not be looked at again.
        let flushes = !entry.doubts.is_empty();
        if flushes {
            self.flushes(true)?;
        }
        let committed = self.try_commit(entry);
        if flushes {
            self.flushes(false)?;
        }
        match committed {
            Ok(true) => Ok(()),
            // Another process has taken over.
            Ok(false) => Err(Fatal::Fenced { journal: self.path.clone() }),
            Err(error) => Err(Fatal::Ledger { path: self.path.clone(), reason: error.to_string() }),
        }
    }

    fn try_commit(&mut self, entry: &Entry) -> Result<bool, Box<dyn std::error::Error>> {
        let pass = self.pass;
        let behavior = rusqlite::TransactionBehavior::Immediate;
        let transaction = self.database.transaction_with_behavior(behavior)?;
        let now: i64 = transaction
            .prepare_cached("SELECT value FROM meta WHERE key = 'generation'")?
            .query_row([], |row| row.get(0))?;
        if now != self.generation {
            return Ok(false);
        }
        for change in &entry.changes {
            apply(&transaction, change)?;
        }
        if let Some(roots) = &entry.roots {
            let sql = "UPDATE pass SET places = ?1 WHERE number = ?2";
            transaction.execute(sql, params![roots, pass])?;
        }
        let (first, mounts) = &entry.mounts;
        for (number, device) in mounts.iter().enumerate() {
            transaction
                .prepare_cached("INSERT OR REPLACE INTO mount VALUES (?1, ?2)")?
                .execute(params![(first + number) as i64, *device as i64])?;
        }
        for name in &entry.links {
            transaction
                .prepare_cached("INSERT OR REPLACE INTO link VALUES (?1, ?2)")?
                .execute(params![file_key(&name.file), postcard::to_stdvec(name)?])?;
        }
        for directory in &entry.dirty {
            transaction
                .prepare_cached("INSERT OR REPLACE INTO dirty VALUES (?1, 0, ?2)")?
                .execute(params![directory_key(directory), postcard::to_stdvec(directory)?])?;
        }
        for directory in &entry.taken {
            transaction
                .prepare_cached("UPDATE dirty SET taken = 1 WHERE id = ?1")?
                .execute([directory_key(directory)])?;
        }
        for path in &entry.doubts {
            transaction
                .prepare_cached("INSERT OR REPLACE INTO doubt VALUES (?1, ?2)")?
                .execute(params![path.as_bytes(), pass])?;
        }
        for error in &entry.errors {
            insert_error(&transaction, pass, error)?;
        }
        if entry.had > 0 {
            transaction
                .prepare_cached("INSERT OR REPLACE INTO meta VALUES ('had', ?1)")?
                .execute([entry.had as i64])?;
        }
        transaction.commit()?;
        Ok(true)
    }

    /// Whether another process has begun with this journal.
    fn is_taken_over(&self) -> rusqlite::Result<bool> {
        let sql = "SELECT value FROM meta WHERE key = 'generation'";
        let now: i64 = self.database.query_row(sql, [], |row| row.get(0))?;
        Ok(now != self.generation)
    }

    /// Ends the pass, or leaves it to be gone on with.
    pub fn end(
        &mut self,
        ending: Ending,
        code: u8,
        counters: &str,
        looked_into: LookedInto<'_>,
    ) -> Result<(), Fatal> {
        let (state, finished) = match ending {
            Ending::Finished => ("finished", true),
            Ending::Cancelled => ("cancelled", true),
            Ending::Stopped => ("stopped", false),
        };
        let ended = finished.then(now_ms);
        if self.is_taken_over().map_err(|e| self.fail(&e))? {
            return Err(Fatal::Fenced { journal: self.path.clone() });
        }
        let run = || -> rusqlite::Result<()> {
            let sql = "UPDATE pass SET state = ?1, ended_ms = ?2, exit_code = ?3, counters = ?4, \
                       resumed_ms = coalesce(?5, resumed_ms) WHERE number = ?6";
            let stopped = (!finished).then(now_ms);
            self.database
                .execute(sql, params![state, ended, code, counters, stopped, self.pass])?;
            if finished {
                self.database.execute_batch(schema::FORGET)?;
            }
            if ending == Ending::Finished {
                // One over everything has looked at whatever was told before it began.
                let sql = "DELETE FROM changed WHERE (SELECT kind FROM pass WHERE number = ?1) != 'listed'";
                self.database.execute(sql, [self.pass])?;
                // This pass has looked at those of earlier ones.
                match looked_into {
                    LookedInto::Everything => {
                        self.database.execute("DELETE FROM doubt WHERE pass != ?1", [self.pass])?;
                    }
                    LookedInto::These(paths) => {
                        let sql = "DELETE FROM doubt WHERE path = ?1 AND pass != ?2";
                        let transaction = self.database.unchecked_transaction()?;
                        for path in paths {
                            let row = params![path.as_bytes(), self.pass];
                            transaction.prepare_cached(sql)?.execute(row)?;
                        }
                        transaction.commit()?;
                    }
                }
            }
            Ok(())
        };
        run().map_err(|e| self.fail(&e))
    }
}

/// Settings: a log beside the file where that is on this machine, and a plain rollback journal where the file system
/// may be shared with others, which the log's shared memory cannot be (sqlite.org, "Write-Ahead Logging").
pub(crate) fn settle(database: &Connection, directory: &Path) -> rusqlite::Result<()> {
    database.busy_timeout(std::time::Duration::from_secs(10))?;
    let magic =
        path::open_directory(directory).and_then(stat::file_system).map_or(0, |found| found.magic);
    let remote = matches!(
        stat::file_system_name(magic),
        Some("nfs" | "fuse" | "cifs" | "lustre" | "gpfs") | None
    );
    let settings = if remote {
        // Locked anew for each transaction: only then is what another process has written read again.
        "PRAGMA journal_mode = TRUNCATE;"
    } else {
        "PRAGMA journal_mode = WAL;"
    };
    database.execute_batch(settings)?;
    database.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA cache_size = -4096;")
}

/// Whether whoever looked at one selection has looked at another one.
fn has_looked_at(then: &Selection, now: &Selection) -> bool {
    let rules = |one: &Selection| Selection {
        newer_than: None,
        older_than: None,
        ages_ms: [None; 2],
        ..one.clone()
    };
    rules(then) == rules(now)
        && then.newer_than.is_none_or(|then| now.newer_than.is_some_and(|now| now >= then))
        && then.older_than.is_none_or(|then| now.older_than.is_some_and(|now| now <= then))
}

/// What makes two runs have the same to do: not how fast.
pub(crate) fn same_work(spec: &JobSpec) -> String {
    let parts = (spec.verb, &spec.selection, &spec.policy, spec.target_mode);
    serde_json::to_string(&parts).unwrap_or_default()
}

fn failure(path: &Path, error: &rusqlite::Error) -> Fatal {
    let damaged = [ErrorCode::DatabaseCorrupt, ErrorCode::NotADatabase];
    if error.sqlite_error_code().is_some_and(|code| damaged.contains(&code)) {
        let message = format!("the journal {} is damaged: {error}", path.display());
        let hint = FORGETTING;
        return Fatal::refused(message, hint);
    }
    Fatal::Ledger { path: path.to_owned(), reason: error.to_string() }
}

fn directory_key(directory: &DirectoryRef) -> i64 {
    key(directory, None)
}

fn file_key(file: &FileRef) -> i64 {
    key(&file.directory, Some(&file.name))
}

/// A number for a place in a tree; two places have the same by chance only, one in 10^19.
fn key(directory: &DirectoryRef, name: Option<&Name>) -> i64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&directory.root.0.to_le_bytes()).update(directory.path.as_bytes());
    if let Some(name) = name {
        hasher.update(b"/").update(name.as_bytes());
    }
    let mut number = [0; 8];
    number.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    i64::from_le_bytes(number)
}

fn kind_word(kind: &TaskKind) -> &'static str {
    match kind {
        TaskKind::Scan { .. } => "scan",
        TaskKind::Open { .. } => "open",
        TaskKind::Chunk(_) => "chunk",
        TaskKind::Seal(_) => "seal",
        TaskKind::Links(_) => "links",
        TaskKind::Finish(_) => "finish",
        TaskKind::Delete(_) => "delete",
        TaskKind::Revisit(_)
        | TaskKind::Rename(_)
        | TaskKind::Catalog(_)
        | TaskKind::CatalogNames(_) => "survey",
        TaskKind::Pairs(_) => "pairs",
        TaskKind::Sums(_) | TaskKind::Hash(_) | TaskKind::Conclude(_) => "sum",
        TaskKind::Records(_) | TaskKind::Compare(_) | TaskKind::Judge(_) => "verify",
    }
}

fn apply(database: &Connection, change: &Change) -> Result<(), Box<dyn std::error::Error>> {
    match change {
        Change::Added { task: Shelved { node, task }, origin } => {
            let sql = "INSERT INTO task (id, node, origin, kind, body) VALUES (?1, ?2, ?3, ?4, ?5)";
            database.prepare_cached(sql)?.execute(params![
                task.id.0 as i64,
                node.map(|node| node.0 as i64),
                origin.map(|origin| origin.0 as i64),
                kind_word(&task.kind),
                postcard::to_stdvec(&task.kind)?,
            ])?;
        }
        Change::Ended(id, work) => {
            let id = id.0 as i64;
            forget_what_it_had(database, id)?;
            let sql = "INSERT OR REPLACE INTO outcome SELECT id, kind, ?2, ?3, ?4 FROM task WHERE id = ?1";
            let (entries, bytes) = (work.entries as i64, work.bytes as i64);
            database.prepare_cached(sql)?.execute(params![
                id,
                entries,
                bytes,
                work.elapsed_ms as i64
            ])?;
            // Whoever goes on with the task that reported it has to know that it was given away.
            let sql = "UPDATE task SET done = 1, node = NULL WHERE id = ?1 \
                       AND EXISTS (SELECT 1 FROM task AS above WHERE above.id = task.origin AND above.done = 0)";
            if database.prepare_cached(sql)?.execute([id])? == 0 {
                database.prepare_cached("DELETE FROM task WHERE id = ?1")?.execute([id])?;
            }
            let sql = "DELETE FROM task WHERE origin = ?1 AND done = 1";
            database.prepare_cached(sql)?.execute([id])?;
        }
        Change::Waiting { node: NodeId(id), parent, finish } => {
            let sql = "INSERT INTO node VALUES (?1, ?2, ?3, ?4)";
            let parent = parent.map(|parent| parent.0 as i64);
            let body = postcard::to_stdvec(finish)?;
            database.prepare_cached(sql)?.execute(params![
                *id as i64,
                parent,
                kind_word(finish),
                body
            ])?;
        }
        Change::Noted(NodeId(id), note) => {
            let sql = "INSERT INTO part VALUES (?1, ?2)";
            let body = postcard::to_stdvec(note)?;
            database.prepare_cached(sql)?.execute(params![*id as i64, body])?;
        }
        Change::Released(NodeId(id)) => {
            database.prepare_cached("DELETE FROM part WHERE node = ?1")?.execute([*id as i64])?;
            database.prepare_cached("DELETE FROM node WHERE id = ?1")?.execute([*id as i64])?;
        }
    }
    Ok(())
}

/// Names of linked inodes and directories that a task has dealt with need not be remembered any longer.
fn forget_what_it_had(database: &Connection, id: i64) -> Result<(), Box<dyn std::error::Error>> {
    let sql =
        "SELECT body FROM task WHERE id = ?1 AND node IS NULL AND kind IN ('links', 'finish')";
    let body: Option<Vec<u8>> =
        database.prepare_cached(sql)?.query_row([id], |row| row.get(0)).optional()?;
    let Some(body) = body else { return Ok(()) };
    match postcard::from_bytes(&body)? {
        TaskKind::Links(groups) => {
            // Names of a group that goes on in another task are remembered until all is done: a rest by itself would
            // become another inode.
            let whole = groups.iter().filter(|group| !group.first_is_done);
            for group in whole.take(groups.len().saturating_sub(1)) {
                for file in std::iter::once(&group.first).chain(&group.rest) {
                    let sql = "DELETE FROM link WHERE id = ?1";
                    database.prepare_cached(sql)?.execute([file_key(file)])?;
                }
            }
        }
        TaskKind::Finish(directories) => {
            for directory in &directories {
                let sql = "DELETE FROM dirty WHERE id = ?1 AND taken = 1";
                database.prepare_cached(sql)?.execute([directory_key(directory)])?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn insert_error(
    database: &Connection,
    pass: i64,
    error: &EntryError,
) -> Result<(), Box<dyn std::error::Error>> {
    let RecordedError { time_ms, side, operation, path, class, errno, detail, attempt, .. } =
        RecordedError::now(error);
    let sql = "INSERT INTO error (pass, time_ms, side, operation, path, class, errno, detail, attempt) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    let row = params![pass, time_ms, side, operation, path.0, class, errno, detail, attempt];
    database.prepare_cached(sql)?.execute(row)?;
    Ok(())
}

#[cfg(test)]
mod tests;
