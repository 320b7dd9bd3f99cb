//! Resolves paths of the user to open directories: the roots of a job, and the checks before it starts.
use dmover_model::{
    EntryKind, Fatal, FollowLinks, JobSpec, Metadata, MountId, Name, PathBytes, Placement,
    RangeCopy, RootId, TargetMode, TreePath, Verb,
};
use dmover_plan::overlap::{self, Between, Ends};
use dmover_sys::{Errno, OwnedFd, directory, mount, path, stat};
use dmover_tree::{RemoteTree, RemoteTrees};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod argument;
mod remote;
mod source_alone;

use crate::allowed_trees::AllowedTrees;
use crate::mounts::MountTable;
use crate::overlaps::{self, Overlap};
use crate::patient_open::past_leases;
use crate::root_side::{RootNames, RootSide};
use crate::source_root::SourceRoot;
use argument::Argument;

pub use source_alone::{SourceAlone, kind_of_path};

/// A source entry and its destination.
#[derive(Debug)]
pub struct Root {
    /// The end that is read.
    pub source: SourceRoot,
    /// `None`: nothing is written.
    pub destination: Option<RootSide>,
    /// The file system of the source entry, for `--one-file-system`.
    pub mount: MountId,
    /// Whether the source is a directory, in which paths of tasks start. Otherwise the root entry is a single name, and
    /// the empty path means the directories that contain it.
    pub is_directory: bool,
    /// Copy only these ranges of the file.
    pub range: Option<RangeCopy>,
    /// The path of the root entry below the base of the manifest.
    pub in_manifest: TreePath,
}

impl Root {
    /// The path of an entry in the manifest; without a name it is the directory.
    pub fn manifest_path(&self, directory: &TreePath, name: &[u8]) -> TreePath {
        if !self.is_directory {
            return self.in_manifest.clone();
        }
        let below = if name.is_empty() { directory.clone() } else { directory.join(name) };
        self.in_manifest.join_path(&below)
    }

    /// A source entry as a user would type it.
    pub fn source_path(&self, directory: &TreePath, name: &[u8]) -> PathBytes {
        self.source.names().path(directory, name)
    }

    /// A destination entry as a user would type it.
    pub fn destination_path(&self, directory: &TreePath, name: &[u8]) -> PathBytes {
        self.destination_names().path(directory, name)
    }

    /// The names of the destination; those of the source if nothing is written.
    pub fn destination_names(&self) -> &Arc<RootNames> {
        self.destination.as_ref().map_or_else(|| self.source.names(), |side| &side.names)
    }

    /// The path by which this host opens the destination; that of the source if nothing is written.
    pub fn written_here(&self) -> PathBytes {
        self.destination.as_ref().map_or_else(|| self.source.path_here(), RootSide::path_here)
    }

    /// The destination as a user would type it; the source if nothing is written.
    pub fn written(&self) -> &PathBytes {
        &self.destination_names().display
    }
}

/// A source as it was found.
#[derive(Clone, Copy)]
struct Found<'a> {
    display: &'a PathBytes,
    metadata: &'a Metadata,
    /// `None`: it is read through messages.
    here: Option<&'a Argument>,
}

fn refuse(display: &PathBytes, what: &str, hint: &str) -> Fatal {
    Fatal::refused(format!("'{}' {what}", display.to_path().display()), hint)
}

fn refuse_errno(display: &PathBytes, doing: &str, error: Errno, hint: &str) -> Fatal {
    let reason = std::io::Error::from(error);
    let hint = match error {
        Errno::MFILE => "raise 'ulimit -n', or name fewer directories",
        _ => hint,
    };
    Fatal::refused(format!("cannot {doing} '{}': {reason}", display.to_path().display()), hint)
}

/// The paths that identify a job: sources first, destination last. They are canonical, but for those on other hosts.
pub fn canonical_paths(spec: &JobSpec) -> Result<Vec<PathBuf>, Fatal> {
    let named = |path: &PathBytes| Ok(path.to_path());
    let canonical = |path: &PathBytes| {
        let argument = Argument::of(spec, Path::new(""), path);
        argument.map(|argument| argument.canonical)
    };
    if spec.sources_are_remote {
        let destination = std::iter::once(&spec.destination).filter(|path| !path.0.is_empty());
        return spec.sources.iter().map(named).chain(destination.map(canonical)).collect();
    }
    let all = spec.sources.iter().chain(std::iter::once(&spec.destination));
    all.filter(|p| !p.0.is_empty()).map(canonical).collect()
}

/// The roots of a job.
pub struct Resolved {
    /// One for each source.
    pub roots: Vec<Root>,
    /// How the destination was interpreted.
    pub placement: Placement,
    /// Paths in one root's target that belong to another root.
    pub meetings: OverlappingRoots,
    /// Canonical paths that are read.
    pub sources: Vec<PathBuf>,
    /// Canonical paths that are written.
    pub targets: Vec<PathBuf>,
}

/// Roots whose targets lie below that of another root, by that root and the path there.
pub type OverlappingRoots = HashMap<(RootId, TreePath), RootId>;

impl Resolved {
    /// Roots without further information.
    fn plain(roots: Vec<Root>) -> Self {
        let (placement, meetings) = (Placement::As, OverlappingRoots::default());
        Self { roots, placement, meetings, sources: Vec::new(), targets: Vec::new() }
    }

    /// The number of descriptors that are held during the job.
    pub fn descriptors(&self) -> u64 {
        let sides = self
            .roots
            .iter()
            .flat_map(|root| [root.source.here(), root.destination.as_ref()])
            .flatten();
        let held: HashSet<_> = sides.map(|side| Arc::as_ptr(&side.parent)).collect();
        held.len() as u64
    }
}

/// Open directories by path.
#[derive(Default)]
struct Shared(HashMap<PathBuf, Arc<OwnedFd>>);

impl Shared {
    /// Replaces the descriptor of the directory at `path` with an existing one.
    fn share(&mut self, path: Option<&Path>, side: &mut RootSide) {
        let Some(path) = path.filter(|_| side.name.is_some()) else { return };
        let held = self.0.entry(path.to_path_buf()).or_insert_with(|| Arc::clone(&side.parent));
        side.parent = Arc::clone(held);
    }
}

/// A root, with its paths for comparison with other roots.
struct Placed {
    root: Root,
    ends: Ends,
    /// The parent directory of the source.
    held_by: Option<PathBuf>,
}

/// Resolves every source of the job and checks it against the destination.
pub struct Resolver<'a> {
    /// The job.
    pub spec: &'a JobSpec,
    /// The job's numbers of file systems.
    pub mounts: &'a MountTable,
    /// The decision of an earlier run of the same command.
    pub remembered: Option<Placement>,
    /// Whether mounts may be cloned, so that access times stay as they are.
    pub privileged: bool,
    /// The base of relative paths; empty: the working directory.
    pub base: &'a Path,
    /// The trees in which roots may lie.
    pub bounds: &'a AllowedTrees,
    /// Sources that are read through messages.
    pub remote: Option<&'a dyn RemoteTrees>,
}

impl Resolver<'_> {
    fn argument(&self, typed: &PathBytes) -> Result<Argument, Fatal> {
        Argument::of(self.spec, self.base, typed)
    }

    /// The roots of the job, and how the destination was interpreted.
    pub fn resolve(&self) -> Result<Resolved, Fatal> {
        let destination = &self.spec.destination;
        // Once each: a connection serves a source to one reader.
        let trees = self.spec.sources.iter().map(|source| self.remote(source));
        let trees = trees.collect::<Result<Vec<_>, Fatal>>()?;
        let placement = self.placement(destination, &trees)?;
        let (mut roots, mut all) = (Vec::<Root>::new(), Vec::<Ends>::new());
        let mut targets = HashMap::new();
        let (mut sources, mut destinations) = (Shared::default(), Shared::default());
        for (source, tree) in self.spec.sources.iter().zip(trees) {
            let placed = self.root_of(tree, source, destination, placement)?;
            let Placed { mut root, ends, held_by } = placed;
            if let Some(other) = targets.get(&ends.target) {
                let other: &Root = &roots[*other];
                if other.source.display() == root.source.display() {
                    continue; // named twice
                }
                let what = format!(
                    "and '{}' have the same destination '{}'",
                    other.source.display().to_path().display(),
                    ends.target.display()
                );
                return Err(refuse(source, &what, "copy them into different directories"));
            }
            targets.insert(ends.target.clone(), roots.len());
            if let SourceRoot::Here(side) = &mut root.source {
                sources.share(held_by.as_deref(), side);
            }
            if let Some(destination) = &mut root.destination {
                destinations.share(ends.target.parent(), destination);
            }
            roots.push(root);
            all.push(ends);
        }
        let below = match overlap::between(&all) {
            Between::Beside(below) => below,
            Between::Overlapping(one, other) => {
                let other = roots[other].source.display().to_path();
                let what = format!("overlaps the source or destination of '{}'", other.display());
                let one = roots[one].source.display();
                return Err(refuse(one, &what, "copy them in separate runs"));
            }
        };
        let meet = |(upper, lower): (usize, usize)| {
            let at = all[lower].target.strip_prefix(&all[upper].target).ok()?;
            let at = TreePath::new(at.as_os_str().as_bytes()).ok()?;
            Some(((RootId(upper as u32), at), RootId(lower as u32)))
        };
        let meetings = below.into_iter().filter_map(meet).collect();
        let (sources, targets) = all.into_iter().map(|ends| (ends.source, ends.target)).unzip();
        Ok(Resolved { roots, placement, meetings, sources, targets })
    }

    /// The tree of a manifest, and the tree from which repairs are copied.
    pub fn resolve_checked(&self) -> Result<Resolved, Fatal> {
        let destination = &self.spec.destination;
        let mut roots = vec![self.directory(destination)?];
        for source in &self.spec.sources {
            roots.push(self.root(source, destination, Placement::As)?.root);
        }
        Ok(Resolved::plain(roots))
    }

    /// Directories that are only read.
    pub fn resolve_sources(&self) -> Result<Resolved, Fatal> {
        let sources = self.spec.sources.iter();
        let roots = sources.map(|source| self.directory(source)).collect::<Result<_, Fatal>>()?;
        Ok(Resolved::plain(roots))
    }

    fn directory(&self, source: &PathBytes) -> Result<Root, Fatal> {
        if let Some(tree) = self.remote(source)? {
            return Self::remote_alone(tree);
        }
        {
            let source = self.argument(source)?;
            let found = source
                .stat(true)
                .map_err(|e| refuse_errno(&source.display, "access", e, "check the path"))?
                .ok_or_else(|| refuse(&source.display, "does not exist", "check the path"))?;
            let metadata = self.mounts.metadata(&found);
            if metadata.kind != EntryKind::Directory {
                return Err(refuse(&source.display, "is not a directory", "check the path"));
            }
            let source = self.pin_source(source, &metadata, true)?;
            let mount = metadata.identity.mount;
            Ok(Root {
                source: SourceRoot::Here(source),
                destination: None,
                mount,
                is_directory: true,
                range: None,
                in_manifest: TreePath::root(),
            })
        }
    }

    /// One source and destination of a batch list, with cp's rule for existing directories.
    pub fn pair(
        &self,
        source: &PathBytes,
        destination: &PathBytes,
        range: Option<RangeCopy>,
    ) -> Result<(Root, Placement), Fatal> {
        // A directory of a list goes where the list says, so that the same list goes there again.
        let is_directory = self.argument(source)?.is_directory()?;
        let placement =
            if is_directory { Placement::As } else { self.placement_of(destination, 1)? };
        Ok((self.pair_as(source, destination, range, placement)?, placement))
    }

    /// One source and destination, when the interpretation of the destination is known.
    pub fn pair_as(
        &self,
        source: &PathBytes,
        destination: &PathBytes,
        range: Option<RangeCopy>,
        placement: Placement,
    ) -> Result<Root, Fatal> {
        let Placed { root, .. } = self.root(source, destination, placement)?;
        if root.is_directory && range.is_some() {
            return Err(refuse(source, "is a directory", "a byte range needs a regular file"));
        }
        Ok(Root { range, ..root })
    }

    fn placement(
        &self,
        destination: &PathBytes,
        trees: &[Option<Arc<dyn RemoteTree>>],
    ) -> Result<Placement, Fatal> {
        if self.spec.selection.list.is_some() {
            return Ok(Placement::As); // contents to contents, as rsync --files-from
        }
        if self.is_comparison() {
            return self.placement_of_compared(destination, trees);
        }
        match self.remembered {
            Some(placement) if self.spec.target_mode == TargetMode::Auto => Ok(placement),
            _ => self.placement_of(destination, self.spec.sources.len()),
        }
    }

    /// A comparison of trees: what DEST is decides each time, whatever an earlier run has found.
    fn is_comparison(&self) -> bool {
        self.spec.verb == Verb::Verify && self.spec.target_mode == TargetMode::Auto
    }

    /// A directory is compared with DEST itself, anything else with the entry of its name if DEST is a directory.
    fn placement_of_compared(
        &self,
        destination: &PathBytes,
        trees: &[Option<Arc<dyn RemoteTree>>],
    ) -> Result<Placement, Fatal> {
        let argument = self.argument(destination)?;
        let hint = "check the path; 'dmover copy' creates a DEST that does not exist";
        let found = argument.stat(false).and_then(|found| found.ok_or(Errno::NOENT));
        found.map_err(|e| refuse_errno(&argument.display, "read", e, hint))?;
        let has_directory = || -> Result<bool, Fatal> {
            for (source, tree) in self.spec.sources.iter().zip(trees) {
                let is_directory = match tree {
                    Some(tree) => tree.root().metadata.kind == EntryKind::Directory,
                    None => self.argument(source)?.is_directory()?,
                };
                if is_directory {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        let inside = argument.is_directory()? && !has_directory()?;
        Ok(if inside { Placement::Inside } else { Placement::As })
    }

    fn placement_of(&self, destination: &PathBytes, sources: usize) -> Result<Placement, Fatal> {
        let argument = self.argument(destination)?;
        let directory = argument.is_directory()?;
        match self.spec.target_mode {
            TargetMode::As if sources > 1 => {
                let hint = "use -t DIR, or copy one source at a time";
                Err(refuse(
                    &argument.display,
                    "is a single name and cannot hold several sources",
                    hint,
                ))
            }
            TargetMode::As => Ok(Placement::As),
            TargetMode::Into if directory => Ok(Placement::Inside),
            TargetMode::Into => {
                let hint = "create the directory, or use -T to copy to that name";
                Err(refuse(&argument.display, "is not an existing directory", hint))
            }
            TargetMode::Auto if directory => Ok(Placement::Inside),
            TargetMode::Auto if sources > 1 => {
                let hint = "several sources need an existing directory as destination";
                Err(refuse(&argument.display, "is not an existing directory", hint))
            }
            TargetMode::Auto => Ok(Placement::As),
        }
    }

    fn root(
        &self,
        source: &PathBytes,
        destination: &PathBytes,
        placement: Placement,
    ) -> Result<Placed, Fatal> {
        self.root_of(self.remote(source)?, source, destination, placement)
    }

    /// The same, if the source is open where it is read through messages.
    fn root_of(
        &self,
        tree: Option<Arc<dyn RemoteTree>>,
        source: &PathBytes,
        destination: &PathBytes,
        placement: Placement,
    ) -> Result<Placed, Fatal> {
        if let Some(tree) = tree {
            return self.remote_root(tree, source, destination, placement);
        }
        let source = self.argument(source)?;
        let follow = self.spec.selection.follow != FollowLinks::Never;
        let found = source
            .stat(follow)
            .map_err(|e| refuse_errno(&source.display, "access", e, "check the path"))?
            .ok_or_else(|| refuse(&source.display, "does not exist", "check the path"))?;
        let metadata = self.mounts.metadata(&found);
        self.check_kind(&source.display, source.slash, metadata.kind)?;
        let read = self.check_readable(&source, &metadata)?;
        let from = Found { display: &source.display, metadata: &metadata, here: Some(&source) };
        let target = self.checked_target(from, source.name.as_ref(), destination, placement)?;
        let held_by = source.canonical.parent().map(Path::to_path_buf);
        let ends = Ends { source: read, target: target.canonical.clone() };
        let source = SourceRoot::Here(self.pin_source(source, &metadata, false)?);
        let root = self.placed(source, &metadata, target, placement);
        Ok(Placed { root, ends, held_by })
    }

    /// Refuses what the command cannot do with an entry of this type.
    fn check_kind(&self, display: &PathBytes, slash: bool, kind: EntryKind) -> Result<(), Fatal> {
        let is_directory = kind == EntryKind::Directory;
        if is_directory && self.spec.policy.range.is_some() {
            let hint = "--offset, --length and --dst-offset copy part of one file";
            return Err(refuse(display, "is a directory", hint));
        }
        if slash && !is_directory {
            return Err(refuse(display, "is not a directory", "omit the trailing slash"));
        }
        let lists_paths = self.spec.selection.list.as_ref().is_some_and(|list| !list.pairs);
        if lists_paths && !is_directory {
            let hint = "with --files-from, SOURCE must be a directory";
            return Err(refuse(display, "is not a directory", hint));
        }
        Ok(())
    }

    /// The destination of a source. `name`: that of the source, which it gets inside a directory.
    fn checked_target(
        &self,
        from: Found<'_>,
        name: Option<&Name>,
        destination: &PathBytes,
        placement: Placement,
    ) -> Result<Argument, Fatal> {
        let target = self.target(name, destination, placement)?;
        // What is only compared may be read-only, or of another type.
        let repairs = self.spec.policy.verify.as_ref().is_some_and(|policy| policy.repair);
        let writes = self.spec.verb.fills() || repairs;
        let entry = target.name.as_ref().map(Name::as_bytes);
        if writes {
            self.bounds.check_target(&target.parent, entry)?;
        } else {
            self.bounds.check_source(&target.parent, entry)?;
        }
        if target.slash && from.metadata.kind != EntryKind::Directory {
            let hint = "create the directory first, or omit the trailing slash";
            return Err(refuse(&target.display, "is not an existing directory", hint));
        }
        if writes {
            self.check_target(from, &target)?;
        }
        Ok(target)
    }

    /// The root of a source and its destination.
    fn placed(
        &self,
        source: SourceRoot,
        metadata: &Metadata,
        target: Argument,
        placement: Placement,
    ) -> Root {
        let is_directory = metadata.kind == EntryKind::Directory;
        let names = Arc::new(target.named(is_directory));
        let parent = Arc::new(target.parent);
        let whole = placement == Placement::As && metadata.kind == EntryKind::Directory;
        let in_manifest = match &target.name {
            Some(name) if !whole => TreePath::root().join(name.as_bytes()),
            _ => TreePath::root(),
        };
        let destination = Some(RootSide { parent, name: target.name, names });
        let range = self.spec.policy.range.clone();
        let mount = metadata.identity.mount;
        Root { source, destination, mount, is_directory, range, in_manifest }
    }

    /// The destination of one source.
    fn target(
        &self,
        name: Option<&Name>,
        destination: &PathBytes,
        placement: Placement,
    ) -> Result<Argument, Fatal> {
        let typed = self.argument(destination)?;
        let opened = typed.open_directory();
        match placement {
            Placement::As => match opened {
                // An existing directory is entered here, so that a link to it that a person typed
                // is followed once and never again.
                Ok(directory) if self.enters_links(&typed) => self.inside(&typed, directory, None),
                _ => Ok(typed),
            },
            Placement::Inside => {
                let directory = opened
                    // One that may only be searched and written to.
                    .or_else(|e| if e == Errno::ACCESS { typed.reach() } else { Err(e) })
                    .map_err(|e| {
                        refuse_errno(&typed.display, "enter", e, "check the destination")
                    })?;
                self.inside(&typed, directory, name.cloned())
            }
        }
    }

    fn enters_links(&self, typed: &Argument) -> bool {
        let is_named = typed.name.is_some() && !typed.slash;
        self.spec.selection.list.is_some() || self.is_comparison() || !is_named
    }

    fn inside(
        &self,
        typed: &Argument,
        directory: OwnedFd,
        name: Option<Name>,
    ) -> Result<Argument, Fatal> {
        let mut canonical = mount::path_of(&directory).ok_or_else(|| {
            refuse(&typed.display, "cannot be resolved", "check that /proc is mounted")
        })?;
        let mut display = typed.display.clone();
        if let Some(name) = &name {
            canonical.push(OsStr::from_bytes(name.as_bytes()));
            display = display.join(&TreePath::root().join(name.as_bytes()));
        }
        let host = typed.host;
        Ok(Argument { parent: directory, name, canonical, display, host, slash: false })
    }

    /// Opens the source for a check; returns its real path if a link leads there.
    fn check_readable(&self, source: &Argument, metadata: &Metadata) -> Result<PathBuf, Fatal> {
        let follow = self.spec.selection.follow != FollowLinks::Never;
        let opened = match (metadata.kind, &source.name) {
            (EntryKind::Directory, _) => source.open_directory().map(Some),
            (EntryKind::File, Some(name)) => {
                let open = || path::open_file_at(&source.parent, name.as_bytes(), follow);
                past_leases(open, &|| false).map(Some)
            }
            _ => Ok(None),
        };
        let hint = "run as its owner or as root, or check the path";
        let opened = opened.map_err(|e| refuse_errno(&source.display, "read", e, hint))?;
        Ok(opened.and_then(mount::path_of).unwrap_or_else(|| source.canonical.clone()))
    }

    fn check_target(&self, from: Found<'_>, target: &Argument) -> Result<(), Fatal> {
        let existing = target
            .stat(false)
            .map_err(|e| refuse_errno(&target.display, "access", e, "check the destination"))?;
        let place = stat::file_system(&target.parent);
        if place.is_ok_and(|fs| fs.read_only) {
            let hint = "remount it read-write, or choose another destination";
            return Err(refuse(&target.display, "is on a read-only file system", hint));
        }
        if existing.is_none() && target.leads_nowhere() {
            let hint = "mount the file system that it leads to, or remove the link";
            return Err(refuse(&target.display, "is a dangling symbolic link", hint));
        }
        match existing.map(|found| self.mounts.metadata(&found)) {
            Some(old) => self.check_existing(from, target, &old)?,
            None => self.check_writable(target)?,
        }
        match from.here {
            Some(source) if from.metadata.kind == EntryKind::Directory => {
                self.check_overlap(source, target)
            }
            _ => Ok(()),
        }
    }

    fn check_existing(
        &self,
        Found { display, metadata, here }: Found<'_>,
        target: &Argument,
        old: &Metadata,
    ) -> Result<(), Fatal> {
        let ranges = self.spec.policy.range.is_some();
        // Another name of the source's inode can be replaced where a backup keeps it.
        let is_same = here.is_some_and(|source| is_same_entry(source, target));
        let is_apart = self.spec.policy.backup.is_some() && !is_same;
        if old.identity == metadata.identity && !ranges && !is_apart {
            let what = format!("and '{}' are the same entry", target.display.to_path().display());
            return Err(refuse(display, &what, "choose another destination"));
        }
        let (new_dir, old_dir) =
            (metadata.kind == EntryKind::Directory, old.kind == EntryKind::Directory);
        if new_dir && !old_dir {
            let what = format!("is a {}; a directory cannot replace it", old.kind.word());
            return Err(refuse(
                &target.display,
                &what,
                "move it away, or choose another destination",
            ));
        }
        let special =
            matches!(old.kind, EntryKind::CharDevice | EntryKind::BlockDevice | EntryKind::Fifo);
        if metadata.kind == EntryKind::File && special {
            let what = format!("is a {}; dmover does not replace it with a file", old.kind.word());
            let hint = "choose another destination, or remove it first";
            return Err(refuse(&target.display, &what, hint));
        }
        if !new_dir && old_dir {
            let what = "is a directory; a file cannot replace it";
            return Err(refuse(
                &target.display,
                what,
                "to copy into it, omit -T or add a slash; or choose another destination",
            ));
        }
        Ok(())
    }

    fn check_writable(&self, target: &Argument) -> Result<(), Fatal> {
        if directory::is_writable(&target.parent) {
            return Ok(());
        }
        let what = "cannot be created: its parent directory is not writable";
        Err(refuse(&target.display, what, "choose another destination, or get write permission"))
    }

    /// Refuses a destination inside or above the source, through any mount.
    fn check_overlap(&self, source: &Argument, target: &Argument) -> Result<(), Fatal> {
        let source_dir = source
            .open_directory()
            .map_err(|e| refuse_errno(&source.display, "read", e, "check the path"))?;
        let source_path = mount::path_of(&source_dir).unwrap_or_else(|| source.canonical.clone());
        let entered = target.open_directory().ok();
        let to_path = entered.as_ref().and_then(mount::path_of);
        let to_path = to_path.unwrap_or_else(|| target.canonical.clone());
        let from = (&source_dir, source_path.as_path());
        // An existing destination may be a mount of its own.
        let to = (entered.as_ref().unwrap_or(&target.parent), to_path.as_path());
        let one = self.spec.selection.one_file_system;
        let Some(Overlap { is_inside, layer }) = overlaps::find(from, to, one) else {
            return Ok(());
        };
        let (how, hint) = if is_inside {
            ("is inside", "choose a destination outside the source")
        } else {
            ("contains", "choose a destination that does not contain the source")
        };
        let by = |point: PathBuf| {
            format!(", through a layer of the overlay mounted on '{}'", point.display())
        };
        let by = layer.map(by).unwrap_or_default();
        let what = format!("{how} the source '{}'{by}", source.display.to_path().display());
        Err(refuse(&target.display, &what, hint))
    }

    /// Opens the source, if possible through a separate mount that never changes access times. `follow`: follow a link
    /// that the user named.
    fn pin_source(
        &self,
        source: Argument,
        metadata: &Metadata,
        follow: bool,
    ) -> Result<RootSide, Fatal> {
        let names = Arc::new(source.named(metadata.kind == EntryKind::Directory));
        let (mut parent, mut name) = (source.parent, source.name);
        let asked = self.spec.selection.follow != FollowLinks::Never;
        let follow = follow || asked || source.slash;
        if metadata.kind == EntryKind::Directory
            && let Some(entry) = &name
        {
            let opened = if follow {
                path::open_directory_following(&parent, entry.as_bytes())
            } else {
                path::open_directory_below(&parent, entry.as_bytes())
            };
            parent =
                opened.map_err(|e| refuse_errno(&names.display, "read", e, "check the path"))?;
            name = None;
        }
        // Checks the open directory: the owner of a directory above it may replace names at any time.
        self.bounds.check_source(&parent, name.as_ref().map(Name::as_bytes))?;
        // What is not proven gets another time.
        let marks = self.spec.policy.verify.as_ref().is_some_and(|policy| policy.marks_unproven);
        // A detached mount ends at its root, so links that lead out of it could not be followed.
        if self.privileged
            && !asked
            && !marks
            && let Some(quiet) = mount::quiet_clone(&parent)
        {
            parent = quiet;
        }
        Ok(RootSide { parent: Arc::new(parent), name, names })
    }
}

/// Whether both are one name in one directory, whatever the paths.
fn is_same_entry(one: &Argument, other: &Argument) -> bool {
    let directory = |of: &Argument| stat::stat_fd(&of.parent).ok().map(|at| (at.device, at.inode));
    let (first, second) = (directory(one), directory(other));
    one.name == other.name && (first == second || first.is_none() || second.is_none())
}
