//! The trees of the lanes that interrupt copies: small, with every hard case that a copy can be interrupted in.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use rand::{Rng, RngCore};
use rand_chacha::ChaCha8Rng;
use rustix::fs::FileType;

use super::rng;
use super::run::Run;
use crate::image::Mounted;
use crate::tree::{self, Features, HardTree, TreeOptions, walk};

/// Groups of hard cases that only cost time here: the other lanes have them.
pub const WITHOUT: [&str; 4] = ["names", "deep", "long-path", "huge"];

/// Sizes of the files in `large`, which `--split-size 1M` cuts into chunks.
const LARGE: [u64; 4] = [5 << 20, (3 << 20) + 17, 2 << 20, (1 << 20) + 1];

/// Makes a source tree with ordinary entries, hard cases and a few large files.
pub fn source(
    root: &Path,
    seed: u64,
    features: &Features,
    entries: u64,
    without: &[&str],
) -> Result<()> {
    let without = without.iter().map(|group| (*group).to_owned()).collect();
    let options = TreeOptions { entries, features: features.clone(), without };
    HardTree::generate(root, seed, &options)?;
    let mut rng = rng("stage", seed);
    let large = root.join("large");
    std::fs::create_dir(&large)?;
    for (number, size) in LARGE.into_iter().enumerate() {
        write_random(&large.join(format!("file-{number}")), size, &mut rng)?;
    }
    std::fs::hard_link(large.join("file-2"), large.join("other-name"))?;
    let sparse = File::create(large.join("sparse"))?;
    sparse.set_len(6 << 20)?;
    sparse.write_all_at(&random(600_000, &mut rng), 2 << 20)?;
    for name in ["file-0", "file-1", "file-2", "file-3", "sparse"] {
        let past = SystemTime::UNIX_EPOCH + Duration::from_secs(rng.random_range(1..1 << 30));
        File::options().write(true).open(large.join(name))?.set_modified(past)?;
    }
    Ok(())
}

/// A mounted file system with a source that a group of seeds shares.
pub struct Ground {
    pub mounted: Mounted,
    features: Features,
    source_seed: Option<u64>,
}

impl Ground {
    pub fn new(mounted: Mounted) -> Result<Self> {
        let features = Features::probe(mounted.path())?;
        Ok(Self { mounted, features, source_seed: None })
    }

    pub fn source(&self) -> PathBuf {
        self.mounted.path().join("source")
    }

    /// Makes the source of this group of seeds, if it is not there yet. Answers whether it is new.
    pub fn renew(&mut self, source_seed: u64, entries: u64) -> Result<bool> {
        if self.source_seed == Some(source_seed) {
            return Ok(false);
        }
        if self.source_seed.take().is_some() {
            tree::remove(&self.source())?;
        }
        source(&self.source(), source_seed, &self.features, entries, &WITHOUT)?;
        self.source_seed = Some(source_seed);
        Ok(true)
    }

    /// Runs something that nobody disturbs, and takes away what it has made.
    pub fn measure(&self, run: impl FnOnce(&Path) -> Result<Run>) -> Result<Run> {
        let target = self.mounted.path().join("measured");
        let run = run(&target)?;
        anyhow::ensure!(run.code() == Some(0), "{}", run.tell());
        tree::remove(&target)?;
        Ok(run)
    }
}

/// Random bytes, none of which is zero.
pub fn random(length: usize, rng: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = vec![0; length];
    rng.fill_bytes(&mut bytes);
    bytes.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = 0xA5);
    bytes
}

fn write_random(path: &Path, size: u64, rng: &mut ChaCha8Rng) -> Result<()> {
    std::fs::write(path, random(size as usize, rng)).with_context(|| path.display().to_string())
}

/// What older versions a destination held before the copy, by path below its root.
pub type OldVersions = BTreeMap<PathBuf, Vec<u8>>;

/// Gives a destination older versions of some of the source's files, of other sizes and of the same.
pub fn plant_old_versions(
    source: &Path,
    destination: &Path,
    rng: &mut ChaCha8Rng,
) -> Result<OldVersions> {
    const SMALL_ENOUGH: u64 = 8 << 20;
    let mut candidates = Vec::new();
    walk::walk(source, &mut |entry| {
        let file = entry.file_type() == FileType::RegularFile;
        if file && entry.stat.st_nlink == 1 && (entry.stat.st_size as u64) < SMALL_ENOUGH {
            candidates.push((entry.path.to_owned(), entry.stat.st_size as u64));
        }
        Ok(())
    })?;
    let mut olds = BTreeMap::new();
    for (path, size) in candidates {
        let large = path.starts_with("large");
        if !rng.random_bool(if large { 0.7 } else { 0.25 }) {
            continue;
        }
        let length = if rng.random_bool(0.5) { size } else { rng.random_range(1..100_000) };
        let old = random(length as usize, rng);
        let target = destination.join(&path);
        std::fs::create_dir_all(target.parent().context("a file lies in a directory")?)?;
        std::fs::write(&target, &old)?;
        let past = SystemTime::UNIX_EPOCH + Duration::from_secs(100_000_000);
        File::options().write(true).open(&target)?.set_modified(past)?;
        olds.insert(path, old);
    }
    Ok(olds)
}

/// Files that are neither the old version nor the new one: what replaces a file has to come in one step.
pub fn torn_files(source: &Path, destination: &Path, olds: &OldVersions) -> Result<Vec<String>> {
    let mut torn = Vec::new();
    for (path, old) in olds {
        let name = path.display();
        let found = match std::fs::read(destination.join(path)) {
            Ok(found) => found,
            Err(error) => {
                torn.push(format!("{name}: the old version is gone ({error})"));
                continue;
            }
        };
        if found != *old && found != std::fs::read(source.join(path))? {
            let sizes = (old.len(), source.join(path).metadata()?.size(), found.len());
            torn.push(format!("{name}: neither the old version nor the new one; sizes {sizes:?}"));
        }
    }
    Ok(torn)
}
