//! A third end beside `local` and `remote`: a source that is read straight from a disk in memory through the traits of `tree`,
//! without descriptors, messages or an agent.
use dmover_digest::Pieces;
use dmover_memory::{Actor, Errno, Handle, Open, Result as Called, User};
use dmover_model::{
    ByteRange, Digest, EntryError, EntryKind, ErrorClass, Fatal, FileSystemName, FollowLinks,
    Identity, Metadata, Operation, PathBytes, Shape, Side, TreePath,
};
use dmover_schedule::thread;
use dmover_tree::{
    EntryAttributes, ListedKind, NamedObject, Needs, NextData, Owner, RemoteDirectory, RemoteFile,
    RemoteRoot, RemoteTree, RemoteTrees, Seen,
};
use std::sync::Arc;
use std::time::Duration;

use super::line::Line;

/// What the names of these trees begin with.
pub const PREFIX: &[u8] = b"memory:/";
/// How often a file may have changed within the last tick before it counts as being written.
const RACY_WAITS_MAX: u32 = 10;
const BLOCK: usize = 64 << 10;
const READ: Open = Open { keeps_atime: true, ..Open::READ };
const LIST: Open = Open { is_directory: true, ..READ };

/// Opens the trees of a disk.
#[derive(Debug)]
pub struct FarTrees(pub Arc<Line>);

impl RemoteTrees for FarTrees {
    fn open(&self, named: &PathBytes, _: FollowLinks) -> Result<Arc<dyn RemoteTree>, Fatal> {
        let (Self(line), name) = (self, named.0.strip_prefix(PREFIX).unwrap_or_default());
        let root = line.ask((Operation::Open, named), |user| {
            let disk = user.root();
            let found = user.stat((disk, name));
            user.close(disk)?;
            found
        });
        let refused = |error| Fatal::refused(format!("cannot open the source: {error}"), "look");
        let metadata = root.map_err(|error| line.lost().unwrap_or_else(|| refused(error)))?;
        let Identity { mount, inode } = metadata.identity;
        let file_systems = vec![FileSystemName::Remote(mount.0)];
        let (canonical, name) = (named.clone(), Some(name.to_vec()));
        let above = vec![NamedObject { file_systems, inode }];
        let root = RemoteRoot { metadata, canonical, name, above, missing_mount: None };
        Ok(Arc::new(Tree { line: Arc::clone(line), root }))
    }

    fn names(&self, path: &PathBytes) -> bool {
        path.0.starts_with(PREFIX)
    }
}

/// An entry of the root directory of the disk, and all that is in it.
#[derive(Debug)]
struct Tree {
    line: Arc<Line>,
    root: RemoteRoot,
}

impl RemoteTree for Tree {
    fn root(&self) -> &RemoteRoot {
        &self.root
    }

    fn display(&self) -> &PathBytes {
        &self.root.canonical
    }

    fn open(&self, at: &TreePath, follows: bool) -> Result<Arc<dyn RemoteDirectory>, EntryError> {
        let slash: &[u8] = if at.is_root() { b"" } else { b"/" };
        let path = PathBytes([&self.root.canonical.0, slash, at.as_bytes()].concat());
        let names = self.root.name.iter().map(Vec::as_slice).chain(at.components());
        let opened = Directory::opened(&self.line, path, |user| {
            let mut current = user.root();
            for name in names {
                let next = with(user, (current, name, follows), |user, at| user.reopen(at, LIST));
                user.close(current)?;
                current = next?;
            }
            Ok(current)
        });
        Ok(Arc::new(opened?))
    }

    fn open_above(&self) -> Result<Arc<dyn RemoteDirectory>, EntryError> {
        let path = self.root.canonical.clone();
        Ok(Arc::new(Directory::opened(&self.line, path, |user| Ok(user.root()))?))
    }

    fn clock_skew(&self) -> Option<Duration> {
        self.line.skew
    }

    fn owner_name(&self, _owner: Owner) -> Result<Option<String>, EntryError> {
        // The disks of this world have no users.
        Ok(None)
    }

    fn lost(&self) -> Option<Fatal> {
        self.line.lost()
    }
}

/// Does something with an entry. `at`: its directory, its name, and whether it is what that is a symbolic link to.
fn with<T>(
    user: &mut User<'_>,
    at: (Handle, &[u8], bool),
    body: impl FnOnce(&mut User<'_>, Handle) -> Called<T>,
) -> Called<T> {
    let entry = user.walk(at.0, at.1, at.2)?;
    let done = body(user, entry);
    user.close(entry)?;
    done
}

/// An open directory or file.
#[derive(Debug)]
struct Directory {
    line: Arc<Line>,
    path: PathBytes,
    handle: Handle,
    metadata: Metadata,
}

type File = Directory;

impl Drop for Directory {
    fn drop(&mut self) {
        // It was only read.
        let _ = self.line.volume.disk().as_user(&Actor::root()).close(self.handle);
    }
}

impl Directory {
    fn opened(
        line: &Arc<Line>,
        path: PathBytes,
        open: impl FnOnce(&mut User<'_>) -> Called<Handle>,
    ) -> Result<Self, EntryError> {
        let (handle, metadata) = line.ask((Operation::Open, &path), |user| {
            let handle = open(user)?;
            let found = user.stat(handle);
            found.map(|found| (handle, found)).or_else(|error| user.close(handle).and(Err(error)))
        })?;
        Ok(Self { line: Arc::clone(line), path, handle, metadata })
    }

    /// Opens an entry in it.
    fn below(&self, name: &[u8], follows: bool, how: Open) -> Result<Self, EntryError> {
        Self::opened(&self.line, self.entry(name), |user| {
            with(user, (self.handle, name, follows), |user, at| {
                // Directories can be opened for reading as well.
                let is_directory = user.stat(at)?.kind == EntryKind::Directory;
                let fits = is_directory == how.is_directory;
                if fits { user.reopen(at, how) } else { Err(Errno::NOTDIR) }
            })
        })
    }

    fn entry(&self, name: &[u8]) -> PathBytes {
        PathBytes([&self.path.0, &b"/"[..], name].concat())
    }

    fn changed(&self, operation: Operation, words: &str) -> EntryError {
        EntryError::plain(Side::Source, operation, ErrorClass::Changed, self.path.clone(), words)
    }
}

/// The attributes of an entry that is open in some way.
fn attributes_of(user: &mut User<'_>, at: Handle) -> Called<(Metadata, EntryAttributes)> {
    let metadata = user.stat(at)?;
    let mut attributes = EntryAttributes::default();
    for name in user.list_xattrs(at)? {
        let value = user.xattr(at, &name)?;
        attributes.xattrs.push((name, value));
    }
    attributes.is_pinned = !matches!(metadata.kind, EntryKind::File | EntryKind::Directory);
    // FS_IMMUTABLE_FL and FS_APPEND_FL, as FS_IOC_GETFLAGS returns them.
    let flags = u32::from(metadata.immutable) << 4 | u32::from(metadata.append_only) << 5;
    attributes.flags = Some(flags).filter(|_| !attributes.is_pinned);
    Ok((metadata, attributes))
}

impl RemoteDirectory for Directory {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn clock_skew(&self) -> Option<Duration> {
        self.line.skew
    }

    fn enter(&self, name: &[u8], follows: bool) -> Result<Arc<dyn RemoteDirectory>, EntryError> {
        Ok(Arc::new(self.below(name, follows, LIST)?))
    }

    fn list(&self, each: &mut dyn FnMut(&[u8], ListedKind, u64) -> bool) -> Result<(), EntryError> {
        let list = |user: &mut User<'_>| user.list(self.handle, None, usize::MAX);
        let (all, _) = self.line.ask((Operation::ReadDirectory, &self.path), list)?;
        let kind = |kind| match kind {
            EntryKind::Directory => ListedKind::Directory,
            EntryKind::File => ListedKind::File,
            _ => ListedKind::Other,
        };
        all.iter().all(|entry| each(&entry.name, kind(entry.kind), entry.inode));
        Ok(())
    }

    fn look(&self, name: &[u8], follows: bool) -> Result<Seen, EntryError> {
        self.line.ask((Operation::Stat, &self.entry(name)), |user| {
            with(user, (self.handle, name, follows), |user, at| {
                let found = user.stat(at)?;
                let is_link = found.kind == EntryKind::Symlink;
                Ok((found, is_link.then(|| user.read_link(at)).transpose()?))
            })
        })
    }

    fn look_at_all(
        &self,
        names: &[&[u8]],
        follows: bool,
    ) -> Result<Vec<Result<Seen, EntryError>>, EntryError> {
        Ok(names.iter().map(|name| self.look(name, follows)).collect())
    }

    fn open_file(&self, name: &[u8], follows: bool) -> Result<Arc<dyn RemoteFile>, EntryError> {
        let mut file = self.below(name, follows, READ)?;
        for _ in 0..RACY_WAITS_MAX {
            let (now, step) = self.line.tick();
            if file.metadata.ctime < now {
                return Ok(Arc::new(file));
            }
            thread::sleep(step);
            file.metadata = file.now()?;
        }
        Err(file.changed(Operation::Open, "the file keeps changing"))
    }

    fn attributes(
        &self,
        name: &[u8],
        follows: bool,
    ) -> Result<(Metadata, EntryAttributes), EntryError> {
        let path = if name.is_empty() { self.path.clone() } else { self.entry(name) };
        self.line.ask((Operation::ReadXattr, &path), |user| match name {
            b"" => attributes_of(user, self.handle),
            name => with(user, (self.handle, name, follows), attributes_of),
        })
    }

    // Only a connection that takes time gains from requests ahead.
    fn enter_ahead(&self, _: &[&[u8]], _: Needs) {}
    fn look_ahead(&self, _: &[&[u8]], _: bool) {}
    fn announce(&self, _: &[&[u8]], _: bool) {}
}

impl RemoteFile for File {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn attributes(&self) -> Result<EntryAttributes, EntryError> {
        let read = |user: &mut User<'_>| Ok(attributes_of(user, self.handle)?.1);
        self.line.ask((Operation::ReadXattr, &self.path), read)
    }

    fn read(&self, at: u64, buffer: &mut [u8]) -> Result<usize, EntryError> {
        let about = (Operation::Read, &self.path);
        self.line.ask(about, |user| user.read(self.handle, at, buffer))
    }

    fn next_data(&self, at: u64) -> Result<NextData, EntryError> {
        self.line.ask((Operation::Read, &self.path), |user| match user.next_data(self.handle, at) {
            Ok(start) => {
                let end = user.next_hole(self.handle, start)?;
                Ok(NextData::Data(ByteRange { start, end }))
            }
            Err(Errno::NXIO) => Ok(NextData::End),
            Err(error) => Err(error),
        })
    }

    fn now(&self) -> Result<Metadata, EntryError> {
        self.line.ask((Operation::Stat, &self.path), |user| user.stat(self.handle))
    }

    fn digests(
        &self,
        shapes: &[Shape],
        start: u64,
        range: ByteRange,
        step: &mut dyn FnMut(u64) -> Result<(), EntryError>,
    ) -> Result<Vec<Vec<Digest>>, EntryError> {
        let mut all: Vec<_> = shapes.iter().map(|shape| Pieces::new(*shape, range.start)).collect();
        let (mut at, mut buffer) = (start + range.start, vec![0; BLOCK]);
        while at < start + range.end {
            let most = (start + range.end - at).min(BLOCK as u64) as usize;
            let read = self.read(at, &mut buffer[..most])?;
            if read == 0 {
                return Err(self.changed(Operation::Read, "the file shrank while it was read"));
            }
            for pieces in &mut all {
                pieces.update(&buffer[..read]);
            }
            at += read as u64;
            step(read as u64)?;
        }
        Ok(all.into_iter().map(Pieces::finish).collect())
    }
}
