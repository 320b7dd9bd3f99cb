//! The record of one snapshot: an SQLite file beside it.
use dmover_model::Fatal;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};
use std::path::{Path, PathBuf};

use crate::database::settle;

/// The version of the tables that this program writes.
const VERSION: i64 = 1;

/// `linked` has the inodes with several names in the snapshot, with the source inode that they were copied from.
/// `docs/snapshot.md` describes the tables.
const TABLES: &str = "
    CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
    CREATE TABLE linked (inode INTEGER PRIMARY KEY, source INTEGER NOT NULL, born_ns INTEGER NOT NULL);
";

/// The directory for dmover's own data in a directory of snapshots.
pub const OWN: &str = ".dmover-snapshots";
/// The tree in progress, in [`OWN`].
pub const UNFINISHED: &str = "unfinished";

/// An object of the source: its inode number and creation time, because the number may be reused.
pub type SourceObject = (u64, i64);

/// An open record.
#[derive(Debug)]
pub struct SnapshotRecord {
    path: PathBuf,
    database: Connection,
}

impl SnapshotRecord {
    /// Opens the record of a complete snapshot, which is not changed any more.
    pub fn read(path: PathBuf) -> Result<Self, Fatal> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let opened = Connection::open_with_flags(&path, flags);
        let this = Self { database: opened.map_err(|e| damaged(&path, &e))?, path };
        match this.version()? {
            VERSION => Ok(this),
            other => Err(this.another(other)),
        }
    }

    /// Opens the record of a snapshot in progress, or creates it.
    pub fn open(path: PathBuf) -> Result<Self, Fatal> {
        let opened = Connection::open(&path).and_then(|database| {
            settle(&database, path.parent().unwrap_or(Path::new("/")))?;
            Ok(database)
        });
        let this = Self { database: opened.map_err(|e| damaged(&path, &e))?, path };
        match this.version()? {
            0 => this.asked(|db| {
                db.execute_batch("BEGIN IMMEDIATE")?;
                db.execute_batch(TABLES)?;
                db.pragma_update(None, "user_version", VERSION)?;
                db.execute_batch("COMMIT")
            })?,
            VERSION => {}
            other => return Err(this.another(other)),
        }
        Ok(this)
    }

    fn version(&self) -> Result<i64, Fatal> {
        self.asked(|db| db.query_row("PRAGMA user_version", [], |row| row.get(0)))
    }

    fn another(&self, version: i64) -> Fatal {
        let shown = self.path.display();
        let message = format!("{shown} has version {version}; this dmover reads version {VERSION}");
        Fatal::refused(message, "use the dmover that wrote it, or move the record away")
    }

    fn asked<T>(&self, ask: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Fatal> {
        ask(&self.database).map_err(|error| damaged(&self.path, &error))
    }

    /// A stored number.
    pub fn number(&self, key: &str) -> Result<Option<i64>, Fatal> {
        let sql = "SELECT value FROM meta WHERE key = ?1";
        self.asked(|db| db.query_row(sql, [key], |row| row.get(0)).optional())
    }

    /// A stored byte string.
    pub fn bytes(&self, key: &str) -> Result<Option<Vec<u8>>, Fatal> {
        let sql = "SELECT CAST(value AS BLOB) FROM meta WHERE key = ?1";
        self.asked(|db| db.query_row(sql, [key], |row| row.get(0)).optional())
    }

    /// Sets one value.
    pub fn set(&self, key: &str, value: impl rusqlite::ToSql) -> Result<(), Fatal> {
        let sql = "INSERT OR REPLACE INTO meta VALUES (?1, ?2)";
        self.asked(|db| db.execute(sql, params![key, value])).map(drop)
    }

    /// Deletes a value.
    pub fn unset(&self, key: &str) -> Result<(), Fatal> {
        self.asked(|db| db.execute("DELETE FROM meta WHERE key = ?1", [key])).map(drop)
    }

    /// Whether any inode has several names.
    pub fn has_linked(&self) -> Result<bool, Fatal> {
        self.asked(|db| db.query_row("SELECT EXISTS (SELECT 1 FROM linked)", [], |row| row.get(0)))
    }

    /// The source inode from which an inode with several names was copied.
    pub fn linked(&self, inode: u64) -> Result<Option<SourceObject>, Fatal> {
        self.asked(|db| {
            let mut statement =
                db.prepare_cached("SELECT source, born_ns FROM linked WHERE inode = ?1")?;
            let read =
                |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get(1)?));
            statement.query_row([inode.cast_signed()], read).optional()
        })
    }

    /// Records inodes with several names.
    pub fn note(&self, linked: &[(u64, SourceObject)]) -> Result<(), Fatal> {
        self.asked(|db| {
            let transaction = db.unchecked_transaction()?;
            {
                let sql = "INSERT OR REPLACE INTO linked VALUES (?1, ?2, ?3)";
                let mut statement = transaction.prepare_cached(sql)?;
                for (inode, (source, born_ns)) in linked {
                    statement.execute(params![
                        inode.cast_signed(),
                        source.cast_signed(),
                        born_ns
                    ])?;
                }
            }
            transaction.commit()
        })
    }

    /// Closes the record for good: it is a single file then, which can be read on read-only file systems.
    pub fn close(self) -> Result<(), Fatal> {
        self.asked(|db| db.execute_batch("PRAGMA journal_mode = DELETE"))?;
        let Self { path, database } = self;
        database.close().map_err(|(_, error)| damaged(&path, &error))
    }
}

fn damaged(path: &Path, error: &rusqlite::Error) -> Fatal {
    // A full disk has many names.
    let damaged = [ErrorCode::DatabaseCorrupt, ErrorCode::NotADatabase];
    if !error.sqlite_error_code().is_some_and(|code| damaged.contains(&code)) {
        return Fatal::Ledger { path: path.to_owned(), reason: error.to_string() };
    }
    Fatal::refused(
        format!("cannot use the snapshot record {}: {error}", path.display()),
        "if it is damaged, move it away; its snapshot stays intact, and the next snapshot shares \
        no files with it",
    )
}

/// The name of the record of a snapshot, in [`OWN`].
pub fn file_of(name: &str) -> String {
    format!("{name}.sqlite")
}
