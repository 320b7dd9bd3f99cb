//! Passes over a tree that somebody changes all the time, and one when it is quiet: then both sides are equal.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::check::leftovers;
use super::run::Dmover;
use super::{LaneOptions, LaneReport, MEANT, rng};
use crate::compare::{CompareOptions, compare};
use crate::image::{FileSystem, Mounted};
use crate::tree;

const SCRIPT: &str = include_str!("../../python/mutate_tree.py");
const SIZE: u64 = 512 << 20;
/// Ordinary entries at the start.
const FILES: u64 = 120;

/// Changes a tree until it is told to stop.
pub(super) struct Mutator {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Mutator {
    pub fn start(root: &Path, seed: u64, maps: bool) -> Result<Self> {
        let mut command = Command::new("python3");
        command.args(["-c", SCRIPT]).arg(root).arg(seed.to_string());
        if !maps {
            command.arg("nomap");
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("python3 is needed to change a tree")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = BufReader::new(output.context("it has an output")?);
        let mut mutator = Self { child, input, output };
        ensure!(mutator.line()?.trim() == "ready", "the mutator does not begin");
        Ok(mutator)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }

    /// Stops it; answers how many changes it has made.
    pub fn stop(mut self) -> Result<u64> {
        if let Some(mut input) = self.input.take() {
            input.write_all(b"\n")?;
        }
        let changes = self.line()?.trim().parse().context("a number of changes")?;
        ensure!(self.child.wait()?.success(), "the mutator failed");
        Ok(changes)
    }
}

impl Drop for Mutator {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Runs passes over trees that change, on one file system after the other.
///
/// # Errors
/// What keeps it from running at all.
pub fn live(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("live");
    let all = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Tmpfs, FileSystem::Btrfs];
    let grounds = report.images(&all, SIZE);
    if grounds.is_empty() {
        return Ok(report);
    }
    report.each_seed(options, |seed, report| {
        let turn = seed as usize;
        let ground = &grounds[turn % grounds.len()];
        // Mostly on another file system: flushing the copy would flush the source as well, after which every write
        // through a mapping moves a time.
        let other = &grounds[(turn + turn / grounds.len() % grounds.len()) % grounds.len()];
        let failures = one(options, seed, (ground, other), report)?;
        let names = format!("{} to {}", ground.file_system(), other.file_system());
        Ok(failures.into_iter().map(|failure| format!("{names}: {failure}")).collect())
    });
    Ok(report)
}

/// A tree for a mutator to begin with.
pub(super) fn plant(rng: &mut ChaCha8Rng, source: &Path) -> Result<()> {
    std::fs::create_dir_all(source.join("d/e"))?;
    for number in 0..FILES {
        let at = ["", "d", "d/e"][number as usize % 3];
        let size = rng.random_range(0..20_000);
        std::fs::write(source.join(at).join(format!("f{number}")), vec![number as u8; size])?;
    }
    Ok(())
}

fn one(
    options: &LaneOptions,
    seed: u64,
    (ground, other): (&Mounted, &Mounted),
    report: &mut LaneReport,
) -> Result<Vec<String>> {
    let mut rng = rng("live", seed);
    let (place, there) =
        (tempfile::tempdir_in(ground.path())?, tempfile::tempdir_in(other.path())?);
    let (source, copy) = (place.path().join("source"), there.path().join("copy"));
    plant(&mut rng, &source)?;
    let dmover = Dmover::new(&options.program)?.patience(Duration::from_mins(2));
    let mut words: Vec<OsString> = vec!["sync".into(), "--json".into()];
    words.push(format!("-j{}", rng.random_range(1..=4)).into());
    let delete = ["--delete", "--delete=during", "--delete=after"][rng.random_range(0..3)];
    words.extend([delete.into(), MEANT.into()]);
    if rng.random_bool(0.3) {
        words.push("--inplace".into());
    }
    words.extend([source.clone().into_os_string(), copy.clone().into_os_string()]);
    // A mapping of a file in memory moves no time at all, so nothing could be seen (docs/sync.md).
    let maps = ground.file_system() != FileSystem::Tmpfs;
    let mutator = Mutator::start(&source, seed, maps)?;
    let mut failures = Vec::new();
    for _ in 0..rng.random_range(1..=3) {
        let run = dmover.run(&words)?;
        report.add("passes", 1);
        // Entries that vanish or change while they are read are told, and a tree that is all gone withholds deletes.
        // Both sides keep the same attributes, so none can be lost.
        if !matches!(run.code(), Some(0 | 3 | 4)) || run.text().contains("\"type\":\"loss\"") {
            failures.push(run.tell());
        }
    }
    report.add("changes", mutator.stop()?);
    let run = dmover.run(&words)?;
    if run.code() != Some(0) {
        failures.push(format!("quiet: {}", run.tell()));
    }
    let differences = compare(&source, &copy, &CompareOptions::default())?;
    failures.extend(differences.iter().map(|difference| format!("after all passes: {difference}")));
    failures.extend(leftovers(&copy)?.iter().map(|left| format!("left: {}", left.display())));
    tree::remove(&source)?;
    Ok(failures)
}
