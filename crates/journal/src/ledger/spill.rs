//! The SQLite file behind a ledger that has outgrown memory.
use dmover_model::{DirectoryRef, ExtraNames, Fatal, LinkName};
use dmover_plan::coordinator::{NodeId, Shelved};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::ExtraKey;
use crate::database::{ledger_error, scratch};

const SCHEMA: &str = "
    CREATE TABLE task (
        large INTEGER, id INTEGER, node INTEGER, body BLOB NOT NULL, PRIMARY KEY (large, id)
    ) WITHOUT ROWID;
    CREATE TABLE link (
        mount INTEGER, inode INTEGER, root INTEGER, path BLOB, name BLOB, body BLOB NOT NULL,
        PRIMARY KEY (mount, inode, root, path, name)
    ) WITHOUT ROWID;
    CREATE TABLE dirty (
        depth INTEGER, root INTEGER, path BLOB, body BLOB NOT NULL,
        PRIMARY KEY (depth, root, path)
    ) WITHOUT ROWID;
    CREATE TABLE extra (
        depth INTEGER, id INTEGER, names INTEGER, body BLOB NOT NULL, PRIMARY KEY (depth, id)
    ) WITHOUT ROWID;
";

/// Id, node and body of a shelved task.
type TaskRow = (i64, Option<i64>, Vec<u8>);
/// Depth, number of names and body.
type ExtraRow = (i64, i64, Vec<u8>);

#[derive(Debug)]
pub(super) struct Spill {
    path: PathBuf,
    database: Connection,
    tasks_put: i64,
}

impl Spill {
    pub fn create(directory: &Path) -> Result<Self, Fatal> {
        Ok(Self { path: directory.to_owned(), database: scratch(directory, SCHEMA)?, tasks_put: 0 })
    }

    fn fail(&self, error: &dyn std::fmt::Display) -> Fatal {
        Fatal::Ledger { path: self.path.clone(), reason: error.to_string() }
    }

    pub fn put(
        &mut self,
        tasks: Vec<Shelved>,
        links: impl Iterator<Item = LinkName>,
        dirty: impl Iterator<Item = DirectoryRef>,
    ) -> Result<(), Fatal> {
        let path = self.path.clone();
        let transaction = self.database.transaction().map_err(|e| ledger_error(&path, &e))?;
        insert_tasks(&transaction, tasks, &mut self.tasks_put)
            .map_err(|e| ledger_error(&path, &e))?;
        insert_links(&transaction, links).map_err(|e| ledger_error(&path, &e))?;
        insert_dirty(&transaction, dirty).map_err(|e| ledger_error(&path, &e))?;
        transaction.commit().map_err(|e| ledger_error(&path, &e))
    }

    /// The newest tasks, either of large files or of all others.
    pub fn take_tasks(&mut self, large: bool, most: usize) -> Result<Vec<Shelved>, Fatal> {
        let sql = "DELETE FROM task WHERE large = ?1 AND id IN (SELECT id FROM task \
                   WHERE large = ?1 ORDER BY id DESC LIMIT ?2) RETURNING id, node, body";
        let run = |database: &Connection| -> rusqlite::Result<Vec<TaskRow>> {
            let mut statement = database.prepare_cached(sql)?;
            let limit = i64::try_from(most).unwrap_or(i64::MAX);
            let rows = statement
                .query_map(params![large, limit], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)))?;
            rows.collect()
        };
        let mut rows = run(&self.database).map_err(|e| self.fail(&e))?;
        rows.sort_unstable_by_key(|(id, ..)| std::cmp::Reverse(*id));
        rows.into_iter()
            .map(|(_, node, body)| {
                let task = postcard::from_bytes(&body).map_err(|e| self.fail(&e))?;
                Ok(Shelved { node: node.map(|n| NodeId(n as u64)), task })
            })
            .collect()
    }

    pub fn next_link(&mut self) -> Result<Option<LinkName>, Fatal> {
        let sql = "DELETE FROM link WHERE (mount, inode, root, path, name) = \
                   (SELECT mount, inode, root, path, name FROM link LIMIT 1) RETURNING body";
        let run = |database: &Connection| -> rusqlite::Result<Option<Vec<u8>>> {
            database.prepare_cached(sql)?.query_row([], |r| r.get(0)).optional()
        };
        let body = run(&self.database).map_err(|e| self.fail(&e))?;
        body.map(|b| postcard::from_bytes(&b).map_err(|e| self.fail(&e))).transpose()
    }

    pub fn put_back(&mut self, name: LinkName) -> Result<(), Fatal> {
        self.put(Vec::new(), std::iter::once(name), std::iter::empty())
    }

    pub fn take_dirty(&mut self, most: usize) -> Result<Vec<DirectoryRef>, Fatal> {
        let sql = "DELETE FROM dirty WHERE (depth, root, path) IN (SELECT depth, root, path \
                   FROM dirty ORDER BY depth DESC, root, path LIMIT ?1) RETURNING depth, body";
        let run = |database: &Connection| -> rusqlite::Result<Vec<(i64, Vec<u8>)>> {
            let mut statement = database.prepare_cached(sql)?;
            let rows = statement.query_map([most as i64], |r| Ok((r.get(0)?, r.get(1)?)))?;
            rows.collect()
        };
        let mut rows = run(&self.database).map_err(|e| self.fail(&e))?;
        rows.sort_by_key(|(depth, _)| std::cmp::Reverse(*depth));
        rows.iter().map(|(_, b)| postcard::from_bytes(b).map_err(|e| self.fail(&e))).collect()
    }
}

impl Spill {
    pub fn put_extra(&mut self, extra: BTreeMap<ExtraKey, ExtraNames>) -> Result<(), Fatal> {
        let path = self.path.clone();
        let fail = |e: &dyn std::fmt::Display| ledger_error(&path, e);
        let transaction = self.database.transaction().map_err(|e| fail(&e))?;
        insert_extra(&transaction, extra).map_err(|e| fail(&e))?;
        transaction.commit().map_err(|e| fail(&e))
    }

    /// About this many of the deepest names.
    pub fn take_extra(&mut self, most: usize) -> Result<Vec<ExtraNames>, Fatal> {
        let next = "DELETE FROM extra WHERE (depth, id) = (SELECT depth, id FROM extra \
                    WHERE depth = coalesce(?1, (SELECT max(depth) FROM extra)) ORDER BY id LIMIT 1) \
                    RETURNING depth, names, body";
        let run =
            |database: &Connection, depth: Option<i64>| -> rusqlite::Result<Option<ExtraRow>> {
                let mut statement = database.prepare_cached(next)?;
                statement.query_row([depth], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?))).optional()
            };
        let mut taken = Vec::new();
        let (mut names, mut deepest) = (0, None);
        while names < most
            && let Some((depth, count, body)) =
                run(&self.database, deepest).map_err(|e| self.fail(&e))?
        {
            deepest = Some(depth);
            names += count as usize;
            taken.push(postcard::from_bytes(&body).map_err(|e| self.fail(&e))?);
        }
        Ok(taken)
    }
}

type Boxed<T> = Result<T, Box<dyn std::error::Error>>;

fn insert_tasks(database: &Connection, tasks: Vec<Shelved>, put: &mut i64) -> Boxed<()> {
    let mut insert = database.prepare_cached("INSERT INTO task VALUES (?1, ?2, ?3, ?4)")?;
    for task in tasks {
        *put += 1;
        let node = task.node.map(|n| n.0 as i64);
        let large = task.task.kind.is_large();
        insert.execute(params![large, *put, node, postcard::to_stdvec(&task.task)?])?;
    }
    Ok(())
}

fn insert_links(database: &Connection, links: impl Iterator<Item = LinkName>) -> Boxed<()> {
    let sql = "INSERT OR REPLACE INTO link VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let mut insert = database.prepare_cached(sql)?;
    for name in links {
        let place = &name.file.directory;
        insert.execute(params![
            name.identity.mount.0,
            name.identity.inode as i64,
            place.root.0,
            place.path.as_bytes(),
            name.file.name.as_bytes(),
            postcard::to_stdvec(&name)?
        ])?;
    }
    Ok(())
}

fn insert_extra(database: &Connection, extra: BTreeMap<ExtraKey, ExtraNames>) -> Boxed<()> {
    let mut insert = database.prepare_cached("INSERT INTO extra VALUES (?1, ?2, ?3, ?4)")?;
    for ((depth, id), extra) in extra {
        let body = postcard::to_stdvec(&extra)?;
        insert.execute(params![depth.0 as i64, id as i64, extra.names.len() as i64, body])?;
    }
    Ok(())
}

fn insert_dirty(database: &Connection, dirty: impl Iterator<Item = DirectoryRef>) -> Boxed<()> {
    let sql = "INSERT OR REPLACE INTO dirty VALUES (?1, ?2, ?3, ?4)";
    let mut insert = database.prepare_cached(sql)?;
    for directory in dirty {
        insert.execute(params![
            directory.path.depth() as i64,
            directory.root.0,
            directory.path.as_bytes(),
            postcard::to_stdvec(&directory)?
        ])?;
    }
    Ok(())
}
