//! Names: listing, making, linking, renaming and removing them.
use std::sync::Arc;

use dmover_model::EntryKind;

use crate::actor::{EXECUTE, READ, SET_GID, SET_UID, STICKY, WRITE};
use crate::disk::open::PATH_BYTES_MAX;
use crate::disk::{Handle, Place, User};
use crate::errno::{Errno, Result};
use crate::faults::Call;
use crate::inode::{Body, Names};
use crate::state::{Change, Cursor, ROOT};

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The name as it is stored.
    pub name: Vec<u8>,
    /// What it leads to.
    pub kind: EntryKind,
    /// The number of the inode.
    pub inode: u64,
}

/// A node that is neither file, directory nor symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// A named pipe.
    Fifo,
    /// A UNIX-domain socket.
    Socket,
    /// A character device with its major and minor number.
    Char(u32, u32),
    /// A block device with its major and minor number.
    Block(u32, u32),
}

/// What a rename does if the new name exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renaming {
    /// It is replaced.
    Replace,
    /// The rename fails (`RENAME_NOREPLACE`).
    New,
    /// The two are exchanged; the new name must exist (`RENAME_EXCHANGE`).
    Exchange,
}

/// One side of a rename.
#[derive(Debug, Clone, Copy)]
struct Side<'a> {
    directory: u64,
    name: &'a [u8],
    inode: Option<u64>,
}

impl User<'_> {
    /// The part of a listing after a cursor, at most `most` entries; and the cursor of the next part, if there is one.
    /// The order depends on the seed of the disk and on the names only. A name that is added or removed meanwhile may
    /// be listed or not; all others are listed once.
    ///
    /// # Errors
    ///
    /// As getdents64(2).
    pub fn list(
        &mut self,
        directory: Handle,
        after: Option<&Cursor>,
        most: usize,
    ) -> Result<(Vec<Listed>, Option<Cursor>)> {
        self.call(Call::List, &[directory.into()], |user, _| {
            let opened = user.disk.opened(directory)?;
            if !opened.reads {
                return Err(Errno::BADF);
            }
            let (inode, keeps_atime) = (opened.inode, opened.keeps_atime);
            let (entries, cursor) = user.disk.cached.list(inode, after, most)?;
            user.touch_access(inode, keeps_atime);
            let listed = |entry: crate::inode::Entry| Listed {
                kind: user.node(entry.inode).kind,
                inode: entry.inode,
                name: entry.name.into_vec(),
            };
            Ok((entries.into_iter().map(listed).collect(), cursor))
        })
    }

    /// Makes a directory: `mkdirat`.
    ///
    /// # Errors
    ///
    /// As mkdirat(2).
    pub fn make_directory(&mut self, directory: Handle, name: &[u8], mode: u32) -> Result<()> {
        self.call(Call::MakeDirectory, &[(directory, name).into()], |user, _| {
            let directory = user.free_name(directory, name)?;
            let profile = &user.disk.profile;
            if profile.counts_subdirectories
                && user.node(directory).links >= profile.links_max.max(2)
                && profile.has_links
            {
                return Err(Errno::MLINK);
            }
            let body = Body::Directory(Names::default());
            let inode = user.create(directory, EntryKind::Directory, mode, body)?;
            user.add_name(directory, name, inode);
            Ok(())
        })
    }

    /// Makes a symbolic link: `symlinkat`.
    ///
    /// # Errors
    ///
    /// As symlinkat(2).
    pub fn symlink(&mut self, target: &[u8], directory: Handle, name: &[u8]) -> Result<()> {
        self.call(Call::Symlink, &[(directory, name).into()], |user, _| {
            match target.len() {
                0 => return Err(Errno::NOENT),
                length if length > PATH_BYTES_MAX => return Err(Errno::NAMETOOLONG),
                _ => {}
            }
            let directory = user.free_name(directory, name)?;
            if !user.disk.profile.has_symlinks {
                return Err(Errno::PERM);
            }
            let body = Body::Symlink(Arc::from(target));
            let inode = user.create(directory, EntryKind::Symlink, 0o777, body)?;
            user.add_name(directory, name, inode);
            Ok(())
        })
    }

    /// The target of a symbolic link: `readlinkat`.
    ///
    /// # Errors
    ///
    /// As readlinkat(2).
    pub fn read_link<'p>(&mut self, place: impl Into<Place<'p>>) -> Result<Vec<u8>> {
        let place = place.into();
        self.call(Call::ReadLink, &[place], |user, _| {
            match &user.node(user.inode_at(place)?).body {
                Body::Symlink(target) => Ok(target.to_vec()),
                _ => Err(Errno::INVAL),
            }
        })
    }

    /// Makes a FIFO, socket or device: `mknodat`. Devices need privileges.
    ///
    /// # Errors
    ///
    /// As mknodat(2).
    pub fn make_node(
        &mut self,
        directory: Handle,
        name: &[u8],
        device: Device,
        mode: u32,
    ) -> Result<()> {
        self.call(Call::MakeNode, &[(directory, name).into()], |user, _| {
            let directory = user.free_name(directory, name)?;
            let (kind, number) = match device {
                Device::Fifo => (EntryKind::Fifo, (0, 0)),
                Device::Socket => (EntryKind::Socket, (0, 0)),
                Device::Char(major, minor) => (EntryKind::CharDevice, (major, minor)),
                Device::Block(major, minor) => (EntryKind::BlockDevice, (major, minor)),
            };
            // Anybody can make the character device 0, 0, which overlay file systems use as a whiteout.
            let is_device = match device {
                Device::Fifo | Device::Socket | Device::Char(0, 0) => false,
                Device::Char(..) | Device::Block(..) => true,
            };
            if (is_device && !user.actor.is_privileged) || !user.disk.profile.has_special_files {
                return Err(Errno::PERM);
            }
            let inode = user.create(directory, kind, mode, Body::Special(number))?;
            user.add_name(directory, name, inode);
            Ok(())
        })
    }

    /// Gives an inode a further name: `linkat`.
    ///
    /// # Errors
    ///
    /// As linkat(2).
    pub fn link<'p>(
        &mut self,
        of: impl Into<Place<'p>>,
        directory: Handle,
        name: &[u8],
    ) -> Result<()> {
        let of = of.into();
        self.call(Call::Link, &[of, (directory, name).into()], |user, _| {
            let inode = user.inode_at(of)?;
            let directory = user.existing_or_free(directory, name)?;
            user.check_may_link(inode)?;
            user.check_new(directory)?;
            let node = user.node(inode);
            if node.attributes.append_only || node.attributes.immutable {
                return Err(Errno::PERM);
            }
            if !user.disk.profile.has_links || node.is_directory() {
                return Err(Errno::PERM);
            }
            if node.links == 0 && !user.disk.unnamed.contains(&inode) {
                return Err(Errno::NOENT);
            }
            if node.links >= user.disk.profile.links_max {
                return Err(Errno::MLINK);
            }
            user.add_name(directory, name, inode);
            user.disk.unnamed.remove(&inode);
            user.disk.touch(inode);
            Ok(())
        })
    }

    /// Removes a name that is no directory: `unlinkat`.
    ///
    /// # Errors
    ///
    /// As unlinkat(2).
    pub fn unlink(&mut self, directory: Handle, name: &[u8]) -> Result<()> {
        self.call(Call::Unlink, &[(directory, name).into()], |user, _| {
            let directory = user.directory(directory)?;
            user.check_writable()?;
            let inode = user.lookup(directory, name)?;
            user.check_removable(directory, inode, false)?;
            user.remove_name(directory, name, inode);
            Ok(())
        })
    }

    /// Removes an empty directory: `unlinkat` with `AT_REMOVEDIR`.
    ///
    /// # Errors
    ///
    /// As unlinkat(2).
    pub fn remove_directory(&mut self, directory: Handle, name: &[u8]) -> Result<()> {
        self.call(Call::RemoveDirectory, &[(directory, name).into()], |user, _| {
            let directory = user.directory(directory)?;
            user.check_writable()?;
            let inode = user.lookup(directory, name)?;
            user.check_removable(directory, inode, true)?;
            user.check_empty(inode)?;
            user.remove_name(directory, name, inode);
            Ok(())
        })
    }

    /// Renames an entry: `renameat2`. If both names lead to the same inode, nothing happens.
    ///
    /// # Errors
    ///
    /// As renameat2(2).
    pub fn rename(
        &mut self,
        (old_directory, old_name): (Handle, &[u8]),
        (new_directory, new_name): (Handle, &[u8]),
        how: Renaming,
    ) -> Result<()> {
        let places = [(old_directory, old_name).into(), (new_directory, new_name).into()];
        self.call(Call::Rename, &places, |user, _| {
            let old_directory = user.directory(old_directory)?;
            user.permit(old_directory, EXECUTE)?;
            let new_directory = user.directory(new_directory)?;
            user.permit(new_directory, EXECUTE)?;
            user.check_writable()?;
            if how != Renaming::Replace && !user.disk.profile.has_rename_flags {
                return Err(Errno::INVAL);
            }
            let inode = Some(user.lookup(old_directory, old_name)?);
            let old = Side { directory: old_directory, name: old_name, inode };
            let inode = user.find(new_directory, new_name)?;
            let new = Side { directory: new_directory, name: new_name, inode };
            match (how, new.inode) {
                (Renaming::New, Some(_)) => return Err(Errno::EXIST),
                (Renaming::Exchange, None) => return Err(Errno::NOENT),
                _ => {}
            }
            user.check_rename(old, new, how)
        })
    }

    /// The checks of do_renameat2() and vfs_rename() of the kernel, then the rename.
    fn check_rename(&mut self, old: Side<'_>, new: Side<'_>, how: Renaming) -> Result<()> {
        let inode = old.inode.ok_or(Errno::NOENT)?;
        let exchanges = how == Renaming::Exchange;
        let is_above = |inode: u64, side: Side<'_>| {
            self.node(inode).is_directory() && self.disk.cached.is_below(side.directory, inode)
        };
        if is_above(inode, new) {
            return Err(Errno::INVAL);
        }
        if new.inode.is_some_and(|inode| is_above(inode, old)) {
            return Err(if exchanges { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        if new.inode == Some(inode) {
            return Ok(());
        }
        let is_directory = self.node(inode).is_directory();
        let replaced_directory = new.inode.is_some_and(|other| self.node(other).is_directory());
        self.check_removable(old.directory, inode, is_directory)?;
        match new.inode {
            None => self.check_new(new.directory)?,
            Some(other) if exchanges => {
                self.check_removable(new.directory, other, replaced_directory)?;
            }
            Some(other) => self.check_removable(new.directory, other, is_directory)?,
        }
        if old.directory != new.directory {
            self.check_other_parent(old, new, exchanges)?;
        }
        if let (Some(other), false) = (new.inode, exchanges)
            && is_directory
        {
            self.check_empty(other)?;
        }
        self.do_rename((old, inode), new, exchanges);
        Ok(())
    }

    /// A directory that moves to another one changes its `..`, and is one name more there.
    fn check_other_parent(&self, old: Side<'_>, new: Side<'_>, exchanges: bool) -> Result<()> {
        let is_directory = |inode: Option<u64>| inode.filter(|of| self.node(*of).is_directory());
        let (moved, other) = (is_directory(old.inode), is_directory(new.inode));
        if let Some(inode) = moved {
            self.permit(inode, WRITE)?;
        }
        if let Some(inode) = other.filter(|_| exchanges) {
            self.permit(inode, WRITE)?;
        }
        let profile = &self.disk.profile;
        let is_full = |directory: u64| {
            profile.counts_subdirectories
                && profile.has_links
                && self.node(directory).links >= profile.links_max
        };
        if (moved.is_some() && other.is_none() && is_full(new.directory))
            || (exchanges && moved.is_none() && other.is_some() && is_full(old.directory))
        {
            return Err(Errno::MLINK);
        }
        Ok(())
    }

    fn do_rename(&mut self, (old, inode): (Side<'_>, u64), new: Side<'_>, exchanges: bool) {
        let entry = |side: Side<'_>, name: &[u8], to: Option<u64>| Change::Entry {
            directory: side.directory,
            name: name.into(),
            to,
        };
        // A name that differs in case only is stored as it is now.
        let new_name = match self.disk.cached.lookup(new.directory, new.name) {
            Some(found) => found.name.to_vec(),
            None => new.name.to_vec(),
        };
        let back = new.inode.filter(|_| exchanges);
        let mut changes = vec![entry(old, old.name, None)];
        if new.inode.is_some() {
            changes.push(entry(new, &new_name, None));
        }
        changes.push(entry(new, &new_name, Some(inode)));
        changes.extend(back.map(|inode| entry(old, old.name, Some(inode))));
        let moves = old.directory != new.directory
            && [Some(inode), back].into_iter().flatten().any(|of| self.node(of).is_directory());
        let replaces = new.inode.filter(|_| !exchanges);
        self.disk.commit_with(changes, moves, replaces.and(Some(inode)));
        if let Some(other) = new.inode {
            self.disk.log.also_unlinks(other);
            self.disk.touch(other);
        }
        self.disk.touch(inode);
        self.disk.touch_content(old.directory);
        self.disk.touch_content(new.directory);
        if let Some(other) = replaces {
            self.disk.drop_if_unused(other);
        }
    }

    /// The directory of a name that is free and may be made.
    fn free_name(&self, directory: Handle, name: &[u8]) -> Result<u64> {
        let directory = self.existing_or_free(directory, name)?;
        self.check_new(directory)?;
        Ok(directory)
    }

    fn existing_or_free(&self, directory: Handle, name: &[u8]) -> Result<u64> {
        let directory = self.directory(directory)?;
        match self.find(directory, name)? {
            Some(_) => Err(Errno::EXIST),
            None => Ok(directory),
        }
    }

    /// The user may add names (may_create() of the kernel).
    pub(super) fn check_new(&self, directory: u64) -> Result<()> {
        if self.node(directory).links == 0 {
            return Err(Errno::NOENT);
        }
        self.permit(directory, WRITE | EXECUTE)
    }

    /// The user may remove this entry (may_delete() of the kernel).
    fn check_removable(&self, directory: u64, inode: u64, as_directory: bool) -> Result<()> {
        self.permit(directory, WRITE | EXECUTE)?;
        let (above, of) = (self.attributes(directory), self.attributes(inode));
        if above.append_only {
            return Err(Errno::PERM);
        }
        let is_kept = above.mode & STICKY != 0
            && !self.actor.acts_as_owner(of)
            && !self.actor.acts_as_owner(above);
        if is_kept || of.append_only || of.immutable {
            return Err(Errno::PERM);
        }
        match (as_directory, self.node(inode).is_directory()) {
            (true, false) => Err(Errno::NOTDIR),
            (false, true) => Err(Errno::ISDIR),
            (true, true) if inode == ROOT => Err(Errno::BUSY),
            _ => Ok(()),
        }
    }

    fn check_empty(&self, directory: u64) -> Result<()> {
        let names = self.node(directory).names();
        let is_empty = names.is_none_or(|names| names.by_key.is_empty());
        if is_empty { Ok(()) } else { Err(Errno::NOTEMPTY) }
    }

    /// The sysctl `fs.protected_hardlinks` (proc_sys_fs(5)).
    fn check_may_link(&self, inode: u64) -> Result<()> {
        let node = self.node(inode);
        let of = &node.attributes;
        if !self.disk.profile.protects_links || self.actor.acts_as_owner(of) {
            return Ok(());
        }
        let is_safe = node.kind == EntryKind::File
            && of.mode & SET_UID == 0
            && of.mode & (SET_GID | 0o010) != SET_GID | 0o010
            && self.permit(inode, READ | WRITE).is_ok();
        if is_safe { Ok(()) } else { Err(Errno::PERM) }
    }

    pub(super) fn add_name(&mut self, directory: u64, name: &[u8], inode: u64) {
        let to = Some(inode);
        self.disk.commit(vec![Change::Entry { directory, name: name.into(), to }]);
        self.disk.touch_content(directory);
    }

    fn remove_name(&mut self, directory: u64, name: &[u8], inode: u64) {
        self.disk.commit(vec![Change::Entry { directory, name: name.into(), to: None }]);
        self.disk.log.also_unlinks(inode);
        self.disk.touch(inode);
        self.disk.touch_content(directory);
        self.disk.drop_if_unused(inode);
    }
}
