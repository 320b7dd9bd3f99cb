//! A file of 1 TiB that holds 100 MiB: seconds to copy, and no more space than at the source.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use rand::Rng;

use super::run::Dmover;
use super::stage::random;
use super::{LaneOptions, LaneReport, rng};
use crate::compare::{CompareOptions, compare};
use crate::image::{FileSystem, Image};

const SIZE: u64 = 1 << 40;
const MIB: u64 = 1 << 20;
const EXTENTS: u64 = 100;
/// Blocks that differ by where extents happen to begin, and blocks of the map of them.
const SLACK: u64 = 2 << 20;
const SECONDS_MAX: u64 = 60;

/// Copies such a file on each file system, by every way of copying.
pub fn sparse(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("sparse");
    report.each_seed(options, |seed, report| {
        let mut failures = Vec::new();
        for file_system in [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs] {
            let Some(mounted) = Image::create_or_skip("lane sparse", file_system, 1 << 30) else {
                report.add("skipped", 1);
                continue;
            };
            make(&mounted.path().join("source"), seed)?;
            for flags in
                [&["--split-size=0"][..], &["--reflink=never"], &["--reflink=never", "-j4"]]
            {
                let found = copy(options, mounted.path(), flags, report)?;
                failures.extend(
                    found.into_iter().map(|line| format!("{file_system} {flags:?}: {line}")),
                );
            }
        }
        Ok(failures)
    });
    Ok(report)
}

fn make(directory: &Path, seed: u64) -> Result<()> {
    let mut rng = rng("sparse", seed);
    std::fs::create_dir(directory)?;
    let file = File::create(directory.join("large"))?;
    file.set_len(SIZE)?;
    for extent in 0..EXTENTS {
        let stride = SIZE / EXTENTS;
        // Anywhere in its part of the file, also across block borders.
        let offset = extent * stride + rng.random_range(0..stride - MIB);
        file.write_all_at(&random(MIB as usize, &mut rng), offset)?;
    }
    // Allocation that is delayed would not be counted yet.
    Ok(file.sync_all()?)
}

fn copy(
    options: &LaneOptions,
    root: &Path,
    flags: &[&str],
    report: &mut LaneReport,
) -> Result<Vec<String>> {
    let (source, target) = (root.join("source"), root.join("copy"));
    let dmover = Dmover::new(&options.program)?.patience(Duration::from_mins(10));
    let words = flags.iter().map(|flag| (*flag).into());
    let paths = [source.clone().into_os_string(), target.clone().into_os_string()];
    let run = dmover.copy(words.chain(paths).collect::<Vec<_>>())?;
    let mut failures = Vec::new();
    if run.code() != Some(0) {
        failures.push(run.tell());
    }
    report.add("copies", 1);
    report.most("seconds_max", run.elapsed.as_secs());
    if run.elapsed.as_secs() > SECONDS_MAX {
        failures.push(format!("took {:?}", run.elapsed));
    }
    let slack = CompareOptions { allocation_slack_bytes: SLACK, ..CompareOptions::default() };
    let differences = compare(&source, &target, &slack)?;
    failures.extend(differences.iter().map(ToString::to_string));
    let allocated =
        |path: &Path| -> Result<u64> { Ok(path.join("large").metadata()?.blocks() * 512) };
    let (ours, theirs) = (allocated(&source)?, allocated(&target)?);
    report.most("allocated_more_kib_max", theirs.saturating_sub(ours) >> 10);
    if theirs + SLACK < ours {
        failures.push(format!("{theirs} bytes are allocated and not {ours}"));
    }
    std::fs::remove_dir_all(&target)?;
    Ok(failures)
}
