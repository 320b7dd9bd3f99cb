//! Opening entries by name, closing them, and walking along a path.
use dmover_model::EntryKind;

use crate::actor::{READ, WRITE};
use crate::content::{Content, ContentChange};
use crate::disk::{Handle, Opened, Place, User};
use crate::errno::{Errno, Result};
use crate::faults::Call;
use crate::inode::Body;
use crate::state::{Change, ROOT};

/// Symbolic links that a walk follows (path_resolution(7)).
const LINKS_FOLLOWED_MAX: u32 = 40;
/// Longest target of a symbolic link, and longest path: `PATH_MAX` without its NUL.
pub const PATH_BYTES_MAX: usize = 4095;

/// How an entry is opened; always without following a symbolic link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Open {
    /// For reading, or for listing if it is a directory.
    pub reads: bool,
    /// For writing.
    pub writes: bool,
    /// Each write goes to the end.
    pub appends: bool,
    /// Makes a regular file of this mode if there is none (`O_CREAT`).
    pub creates: Option<u32>,
    /// With `creates`: the name must be free (`O_EXCL`).
    pub is_exclusive: bool,
    /// The file becomes empty.
    pub truncates: bool,
    /// It must be a directory.
    pub is_directory: bool,
    /// Reading it is no access (`O_NOATIME`).
    pub keeps_atime: bool,
}

impl Open {
    /// For reading.
    pub const READ: Self = Self {
        reads: true,
        writes: false,
        appends: false,
        creates: None,
        is_exclusive: false,
        truncates: false,
        is_directory: false,
        keeps_atime: false,
    };
    /// For writing into an existing file.
    pub const WRITE: Self = Self { reads: false, writes: true, ..Self::READ };
    /// A directory, to list it.
    pub const DIRECTORY: Self = Self { is_directory: true, ..Self::READ };

    /// A new file for reading and writing.
    pub const fn new_file(mode: u32) -> Self {
        Self { writes: true, creates: Some(mode), is_exclusive: true, ..Self::READ }
    }
}

impl User<'_> {
    /// Opens the entry `name` of a directory: `openat` with `O_NOFOLLOW`.
    ///
    /// # Errors
    ///
    /// As openat(2). A FIFO, socket or device gives `NXIO`: there is nobody at its other end.
    pub fn open(&mut self, directory: Handle, name: &[u8], how: Open) -> Result<Handle> {
        self.call(Call::Open, &[(directory, name).into()], |user, _| {
            let directory = user.directory(directory)?;
            let inode = match user.find(directory, name)? {
                Some(inode) => user.open_existing(inode, how)?,
                None => user.open_new(directory, name, how)?,
            };
            Ok(user.add(inode, how, Some((directory, name.into()))))
        })
    }

    /// Opens an entry of any kind for calls that need no access to content: `O_PATH`.
    ///
    /// # Errors
    ///
    /// As openat(2).
    pub fn reach<'p>(&mut self, place: impl Into<Place<'p>>) -> Result<Handle> {
        let place = place.into();
        self.call(Call::Open, &[place], |user, _| {
            let inode = user.inode_at(place)?;
            let at = match place {
                Place::Open(handle) => user.disk.opened(handle)?.at.clone(),
                Place::Entry(directory, name) => Some((user.directory(directory)?, name.into())),
            };
            Ok(user.add(inode, Open::default(), at))
        })
    }

    /// Opens what a handle has open once more, with other rights: `open` of `/proc/self/fd/N`.
    ///
    /// # Errors
    ///
    /// As openat(2).
    pub fn reopen(&mut self, handle: Handle, how: Open) -> Result<Handle> {
        self.call(Call::Open, &[handle.into()], |user, _| {
            let (inode, at) =
                (user.disk.opened(handle)?.inode, user.disk.opened(handle)?.at.clone());
            let inode = user.open_existing(inode, how)?;
            Ok(user.add(inode, how, at))
        })
    }

    /// Another handle for what a handle has open, with the same rights: `dup`.
    ///
    /// # Errors
    ///
    /// `BADF`.
    pub fn duplicate(&mut self, handle: Handle) -> Result<Handle> {
        let opened = self.disk.opened(handle)?.clone();
        Ok(self.disk.add_handle(opened))
    }

    /// Makes a regular file without a name in the file system of a directory, open for reading and writing: `O_TMPFILE`.
    ///
    /// # Errors
    ///
    /// As openat(2).
    pub fn create_unnamed(&mut self, directory: Handle, mode: u32) -> Result<Handle> {
        self.call(Call::Open, &[directory.into()], |user, _| {
            let directory = user.directory(directory)?;
            user.permit(directory, WRITE | crate::actor::EXECUTE)?;
            let inode = user.create_file(directory, mode)?;
            user.disk.unnamed.insert(inode);
            Ok(user.add(inode, Open::new_file(mode), None))
        })
    }

    /// Closes a handle. The inode is freed if it has no name and no other handle.
    ///
    /// # Errors
    ///
    /// `BADF`. An injected error is reported, and the handle is closed all the same.
    pub fn close(&mut self, handle: Handle) -> Result<()> {
        let result = self
            .call(Call::Close, &[handle.into()], |user, _| user.disk.opened(handle).map(|_| ()));
        self.disk.drop_handle(handle).and(result)
    }

    /// Resolves a path from a directory: `.`, `..` and symbolic links, the last component too if `follows_last`. A path
    /// or link that begins with `/` begins at the root of the disk, and nothing is above it.
    ///
    /// # Errors
    ///
    /// As path_resolution(7).
    pub fn walk(&mut self, from: Handle, path: &[u8], follows_last: bool) -> Result<Handle> {
        self.call(Call::Open, &[from.into()], |user, _| {
            let (directory, name) = user.walk_to_last(from, path, follows_last)?;
            let inode = match &name {
                Some(name) => user.lookup(directory, name)?,
                None => directory,
            };
            Ok(user.add(inode, Open::default(), name.map(|name| (directory, name))))
        })
    }

    /// As `walk`, up to the directory of the last component, which need not exist; `None` for a path that ends in `.`,
    /// `..` or a slash after the root.
    fn walk_to_last(
        &self,
        from: Handle,
        path: &[u8],
        follows_last: bool,
    ) -> Result<(u64, Option<Box<[u8]>>)> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        let mut directory = self.disk.opened(from)?.inode;
        let mut rest: Vec<Box<[u8]>> = Vec::new();
        let mut followed = 0;
        directory = push_path(&mut rest, path, directory)?;
        while let Some(part) = rest.pop() {
            if !self.node(directory).is_directory() {
                return Err(Errno::NOTDIR);
            }
            if part.is_empty() {
                continue;
            }
            self.permit(directory, crate::actor::EXECUTE)?;
            if *part == *b"." {
                continue;
            }
            if *part == *b".." {
                directory = self.node(directory).names().map_or(ROOT, |names| names.parent);
                continue;
            }
            let found = self.find(directory, &part)?;
            let target = found.and_then(|inode| match &self.node(inode).body {
                Body::Symlink(target) if follows_last || !rest.is_empty() => Some(target.clone()),
                _ => None,
            });
            if let Some(target) = target {
                followed += 1;
                if followed > LINKS_FOLLOWED_MAX {
                    return Err(Errno::LOOP);
                }
                directory = push_path(&mut rest, &target, directory)?;
            } else if rest.is_empty() {
                return Ok((directory, Some(part)));
            } else {
                directory = found.ok_or(Errno::NOENT)?;
            }
        }
        Ok((directory, None))
    }

    fn add(&mut self, inode: u64, how: Open, at: Option<(u64, Box<[u8]>)>) -> Handle {
        let Open { reads, writes, appends, keeps_atime, .. } = how;
        self.disk.add_handle(Opened { inode, reads, writes, appends, keeps_atime, at })
    }

    fn open_new(&mut self, directory: u64, name: &[u8], how: Open) -> Result<u64> {
        let mode = how.creates.ok_or(Errno::NOENT)?;
        if how.is_directory {
            return Err(Errno::INVAL);
        }
        self.check_new(directory)?;
        let inode = self.create_file(directory, mode)?;
        self.add_name(directory, name, inode);
        Ok(inode)
    }

    fn create_file(&mut self, directory: u64, mode: u32) -> Result<u64> {
        let body = Body::File(Content::new(self.disk.profile.block_bytes));
        self.create(directory, EntryKind::File, mode, body)
    }

    /// The checks of an open, in the order of do_open() and may_open() of the kernel.
    fn open_existing(&mut self, inode: u64, how: Open) -> Result<u64> {
        let kind = self.node(inode).kind;
        if how.creates.is_some() {
            if how.is_exclusive {
                return Err(Errno::EXIST);
            }
            if kind == EntryKind::Directory {
                return Err(Errno::ISDIR);
            }
        }
        if how.is_directory && kind != EntryKind::Directory {
            return Err(Errno::NOTDIR);
        }
        let writes = how.writes || how.truncates;
        match kind {
            EntryKind::Symlink => return Err(Errno::LOOP),
            EntryKind::Directory if writes => return Err(Errno::ISDIR),
            _ => {}
        }
        let wanted = if how.reads { READ } else { 0 } | if writes { WRITE } else { 0 };
        self.permit(inode, wanted)?;
        if self.attributes(inode).append_only && (how.truncates || how.writes && !how.appends) {
            return Err(Errno::PERM);
        }
        if how.keeps_atime && !self.actor.acts_as_owner(self.attributes(inode)) {
            return Err(Errno::PERM);
        }
        if !matches!(kind, EntryKind::File | EntryKind::Directory) {
            return Err(Errno::NXIO);
        }
        if how.truncates {
            self.drop_privileges(inode);
            let change = ContentChange::Resize(0);
            self.disk.commit(vec![Change::Content { inode, change }]);
            self.disk.touch_content(inode);
        }
        Ok(inode)
    }
}

/// Puts the components of a path before those that are left (last in the list); returns where they begin.
fn push_path(rest: &mut Vec<Box<[u8]>>, path: &[u8], directory: u64) -> Result<u64> {
    if path.len() > PATH_BYTES_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    let mut parts: Vec<Box<[u8]>> = parts.map(Into::into).collect();
    if path.ends_with(b"/") {
        // What is before it must be a directory, and need not be searched.
        parts.push(Box::default());
    }
    rest.extend(parts.into_iter().rev());
    Ok(if path.starts_with(b"/") { ROOT } else { directory })
}
