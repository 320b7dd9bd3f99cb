//! Reads a journal from another process, while its job may be running.
use dmover_model::{EntryError, JobSpec, PathBytes, Selection};
use rusqlite::{Connection, ErrorCode, OpenFlags, Row, params};
use serde::{Deserialize, Serialize};
use std::path::Path;

use super::{now_ms, same_work};

/// Errors that are read in one query.
const PORTION: i64 = 1000;

/// A recorded failure of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedError {
    /// The pass in which it failed, if the job counts passes.
    pub pass: Option<i64>,
    /// When, in milliseconds since 1970.
    pub time_ms: i64,
    /// Source or destination.
    pub side: String,
    /// The operation that failed.
    pub operation: String,
    /// The path as a user would type it.
    pub path: PathBytes,
    /// The kind of failure.
    pub class: String,
    /// The error number, 0 if no system call failed.
    pub errno: i32,
    /// Further details.
    pub detail: String,
    /// Number of attempts.
    pub attempt: u32,
}

impl RecordedError {
    /// The record of a failure that happens now.
    pub fn now(error: &EntryError) -> Self {
        let word = |value: serde_json::Result<serde_json::Value>| {
            value.ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
        };
        Self {
            pass: None,
            time_ms: now_ms(),
            side: word(serde_json::to_value(error.side)),
            operation: word(serde_json::to_value(error.operation)),
            path: error.path.clone(),
            class: error.class.word().to_owned(),
            errno: error.errno,
            detail: error.detail.clone(),
            attempt: error.attempt,
        }
    }
}

/// A recorded pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedPass {
    /// Its number, from 1.
    pub number: i64,
    /// Start time in milliseconds since 1970.
    pub begun_ms: i64,
    /// End time, if it has ended.
    pub ended_ms: Option<i64>,
    /// `running`, `stopped`, `finished`, `cancelled` or `given up`.
    pub state: String,
    /// The exit code of its last run.
    pub exit_code: Option<i64>,
    /// The counters of its last run, as JSON.
    pub counters: Option<String>,
}

/// A journal opened for reading.
#[derive(Debug)]
pub struct JournalReader(pub(super) Connection);

impl JournalReader {
    /// Opens the journal in the directory of a job. `None`: the job has none.
    ///
    /// # Errors
    /// A message that says why it cannot be read.
    pub fn open(directory: &Path) -> Result<Option<Self>, String> {
        let path = directory.join(super::FILE);
        let fail = |error: rusqlite::Error| format!("cannot read {}: {error}", path.display());
        // A log beside the file has to be opened for writing to be read.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let database = match Connection::open_with_flags(&path, flags) {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::CannotOpen) => {
                return Ok(None);
            }
            opened => opened.map_err(fail)?,
        };
        database.busy_timeout(std::time::Duration::from_secs(5)).map_err(fail)?;
        let version = database.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0));
        match version.map_err(fail)? {
            super::schema::VERSION => {}
            older @ ..super::schema::VERSION => {
                return Err(format!(
                    "{} has version {older}; the next run of the job upgrades it to version {}",
                    path.display(),
                    super::schema::VERSION
                ));
            }
            newer => {
                return Err(format!(
                    "{} has version {newer}; this dmover reads version {}: use the newer dmover",
                    path.display(),
                    super::schema::VERSION
                ));
            }
        }
        Ok(Some(Self(database)))
    }

    /// The passes, newest first.
    ///
    /// # Errors
    /// A message that says why it cannot be read.
    pub fn passes(&self) -> Result<Vec<RecordedPass>, String> {
        let sql = "SELECT number, begun_ms, ended_ms, state, exit_code, counters FROM pass \
                   ORDER BY number DESC";
        self.all(sql, |row| {
            Ok(RecordedPass {
                number: row.get(0)?,
                begun_ms: row.get(1)?,
                ended_ms: row.get(2)?,
                state: row.get(3)?,
                exit_code: row.get(4)?,
                counters: row.get(5)?,
            })
        })
    }

    /// Whether the last pass over the whole tree was started and not completed.
    ///
    /// # Errors
    /// A message that says why it cannot be read.
    pub fn is_unfinished(&self) -> Result<bool, String> {
        let sql = "SELECT state != 'finished' FROM pass WHERE kind = 'whole' ORDER BY number DESC LIMIT 1";
        Ok(self.all(sql, |row| row.get(0))?.contains(&true))
    }

    /// The selection with the times that the last pass computed from the same ages, if that pass was interrupted and
    /// had the same work.
    ///
    /// # Errors
    /// A message that says why it cannot be read.
    pub fn times_then(&self, spec: &JobSpec) -> Result<Option<Selection>, String> {
        let sql = "SELECT spec FROM pass WHERE kind = 'whole' AND state IN ('running', 'stopped') \
                   AND number = (SELECT max(number) FROM pass WHERE kind = 'whole')";
        let Some(text) = self.all(sql, |row| row.get::<_, String>(0))?.pop() else {
            return Ok(None);
        };
        let then = serde_json::from_str::<serde_json::Value>(&text)
            .and_then(|value| serde_json::from_value::<Selection>(value[1].clone()))
            .map_err(|error| format!("cannot read the journal: {error}"))?;
        let mut spec = spec.clone();
        let now = &mut spec.selection;
        if now.ages_ms[0].is_some() {
            now.newer_than = then.newer_than;
        }
        if now.ages_ms[1].is_some() {
            now.older_than = then.older_than;
        }
        Ok((same_work(&spec) == text).then_some(spec.selection))
    }

    /// Passes the errors of the last pass to `each`, in order, until it returns false. For a watch, these are the
    /// errors of the last full scan and later. The errors of an incomplete `retry` are added to those of its pass.
    ///
    /// # Errors
    /// A message that says why it cannot be read.
    pub fn each_error(&self, each: &mut dyn FnMut(RecordedError) -> bool) -> Result<(), String> {
        let first = "SELECT coalesce((SELECT max(number) FROM pass \
                     WHERE kind = 'whole' OR (kind = 'listed' AND state = 'finished')), 0), \
                     coalesce((SELECT max(number) FROM pass), 0)";
        let bounds = self.all(first, |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))?;
        let (first, last) = bounds.first().copied().unwrap_or_default();
        let mut after = i64::MIN;
        // In portions: one long reading would keep the log beside the journal of a running job from being emptied.
        loop {
            let errors = self
                .portion((first, last), after)
                .map_err(|error| format!("cannot read the journal: {error}"))?;
            let Some((id, _)) = errors.last() else { return Ok(()) };
            after = *id;
            for (_, error) in errors {
                if !each(error) {
                    return Ok(());
                }
            }
        }
    }

    /// The next errors of these passes, with their ids.
    fn portion(
        &self,
        (first, last): (i64, i64),
        after: i64,
    ) -> rusqlite::Result<Vec<(i64, RecordedError)>> {
        // The plus keeps the order of the table: an index on the pass would have to be sorted for each portion.
        let sql = "SELECT pass, time_ms, side, operation, path, class, errno, detail, attempt, id \
                   FROM error WHERE id > ?1 AND +pass >= ?2 AND +pass <= ?3 ORDER BY id LIMIT ?4";
        let mut statement = self.0.prepare_cached(sql)?;
        let rows = statement.query_map(params![after, first, last, PORTION], |row| {
            let error = RecordedError {
                pass: row.get(0)?,
                time_ms: row.get(1)?,
                side: row.get(2)?,
                operation: row.get(3)?,
                path: PathBytes(row.get(4)?),
                class: row.get(5)?,
                errno: row.get(6)?,
                detail: row.get(7)?,
                attempt: row.get(8)?,
            };
            Ok((row.get(9)?, error))
        })?;
        rows.collect()
    }

    fn all<T>(
        &self,
        sql: &str,
        each: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, String> {
        let read = || -> rusqlite::Result<Vec<T>> {
            self.0.prepare(sql)?.query_map([], |row| each(row))?.collect()
        };
        read().map_err(|error| format!("cannot read the journal: {error}"))
    }
}
