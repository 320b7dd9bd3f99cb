//! The catalog of a job: the state of every object on both sides at the last pass.
//!
//! It is an SQLite file beside the journal, with a row for each source directory and the entries of a directory in
//! *segments*. Every use checks both sides again, so an outdated catalog only costs work.
use dmover_model::{
    CatalogEntry, DirectoryState, EntryKind, Fatal, JobId, Name, Object, RecheckSet, Segment,
    TreePath,
};
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use crate::database::settle;
use crate::journal::now_ms;

mod entered;
mod fold;
mod revisits;
mod rows;
mod survey;

pub use survey::{Only, Scope, Survey};

/// Its file name in the directory of the job.
const FILE: &str = "catalog.sqlite";
/// Entries in one segment.
const SEGMENT: usize = 4096;
/// The version of the tables that this program writes.
const VERSION: i64 = 1;

const TABLES: &str = "
    CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
    CREATE TABLE directory (
        inode INTEGER PRIMARY KEY,
        parent INTEGER,
        name BLOB NOT NULL,
        object BLOB NOT NULL,
        state BLOB,
        seen INTEGER NOT NULL
    );
    CREATE INDEX directory_parent ON directory (parent);
    CREATE TABLE segment (directory INTEGER NOT NULL, age INTEGER NOT NULL, body BLOB NOT NULL);
    CREATE INDEX segment_directory ON segment (directory);
    CREATE TABLE moved (
        directory INTEGER NOT NULL, name BLOB NOT NULL, entry BLOB, PRIMARY KEY (directory, name)
    ) WITHOUT ROWID;
    CREATE TABLE doubt (path BLOB PRIMARY KEY, renamed INTEGER NOT NULL) WITHOUT ROWID;
";

/// Deletes the recorded places. Doubts stay: they are about the destination, whatever the source is now.
const FORGET: &str = "DELETE FROM directory; DELETE FROM segment; DELETE FROM moved";

/// How the user can continue without a catalog.
const REMOVE: &str = "remove it; the next run builds a new one and takes longer. If the last pass \
    was interrupted, give that run --checksum, because the list of files to compare is lost";

/// Errors of the database and its content.
type Boxed<T> = Result<T, Box<dyn std::error::Error>>;

/// A directory in the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownDirectory {
    /// Its inode number.
    pub inode: u64,
    /// `None`: the top, or a directory with an unknown place.
    pub parent: Option<u64>,
    /// Its name there.
    pub name: Vec<u8>,
    /// Its inode and time of birth.
    pub object: Object,
    /// `None`: its names must be read in any case.
    pub state: Option<DirectoryState>,
}

/// An open catalog. This process is its only writer.
#[derive(Debug)]
pub struct Catalog {
    path: PathBuf,
    database: Connection,
    /// The last pass has written it completely.
    pub was_whole: bool,
    /// Directories with incomplete parts; the value distinguishes new rows from old ones.
    parts: HashMap<u64, i64>,
    next: i64,
}

impl Catalog {
    /// Opens the catalog in a job's directory, which must be locked, or creates it.
    pub fn open(directory: &Path, job: &JobId) -> Result<Self, Fatal> {
        let path = directory.join(FILE);
        let fail = |error: &rusqlite::Error| failure(&path, error);
        let database = Connection::open(&path).map_err(|e| fail(&e))?;
        settle(&database, directory).map_err(|e| fail(&e))?;
        // What is about to be renamed has to be known after a power cut.
        database.pragma_update(None, "synchronous", "FULL").map_err(|e| fail(&e))?;
        let get = |sql: &str| database.query_row(sql, [], |row| row.get::<_, i64>(0));
        match get("PRAGMA user_version").map_err(|e| fail(&e))? {
            0 => {
                let make = || -> rusqlite::Result<()> {
                    database.execute_batch("BEGIN IMMEDIATE")?;
                    database.execute_batch(TABLES)?;
                    database.execute("INSERT INTO meta VALUES ('job', ?1)", [&job.0])?;
                    database.execute("INSERT INTO meta VALUES ('whole', 0)", [])?;
                    database.pragma_update(None, "user_version", VERSION)?;
                    database.execute_batch("COMMIT")
                };
                make().map_err(|e| fail(&e))?;
            }
            VERSION => {}
            newer => {
                let message = format!(
                    "{} has version {newer}; this dmover reads version {VERSION}",
                    path.display()
                );
                return Err(Fatal::refused(message, format!("use the newer dmover, or {REMOVE}")));
            }
        }
        let owner: String = database
            .query_row("SELECT value FROM meta WHERE key = 'job'", [], |row| row.get(0))
            .map_err(|e| fail(&e))?;
        if owner != job.0 {
            let message =
                format!("the catalog {} belongs to another job ({owner})", path.display());
            return Err(Fatal::refused(message, format!("it describes another tree; {REMOVE}")));
        }
        let whole = "SELECT value FROM meta WHERE key = 'whole'";
        let was_whole = get(whole).map_err(|e| fail(&e))? == 1;
        let next = now_ms();
        Ok(Self { path, database, was_whole, parts: HashMap::new(), next })
    }

    /// Called when a pass without a catalog starts: the catalog becomes outdated, and is deleted if the pass covers the
    /// whole tree. Returns the paths that must be checked more closely.
    pub fn leave_behind(directory: &Path, job: &JobId, forget: bool) -> Result<RecheckSet, Fatal> {
        let known = dmover_sys::path::open_directory(directory)
            .and_then(|fd| dmover_sys::stat::stat_at(fd, FILE.as_bytes(), false));
        if known.is_err_and(dmover_sys::stat::is_absent) {
            return Ok(RecheckSet::default());
        }
        let mut catalog = Self::open(directory, job)?;
        catalog.set_whole(false)?;
        if forget {
            catalog.try_to(|this| Ok(this.database.execute_batch(FORGET)?))?;
        }
        catalog.doubts()
    }

    fn fatal(&self, error: &dyn std::fmt::Display) -> Fatal {
        let (path, error) = (self.path.display(), error.to_string());
        Fatal::refused(format!("the catalog {path} is damaged: {error}"), REMOVE)
    }

    fn try_to<T>(&mut self, action: impl FnOnce(&mut Self) -> Boxed<T>) -> Result<T, Fatal> {
        let result = action(self);
        result.map_err(|error| match error.downcast_ref::<rusqlite::Error>() {
            Some(error) => failure(&self.path, error),
            None => self.fatal(&error),
        })
    }

    /// Records whether the catalog has all entries of the source.
    pub(crate) fn set_whole(&mut self, whole: bool) -> Result<(), Fatal> {
        self.try_to(|this| {
            let sql = "UPDATE meta SET value = ?1 WHERE key = 'whole'";
            this.database.execute(sql, [i64::from(whole)])?;
            Ok(())
        })
    }

    /// Deletes everything if the catalog describes a tree with another top directory.
    pub(crate) fn belong_to(&mut self, top: Object) -> Result<(), Fatal> {
        if self.known(top.inode)?.is_some_and(|row| row.parent.is_none() && row.object == top) {
            return Ok(());
        }
        self.was_whole = false;
        self.try_to(|this| {
            this.database.execute_batch(FORGET)?;
            this.put_directory(top, None, b"", 0)
        })
    }

    /// The record of a directory.
    pub(crate) fn known(&mut self, inode: u64) -> Result<Option<KnownDirectory>, Fatal> {
        self.try_to(|this| {
            let sql = "SELECT inode, parent, name, object, state FROM directory WHERE inode = ?1";
            let mut rows = this.directories(sql, inode)?;
            Ok(rows.pop())
        })
    }

    /// The directories directly inside a directory.
    pub(crate) fn children(&mut self, inode: u64) -> Result<Vec<KnownDirectory>, Fatal> {
        self.try_to(|this| {
            let sql = "SELECT inode, parent, name, object, state FROM directory WHERE parent = ?1";
            this.directories(sql, inode)
        })
    }

    fn directories(&self, sql: &str, number: u64) -> Boxed<Vec<KnownDirectory>> {
        let mut statement = self.database.prepare_cached(sql)?;
        let mut rows = statement.query([number as i64])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let (object, state): (Vec<u8>, Option<Vec<u8>>) = (row.get(3)?, row.get(4)?);
            found.push(KnownDirectory {
                inode: row.get::<_, i64>(0)? as u64,
                parent: row.get::<_, Option<i64>>(1)?.map(|parent| parent as u64),
                name: row.get(2)?,
                object: postcard::from_bytes(&object)?,
                state: state.map(|state| postcard::from_bytes(&state)).transpose()?,
            });
        }
        Ok(found)
    }

    /// Calls a function for all entries of a directory, one segment at a time.
    pub(crate) fn each_segment(
        &mut self,
        inode: u64,
        each: impl FnMut(Vec<CatalogEntry>) -> Boxed<()>,
    ) -> Result<(), Fatal> {
        self.try_to(|this| this.segments(inode, each))
    }

    fn segments(
        &self,
        inode: u64,
        mut each: impl FnMut(Vec<CatalogEntry>) -> Boxed<()>,
    ) -> Boxed<()> {
        let number = inode as i64;
        let sql = "SELECT body FROM segment WHERE directory = ?1 AND age = 0";
        let mut statement = self.database.prepare_cached(sql)?;
        let mut rows = statement.query([number])?;
        while let Some(row) = rows.next()? {
            let mut entries = fold::decode(row.get_ref(0)?.as_blob()?)?;
            let apart = self.apart(number, &entries)?;
            fold::leave_out(&mut entries, apart.into_iter().map(|(at, _)| at));
            each(entries)?;
        }
        let sql = "SELECT entry FROM moved WHERE directory = ?1 AND entry IS NOT NULL";
        let mut statement = self.database.prepare_cached(sql)?;
        let mut rows = statement.query([number])?;
        while let Some(row) = rows.next()? {
            each(vec![postcard::from_bytes(row.get_ref(0)?.as_blob()?)?])?;
        }
        Ok(())
    }

    /// Records the new place of an entry that was renamed at the destination, whatever happens to this pass.
    pub(crate) fn relocate(
        &mut self,
        mut entry: CatalogEntry,
        (from, to): ((u64, Name), (u64, Name)),
        exchanged: bool,
    ) -> Result<(), Fatal> {
        self.try_to(|this| {
            let displaced = if exchanged { this.entry(to.0, &to.1)? } else { None };
            this.put_moved(&from, displaced)?;
            entry.name = to.1.clone();
            this.put_moved(&to, Some(entry))
        })
    }

    /// Records the new version of a file under its old name.
    pub fn renew(
        &mut self,
        directory: u64,
        name: &Name,
        entry: &CatalogEntry,
    ) -> Result<(), Fatal> {
        self.try_to(|this| {
            let sql = "INSERT OR REPLACE INTO moved VALUES (?1, ?2, ?3)";
            let body = postcard::to_stdvec(entry)?;
            let row = params![directory as i64, name.as_bytes(), body];
            this.database.prepare_cached(sql)?.execute(row)?;
            Ok(())
        })
    }

    /// Records the entry found under one name of a directory.
    pub fn note(
        &mut self,
        directory: u64,
        name: Name,
        entry: Option<CatalogEntry>,
    ) -> Result<(), Fatal> {
        self.try_to(|this| this.put_moved(&(directory, name), entry))
    }

    fn entry(&self, directory: u64, name: &Name) -> Boxed<Option<CatalogEntry>> {
        let mut found = None;
        self.segments(directory, |entries| {
            found = entries.into_iter().find(|entry| entry.name == *name).or(found.take());
            Ok(())
        })?;
        Ok(found)
    }

    fn put_moved(&self, (directory, name): &(u64, Name), entry: Option<CatalogEntry>) -> Boxed<()> {
        let number = *directory as i64;
        let body = match entry {
            None => None,
            Some(mut entry) => {
                entry.name = name.clone();
                if entry.kind == EntryKind::Directory {
                    self.move_directory(entry.source.inode, *directory, name, 0)?;
                }
                Some(postcard::to_stdvec(&entry)?)
            }
        };
        let sql = "INSERT OR REPLACE INTO moved VALUES (?1, ?2, ?3)";
        self.database.prepare_cached(sql)?.execute(params![number, name.as_bytes(), body])?;
        let sql = "UPDATE directory SET state = NULL WHERE inode = ?1";
        self.database.prepare_cached(sql)?.execute([number])?;
        Ok(())
    }

    /// Destination paths that an interrupted pass may have changed, and paths that were renamed.
    pub fn doubts(&mut self) -> Result<RecheckSet, Fatal> {
        self.try_to(|this| {
            let mut statement = this.database.prepare("SELECT path, renamed FROM doubt")?;
            let mut rows = statement.query([])?;
            let mut doubts = RecheckSet::default();
            while let Some(row) = rows.next()? {
                let (path, renamed) = (TreePath::new(row.get::<_, Vec<u8>>(0)?)?, row.get(1)?);
                if renamed {
                    doubts.renamed.insert(path)
                } else {
                    doubts.content.insert(path)
                };
            }
            Ok(doubts)
        })
    }

    /// Records that the entry at a path is not known.
    pub fn doubt(&mut self, path: &TreePath) -> Result<(), Fatal> {
        self.put_doubt("INSERT OR REPLACE INTO doubt VALUES (?1, 0)", path)
    }

    /// Records that the entry at a path is right, although its change time is not that of its last change.
    pub(crate) fn note_renamed(&mut self, path: &TreePath) -> Result<(), Fatal> {
        self.put_doubt("INSERT OR REPLACE INTO doubt VALUES (?1, 1)", path)
    }

    /// Records that the path has no entry any more.
    pub fn trust(&mut self, path: &TreePath) -> Result<(), Fatal> {
        self.put_doubt("DELETE FROM doubt WHERE path = ?1", path)
    }

    fn put_doubt(&mut self, sql: &str, path: &TreePath) -> Result<(), Fatal> {
        self.try_to(|this| {
            this.database.prepare_cached(sql)?.execute([path.as_bytes()])?;
            Ok(())
        })
    }

    /// Begins a transaction of several changes.
    pub(crate) fn begin_changes(&mut self) -> Result<(), Fatal> {
        self.try_to(|this| Ok(this.database.execute_batch("BEGIN")?))
    }

    /// Commits the transaction.
    pub(crate) fn make_changes(&mut self) -> Result<(), Fatal> {
        self.try_to(|this| Ok(this.database.execute_batch("COMMIT")?))
    }

    /// From now on, commits need not be on storage before the next step.
    pub(crate) fn relax(&mut self) -> Result<(), Fatal> {
        self.try_to(|this| Ok(this.database.execute_batch("PRAGMA synchronous = NORMAL")?))
    }

    /// Makes the next pass read the names of a directory, whatever its times.
    pub(crate) fn unsettle(&mut self, inode: u64) -> Result<(), Fatal> {
        self.try_to(|this| {
            let sql = "UPDATE directory SET state = NULL WHERE inode = ?1";
            this.database.prepare_cached(sql)?.execute([inode as i64])?;
            Ok(())
        })
    }

    /// Stores the findings about a directory. Returns the directories in it, and whether each was known.
    pub fn store(&mut self, segments: Vec<Segment>) -> Result<Vec<(u64, TreePath, bool)>, Fatal> {
        self.try_to(|this| {
            let mut children = Vec::new();
            for segment in segments {
                this.store_one(&segment, &mut children)?;
            }
            Ok(children)
        })
    }

    fn store_one(
        &mut self,
        segment: &Segment,
        children: &mut Vec<(u64, TreePath, bool)>,
    ) -> Boxed<()> {
        let directory = segment.state.object;
        let inode = directory.inode as i64;
        if segment.first {
            self.next += 1;
            self.parts.insert(directory.inode, self.next);
            let sql = "DELETE FROM segment WHERE directory = ?1 AND age = 1";
            self.database.prepare_cached(sql)?.execute([inode])?;
            if self.object_of(directory.inode)? != Some(directory) {
                // The record of the parent directory has its place.
                self.put_directory(directory, None, b"", 0)?;
            }
        }
        let Some(seen) = self.parts.get(&directory.inode).copied() else { return Ok(()) };
        for entry in &segment.entries {
            if entry.kind == EntryKind::Directory {
                let object = entry.source;
                let known = self.object_of(object.inode)? == Some(object);
                if known {
                    self.move_directory(object.inode, directory.inode, &entry.name, seen)?;
                } else {
                    self.put_directory(object, Some(inode), entry.name.as_bytes(), seen)?;
                }
                let path = segment.path.join(entry.name.as_bytes());
                children.push((object.inode, path, known));
            }
        }
        self.put_segment(inode, &segment.entries)?;
        if segment.last {
            self.end_directory(segment, seen)?;
        }
        Ok(())
    }

    fn object_of(&self, inode: u64) -> Boxed<Option<Object>> {
        let sql = "SELECT object FROM directory WHERE inode = ?1";
        let mut statement = self.database.prepare_cached(sql)?;
        let body: Option<Vec<u8>> =
            statement.query_row([inode as i64], |row| row.get(0)).optional()?;
        Ok(body.map(|body| postcard::from_bytes(&body)).transpose()?)
    }

    /// Adds a directory that was not known, or that reuses an inode number.
    fn put_directory(
        &self,
        object: Object,
        parent: Option<i64>,
        name: &[u8],
        seen: i64,
    ) -> Boxed<()> {
        let inode = object.inode as i64;
        for sql in [
            "DELETE FROM segment WHERE directory = ?1",
            "DELETE FROM moved WHERE directory = ?1",
            "UPDATE directory SET parent = NULL WHERE parent = ?1",
        ] {
            self.database.prepare_cached(sql)?.execute([inode])?;
        }
        let sql = "INSERT OR REPLACE INTO directory VALUES (?1, ?2, ?3, ?4, NULL, ?5)";
        let object = postcard::to_stdvec(&object)?;
        self.database.prepare_cached(sql)?.execute(params![inode, parent, name, object, seen])?;
        Ok(())
    }

    fn move_directory(&self, inode: u64, parent: u64, name: &Name, seen: i64) -> Boxed<()> {
        let sql = "UPDATE directory SET parent = ?2, name = ?3, seen = ?4 WHERE inode = ?1";
        let (inode, parent) = (inode as i64, parent as i64);
        self.database.prepare_cached(sql)?.execute(params![
            inode,
            parent,
            name.as_bytes(),
            seen
        ])?;
        Ok(())
    }

    fn put_segment(&self, inode: i64, entries: &[CatalogEntry]) -> Boxed<()> {
        if !entries.is_empty() {
            let sql = "INSERT INTO segment VALUES (?1, 1, ?2)";
            let body = postcard::to_stdvec(entries)?;
            self.database.prepare_cached(sql)?.execute(params![inode, body])?;
        }
        Ok(())
    }

    /// Called when a directory is complete. Entries that were renamed at the source after the scan still have their old
    /// name at the destination, and stay recorded under it.
    fn end_directory(&mut self, segment: &Segment, seen: i64) -> Boxed<()> {
        let directory = segment.state.object.inode;
        let inode = directory as i64;
        let left: HashMap<&[u8], Object> =
            segment.left.iter().map(|(name, object)| (name.as_bytes(), *object)).collect();
        let mut kept = Vec::new();
        if !left.is_empty() {
            self.segments(directory, |old| {
                let stays =
                    |e: &CatalogEntry| left.get(e.name.as_bytes()).is_some_and(|o| *o == e.copy);
                kept.extend(old.into_iter().filter(stays));
                Ok(())
            })?;
        }
        for entry in &kept {
            let is_directory = entry.kind == EntryKind::Directory;
            if is_directory && self.object_of(entry.source.inode)? == Some(entry.source) {
                let sql = "UPDATE directory SET seen = ?2 WHERE inode = ?1 AND parent = ?3";
                let child = entry.source.inode as i64;
                self.database.prepare_cached(sql)?.execute(params![child, seen, inode])?;
            }
        }
        self.put_segment(inode, &kept)?;
        for sql in [
            "DELETE FROM moved WHERE directory = ?1",
            "DELETE FROM segment WHERE directory = ?1 AND age = 0",
            "UPDATE segment SET age = 0 WHERE directory = ?1",
        ] {
            self.database.prepare_cached(sql)?.execute([inode])?;
        }
        let sql = "UPDATE directory SET parent = NULL WHERE parent = ?1 AND seen != ?2";
        self.database.prepare_cached(sql)?.execute([inode, seen])?;
        let settled = segment.settled && kept.is_empty();
        let state = settled.then(|| postcard::to_stdvec(&segment.state)).transpose()?;
        let sql = "UPDATE directory SET state = ?2 WHERE inode = ?1";
        self.database.prepare_cached(sql)?.execute(params![inode, state])?;
        self.parts.remove(&directory);
        Ok(())
    }

    /// Called when everything was recorded: directories without a place are removed. `saw_all`: every entry was scanned
    /// without failure; doubts about `late` paths came later.
    pub fn end(&mut self, top: u64, saw_all: bool, late: &BTreeSet<TreePath>) -> Result<(), Fatal> {
        self.try_to(|this| {
            this.database.execute_batch("BEGIN IMMEDIATE")?;
            let sql = "DELETE FROM directory WHERE inode != ?1 AND \
                       (parent IS NULL OR parent NOT IN (SELECT inode FROM directory))";
            while this.database.execute(sql, [top as i64])? > 0 {}
            this.database.execute_batch(
                "DELETE FROM segment WHERE directory NOT IN (SELECT inode FROM directory);
                 DELETE FROM moved WHERE directory NOT IN (SELECT inode FROM directory)",
            )?;
            this.fold()?;
            if saw_all {
                this.database.execute("DELETE FROM doubt", [])?;
            }
            for path in late {
                this.doubt(path)?;
            }
            this.database.execute_batch("COMMIT")?;
            Ok(())
        })?;
        self.set_whole(true)
    }
}

fn failure(path: &Path, error: &rusqlite::Error) -> Fatal {
    let damaged = [ErrorCode::DatabaseCorrupt, ErrorCode::NotADatabase];
    if error.sqlite_error_code().is_some_and(|code| damaged.contains(&code)) {
        let message = format!("the catalog {} is damaged: {error}", path.display());
        return Fatal::refused(message, REMOVE);
    }
    Fatal::Ledger { path: path.to_owned(), reason: error.to_string() }
}
