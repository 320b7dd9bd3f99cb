//! File systems mounted below the roots of a job. Every host must see the same ones: a file system that is missing on
//! one host looks like an empty directory there.
use dmover_local::mounts::MountTable;
use dmover_local::submounts::{self, mount_table, sides};
use dmover_model::{Answer, CoordinatorRequest, Fatal, Identity, Metadata, MountedBelow, Side};
use dmover_plan::filter::Filter;
use dmover_schedule::time::Instant;
use std::path::Path;
use std::time::Duration;

use crate::context::Engine;
use crate::root_marks;

/// What the user can do if hosts differ.
const HINT: &str = "mount the same file system there on all hosts, or exclude it (--exclude)";

/// How often a mover checks whether mounts on its host have changed.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Whether a mount point belongs to the job. Every one in the destination does.
fn concerns(filter: &Filter, place: &MountedBelow, found: Option<&Metadata>) -> bool {
    place.side == Side::Destination
        || found.is_none_or(|found| filter.admits_below(&place.path, found))
}

/// The mount points below the roots on this host that belong to the job.
pub(crate) fn mounted_below(engine: &Engine) -> Vec<MountedBelow> {
    let table = mount_table();
    let roots = engine.places.roots.ids().filter_map(|id| Some((id, engine.root(id).ok()?)));
    let all =
        roots.flat_map(|(id, root)| submounts::mounted_below(seen_by(engine), &table, (id, &root)));
    let all = all.filter(|(place, found)| concerns(&engine.filter, place, found.as_ref()));
    all.map(|(place, _)| place).collect()
}

/// Which of a remote mover's mount points differ here.
pub(crate) fn other_places(engine: &Engine, theirs: &[MountedBelow]) -> Vec<bool> {
    let differs = |place: &MountedBelow| seen_at(engine, place) != place.found;
    theirs.iter().map(differs).collect()
}

/// The directory at a mount point on this host.
fn seen_at(engine: &Engine, place: &MountedBelow) -> Option<Identity> {
    let root = engine.root(place.root).ok()?;
    let (_, side) = sides(&root).find(|(side, _)| *side == place.side)?;
    submounts::seen_at(seen_by(engine), side, &place.path)
}

fn seen_by(engine: &Engine) -> (&Path, &MountTable) {
    (&engine.places.base, &engine.end.mounts)
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
        let below = Self { table: mount_table(), looked: Instant::now() };
        check_below(engine)?;
        Ok(below)
    }

    /// Checks again if mounts on this host have changed.
    pub fn look_again(&mut self, engine: &Engine) -> Result<(), Fatal> {
        if self.looked.elapsed() < LOOK_EVERY {
            return Ok(());
        }
        self.looked = Instant::now();
        let table = mount_table();
        if table == self.table {
            return Ok(());
        }
        self.table = table;
        root_marks::check_roots_again(engine)?;
        check_below(engine)
    }
}

/// Refuses to work if mounts below the roots differ from those of the coordinator.
fn check_below(engine: &Engine) -> Result<(), Fatal> {
    let unknown = || Fatal::unavailable("the coordinator does not answer", "the mover tries again");
    let Some(Answer::MountedBelow(theirs)) =
        engine.reports.coordinator.ask(|| CoordinatorRequest::MountedBelow)
    else {
        return Err(unknown());
    };
    for place in &theirs {
        if seen_at(engine, place) != place.found {
            return Err(refuse(
                engine,
                place,
                "does not have the file system that the coordinator's host \
                    has mounted there",
            ));
        }
    }
    let others: Vec<MountedBelow> =
        mounted_below(engine).into_iter().filter(|place| !theirs.contains(place)).collect();
    if others.is_empty() {
        return Ok(());
    }
    let Some(Answer::OtherPlaces(differ)) =
        engine.reports.coordinator.ask(|| CoordinatorRequest::OtherPlaces(others.clone()))
    else {
        return Err(unknown());
    };
    let other = others.iter().zip(differ).find(|(_, differs)| *differs);
    other.map_or(Ok(()), |(place, _)| {
        Err(refuse(
            engine,
            place,
            "has a file system mounted that the coordinator's host does not have there",
        ))
    })
}

fn refuse(engine: &Engine, place: &MountedBelow, what: &str) -> Fatal {
    let root = engine.root(place.root).ok();
    let side = root.as_ref().and_then(|root| sides(root).find(|(side, _)| *side == place.side));
    let shown = side.map(|(_, side)| side.display().join(&place.path)).unwrap_or_default();
    Fatal::refused(format!("'{}' {what}", shown.to_path().display()), HINT)
}
