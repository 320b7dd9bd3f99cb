//! Finds a destination inside or above a source: by its path, through bind mounts, or through layers of an overlay.
use dmover_plan::overlap::{FileSystemPath, MountLine, on_file_system, parse_mountinfo};
use dmover_plan::overlay::layers;
use dmover_sys::{OwnedFd, mount, path, stat};
use std::path::{Path, PathBuf};

/// An open directory and its canonical path.
type Pinned<'a> = (&'a OwnedFd, &'a Path);

/// How a destination overlaps with a source.
pub struct Overlap {
    /// The destination is inside the source; otherwise it contains the source.
    pub is_inside: bool,
    /// The mount point of the overlay that causes the overlap.
    pub layer: Option<PathBuf>,
}

/// A path on storage, and the overlay that has it in a layer.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    at: FileSystemPath,
    by: Option<PathBuf>,
}

/// Which layers of an overlay count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// All layers: changes in any of them may be visible.
    Read,
    /// The layer that receives changes.
    Written,
}

/// How `to`, or a new name in it, overlaps with `from`. `one`: nothing below a mount in `from` is read.
pub fn find(from: Pinned<'_>, to: Pinned<'_>, one: bool) -> Option<Overlap> {
    let mounts = parse_mountinfo(&mount::mountinfo());
    let (read, written) = (place(from.0, from.1, &mounts), place(to.0, to.1, &mounts));
    let same_device =
        read.as_ref().zip(written.as_ref()).is_some_and(|(a, b)| a.device == b.device);
    if to.1.starts_with(from.1) && (same_device || !one) {
        return Some(Overlap { is_inside: true, layer: None });
    }
    let read = behind(read, &mounts, Which::Read);
    let written = behind(written, &mounts, Which::Written);
    let below = if one { Vec::new() } else { overlays_below(from.1, &mounts) };
    let inside = |(read, written): &(&Shown, &Shown)| read.at.contains(&written.at);
    let overlap = |is_inside, (read, written): (&Shown, &Shown)| {
        let layer = read.by.as_ref().or(written.by.as_ref()).cloned();
        Overlap { is_inside, layer }
    };
    let pairs = |read| pairs(read, &written);
    if let Some(pair) = pairs(&read).chain(pairs(&below)).find(inside) {
        return Some(overlap(true, pair));
    }
    if from.1.starts_with(to.1) {
        return Some(Overlap { is_inside: false, layer: None });
    }
    let around = pairs(&read).find(|(read, written)| written.at.contains(&read.at));
    around.map(|pair| overlap(false, pair))
}

fn pairs<'a>(
    read: &'a [Shown],
    written: &'a [Shown],
) -> impl Iterator<Item = (&'a Shown, &'a Shown)> {
    read.iter().flat_map(move |read| written.iter().map(move |written| (read, written)))
}

/// A path, and the paths behind it if it lies on overlays.
fn behind(at: Option<FileSystemPath>, mounts: &[MountLine], which: Which) -> Vec<Shown> {
    let mut found: Vec<Shown> = at.into_iter().map(|at| Shown { at, by: None }).collect();
    let mut next = 0;
    while let Some(shown) = found.get(next) {
        next += 1;
        let numbers = stat::device_numbers(shown.at.device);
        let Some(line) = mounts.iter().find(|line| line.device == numbers) else { continue };
        let Some(layers) = layers(line) else { continue };
        let below = shown.at.path.strip_prefix("/").unwrap_or(&shown.at.path).to_owned();
        let lower = layers.lower.iter().filter(|_| which == Which::Read);
        for layer in layers.upper.iter().chain(lower).filter(|layer| layer.is_absolute()) {
            let Some(at) = place_of(layer, mounts) else { continue };
            let at = FileSystemPath { path: at.path.join(&below), ..at };
            if !found.iter().any(|known| known.at == at) {
                found.push(Shown { at, by: Some(line.mount_point.clone()) });
            }
        }
    }
    found
}

/// The paths behind overlays that are mounted below a directory.
fn overlays_below(directory: &Path, mounts: &[MountLine]) -> Vec<Shown> {
    let is_below = |line: &&MountLine| {
        line.file_system == "overlay" && line.mount_point.starts_with(directory)
    };
    let points = mounts.iter().filter(is_below);
    points
        .flat_map(|line| behind(place_of(&line.mount_point, mounts), mounts, Which::Read))
        .collect()
}

fn place_of(directory: &Path, mounts: &[MountLine]) -> Option<FileSystemPath> {
    let opened = path::open_directory(directory).ok()?;
    place(&opened, &mount::path_of(&opened)?, mounts)
}

/// The path of an open directory, or of a path in it, on its file system.
pub(crate) fn place(
    object: &OwnedFd,
    canonical: &Path,
    mounts: &[MountLine],
) -> Option<FileSystemPath> {
    let id = stat::mount_id(object)?;
    let device = stat::stat_fd(object).ok()?.device;
    on_file_system(canonical, mounts.iter().find(|m| m.id == id)?, device)
}
