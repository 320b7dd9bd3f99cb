//! One directory on both sides, open: the scan reads from it, and the apply half writes into it.
use dmover_model::{
    DirectoryRef, EntryError, EntryRecord, ErrorClass, FileRef, FollowLinks, Identity, Metadata,
    Operation, PathBytes, RootId, Side, TreePath, Verb,
};
use dmover_plan::acl;
use dmover_plan::history::Clocks;
use dmover_sys::flags::Project;
use dmover_sys::stat::{ATTRIBUTE_MOUNT_ROOT, Stat};
use dmover_sys::xattr::Held;
use dmover_sys::{AsFd, Errno, OwnedFd, flags, path, set, stat, xattr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use crate::context::Engine;
use crate::root::Root;
use dmover_local::attributes::DEFAULT_ACL;
use dmover_local::capability::Facts;
use dmover_local::error::entry_error;
use dmover_local::mounts::UNSEEN;
use dmover_local::privilege::Privilege;

/// A source directory, open for reading.
#[derive(Debug)]
pub(crate) struct SourceDirectory {
    pub fd: OwnedFd,
    /// Its metadata after opening, before anything was read.
    pub metadata: Metadata,
    pub facts: Arc<Facts>,
    /// The project id that copies of entries without one get, once determined.
    pub handed_down: OnceLock<Project>,
}

/// A destination directory, open for creating entries.
#[derive(Debug)]
pub(crate) struct TargetDirectory {
    pub fd: OwnedFd,
    pub metadata: Metadata,
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
    /// Its metadata before permissions or the owner were narrowed ahead of new entries; the change is counted.
    pub narrowed: Option<Box<Metadata>>,
}

impl TargetDirectory {
    /// Created by this job and not finished: no other user can reach its entries, whatever their modes. Elsewhere than
    /// on the kernel's own file systems the mode may not decide alone.
    pub fn is_closed(&self, privilege: Privilege) -> bool {
        const OTHERS: u32 = 0o077;
        let own = self.metadata.uid == privilege.uid && self.metadata.mode & OTHERS == 0;
        self.made && self.steady && self.facts.local && own && self.default_acl.is_none()
    }

    /// A new file in it has the owner of the process, the requested mode and no flags, so its metadata need not be
    /// read.
    pub fn hands_down_nothing(&self, privilege: Privilege) -> bool {
        const SET_GID: u32 = 0o2000;
        let own = (self.metadata.uid, self.metadata.gid) == (privilege.uid, privilege.gid);
        let inherits = self.default_acl.is_some() || self.hands_down_flags;
        let plain = own && !inherits && self.metadata.mode & SET_GID == 0;
        self.made && self.steady && self.facts.local && plain
    }
}

impl TargetDirectory {
    /// Another descriptor of the directory.
    fn again(&self) -> Result<Self, Errno> {
        let (metadata, facts) = (self.metadata.clone(), Arc::clone(&self.facts));
        let narrowed = self.narrowed.clone();
        let fd = path::open_directory_at(&self.fd, b".")?;
        Ok(Self { fd, metadata, facts, narrowed, ..*self })
    }
}

/// A directory on both sides.
#[derive(Debug)]
pub(crate) struct Level {
    pub root_id: RootId,
    pub root: Arc<Root>,
    pub path: TreePath,
    pub source: SourceDirectory,
    /// `None` if nothing is written, or in a dry run if the directory does not exist.
    pub target: Option<TargetDirectory>,
    /// The same directory in the previous snapshot.
    pub base: Option<Box<TargetDirectory>>,
    /// Source directories above it, recorded only if links are followed.
    pub ancestors: Vec<Identity>,
}

impl Level {
    /// Whose clocks set the times of both directories.
    pub fn clocks(&self) -> Clocks {
        Clocks {
            source_is_local: self.source.facts.local,
            destination_is_local: self.target.as_ref().is_some_and(|target| target.facts.local),
        }
    }

    pub fn source_path(&self, name: &[u8]) -> PathBytes {
        self.root.source_path(&self.path, name)
    }

    pub fn target_path(&self, name: &[u8]) -> PathBytes {
        self.root.destination_path(&self.path, name)
    }

    /// The path of the directory at the source.
    pub fn own_source_path(&self) -> PathBytes {
        self.root.source.display().join(&self.path)
    }

    /// The path of the directory at the destination.
    pub fn own_target_path(&self) -> PathBytes {
        self.root.written().join(&self.path)
    }

    /// The same level with separate descriptors.
    pub fn again(&self) -> Result<Self, Errno> {
        self.with_target(self.target.as_ref().map(TargetDirectory::again).transpose()?)
    }

    /// The same level with another destination directory.
    pub fn over(&self, other: &TargetDirectory) -> Result<Self, Errno> {
        self.with_target(Some(other.again()?))
    }

    fn with_target(&self, target: Option<TargetDirectory>) -> Result<Self, Errno> {
        let source = SourceDirectory {
            fd: path::open_directory_at(&self.source.fd, b".")?,
            metadata: self.source.metadata.clone(),
            facts: Arc::clone(&self.source.facts),
            handed_down: self.source.handed_down.clone(),
        };
        Ok(Self {
            root_id: self.root_id,
            root: Arc::clone(&self.root),
            path: self.path.clone(),
            source,
            target,
            base: None,
            ancestors: self.ancestors.clone(),
        })
    }

    /// The reference to this directory for tasks.
    pub fn reference(&self) -> DirectoryRef {
        let destination = self.target.as_ref().map(|t| t.metadata.identity).unwrap_or_default();
        DirectoryRef {
            root: self.root_id,
            path: self.path.clone(),
            source: self.source.metadata.identity,
            destination,
            made: self.target.as_ref().is_some_and(|t| t.made),
            ancestors: self.ancestors.clone(),
        }
    }
}

impl Engine {
    /// Opens the directory of a task on both sides, and checks that it is unchanged.
    pub(crate) fn open_level(&self, at: &DirectoryRef) -> Result<Level, EntryError> {
        self.open_level_in(self.root(at.root)?, at)
    }

    /// Opens the directory of a root that is not in the job's table.
    pub(crate) fn open_level_in(
        &self,
        root: Arc<Root>,
        at: &DirectoryRef,
    ) -> Result<Level, EntryError> {
        let source = self.insist(|| self.open_source(&root, &at.path))?;
        let shown = || root.source.display().join(&at.path);
        self.check_identity(Side::Source, source.metadata.identity, at.source, shown)?;
        let mut target = self.until_seen(|| self.open_target(&root, &at.path, at.destination))?;
        if let Some(target) = &mut target {
            target.made = at.made;
        }
        let base = self.open_base(&at.path);
        Ok(Level {
            root_id: at.root,
            root,
            path: at.path.clone(),
            source,
            target,
            base,
            ancestors: at.ancestors.clone(),
        })
    }

    fn check_identity(
        &self,
        side: Side,
        is: Identity,
        expected: Identity,
        shown: impl FnOnce() -> PathBytes,
    ) -> Result<(), EntryError> {
        if is == expected {
            return Ok(());
        }
        let words = "another directory has replaced this one";
        Err(EntryError::plain(side, Operation::Open, ErrorClass::Escaped, shown(), words))
    }

    pub(crate) fn open_source(
        &self,
        root: &Root,
        at: &TreePath,
    ) -> Result<SourceDirectory, EntryError> {
        let shown = || root.source.display().join(at);
        let relative = if root.is_directory { root.source.relative(at) } else { Vec::new() };
        let opened = if self.follows_links() {
            // Links were asked to be followed, so a path may lead through them.
            path::open_directory_each(&root.source.parent, &relative)
        } else {
            path::open_directory_below(&root.source.parent, &relative)
        };
        let fd = opened.map_err(|e| entry_error(Side::Source, Operation::Open, shown(), e))?;
        self.source_directory(fd, shown)
    }

    pub(crate) fn follows_links(&self) -> bool {
        matches!(self.spec.selection.follow, FollowLinks::Always | FollowLinks::AlwaysLinked)
    }

    /// Whether a symbolic link in this directory is followed: all are, or it is a command-line argument.
    pub(crate) fn follows(&self, level: &Level) -> bool {
        let argument = !level.root.is_directory && self.spec.selection.follow != FollowLinks::Never;
        self.follows_links() || argument
    }

    /// Describes a source directory that was just opened.
    pub(crate) fn source_directory(
        &self,
        fd: OwnedFd,
        shown: impl Fn() -> PathBytes,
    ) -> Result<SourceDirectory, EntryError> {
        let found = stat::stat_fd(&fd)
            .map_err(|e| entry_error(Side::Source, Operation::Stat, shown(), e))?;
        let metadata = self.mounts.metadata(&found);
        self.refuse_unseen(Side::Source, &metadata, &shown)?;
        let facts = self.capabilities.facts(metadata.identity.mount, &fd);
        if facts.pseudo {
            let words = "this is a pseudo file system without storage; skip it with -x";
            let class = ErrorClass::Unsupported;
            return Err(EntryError::plain(Side::Source, Operation::Open, class, shown(), words));
        }
        Ok(SourceDirectory { fd, metadata, facts, handed_down: OnceLock::new() })
    }

    pub(crate) fn open_target(
        &self,
        root: &Root,
        at: &TreePath,
        expected: Identity,
    ) -> Result<Option<TargetDirectory>, EntryError> {
        let Some(destination) = &root.destination else { return Ok(None) };
        let shown = || destination.display().join(at);
        let relative = if root.is_directory { destination.relative(at) } else { Vec::new() };
        match path::open_directory_below(&destination.parent, &relative) {
            Err(error) if stat::is_absent(error) && self.spec.policy.dry_run => Ok(None),
            Err(error) => Err(entry_error(Side::Destination, Operation::Open, shown(), error)),
            Ok(fd) => {
                let mut target = self.target_directory(fd, false, shown)?;
                // No task finishes the directory of a single entry, so it stays unchanged.
                if root.is_directory {
                    target.opened_up = self.opened_up(&target, &shown)?;
                }
                if expected != Identity::default() {
                    let is = target.metadata.identity;
                    self.check_identity(Side::Destination, is, expected, shown)?;
                }
                Ok(Some(target))
            }
        }
    }

    /// Describes a destination directory that was just opened or created.
    pub(crate) fn target_directory(
        &self,
        fd: OwnedFd,
        fresh: bool,
        shown: impl Fn() -> PathBytes,
    ) -> Result<TargetDirectory, EntryError> {
        let fail = |operation, e| entry_error(Side::Destination, operation, shown(), e);
        let found = stat::stat_fd(&fd).map_err(|e| fail(Operation::Stat, e))?;
        let metadata = self.mounts.metadata(&found);
        self.refuse_unseen(Side::Destination, &metadata, &shown)?;
        if found.attributes & ATTRIBUTE_MOUNT_ROOT != 0 && self.spec.verb == Verb::Sync {
            self.refuse_bound(&fd, &found, &shown())?;
        }
        let facts = self.capabilities.facts(metadata.identity.mount, &fd);
        let mut target = TargetDirectory {
            fd,
            metadata,
            facts,
            fresh,
            default_acl: None,
            folds_case: false,
            made: fresh,
            steady: self.directories_apart,
            opened_up: false,
            hands_down_flags: false,
            hands_down_project: false,
            narrowed: None,
        };
        target.folds_case = target.facts.case_insensitive;
        if self.dresses_by_record() {
            // It may get one at any time, when its record is dealt with.
            target.default_acl = Some(handed_down(&target.fd).unwrap_or(0o777));
        } else if !fresh {
            target.default_acl = handed_down(&target.fd);
        }
        let bits = flags::get(&target.fd).ok().flatten();
        if bits.is_none() {
            target.facts.no_flags.store(true, Ordering::Relaxed);
        }
        let bits = bits.unwrap_or(0);
        target.hands_down_flags = bits & (flags::CARRIED | flags::PROJECT_INHERIT) != 0;
        target.hands_down_project = bits & flags::PROJECT_INHERIT != 0;
        target.folds_case |= bits & flags::CASEFOLD != 0;
        Ok(target)
    }

    /// Refuses a file system that the coordinator does not see, because it could not be identified to other movers.
    fn refuse_unseen(
        &self,
        side: Side,
        found: &Metadata,
        shown: impl Fn() -> PathBytes,
    ) -> Result<(), EntryError> {
        if found.identity.mount != UNSEEN {
            return Ok(());
        }
        let words =
            "this file system is mounted on the mover's host but not on the coordinator's host";
        Err(EntryError::plain(side, Operation::Open, ErrorClass::Unsupported, shown(), words))
    }

    /// Refuses a mount point in the destination at which a part of its own file system, or of the source's, is mounted:
    /// entries written there also appear elsewhere, perhaps in the source itself.
    fn refuse_bound(
        &self,
        fd: &OwnedFd,
        found: &Stat,
        shown: &PathBytes,
    ) -> Result<(), EntryError> {
        let fail = |e| entry_error(Side::Destination, Operation::Stat, shown.clone(), e);
        let mut roots = self.roots.ids().filter_map(|id| self.root(id).ok());
        if roots.any(|root| shown.below(root.written()).is_some_and(|below| below.is_root())) {
            return Ok(());
        }
        let above = stat::stat_at(fd, b"..", false).map_err(fail)?;
        let mount = self.mounts.identity(found).mount;
        let mut roots = self.roots.ids().filter_map(|id| self.root(id).ok());
        if above.device != found.device && roots.all(|root| root.mount != mount) {
            return Ok(());
        }
        let words = "this is a bind mount: its files also have other paths";
        let (side, class) = (Side::Destination, ErrorClass::TypeConflict);
        Err(EntryError::plain(side, Operation::Open, class, shown.clone(), words))
    }

    /// Makes a directory writable that an earlier run has made immutable, or that is closed to its own owner.
    ///
    /// Only for a directory that will be finished, which restores its flags.
    pub(crate) fn lift_directory(&self, level: &Level) -> bool {
        if !level.root.is_directory {
            return false;
        }
        let target = level.target.as_ref();
        if self.spec.verb == Verb::Sync && target.is_some_and(|t| self.open_up_now(t)) {
            return true;
        }
        let source = flags::get(&level.source.fd).ok().flatten().unwrap_or(0);
        let is_own = |t: &&TargetDirectory| {
            source & flags::LOCKS != 0 || self.history.is_own_lock(level.clocks(), &t.metadata)
        };
        target.filter(is_own).is_some_and(|t| self.attributes().lift_flags(t.fd.as_fd()))
    }

    /// Without privilege, gives the owner access to a directory of this user so that it can be filled; finishing it
    /// restores the mode of the source.
    pub(crate) fn opened_up(
        &self,
        target: &TargetDirectory,
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<bool, EntryError> {
        // A pass that changes nothing in a directory leaves it closed.
        if self.spec.verb == Verb::Sync && !target.fresh {
            return Ok(false);
        }
        let opened = self.open_up(target);
        opened.map_err(|e| entry_error(Side::Destination, Operation::SetMode, shown(), e))
    }

    /// Makes a directory writable from which an entry is removed.
    pub(crate) fn unlock_target(&self, target: &TargetDirectory) -> bool {
        self.open_up_now(target) || self.attributes().lift_flags(target.fd.as_fd())
    }

    /// Makes a directory writable that was left closed so far. Returns whether it was closed.
    fn open_up_now(&self, target: &TargetDirectory) -> bool {
        let found = stat::stat_fd(&target.fd).map(|found| self.mounts.metadata(&found));
        found.is_ok_and(|now| {
            let own = now.uid == self.privilege.uid && !self.privilege.privileged;
            own && now.mode & 0o300 != 0o300 && set::mode(&target.fd, now.mode | 0o700).is_ok()
        })
    }

    fn open_up(&self, target: &TargetDirectory) -> dmover_sys::Result<bool> {
        let own = target.metadata.uid == self.privilege.uid;
        let closed = target.metadata.mode & 0o300 != 0o300;
        if self.privilege.privileged || !own || !closed || self.spec.policy.dry_run {
            return Ok(false);
        }
        set::mode(&target.fd, target.metadata.mode | 0o700).map(|()| true)
    }
}

/// The most permissions that the default ACL of a directory gives to new entries; `None` if it has none.
pub(crate) fn handed_down(directory: impl AsFd) -> Option<u32> {
    let acl = xattr::get(directory, Held::Open, DEFAULT_ACL).ok().flatten()?;
    Some(acl::creation_bits(&acl).unwrap_or(0o777))
}

/// The reference to an entry of a level for tasks.
pub(crate) fn file_ref(level: &Level, record: &EntryRecord) -> FileRef {
    FileRef {
        directory: level.reference(),
        name: record.name.clone(),
        destination_name: record.destination_name().clone(),
    }
}
