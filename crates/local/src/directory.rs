//! Open directories of either end.
use dmover_model::{
    EntryError, EntryKind, ErrorClass, Identity, Metadata, Operation, PathBytes, Side, TreePath,
};
use dmover_observe::{Activity, activity};
use dmover_plan::acl;
use dmover_plan::history::Clocks;
use dmover_schedule::sync::OnceLock;
use dmover_sys::flags::{self, Project};
use dmover_sys::stat::ATTRIBUTE_MOUNT_ROOT;
use dmover_sys::xattr::{self, Held};
use dmover_sys::{AsFd, Errno, OwnedFd, directory, path, stat};
use dmover_tree::{Needs, RemoteDirectory};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::attributes::{DEFAULT_ACL, Object};
use crate::capability::Facts;
use crate::end::{Local, LocalEnd};
use crate::error::{CallFailed, entry_error};
use crate::handle::DirectoryHandle;
use crate::mounts::UNSEEN;
use crate::privilege::Privilege;
use crate::root_side::{RootNames, RootSide};
use crate::source_root::SourceRoot;

/// Where a directory is below its root, for messages.
#[derive(Debug, Clone)]
pub struct Place {
    names: Arc<RootNames>,
    path: TreePath,
}

impl Place {
    /// The directory at a path below a root.
    pub fn new(names: &Arc<RootNames>, path: TreePath) -> Self {
        Self { names: Arc::clone(names), path }
    }

    /// Its path below the root.
    pub fn path(&self) -> &TreePath {
        &self.path
    }

    /// The directory as a user would type it.
    pub fn own(&self) -> PathBytes {
        self.names.display.join(&self.path)
    }

    /// An entry of the directory as a user would type it.
    pub fn entry(&self, name: &[u8]) -> PathBytes {
        self.names.path(&self.path, name)
    }

    /// The place of a directory in this one.
    #[must_use]
    pub fn below(&self, name: &[u8]) -> Self {
        Self::new(&self.names, self.path.join(name))
    }

    /// The place of a directory further below.
    pub(crate) fn further(&self, below: &TreePath) -> Self {
        Self::new(&self.names, self.path.join_path(below))
    }

    /// Whether the root is a directory. Otherwise this one only contains the root, and is not of the job.
    pub(crate) fn is_of_job(&self) -> bool {
        self.names.is_directory
    }
}

/// A source directory, open for reading.
#[derive(Debug)]
pub struct SourceDirectory {
    pub(crate) handle: DirectoryHandle,
    /// Where it is.
    pub place: Place,
    /// Its metadata after opening, before anything was read.
    pub metadata: Metadata,
    /// The facts of its file system.
    pub facts: Arc<Facts>,
    /// The project id that copies of entries without one get, once determined.
    pub handed_down: OnceLock<Project>,
}

/// A destination directory, open for creating entries.
#[derive(Debug)]
pub struct TargetDirectory {
    pub(crate) fd: OwnedFd,
    /// Where it is.
    pub place: Place,
    /// Its metadata after opening.
    pub metadata: Metadata,
    /// The facts of its file system.
    pub facts: Arc<Facts>,
    /// Created by this task, so it is empty.
    pub fresh: bool,
    /// New entries inherit an ACL that their source does not have, which allows at most these permissions.
    pub default_acl: Option<u32>,
    /// It ignores case in names.
    pub folds_case: bool,
    /// Created by this job, so none of its attributes is the choice of another program.
    pub made: bool,
    /// Its metadata stays valid while this task holds it: no other task finishes it meanwhile.
    pub steady: bool,
    /// Its mode was changed to write into it, so it must be finished again.
    pub opened_up: bool,
    /// New entries inherit inode flags.
    pub hands_down_flags: bool,
    /// New entries inherit its project.
    pub hands_down_project: bool,
    /// Another file system is mounted here, or another part of this one.
    pub is_mount_root: bool,
    /// Its metadata before permissions or the owner were narrowed ahead of new entries; the change is counted.
    pub narrowed: Option<Box<Metadata>>,
}

impl SourceDirectory {
    /// Whether it is read through messages.
    pub fn is_remote(&self) -> bool {
        matches!(self.handle, DirectoryHandle::Remote(_))
    }

    /// These entries will be looked at soon. `follows`: at what a name is a symbolic link to.
    pub fn look_ahead(&self, names: &[&[u8]], follows: bool) {
        if let DirectoryHandle::Remote(directory) = &self.handle {
            directory.look_ahead(names, follows);
        }
    }

    /// These directories in it will be entered in this order, not through symbolic links, and all that is below each.
    pub fn enter_ahead<'n>(&self, names: impl Iterator<Item = &'n [u8]>, needs: Needs) {
        if let DirectoryHandle::Remote(directory) = &self.handle {
            directory.enter_ahead(&names.collect::<Vec<_>>(), needs);
        }
    }

    /// These files will be opened soon, in this order. `follows`: what a name is a symbolic link to.
    pub fn announce(&self, names: &[&[u8]], follows: bool) {
        if let DirectoryHandle::Remote(directory) = &self.handle
            && !names.is_empty()
        {
            directory.announce(names, follows);
        }
    }

    /// Another handle of the directory.
    ///
    /// # Errors
    /// It cannot be opened again.
    pub fn again(&self) -> Result<Self, CallFailed> {
        Ok(Self {
            handle: self.handle.again()?,
            place: self.place.clone(),
            metadata: self.metadata.clone(),
            facts: Arc::clone(&self.facts),
            handed_down: self.handed_down.clone(),
        })
    }
}

impl TargetDirectory {
    /// Created by this job and not finished: no other user can reach its entries, whatever their modes. Elsewhere than
    /// on the kernel's own file systems the mode may not decide alone.
    pub(crate) fn is_closed(&self, privilege: Privilege) -> bool {
        const OTHERS: u32 = 0o077;
        let own = self.metadata.uid == privilege.uid && self.metadata.mode & OTHERS == 0;
        self.made && self.steady && self.facts.local && own && self.default_acl.is_none()
    }

    /// A new file in it has the owner of the process, the requested mode and no flags, so its metadata need not be
    /// read.
    pub(crate) fn hands_down_nothing(&self, privilege: Privilege) -> bool {
        const SET_GID: u32 = 0o2000;
        let own = (self.metadata.uid, self.metadata.gid) == (privilege.uid, privilege.gid);
        let inherits = self.default_acl.is_some() || self.hands_down_flags;
        let plain = own && !inherits && self.metadata.mode & SET_GID == 0;
        self.made && self.steady && self.facts.local && plain
    }

    /// Another descriptor of the directory.
    ///
    /// # Errors
    /// It cannot be opened again.
    pub fn again(&self) -> Result<Self, CallFailed> {
        let (metadata, facts) = (self.metadata.clone(), Arc::clone(&self.facts));
        let (place, narrowed) = (self.place.clone(), self.narrowed.clone());
        let fd = path::open_directory_at(&self.fd, b".")?;
        Ok(Self { fd, place, metadata, facts, narrowed, ..*self })
    }

    /// Whether the directory above it is on the same device, as with a bind mount of a part of its own file system.
    ///
    /// # Errors
    /// The metadata of one of them cannot be read.
    pub fn is_on_device_above(&self) -> Result<bool, EntryError> {
        let fail = |e| entry_error(Side::Destination, Operation::Stat, self.place.own(), e);
        let found = stat::stat_fd(&self.fd).map_err(fail)?;
        let above = stat::stat_at(&self.fd, b"..", false).map_err(fail)?;
        Ok(above.device == found.device)
    }

    /// The most permissions that its default ACL gives to new entries, read anew.
    pub fn read_default_acl(&self) -> Option<u32> {
        handed_down(&self.fd)
    }

    /// The directory itself, to set its attributes.
    pub fn object<'a>(&'a self, shown: &'a dyn Fn() -> PathBytes) -> Object<'a> {
        Object {
            fd: self.fd.as_fd(),
            held: Held::Open,
            kind: EntryKind::Directory,
            facts: &self.facts,
            made: self.made,
            replaces: None,
            inherits: self.default_acl,
            place: None,
            path: shown,
        }
    }
}

/// Whose clocks set the times of entries in both directories.
pub fn clocks(source: &SourceDirectory, target: Option<&TargetDirectory>) -> Clocks {
    Clocks {
        source_is_local: source.facts.local,
        destination_is_local: target.is_some_and(|target| target.facts.local),
        source_skew: source.facts.clock_skew,
    }
}

/// The most permissions that the default ACL of a directory gives to new entries; `None` if it has none.
pub(crate) fn handed_down(directory: impl AsFd) -> Option<u32> {
    let acl = xattr::get(directory, Held::Open, DEFAULT_ACL).ok().flatten()?;
    Some(acl::creation_bits(&acl).unwrap_or(0o777))
}

impl LocalEnd {
    /// Opens the directory at a path below a root of the source. `follows`: the path may lead through symbolic links.
    ///
    /// # Errors
    /// It cannot be opened, or its file system has no files to copy.
    pub fn open_source(
        &self,
        root: &SourceRoot,
        at: &TreePath,
        follows: bool,
    ) -> Result<SourceDirectory, EntryError> {
        let place = Place::new(root.names(), at.clone());
        let side = match root {
            SourceRoot::Here(side) => side,
            SourceRoot::Remote { tree, names, .. } if !names.is_directory => {
                return Ok(remote_directory(tree.open_above()?, place));
            }
            SourceRoot::Remote { tree, .. } => {
                return Ok(remote_directory(tree.open(at, follows)?, place));
            }
        };
        self.open_below(side, at, follows, place)
    }

    /// Opens the directory at a path below a root of the source as it is now. On another host that is a request, whatever
    /// was read of the directory before.
    ///
    /// # Errors
    /// As [`Self::open_source`].
    pub fn open_source_anew(
        &self,
        root: &SourceRoot,
        at: &TreePath,
        follows: bool,
    ) -> Result<SourceDirectory, EntryError> {
        match root {
            SourceRoot::Remote { tree, .. } => {
                let place = Place::new(root.names(), at.clone());
                Ok(remote_directory(tree.open_anew(at, follows)?, place))
            }
            SourceRoot::Here(_) => self.open_source(root, at, follows),
        }
    }

    /// A directory of a source that is read through messages, as its tree has told of it before; `None`: the tree does not tell
    /// of its directories, or is one of this host.
    pub fn told_source(
        &self,
        root: &SourceRoot,
        at: &TreePath,
        metadata: Metadata,
    ) -> Option<SourceDirectory> {
        let told = root.remote()?.told(at, metadata)?;
        let place = Place::new(root.names(), at.clone());
        Some(remote_directory(told, place))
    }

    fn open_below(
        &self,
        side: &RootSide,
        at: &TreePath,
        follows: bool,
        place: Place,
    ) -> Result<SourceDirectory, EntryError> {
        let relative = side.directory(at);
        let opened = if follows {
            path::open_directory_each(&side.parent, &relative)
        } else {
            path::open_directory_below(&side.parent, &relative)
        };
        let fd = opened.map_err(|e| entry_error(Side::Source, Operation::Open, place.own(), e))?;
        self.source_directory(fd, place)
    }

    /// Opens the directory that is a root of the source.
    ///
    /// # Errors
    /// It cannot be opened, or its file system has no files to copy.
    pub fn open_source_root(&self, root: &SourceRoot) -> Result<SourceDirectory, EntryError> {
        let place = Place::new(root.names(), TreePath::root());
        let side = match root {
            SourceRoot::Here(side) => side,
            SourceRoot::Remote { tree, .. } => {
                return Ok(remote_directory(tree.open(&TreePath::root(), false)?, place));
            }
        };
        let fd = path::open_again(&side.parent)
            .map_err(|e| entry_error(Side::Source, Operation::Open, place.own(), e))?;
        self.source_directory(fd, place)
    }

    /// Opens a directory in one of the source. `follows`: also through a symbolic link.
    ///
    /// # Errors
    /// It cannot be opened, or its file system has no files to copy.
    pub fn enter_source(
        &self,
        above: &SourceDirectory,
        name: &[u8],
        follows: bool,
    ) -> Result<SourceDirectory, EntryError> {
        activity::at(Activity::SourceNames);
        let place = above.place.below(name);
        let above = match &above.handle {
            DirectoryHandle::Open(above) => above,
            DirectoryHandle::Remote(above) => {
                return Ok(remote_directory(above.enter(name, follows)?, place));
            }
        };
        let opened = if follows {
            path::open_directory_following(above, name)
        } else {
            path::open_directory_below(above, name)
        };
        let fd = opened.map_err(|e| entry_error(Side::Source, Operation::Open, place.own(), e))?;
        self.source_directory(fd, place)
    }

    /// The metadata of an entry of the source that need not be readable.
    ///
    /// # Errors
    /// It cannot be reached.
    pub fn pinned_metadata(
        &self,
        from: &SourceDirectory,
        name: &[u8],
    ) -> Result<Metadata, EntryError> {
        let fail = |e| entry_error(Side::Source, Operation::Open, from.place.entry(name), e);
        let from = match &from.handle {
            DirectoryHandle::Open(from) => from,
            DirectoryHandle::Remote(from) => return Ok(from.look(name, false)?.0),
        };
        let pinned = path::pin_at(from, name).map_err(fail)?;
        Ok(self.mounts.metadata(&stat::stat_fd(&pinned).map_err(fail)?))
    }

    /// The identity of the directory in which a root lies.
    ///
    /// # Errors
    /// Its metadata cannot be read.
    pub fn identity_above(&self, root: &RootSide, side: Side) -> Result<Identity, EntryError> {
        let found = stat::stat_fd(&root.parent)
            .map_err(|e| entry_error(side, Operation::Stat, PathBytes::default(), e))?;
        Ok(self.mounts.identity(&found))
    }

    /// The identity of the directory in which a root of the source lies.
    ///
    /// # Errors
    /// Its metadata cannot be read.
    pub fn identity_above_source(&self, root: &SourceRoot) -> Result<Identity, EntryError> {
        match root {
            SourceRoot::Here(side) => self.identity_above(side, Side::Source),
            SourceRoot::Remote { tree, .. } => Ok(tree.open_above()?.metadata().identity),
        }
    }

    /// Opens the directory that is a root of the destination.
    ///
    /// # Errors
    /// It cannot be opened, or its metadata cannot be read.
    pub fn open_target_root(&self, side: &RootSide) -> Result<TargetDirectory, EntryError> {
        let place = Place::new(&side.names, TreePath::root());
        let fd = path::open_directory_at(&side.parent, b".")
            .map_err(|e| entry_error(Side::Destination, Operation::Open, place.own(), e))?;
        self.target_directory(fd, false, place)
    }

    /// Describes a source directory that was just opened.
    ///
    /// # Errors
    /// Its metadata cannot be read, or its file system has no files to copy.
    fn source_directory(&self, fd: OwnedFd, place: Place) -> Result<SourceDirectory, EntryError> {
        let found = stat::stat_fd(&fd)
            .map_err(|e| entry_error(Side::Source, Operation::Stat, place.own(), e))?;
        let metadata = self.mounts.metadata(&found);
        refuse_unseen(Side::Source, &metadata, &place)?;
        let facts = self.capabilities.facts(metadata.identity.mount, &fd);
        if facts.pseudo {
            let words = "this is a pseudo file system without storage; skip it with -x";
            let class = ErrorClass::Unsupported;
            return Err(EntryError::plain(
                Side::Source,
                Operation::Open,
                class,
                place.own(),
                words,
            ));
        }
        let handle = DirectoryHandle::Open(fd);
        Ok(SourceDirectory { handle, place, metadata, facts, handed_down: OnceLock::new() })
    }

    /// Describes a destination directory that was just opened, or created if it is `fresh`.
    ///
    /// # Errors
    /// Its metadata cannot be read.
    pub(crate) fn target_directory(
        &self,
        fd: OwnedFd,
        fresh: bool,
        place: Place,
    ) -> Result<TargetDirectory, EntryError> {
        let found = stat::stat_fd(&fd)
            .map_err(|e| entry_error(Side::Destination, Operation::Stat, place.own(), e))?;
        let metadata = self.mounts.metadata(&found);
        refuse_unseen(Side::Destination, &metadata, &place)?;
        let facts = self.capabilities.facts(metadata.identity.mount, &fd);
        let bits = flags::get(&fd).ok().flatten();
        if bits.is_none() {
            facts.no_flags.store(true, Ordering::Relaxed);
        }
        let bits = bits.unwrap_or(0);
        Ok(TargetDirectory {
            default_acl: if fresh { None } else { handed_down(&fd) },
            folds_case: facts.case_insensitive || bits & flags::CASEFOLD != 0,
            hands_down_flags: bits & (flags::CARRIED | flags::PROJECT_INHERIT) != 0,
            hands_down_project: bits & flags::PROJECT_INHERIT != 0,
            is_mount_root: found.attributes & ATTRIBUTE_MOUNT_ROOT != 0,
            fd,
            place,
            metadata,
            facts,
            fresh,
            made: fresh,
            steady: false,
            opened_up: false,
            narrowed: None,
        })
    }
}

impl LocalEnd {
    /// Whether one of the directories above a source directory is sought.
    pub fn lies_below(
        &self,
        directory: &SourceDirectory,
        is_sought: impl Fn(Identity) -> bool,
    ) -> bool {
        // What is read through messages lies below nothing of this host.
        let Some(directory) = directory.handle.fd() else { return false };
        let mut above = path::open_directory_at(directory, b"..");
        let mut last = None;
        while let Ok(fd) = &above {
            let Ok(found) = stat::stat_fd(fd) else { return false };
            let identity = self.mounts.identity(&found);
            if is_sought(identity) {
                return true;
            }
            if last == Some(identity) {
                return false; // the root of all directories is its own parent
            }
            last = Some(identity);
            above = path::open_directory_at(fd, b"..");
        }
        false
    }
}

impl TargetDirectory {
    /// The target of a symbolic link.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn symlink(&self, name: &[u8]) -> Result<Vec<u8>, EntryError> {
        directory::read_symlink(&self.fd, name).map_err(|e| {
            entry_error(Side::Destination, Operation::ReadLink, self.place.entry(name), e)
        })
    }

    /// Whether it is known that there is no entry of this name.
    pub fn lacks(&self, name: &[u8]) -> bool {
        look_at(&self.fd, name).is_ok_and(|found| found.is_none())
    }
}

impl Local<'_> {
    /// Opens the directory at a path below a root of the destination; `None` in a dry run if it does not exist.
    ///
    /// # Errors
    /// It cannot be opened, or its metadata cannot be read.
    pub fn open_target(
        &self,
        side: &RootSide,
        at: &TreePath,
    ) -> Result<Option<TargetDirectory>, EntryError> {
        let place = Place::new(&side.names, at.clone());
        match path::open_directory_below(&side.parent, &side.directory(at)) {
            Err(error) if stat::is_absent(error) && self.rules.policy.dry_run => Ok(None),
            Err(error) => Err(entry_error(Side::Destination, Operation::Open, place.own(), error)),
            Ok(fd) => self.end.target_directory(fd, false, place).map(Some),
        }
    }
}

/// A directory of a source that is read through messages. Another clock than that of this host sets its times, and none of its
/// features can be used from here.
fn remote_directory(directory: Arc<dyn RemoteDirectory>, place: Place) -> SourceDirectory {
    let metadata = directory.metadata().clone();
    let facts = Arc::new(Facts::of_other_host(directory.clock_skew()));
    let handle = DirectoryHandle::Remote(directory);
    SourceDirectory { handle, place, metadata, facts, handed_down: OnceLock::new() }
}

/// Refuses a file system that the coordinator does not see, because it could not be identified to other movers.
fn refuse_unseen(side: Side, found: &Metadata, place: &Place) -> Result<(), EntryError> {
    if found.identity.mount != UNSEEN {
        return Ok(());
    }
    let words = "this file system is mounted on the mover's host but not on the coordinator's host";
    let class = ErrorClass::Unsupported;
    Err(EntryError::plain(side, Operation::Open, class, place.own(), words))
}

/// The metadata of the entry under a name, if there is one.
pub(crate) fn look_at(fd: impl AsFd, name: &[u8]) -> Result<Option<stat::Stat>, Errno> {
    match stat::stat_at(fd, name, false) {
        Ok(found) => Ok(Some(found)),
        Err(error) if stat::is_absent(error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A name as file systems that ignore case compare it, approximately: names that are equal here are not deleted.
pub fn fold(name: &[u8]) -> String {
    String::from_utf8_lossy(name).to_uppercase().to_lowercase()
}

/// What identifies a tree, whatever its path: its top directory, and when that was made.
pub fn tree_identity((found, born): &(stat::Stat, Option<(i64, u32)>)) -> Vec<u8> {
    let (seconds, nanoseconds) = born.unwrap_or_default();
    format!("{}:{seconds}.{nanoseconds:09}", found.inode).into_bytes()
}
