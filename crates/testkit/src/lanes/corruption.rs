//! Corruption below the page cache: bits that flip on the device, bytes that change places, blocks that become zeroes,
//! files that are cut or grow. Each has to be found, located within one leaf, and repaired from the source.
//!
//! Bytes change in the image behind the loop device, where neither the file system nor its page cache sees it. What is
//! right in the end is judged after unmounting, by reading the files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;

use super::lines::Line;
use super::run::{Dmover, Run};
use super::stage::random;
use super::{LaneOptions, LaneReport, rng};
use crate::image::{FileSystem, Image, Mounted, base_directory};
use crate::skip::skipped;

const IMAGE_BYTES: u64 = 512 << 20;
/// What a leaf has for files of these sizes.
const LEAF: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Files that are damaged for each seed.
const EACH: usize = 40;

/// What is done to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Flip,
    Swap,
    Zeroes,
    Cut,
    Grown,
}

const DAMAGE: [Damage; 5] =
    [Damage::Flip, Damage::Swap, Damage::Zeroes, Damage::Cut, Damage::Grown];

/// A tree and its copy in an image, with the manifest of the copy.
struct Stage {
    image: Mounted,
    directory: TempDir,
    dmover: Dmover,
    /// Names and contents.
    files: BTreeMap<String, Vec<u8>>,
}

/// Damages files of each seed, has them found and repaired.
pub fn corruption(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("corruption");
    let mut stages = Vec::new();
    // Blocks can be shared on the second, so that repairs take another way there.
    for file_system in [FileSystem::Ext4, FileSystem::Xfs] {
        match Image::create(file_system, IMAGE_BYTES) {
            Ok(image) => stages.push(Stage::new(options, image)?),
            Err(unavailable) => {
                report.add("skipped", 1);
                skipped("lane corruption", &unavailable.to_string());
            }
        }
    }
    if stages.is_empty() {
        return Ok(report);
    }
    report.each_seed(options, |seed, report| {
        let number = (seed / 2) as usize % stages.len();
        stages[number].experiment(seed, report)
    });
    Ok(report)
}

impl Stage {
    fn new(options: &LaneOptions, image: Mounted) -> Result<Self> {
        let directory =
            tempfile::Builder::new().prefix("corruption-").tempdir_in(base_directory()?)?;
        let dmover = Dmover::new(&options.program)?.in_directory(directory.path());
        let mut rng = rng("corruption", 0);
        let mut files = BTreeMap::new();
        let source = directory.path().join("source");
        for number in 0..56 {
            let size = match number % 7 {
                0..3 => rng.random_range(1..65_536),
                3..6 => rng.random_range(LEAF / 2..3 * LEAF),
                _ => rng.random_range(5 * LEAF..9 * LEAF),
            };
            let name = format!("d{}/f{number}", number % 5);
            let content = random(size as usize, &mut rng);
            let path = source.join(&name);
            fs::create_dir_all(path.parent().context("a directory")?)?;
            fs::write(&path, &content)?;
            files.insert(name, content);
        }
        let copy = image.path().join("copy");
        let copy = copy.to_str().context("a path in UTF-8")?;
        let line =
            ["copy", "-q", "-T", "--reflink=never", "--manifest", "manifest", "source", copy];
        ensure_code(&dmover.run(line)?, 0)?;
        Ok(Self { image, directory, dmover, files })
    }

    fn copy(&self, name: &str) -> PathBuf {
        self.image.path().join("copy").join(name)
    }

    fn experiment(&mut self, seed: u64, report: &mut LaneReport) -> Result<Vec<String>> {
        let mut rng = rng("corruption", seed);
        let mut names: Vec<String> = self.files.keys().cloned().collect();
        names.shuffle(&mut rng);
        names.truncate(EACH);
        rustix::fs::syncfs(File::open(self.image.path())?)?;
        let places = extents(&names.iter().map(|name| self.copy(name)).collect::<Vec<_>>())?;
        let mut expected = BTreeMap::new();
        for name in &names {
            // What a reader sees until the cache is let go of.
            let seen = fs::read(self.copy(name))?;
            ensure!(seen == self.files[name], "{name} was not right to begin with");
            let damage = DAMAGE[rng.random_range(0..DAMAGE.len())];
            let at = self.damage(name, damage, &places[&self.copy(name)], &mut rng)?;
            report.add(&format!("{damage:?}").to_lowercase(), 1);
            if !matches!(damage, Damage::Cut | Damage::Grown) {
                let hidden = fs::read(self.copy(name))? == seen;
                report.add("hidden by the page cache", hidden.into());
            }
            expected.insert(name.clone(), (damage, at));
        }
        let by_manifest = seed.is_multiple_of(2);
        let copy = self.image.path().join("copy");
        let copy = copy.to_str().context("a path in UTF-8")?.to_owned();
        let ways: [Vec<&str>; 2] = if by_manifest {
            [
                vec!["--manifest", "manifest", &copy],
                vec!["--repair", "--from", "source", "--manifest", "manifest", &copy],
            ]
        } else {
            [vec!["source", &copy], vec!["--repair", "source", &copy]]
        };
        let mut failures = Vec::new();
        let found = self.verify(&ways[0])?;
        let code = if by_manifest { 7 } else { 1 };
        if found.code() != Some(code) {
            failures.push(format!("not {code}: {}", found.tell()));
        }
        failures.extend(judge(&expected, &found.lines()?, &copy));
        let repaired = self.verify(&ways[1])?;
        if repaired.code() != Some(0) {
            failures.push(format!("not repaired: {}", repaired.tell()));
        }
        let cut = expected.iter().filter(|(_, (damage, _))| *damage == Damage::Cut);
        let cut = cut.map(|(name, (_, at))| self.files[name].len() as u64 - at).sum();
        let files = expected.len() as u64;
        failures.extend(count_leaves(&found, &repaired, (files, cut), report)?);
        failures.extend(self.compare()?);
        report.add("corruptions", expected.len() as u64);
        Ok(failures)
    }

    fn verify(&self, words: &[&str]) -> Result<Run> {
        let line = ["verify", "--json", "--direct-read"];
        self.dmover.run(line.iter().chain(words))
    }

    /// Damages a file; answers where.
    fn damage(
        &self,
        name: &str,
        damage: Damage,
        extents: &[Extent],
        rng: &mut ChaCha8Rng,
    ) -> Result<u64> {
        let (path, content) = (self.copy(name), &self.files[name]);
        let size = content.len() as u64;
        let at = rng.random_range(0..size);
        let device = |at| {
            let extent = extents.iter().find(|extent| extent.covers(at));
            extent.map(|extent| extent.physical + (at - extent.logical)).context("no extent")
        };
        let image = File::options().read(true).write(true).open(self.image.image())?;
        match damage {
            Damage::Flip => {
                let byte = content[at as usize] ^ (1 << rng.random_range(0..8));
                image.write_all_at(&[byte], device(at)?)?;
            }
            Damage::Swap => {
                // Two neighbours in one block that are not the same byte.
                let differ = |at: &u64| {
                    at % BLOCK + 1 < BLOCK
                        && at + 1 < size
                        && content[*at as usize] != content[*at as usize + 1]
                };
                let Some(at) = (at..size).chain(0..at).find(differ) else {
                    return self.damage(name, Damage::Flip, extents, rng);
                };
                let pair = [content[at as usize + 1], content[at as usize]];
                image.write_all_at(&pair, device(at)?)?;
                return Ok(at);
            }
            Damage::Zeroes => {
                let at = at - at % BLOCK;
                image.write_all_at(&vec![0; BLOCK as usize], device(at)?)?;
                return Ok(at);
            }
            Damage::Cut | Damage::Grown => {
                let modified = fs::metadata(&path)?.modified()?;
                let file = File::options().write(true).open(&path)?;
                if damage == Damage::Cut {
                    file.set_len(at)?;
                } else {
                    file.write_all_at(&random(1 + (at % 10_000) as usize, rng), size)?;
                }
                file.set_modified(modified)?;
            }
        }
        Ok(at)
    }

    /// Reads what the device has in the end.
    fn compare(&mut self) -> Result<Vec<String>> {
        self.image.unmount()?;
        self.image.mount()?;
        let mut failures = Vec::new();
        for (name, content) in &self.files {
            let source = fs::metadata(self.directory.path().join("source").join(name))?;
            let copy = fs::metadata(self.copy(name))?;
            if fs::read(self.copy(name))? != *content {
                failures.push(format!("{name}: the content is not that of the source"));
            }
            let key = |found: &fs::Metadata| (found.mtime(), found.mtime_nsec(), found.mode());
            if key(&source) != key(&copy) {
                failures.push(format!("{name}: times or mode are others"));
            }
        }
        Ok(failures)
    }
}

/// Every file that was damaged has to be named, no other, and the place within a leaf.
fn judge(expected: &BTreeMap<String, (Damage, u64)>, lines: &[Line], copy: &str) -> Vec<String> {
    let mut failures = Vec::new();
    let mut named = BTreeSet::new();
    for line in lines.iter().filter(|line| line.is("difference")) {
        let path = line.path();
        let name = path.strip_prefix(copy).unwrap_or(&path).display().to_string();
        let Some((damage, at)) = expected.get(&name) else {
            failures.push(format!("{name} differs, and nothing was done to it: {}", line.0));
            continue;
        };
        named.insert(name.clone());
        let range = |range: &serde_json::Value| {
            let bound = |name: &str| range.get(name).and_then(serde_json::Value::as_u64);
            Some((bound("start")?, bound("end")?))
        };
        let ranges = line.0.get("ranges").and_then(serde_json::Value::as_array);
        let ranges: Vec<_> = ranges.into_iter().flatten().filter_map(range).collect();
        let bytes: u64 = ranges.iter().map(|(start, end)| end - start).sum();
        let located = ranges.iter().any(|(start, end)| (start..end).contains(&at));
        let in_place = matches!(damage, Damage::Flip | Damage::Swap | Damage::Zeroes);
        if in_place && !(located && bytes <= LEAF) {
            failures.push(format!("{name}: {damage:?} at {at} is not located: {}", line.0));
        }
        if !in_place && !line.0.to_string().contains("size") {
            failures.push(format!("{name}: {damage:?} at {at} is not named: {}", line.0));
        }
    }
    let missed = expected.iter().filter(|(name, _)| !named.contains(*name));
    failures.extend(missed.map(|(name, how)| format!("{name}: not found: {how:?}")));
    failures
}

/// How much was read again and written to repair.
fn count_leaves(
    found: &Run,
    repaired: &Run,
    (files, cut): (u64, u64),
    report: &mut LaneReport,
) -> Result<Vec<String>> {
    let number = |run: &Run, field: &str| -> Result<u64> {
        let summary = run.said()?.summary.context("no summary")?;
        summary.number(field).with_context(|| format!("no {field}"))
    };
    let again = number(repaired, "bytes_hashed")?.saturating_sub(number(found, "bytes_hashed")?);
    let written = number(repaired, "bytes_copied")?;
    report.add("KiB compared again", again >> 10);
    report.add("KiB written", written >> 10);
    report.most("KiB compared again for a damage, mean of a seed", (again / files) >> 10);
    // A cut file lacks all that follows the cut; what is damaged in place takes a leaf.
    let most = files * LEAF + cut;
    let mut failures = Vec::new();
    if written > most {
        failures.push(format!("{written} bytes were written, more than {most}"));
    }
    if again > 2 * most {
        failures.push(format!("{again} bytes were compared again, more than twice {most}"));
    }
    Ok(failures)
}

/// Where a part of a file lies on its device, in bytes.
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
}

impl Extent {
    fn covers(&self, at: u64) -> bool {
        (self.logical..self.logical + self.length).contains(&at)
    }
}

/// The extents of files, as `filefrag` of e2fsprogs tells them.
fn extents(paths: &[PathBuf]) -> Result<BTreeMap<PathBuf, Vec<Extent>>> {
    let output = Command::new("filefrag").args(["-v", "-b4096"]).args(paths).output()?;
    ensure!(output.status.success(), "filefrag: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let mut places: BTreeMap<PathBuf, Vec<Extent>> = BTreeMap::new();
    let mut of: Option<&Path> = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("File size of ") {
            of = paths.iter().map(PathBuf::as_path).find(|path| {
                path.to_str().is_some_and(|path| rest.starts_with(&format!("{path} is ")))
            });
            continue;
        }
        let numbers: Vec<u64> = line
            .split(|c: char| !c.is_ascii_digit())
            .filter(|word| !word.is_empty())
            .filter_map(|word| word.parse().ok())
            .collect();
        let (Some(path), [_, logical, _, physical, _, length, ..]) = (of, numbers.as_slice())
        else {
            continue;
        };
        if line.contains("inline") || line.contains("unwritten") || line.contains("delalloc") {
            bail!("{}: an extent without a place: {line}", path.display());
        }
        places.entry(path.to_owned()).or_default().push(Extent {
            logical: logical * BLOCK,
            physical: physical * BLOCK,
            length: length * BLOCK,
        });
    }
    Ok(places)
}

fn ensure_code(run: &Run, code: i32) -> Result<()> {
    ensure!(run.code() == Some(code), "not {code}: {}", run.tell());
    Ok(())
}
