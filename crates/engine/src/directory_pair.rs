//! One directory on both sides, open: the scan reads from it, and the apply half writes into it.
use dmover_local::directory::{Place, clocks};
use dmover_local::error::CallFailed;
use dmover_local::root::Root;
use dmover_model::JobSpec;
use dmover_model::{
    DirectoryRef, EntryError, EntryRecord, ErrorClass, FileRef, FollowLinks, Identity, Operation,
    PathBytes, RootId, Side, TreePath, Verb,
};
use dmover_plan::history::Clocks;
use std::sync::Arc;

use crate::context::Engine;

pub(crate) use dmover_local::directory::{SourceDirectory, TargetDirectory};

/// A directory on both sides.
#[derive(Debug)]
pub(crate) struct DirectoryPair {
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

impl DirectoryPair {
    /// Whose clocks set the times of both directories.
    pub fn clocks(&self) -> Clocks {
        clocks(&self.source, self.target.as_ref())
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
    pub fn again(&self) -> Result<Self, CallFailed> {
        self.with_target(self.target.as_ref().map(TargetDirectory::again).transpose()?)
    }

    /// The same level with another destination directory.
    pub fn over(&self, other: &TargetDirectory) -> Result<Self, EntryError> {
        let place = Place::new(self.root.destination_names(), self.path.clone());
        let over = other.again().and_then(|mut other| {
            other.place = place;
            self.with_target(Some(other))
        });
        over.map_err(|e| e.at((Side::Destination, Operation::Open), self.own_target_path()))
    }

    fn with_target(&self, target: Option<TargetDirectory>) -> Result<Self, CallFailed> {
        Ok(Self {
            root_id: self.root_id,
            root: Arc::clone(&self.root),
            path: self.path.clone(),
            source: self.source.again()?,
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

/// Opens the directory of a task on both sides, and checks that it is unchanged.
pub(crate) fn open_level(engine: &Engine, at: &DirectoryRef) -> Result<DirectoryPair, EntryError> {
    open_level_in(engine, engine.root(at.root)?, at)
}

/// Opens the directory of a root that is not in the job's table.
pub(crate) fn open_level_in(
    engine: &Engine,
    root: Arc<Root>,
    at: &DirectoryRef,
) -> Result<DirectoryPair, EntryError> {
    let source = engine.insist(|| open_source(engine, &root, &at.path))?;
    let shown = || root.source.display().join(&at.path);
    check_identity(engine, Side::Source, source.metadata.identity, at.source, shown)?;
    let mut target = engine.until_seen(|| open_target(engine, &root, &at.path, at.destination))?;
    if let Some(target) = &mut target {
        target.made = at.made;
    }
    let base = open_base(engine, &at.path);
    Ok(DirectoryPair {
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
    _engine: &Engine,
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
    engine: &Engine,
    root: &Root,
    at: &TreePath,
) -> Result<SourceDirectory, EntryError> {
    engine.end.open_source(&root.source, at, engine.spec.follows_links())
}

/// Whether a scan only searches for entries that are not in the manifest.
pub(crate) fn looks_for_unknown(spec: &JobSpec, level: &DirectoryPair) -> bool {
    spec.verb == Verb::Verify && level.root.destination.is_none()
}

/// Whether a symbolic link in this directory is followed: all are, or it is a command-line argument.
pub(crate) fn follows(spec: &JobSpec, level: &DirectoryPair) -> bool {
    let argument = !level.root.is_directory && spec.selection.follow != FollowLinks::Never;
    spec.follows_links() || argument
}

pub(crate) fn open_target(
    engine: &Engine,
    root: &Root,
    at: &TreePath,
    expected: Identity,
) -> Result<Option<TargetDirectory>, EntryError> {
    let Some(destination) = &root.destination else { return Ok(None) };
    let Some(opened) = engine.local().open_target(destination, at)? else { return Ok(None) };
    let mut target = accept(engine, opened)?;
    // No task finishes the directory of a single entry, so it stays unchanged.
    if root.is_directory {
        target.opened_up = engine.local().open_up(&target)?;
    }
    if expected != Identity::default() {
        let is = target.metadata.identity;
        check_identity(engine, Side::Destination, is, expected, || target.place.own())?;
    }
    Ok(Some(target))
}

/// Accepts a destination directory that was just opened or created, and completes what is known of it.
pub(crate) fn accept(
    engine: &Engine,
    mut target: TargetDirectory,
) -> Result<TargetDirectory, EntryError> {
    if target.is_mount_root && engine.spec.verb == Verb::Sync {
        refuse_bound(engine, &target)?;
    }
    target.steady = engine.facts.directories_apart;
    if engine.dresses_by_record() {
        // It may get one at any time, when its record is dealt with.
        let known = if target.fresh { target.read_default_acl() } else { target.default_acl };
        target.default_acl = Some(known.unwrap_or(0o777));
    }
    Ok(target)
}

/// The directory of the base that corresponds to a directory of the job, opened from its parent if that is open.
pub(crate) fn open_base(engine: &Engine, place: &TreePath) -> Option<Box<TargetDirectory>> {
    let base = engine.pass.sharing.as_ref()?.base.as_ref()?;
    accept(engine, engine.end.open_base(&base.top, place)?).ok().map(Box::new)
}

pub(crate) fn enter_base(
    engine: &Engine,
    above: &DirectoryPair,
    name: &[u8],
) -> Option<Box<TargetDirectory>> {
    let above = above.base.as_ref()?;
    accept(engine, engine.end.enter_base(above, name)?).ok().map(Box::new)
}

/// Refuses a mount point in the destination at which a part of its own file system, or of the source's, is mounted:
/// entries written there also appear elsewhere, perhaps in the source itself.
fn refuse_bound(engine: &Engine, target: &TargetDirectory) -> Result<(), EntryError> {
    let shown = target.place.own();
    let mut roots = engine.places.roots.ids().filter_map(|id| engine.root(id).ok());
    if roots.any(|root| shown.below(root.written()).is_some_and(|below| below.is_root())) {
        return Ok(());
    }
    let is_bound = target.is_on_device_above()?;
    let mount = target.metadata.identity.mount;
    let mut roots = engine.places.roots.ids().filter_map(|id| engine.root(id).ok());
    if !is_bound && roots.all(|root| root.mount != mount) {
        return Ok(());
    }
    let words = "this is a bind mount: its files also have other paths";
    let (side, class) = (Side::Destination, ErrorClass::TypeConflict);
    Err(EntryError::plain(side, Operation::Open, class, shown, words))
}

/// Makes a directory writable that an earlier run has made immutable, or that is closed to its own owner.
///
/// Only for a directory that will be finished, which restores its flags.
pub(crate) fn lift_directory(engine: &Engine, level: &DirectoryPair) -> bool {
    let target = level.target.as_ref();
    target.is_some_and(|target| engine.local().lift_directory(&level.source, target))
}

/// The reference to an entry of a level for tasks.
pub(crate) fn file_ref(level: &DirectoryPair, record: &EntryRecord) -> FileRef {
    FileRef {
        directory: level.reference(),
        name: record.name.clone(),
        destination_name: record.destination_name().clone(),
    }
}
