//! What may have changed places after it was copied or renamed, and must not be recorded as equal.
use dmover_model::{CatalogEntry, Object, Segment, TreePath};
use rusqlite::params;
use std::collections::HashMap;

use super::Survey;
use crate::catalog::Boxed;
use crate::catalog::rows::MoveRow;

impl Survey {
    /// Removes from a segment what has replaced a renamed entry after the rename, as far as the destination has the renamed copy. Its
    /// change time shows the rename, so that nothing else shows that.
    pub(super) fn leave_out_what_replaced_renamed(&mut self, segment: &mut Segment) -> Boxed<()> {
        if !self.has_moved {
            return Ok(());
        }
        let above = segment.state.object.inode as i64;
        let moved = self.moved_into(above, segment.entries.len())?;
        for entry in std::mem::take(&mut segment.entries) {
            let name = entry.name.as_bytes();
            let is_other =
                |row: &MoveRow| row.entry.source != entry.source && row.entry.copy == entry.copy;
            let found = match &moved {
                Some(moved) => moved.get(name).is_some_and(|rows| rows.iter().any(is_other)),
                None => {
                    let sql =
                        "SELECT * FROM move WHERE to_parent = ?1 AND to_name = ?2 AND state = 2";
                    self.rows(sql, params![above, name])?.iter().any(is_other)
                }
            };
            if found {
                segment.settled = false;
                self.doubt_late(&segment.path.join(name))?;
            } else {
                segment.entries.push(entry);
            }
        }
        Ok(())
    }

    /// What was renamed into a directory, by name; `None`: these are more than `most`.
    fn moved_into(&self, above: i64, most: usize) -> Boxed<Option<HashMap<Vec<u8>, Vec<MoveRow>>>> {
        let sql = "SELECT * FROM move WHERE to_parent = ?1 AND state = 2 LIMIT ?2";
        let rows = self.rows(sql, params![above, most as i64 + 1])?;
        if rows.len() > most {
            return Ok(None);
        }
        let mut moved: HashMap<_, Vec<MoveRow>> = HashMap::new();
        for row in rows {
            moved.entry(row.to_name.clone()).or_default().push(row);
        }
        Ok(Some(moved))
    }

    /// Removes from a segment the directories that have replaced others after those were copied.
    pub(super) fn leave_out_what_came_later(&mut self, segment: &mut Segment) -> Boxed<()> {
        for name in std::mem::take(&mut segment.recent) {
            let Some(at) = segment.entries.iter().position(|entry| entry.name == name) else {
                continue;
            };
            let path = segment.path.join(name.as_bytes());
            let above = segment.state.object.inode;
            if !self.is_what_was_entered(above, &path, &segment.entries[at])? {
                segment.entries.remove(at);
                segment.settled = false;
            }
        }
        Ok(())
    }

    /// Whether a directory is the one that this pass has copied under its path. If that is not known, its entries are
    /// doubtful.
    pub(super) fn is_what_was_entered(
        &mut self,
        above: u64,
        path: &TreePath,
        entry: &CatalogEntry,
    ) -> Boxed<bool> {
        let known = self.entered.get(path) == Some(entry.source.inode)
            // A directory that existed before the pass began, and was not renamed since, was not reported.
            || self.was_there(above, path, entry.source)?;
        if !known {
            self.doubt_late(path)?;
        }
        Ok(known)
    }

    /// Records a doubt that stays after the end of this pass.
    pub(super) fn doubt_late(&mut self, path: &TreePath) -> Boxed<()> {
        self.late.insert(path.clone());
        Ok(self.catalog.doubt(path)?)
    }

    /// Whether the catalog has a directory at its present place.
    pub(super) fn was_there(&mut self, above: u64, path: &TreePath, object: Object) -> Boxed<bool> {
        let name = path.split_last().map(|(_, name)| name.to_vec());
        Ok(self.catalog.known(object.inode)?.is_some_and(|known| {
            known.object == object && known.parent == Some(above) && Some(known.name) == name
        }))
    }
}
