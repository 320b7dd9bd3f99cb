//! All inodes of a file system at one moment, and the changes that lead from one moment to the next.
//!
//! The same changes are applied to what the users see and, after a power cut, to what the storage had before.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dmover_model::{EntryKind, Timestamp};

use crate::content::{Block, Content, ContentChange};
use crate::errno::{Errno, Result};
use crate::inode::{Attributes, Body, Entry, Inode, Names};
use crate::profile::{Folding, Profile};

/// The inode number of the root.
pub const ROOT: u64 = 2;

/// A place in a listing: what comes after it has not been listed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor(pub(crate) (u64, Box<[u8]>));

/// What is in use, of the file system or of one user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Blocks of content.
    pub blocks: u64,
    /// Inodes.
    pub inodes: u64,
}

/// One step from one state to the next.
#[derive(Debug, Clone)]
pub enum Change {
    /// A new inode without a name.
    Create { inode: u64, node: Box<Inode> },
    /// A name leads to another inode, or to none.
    Entry { directory: u64, name: Box<[u8]>, to: Option<u64> },
    /// Owner, mode, times or flags.
    Attributes { inode: u64, to: Attributes },
    /// An extended attribute is set or removed.
    Xattr { inode: u64, name: Box<[u8]>, value: Option<Arc<[u8]>> },
    /// Content changes by a journalled operation.
    Content { inode: u64, change: ContentChange },
    /// Blocks are written.
    Data { inode: u64, blocks: Vec<(u64, Block)>, size: u64 },
}

/// All inodes.
#[derive(Debug, Clone)]
pub struct State {
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    /// Numbers below `next_inode` that no inode has.
    free: BTreeSet<u64>,
    usage: Usage,
    by_user: BTreeMap<u32, Usage>,
    /// Orders the listings.
    seed: u64,
    folding: Folding,
}

impl State {
    /// An empty file system: a root of user 0 with the mode 0755.
    pub fn new(profile: &Profile, seed: u64, now: Timestamp) -> Self {
        let mut state = Self {
            inodes: BTreeMap::new(),
            next_inode: ROOT,
            free: BTreeSet::new(),
            usage: Usage::default(),
            by_user: BTreeMap::new(),
            seed,
            folding: profile.folding,
        };
        let attributes = Attributes::new(0o755, profile.fixed_owner.unwrap_or((0, 0)), now);
        let names = Names { parent: ROOT, ..Names::default() };
        let root = Inode {
            kind: EntryKind::Directory,
            attributes,
            xattrs: BTreeMap::new(),
            links: 0,
            body: Body::Directory(names),
        };
        state.apply(&Change::Create { inode: ROOT, node: Box::new(root) });
        state.inode_mut(ROOT).links = 2;
        state
    }

    /// The inode of a number that is in use.
    pub fn inode(&self, number: u64) -> &Inode {
        self.inodes.get(&number).expect("a number that is in use has an inode")
    }

    /// The inode of that number, if there is one.
    pub fn find(&self, number: u64) -> Option<&Inode> {
        self.inodes.get(&number)
    }

    /// The number that the next inode gets.
    pub fn next_number(&self, reuses: bool) -> u64 {
        let free = self.free.first().filter(|_| reuses);
        free.copied().unwrap_or(self.next_inode)
    }

    /// What a name in a directory leads to.
    pub fn lookup(&self, directory: u64, name: &[u8]) -> Option<&Entry> {
        self.find(directory)?.names()?.by_key.get(&self.key(name))
    }

    /// The part of a listing after `after`, at most `most` entries, and where to continue.
    pub fn list(
        &self,
        directory: u64,
        after: Option<&Cursor>,
        most: usize,
    ) -> Result<(Vec<Entry>, Option<Cursor>)> {
        let names = self.find(directory).and_then(Inode::names).ok_or(Errno::NOTDIR)?;
        let start = match after {
            None => std::ops::Bound::Unbounded,
            Some(Cursor(at)) => std::ops::Bound::Excluded(at.clone()),
        };
        let mut rest = names.order.range((start, std::ops::Bound::Unbounded));
        let part: Vec<&(u64, Box<[u8]>)> = rest.by_ref().take(most).collect();
        let cursor = rest.next().and(part.last()).map(|at| Cursor((*at).clone()));
        let entries = part.into_iter().map(|(_, key)| names.by_key[key].clone()).collect();
        Ok((entries, cursor))
    }

    /// The path of a directory from the root, without a leading slash.
    pub fn path_of(&self, mut directory: u64) -> Vec<u8> {
        let mut parts: Vec<&[u8]> = Vec::new();
        while let Some(names) = self.find(directory).and_then(Inode::names)
            && directory != ROOT
        {
            parts.push(&names.name);
            directory = names.parent;
        }
        parts.reverse();
        parts.join(&b'/')
    }

    /// Whether `directory` is `above`, or below it.
    pub fn is_below(&self, mut directory: u64, above: u64) -> bool {
        loop {
            if directory == above {
                return true;
            }
            match self.find(directory).and_then(Inode::names) {
                Some(names) if directory != ROOT => directory = names.parent,
                _ => return false,
            }
        }
    }

    /// What is in use.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// What one user has.
    pub fn usage_of(&self, uid: u32) -> Usage {
        self.by_user.get(&uid).copied().unwrap_or_default()
    }

    /// Goes one step. What a step needs and does not find is skipped: a power cut may have taken it.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Create { inode, node } => {
                self.drop_inode(*inode);
                self.free.remove(inode);
                self.free.extend(self.next_inode..*inode);
                self.next_inode = self.next_inode.max(inode + 1);
                self.account(node.attributes.uid, 1, node.owned_blocks() as i64);
                self.inodes.insert(*inode, (**node).clone());
            }
            Change::Entry { directory, name, to } => self.set_entry(*directory, name, *to),
            Change::Attributes { inode, to } => self.set_attributes(*inode, to),
            Change::Xattr { inode, name, value } => {
                if let Some(node) = self.inodes.get_mut(inode) {
                    match value {
                        Some(value) => node.xattrs.insert(name.clone(), value.clone()),
                        None => node.xattrs.remove(name),
                    };
                }
            }
            Change::Content { inode, change } => {
                self.edit_content(*inode, |content| content.change(change));
            }
            Change::Data { inode, blocks, size } => {
                self.edit_content(*inode, |content| content.put(blocks, *size));
            }
        }
    }

    /// Changes the content of a file and pays for it.
    pub fn edit_content(&mut self, inode: u64, edit: impl FnOnce(&mut Content)) {
        let Some(node) = self.inodes.get_mut(&inode) else { return };
        let Body::File(content) = &mut node.body else { return };
        let before = content.owned_blocks() as i64;
        edit(content);
        let (uid, more) = (node.attributes.uid, content.owned_blocks() as i64 - before);
        self.account(uid, 0, more);
    }

    /// Removes an inode that has neither a name nor a handle.
    pub fn drop_inode(&mut self, inode: u64) {
        if let Some(node) = self.inodes.remove(&inode) {
            self.account(node.attributes.uid, -1, -(node.owned_blocks() as i64));
            self.free.insert(inode);
        }
    }

    /// After a power cut: removes what no name leads to, and counts names again.
    pub fn collect_orphans(&mut self) {
        let mut links: BTreeMap<u64, u64> = BTreeMap::from([(ROOT, 2)]);
        let mut parents: BTreeMap<u64, (u64, Box<[u8]>)> = BTreeMap::new();
        let mut open = vec![ROOT];
        while let Some(directory) = open.pop() {
            let Some(names) = self.find(directory).and_then(Inode::names) else { continue };
            for entry in names.by_key.values() {
                let is_directory = self.find(entry.inode).is_some_and(Inode::is_directory);
                *links.entry(entry.inode).or_default() += if is_directory { 2 } else { 1 };
                if is_directory {
                    *links.entry(directory).or_default() += 1;
                    parents.insert(entry.inode, (directory, entry.name.clone()));
                    open.push(entry.inode);
                }
            }
        }
        let orphans: Vec<u64> =
            self.inodes.keys().filter(|number| !links.contains_key(number)).copied().collect();
        for number in orphans {
            self.drop_inode(number);
        }
        for (number, node) in &mut self.inodes {
            node.links = links[number];
            if let (Body::Directory(names), Some((parent, name))) =
                (&mut node.body, parents.remove(number))
            {
                (names.parent, names.name) = (parent, name);
            }
        }
    }

    fn set_entry(&mut self, directory: u64, name: &[u8], to: Option<u64>) {
        let key = self.key(name);
        let order = (mix(self.seed, &key), key.clone());
        let to = to.filter(|number| self.inodes.contains_key(number));
        let Some(Body::Directory(names)) = self.inodes.get_mut(&directory).map(|n| &mut n.body)
        else {
            return;
        };
        let old = match to {
            Some(inode) => {
                names.order.insert(order);
                names.by_key.insert(key, Entry { name: name.into(), inode })
            }
            None => {
                names.order.remove(&order);
                names.by_key.remove(&key)
            }
        };
        if let Some(old) = old {
            self.count_name(directory, old.inode, -1);
        }
        if let Some(inode) = to {
            self.count_name(directory, inode, 1);
            if let Body::Directory(names) = &mut self.inode_mut(inode).body {
                (names.parent, names.name) = (directory, name.into());
            }
        }
    }

    /// A name in `directory` leads to `inode`, or no longer does. A directory also has the name `.`, and `..` in it is a
    /// name of the directory above.
    fn count_name(&mut self, directory: u64, inode: u64, by: i64) {
        let Some(node) = self.inodes.get_mut(&inode) else { return };
        let is_directory = node.is_directory();
        node.links = node.links.saturating_add_signed(if is_directory { 2 * by } else { by });
        if is_directory && let Some(parent) = self.inodes.get_mut(&directory) {
            parent.links = parent.links.saturating_add_signed(by);
        }
    }

    fn set_attributes(&mut self, inode: u64, to: &Attributes) {
        let Some(node) = self.inodes.get_mut(&inode) else { return };
        let (old_uid, blocks) = (node.attributes.uid, node.owned_blocks() as i64);
        node.attributes = *to;
        if old_uid != to.uid {
            self.account(old_uid, -1, -blocks);
            self.account(to.uid, 1, blocks);
        }
    }

    fn account(&mut self, uid: u32, inodes: i64, blocks: i64) {
        for usage in [&mut self.usage, self.by_user.entry(uid).or_default()] {
            usage.inodes = usage.inodes.saturating_add_signed(inodes);
            usage.blocks = usage.blocks.saturating_add_signed(blocks);
        }
    }

    fn inode_mut(&mut self, number: u64) -> &mut Inode {
        self.inodes.get_mut(&number).expect("a number that is in use has an inode")
    }

    /// The form in which names are compared.
    fn key(&self, name: &[u8]) -> Box<[u8]> {
        match (self.folding, std::str::from_utf8(name)) {
            (Folding::None, _) => name.into(),
            (Folding::Case, Ok(text)) => text.to_lowercase().into_bytes().into(),
            (Folding::Case, Err(_)) => name.to_ascii_lowercase().into(),
        }
    }
}

/// A number for a name that looks random, and depends on nothing but the seed (FNV-1a, then the finalizer of
/// SplitMix64).
fn mix(seed: u64, name: &[u8]) -> u64 {
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let mut hash = name.iter().fold(seed ^ 0xcbf2_9ce4_8422_2325, fnv);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}
