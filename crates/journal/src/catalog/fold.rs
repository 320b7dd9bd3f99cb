//! Merges records of single names into records of whole directories.
//!
//! Segments overlap, because a directory is recorded in the order in which it is read.
use dmover_model::{CatalogEntry, Fatal, Name};
use rusqlite::params;

use super::{Boxed, Catalog, SEGMENT};

/// The most single names recorded between two full scans.
const APART_MAX: usize = 20_000;

impl Catalog {
    /// The separate records of names in the range of a segment, by their position in it.
    pub(super) fn apart(
        &self,
        directory: i64,
        entries: &[CatalogEntry],
    ) -> Boxed<Vec<(usize, Option<CatalogEntry>)>> {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            return Ok(Vec::new());
        };
        let sql = "SELECT name, entry FROM moved WHERE directory = ?1 AND name BETWEEN ?2 AND ?3";
        let mut statement = self.database.prepare_cached(sql)?;
        let mut rows =
            statement.query(params![directory, first.name.as_bytes(), last.name.as_bytes()])?;
        let mut found = Vec::new();
        let mut passed = 0;
        while let Some(row) = rows.next()? {
            passed += 1;
            if passed > entries.len() * 8 {
                // Most of them are in other segments: it is cheaper to ask for each.
                return self.apart_one_by_one(directory, entries);
            }
            let name = row.get_ref(0)?.as_blob()?;
            if let Ok(at) = entries.binary_search_by(|entry| entry.name.as_bytes().cmp(name)) {
                let body = row.get_ref(1)?.as_blob_or_null()?;
                found.push((at, body.map(postcard::from_bytes).transpose()?));
            }
        }
        Ok(found)
    }

    fn apart_one_by_one(
        &self,
        directory: i64,
        entries: &[CatalogEntry],
    ) -> Boxed<Vec<(usize, Option<CatalogEntry>)>> {
        let sql = "SELECT entry FROM moved WHERE directory = ?1 AND name = ?2";
        let mut statement = self.database.prepare_cached(sql)?;
        let mut found = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            let mut rows = statement.query(params![directory, entry.name.as_bytes()])?;
            if let Some(row) = rows.next()? {
                let body = row.get_ref(0)?.as_blob_or_null()?;
                found.push((at, body.map(postcard::from_bytes).transpose()?));
            }
        }
        Ok(found)
    }

    /// Merges records of single names into directories that were not recorded again.
    pub(super) fn fold(&mut self) -> Boxed<()> {
        let directories = {
            let mut statement = self.database.prepare("SELECT DISTINCT directory FROM moved")?;
            let rows = statement.query_map([], |row| row.get::<_, i64>(0))?;
            rows.collect::<rusqlite::Result<Vec<_>>>()?
        };
        for directory in directories {
            // Parts of a record that was never completed.
            self.act("DELETE FROM segment WHERE directory = ?1 AND age = 1", directory)?;
            let parts = {
                let sql = "SELECT rowid FROM segment WHERE directory = ?1";
                let mut statement = self.database.prepare_cached(sql)?;
                let rows = statement.query_map([directory], |row| row.get::<_, i64>(0))?;
                rows.collect::<rusqlite::Result<Vec<_>>>()?
            };
            for part in parts {
                self.fold_part(directory, part)?;
            }
            self.add_new(directory)?;
            self.act("DELETE FROM moved WHERE directory = ?1", directory)?;
            self.act("UPDATE segment SET age = 0 WHERE directory = ?1", directory)?;
        }
        Ok(())
    }

    /// Merges records of single names if there are many: a watch may run for weeks without a full scan.
    pub(crate) fn keep_small(&mut self) -> Result<(), Fatal> {
        self.try_to(|this| {
            let sql = "SELECT count(*) FROM (SELECT 1 FROM moved LIMIT ?1)";
            let many = i64::try_from(APART_MAX)?;
            let count: i64 = this.database.prepare_cached(sql)?.query_row([many], |r| r.get(0))?;
            if count < many {
                return Ok(());
            }
            this.database.execute_batch("BEGIN IMMEDIATE")?;
            this.fold()?;
            this.database.execute_batch("COMMIT")?;
            Ok(())
        })
    }

    fn act(&self, sql: &str, directory: i64) -> Boxed<()> {
        self.database.prepare_cached(sql)?.execute([directory])?;
        Ok(())
    }

    /// Merges the records of names into one segment.
    fn fold_part(&self, directory: i64, part: i64) -> Boxed<()> {
        let sql = "SELECT body FROM segment WHERE rowid = ?1";
        let body: Vec<u8> =
            self.database.prepare_cached(sql)?.query_row([part], |row| row.get(0))?;
        let mut entries = decode(&body)?;
        let apart = self.apart(directory, &entries)?;
        if apart.is_empty() {
            return Ok(());
        }
        let sql = "DELETE FROM moved WHERE directory = ?1 AND name = ?2";
        let mut taken = self.database.prepare_cached(sql)?;
        let mut gone = Vec::new();
        for (at, entry) in apart {
            taken.execute(params![directory, entries[at].name.as_bytes()])?;
            match entry {
                Some(entry) => entries[at] = entry,
                None => gone.push(at),
            }
        }
        leave_out(&mut entries, gone);
        let sql = "UPDATE segment SET body = ?2 WHERE rowid = ?1";
        let body = postcard::to_stdvec(&entries)?;
        self.database.prepare_cached(sql)?.execute(params![part, body])?;
        Ok(())
    }

    /// Adds names that no segment has.
    fn add_new(&self, directory: i64) -> Boxed<()> {
        let mut new: Vec<CatalogEntry> = Vec::new();
        let mut after: Option<Name> = None;
        loop {
            // The rows of a table that is written to are asked for in parts, so that they need not all be held.
            let sql = "SELECT entry FROM moved WHERE directory = ?1 AND entry IS NOT NULL \
                       AND (?2 IS NULL OR name > ?2) ORDER BY name LIMIT ?3";
            let mut statement = self.database.prepare_cached(sql)?;
            let after_name = after.as_ref().map(Name::as_bytes);
            let mut rows = statement.query(params![directory, after_name, SEGMENT as i64])?;
            while let Some(row) = rows.next()? {
                new.push(postcard::from_bytes(row.get_ref(0)?.as_blob()?)?);
            }
            drop(rows);
            let Some(last) = new.last() else { return Ok(()) };
            after = Some(last.name.clone());
            self.put_segment(directory, &new)?;
            new.clear();
        }
    }
}

/// The entries of a segment, sorted; entries kept from an older record are not sorted.
pub(super) fn decode(body: &[u8]) -> Boxed<Vec<CatalogEntry>> {
    let mut entries: Vec<CatalogEntry> = postcard::from_bytes(body)?;
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// Removes the entries at these positions, which are in order.
pub(super) fn leave_out(entries: &mut Vec<CatalogEntry>, places: impl IntoIterator<Item = usize>) {
    let mut places = places.into_iter().peekable();
    let mut here = 0;
    entries.retain(|_| {
        let goes = places.next_if_eq(&here).is_some();
        here += 1;
        !goes
    });
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use dmover_model::{Segment, Timestamp};
    use rand::{Rng, SeedableRng, seq::SliceRandom};
    use std::collections::BTreeMap;

    fn entry(name: &str, number: u64) -> CatalogEntry {
        let object =
            |inode| Object { inode, birth: Some(Timestamp { seconds: 1, nanoseconds: 0 }) };
        CatalogEntry {
            name: Name::new(name.as_bytes()).unwrap(),
            kind: EntryKind::File,
            source: object(number),
            copy: object(number + 1),
            size: number,
            mtime: Timestamp { seconds: 2, nanoseconds: 0 },
        }
    }

    fn known(catalog: &mut Catalog, directory: u64) -> BTreeMap<Vec<u8>, CatalogEntry> {
        let mut found = BTreeMap::new();
        catalog
            .each_segment(directory, |entries| {
                for entry in entries {
                    let name = entry.name.as_bytes().to_vec();
                    assert!(found.insert(name, entry).is_none(), "a name is there twice");
                }
                Ok(())
            })
            .unwrap();
        found
    }

    /// Tells all of a directory, in parts and in any order.
    fn record(
        catalog: &mut Catalog,
        rng: &mut rand_chacha::ChaCha8Rng,
        top: Object,
        mut seen: Vec<CatalogEntry>,
        kept: &[CatalogEntry],
    ) {
        seen.shuffle(rng);
        let times = Timestamp { seconds: 3, nanoseconds: 0 };
        let state = DirectoryState { object: top, mtime: times, ctime: times };
        let count = seen.chunks(70).len();
        for (number, part) in seen.chunks(70).enumerate() {
            let mut entries = part.to_vec();
            entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            let last = number + 1 == count;
            let left = kept.iter().filter(|_| last).map(|e| (e.name.clone(), e.copy)).collect();
            let (path, settled, first) = (TreePath::root(), false, number == 0);
            let segment = Segment {
                state,
                copy: top,
                path,
                entries,
                recent: Vec::new(),
                left,
                settled,
                first,
                last,
            };
            catalog.store(vec![segment]).unwrap();
        }
    }

    /// A map is the model: whatever is recorded, renewed, noted and forgotten, and folded in between, both know the same.
    #[test]
    fn what_is_known_apart_is_known_before_and_after_it_is_taken_over() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let directory = tempfile::tempdir().unwrap();
        let mut catalog = Catalog::open(directory.path(), &JobId("0123456789ab".into())).unwrap();
        let top = Object { inode: 1, birth: None };
        catalog.belong_to(top).unwrap();
        let mut model = BTreeMap::new();
        let all: Vec<CatalogEntry> = (0..600).map(|n| entry(&format!("old{n}"), n * 10)).collect();
        model.extend(all.iter().map(|e| (e.name.as_bytes().to_vec(), e.clone())));
        record(&mut catalog, &mut rng, top, all, &[]);
        for round in 0..40 {
            let most = if round % 10 == 9 { 4000 } else { 30 };
            catalog.begin_changes().unwrap();
            for _ in 0..rng.random_range(0..most) {
                let word = ["old", "new"][rng.random_range(0..2)];
                let name = format!("{word}{}", rng.random_range(0..800));
                let now = entry(&name, rng.random_range(0..1_000_000));
                if rng.random_bool(0.3) {
                    catalog.note(1, now.name, None).unwrap();
                    model.remove(name.as_bytes());
                } else {
                    catalog.renew(1, &now.name, &now).unwrap();
                    model.insert(name.into_bytes(), now);
                }
            }
            catalog.make_changes().unwrap();
            assert_eq!(known(&mut catalog, 1), model, "round {round}, before");
            if rng.random_bool(0.1) {
                // Some are still under their old names at the destination.
                let all = model.values().cloned();
                let (kept, seen): (Vec<_>, Vec<_>) = all.partition(|_| rng.random_bool(0.2));
                record(&mut catalog, &mut rng, top, seen, &kept);
                assert_eq!(known(&mut catalog, 1), model, "round {round}, recorded anew");
            }
            if rng.random_bool(0.5) {
                catalog.end(1, true, &BTreeSet::new()).unwrap();
                assert_eq!(known(&mut catalog, 1), model, "round {round}, after");
            }
        }
    }
}
