//! Which source directory was entered under which path, until the catalog is written.
//!
//! If two directories are exchanged after they were entered, their files do not change: if they look alike, only the
//! inode of the entered directory shows that the copy under a path is not that of the present directory. The file
//! survives the process, so that another run can resume the pass. If it is lost, the affected entries are compared.
use dmover_model::TreePath;
use rusqlite::{Connection, OptionalExtension, params};
use std::path::{Path, PathBuf};

use crate::database::settle;

const FILE: &str = "entered.sqlite";

/// The entered paths of one pass.
#[derive(Debug)]
pub(super) struct Entered {
    path: PathBuf,
    /// `None`: the database cannot be used, so nothing is known.
    database: Option<Connection>,
}

impl Entered {
    /// Opens the database of an interrupted pass in the directory of the job, or starts a new one.
    pub fn open(directory: &Path, goes_on: bool) -> Self {
        let path = directory.join(FILE);
        if !goes_on {
            remove(&path);
        }
        let open = || -> rusqlite::Result<Connection> {
            let database = Connection::open(&path)?;
            settle(&database, directory)?;
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

    /// The directory that was entered under a path, if known.
    pub fn get(&mut self, path: &TreePath) -> Option<u64> {
        let known = self.try_to(|database| {
            let sql = "SELECT inode FROM entered WHERE path = ?1";
            let mut statement = database.prepare_cached(sql)?;
            statement.query_row([path.as_bytes()], |row| row.get::<_, i64>(0)).optional()
        });
        known.flatten().map(i64::cast_unsigned)
    }

    /// Calls `each` with every entered path and its directory, as far as they are known.
    pub fn each<E>(
        &mut self,
        mut each: impl FnMut(&TreePath, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let done = self.try_to(|database| {
            let mut statement = database.prepare("SELECT path, inode FROM entered")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let (path, inode): (Vec<u8>, i64) = (row.get(0)?, row.get(1)?);
                let Ok(path) = TreePath::new(path) else { continue };
                if let Err(error) = each(&path, inode.cast_unsigned()) {
                    return Ok(Err(error));
                }
            }
            Ok(Ok(()))
        });
        done.unwrap_or(Ok(()))
    }

    /// Removes the database after the catalog is written.
    pub fn end(&mut self) {
        self.database = None;
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    for end in ["", "-wal", "-shm", "-journal"] {
        // Mostly there is none.
        let _ = std::fs::remove_file(path.with_file_name(format!("{FILE}{end}")));
    }
}
