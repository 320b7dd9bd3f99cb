//! File systems mounted below the roots of a job. Every host must see the same ones: a file system that is missing on
//! one host looks like an empty directory there.
use dmover_local::root::Root;
use dmover_local::root_side::RootSide;
use dmover_model::{Answer, CoordinatorRequest, Fatal, MountedBelow, RootId, Side, TreePath};
use dmover_plan::overlap::parse_mountinfo;
use dmover_sys::stat::Stat;
use dmover_sys::{OwnedFd, mount, path, stat};
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::context::Engine;

/// What the user can do if hosts differ.
const HINT: &str = "mount the same file system there on all hosts, or exclude it (--exclude)";

/// How often a mover checks whether mounts on its host have changed.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The base directory of a root with its present mounts: the source is read through a clone of its mounts, which does
/// not change.
fn top_of(base: &Path, side: &RootSide) -> Option<OwnedFd> {
    path::open_directory(&base.join(side.display().to_path())).ok()
}

/// The directory at a path. Opening it makes an automounter mount its file system.
fn look(top: &OwnedFd, at: &TreePath) -> Option<Stat> {
    let (above, name) = at.split_last()?;
    let above = path::open_directory_below(top, above.as_bytes()).ok()?;
    match path::open_directory_at(&above, name) {
        Ok(directory) => stat::stat_fd(&directory).ok(),
        Err(_) => stat::stat_at(&above, name, false).ok(),
    }
}

/// Mount points below a directory, from mountinfo.
fn places(table: &[u8], top: &OwnedFd) -> BTreeSet<TreePath> {
    let Some(real) = mount::path_of(top) else { return BTreeSet::new() };
    let lines = parse_mountinfo(table);
    // A file system that is not mounted yet is mounted by the automounter on access.
    let lines = lines.iter().filter(|line| line.file_system != "autofs");
    let below = lines.filter_map(|line| line.mount_point.strip_prefix(&real).ok());
    let paths = below.filter_map(|below| TreePath::new(below.as_os_str().as_bytes()).ok());
    paths.filter(|path| !path.is_root()).collect()
}

fn sides(root: &Root) -> impl Iterator<Item = (Side, &RootSide)> {
    let destination = root.destination.as_ref().map(|side| (Side::Destination, side));
    std::iter::once((Side::Source, &root.source)).chain(destination)
}

/// All mount points below a root.
fn mounted_below(
    engine: &Engine,
    table: &[u8],
    (id, root): (RootId, &Root),
) -> Vec<(MountedBelow, Option<Stat>)> {
    let mounts = &engine.end.mounts;
    let mut all = Vec::new();
    for (side, there) in sides(root).filter(|_| root.is_directory) {
        let Some(top) = top_of(&engine.base, there) else { continue };
        for path in places(table, &top) {
            let stat = look(&top, &path);
            let found = stat.as_ref().map(|stat| mounts.identity(stat));
            all.push((MountedBelow { root: id, side, path, found }, stat));
        }
    }
    all
}

impl Engine {
    /// Whether a mount point belongs to the job. Every one in the destination does.
    fn concerns(&self, place: &MountedBelow, stat: Option<&Stat>) -> bool {
        let own = stat.map(|stat| self.end.mounts.metadata(stat));
        place.side == Side::Destination
            || own.is_none_or(|own| self.filter.admits_below(&place.path, &own))
    }

    /// The mount points below the roots on this host that belong to the job.
    pub(crate) fn mounted_below(&self) -> Vec<MountedBelow> {
        let table = mount::mountinfo();
        let roots = self.roots.ids().filter_map(|id| Some((id, self.root(id).ok()?)));
        let all = roots.flat_map(|(id, root)| mounted_below(self, &table, (id, &root)));
        let all = all.filter(|(place, stat)| self.concerns(place, stat.as_ref()));
        all.map(|(place, _)| place).collect()
    }

    /// Which of a remote mover's mount points differ here.
    pub(crate) fn other_places(&self, theirs: &[MountedBelow]) -> Vec<bool> {
        let differs = |place: &MountedBelow| {
            let seen = self.seen_at(place);
            seen.map(|stat| self.end.mounts.identity(&stat)) != place.found
        };
        theirs.iter().map(differs).collect()
    }

    /// The directory at a mount point on this host.
    fn seen_at(&self, place: &MountedBelow) -> Option<Stat> {
        let root = self.root(place.root).ok()?;
        let (_, side) = sides(&root).find(|(side, _)| *side == place.side)?;
        look(&top_of(&self.base, side)?, &place.path)
    }
}

/// Checks that a mover sees the same mounts below the roots as its coordinator, at the start and later.
pub(crate) struct Below {
    /// The mount table at the last check, and its time.
    table: Vec<u8>,
    looked: Instant,
}

impl Below {
    /// Performs the first check.
    pub fn new(engine: &Engine) -> Result<Self, Fatal> {
        let below = Self { table: mount::mountinfo(), looked: Instant::now() };
        engine.check_below()?;
        Ok(below)
    }

    /// Checks again if mounts on this host have changed.
    pub fn look_again(&mut self, engine: &Engine) -> Result<(), Fatal> {
        if self.looked.elapsed() < LOOK_EVERY {
            return Ok(());
        }
        self.looked = Instant::now();
        let table = mount::mountinfo();
        if table == self.table {
            return Ok(());
        }
        self.table = table;
        engine.check_roots_again()?;
        engine.check_below()
    }
}

impl Engine {
    /// Refuses to work if mounts below the roots differ from those of the coordinator.
    fn check_below(&self) -> Result<(), Fatal> {
        let unknown =
            || Fatal::unavailable("the coordinator does not answer", "the mover tries again");
        let Some(Answer::MountedBelow(theirs)) = self.ask(|| CoordinatorRequest::MountedBelow)
        else {
            return Err(unknown());
        };
        for place in &theirs {
            let seen = self.seen_at(place);
            if seen.map(|stat| self.end.mounts.identity(&stat)) != place.found {
                return Err(self.refuse(
                    place,
                    "does not have the file system that the coordinator's host \
                        has mounted there",
                ));
            }
        }
        let others: Vec<MountedBelow> =
            self.mounted_below().into_iter().filter(|place| !theirs.contains(place)).collect();
        if others.is_empty() {
            return Ok(());
        }
        let Some(Answer::OtherPlaces(differ)) =
            self.ask(|| CoordinatorRequest::OtherPlaces(others.clone()))
        else {
            return Err(unknown());
        };
        let other = others.iter().zip(differ).find(|(_, differs)| *differs);
        other.map_or(Ok(()), |(place, _)| {
            Err(self.refuse(
                place,
                "has a file system mounted that the coordinator's host does not have there",
            ))
        })
    }

    fn refuse(&self, place: &MountedBelow, what: &str) -> Fatal {
        let root = self.root(place.root).ok();
        let side = root.as_ref().and_then(|root| sides(root).find(|(side, _)| *side == place.side));
        let shown = side.map(|(_, side)| side.display().join(&place.path)).unwrap_or_default();
        Fatal::refused(format!("'{}' {what}", shown.to_path().display()), HINT)
    }
}
