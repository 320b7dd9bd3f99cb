//! File systems that are mounted below the roots of a job: every host has to see the same ones, since what one does not see
//! looks like an empty directory, and what only one sees is nobody else's tree.
use dmover_model::{Identity, RootId, Side, TreePath};
use dmover_plan::overlap::parse_mountinfo;
use dmover_sys::stat::Stat;
use dmover_sys::{OwnedFd, mount, path, stat};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::context::Engine;
use crate::desk::{Answer, Question};
use crate::error::Fatal;
use crate::root::{Root, RootSide};

/// What is to be done where hosts differ.
const HINT: &str = "mount the same file system there on all hosts, or exclude it (--exclude)";

/// How often a mover looks whether its host has mounted anything.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A place below a root where something is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountedBelow {
    root: RootId,
    side: Side,
    path: TreePath,
    /// What is found there. `None`: nothing can be.
    found: Option<Identity>,
}

/// The directory that the paths of a root begin in, with what is mounted in it at present: the source is read through a clone
/// of its mounts, which stays as it was.
fn top_of(base: &Path, side: &RootSide) -> Option<OwnedFd> {
    path::open_directory(&base.join(side.display.to_path())).ok()
}

/// What lies at a path. Opening it has an automounter mount what is to be there.
fn look(top: &OwnedFd, at: &TreePath) -> Option<Stat> {
    let (above, name) = at.split_last()?;
    let above = path::open_directory_below(top, above.as_bytes()).ok()?;
    match path::open_directory_at(&above, name) {
        Ok(directory) => stat::stat_fd(&directory).ok(),
        Err(_) => stat::stat_at(&above, name, false).ok(),
    }
}

/// Places below a directory where something is mounted, as mountinfo has them.
fn places(table: &[u8], top: &OwnedFd) -> BTreeSet<TreePath> {
    let Some(real) = mount::path_of(top) else { return BTreeSet::new() };
    let lines = parse_mountinfo(table);
    // What an automounter has not mounted yet is mounted by whoever looks.
    let lines = lines.iter().filter(|line| line.file_system != "autofs");
    let below = lines.filter_map(|line| line.mount_point.strip_prefix(&real).ok());
    let paths = below.filter_map(|below| TreePath::new(below.as_os_str().as_bytes()).ok());
    paths.filter(|path| !path.is_root()).collect()
}

fn sides(root: &Root) -> impl Iterator<Item = (Side, &RootSide)> {
    let destination = root.destination.as_ref().map(|side| (Side::Destination, side));
    std::iter::once((Side::Source, &root.source)).chain(destination)
}

/// Everything that is mounted below a root.
fn mounted_below(
    engine: &Engine,
    table: &[u8],
    (id, root): (RootId, &Root),
) -> Vec<(MountedBelow, Option<Stat>)> {
    let mounts = &engine.mounts;
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
    /// Whether what is mounted at a place takes part in the job. Whatever is in the destination does.
    fn concerns(&self, place: &MountedBelow, stat: Option<&Stat>) -> bool {
        let own = stat.map(|stat| self.mounts.metadata(stat));
        place.side == Side::Destination
            || own.is_none_or(|own| self.filter.admits_below(&place.path, &own))
    }

    /// What is mounted below the roots here, as far as it takes part.
    pub(crate) fn mounted_below(&self) -> Vec<MountedBelow> {
        let table = mount::mountinfo();
        let roots = self.roots.ids().filter_map(|id| Some((id, self.root(id).ok()?)));
        let all = roots.flat_map(|(id, root)| mounted_below(self, &table, (id, &root)));
        let all = all.filter(|(place, stat)| self.concerns(place, stat.as_ref()));
        all.map(|(place, _)| place).collect()
    }

    /// Which of the places that a mover elsewhere has are not the same here.
    pub(crate) fn other_places(&self, theirs: &[MountedBelow]) -> Vec<bool> {
        let differs = |place: &MountedBelow| {
            let seen = self.seen_at(place);
            seen.map(|stat| self.mounts.identity(&stat)) != place.found
        };
        theirs.iter().map(differs).collect()
    }

    /// What is here at a place.
    fn seen_at(&self, place: &MountedBelow) -> Option<Stat> {
        let root = self.root(place.root).ok()?;
        let (_, side) = sides(&root).find(|(side, _)| *side == place.side)?;
        look(&top_of(&self.base, side)?, &place.path)
    }
}

/// Makes sure that a mover sees below the roots what its coordinator sees there, now and later.
pub(crate) struct Below {
    /// The table of mounts when it was looked at last, and when that was.
    table: Vec<u8>,
    looked: Instant,
}

impl Below {
    /// Looks for the first time.
    pub fn new(engine: &Engine) -> Result<Self, Fatal> {
        let below = Self { table: mount::mountinfo(), looked: Instant::now() };
        engine.check_below()?;
        Ok(below)
    }

    /// Looks again if anything was mounted here meanwhile, or is not any more.
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
    /// Refuses to work where something else is mounted below the roots than where the coordinator runs.
    fn check_below(&self) -> Result<(), Fatal> {
        let unknown =
            || Fatal::unavailable("the coordinator does not answer", "the mover tries again");
        let Some(Answer::MountedBelow(theirs)) = self.ask(|| Question::MountedBelow) else {
            return Err(unknown());
        };
        for place in &theirs {
            let seen = self.seen_at(place);
            if seen.map(|stat| self.mounts.identity(&stat)) != place.found {
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
        let Some(Answer::OtherPlaces(differ)) = self.ask(|| Question::OtherPlaces(others.clone()))
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
        let shown = side.map(|(_, side)| side.display.join(&place.path)).unwrap_or_default();
        Fatal::refused(format!("'{}' {what}", shown.to_path().display()), HINT)
    }
}
