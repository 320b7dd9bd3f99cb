//! Rows of the scratch tables of a survey, and tasks with several items.
use dmover_model::{CatalogEntry, TaskKind, TreePath};
use rusqlite::{Connection, Row, params};

use super::Boxed;

/// The tables of a survey, which last as long as the pass.
pub(super) const SCRATCH: &str = "
    CREATE TABLE listing (
        directory INTEGER, name BLOB, inode INTEGER, is_directory INTEGER, instead INTEGER,
        PRIMARY KEY (directory, name)
    ) WITHOUT ROWID;
    CREATE TABLE gone (inode INTEGER, parent INTEGER, name BLOB, entry BLOB);
    CREATE INDEX gone_inode ON gone (inode);
    CREATE TABLE fresh (
        inode INTEGER, parent INTEGER, name BLOB, path BLOB, is_directory INTEGER, instead INTEGER
    );
    CREATE INDEX fresh_inode ON fresh (inode);
    CREATE TABLE move (
        number INTEGER PRIMARY KEY, inode INTEGER, from_parent INTEGER, from_name BLOB, to_parent INTEGER,
        to_name BLOB, path BLOB, depth INTEGER, is_directory INTEGER, entry BLOB, state INTEGER,
        instead INTEGER
    );
    CREATE INDEX move_state ON move (is_directory, state);
    CREATE INDEX move_from ON move (from_parent, from_name);
    CREATE INDEX move_to ON move (to_parent, to_name);
    CREATE TABLE flagged (inode INTEGER PRIMARY KEY, path BLOB, out INTEGER);
";

pub(super) fn joined(path: TreePath, names: &[Vec<u8>]) -> TreePath {
    names.iter().rev().fold(path, |path, name| path.join(name))
}

pub(super) fn in_tasks<T>(
    items: Vec<T>,
    most: usize,
    kind: impl Fn(Vec<T>) -> TaskKind,
) -> Vec<TaskKind> {
    let mut tasks = Vec::new();
    let mut items = items.into_iter().peekable();
    while items.peek().is_some() {
        tasks.push(kind(items.by_ref().take(most).collect()));
    }
    tasks
}

pub(super) fn insert_gone(scratch: &Connection, parent: u64, entry: &CatalogEntry) -> Boxed<()> {
    let sql = "INSERT INTO gone VALUES (?1, ?2, ?3, ?4)";
    let (inode, parent) = (entry.source.inode as i64, parent as i64);
    let body = postcard::to_stdvec(entry)?;
    scratch.prepare_cached(sql)?.execute(params![inode, parent, entry.name.as_bytes(), body])?;
    Ok(())
}

/// A row of the table `move`.
pub(super) struct MoveRow {
    pub number: i64,
    pub from_parent: u64,
    pub from_name: Vec<u8>,
    pub to_parent: u64,
    pub to_name: Vec<u8>,
    pub path: TreePath,
    pub depth: i64,
    pub is_directory: bool,
    /// Another entry had the new name in the last pass.
    pub instead: bool,
    pub entry: CatalogEntry,
}

impl MoveRow {
    pub fn of(row: &Row<'_>) -> Boxed<Self> {
        let number = |name: &str| row.get::<_, i64>(name);
        Ok(Self {
            number: number("number")?,
            from_parent: number("from_parent")? as u64,
            from_name: row.get("from_name")?,
            to_parent: number("to_parent")? as u64,
            to_name: row.get("to_name")?,
            path: TreePath::new(row.get::<_, Vec<u8>>("path")?)?,
            depth: number("depth")?,
            is_directory: row.get("is_directory")?,
            instead: row.get("instead")?,
            entry: postcard::from_bytes(row.get_ref("entry")?.as_blob()?)?,
        })
    }
}

/// Notes a directory that is to be recorded. `out`: it is given to movers now, with this path.
pub(super) fn flag_in(
    scratch: &Connection,
    (inode, path): (u64, &TreePath),
    out: bool,
) -> Boxed<()> {
    let sql = "INSERT INTO flagged VALUES (?1, ?2, ?3) ON CONFLICT (inode) DO UPDATE SET path = ?2, out = ?3 WHERE ?3";
    scratch.prepare_cached(sql)?.execute(params![inode as i64, path.as_bytes(), out])?;
    Ok(())
}
