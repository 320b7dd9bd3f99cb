//! How the databases of a job are opened.
use dmover_model::Fatal;
use dmover_sys::{directory, path, stat};
use rusqlite::Connection;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Sets the journal mode: a write-ahead log on local file systems, and a plain rollback journal on file systems that
/// may be shared, which do not support the log's shared memory (sqlite.org, "Write-Ahead Logging").
pub(crate) fn settle(database: &Connection, directory: &Path) -> rusqlite::Result<()> {
    database.busy_timeout(std::time::Duration::from_secs(10))?;
    let magic =
        path::open_directory(directory).and_then(stat::file_system).map_or(0, |found| found.magic);
    let remote = matches!(
        stat::file_system_name(magic),
        Some("nfs" | "fuse" | "cifs" | "lustre" | "gpfs") | None
    );
    let settings = if remote {
        // The database is locked again for each transaction, so that changes of other processes are read.
        "PRAGMA journal_mode = TRUNCATE;"
    } else {
        "PRAGMA journal_mode = WAL;"
    };
    database.execute_batch(settings)?;
    database.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA cache_size = -4096;")
}

/// A database for this process alone, which no crash can leave behind.
pub(crate) fn scratch(below: &Path, schema: &str) -> Result<Connection, Fatal> {
    const SETTINGS: &str = "
        PRAGMA journal_mode = OFF;
        PRAGMA synchronous = OFF;
        PRAGMA locking_mode = EXCLUSIVE;
        PRAGMA cache_size = -4096;
    ";
    let file = below.join(format!("dmover-spill-{:016x}", dmover_host::random_u64()));
    let fail = |e: &dyn std::fmt::Display| ledger_error(&file, &e);
    let database = Connection::open(&file).map_err(|e| fail(&e))?;
    database.execute_batch(SETTINGS).map_err(|e| fail(&e))?;
    database.execute_batch(schema).map_err(|e| fail(&e))?;
    if let Some(name) = file.file_name() {
        let parent = path::reach_directory(below).map_err(|e| fail(&e))?;
        directory::unlink(&parent, name.as_bytes()).map_err(|e| fail(&e))?;
    }
    Ok(database)
}

pub(crate) fn ledger_error(path: &Path, error: &dyn std::fmt::Display) -> Fatal {
    Fatal::Ledger { path: path.to_owned(), reason: error.to_string() }
}
