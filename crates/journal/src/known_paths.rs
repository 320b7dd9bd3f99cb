//! The paths in a manifest: in memory, and in a file if there are many.
use dmover_model::{Fatal, TreePath};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Memory for one path, in bytes.
const EACH_BYTES: usize = 32;

/// The paths of a manifest, each as a hash of 128 bits.
#[derive(Debug)]
pub struct KnownPaths {
    memory: HashSet<u128>,
    most: usize,
    directory: PathBuf,
    spilled: Option<Connection>,
}

impl KnownPaths {
    /// Keeps up to about `memory_bytes` in memory, and more in a file in `directory`.
    pub fn new(memory_bytes: usize, directory: &Path) -> Self {
        let most = memory_bytes / EACH_BYTES;
        Self { memory: HashSet::new(), most, directory: directory.to_owned(), spilled: None }
    }

    /// Adds a path.
    pub fn insert(&mut self, path: &TreePath) -> Result<(), Fatal> {
        self.memory.insert(hash_of(path));
        if self.memory.len() < self.most {
            return Ok(());
        }
        let fail = |error: &dyn std::fmt::Display| Fatal::Ledger {
            path: self.directory.clone(),
            reason: error.to_string(),
        };
        let spilled = match &mut self.spilled {
            Some(spilled) => spilled,
            none => {
                let schema = "CREATE TABLE known (hash BLOB PRIMARY KEY) WITHOUT ROWID;";
                none.insert(crate::database::scratch(&self.directory, schema)?)
            }
        };
        let mut sorted: Vec<u128> = self.memory.drain().collect();
        sorted.sort_unstable();
        let transaction = spilled.transaction().map_err(|e| fail(&e))?;
        {
            let sql = "INSERT OR IGNORE INTO known VALUES (?1)";
            let mut insert = transaction.prepare_cached(sql).map_err(|e| fail(&e))?;
            for hash in sorted {
                insert.execute(params![hash.to_be_bytes()]).map_err(|e| fail(&e))?;
            }
        }
        transaction.commit().map_err(|e| fail(&e))
    }

    /// Whether a path was added.
    pub fn has(&self, path: &TreePath) -> Result<bool, String> {
        let hash = hash_of(path);
        if self.memory.contains(&hash) {
            return Ok(true);
        }
        let Some(spilled) = &self.spilled else { return Ok(false) };
        let sql = "SELECT 1 FROM known WHERE hash = ?1";
        let found = spilled
            .prepare_cached(sql)
            .and_then(|mut s| s.query_row([hash.to_be_bytes()], |_| Ok(())).optional());
        found.map(|row| row.is_some()).map_err(|error| error.to_string())
    }
}

fn hash_of(path: &TreePath) -> u128 {
    let hash = blake3::hash(path.as_bytes());
    let bytes: [u8; 16] = std::array::from_fn(|index| hash.as_bytes()[index]);
    u128::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_known_in_memory_and_in_the_file() {
        let path = |number: usize| TreePath::new(format!("d/{number}").into_bytes()).unwrap();
        let mut known = KnownPaths::new(100 * EACH_BYTES, &std::env::temp_dir());
        for number in (0..1_000).step_by(2) {
            known.insert(&path(number)).unwrap();
        }
        assert!(known.spilled.is_some() && known.memory.len() < 100);
        for number in 0..1_000 {
            assert_eq!(known.has(&path(number)).unwrap(), number % 2 == 0, "{number}");
        }
    }
}
