//! The use of the catalog in a pass: it finds names that have vanished or are new since the last pass, which of them are
//! one object, and the order of renames; at the end, it finds what must be recorded again.
//!
//! A directory is identified by its inode, and its place by the inode of its parent, so a name in a renamed directory is
//! found at its present place.
use dmover_model::{
    CatalogEntry, EntryKind, Fatal, ListedName, Move, MoveResult, Name, NameError, Object,
    RecheckSet, Revisit, Surveyed, TaskKind, TreePath,
};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::entered::Entered;
use super::revisits::{Revisits, below};
use super::rows::{MoveRow, SCRATCH, flag_in, in_tasks, insert_gone, joined};
use super::{Boxed, Catalog, KnownDirectory};
use crate::database::scratch;

mod late;
#[cfg(test)]
mod tests;

/// Directories in one task.
const DIRECTORIES: usize = 64;
/// Renames in one task.
const MOVES: usize = 256;
/// Tasks that are issued at once.
const TASKS: usize = 64;
/// A larger number of unknown files in existing places is not taken for moved files.
const NOWHERE_MAX: usize = 100_000;
/// The greatest depth of a tree.
const DEPTH_MAX: usize = 100_000;

/// A name in a directory, which is given by its inode at the source.
type Place = (u64, Vec<u8>);

/// Which part of a tree a pass scans.
#[derive(Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole tree.
    All,
    /// The rest that an earlier run left, which is not known.
    Resumed,
    /// Single paths.
    Only(Only),
}

/// The paths that a partial pass scans.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Only {
    /// Directories in which names were added or removed, by source inode.
    pub directories: Vec<(u64, TreePath)>,
    /// Names with changes.
    pub names: Vec<TreePath>,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Look,
    Match,
    /// Directories are renamed from the top down, so that the parent is in place first.
    Directories,
    /// Other renames that do not depend on each other.
    Free,
    /// Renames that depend on each other, one by one.
    Entangled,
    /// The tree is scanned and copied.
    Tree,
    Record,
}

/// The survey of one pass.
#[derive(Debug)]
pub struct Survey {
    catalog: Catalog,
    revisits: Revisits,
    entered: Entered,
    scratch: Connection,
    scratch_directory: PathBuf,
    stage: Stage,
    top: u64,
    /// All directories are recorded at the end, because the catalog lacks too much.
    all: bool,
    /// Only these paths are scanned, and no directory is recorded.
    only: Option<Only>,
    /// The last directory that was issued.
    depth: (i64, i64),
    /// New places of directories.
    moved: HashMap<u64, Place>,
    /// Places of entries that were moved out of the way.
    displaced: HashMap<Place, Place>,
    /// Renames that movers are performing, with both paths of each.
    out: HashMap<u64, [TreePath; 2]>,
    /// An entry was renamed.
    has_moved: bool,
    /// Paths whose entries may have been exchanged after they were copied.
    late: BTreeSet<TreePath>,
}

impl Survey {
    /// Starts the survey of a tree with this top directory. It does not know the rest of an interrupted pass.
    pub fn begin(
        mut catalog: Catalog,
        scratch_directory: &Path,
        top: Object,
        scope: Scope,
    ) -> Result<Self, Fatal> {
        let is_resumed = scope == Scope::Resumed;
        let only = if let Scope::Only(only) = scope { Some(only) } else { None };
        catalog.belong_to(top)?;
        let all = is_resumed || !catalog.was_whole;
        catalog.set_whole(false)?;
        let directory = catalog.path.parent().unwrap_or(Path::new("."));
        Ok(Self {
            entered: Entered::open(directory, is_resumed),
            catalog,
            revisits: Revisits::default(),
            scratch: scratch(scratch_directory, SCRATCH)?,
            scratch_directory: scratch_directory.to_owned(),
            stage: if is_resumed { Stage::Tree } else { Stage::Look },
            top: top.inode,
            all,
            only,
            depth: (-1, -1),
            moved: HashMap::new(),
            displaced: HashMap::new(),
            out: HashMap::new(),
            has_moved: false,
            late: BTreeSet::new(),
        })
    }

    /// The source is far away: much is asked about at once, rather than level by level.
    #[must_use]
    pub fn of_far_source(mut self, is_far: bool) -> Self {
        self.revisits.asks_ahead = is_far;
        self
    }

    fn try_to<T>(&mut self, action: impl FnOnce(&mut Self) -> Boxed<T>) -> Result<T, Fatal> {
        action(self).map_err(|error| match error.downcast::<Fatal>() {
            Ok(fatal) => *fatal,
            // The catalog reports its own errors; these are errors of the scratch file, whose disk may be full.
            Err(error) if error.is::<rusqlite::Error>() => {
                let (path, reason) = (self.scratch_directory.clone(), error.to_string());
                Fatal::Ledger { path, reason }
            }
            Err(error) => self.catalog.fatal(&error),
        })
    }

    /// The next tasks; empty when the present step is done. `saw_all`: nothing was skipped or failed so far.
    pub fn next(&mut self, saw_all: bool) -> Result<Vec<TaskKind>, Fatal> {
        self.try_to(|this| {
            loop {
                let tasks = match this.stage {
                    Stage::Look => this.look()?,
                    Stage::Match => this.find_moves()?,
                    Stage::Directories => this.directories()?,
                    Stage::Free => this.free()?,
                    Stage::Entangled => this.entangled()?,
                    Stage::Tree => {
                        this.begin_recording()?;
                        Vec::new()
                    }
                    Stage::Record => {
                        let names = this.only.as_mut().map(|only| std::mem::take(&mut only.names));
                        let tasks = match names {
                            Some(names) => in_tasks(names, MOVES, TaskKind::CatalogNames),
                            None => this.flagged()?,
                        };
                        if tasks.is_empty() && this.only.is_some() {
                            // What was written before is as good as it was.
                            this.catalog.set_whole(!this.all)?;
                            this.catalog.keep_small()?;
                            this.entered.end();
                            return Ok(tasks);
                        }
                        if tasks.is_empty() {
                            this.catalog.end(this.top, saw_all, &this.late)?;
                            this.entered.end();
                            return Ok(tasks);
                        }
                        tasks
                    }
                };
                if !tasks.is_empty() {
                    this.hand_out(&tasks)?;
                    return Ok(tasks);
                }
                this.stage = match this.stage {
                    Stage::Look => Stage::Match,
                    Stage::Match => Stage::Directories,
                    Stage::Directories => Stage::Free,
                    Stage::Free => Stage::Entangled,
                    Stage::Entangled => {
                        this.stage = Stage::Tree;
                        this.doubt_what_came_from_nowhere()?;
                        return Ok(Vec::new());
                    }
                    Stage::Tree | Stage::Record => Stage::Record,
                };
            }
        })
    }

    /// Takes the findings of movers and returns the tasks that follow.
    pub fn take(&mut self, found: Vec<Surveyed>) -> Result<Vec<TaskKind>, Fatal> {
        self.try_to(|this| {
            this.catalog.begin_changes()?;
            this.entered.begin();
            let (mut revisits, mut segments) = (Vec::new(), Vec::new());
            for surveyed in found {
                match surveyed {
                    Surveyed::Unchanged { .. } if this.only.is_some() => {}
                    Surveyed::Unchanged { inode, path } => {
                        if this.revisits.is_last(inode) {
                            let unchanged = Revisit { path, inode, known: None };
                            revisits.extend(below(&mut this.catalog, &unchanged)?);
                        }
                    }
                    Surveyed::Listed { object, path, names, last } => {
                        this.list(object, &names)?;
                        if last {
                            this.compare(object, &path, &mut revisits)?;
                        }
                    }
                    Surveyed::Moved(number, result) => this.note_move(number, result)?,
                    Surveyed::Entered { object, path, above, late } => {
                        match this.entered.get(&path) {
                            Some(inode) if inode == object.inode => {}
                            None if !late || this.was_there(above, &path, object)? => {}
                            // What is in one may have come from another.
                            _ => this.doubt_late(&path)?,
                        }
                        this.entered.put(&path, object.inode);
                    }
                    Surveyed::Touched { inode, path } => this.flag(inode, &path, false)?,
                    Surveyed::Renewed { directory, name, entry } => {
                        this.catalog.renew(directory, &name, &entry)?;
                    }
                    Surveyed::Named { directory, name, mut entry, recent } => {
                        if let (Some(path), Some(found)) = (recent, &entry)
                            && !this.is_what_was_entered(directory, &path, found)?
                        {
                            entry = None;
                        }
                        this.catalog.note(directory, name, entry.map(|entry| *entry))?;
                    }
                    Surveyed::Recorded(mut segment) => {
                        this.leave_out_what_came_later(&mut segment)?;
                        this.leave_out_what_replaced_renamed(&mut segment)?;
                        segments.push(*segment);
                    }
                }
            }
            let revisits = this.revisits.with_those_below(&mut this.catalog, revisits)?;
            let mut tasks = in_tasks(revisits, DIRECTORIES, TaskKind::Revisit);
            if !segments.is_empty() {
                let mut paths = Vec::new();
                for (inode, path, known) in this.catalog.store(segments)? {
                    if (this.all || !known) && !this.is_flagged(inode, &path)? {
                        this.flag(inode, &path, true)?;
                        paths.push(path);
                    }
                }
                tasks.extend(in_tasks(paths, DIRECTORIES, TaskKind::Catalog));
            }
            this.entered.commit();
            this.catalog.make_changes()?;
            Ok(tasks)
        })
    }

    /// Whether every directory is recorded at the end.
    pub fn records_all(&self) -> bool {
        self.all
    }

    /// Starts with the top directory, if there is a record to compare it with.
    fn look(&mut self) -> Boxed<Vec<TaskKind>> {
        self.stage = Stage::Match;
        if let Some(only) = &mut self.only {
            let mut revisits = Vec::new();
            for (inode, path) in std::mem::take(&mut only.directories) {
                revisits.push(Revisit { path, inode, known: None });
            }
            return Ok(in_tasks(revisits, DIRECTORIES, TaskKind::Revisit));
        }
        let mut any = false;
        self.catalog.each_segment(self.top, |_| {
            any = true;
            Ok(())
        })?;
        if !any {
            return Ok(Vec::new());
        }
        let known = self.catalog.known(self.top)?.and_then(|known| known.state);
        let top = Revisit { path: TreePath::root(), inode: self.top, known };
        let revisits = self.revisits.with_those_below(&mut self.catalog, vec![top])?;
        Ok(in_tasks(revisits, DIRECTORIES, TaskKind::Revisit))
    }

    fn list(&mut self, object: Object, names: &[ListedName]) -> Boxed<()> {
        let sql = "INSERT OR REPLACE INTO listing VALUES (?1, ?2, ?3, ?4, 0)";
        let mut insert = self.scratch.prepare_cached(sql)?;
        for ListedName { name, inode, is_directory } in names {
            let (directory, inode) = (object.inode as i64, *inode as i64);
            insert.execute(params![directory, name.as_bytes(), inode, is_directory])?;
        }
        Ok(())
    }

    /// Compares all names of a directory with the catalog: vanished names, new names, and names of directories to
    /// descend into.
    fn compare(
        &mut self,
        object: Object,
        path: &TreePath,
        revisits: &mut Vec<Revisit>,
    ) -> Boxed<()> {
        let was_last = self.revisits.is_last(object.inode);
        self.flag(object.inode, path, false)?;
        self.catalog.unsettle(object.inode)?;
        let directory = object.inode as i64;
        let known = self.catalog.known(object.inode)?.is_some_and(|known| known.object == object);
        let scratch = &self.scratch;
        let mut names = scratch
            .prepare("SELECT inode, name FROM listing WHERE directory = ?1 AND is_directory")?;
        let mut rows = names.query([directory])?;
        while let Some(row) = rows.next()?.filter(|_| self.only.is_none()) {
            let (inode, name): (i64, Vec<u8>) = (row.get(0)?, row.get(1)?);
            let inode = inode as u64;
            let below = self.catalog.known(inode)?;
            let is_old =
                |below: &KnownDirectory| below.parent == Some(object.inode) && below.name == name;
            if !was_last && below.as_ref().is_some_and(is_old) {
                // It was asked about at this path.
                continue;
            }
            let known = below.and_then(|below| below.state);
            revisits.push(Revisit { path: path.join(&name), inode, known });
        }
        drop(rows);
        if known {
            self.catalog.each_segment(object.inode, |entries| {
                for entry in entries {
                    let name = entry.name.as_bytes();
                    let sql =
                        "DELETE FROM listing WHERE directory = ?1 AND name = ?2 AND inode = ?3";
                    let inode = entry.source.inode as i64;
                    let mut stays = scratch.prepare_cached(sql)?;
                    if stays.execute(params![directory, name, inode])? == 0 {
                        insert_gone(scratch, object.inode, &entry)?;
                        let sql =
                            "UPDATE listing SET instead = 1 WHERE directory = ?1 AND name = ?2";
                        scratch.prepare_cached(sql)?.execute(params![directory, name])?;
                    }
                }
                Ok(())
            })?;
        }
        let sql = "INSERT INTO fresh SELECT inode, directory, name, ?2, is_directory, instead FROM listing \
                   WHERE directory = ?1";
        scratch.prepare_cached(sql)?.execute(params![directory, path.as_bytes()])?;
        scratch.prepare_cached("DELETE FROM listing WHERE directory = ?1")?.execute([directory])?;
        Ok(())
    }

    /// Finds entries that vanished in one place and are new in another.
    fn find_moves(&mut self) -> Boxed<Vec<TaskKind>> {
        self.expand_gone()?;
        let scratch = &self.scratch;
        let mut all = scratch.prepare(
            "SELECT inode, parent, name, path, is_directory, instead FROM fresh ORDER BY inode",
        )?;
        let mut rows = all.query([])?;
        while let Some(row) = rows.next()? {
            let (inode, is_directory): (i64, bool) = (row.get(0)?, row.get(4)?);
            let sql = "SELECT rowid, parent, name, entry FROM gone WHERE inode = ?1 LIMIT 1";
            let from = scratch
                .prepare_cached(sql)?
                .query_row([inode], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
                .optional()?;
            let Some((id, parent, from_name, body)): Option<(i64, i64, Vec<u8>, Vec<u8>)> = from
            else {
                continue;
            };
            let entry: CatalogEntry = postcard::from_bytes(&body)?;
            if (entry.kind == EntryKind::Directory) != is_directory {
                continue;
            }
            // Names of one inode have one copy; if they have several, it is not known which one is right.
            let sql = "SELECT entry FROM gone WHERE inode = ?1 AND rowid != ?2 LIMIT 1";
            let other: Option<Vec<u8>> =
                scratch.prepare_cached(sql)?.query_row([inode, id], |row| row.get(0)).optional()?;
            let other =
                other.map(|body| postcard::from_bytes::<CatalogEntry>(&body)).transpose()?;
            if other.is_some_and(|other| other.copy != entry.copy) {
                continue;
            }
            scratch.prepare_cached("DELETE FROM gone WHERE rowid = ?1")?.execute([id])?;
            let (to_parent, to_name, above): (i64, Vec<u8>, Vec<u8>) =
                (row.get(1)?, row.get(2)?, row.get(3)?);
            let path = TreePath::new(above)?.join(&to_name);
            let sql = "INSERT INTO move (inode, from_parent, from_name, to_parent, to_name, path, depth, \
                       is_directory, entry, state, instead) \
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 0, ?10)";
            let instead: bool = row.get(5)?;
            scratch.prepare_cached(sql)?.execute(params![
                inode,
                parent,
                from_name,
                to_parent,
                to_name,
                path.as_bytes(),
                path.depth() as i64,
                is_directory,
                body,
                instead,
            ])?;
        }
        Ok(Vec::new())
    }

    /// Adds the entries of vanished directories, as far as new entries may match them.
    fn expand_gone(&mut self) -> Boxed<()> {
        let is_fresh = |scratch: &Connection, inode: u64| -> Boxed<bool> {
            let sql = "SELECT 1 FROM fresh WHERE inode = ?1";
            Ok(scratch.prepare_cached(sql)?.exists([inode as i64])?)
        };
        let scratch = &self.scratch;
        let any: bool =
            scratch.query_row("SELECT EXISTS (SELECT 1 FROM fresh)", [], |r| r.get(0))?;
        if !any {
            return Ok(());
        }
        let mut left = Vec::new();
        {
            let mut gone = scratch.prepare("SELECT entry FROM gone")?;
            let mut rows = gone.query([])?;
            while let Some(row) = rows.next()? {
                let entry: CatalogEntry = postcard::from_bytes(row.get_ref(0)?.as_blob()?)?;
                let inode = entry.source.inode;
                if entry.kind == EntryKind::Directory && !is_fresh(scratch, inode)? {
                    left.push(inode);
                }
            }
        }
        while let Some(directory) = left.pop() {
            self.catalog.each_segment(directory, |entries| {
                for entry in entries {
                    if is_fresh(scratch, entry.source.inode)? {
                        insert_gone(scratch, directory, &entry)?;
                    } else if entry.kind == EntryKind::Directory {
                        left.push(entry.source.inode);
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Renames of directories, in one task: each one finds its parent in place. A rename that depends on another one is
    /// a task of its own, because it begins where the other one moves an entry.
    fn directories(&mut self) -> Boxed<Vec<TaskKind>> {
        let sql = "SELECT * FROM move WHERE is_directory AND (depth, number) > (?1, ?2) \
                   ORDER BY depth, number LIMIT ?3";
        loop {
            let (depth, number) = self.depth;
            let rows = self.rows(sql, params![depth, number, MOVES as i64])?;
            if rows.is_empty() {
                return Ok(Vec::new());
            }
            let mut moves = Vec::new();
            let mut alone = false;
            for row in rows {
                let meets = self.meets_another(&row)?;
                if alone || (meets && !moves.is_empty()) {
                    break;
                }
                alone = meets;
                self.depth = (row.depth, row.number);
                self.end_move(row.number)?;
                let inode = row.entry.source.inode;
                let to = (row.to_parent, row.to_name.clone());
                if let Some(planned) = self.plan(row, true)? {
                    // What follows takes it for done. If it fails, the rest is not where it is sought, and stays.
                    moves.push(planned);
                    self.moved.insert(inode, to);
                }
            }
            if !moves.is_empty() {
                return Ok(vec![TaskKind::Rename(moves)]);
            }
        }
    }

    fn meets_another(&self, row: &MoveRow) -> Boxed<bool> {
        let sql = "SELECT 1 FROM move WHERE from_parent = ?1 AND from_name = ?2 \
                   UNION ALL SELECT 1 FROM move WHERE to_parent = ?3 AND to_name = ?4";
        let (to, from) = (row.to_parent as i64, row.from_parent as i64);
        let mut meets = self.scratch.prepare_cached(sql)?;
        Ok(meets.exists(params![to, row.to_name, from, row.from_name])?)
    }

    /// Renames to free names, in any order; renames that move entries out of the way come first.
    fn free(&mut self) -> Boxed<Vec<TaskKind>> {
        let sql = "SELECT * FROM move AS this WHERE NOT is_directory AND state = 0 \
            AND NOT EXISTS (SELECT 1 FROM move AS other WHERE other.from_parent = this.to_parent \
                            AND other.from_name = this.to_name AND other.state = 0) LIMIT ?1";
        loop {
            let rows = self.rows(sql, params![(MOVES * TASKS) as i64])?;
            if rows.is_empty() {
                return Ok(Vec::new());
            }
            let mut moves = Vec::new();
            for row in rows {
                self.end_move(row.number)?;
                moves.extend(self.plan(row, false)?);
            }
            if !moves.is_empty() {
                return Ok(in_tasks(moves, MOVES, TaskKind::Rename));
            }
        }
    }

    /// Renames in a cycle: the entry in the way is exchanged.
    fn entangled(&mut self) -> Boxed<Vec<TaskKind>> {
        loop {
            // One at a time, since the next one begins where this one puts what it displaces.
            let sql = "SELECT * FROM move WHERE NOT is_directory AND state = 0 LIMIT 1";
            let Some(row) = self.rows(sql, [])?.pop() else { return Ok(Vec::new()) };
            self.end_move(row.number)?;
            if let Some(planned) = self.plan(row, true)? {
                return Ok(vec![TaskKind::Rename(vec![planned])]);
            }
        }
    }

    fn rows(&self, sql: &str, parameters: impl rusqlite::Params) -> Boxed<Vec<MoveRow>> {
        let mut statement = self.scratch.prepare_cached(sql)?;
        let mut rows = statement.query(parameters)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(MoveRow::of(row)?);
        }
        Ok(found)
    }

    /// The present paths of both ends. `None`: the entry is in place, or the paths are unknown.
    fn plan(&mut self, row: MoveRow, exchange: bool) -> Boxed<Option<Move>> {
        let from = self.now_at((row.from_parent, row.from_name));
        if from == (row.to_parent, row.to_name) {
            // It was put there to make room for another.
            self.catalog.note_renamed(&row.path)?;
            return Ok(None);
        }
        let (parent, name) = from;
        let Some(parent) = self.path_of(parent)? else {
            self.catalog.doubt(&row.path)?;
            return Ok(None);
        };
        let from = parent.join(&name);
        let (number, entry, to) = (row.number as u64, row.entry, row.path);
        let (exchange, replaces) = (exchange && row.instead, row.instead);
        Ok(Some(Move { number, entry, from, to, exchange, replaces }))
    }

    fn now_at(&self, mut place: Place) -> Place {
        for _ in 0..=self.displaced.len() {
            match self.displaced.get(&place) {
                Some(next) => place = next.clone(),
                None => break,
            }
        }
        place
    }

    /// The path of a directory's copy at the destination.
    fn path_of(&mut self, inode: u64) -> Boxed<Option<TreePath>> {
        let (mut inode, mut names) = (inode, Vec::new());
        while inode != self.top {
            let place = match self.moved.get(&inode) {
                Some(place) => place.clone(),
                None => {
                    let Some(known) = self.catalog.known(inode)? else {
                        return self.fresh_path(inode, &names);
                    };
                    let Some(parent) = known.parent else { return Ok(None) };
                    self.now_at((parent, known.name))
                }
            };
            inode = place.0;
            names.push(place.1);
            if names.len() > DEPTH_MAX {
                return Ok(None);
            }
        }
        Ok(Some(joined(TreePath::root(), &names)))
    }

    /// The path of a directory that is new at the source, which is the same at the destination.
    fn fresh_path(&self, inode: u64, names: &[Vec<u8>]) -> Boxed<Option<TreePath>> {
        let sql = "SELECT path, name FROM fresh WHERE inode = ?1 AND is_directory";
        let found: Option<(Vec<u8>, Vec<u8>)> = self
            .scratch
            .prepare_cached(sql)?
            .query_row([inode as i64], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let Some((above, name)) = found else { return Ok(None) };
        Ok(Some(joined(TreePath::new(above)?.join(&name), names)))
    }

    /// Called before movers rename: until they report, the affected places are doubtful.
    fn hand_out(&mut self, tasks: &[TaskKind]) -> Boxed<()> {
        let mut ends = Vec::new();
        for task in tasks {
            let TaskKind::Rename(moves) = task else { continue };
            for Move { number, from, to, .. } in moves {
                ends.extend([from.clone(), to.clone()]);
                self.out.insert(*number, [from.clone(), to.clone()]);
            }
        }
        if !ends.is_empty() {
            self.catalog.begin_changes()?;
            for path in &ends {
                self.catalog.doubt(path)?;
            }
            self.catalog.make_changes()?;
        }
        Ok(())
    }

    /// Names that have another entry than in the last pass, whose old place the catalog does not know. Many such files
    /// come from a restore and count as new.
    fn doubt_what_came_from_nowhere(&mut self) -> Boxed<()> {
        let sql = "SELECT path, name FROM fresh WHERE instead AND NOT is_directory AND NOT EXISTS \
                   (SELECT 1 FROM move WHERE to_parent = parent AND to_name = fresh.name) LIMIT ?1";
        let mut found = Vec::new();
        let mut statement = self.scratch.prepare(sql)?;
        let mut rows = statement.query([NOWHERE_MAX as i64 + 1])?;
        while let Some(row) = rows.next()? {
            let (above, name): (Vec<u8>, Vec<u8>) = (row.get(0)?, row.get(1)?);
            found.push(TreePath::new(above)?.join(&name));
        }
        self.catalog.begin_changes()?;
        for path in found.iter().filter(|_| found.len() <= NOWHERE_MAX) {
            self.catalog.doubt(path)?;
        }
        self.catalog.make_changes().map_err(Into::into)
    }

    /// The paths that must be checked more closely than by times.
    pub fn doubts(&mut self) -> Result<RecheckSet, Fatal> {
        self.catalog.doubts()
    }

    /// Records that these paths were checked and are right, or do not exist.
    pub fn trust(&mut self, paths: &[TreePath]) -> Result<(), Fatal> {
        if paths.is_empty() {
            return Ok(());
        }
        self.catalog.begin_changes()?;
        for path in paths.iter().filter(|path| !self.late.contains(path)) {
            self.catalog.trust(path)?;
        }
        self.catalog.make_changes()
    }

    fn end_move(&self, number: i64) -> Boxed<()> {
        let sql = "UPDATE move SET state = 1 WHERE number = ?1";
        self.scratch.prepare_cached(sql)?.execute([number])?;
        Ok(())
    }

    fn note_move(&mut self, number: u64, result: MoveResult) -> Boxed<()> {
        let ends = self.out.remove(&number);
        let mut rows = self.rows("SELECT * FROM move WHERE number = ?1", [number as i64])?;
        let (Some(ends), Some(row)) = (ends, rows.pop()) else { return Ok(()) };
        if result == MoveResult::Left {
            if row.is_directory {
                self.moved.remove(&row.entry.source.inode);
            }
            // The present entry may look right, and a server may still have renamed it: both places stay doubtful.
            return Ok(());
        }
        self.has_moved = true;
        let sql = "UPDATE move SET state = 2 WHERE number = ?1";
        self.scratch.prepare_cached(sql)?.execute([row.number])?;
        let from = self.now_at((row.from_parent, row.from_name));
        let to = (row.to_parent, row.to_name);
        let exchanged = result == MoveResult::Exchanged;
        let named = |(directory, name): &Place| {
            Ok::<_, NameError>((*directory, Name::new(name.as_slice())?))
        };
        self.catalog.relocate(row.entry, (named(&from)?, named(&to)?), exchanged)?;
        let [old_path, new_path] = ends;
        self.catalog.note_renamed(&new_path)?;
        if exchanged {
            // Where this stays it may look like what should be there.
            self.catalog.doubt(&old_path)?;
            self.displaced.insert(to, from);
        } else {
            self.catalog.trust(&old_path)?;
        }
        Ok(())
    }

    fn flag(&mut self, inode: u64, path: &TreePath, out: bool) -> Boxed<()> {
        if self.only.is_some() {
            // The next pass over everything reads its names, and records it.
            return Ok(self.catalog.unsettle(inode)?);
        }
        flag_in(&self.scratch, (inode, path), out)
    }

    /// Whether a directory is to be recorded at its present path.
    fn is_flagged(&self, inode: u64, path: &TreePath) -> Boxed<bool> {
        let sql = "SELECT 1 FROM flagged WHERE inode = ?1 AND path = ?2";
        Ok(self.scratch.prepare_cached(sql)?.exists(params![inode as i64, path.as_bytes()])?)
    }

    fn begin_recording(&mut self) -> Boxed<()> {
        self.catalog.relax()?;
        if self.all && self.only.is_none() {
            // Whatever is below it and was not entered, or is elsewhere by now, is found from there, level by level.
            self.scratch.execute("DELETE FROM flagged", [])?;
            self.flag(self.top, &TreePath::root(), false)?;
            let Self { entered, scratch, .. } = self;
            scratch.execute_batch("BEGIN")?;
            entered.each(|path, inode| flag_in(scratch, (inode, path), false))?;
            scratch.execute_batch("COMMIT")?;
        }
        Ok(())
    }

    /// Directories to record again.
    fn flagged(&mut self) -> Boxed<Vec<TaskKind>> {
        let sql = "UPDATE flagged SET out = 1 WHERE inode IN \
                   (SELECT inode FROM flagged WHERE out = 0 LIMIT ?1) RETURNING inode, path";
        let found = {
            let mut statement = self.scratch.prepare_cached(sql)?;
            let rows = statement.query_map([(DIRECTORIES * TASKS) as i64], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?))
            })?;
            rows.collect::<rusqlite::Result<Vec<_>>>()?
        };
        let mut paths = Vec::new();
        for (inode, path) in found {
            // Until the directory is recorded again, its record is outdated.
            self.catalog.unsettle(inode as u64)?;
            paths.push(TreePath::new(path)?);
        }
        Ok(in_tasks(paths, DIRECTORIES, TaskKind::Catalog))
    }
}
