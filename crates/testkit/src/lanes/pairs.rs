//! Fidelity: the hard-case tree on every ordered pair of file systems.
//!
//! Each pair gets two trees. The first holds only what both sides can: it has to arrive complete, without a word. The
//! second holds everything that the source's file system can: what does not arrive has to be named, and has to be
//! something that the destination's file system cannot hold.
#![allow(clippy::unnecessary_debug_formatting, reason = "names hold control characters")]

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::fs::IFlags;

use super::check::{Fingerprint, LinkGroups, Trees, leftovers, unexplained};
use super::lines::{Line, ReportItem};
use super::run::{Dmover, Run};
use super::{LaneOptions, LaneReport};
use crate::compare::{CompareOptions, Difference, compare, rsync_check, snapshot_atimes};
use crate::image::{FileSystem, Image, Mounted};
use crate::skip::skipped;
use crate::tree::{self, Features, HardTree, TreeOptions};

const SIZE: u64 = 768 << 20;
/// Ordinary entries beside the hard cases.
const ENTRIES: u64 = 400;
/// What a value may have on zfs-fuse.
const ZFS_XATTR_BYTES: usize = 1000;
/// An owner that some file systems take for "no change", and of which the generator cannot know.
const LAST_OWNER: &str = "4294967294";

/// One mounted file system and what it can hold.
struct Side {
    file_system: FileSystem,
    mounted: Mounted,
    features: Features,
}

/// Runs every pair once for each seed.
pub fn pairs(options: &LaneOptions) -> Result<LaneReport> {
    pairs_of(options, &FileSystem::ALL)
}

/// Runs every ordered pair of some file systems once for each seed.
pub fn pairs_of(options: &LaneOptions, file_systems: &[FileSystem]) -> Result<LaneReport> {
    let mut report = LaneReport::new("pairs");
    let mut sides = Vec::new();
    for file_system in file_systems {
        match Image::create(*file_system, SIZE) {
            Ok(mounted) => {
                let mut features = Features::probe(mounted.path())?;
                if *file_system == FileSystem::ZfsFuse {
                    // It takes longer values without an error, and keeps the first eight bytes.
                    features.xattr_bytes = features.xattr_bytes.min(ZFS_XATTR_BYTES);
                }
                sides.push(Side { file_system: *file_system, mounted, features });
            }
            Err(unavailable) => {
                report.add("skipped", 1);
                skipped("lane pairs", &unavailable.to_string());
            }
        }
    }
    report.each_seed(options, |seed, report| {
        let mut failures = Vec::new();
        for from in &sides {
            for to in &sides {
                let name = format!("{} to {}", from.file_system, to.file_system);
                let found = pair(options, seed, from, to, report).context(name.clone())?;
                failures.extend(found.into_iter().map(|failure| format!("{name}: {failure}")));
            }
        }
        Ok(failures)
    });
    Ok(report)
}

fn pair(
    options: &LaneOptions,
    seed: u64,
    from: &Side,
    to: &Side,
    report: &mut LaneReport,
) -> Result<Vec<String>> {
    let mut failures = Vec::new();
    for (words, tree) in trees(from, to) {
        let experiment = Experiment::new(options, seed, from, to, &tree)?;
        let found = experiment.run(report).context(words)?;
        experiment.remove()?;
        failures.extend(found.into_iter().map(|failure| format!("{words}: {failure}")));
    }
    report.add("pairs", 1);
    Ok(failures)
}

/// The trees for a pair: what both can hold, and what the source can if that is more.
fn trees(from: &Side, to: &Side) -> Vec<(&'static str, TreeOptions)> {
    let mut features = from.features.common(&to.features);
    if from.file_system != to.file_system {
        // btrfs shows this flag a second time as an attribute of its own.
        features.flags.remove(IFlags::COMPRESSED);
    }
    let without = std::iter::empty().collect();
    let common = TreeOptions { entries: ENTRIES, features, without };
    let full = TreeOptions { features: from.features.clone(), ..common.clone() };
    if common.features == full.features {
        return vec![("what both hold", common)];
    }
    vec![("what both hold", common), ("what the source holds", full)]
}

struct Experiment<'a> {
    dmover: Dmover,
    from: FileSystem,
    to: &'a Side,
    source: PathBuf,
    destination: PathBuf,
    /// Everything in the tree can be held by both sides.
    common: bool,
}

impl<'a> Experiment<'a> {
    fn new(
        options: &LaneOptions,
        seed: u64,
        from: &Side,
        to: &'a Side,
        tree: &TreeOptions,
    ) -> Result<Self> {
        let source = from.mounted.path().join("source");
        let full = from.file_system != to.file_system && tree.features == from.features;
        HardTree::generate(&source, seed, tree)?;
        let dmover = Dmover::new(&options.program)?;
        let destination = to.mounted.path().join("copy");
        Ok(Self { dmover, from: from.file_system, to, source, destination, common: !full })
    }

    fn remove(&self) -> Result<()> {
        tree::remove(&self.source)?;
        tree::remove(&self.destination)
    }

    fn copy(&self) -> Result<(Run, ReportItem)> {
        let words: [OsString; 2] = [self.source.clone().into(), self.destination.clone().into()];
        let run = self.dmover.copy(words)?;
        let said = run.said()?;
        Ok((run, said))
    }

    fn run(&self, report: &mut LaneReport) -> Result<Vec<String>> {
        let before = snapshot_atimes(&self.source)?;
        let (run, said) = self.copy()?;
        let after = snapshot_atimes(&self.source)?;
        let mut failures = Vec::new();
        let touched = before.differences(&after);
        if !self.atimes_move(&said) {
            failures.extend(touched.into_iter().map(|difference| format!("atime {difference}")));
        }
        report.add("entries", said.items.len() as u64);
        report.add("losses", said.losses.len() as u64);
        if said.summary.is_none() {
            failures.push(format!("no summary: {}", run.tell()));
        }
        failures.extend(self.fidelity(&run, &said)?);
        failures.extend(self.again(&said)?);
        let left = leftovers(&self.destination)?;
        failures.extend(left.iter().map(|path| format!("left over: {path:?}")));
        if self.common && said.errors.is_empty() {
            report.add("rsync_checks", 1);
            failures.extend(self.second_opinion(&said)?);
        }
        Ok(failures)
    }

    /// What the comparer finds has to be named, and nothing has to be named that could be held.
    fn fidelity(&self, run: &Run, said: &ReportItem) -> Result<Vec<String>> {
        let options = CompareOptions { atime: true, ..CompareOptions::default() };
        let differences = compare(&self.source, &self.destination, &options)?;
        let moving = self.atimes_move(said);
        let telling = |d: &Difference| !(self.holes_are_unknown(d) || moving && d.kind == "atime");
        let differences: Vec<Difference> = differences.into_iter().filter(telling).collect();
        let mut failures = Vec::new();
        if self.common && !said.losses.iter().any(|line| line.text("detail").contains(LAST_OWNER)) {
            failures.extend(differences.iter().map(ToString::to_string));
            failures.extend(said.losses.iter().map(|line| format!("needless loss {:?}", line.0)));
            if run.code() != Some(0) {
                failures.push(run.tell());
            }
            return Ok(failures);
        }
        let trees = Trees { source: &self.source, destination: &self.destination };
        failures.extend(unexplained(&differences, said, trees, &LinkGroups::of(&self.source)?));
        let errors = said.errors.iter().filter(|line| !self.may_fail(line.text("class")));
        failures.extend(errors.map(|line| format!("error {:?}", line.0)));
        let needless = differences.iter().filter(|difference| self.could_hold(difference));
        failures.extend(needless.map(|difference| format!("could be held: {difference}")));
        let incomplete = !said.errors.is_empty() || !said.losses.is_empty();
        let wanted = if incomplete { 3 } else { 0 };
        if run.code() != Some(wanted) {
            failures.push(format!("ended with {:?} and not with {wanted}", run.code()));
        }
        Ok(failures)
    }

    /// zfs-fuse sets access times whatever it is asked; that has to be said. Whoever looks at the source
    /// later then sees other times.
    fn atimes_move(&self, said: &ReportItem) -> bool {
        let admitted = said.notes.iter().any(|line| line.text("note") == "source_atime_touched");
        self.from == FileSystem::ZfsFuse && admitted
    }

    /// Where one side does not tell its holes they cannot be kept, only guessed; ZFS gives space to a
    /// file seconds after it was written.
    fn holes_are_unknown(&self, difference: &Difference) -> bool {
        let unknown = !self.to.features.holes || self.from == FileSystem::ZfsFuse;
        difference.kind == "allocation" && unknown
    }

    /// Targets of symlinks and numbers of devices have bounds that differ between file systems.
    fn may_fail(&self, class: &str) -> bool {
        let short_targets = self.to.features.symlink_bytes < 4095;
        match class {
            "name_too_long" => short_targets,
            "unsupported" | "too_large" => self.to.file_system == FileSystem::ZfsFuse,
            _ => false,
        }
    }

    /// Whether the destination's file system can hold what is missing.
    fn could_hold(&self, difference: &Difference) -> bool {
        let features = &self.to.features;
        match difference.kind.as_str() {
            "acl" => features.acl,
            "capability" => features.capability,
            "project" => features.project,
            "uid" | "gid" => features.owners && difference.source != LAST_OWNER,
            "hardlink" => features.hardlinks,
            "mtime" | "atime" => features.nanoseconds && self.time_fits(difference),
            "xattr" => {
                // The comparer shortens what it shows of a long value and says how long it was.
                let long =
                    difference.source.ends_with("characters)") && features.xattr_bytes < 65536;
                let foreign = difference.source.starts_with("btrfs.");
                features.user_xattr && !long && !foreign && difference.entry_type != "symlink"
            }
            "flags" => {
                let wanted = difference.source.split(',').filter(|flag| *flag != "none");
                wanted.into_iter().all(|flag| self.has_flag(flag))
            }
            "missing" | "target" => false,
            _ => true,
        }
    }

    fn has_flag(&self, name: &str) -> bool {
        let flag = match name {
            "immutable" => IFlags::IMMUTABLE,
            "append" => IFlags::APPEND,
            "nodump" => IFlags::NODUMP,
            "noatime" => IFlags::NOATIME,
            "sync" => IFlags::SYNC,
            "dirsync" => IFlags::DIRSYNC,
            "nocow" => IFlags::NOCOW,
            "compress" => IFlags::COMPRESSED,
            _ => IFlags::from_bits_retain(0x400),
        };
        self.to.features.flags.contains(flag)
    }

    fn time_fits(&self, difference: &Difference) -> bool {
        let (first, last) = self.to.features.far_times;
        let seconds = difference.source.parse::<i128>().map(|ns| ns.div_euclid(1_000_000_000));
        seconds.is_ok_and(|seconds| (i128::from(first)..=i128::from(last)).contains(&seconds))
    }

    /// rsync's view, where it can tell.
    fn second_opinion(&self, said: &ReportItem) -> Result<Vec<String>> {
        for root in [&self.source, &self.destination] {
            // It would read all the zeros between the data; the comparer has seen this file.
            let huge = root.join("huge/sparse-over-4g");
            if huge.exists() {
                std::fs::remove_file(huge)?;
            }
        }
        let lines = rsync_check(&self.source, &self.destination)?;
        let xfs = [self.from, self.to.file_system].contains(&FileSystem::Xfs);
        // XFS shows each ACL a second time as an attribute, which counts as one for rsync.
        let only_attributes =
            |line: &str| line.get(1..).is_some_and(|rest| rest.get(1..11) == Some("........x "));
        let only_atime =
            |line: &str| line.get(1..).is_some_and(|rest| rest.get(1..11) == Some("......u.. "));
        // Whoever looked before, at either side, has moved the access times there.
        let moving = [self.from, self.to.file_system].contains(&FileSystem::ZfsFuse);
        let lost_owner = said.losses.iter().any(|line| line.text("detail").contains(LAST_OWNER));
        let telling = lines.into_iter().filter(|line| {
            !(beyond_rsync(line)
                || xfs && only_attributes(line)
                || moving && only_atime(line)
                || lost_owner && line.contains(LAST_OWNER))
        });
        Ok(telling.map(|line| format!("rsync: {line}")).collect())
    }

    /// The same command changes nothing, since nothing is different or nothing more can be done. What the
    /// first run lost is still lost, and is said again.
    fn again(&self, first: &ReportItem) -> Result<Vec<String>> {
        let lost = !first.losses.is_empty();
        let before = Fingerprint::of(&self.destination)?.without_blocks();
        let (run, said) = self.copy()?;
        let mut failures = Vec::new();
        if said.losses.is_empty() && said.errors.is_empty() {
            let after = Fingerprint::of(&self.destination)?.without_blocks();
            // Directories follow the access times of the source, where reading it moves them.
            if !self.atimes_move(first) {
                failures.extend(before.changes(&after));
            }
            if run.code() != Some(if lost { 3 } else { 0 }) {
                failures.push(run.tell());
            }
        }
        // A time that the destination cannot hold looks different every time.
        let far = |item: &&Line| item.path().parent().is_some_and(|above| above.ends_with("times"));
        let acted = said.items.iter().filter(|item| item.text("action") != "skipped");
        let acted = acted.filter(|item| self.common || !far(item));
        failures
            .extend(acted.map(|item| format!("{} again: {:?}", item.text("action"), item.path())));
        Ok(failures.into_iter().map(|failure| format!("second run: {failure}")).collect())
    }
}

/// What rsync says about paths beyond `PATH_MAX`, which it cannot reach, and where a file was removed
/// for it.
fn beyond_rsync(line: &str) -> bool {
    line.starts_with("rsync")
        || line.starts_with("IO error encountered")
        || line.ends_with(" huge/")
}
