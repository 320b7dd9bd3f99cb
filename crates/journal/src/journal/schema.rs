//! The tables of a journal. `docs/journal.md` describes them for users who want to query it.
use rusqlite::Connection;

/// The version of the tables that this program writes.
pub(super) const VERSION: i64 = 5;

const TABLES: &str = "
    CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
    CREATE TABLE pass (
        number INTEGER PRIMARY KEY,
        kind TEXT NOT NULL DEFAULT 'whole',
        spec TEXT NOT NULL,
        source TEXT NOT NULL,
        places TEXT NOT NULL,
        begun_ms INTEGER NOT NULL,
        resumed_ms INTEGER,
        ended_ms INTEGER,
        state TEXT NOT NULL,
        exit_code INTEGER,
        counters TEXT,
        source_skew_ms INTEGER,
        unflushed_ms INTEGER
    );
    CREATE TABLE task (
        id INTEGER PRIMARY KEY,
        node INTEGER,
        origin INTEGER,
        done INTEGER NOT NULL DEFAULT 0,
        kind TEXT NOT NULL,
        body BLOB NOT NULL
    );
    CREATE INDEX task_done ON task (origin) WHERE done = 1;
    CREATE TABLE node (id INTEGER PRIMARY KEY, parent INTEGER, kind TEXT NOT NULL, body BLOB NOT NULL);
    CREATE TABLE part (node INTEGER NOT NULL, body BLOB NOT NULL);
    CREATE INDEX part_node ON part (node);
    CREATE TABLE outcome (
        task INTEGER PRIMARY KEY,
        kind TEXT NOT NULL,
        entries INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        elapsed_ms INTEGER NOT NULL
    );
    CREATE TABLE link (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
    CREATE TABLE dirty (id INTEGER PRIMARY KEY, taken INTEGER NOT NULL DEFAULT 0, body BLOB NOT NULL);
    CREATE TABLE mount (id INTEGER PRIMARY KEY, device INTEGER NOT NULL);
    CREATE TABLE changed (path BLOB PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE doubt (path BLOB PRIMARY KEY, pass INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE error (
        id INTEGER PRIMARY KEY,
        pass INTEGER NOT NULL,
        time_ms INTEGER NOT NULL,
        side TEXT NOT NULL,
        operation TEXT NOT NULL,
        path BLOB NOT NULL,
        class TEXT NOT NULL,
        errno INTEGER NOT NULL,
        detail TEXT NOT NULL,
        attempt INTEGER NOT NULL
    );
    CREATE INDEX error_pass ON error (pass, side);
";

/// From version 1: passes over a part of the tree, and reported changes.
const TO_2: &str = "
    ALTER TABLE pass ADD COLUMN kind TEXT NOT NULL DEFAULT 'whole';
    CREATE TABLE changed (path BLOB PRIMARY KEY) WITHOUT ROWID;
";

/// From version 2: failures of a pass are looked up at each start.
const TO_3: &str = "CREATE INDEX error_pass ON error (pass, side);";

/// From version 3: the measured difference of the clocks of two hosts.
const TO_4: &str = "ALTER TABLE pass ADD COLUMN source_skew_ms INTEGER;";

/// From version 4: since when the files of a pass may not be flushed. How an earlier pass ended does not show it.
const TO_5: &str = "
    ALTER TABLE pass ADD COLUMN unflushed_ms INTEGER;
    UPDATE pass SET unflushed_ms = begun_ms WHERE state != 'finished';
";

/// Deletes the data of one pass.
pub(super) const FORGET: &str = "
    DELETE FROM task; DELETE FROM node; DELETE FROM part; DELETE FROM outcome; DELETE FROM link; DELETE FROM dirty;
    DELETE FROM mount; DELETE FROM meta WHERE key = 'had';
";

/// Creates the tables of a new journal, or upgrades those of an older one. Returns the version of a journal that is
/// newer than this program.
pub(super) fn prepare(database: &Connection) -> rusqlite::Result<Option<i64>> {
    let known: i64 = database.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    match known {
        0 => {
            database.execute_batch("BEGIN IMMEDIATE")?;
            database.execute_batch(TABLES)?;
            database.execute("INSERT INTO meta VALUES ('generation', 0)", [])?;
            database.pragma_update(None, "user_version", VERSION)?;
            database.execute_batch("COMMIT")?;
            Ok(None)
        }
        VERSION => Ok(None),
        1..VERSION => {
            database.execute_batch("BEGIN IMMEDIATE")?;
            for (to, step) in [(2, TO_2), (3, TO_3), (4, TO_4), (5, TO_5)] {
                if known < to {
                    database.execute_batch(step)?;
                }
            }
            database.pragma_update(None, "user_version", VERSION)?;
            database.execute_batch("COMMIT")?;
            Ok(None)
        }
        newer => Ok(Some(newer)),
    }
}
