//! Names that change places between passes, some of which are killed: both sides end equal, also where nothing but the
//! inode tells two files from each other, and what was only renamed is not sent again.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use super::check::leftovers;
use super::run::Dmover;
use super::{LaneOptions, LaneReport, MEANT, rng};
use crate::compare::{CompareOptions, compare};
use crate::image::FileSystem;
use crate::tree;

const SIZE: u64 = 512 << 20;
/// A file that stays where it is, so that the source is never empty.
const ALWAYS: &str = "always";

/// Runs passes between which names change places, on one file system after the other.
///
/// # Errors
/// What keeps it from running at all.
pub fn renames(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("renames");
    let all = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Tmpfs, FileSystem::Btrfs];
    let grounds = report.images(&all, SIZE);
    if grounds.is_empty() {
        return Ok(report);
    }
    report.each_seed(options, |seed, report| {
        let ground = &grounds[seed as usize % grounds.len()];
        let place = tempfile::tempdir_in(ground.path())?;
        let failures = one(options, seed, place.path(), report)?;
        let name = ground.file_system();
        tree::remove(&place.path().join("source"))?;
        Ok(failures.into_iter().map(|failure| format!("{name}: {failure}")).collect())
    });
    Ok(report)
}

/// All entries below a directory but the one that stays, in order.
fn entries(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            if fs::symlink_metadata(&path)?.is_dir() {
                left.push(path.clone());
            }
            if path.file_name().is_some_and(|name| name != ALWAYS) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn plant(rng: &mut ChaCha8Rng, source: &Path) -> Result<()> {
    fs::create_dir_all(source)?;
    fs::write(source.join(ALWAYS), "x")?;
    let mut directories = vec![source.to_owned()];
    for number in 0..rng.random_range(1..12) {
        let above = directories.choose(rng).context("the root")?;
        let directory = above.join(format!("d{number}"));
        fs::create_dir(&directory)?;
        directories.push(directory);
    }
    // Of half of the trees all files look alike but for what is in them.
    let alike = rng.random_bool(0.5);
    for number in 0..rng.random_range(1..40) {
        let path = directories.choose(rng).context("the root")?.join(format!("f{number}"));
        fs::write(&path, rng.random::<[u8; 32]>())?;
        if alike {
            let time = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
            fs::File::open(&path)?.set_modified(time)?;
        }
    }
    Ok(())
}

/// What cannot be done is not done: a directory that would go below itself, a name that is taken.
fn change(rng: &mut ChaCha8Rng, source: &Path) -> Result<()> {
    let all = entries(source)?;
    let (Some(one), Some(other)) = (all.choose(rng), all.choose(rng)) else { return Ok(()) };
    let mut directories = vec![source.to_owned()];
    directories.extend(all.iter().filter(|path| path.is_dir()).cloned());
    let into = directories.choose(rng).context("the root")?;
    match rng.random_range(0..100) {
        0..45 => {
            let number = rng.random_range(0..20);
            let own = one.file_name().map(PathBuf::from).unwrap_or_default();
            let name = if number < 10 { PathBuf::from(format!("n{number}")) } else { own };
            fs::rename(one, into.join(name)).ok();
        }
        45..65 => {
            let aside = source.join("aside");
            if fs::rename(one, &aside).is_ok() {
                fs::rename(other, one).ok();
                if fs::rename(&aside, other).is_err() {
                    fs::rename(&aside, source.join(format!("n{}", rng.random::<u32>()))).ok();
                }
            }
        }
        65..75 => {
            fs::create_dir(into.join(format!("new{}", rng.random_range(0..6)))).ok();
        }
        75..80 if one.is_dir() => fs::remove_dir_all(one)?,
        75..80 => fs::remove_file(one)?,
        80..90 if one.is_file() => {
            fs::write(one, vec![b'm'; rng.random_range(0..100)])?;
        }
        _ => {
            let path = into.join(format!("c{}", rng.random_range(0..50)));
            if fs::symlink_metadata(&path).is_err() {
                fs::write(&path, rng.random::<[u8; 33]>())?;
            }
        }
    }
    Ok(())
}

/// The copy of each file of the source, and the source's time of last write.
fn copies(source: &Path, copy: &Path) -> Result<HashMap<u64, (u64, i64, i64)>> {
    let mut found = HashMap::new();
    for path in entries(source)? {
        let new = fs::symlink_metadata(&path)?;
        let there = copy.join(path.strip_prefix(source)?);
        if let Some(old) = fs::symlink_metadata(there).ok().filter(|_| new.is_file()) {
            found.insert(new.ino(), (old.ino(), new.mtime(), new.mtime_nsec()));
        }
    }
    Ok(found)
}

fn one(
    options: &LaneOptions,
    seed: u64,
    place: &Path,
    report: &mut LaneReport,
) -> Result<Vec<String>> {
    let mut rng = rng("renames", seed);
    let (source, copy) = (place.join("source"), place.join("copy"));
    plant(&mut rng, &source)?;
    let dmover = Dmover::new(&options.program)?.patience(Duration::from_mins(2));
    let mut words: Vec<OsString> = vec!["sync".into(), "--json".into()];
    words.push(format!("-j{}", rng.random_range(1..=4)).into());
    let delete = ["--delete", "--delete=during", "--delete=after"];
    words.push((*delete.choose(&mut rng).context("a word")?).into());
    words.push(MEANT.into());
    words.extend([source.clone().into_os_string(), copy.clone().into_os_string()]);
    let first = dmover.run(&words)?;
    anyhow::ensure!(first.code() == Some(0), "{}", first.tell());
    let mut failures = Vec::new();
    for _ in 0..3 {
        let before = copies(&source, &copy)?;
        for _ in 0..rng.random_range(1..15) {
            change(&mut rng, &source)?;
        }
        let kills = if seed.is_multiple_of(2) { rng.random_range(0..4) } else { 0 };
        for _ in 0..kills {
            let moment = first.elapsed.mul_f64(rng.random_range(0.0..1.5));
            let run = dmover.start(&words)?.kill_after(moment)?;
            report.add("kills_that_hit", u64::from(run.signal() == Some(9)));
        }
        let run = dmover.run(&words)?;
        if run.code() != Some(0) {
            failures.push(run.tell());
            return Ok(failures);
        }
        let differences = compare(&source, &copy, &CompareOptions::default())?;
        failures.extend(differences.iter().map(|difference| format!("{difference}")));
        failures.extend(leftovers(&copy)?.iter().map(|left| format!("left: {}", left.display())));
        for (inode, now) in copies(&source, &copy)? {
            let Some(then) = before.get(&inode).filter(|then| (then.1, then.2) == (now.1, now.2))
            else {
                continue;
            };
            report.add(if then.0 == now.0 { "files_kept" } else { "files_sent_again" }, 1);
        }
    }
    Ok(failures)
}
