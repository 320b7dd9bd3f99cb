//! What survives a power cut.
//!
//! Every change is in the cache first. It is also an item of a log, in the order of the calls; a flush marks items as
//! stored. A cut begins with what was on storage when the log began, and repeats a part of the log that the modelled
//! file system could have written. [`CrashModel`] says which parts these are, and a seed chooses one.
//!
//! # What is modelled, and from where
//!
//! - fsync(2): the data and the metadata of the file are on storage; "the entry in the directory containing the file"
//!   need not be: that needs a flush of the directory. fdatasync(2): not times, owner or mode, but the size. syncfs(2):
//!   everything.
//! - ext4 and XFS journal metadata in order. A commit of the journal holds all earlier operations, so a cut leaves a
//!   prefix of them, each operation whole ([`Order::Prefix`]). A flush commits up to the last operation on its inode, and
//!   so all before that; what comes later may be missing, because a commit can have happened in between (ext4:
//!   Documentation/filesystems/ext4/journal.rst, `i_sync_tid` in fs/ext4/fsync.c; XFS:
//!   Documentation/filesystems/xfs/xfs-delayed-logging-design.rst on log forces). `WEAK` needs only what POSIX says:
//!   operations on different inodes and directories survive in any combination, and a flush of a file stores neither its
//!   name nor the directories above ([`Order::Partial`]).
//! - Delayed allocation: blocks get a place, and the file its size on storage, when the data is written back, which no
//!   call but a flush waits for (ext4: `delalloc` in Documentation/admin-guide/ext4.rst; XFS: commit ba87ea699ebd,
//!   "Fix to prevent the notorious 'NULL files' problem": the size on storage follows the data). So a new file may be
//!   empty, short, or have zeros where a block is missing, although its times and its mode are the final ones. Without
//!   delayed sizes ([`CrashModel::late_sizes`]) the size is there and the bytes are zeros. Data that is written into
//!   blocks that the file has may be there although later, or even earlier, metadata is lost.
//! - ext4 with `auto_da_alloc` (admin-guide/ext4.rst): if a rename replaces a file, the data of the new file is written
//!   before the rename is committed. The kernel starts the writing and waits only for what it has started: that is no
//!   guarantee beyond a megabyte or so (commit 0e20270454e4, "ext4: allocate delayed allocation blocks before rename").
//!   See [`CrashModel::replacing_bytes`]. XFS does not do that: the name may lead to an empty file.
//! - An inode without a name is removed when the journal is replayed (the orphan list of ext4, the AGI lists of XFS).
//! - A failed flush (fsync(2), `EIO`; wiki.postgresql.org/wiki/Fsync_Errors): the pages count as clean afterwards, the
//!   error is reported once, and the next flush succeeds without having written them. See
//!   [`crate::faults::Fault::LosesData`].
//!
//! # What is simplified
//!
//! - Writeback knows no age and no order: any block that was written since the last flush may be there or not. A block is
//!   written whole or not at all.
//! - The volatile cache of a device is part of the page cache: a flush includes its flush.
//! - `auto_da_alloc` does not count for a file that was truncated to 0 and closed: the kernel starts to write it, and
//!   nothing waits for that.
//! - Fast commits of ext4, which are off by default, are not modelled.
//! - Stale blocks never show up: file systems in `data=writeback`, or without a journal, can show them.
//! - Reserving, punching and sharing are journalled operations; data that is shared is on storage with them.
//! - The log holds all changes since the last `syncfs`, also those that are on storage.
use std::collections::{BTreeMap, BTreeSet};

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::content::Content;
use crate::inode::Inode;
pub use crate::profile::{CrashModel, Order};
use crate::state::{Change, State};

/// What a flush stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// `fdatasync` of an inode.
    Data(u64),
    /// `fsync` of an inode.
    Inode(u64),
    /// `syncfs`.
    All,
}

/// Two items with the same key keep their order in a [`Order::Partial`] log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// Creation and content of an inode.
    Content(u64),
    /// Owner, mode, times, flags and extended attributes of an inode.
    Attributes(u64),
    /// The names in a directory.
    Names(u64),
    /// The names of an inode.
    Links(u64),
    /// Directories that move to another one: kept in order, so that they never lead in a circle.
    Moves,
}

/// Where an item of the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Cached,
    Stored,
    /// A flush failed: nothing writes it any more.
    Lost,
}

/// Changes that survive together.
#[derive(Debug, Clone)]
struct Item {
    /// The number of the call that made it.
    call: u64,
    fate: Fate,
    changes: Vec<Change>,
    keys: Vec<Key>,
    /// Of data: whether it needs blocks or a size that the file did not have.
    grows: bool,
    /// Of a rename that replaces a file: the inode whose data has to be there.
    with_data_of: Option<u64>,
}

impl Item {
    /// The file whose data it is.
    fn data_of(&self) -> Option<u64> {
        match self.changes.as_slice() {
            [Change::Data { inode, .. }] => Some(*inode),
            _ => None,
        }
    }

    /// Up to which byte of the file its data goes.
    fn end_of_data(&self) -> u64 {
        match self.changes.as_slice() {
            [Change::Data { size, .. }] => *size,
            _ => 0,
        }
    }

    /// The file that it creates or whose content it changes, beside data.
    fn content_of(&self) -> Option<u64> {
        self.changes.iter().find_map(|change| match change {
            Change::Create { inode, .. } | Change::Content { inode, .. } => Some(*inode),
            _ => None,
        })
    }

    fn creates(&self) -> Option<u64> {
        match self.changes.as_slice() {
            [Change::Create { inode, .. }] => Some(*inode),
            _ => None,
        }
    }
}

/// What happened since everything was on storage.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log {
    items: Vec<Item>,
}

impl Log {
    /// Data that was written into the cache.
    pub fn push_data(&mut self, call: u64, change: Change, grows: bool) {
        let item = Item {
            call,
            fate: Fate::Cached,
            changes: vec![change],
            keys: Vec::new(),
            grows,
            with_data_of: None,
        };
        self.items.push(item);
    }

    /// Metadata that changed. `moves`: a directory moves to another one. `with_data_of`: see [`Item`].
    pub fn push(
        &mut self,
        call: u64,
        changes: Vec<Change>,
        moves: bool,
        with_data_of: Option<u64>,
    ) {
        let mut keys = BTreeSet::new();
        for change in &changes {
            match change {
                Change::Create { inode, .. } => {
                    keys.extend([
                        Key::Content(*inode),
                        Key::Attributes(*inode),
                        Key::Links(*inode),
                    ]);
                }
                Change::Entry { directory, to, .. } => {
                    keys.insert(Key::Names(*directory));
                    keys.extend(to.map(Key::Links));
                }
                Change::Attributes { inode, .. } | Change::Xattr { inode, .. } => {
                    keys.insert(Key::Attributes(*inode));
                }
                Change::Content { inode, .. } | Change::Data { inode, .. } => {
                    keys.insert(Key::Content(*inode));
                }
            }
        }
        keys.extend(moves.then_some(Key::Moves));
        let keys = keys.into_iter().collect();
        let fate = Fate::Cached;
        self.items.push(Item { call, fate, changes, keys, grows: false, with_data_of });
    }

    /// A name of this inode was removed by the item that was pushed last.
    pub fn also_unlinks(&mut self, inode: u64) {
        if let Some(item) = self.items.last_mut() {
            item.keys.push(Key::Links(inode));
        }
    }

    /// Whether nothing is in the cache only, or lost: the storage has what users see.
    pub fn is_stored(&self) -> bool {
        self.items.iter().all(|item| item.fate == Fate::Stored)
    }

    /// Forgets everything, once the storage has it.
    pub fn clear(&mut self) {
        self.items.clear();
    }

    /// A flush succeeded.
    pub fn flush(&mut self, what: Flush, order: Order) {
        let last_call = self.commits_up_to(what);
        for item in self.items.iter_mut().filter(|item| item.fate == Fate::Cached) {
            let is_stored = match (what, item.data_of()) {
                (Flush::All, _) => true,
                (Flush::Data(inode) | Flush::Inode(inode), Some(of)) => of == inode,
                (_, None) if order == Order::Prefix => {
                    last_call.is_some_and(|last| item.call <= last)
                }
                (Flush::Data(inode), None) => item.keys.contains(&Key::Content(inode)),
                (Flush::Inode(inode), None) => item.keys.iter().any(|key| {
                    [Key::Content(inode), Key::Attributes(inode), Key::Names(inode)].contains(key)
                }),
            };
            if is_stored {
                item.fate = Fate::Stored;
            }
        }
    }

    /// The last call that one journal commits with a flush. A commit may have happened just before, so later calls need
    /// not be part of it. Data that needs blocks gets these now, behind all other calls.
    fn commits_up_to(&self, what: Flush) -> Option<u64> {
        let (inode, keys) = match what {
            Flush::All => return Some(u64::MAX),
            Flush::Data(of) => (of, vec![Key::Content(of)]),
            Flush::Inode(of) => {
                let all = [Key::Content, Key::Attributes, Key::Names, Key::Links];
                (of, all.map(|key: fn(u64) -> Key| key(of)).to_vec())
            }
        };
        let cached = || self.items.iter().filter(|item| item.fate == Fate::Cached);
        if cached().any(|item| item.grows && item.data_of() == Some(inode)) {
            return Some(u64::MAX);
        }
        let concerns = |item: &&Item| keys.iter().any(|key| item.keys.contains(key));
        cached().filter(concerns).map(|item| item.call).max()
    }

    /// A flush failed: the data that it should have stored never will be.
    pub fn lose(&mut self, what: Flush) {
        for item in self.items.iter_mut().filter(|item| item.fate == Fate::Cached) {
            let is_lost = match (what, item.data_of()) {
                (_, None) => false,
                (Flush::All, Some(_)) => true,
                (Flush::Data(inode) | Flush::Inode(inode), Some(of)) => of == inode,
            };
            if is_lost {
                item.fate = Fate::Lost;
            }
        }
    }

    /// The content of a file without what failed flushes have lost, if they have lost anything.
    pub fn without_lost(&self, base: &State, inode: u64) -> Option<Content> {
        let is_lost = |item: &Item| item.fate == Fate::Lost && item.data_of() == Some(inode);
        self.items.iter().find(|item| is_lost(item))?;
        let mut content = base.find(inode).and_then(Inode::content).cloned();
        for item in self.items.iter().filter(|item| !is_lost(item)) {
            for change in &item.changes {
                match (change, &mut content) {
                    (Change::Create { inode: of, node }, _) if *of == inode => {
                        content = node.content().cloned();
                    }
                    (Change::Content { inode: of, change }, Some(content)) if *of == inode => {
                        content.change(change);
                    }
                    (Change::Data { inode: of, blocks, size }, Some(content)) if *of == inode => {
                        content.put(blocks, *size);
                    }
                    _ => {}
                }
            }
        }
        content
    }

    /// What a cut leaves of `base` and the log.
    pub fn cut(&self, base: &State, model: CrashModel, seed: u64) -> State {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (keeps, end) = match model.order {
            Order::Prefix => self.prefix(&mut random),
            Order::Partial => (self.subset(&mut random), u64::MAX),
        };
        // Up to which item the data of a file is there, because a rename that needs it is.
        let mut written_by: BTreeMap<u64, usize> = BTreeMap::new();
        for (at, item) in self.items.iter().enumerate().filter(|(at, _)| keeps[*at]) {
            written_by.extend(item.with_data_of.map(|inode| (inode, at)));
        }
        let mut state = base.clone();
        let mut broken = BTreeSet::new();
        let mut likelihoods: BTreeMap<u64, f64> = BTreeMap::new();
        for (at, item) in self.items.iter().enumerate() {
            let Some(inode) = item.data_of() else {
                if keeps[at] {
                    item.changes.iter().for_each(|change| state.apply(change));
                    item.creates().map(|inode| broken.remove(&inode));
                } else {
                    broken.extend(item.content_of());
                }
                continue;
            };
            let likely = *likelihoods.entry(inode).or_insert_with(|| likelihood(&mut random));
            if item.fate == Fate::Lost || broken.contains(&inode) {
                continue;
            }
            let is_needed = written_by.get(&inode).is_some_and(|by| at < *by);
            let is_whole = item.fate == Fate::Stored
                || (is_needed && item.end_of_data() <= model.replacing_bytes);
            if is_whole {
                item.changes.iter().for_each(|change| state.apply(change));
            } else if !item.grows || item.call < end {
                let is_late = model.late_sizes || !random.random_bool(0.5);
                write_some(&mut state, item, likely, is_late, &mut random);
            }
        }
        state.collect_orphans();
        state
    }

    /// All metadata up to some call, at least up to the last that is stored; and that call.
    fn prefix(&self, random: &mut ChaCha8Rng) -> (Vec<bool>, u64) {
        let metadata = || self.items.iter().filter(|item| item.data_of().is_none());
        let stored = metadata().filter(|item| item.fate == Fate::Stored).map(|item| item.call);
        let least = stored.max().map_or(0, |last| last + 1);
        let mut ends: Vec<u64> = vec![least];
        ends.extend(metadata().map(|item| item.call + 1).filter(|end| *end > least));
        ends.dedup();
        let end = ends[random.random_range(0..ends.len())];
        (self.items.iter().map(|item| item.call < end).collect(), end)
    }

    /// Any items, with all those that they rest on.
    fn subset(&self, random: &mut ChaCha8Rng) -> Vec<bool> {
        let needs = self.needs();
        let mut is_forced: Vec<bool> =
            self.items.iter().map(|item| item.fate == Fate::Stored).collect();
        for at in (0..self.items.len()).rev().filter(|at| self.items[*at].data_of().is_none()) {
            if is_forced[at] {
                needs[at].iter().for_each(|earlier| is_forced[*earlier] = true);
            }
        }
        let likely = likelihood(random);
        let mut keeps = Vec::with_capacity(self.items.len());
        for at in 0..self.items.len() {
            let is_chosen = random.random_bool(likely);
            let is_possible = needs[at].iter().all(|earlier| keeps[*earlier]);
            keeps.push(is_forced[at] || (is_chosen && is_possible));
        }
        keeps
    }

    /// For each item, the earlier ones that it rests on.
    fn needs(&self) -> Vec<Vec<usize>> {
        let mut last: BTreeMap<Key, usize> = BTreeMap::new();
        let mut created: BTreeMap<u64, usize> = BTreeMap::new();
        let mut all = Vec::with_capacity(self.items.len());
        for (at, item) in self.items.iter().enumerate() {
            let mut needs: Vec<usize> =
                item.keys.iter().filter_map(|key| last.get(key).copied()).collect();
            for change in &item.changes {
                let inodes = match change {
                    Change::Entry { directory, to, .. } => [Some(*directory), *to],
                    Change::Attributes { inode, .. } | Change::Xattr { inode, .. } => {
                        [Some(*inode), None]
                    }
                    _ => [None, None],
                };
                let of = inodes.into_iter().flatten();
                needs.extend(of.filter_map(|inode| created.get(&inode).copied()));
            }
            last.extend(item.keys.iter().map(|key| (*key, at)));
            created.extend(item.creates().map(|inode| (inode, at)));
            all.push(needs);
        }
        all
    }
}

/// Nothing, half or all of something: mixtures alone would hardly ever give the extremes.
fn likelihood(random: &mut ChaCha8Rng) -> f64 {
    [0.0, 0.5, 0.9, 1.0][random.random_range(0..4)]
}

/// Some blocks of data that no flush has stored.
fn write_some(state: &mut State, item: &Item, likely: f64, is_late: bool, random: &mut ChaCha8Rng) {
    let [Change::Data { inode, blocks, size }] = item.changes.as_slice() else { return };
    let written = blocks.iter().filter(|_| random.random_bool(likely)).cloned().collect();
    state.apply(&Change::Data { inode: *inode, blocks: written, size: *size });
    if !is_late {
        state.edit_content(*inode, |content| content.grow(*size));
    }
}
