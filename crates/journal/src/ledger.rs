//! What a job must store beyond its memory: link groups, directories to finish again, shelved tasks.
//!
//! Small jobs use no disk: everything stays in memory up to a threshold, and moves to an SQLite file beyond it. The
//! file is temporary: it is unlinked as soon as it is open.
use dmover_model::{DirectoryRef, ExtraNames, Fatal, FileRef, LinkGroup, LinkName, TreePath};
use dmover_plan::coordinator::{LinkSupply, Shelved, TaskCounts};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

mod spill;
use spill::Spill;

/// The store for data that exceeds memory.
pub trait Ledger: Send {
    /// Stores tasks for later.
    fn shelve(&mut self, tasks: Vec<Shelved>) -> Result<(), Fatal>;
    /// Returns up to this many tasks, newest of each kind first.
    fn unshelve(&mut self, most: TaskCounts) -> Result<Vec<Shelved>, Fatal>;
    /// Stores names of linked inodes.
    fn record_links(&mut self, names: Vec<LinkName>) -> Result<(), Fatal>;
    /// Returns link groups, each once: `most` names, or at least one name of a large group.
    fn take_links(&mut self, most: usize) -> Result<LinkSupply, Fatal>;
    /// Stores directories to finish again.
    fn record_dirty(&mut self, directories: Vec<DirectoryRef>) -> Result<(), Fatal>;
    /// Returns up to `most` of them, deepest first, each once.
    fn take_dirty(&mut self, most: usize) -> Result<Vec<DirectoryRef>, Fatal>;
    /// Stores names that only the destination has.
    fn record_extra(&mut self, names: Vec<ExtraNames>) -> Result<(), Fatal>;
    /// Returns about `most` of the deepest ones; empty if there are no more.
    fn take_extra(&mut self, most: usize) -> Result<Vec<ExtraNames>, Fatal>;
}

/// Deepest first, then by path, so that equal directories are adjacent.
type DirtyKey = (std::cmp::Reverse<usize>, u32, TreePath);
/// Deepest first, then in the order in which they were found.
type ExtraKey = (std::cmp::Reverse<usize>, u64);
/// Names of one inode are adjacent, sorted by path.
type LinkKey = (u32, u64, u32, TreePath, Vec<u8>);

fn dirty_key(directory: &DirectoryRef) -> DirtyKey {
    let depth = std::cmp::Reverse(directory.path.depth());
    (depth, directory.root.0, directory.path.clone())
}

fn link_key(name: &LinkName) -> LinkKey {
    let (file, id) = (&name.file, name.identity);
    let place = &file.directory;
    (id.mount.0, id.inode, place.root.0, place.path.clone(), file.name.as_bytes().to_vec())
}

/// The ledger of a job, which need not survive the process.
#[derive(Debug)]
pub struct SpillLedger {
    directory: PathBuf,
    memory_bytes: usize,
    used_bytes: usize,
    large: Vec<Shelved>,
    small: Vec<Shelved>,
    links: BTreeMap<LinkKey, LinkName>,
    dirty: BTreeMap<DirtyKey, DirectoryRef>,
    extra: BTreeMap<ExtraKey, ExtraNames>,
    extra_put: u64,
    spill: Option<Spill>,
    /// The group that the last call did not finish.
    open_group: Option<LinkName>,
}

/// The approximate size of a record in memory, without its path.
const RECORD_BYTES: usize = 300;

impl SpillLedger {
    /// A ledger that keeps about `memory_bytes` in memory and spills into `directory` beyond that.
    pub fn new(directory: &Path, memory_bytes: usize) -> Self {
        Self {
            directory: directory.to_owned(),
            memory_bytes,
            used_bytes: 0,
            large: Vec::new(),
            small: Vec::new(),
            links: BTreeMap::new(),
            dirty: BTreeMap::new(),
            extra: BTreeMap::new(),
            extra_put: 0,
            spill: None,
            open_group: None,
        }
    }

    /// Whether a spill file is in use.
    pub fn has_spilled(&self) -> bool {
        self.spill.is_some()
    }

    /// Accounts for memory, and moves everything to the file once memory is full.
    fn charge(&mut self, bytes: usize) -> Result<(), Fatal> {
        self.used_bytes += bytes;
        if self.used_bytes <= self.memory_bytes {
            return Ok(());
        }
        self.used_bytes = 0;
        let spill = match &mut self.spill {
            Some(spill) => spill,
            None => self.spill.insert(Spill::create(&self.directory)?),
        };
        let mut tasks = std::mem::take(&mut self.large);
        tasks.append(&mut self.small);
        spill.put(
            tasks,
            std::mem::take(&mut self.links).into_values(),
            std::mem::take(&mut self.dirty).into_values(),
        )?;
        spill.put_extra(std::mem::take(&mut self.extra))
    }

    fn next_link(&mut self) -> Result<Option<LinkName>, Fatal> {
        let Some(spill) = &mut self.spill else {
            return Ok(self.links.pop_first().map(|(_, name)| name));
        };
        // Once anything has spilled, all names have to be merged in the file's order.
        if !self.links.is_empty() {
            let links = std::mem::take(&mut self.links);
            spill.put(Vec::new(), links.into_values(), std::iter::empty())?;
        }
        spill.next_link()
    }

    fn peek_same(&mut self, of: &LinkName) -> Result<Option<LinkName>, Fatal> {
        let next = self.next_link()?;
        if let Some(next) = &next
            && next.identity != of.identity
        {
            self.put_back(next.clone())?;
            return Ok(None);
        }
        Ok(next)
    }

    fn put_back(&mut self, name: LinkName) -> Result<(), Fatal> {
        match &mut self.spill {
            Some(spill) => spill.put_back(name),
            None => {
                self.links.insert(link_key(&name), name);
                Ok(())
            }
        }
    }
}

impl Ledger for SpillLedger {
    fn shelve(&mut self, tasks: Vec<Shelved>) -> Result<(), Fatal> {
        let bytes = tasks.iter().map(task_bytes).sum();
        let (large, small): (Vec<_>, Vec<_>) =
            tasks.into_iter().partition(|task| task.task.kind.is_large());
        self.large.extend(large);
        self.small.extend(small);
        self.charge(bytes)
    }

    fn unshelve(&mut self, most: TaskCounts) -> Result<Vec<Shelved>, Fatal> {
        let mut all = Vec::with_capacity(most.large + most.small);
        for (shelf, large, most) in
            [(&mut self.large, true, most.large), (&mut self.small, false, most.small)]
        {
            let keep = shelf.len().saturating_sub(most);
            let mut taken: Vec<Shelved> = shelf.drain(keep..).rev().collect();
            let freed: usize = taken.iter().map(task_bytes).sum();
            self.used_bytes = self.used_bytes.saturating_sub(freed);
            if taken.len() < most
                && let Some(spill) = &mut self.spill
            {
                taken.extend(spill.take_tasks(large, most - taken.len())?);
            }
            all.append(&mut taken);
        }
        Ok(all)
    }

    fn record_links(&mut self, names: Vec<LinkName>) -> Result<(), Fatal> {
        let mut bytes = 0;
        for name in names {
            bytes += RECORD_BYTES + 2 * name.file.directory.path.as_bytes().len();
            self.links.insert(link_key(&name), name);
        }
        self.charge(bytes)
    }

    fn take_links(&mut self, most: usize) -> Result<LinkSupply, Fatal> {
        let mut supply = LinkSupply::default();
        let mut names = 0;
        while names < most && !supply.continues {
            let (first, begun) = match self.open_group.take() {
                Some(first) => (first, true),
                None => match self.next_link()? {
                    Some(name) => (name, false),
                    None => {
                        supply.exhausted = true;
                        break;
                    }
                },
            };
            let mut rest: Vec<FileRef> = Vec::new();
            while rest.len() < most
                && let Some(name) = self.peek_same(&first)?
            {
                rest.push(name.file);
            }
            names += rest.len() + 1;
            supply.continues = rest.len() >= most;
            let file = first.file.clone();
            supply.groups.push(LinkGroup { first: file, rest, first_is_done: begun });
            if supply.continues {
                self.open_group = Some(first);
            }
        }
        Ok(supply)
    }

    fn record_dirty(&mut self, directories: Vec<DirectoryRef>) -> Result<(), Fatal> {
        let mut bytes = 0;
        for directory in directories {
            let size = RECORD_BYTES + 2 * directory.path.as_bytes().len();
            if self.dirty.insert(dirty_key(&directory), directory).is_none() {
                bytes += size;
            }
        }
        self.charge(bytes)
    }

    fn take_dirty(&mut self, most: usize) -> Result<Vec<DirectoryRef>, Fatal> {
        if let Some(spill) = &mut self.spill {
            let dirty = std::mem::take(&mut self.dirty);
            spill.put(Vec::new(), std::iter::empty(), dirty.into_values())?;
            return spill.take_dirty(most);
        }
        let mut seen = BTreeSet::new();
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some((key, directory)) = self.dirty.pop_first()
        {
            if seen.insert(key) {
                taken.push(directory);
            }
        }
        Ok(taken)
    }

    fn record_extra(&mut self, names: Vec<ExtraNames>) -> Result<(), Fatal> {
        let bytes = names.iter().map(extra_bytes).sum();
        for extra in names {
            self.extra_put += 1;
            self.extra.insert((std::cmp::Reverse(extra.depth()), self.extra_put), extra);
        }
        self.charge(bytes)
    }

    fn take_extra(&mut self, most: usize) -> Result<Vec<ExtraNames>, Fatal> {
        if let Some(spill) = &mut self.spill {
            spill.put_extra(std::mem::take(&mut self.extra))?;
            return spill.take_extra(most);
        }
        let mut taken: Vec<ExtraNames> = Vec::new();
        let mut names = 0;
        while names < most
            && let Some(next) = self.extra.first_entry()
            && taken.first().is_none_or(|first| first.depth() == next.get().depth())
        {
            let extra = next.remove();
            names += extra.names.len();
            taken.push(extra);
        }
        Ok(taken)
    }
}

/// The memory use of names.
fn extra_bytes(extra: &ExtraNames) -> usize {
    let names: usize = extra.names.iter().map(|name| name.name.as_bytes().len() + 120).sum();
    RECORD_BYTES + names
}

fn task_bytes(task: &Shelved) -> usize {
    use dmover_model::{ScanNames, TaskKind};
    let given: usize = task.task.given.iter().map(|path| path.as_bytes().len() + 32).sum();
    let inner = match &task.task.kind {
        TaskKind::Scan { names: ScanNames::Changed(places), .. } => {
            places.iter().map(|place| place.path.as_bytes().len() + 40).sum()
        }
        TaskKind::Scan { names: ScanNames::Paths(paths), .. } => {
            paths.iter().map(|p| p.as_bytes().len() + 40).sum()
        }
        TaskKind::Scan { names, .. } => names.names().iter().map(|n| n.as_bytes().len() + 32).sum(),
        TaskKind::Pairs(pairs) => pairs.iter().map(|(a, b, _)| a.0.len() + b.0.len() + 80).sum(),
        _ => 0,
    };
    RECORD_BYTES + inner + given
}

#[cfg(test)]
#[path = "ledger/tests.rs"]
mod tests;
