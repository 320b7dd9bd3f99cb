//! Which directory of the source was entered under which path, until the catalog is written.
//!
//! Whoever exchanges two directories after they were entered changes nothing in what is in them: if their files look alike,
//! only the inode that was entered tells that the copy under a path is not that of what has the path by now. The file survives
//! the process, so that another run can go on with the pass. What is lost with it is compared.
use dmover_model::TreePath;
use dmover_sys::{directory, path};
use rusqlite::{Connection, OptionalExtension, params};
use std::path::{Path, PathBuf};

const FILE: &str = "entered.sqlite";

/// The paths of one pass.
#[derive(Debug)]
pub(super) struct Entered {
    path: PathBuf,
    /// `None`: it cannot be used, and says nothing.
    database: Option<Connection>,
}

impl Entered {
    /// Opens what an earlier run of the pass has left in the directory of a job, or begins anew.
    pub fn open(directory: &Path, goes_on: bool) -> Self {
        let path = directory.join(FILE);
        if !goes_on {
            remove(&path);
        }
        let open = || -> rusqlite::Result<Connection> {
            let database = Connection::open(&path)?;
            super::settle(&database, directory)?;
            database.execute_batch(
                "PRAGMA synchronous = OFF;
                 CREATE TABLE IF NOT EXISTS entered (path BLOB PRIMARY KEY, inode INTEGER NOT NULL) WITHOUT ROWID;",
            )?;
            Ok(database)
        };
        let database = open();
        if let Err(error) = &database {
            tracing::warn!(%error, "cannot open the record of entered directories");
            remove(&path);
        }
        Self { path, database: database.ok() }
    }

    fn try_to<T>(&mut self, action: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Option<T> {
        let done = action(self.database.as_ref()?);
        if let Err(error) = &done {
            tracing::warn!(%error, "cannot use the record of entered directories");
            self.database = None;
            remove(&self.path);
        }
        done.ok()
    }

    pub fn begin(&mut self) {
        self.try_to(|database| database.execute_batch("BEGIN"));
    }

    pub fn commit(&mut self) {
        self.try_to(|database| database.execute_batch("COMMIT"));
    }

    pub fn put(&mut self, path: &TreePath, inode: u64) {
        self.try_to(|database| {
            let sql = "INSERT OR REPLACE INTO entered VALUES (?1, ?2)";
            database.prepare_cached(sql)?.execute(params![path.as_bytes(), inode as i64])
        });
    }

    /// Which directory was entered under a path, as far as that is known.
    pub fn get(&mut self, path: &TreePath) -> Option<u64> {
        let known = self.try_to(|database| {
            let sql = "SELECT inode FROM entered WHERE path = ?1";
            let mut statement = database.prepare_cached(sql)?;
            statement.query_row([path.as_bytes()], |row| row.get::<_, i64>(0)).optional()
        });
        known.flatten().map(i64::cast_unsigned)
    }

    /// The catalog is written.
    pub fn end(&mut self) {
        self.database = None;
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    let Some(directory) = path.parent().and_then(|at| path::open_directory(at).ok()) else {
        return;
    };
    for end in ["", "-wal", "-shm", "-journal"] {
        // Mostly there is none.
        let _ = directory::unlink(&directory, format!("{FILE}{end}").as_bytes());
    }
}
