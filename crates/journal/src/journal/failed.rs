//! The paths that a run over failed entries attempts again. There may be millions, so they are kept in a file.
use dmover_model::{Fatal, TreePath};
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use rusqlite::{Connection, params};
use std::path::{Path, PathBuf};

use crate::database::scratch;

const SCHEMA: &str = "CREATE TABLE path (path BLOB PRIMARY KEY) WITHOUT ROWID;";

/// Paths below the source, each once and in order.
#[derive(Debug)]
pub struct FailedPaths {
    directory: PathBuf,
    database: Connection,
    /// The last path that was read.
    last: Vec<u8>,
}

impl FailedPaths {
    /// An empty set, whose file is in this directory and has no name.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(directory: &Path) -> Result<Self, Fatal> {
        // One transaction for all, which never ends: only this connection reads them.
        let database = scratch(directory, &format!("{SCHEMA} BEGIN;"))?;
        Ok(Self { directory: directory.to_owned(), database, last: Vec::new() })
    }

    /// Adds a path.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&self, path: &TreePath) -> Result<(), Fatal> {
        let sql = "INSERT OR IGNORE INTO path VALUES (?1)";
        let add = || self.database.prepare_cached(sql)?.execute([path.as_bytes()]);
        add().map(drop).map_err(|error| self.fail(&error))
    }

    /// The next paths, at most `most`; empty if there are no more.
    fn next(&mut self, most: usize) -> Result<Vec<TreePath>, Fatal> {
        let sql = "SELECT path FROM path WHERE path > ?1 ORDER BY path LIMIT ?2";
        let read = || -> rusqlite::Result<Vec<Vec<u8>>> {
            let limit = i64::try_from(most).unwrap_or(i64::MAX);
            let mut statement = self.database.prepare_cached(sql)?;
            statement.query_map(params![self.last, limit], |row| row.get(0))?.collect()
        };
        let paths = read().map_err(|error| self.fail(&error))?;
        if let Some(last) = paths.last() {
            self.last.clone_from(last);
        }
        let paths = paths.into_iter().map(TreePath::new).collect::<Result<_, _>>();
        paths.map_err(|error| self.fail(&error))
    }

    fn fail(&self, error: &dyn std::fmt::Display) -> Fatal {
        Fatal::Ledger { path: self.directory.clone(), reason: error.to_string() }
    }
}

/// Such paths as a job reads them.
#[derive(Debug)]
pub struct FailedList(Mutex<FailedPaths>);

impl From<FailedPaths> for FailedList {
    fn from(paths: FailedPaths) -> Self {
        Self(Mutex::new(paths))
    }
}

impl FailedList {
    /// Reads them from the first one again.
    pub fn rewind(&self) {
        lock(&self.0).last = Vec::new();
    }

    /// The next paths, at most `most`; empty if there are no more.
    pub fn next(&self, most: usize) -> Result<Vec<TreePath>, Fatal> {
        lock(&self.0).next(most)
    }
}
