//! Trees that are read through messages and not through system calls: on another host, or in the memory of a test.
//!
//! A source that the host of the job mounts is read by `dmover-local`, with descriptors. Any other one implements the
//! three traits here, and everything else stays as it is: the target asks for content and attributes when it needs them.
//! Each call is at most one round trip. What was listed or announced before is answered without one.
use dmover_model::{
    ByteRange, ConnectionReport, Digest, EntryError, EntryKind, Fatal, FileSystemName, FollowLinks,
    HashType, LossKind, Metadata, PathBytes, Shape, TreePath, Version,
};
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use crate::remote_catalog::RemoteCatalog;

/// The type of an entry as its directory lists it, without a look at the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListedKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// Anything else that is known.
    Other,
    /// The file system does not say.
    Unknown,
}

/// An entry as a look shows it: its metadata, and the target of a symbolic link.
pub type Seen = (Metadata, Option<Vec<u8>>);

/// The attributes of an entry beyond its metadata: those that the job preserves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EntryAttributes {
    /// Extended attributes with ACLs and capabilities, but without those that belong to a file system.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Read from an entry that is not open for reading: it has neither flags nor a project.
    pub is_pinned: bool,
    /// The number of attributes of the file system that were left out.
    pub left_out: u32,
    /// Inode flags as `FS_IOC_GETFLAGS` returns them, of those that are carried over. `None`: the file system has none.
    pub flags: Option<u32>,
    /// The project id, and whether new entries of the directory get it.
    pub project: (u32, bool),
    /// The permissions of the owning group, if an ACL exists and the group bits of the mode are its mask.
    pub owning_group: Option<u32>,
    /// What could not be read.
    pub losses: Vec<(LossKind, String)>,
}

/// What will be needed of directories that will be entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Needs {
    /// All directories below them.
    pub goes_below: bool,
    /// The content of their regular files.
    pub opens_files: bool,
}

/// What follows at an offset of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NextData {
    /// Data in this range; what is before it is a hole.
    Data(ByteRange),
    /// Only a hole, up to the end.
    End,
    /// The file system does not report holes.
    Unknown,
}

/// What is at the root of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRoot {
    /// Its metadata; of what a symbolic link leads to, if links in arguments are followed.
    pub metadata: Metadata,
    /// Its path at its host without symbolic links, which identifies a job.
    pub canonical: PathBytes,
    /// Its name as it was typed, which its copy gets inside an existing directory. `None`: what was typed ends with `.`,
    /// `..` or `/`, or is empty.
    pub name: Option<Vec<u8>>,
    /// The root and the directories above it, so that a destination is found that is the same tree, inside it or above it.
    pub above: Vec<NamedObject>,
    /// A file system that should be mounted at the root, above it or in it, and is not.
    pub missing_mount: Option<PathBytes>,
}

/// An entry by names that are the same on every host that sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedObject {
    /// The names of its file system.
    pub file_systems: Vec<FileSystemName>,
    /// Its inode number.
    pub inode: u64,
}

impl NamedObject {
    /// Whether both are one entry.
    pub fn is(&self, other: &Self) -> bool {
        let shared = |name| other.file_systems.contains(name);
        self.inode == other.inode && self.file_systems.iter().any(shared)
    }
}

/// An owner by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Owner {
    /// A user.
    User(u32),
    /// A group.
    Group(u32),
}

/// One source that is read through messages.
pub trait RemoteTree: Debug + Send + Sync {
    /// What is at its root. It was looked at when the tree was opened.
    fn root(&self) -> &RemoteRoot;

    /// The root as a user would type it, with its host.
    fn display(&self) -> &PathBytes;

    /// Opens a directory at a path below the root; the root itself must be a directory. `follows`: the path may lead
    /// through symbolic links.
    ///
    /// # Errors
    /// It cannot be opened, or its file system has no files to copy.
    fn open(&self, at: &TreePath, follows: bool) -> Result<Arc<dyn RemoteDirectory>, EntryError>;

    /// Opens a directory at a path below the root, or the one that contains a root that is not a directory, as it is now.
    /// A tree that keeps what it has opened or read must not use that here: names are deleted because of the answer.
    ///
    /// # Errors
    /// As [`Self::open`].
    fn open_anew(
        &self,
        at: &TreePath,
        follows: bool,
    ) -> Result<Arc<dyn RemoteDirectory>, EntryError> {
        let is_directory = self.root().metadata.kind == EntryKind::Directory;
        if is_directory { self.open(at, follows) } else { self.open_above() }
    }

    /// Opens the directory that contains the root, which is not a directory. Only the root's name is used in it.
    ///
    /// # Errors
    /// It cannot be opened.
    fn open_above(&self) -> Result<Arc<dyn RemoteDirectory>, EntryError>;

    /// The most by which the clock that sets the times at its root may differ from the clock of this host; `None`: not
    /// known.
    fn clock_skew(&self) -> Option<Duration>;

    /// How long an answer takes, as it was when the tree was opened.
    fn round_trip(&self) -> Duration {
        Duration::ZERO
    }

    /// The name of a user or group at its host; `None`: it has none there.
    ///
    /// # Errors
    /// It cannot be asked for.
    fn owner_name(&self, owner: Owner) -> Result<Option<String>, EntryError>;

    /// What tells of it for a catalog of renames; `None`: the tree cannot do that.
    fn catalog(&self) -> Option<&dyn RemoteCatalog> {
        None
    }

    /// A directory that the catalog has told of, without asking for it again; `None`: it has to be opened.
    fn told(&self, _at: &TreePath, _metadata: Metadata) -> Option<Arc<dyn RemoteDirectory>> {
        None
    }

    /// Why nothing can be read any more; `None`: it can.
    fn lost(&self) -> Option<Fatal>;

    /// What is known of the connections to its hosts. Each has the name of the root at its host.
    fn connections(&self) -> Vec<(PathBytes, ConnectionReport)> {
        Vec::new()
    }
}

/// Opens trees that are read through messages.
pub trait RemoteTrees: Send + Sync {
    /// Opens a tree by its name in the job, such as `host:path`. `follow`: which symbolic links are followed.
    ///
    /// # Errors
    /// It cannot be reached, or nothing is there.
    fn open(&self, named: &PathBytes, follow: FollowLinks) -> Result<Arc<dyn RemoteTree>, Fatal>;

    /// Whether a path of the job names such a tree.
    fn names(&self, path: &PathBytes) -> bool;
}

/// An open directory.
pub trait RemoteDirectory: Debug + Send + Sync {
    /// Its metadata after opening, before anything was read.
    fn metadata(&self) -> &Metadata;

    /// The most by which the clock that sets the times of its entries may differ from the clock of this host; `None`: not
    /// known.
    fn clock_skew(&self) -> Option<Duration>;

    /// Opens a directory in it. `follows`: also through a symbolic link.
    ///
    /// # Errors
    /// It cannot be opened, or its file system has no files to copy.
    fn enter(&self, name: &[u8], follows: bool) -> Result<Arc<dyn RemoteDirectory>, EntryError>;

    /// These directories in it will be entered in this order, not through symbolic links, and all that is below each: they may
    /// be read before, as far as `needs` says.
    fn enter_ahead(&self, names: &[&[u8]], needs: Needs);

    /// Calls `each` with name, type and inode number of every entry, in the order of the file system, until it answers
    /// `false`. The first call of a directory brings the metadata of its entries along.
    ///
    /// # Errors
    /// It cannot be read to its end.
    fn list(&self, each: &mut dyn FnMut(&[u8], ListedKind, u64) -> bool) -> Result<(), EntryError>;

    /// Looks at an entry. `follows`: at what it is a symbolic link to.
    ///
    /// # Errors
    /// It is not there, or the directory cannot be searched.
    fn look(&self, name: &[u8], follows: bool) -> Result<Seen, EntryError>;

    /// Looks at many entries at once, as they are now: nothing that was told before is used.
    ///
    /// # Errors
    /// They cannot be asked for. Errors within are those of single entries.
    fn look_at_all(
        &self,
        names: &[&[u8]],
        follows: bool,
    ) -> Result<Vec<Result<Seen, EntryError>>, EntryError>;

    /// These entries will be looked at soon: what is not known of them from a list is asked for at once. `follows`: they will be
    /// looked at through symbolic links.
    fn look_ahead(&self, names: &[&[u8]], follows: bool);

    /// Opens a regular file, once its times can show a later change.
    ///
    /// # Errors
    /// It cannot be opened, is no regular file, or changes all the time.
    fn open_file(&self, name: &[u8], follows: bool) -> Result<Arc<dyn RemoteFile>, EntryError>;

    /// A file that was opened before with this version, without asking for it again; `None`: it is not known any more. Who reads it
    /// has to compare [`RemoteFile::now`] with the version afterwards.
    fn reopen_file(
        &self,
        _name: &[u8],
        _follows: bool,
        _version: &Version,
    ) -> Option<Arc<dyn RemoteFile>> {
        None
    }

    /// The attributes of an entry that is no regular file, and its metadata at that time. An empty name: of this directory.
    ///
    /// # Errors
    /// They cannot be read.
    fn attributes(
        &self,
        name: &[u8],
        follows: bool,
    ) -> Result<(Metadata, EntryAttributes), EntryError>;

    /// These regular files will be opened soon, in this order.
    fn announce(&self, names: &[&[u8]], follows: bool);
}

/// What a reader has of a range of an older version of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownBlocks {
    /// The range.
    pub range: ByteRange,
    /// The digests of its blocks, one behind the other. The last block may be shorter.
    #[serde(with = "serde_bytes")]
    pub digests: Vec<u8>,
}

impl KnownBlocks {
    /// The length of a block: the unit in which usual file systems change content.
    pub const BLOCK: u64 = 4 << 10;
    /// The length of a digest.
    pub const DIGEST: usize = 32;

    /// How the blocks of content of this length are hashed.
    pub fn shape(length: u64) -> Shape {
        Shape::plain(HashType::Blake3, length, Self::BLOCK)
    }

    /// Whether there is one digest for each block.
    pub fn is_complete(&self) -> bool {
        let blocks = self.range.len().div_ceil(Self::BLOCK);
        self.range.start <= self.range.end
            && Some(self.digests.len() as u64) == blocks.checked_mul(Self::DIGEST as u64)
    }
}

/// Takes blocks: their offset in the file, and their bytes. An error ends the work.
pub type TakeBlocks<'a> = dyn FnMut(u64, &[u8]) -> Result<(), EntryError> + 'a;

/// An open regular file. Several threads may read it.
pub trait RemoteFile: Debug + Send + Sync {
    /// Its metadata after opening.
    fn metadata(&self) -> &Metadata;

    /// Its attributes.
    ///
    /// # Errors
    /// They cannot be read.
    fn attributes(&self) -> Result<EntryAttributes, EntryError>;

    /// This range will be read in order. What is behind it may be read by others, so nothing of it has to be sent.
    fn will_read(&self, _range: ByteRange) {}

    /// Reads up to `buffer` bytes from an offset on; 0 at the end of the file. Reading on from where the last call ended
    /// needs no round trip.
    ///
    /// # Errors
    /// It cannot be read.
    fn read(&self, at: u64, buffer: &mut [u8]) -> Result<usize, EntryError>;

    /// What follows at an offset.
    ///
    /// # Errors
    /// It cannot be read.
    fn next_data(&self, at: u64) -> Result<NextData, EntryError>;

    /// Its present metadata, to be compared with that after opening.
    ///
    /// # Errors
    /// It cannot be read.
    fn now(&self) -> Result<Metadata, EntryError>;

    /// Reads the blocks whose digests differ from those that the caller has, in order; `false`: the end cannot do that,
    /// and nothing was read. The file must be at least as long as the ranges.
    ///
    /// # Errors
    /// It cannot be read, or is shorter by now, or `take`, which gets the offset and the bytes of blocks, has failed.
    fn read_changed(
        &self,
        _known: &[KnownBlocks],
        _take: &mut TakeBlocks<'_>,
    ) -> Result<bool, EntryError> {
        Ok(false)
    }

    /// The digests of the pieces of each shape in a range, where `start` is the offset of the content of the shapes.
    /// `step` is called with the number of bytes hashed since the last call, and can end the work.
    ///
    /// # Errors
    /// It cannot be read, or is shorter by now, or `step` has ended the work.
    fn digests(
        &self,
        shapes: &[Shape],
        start: u64,
        range: ByteRange,
        step: &mut dyn FnMut(u64) -> Result<(), EntryError>,
    ) -> Result<Vec<Vec<Digest>>, EntryError>;
}
