//! Reads the rest of an earlier run from the journal.
use dmover_model::{Budget, DirectoryRef, Fatal, LinkName, Name, Task, TaskId, TaskKind, TreePath};
use dmover_plan::coordinator::{LeftNode, NodeId, PartNote, Shelved};
use rusqlite::params;
use std::collections::BTreeSet;

use super::{FORGETTING, Journal};

/// How many rows are read at once.
const BATCH: usize = 256;
/// If a task has returned more names than this, they are scanned again instead of being remembered.
const GIVEN_MAX: usize = 1 << 16;

/// A position in the remaining work, to read it in parts.
#[derive(Debug, Default)]
pub struct Left {
    after: Option<i64>,
}

type Read<T> = Result<T, Box<dyn std::error::Error>>;

impl Journal {
    fn broken(&self, error: &dyn std::fmt::Display) -> Fatal {
        let message = format!("the journal {} is damaged: {error}", self.path.display());
        Fatal::refused(message, FORGETTING)
    }

    /// Devices by number.
    pub fn mounts(&self) -> Result<Vec<u64>, Fatal> {
        let read = || -> rusqlite::Result<Vec<u64>> {
            let mut all = self.database.prepare("SELECT device FROM mount ORDER BY id")?;
            let rows = all.query_map([], |row| row.get::<_, i64>(0).map(|device| device as u64))?;
            rows.collect()
        };
        read().map_err(|e| self.fail(&e))
    }

    /// The waiting nodes, and the next free numbers.
    pub fn nodes(&self) -> Result<(Vec<LeftNode>, (TaskId, NodeId)), Fatal> {
        self.read_nodes().map_err(|e| self.broken(&e))
    }

    fn read_nodes(&self) -> Read<(Vec<LeftNode>, (TaskId, NodeId))> {
        let sql = "SELECT id, parent, body, \
                   (SELECT count(*) FROM task WHERE task.node = node.id AND done = 0) \
                   + (SELECT count(*) FROM node AS below WHERE below.parent = node.id) FROM node";
        // For this reading only: the counts would look at everything for every node.
        self.database.execute_batch(
            "CREATE INDEX IF NOT EXISTS task_node ON task (node);
             CREATE INDEX IF NOT EXISTS node_parent ON node (parent);",
        )?;
        let mut nodes = Vec::new();
        let mut all = self.database.prepare(sql)?;
        let mut rows = all.query([])?;
        while let Some(row) = rows.next()? {
            let (id, parent): (i64, Option<i64>) = (row.get(0)?, row.get(1)?);
            let mut note = PartNote::default();
            let mut parts =
                self.database.prepare_cached("SELECT body FROM part WHERE node = ?1")?;
            let mut parts = parts.query([id])?;
            while let Some(part) = parts.next()? {
                note.merge(postcard::from_bytes(&part.get::<_, Vec<u8>>(0)?)?);
            }
            nodes.push(LeftNode {
                id: NodeId(id as u64),
                parent: parent.map(|parent| NodeId(parent as u64)),
                holds: row.get::<_, i64>(3)? as u64,
                finish: postcard::from_bytes(&row.get::<_, Vec<u8>>(2)?)?,
                note,
            });
        }
        drop(rows);
        drop(all);
        self.database.execute_batch("DROP INDEX task_node; DROP INDEX node_parent;")?;
        let highest = |table: &str| -> rusqlite::Result<u64> {
            let sql = format!("SELECT coalesce(max(id) + 1, 0) FROM {table}");
            self.database.query_row(&sql, [], |row| row.get::<_, i64>(0).map(|id| id as u64))
        };
        // Numbers of tasks that have ended are in their outcomes.
        let task = highest("task")?.max(highest_outcome(self)?);
        Ok((nodes, (TaskId(task), NodeId(highest("node")?))))
    }

    /// The next remaining tasks; empty if there are no more.
    pub fn tasks(&self, left: &mut Left, budget: Budget) -> Result<Vec<Shelved>, Fatal> {
        self.read_tasks(left, budget).map_err(|e| self.broken(&e))
    }

    fn read_tasks(&self, left: &mut Left, budget: Budget) -> Read<Vec<Shelved>> {
        let sql = "SELECT id, node, body FROM task WHERE done = 0 AND id > ?1 ORDER BY id LIMIT ?2";
        let mut tasks = Vec::new();
        let mut all = self.database.prepare_cached(sql)?;
        let mut rows = all.query(params![left.after.unwrap_or(-1), BATCH as i64])?;
        while let Some(row) = rows.next()? {
            let (id, node): (i64, Option<i64>) = (row.get(0)?, row.get(1)?);
            let kind: TaskKind = postcard::from_bytes(&row.get::<_, Vec<u8>>(2)?)?;
            let given = self.given(id)?;
            let new = Task::new(TaskId(id as u64), kind, budget);
            let task = Task { resumed: true, given, ..new };
            tasks.push(Shelved { node: node.map(|node| NodeId(node as u64)), task });
            left.after = Some(id);
        }
        Ok(tasks)
    }

    /// The paths that an incomplete task had returned, done or not.
    fn given(&self, origin: i64) -> Read<Vec<TreePath>> {
        let mut given = Vec::new();
        let sql = "SELECT body FROM task WHERE origin = ?1 AND kind IN ('scan', 'open')";
        let mut all = self.database.prepare_cached(sql)?;
        let mut rows = all.query([origin])?;
        while let Some(row) = rows.next()? {
            let kind: TaskKind = postcard::from_bytes(&row.get::<_, Vec<u8>>(0)?)?;
            given.extend(kind.gives());
            if given.len() > GIVEN_MAX {
                return Ok(Vec::new());
            }
        }
        given.sort_unstable();
        Ok(given)
    }

    /// The next remaining names of linked inodes.
    pub fn links(&self, left: &mut Left) -> Result<Vec<LinkName>, Fatal> {
        self.bodies("link", left)
    }

    /// The next remaining directories to finish again.
    pub fn dirty(&self, left: &mut Left) -> Result<Vec<DirectoryRef>, Fatal> {
        self.bodies("dirty", left)
    }

    fn bodies<T: serde::de::DeserializeOwned>(
        &self,
        table: &str,
        left: &mut Left,
    ) -> Result<Vec<T>, Fatal> {
        let mut read = || -> Read<Vec<T>> {
            let order = "ORDER BY id LIMIT ?2";
            let sql = match left.after {
                None => format!("SELECT id, body FROM {table} WHERE ?1 IS NULL {order}"),
                Some(_) => format!("SELECT id, body FROM {table} WHERE id > ?1 {order}"),
            };
            let mut all = self.database.prepare_cached(&sql)?;
            let mut rows = all.query(params![left.after, BATCH as i64])?;
            let mut bodies = Vec::new();
            while let Some(row) = rows.next()? {
                left.after = Some(row.get(0)?);
                bodies.push(postcard::from_bytes(&row.get::<_, Vec<u8>>(1)?)?);
            }
            Ok(bodies)
        };
        read().map_err(|e| self.broken(&e))
    }

    /// Files that were open for writing when they were copied.
    pub fn doubts(&self) -> Result<BTreeSet<TreePath>, Fatal> {
        let read = || -> Read<BTreeSet<TreePath>> {
            let mut all = self.database.prepare("SELECT path FROM doubt")?;
            let mut rows = all.query([])?;
            let mut doubts = BTreeSet::new();
            while let Some(row) = rows.next()? {
                doubts.insert(TreePath::new(row.get::<_, Vec<u8>>(0)?)?);
            }
            Ok(doubts)
        };
        read().map_err(|e| self.broken(&e))
    }

    /// Temporary files of large files that are resumed.
    pub fn temporaries(&self) -> Result<Vec<Name>, Fatal> {
        let read = || -> Read<Vec<Name>> {
            let sql = "SELECT body FROM task WHERE kind IN ('chunk', 'seal') AND done = 0 \
                       UNION ALL SELECT body FROM node WHERE kind = 'seal'";
            let mut names = Vec::new();
            let mut all = self.database.prepare(sql)?;
            let mut rows = all.query([])?;
            while let Some(row) = rows.next()? {
                match postcard::from_bytes(&row.get::<_, Vec<u8>>(0)?)? {
                    TaskKind::Chunk(chunk) => names.push(chunk.large.temporary),
                    TaskKind::Seal(seal) => names.push(seal.large.temporary),
                    _ => {}
                }
            }
            names.sort_unstable();
            names.dedup();
            Ok(names)
        };
        read().map_err(|e| self.broken(&e))
    }
}

fn highest_outcome(journal: &Journal) -> rusqlite::Result<u64> {
    let sql = "SELECT coalesce(max(task) + 1, 0) FROM outcome";
    journal.database.query_row(sql, [], |row| row.get::<_, i64>(0).map(|id| id as u64))
}
