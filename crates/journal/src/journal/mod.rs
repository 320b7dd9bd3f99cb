//! The journal of a job on disk: the remaining work, the completed work, and the errors.
//!
//! It is one SQLite file for each job. The work of a mover is on the destination's storage before it is reported, and
//! the consequences of a report are committed together before they are acknowledged to the mover. So all work that the
//! journal records as done is done, even after a power cut. If the journal loses its last commits, that only costs
//! repeated work.
use dmover_model::{
    ChangedPlace, DirectoryRef, EntryError, Failed, Fatal, FileRef, JobSpec, LinkName, Name,
    Selection, TaskKind, Timestamp, TreePath,
};
use dmover_plan::coordinator::{Change, NodeId, Shelved};
use dmover_schedule::time::since_1970;
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::database::settle;

mod ask;
mod failed;
mod resume;
mod schema;

pub use ask::{JournalReader, RecordedError, RecordedPass};
pub use failed::{FailedList, FailedPaths};
pub use resume::Left;

/// Its file name in the directory of the job.
const FILE: &str = "journal.sqlite";
/// What the user can do if the journal cannot be used.
const FORGETTING: &str = "move it away; the next run starts over. If the last pass was \
    interrupted, give that run --checksum, because the list of files to compare is lost";
/// Errors are kept for this many passes; the second number is for passes themselves.
const ERRORS_KEPT: i64 = 100;
const PASSES_KEPT: i64 = 1000;

/// An open journal. This process is its only writer.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    database: Connection,
    generation: i64,
    pass: i64,
    /// Since when files that earlier runs of this pass wrote may not be on storage.
    unflushed_before_ms: Option<i64>,
}

/// Which part of the tree a pass scans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassKind<'a> {
    /// The whole tree.
    Whole,
    /// The paths of a list.
    Listed,
    /// Paths that a change feed has reported. They are recorded before they are scanned.
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
pub enum Begun {
    /// From the start.
    Afresh,
    /// With the rest of an earlier run.
    Resumed,
}

/// The end of a run of a pass.
#[derive(Debug, Clone, Copy)]
pub struct RunEnd<'a> {
    /// How it ended.
    pub ending: Ending,
    /// Its exit code.
    pub code: u8,
    /// Its counters (JSON).
    pub counters: &'a str,
    /// Everything that this run wrote is on storage: each mover has ended, and no flush has failed.
    pub is_flushed: bool,
}

/// How a pass ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Everything was done.
    Finished,
    /// The user cancelled it.
    Cancelled,
    /// It was stopped, and another run may resume it.
    Stopped,
}

/// Doubts of earlier passes that a pass has resolved.
#[derive(Debug, Clone, Copy)]
pub enum LookedInto<'a> {
    /// All: every entry was scanned without failure.
    Everything,
    /// Those about these paths.
    These(&'a [TreePath]),
}

/// The record of the last pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastPass {
    /// Identifies the source, so that a replaced source is noticed.
    pub source: String,
    /// It was completed without errors.
    pub clean: bool,
    /// Number of source entries, when it last had any or was allowed to have none.
    pub entries: u64,
    /// Start time of the last complete pass over the whole tree without failures: it has seen all earlier changes of
    /// the source and copied them. Failures of older passes are not recorded any more.
    pub seen_before_ms: Option<i64>,
    /// End time of that pass: later changes at the destination were made by others. If that pass was resumed, only its
    /// start time counts, because it did not scan anything again.
    pub seen_until_ms: Option<i64>,
    /// How far the clock of a source on another host differed from the clock here in that pass, if it was measured.
    pub source_skew_ms: Option<i64>,
    /// What that pass had to keep, and of which tree (JSON).
    pub seen_spec: Option<String>,
    /// Start time of the first incomplete pass since, if the last pass is incomplete.
    pub unfinished_since_ms: Option<i64>,
    /// Files that such passes have written since this time may not be on storage.
    pub unflushed_since_ms: Option<i64>,
    /// The destination had content when the job first used it, and no pass has deleted since.
    pub is_foreign: bool,
    /// Source entries that the destination had when deletes were withheld because of their share, if no pass has
    /// deleted since.
    pub had_when_withheld: Option<u64>,
}

/// What of a policy decides which attributes entries have.
const ATTRIBUTES_BY: [&str; 6] =
    ["preserve", "user_map", "group_map", "owners_by_name", "names", "project_map"];

fn is_nothing(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Null | serde_json::Value::Bool(false) => true,
        serde_json::Value::Array(all) => all.is_empty(),
        _ => false,
    }
}

impl LastPass {
    /// See `seen_before_ms`: in the clock of file systems, and only if that pass has scanned all paths of this job.
    pub fn seen_before(&self, spec: &JobSpec) -> Option<Timestamp> {
        self.seen_before_ms.filter(|_| self.has_seen(spec)).map(ticked)
    }

    /// See `seen_until_ms`, under the same conditions.
    pub fn seen_until(&self, spec: &JobSpec) -> Option<Timestamp> {
        self.seen_until_ms.filter(|_| self.has_seen(spec)).map(ticked)
    }

    /// See `source_skew_ms`, under the same conditions.
    pub fn source_skew(&self, spec: &JobSpec) -> Option<Duration> {
        let known = self.source_skew_ms.filter(|_| self.has_seen(spec))?;
        known.try_into().ok().map(Duration::from_millis)
    }

    /// Whether that pass has scanned all paths of a job.
    fn has_seen(&self, spec: &JobSpec) -> bool {
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
        let known = self.seen_spec.as_deref().and_then(read);
        let Some((known, now)) = known.zip(read(&same_work(spec))) else { return false };
        let selection = serde_json::from_value(known[1].clone());
        // What an earlier version did not know is not there.
        let counts = |value: &serde_json::Value| match value {
            serde_json::Value::Object(fields) => !fields.values().all(is_nothing),
            value => !is_nothing(value),
        };
        let is_same = |key: &str| {
            let (then, now) = (&known[2][key], &now[2][key]);
            then == now || !(counts(then) || counts(now))
        };
        selection.is_ok_and(|then| has_looked_at(&then, &spec.selection))
            && ATTRIBUTES_BY.iter().all(|key| is_same(key))
    }

    /// The last pass of the job in this directory, without changing anything; `None` if there was none.
    pub fn of_job(directory: &Path) -> Result<Option<Self>, Fatal> {
        let path = directory.join(FILE);
        match JournalReader::open(directory) {
            Ok(None) => Ok(None),
            Ok(Some(reader)) => Self::read(&reader.0, &path),
            Err(reason) => Err(Fatal::Ledger { path, reason }),
        }
    }

    /// Reads the last pass. A clock that was set back is refused, because times would be misleading.
    fn read(database: &Connection, path: &Path) -> Result<Option<Self>, Fatal> {
        // A source that was empty when nothing could follow from it does not count as one that may be.
        let sql = "SELECT source, state, exit_code, \
                   coalesce((SELECT json_extract(counters, '$.entries_found') FROM pass WHERE kind = 'whole' AND \
                     (json_extract(counters, '$.entries_found') > 1 OR json_extract(spec, '$[2].sync.allow_empty_source')) \
                    ORDER BY number DESC LIMIT 1), 0), \
                   (SELECT max(coalesce(ended_ms, resumed_ms, begun_ms)) FROM pass), \
                   unfinished.begun_ms, \
                   seen.begun_ms, seen.spec, seen.until_ms, EXISTS (SELECT 1 FROM meta WHERE key = 'foreign'), \
                   (SELECT value FROM meta WHERE key = 'had when withheld'), seen.source_skew_ms, unfinished.unflushed_ms \
                   FROM pass CROSS JOIN (SELECT min(begun_ms) AS begun_ms, min(unflushed_ms) AS unflushed_ms \
                    FROM pass AS one WHERE state != 'finished' AND NOT EXISTS \
                    (SELECT 1 FROM pass AS later WHERE later.number > one.number \
                     AND later.state = 'finished' AND later.kind = 'whole' \
                     AND json_extract(later.spec, '$[1]') IN (json_extract(one.spec, '$[1]'), ?1))) AS unfinished \
                   LEFT JOIN (SELECT begun_ms, spec, source_skew_ms, \
                     CASE WHEN resumed_ms IS NULL THEN ended_ms ELSE begun_ms END AS until_ms FROM pass AS one \
                    WHERE state = 'finished' AND kind = 'whole' AND number > (SELECT max(number) FROM pass) - ?2 \
                     AND NOT EXISTS (SELECT 1 FROM error WHERE error.pass = one.number \
                      AND NOT (side = 'source' AND class IN ('vanished', 'changed'))) \
                    ORDER BY number DESC LIMIT 1) AS seen \
                   WHERE kind = 'whole' ORDER BY number DESC LIMIT 1";
        // A pass without rules has scanned everything that one with rules has copied, but not the other way round.
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
                unflushed_since_ms: row.get(12)?,
                is_foreign: row.get(9)?,
                had_when_withheld: row.get::<_, Option<i64>>(10)?.map(|had| had as u64),
                source_skew_ms: row.get(11)?,
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

/// The ends of a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassPlaces {
    /// Identifies the source, to detect another source in its place.
    pub source: String,
    /// Roots of both sides by device and inode: directories in tasks are relative to them.
    pub roots: String,
    /// How far the clock of a source on another host differs from the clock here; `None`: not known.
    pub source_skew: Option<Duration>,
    /// Nothing was read of either side before this time, as [`now_ms`] has it.
    pub began_ms: i64,
}

impl PassPlaces {
    fn skew_ms(&self) -> Option<i64> {
        // Rounded up: a smaller one would be a wrong claim.
        i64::try_from(self.source_skew?.as_millis() + 1).ok()
    }
}

/// Changes for one commit.
#[derive(Debug, Default)]
pub struct JournalEntry {
    /// Tasks that were issued, and outcomes.
    pub changes: Vec<Change>,
    /// Names of inodes with several names.
    pub links: Vec<LinkName>,
    /// Directories to finish.
    pub dirty: Vec<DirectoryRef>,
    /// Directories of `dirty` that a task has taken.
    pub taken: Vec<DirectoryRef>,
    /// Entries that failed.
    pub errors: Vec<EntryError>,
    /// Files that were open for writing when they were copied.
    pub doubts: Vec<TreePath>,
    /// Both ends of the roots, once all exist.
    pub roots: Option<String>,
    /// Devices in the order of their numbers, beginning with this one.
    pub mounts: (usize, Vec<u64>),
    /// Source entries that the destination had before the pass, so far.
    pub had: u64,
}

impl JournalEntry {
    fn is_empty(&self) -> bool {
        let lists = self.changes.is_empty() && self.links.is_empty() && self.errors.is_empty();
        let lists = lists && self.roots.is_none() && self.doubts.is_empty();
        lists && self.dirty.is_empty() && self.taken.is_empty() && self.mounts.1.is_empty()
    }
}

/// A clock may be corrected by this much between two runs.
const CLOCK_SLACK_MS: i64 = 60_000;

/// A time as file systems may have stored it: their clock may be one tick behind, at most ten milliseconds
/// (CONFIG_HZ=100), and rounding to milliseconds loses one more.
pub fn ticked(ms: i64) -> Timestamp {
    let ms = ms - 11;
    let nanoseconds = (ms.rem_euclid(1000) * 1_000_000) as u32;
    Timestamp { seconds: ms.div_euclid(1000), nanoseconds }
}

/// The time in milliseconds since 1970.
pub fn now_ms() -> i64 {
    let since = since_1970();
    since.as_millis() as i64
}

impl Journal {
    /// Opens the journal in a job's directory, or creates it. The job must be locked.
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
        Ok(Self { path, database, generation, pass: 0, unflushed_before_ms: None })
    }

    fn fail(&self, error: &rusqlite::Error) -> Fatal {
        failure(&self.path, error)
    }

    /// The last pass, if there was one.
    pub fn last_pass(&self) -> Result<Option<LastPass>, Fatal> {
        LastPass::read(&self.database, &self.path)
    }

    /// Begins a pass, or resumes an incomplete one with the same work.
    pub fn begin(
        &mut self,
        spec: &JobSpec,
        kind: PassKind<'_>,
        places: &PassPlaces,
    ) -> Result<Begun, Fatal> {
        let text = same_work(spec);
        // That it has begun is all that says after a power cut which files may look like what they are not, and the journal
        // may lie on other storage than they do.
        self.flushes(true)?;
        let begun = self.begin_or_go_on(&text, kind, places).map_err(|e| self.fail(&e))?;
        self.flushes(false)?;
        if let Some(directory) = self.path.parent()
            && let Err(error) =
                std::fs::File::open(directory).and_then(|directory| directory.sync_all())
        {
            tracing::warn!(%error, "cannot flush the directory of the journal");
        }
        Ok(begun)
    }

    /// Sets whether commits wait until they are on storage.
    fn flushes(&self, on: bool) -> Result<(), Fatal> {
        let level = if on { "FULL" } else { "NORMAL" };
        self.database.pragma_update(None, "synchronous", level).map_err(|e| self.fail(&e))
    }

    fn begin_or_go_on(
        &mut self,
        text: &str,
        kind: PassKind<'_>,
        places: &PassPlaces,
    ) -> rusqlite::Result<Begun> {
        // One that had not begun with the tree has nothing to go on with, and what one over a list has left is not what
        // another one has to do.
        let sql = "SELECT number, unflushed_ms FROM pass WHERE ended_ms IS NULL AND spec = ?1 AND places = ?2 \
                   AND places != '' AND kind = 'whole' \
                   AND number = (SELECT max(number) FROM pass) \
                   AND (EXISTS (SELECT 1 FROM task) OR EXISTS (SELECT 1 FROM outcome))";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let open: Option<(i64, Option<i64>)> =
            self.database.query_row(sql, params![text, places.roots], read).optional()?;
        if let Some((number, unflushed_ms)) = open.filter(|_| kind == PassKind::Whole) {
            (self.pass, self.unflushed_before_ms) = (number, unflushed_ms);
            // Of two measurements the larger one counts, and none if one is missing, as max() has it.
            let sql = "UPDATE pass SET resumed_ms = ?1, state = 'running', \
                       unflushed_ms = coalesce(unflushed_ms, ?1), source_skew_ms = max(source_skew_ms, ?3) WHERE number = ?2";
            self.database.execute(sql, params![now_ms(), number, places.skew_ms()])?;
            return Ok(Begun::Resumed);
        }
        let transaction = self.database.transaction()?;
        transaction.execute_batch(schema::FORGET)?;
        let sql = "UPDATE pass SET ended_ms = ?1, state = 'given up' WHERE ended_ms IS NULL";
        transaction.execute(sql, [now_ms()])?;
        if let PassKind::Changed(changed) = kind {
            // There may be one each second: the last one represents all that have ended.
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
        let sql = "INSERT INTO pass (kind, spec, source, places, begun_ms, state, source_skew_ms, unflushed_ms) \
                   VALUES (?1, ?2, ?3, ?4, ?5, 'running', ?6, ?5)";
        let PassPlaces { source, roots, .. } = places;
        let begun = params![kind.word(), text, source, roots, places.began_ms, places.skew_ms()];
        transaction.execute(sql, begun)?;
        (self.pass, self.unflushed_before_ms) = (transaction.last_insert_rowid(), None);
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

    /// See `LastPass::had_when_withheld`. Entries from later passes do not increase it.
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

    /// Source entries that the destination had before the pass that this run resumes.
    pub fn had(&self) -> Result<u64, Fatal> {
        let sql = "SELECT value FROM meta WHERE key = 'had'";
        let read = self.database.query_row(sql, [], |row| row.get::<_, i64>(0)).optional();
        Ok(read.map_err(|e| self.fail(&e))?.unwrap_or_default() as u64)
    }

    /// Commits the consequences of reports.
    pub fn commit(&mut self, entry: &JournalEntry) -> Result<(), Fatal> {
        if entry.is_empty() {
            return Ok(());
        }
        // Other lost changes are repeated, but a lost doubt would never be checked.
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

    fn try_commit(&mut self, entry: &JournalEntry) -> Result<bool, Box<dyn std::error::Error>> {
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

    /// Records that everything that this run wrote is on storage, although it cannot end the pass.
    pub fn note_flushed(&self) -> Result<(), Fatal> {
        let sql = "UPDATE pass SET unflushed_ms = ?1 WHERE number = ?2 \
                   AND (SELECT value FROM meta WHERE key = 'generation') = ?3";
        let row = params![self.unflushed_before_ms, self.pass, self.generation];
        self.database.execute(sql, row).map(drop).map_err(|e| self.fail(&e))
    }

    /// Ends the pass, or leaves it to be resumed.
    pub fn end(&mut self, end: RunEnd<'_>, looked_into: LookedInto<'_>) -> Result<(), Fatal> {
        let RunEnd { ending, code, counters, is_flushed } = end;
        let (state, finished) = match ending {
            Ending::Finished => ("finished", true),
            Ending::Cancelled => ("cancelled", true),
            Ending::Stopped => ("stopped", false),
        };
        let ended = finished.then(now_ms);
        let run = || -> rusqlite::Result<bool> {
            let sql = "UPDATE pass SET state = ?1, ended_ms = ?2, exit_code = ?3, counters = ?4, \
                       resumed_ms = coalesce(?5, resumed_ms), \
                       unflushed_ms = CASE WHEN ?6 THEN ?7 ELSE unflushed_ms END WHERE number = ?8 \
                       AND (SELECT value FROM meta WHERE key = 'generation') = ?9";
            let stopped = (!finished).then(now_ms);
            let (before_ms, pass) = (self.unflushed_before_ms, self.pass);
            let own = self.generation;
            let row =
                params![state, ended, code, counters, stopped, is_flushed, before_ms, pass, own];
            if self.database.execute(sql, row)? == 0 {
                // Another process has started to use this journal.
                return Ok(false);
            }
            if finished {
                self.database.execute_batch(schema::FORGET)?;
            }
            if ending == Ending::Finished {
                // A full pass has scanned all paths that were reported before it began.
                let sql = "DELETE FROM changed WHERE (SELECT kind FROM pass WHERE number = ?1) != 'listed'";
                self.database.execute(sql, [self.pass])?;
                // This pass has checked the doubts of earlier ones.
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
            Ok(true)
        };
        match run() {
            Ok(true) => Ok(()),
            Ok(false) => Err(Fatal::Fenced { journal: self.path.clone() }),
            Err(error) => Err(self.fail(&error)),
        }
    }
}

/// Whether a scan of one selection includes everything of another one.
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

/// The parts of a request that decide whether two runs have the same work; limits are not among them.
pub fn same_work(spec: &JobSpec) -> String {
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

/// A number for a place in a tree; two places have the same number only by chance, one in 10^19.
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
        TaskKind::Sums(_) | TaskKind::Hash(_) | TaskKind::FinishHash(_) => "sum",
        TaskKind::Records(_) | TaskKind::Compare(_) | TaskKind::FinishCompare(_) => "verify",
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
            // The run that resumes the reporting task must know that this work was returned.
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

/// Deletes names of linked inodes and directories that a task has processed.
fn forget_what_it_had(database: &Connection, id: i64) -> Result<(), Box<dyn std::error::Error>> {
    let sql =
        "SELECT body FROM task WHERE id = ?1 AND node IS NULL AND kind IN ('links', 'finish')";
    let body: Option<Vec<u8>> =
        database.prepare_cached(sql)?.query_row([id], |row| row.get(0)).optional()?;
    let Some(body) = body else { return Ok(()) };
    match postcard::from_bytes(&body)? {
        TaskKind::Links(groups) => {
            // Names of a group that continues in another task are kept until all is done: the rest alone would become
            // another inode.
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
