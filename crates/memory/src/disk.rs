//! One mounted file system, and the system calls of its users.
//!
//! Calls take handles of directories and single names, and follow no symbolic link; [`User::walk`] does both. Checks
//! come in the order in which Linux makes them, so that the same error wins. Not modelled: ACLs, name spaces of users,
//! projects, leases, mounts below, quotas of groups.
mod attributes;
mod files;
mod flush;
mod names;
mod open;
mod xattrs;

use std::collections::{BTreeMap, BTreeSet};

use dmover_model::{EntryKind, Timestamp};

use crate::actor::{Actor, EXECUTE, SET_GID, SET_UID, WRITE};
use crate::clock::Clock;
use crate::content::ContentChange;
use crate::errno::{Errno, Result};
use crate::faults::{Call, Fault, Faults, Subject};
use crate::inode::{Attributes, Body, Inode};
use crate::profile::Profile;
use crate::state::{Change, ROOT, State, Usage};
use crate::stored::Log;

pub use attributes::SetTime;
pub use names::{Device, Listed, Renaming};
pub use open::Open;
pub use xattrs::XattrMode;

/// An open file, directory or other inode. It outlives the names of the inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(u64);

/// An entry: by its handle, or by a name in a directory. A symbolic link is not followed.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    /// What the handle has open.
    Open(Handle),
    /// The name in a directory.
    Entry(Handle, &'a [u8]),
}

impl From<Handle> for Place<'_> {
    fn from(handle: Handle) -> Self {
        Self::Open(handle)
    }
}

impl<'a> From<(Handle, &'a [u8])> for Place<'a> {
    fn from((directory, name): (Handle, &'a [u8])) -> Self {
        Self::Entry(directory, name)
    }
}

impl<'a, const N: usize> From<(Handle, &'a [u8; N])> for Place<'a> {
    fn from((directory, name): (Handle, &'a [u8; N])) -> Self {
        Self::Entry(directory, name)
    }
}

/// What a handle has open, and how.
#[derive(Debug, Clone)]
struct Opened {
    inode: u64,
    reads: bool,
    writes: bool,
    appends: bool,
    keeps_atime: bool,
    /// The directory and the name by which it was opened, for paths in rules and records.
    at: Option<(u64, Box<[u8]>)>,
}

/// A file system in memory.
#[derive(Debug, Clone)]
pub struct Disk {
    profile: Profile,
    clock: Clock,
    seed: u64,
    is_read_only: bool,
    /// What users see.
    cached: State,
    /// What was on storage when `log` began.
    stored: State,
    log: Log,
    handles: BTreeMap<u64, Opened>,
    next_handle: u64,
    /// Inodes that were made without a name, and may get one.
    unnamed: BTreeSet<u64>,
    faults: Faults,
}

impl Disk {
    /// An empty file system. The seed orders listings and chooses faults.
    pub fn new(profile: Profile, clock: Clock, seed: u64) -> Self {
        let state = State::new(&profile, seed, kept(&profile, clock.now()));
        Self {
            profile,
            clock,
            seed,
            is_read_only: false,
            cached: state.clone(),
            stored: state,
            log: Log::default(),
            handles: BTreeMap::new(),
            next_handle: 1,
            unnamed: BTreeSet::new(),
            faults: Faults::new(seed),
        }
    }

    /// The calls of one user.
    pub fn as_user<'a>(&'a mut self, actor: &'a Actor) -> User<'a> {
        User { disk: self, actor }
    }

    /// Abilities and limits.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Abilities and limits, to change them while it is mounted: a quota, a disk that becomes full.
    pub fn profile_mut(&mut self) -> &mut Profile {
        &mut self.profile
    }

    /// The clock of its host.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The clock of its host, to step it.
    pub fn clock_mut(&mut self) -> &mut Clock {
        &mut self.clock
    }

    /// Rules for faults, and the record of calls.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Rules for faults, and the record of calls.
    pub fn faults_mut(&mut self) -> &mut Faults {
        &mut self.faults
    }

    /// Mounts it read-only, or writable again, as the kernel does after an error.
    pub fn set_read_only(&mut self, is_read_only: bool) {
        self.is_read_only = is_read_only;
    }

    /// What is in use.
    pub fn usage(&self) -> Usage {
        self.cached.usage()
    }

    /// What one user has.
    pub fn usage_of(&self, uid: u32) -> Usage {
        self.cached.usage_of(uid)
    }

    /// Number of open handles.
    pub fn open_handles(&self) -> usize {
        self.handles.len()
    }

    /// The time that changes get now.
    fn stamp(&self) -> Timestamp {
        kept(&self.profile, self.clock.now().truncated(self.profile.stamp_step_ns))
    }

    fn is_open(&self, inode: u64) -> bool {
        self.handles.values().any(|opened| opened.inode == inode)
    }

    fn opened(&self, handle: Handle) -> Result<&Opened> {
        self.handles.get(&handle.0).ok_or(Errno::BADF)
    }

    fn add_handle(&mut self, opened: Opened) -> Handle {
        let handle = Handle(self.next_handle);
        self.next_handle += 1;
        self.handles.insert(handle.0, opened);
        handle
    }

    fn drop_handle(&mut self, handle: Handle) -> Result<()> {
        let opened = self.handles.remove(&handle.0).ok_or(Errno::BADF)?;
        self.drop_if_unused(opened.inode);
        Ok(())
    }

    /// Frees an inode that no name and no handle leads to.
    fn drop_if_unused(&mut self, inode: u64) {
        let is_nameless = self.cached.find(inode).is_some_and(|node| node.links == 0);
        if is_nameless && !self.is_open(inode) {
            self.unnamed.remove(&inode);
            self.cached.drop_inode(inode);
        }
    }

    /// Changes metadata, in the cache first; the changes survive a power cut together or not at all.
    fn commit(&mut self, changes: Vec<Change>) {
        self.commit_with(changes, false, None);
    }

    /// As `commit`; for the other arguments see [`Log::push`].
    fn commit_with(&mut self, changes: Vec<Change>, moves: bool, with_data_of: Option<u64>) {
        for change in &changes {
            self.cached.apply(change);
        }
        self.log.push(self.faults.calls(), changes, moves, with_data_of);
    }

    fn edit(&mut self, inode: u64, edit: impl FnOnce(&mut Attributes)) {
        let old = self.cached.inode(inode).attributes;
        let mut to = old;
        edit(&mut to);
        if to != old {
            self.commit(vec![Change::Attributes { inode, to }]);
        }
    }

    /// Content or names changed now.
    fn touch_content(&mut self, inode: u64) {
        let now = self.stamp();
        self.edit(inode, |of| (of.mtime, of.ctime) = (now, now));
    }

    /// Metadata changed now.
    fn touch(&mut self, inode: u64) {
        let now = self.stamp();
        self.edit(inode, |of| of.ctime = now);
    }

    fn change_content(&mut self, inode: u64, change: ContentChange) {
        self.commit(vec![Change::Content { inode, change }]);
    }

    /// The path of an entry, and its inode, as far as there are such.
    fn subject(&self, places: &[Place<'_>]) -> Subject {
        let mut subject = Subject::default();
        for place in places {
            let (inode, at) = match place {
                Place::Open(handle) => match self.handles.get(&handle.0) {
                    Some(opened) => (Some(opened.inode), opened.at.clone()),
                    None => continue,
                },
                Place::Entry(handle, name) => {
                    let Some(opened) = self.handles.get(&handle.0) else { continue };
                    let found = self.cached.lookup(opened.inode, name).map(|entry| entry.inode);
                    (found, Some((opened.inode, (*name).into())))
                }
            };
            subject.inodes.extend(inode);
            if self.faults.needs_paths() {
                subject.paths.push(at.map_or_else(Vec::new, |(directory, name)| {
                    let mut path = self.cached.path_of(directory);
                    if !path.is_empty() {
                        path.push(b'/');
                    }
                    path.extend_from_slice(&name);
                    path
                }));
            }
        }
        subject
    }
}

/// A time as the file system keeps it.
fn kept(profile: &Profile, time: Timestamp) -> Timestamp {
    let (first, last) = profile.time_range_s;
    let time = match time.seconds {
        seconds if seconds < first => Timestamp { seconds: first, nanoseconds: 0 },
        seconds if seconds > last => Timestamp { seconds: last, nanoseconds: 0 },
        _ => time,
    };
    time.truncated(profile.time_step_ns)
}

/// The calls of one user on a disk.
#[derive(Debug)]
pub struct User<'a> {
    disk: &'a mut Disk,
    actor: &'a Actor,
}

impl User<'_> {
    /// One call: the clock ticks, a rule may let it fail, and it is recorded.
    fn call<T>(
        &mut self,
        call: Call,
        places: &[Place<'_>],
        body: impl FnOnce(&mut Self, Option<Fault>) -> Result<T>,
    ) -> Result<T> {
        self.disk.clock.tick();
        let subject = self.disk.subject(places);
        let fault = self.disk.faults.begin(call, &subject);
        let at = self.disk.clock.now();
        let result = match fault {
            Some(Fault::Error(errno)) => Err(errno),
            Some(Fault::Hang) => Err(Errno::HANGS),
            Some(Fault::ErrorAfter(errno)) => {
                let first = self.disk.next_handle;
                // How it ended is what the caller does not learn.
                let _ = body(self, fault);
                for handle in first..self.disk.next_handle {
                    let _ = self.disk.drop_handle(Handle(handle));
                }
                Err(errno)
            }
            Some(Fault::Delay(ns)) => {
                self.disk.clock.time().advance_ns(ns);
                body(self, fault)
            }
            _ => body(self, fault),
        };
        self.disk.faults.end(
            (call, at),
            subject,
            fault,
            result.as_ref().map(|_| ()).map_err(|e| *e),
        );
        result
    }

    fn node(&self, inode: u64) -> &Inode {
        self.disk.cached.inode(inode)
    }

    fn attributes(&self, inode: u64) -> &Attributes {
        &self.node(inode).attributes
    }

    /// Whether the user may do all of `wanted` with an inode (inode_permission() of the kernel).
    fn permit(&self, inode: u64, wanted: u32) -> Result<()> {
        let node = self.node(inode);
        let is_stored_here =
            matches!(node.kind, EntryKind::File | EntryKind::Directory | EntryKind::Symlink);
        if wanted & WRITE != 0 && self.disk.is_read_only && is_stored_here {
            return Err(Errno::ROFS);
        }
        if wanted & WRITE != 0 && node.attributes.immutable {
            return Err(Errno::PERM);
        }
        let is_granted = self.actor.may(node.kind, &node.attributes, wanted);
        if is_granted { Ok(()) } else { Err(Errno::ACCES) }
    }

    /// The mount is writable.
    fn check_writable(&self) -> Result<()> {
        if self.disk.is_read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// The directory of a handle.
    fn directory(&self, handle: Handle) -> Result<u64> {
        let inode = self.disk.opened(handle)?.inode;
        if self.node(inode).is_directory() { Ok(inode) } else { Err(Errno::NOTDIR) }
    }

    /// What the name leads to, if the user may search the directory.
    fn find(&self, directory: u64, name: &[u8]) -> Result<Option<u64>> {
        self.permit(directory, EXECUTE)?;
        if name.len() > self.disk.profile.name_bytes_max {
            return Err(Errno::NAMETOOLONG);
        }
        if name.contains(&b'/') || name.contains(&0) || matches!(name, b"." | b"..") {
            return Err(Errno::INVAL);
        }
        Ok(self.disk.cached.lookup(directory, name).map(|entry| entry.inode))
    }

    fn lookup(&self, directory: u64, name: &[u8]) -> Result<u64> {
        self.find(directory, name)?.ok_or(Errno::NOENT)
    }

    fn inode_at(&self, place: Place<'_>) -> Result<u64> {
        match place {
            Place::Open(handle) => Ok(self.disk.opened(handle)?.inode),
            Place::Entry(handle, name) => self.lookup(self.directory(handle)?, name),
        }
    }

    /// The file of a handle that is open for reading or writing.
    fn file(&self, handle: Handle, writes: bool) -> Result<u64> {
        let opened = self.disk.opened(handle)?;
        match (self.node(opened.inode).kind, writes) {
            (EntryKind::Directory, false) if opened.reads => Err(Errno::ISDIR),
            (EntryKind::File, false) if opened.reads => Ok(opened.inode),
            (EntryKind::File, true) if opened.writes => Ok(opened.inode),
            _ => Err(Errno::BADF),
        }
    }

    /// Whether so many more blocks and inodes fit, for the user with that number.
    fn check_space(&self, uid: u32, blocks: u64, inodes: u64) -> Result<()> {
        let profile = &self.disk.profile;
        let block_bytes = u64::from(profile.block_bytes);
        let used = self.disk.cached.usage();
        if (blocks > 0 && used.blocks + blocks > profile.capacity_bytes / block_bytes)
            || (inodes > 0 && used.inodes + inodes > profile.capacity_inodes)
        {
            return Err(Errno::NOSPC);
        }
        let Some(quota) = profile.quotas.get(&uid).filter(|_| !self.actor.is_privileged) else {
            return Ok(());
        };
        let used = self.disk.cached.usage_of(uid);
        if (blocks > 0 && used.blocks + blocks > quota.bytes / block_bytes)
            || (inodes > 0 && used.inodes + inodes > quota.inodes)
        {
            return Err(Errno::DQUOT);
        }
        Ok(())
    }

    /// A write takes rights away: capabilities of the file always, set-id bits if the user is not privileged.
    fn drop_privileges(&mut self, inode: u64) {
        let of = *self.attributes(inode);
        if self.node(inode).xattrs.contains_key(b"security.capability".as_slice()) {
            let name = b"security.capability".as_slice().into();
            self.disk.commit(vec![Change::Xattr { inode, name, value: None }]);
        }
        if self.actor.is_privileged {
            return;
        }
        let dropped = SET_UID | if self.loses_set_gid(&of) { SET_GID } else { 0 };
        self.disk.edit(inode, |of| of.mode &= !dropped);
    }

    /// Whether a write or a change of owner clears the set-group-id bit.
    fn loses_set_gid(&self, of: &Attributes) -> bool {
        of.mode & SET_GID != 0
            && (of.mode & crate::actor::GROUP_EXECUTE != 0 || !self.actor.keeps_set_gid(of.gid))
    }

    /// A new inode in `directory`, without a name: owner, group and mode follow from both.
    fn create(&mut self, directory: u64, kind: EntryKind, mode: u32, body: Body) -> Result<u64> {
        let above = *self.attributes(directory);
        let inherits = above.mode & SET_GID != 0;
        let mut mode = if kind == EntryKind::Symlink { 0o777 } else { mode & !self.actor.umask };
        if kind == EntryKind::Directory {
            mode = (mode & 0o1777) | if inherits { SET_GID } else { 0 };
        } else if inherits && !self.actor.keeps_set_gid(above.gid) && mode & 0o2010 == 0o2010 {
            mode &= !SET_GID;
        }
        let own = (self.actor.uid, if inherits { above.gid } else { self.actor.gid });
        let (uid, gid) = self.disk.profile.fixed_owner.unwrap_or(own);
        self.check_space(uid, 0, 1)?;
        let now = self.disk.stamp();
        let mode = if self.disk.profile.fixed_owner.is_some() { 0o755 } else { mode & 0o7777 };
        let attributes = Attributes::new(mode, (uid, gid), now);
        let node = Inode { kind, attributes, xattrs: BTreeMap::new(), links: 0, body };
        let inode = self.disk.cached.next_number(self.disk.profile.reuses_inodes);
        self.disk.commit(vec![Change::Create { inode, node: Box::new(node) }]);
        Ok(inode)
    }

    /// The root, as a directory that can be listed.
    pub fn root(&mut self) -> Handle {
        let opened = Opened {
            inode: ROOT,
            reads: true,
            writes: false,
            appends: false,
            keeps_atime: false,
            at: None,
        };
        self.disk.add_handle(opened)
    }
}
