//! `kill -9` of a pass that keeps a journal, as often as the seed says; the same command then goes on.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::check::{leftovers, lying_files};
use super::run::{Dmover, Run};
use super::{LaneOptions, LaneReport, MEANT, rng, stage};
use crate::compare::{CompareOptions, compare};
use crate::image::FileSystem;
use crate::tree;

const SIZE: u64 = 512 << 20;
/// Ordinary entries in the source, beside the hard cases.
const ENTRIES: u64 = 400;
/// Seeds that share a source.
const SEEDS_PER_SOURCE: u64 = 50;

/// Where passes are killed, and what one takes that nobody disturbs.
struct Ground {
    stage: stage::Ground,
    whole_run: Duration,
    bytes: u64,
}

/// Kills passes at seeded moments on one file system after the other.
///
/// # Errors
/// What keeps it from running at all.
pub fn resume(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("resume");
    let all = [FileSystem::Ext4, FileSystem::Tmpfs, FileSystem::Xfs, FileSystem::Btrfs];
    let mut grounds = Vec::new();
    for mounted in report.images(&all, SIZE) {
        let (stage, whole_run) = (stage::Ground::new(mounted)?, Duration::ZERO);
        grounds.push(Ground { stage, whole_run, bytes: 0 });
    }
    if grounds.is_empty() {
        return Ok(report);
    }
    report.each_seed(options, |seed, report| {
        let turn = seed as usize % grounds.len();
        let ground = &mut grounds[turn];
        ground.prepare(options, seed / SEEDS_PER_SOURCE)?;
        let failures = one(options, seed, ground, report);
        let place = ground.stage.mounted.path().join("place");
        if std::fs::symlink_metadata(&place).is_ok() {
            tree::remove(&place)?;
        }
        let name = ground.stage.mounted.file_system();
        Ok(failures?.into_iter().map(|failure| format!("{name}: {failure}")).collect())
    });
    Ok(report)
}

fn words(source: &Path, target: &Path, movers: u32) -> Vec<OsString> {
    let mut words: Vec<OsString> =
        ["sync", "--json", "--delete", MEANT].map(OsString::from).to_vec();
    words.extend(["--split-size=1M".into(), format!("-j{movers}").into()]);
    // Blocks that are shared with the source are not copied, and could not be counted.
    words.push("--reflink=never".into());
    words.extend([source.to_owned().into_os_string(), target.to_owned().into_os_string()]);
    words
}

impl Ground {
    /// Makes the source of this group of seeds, and measures a pass that nobody disturbs.
    fn prepare(&mut self, options: &LaneOptions, source_seed: u64) -> Result<()> {
        if !self.stage.renew(source_seed, ENTRIES)? {
            return Ok(());
        }
        let dmover = Dmover::new(&options.program)?;
        let source = self.stage.source();
        let run = self.stage.measure(|target| dmover.run(words(&source, target, 3)))?;
        self.whole_run = run.elapsed;
        self.bytes = number(&run, "bytes_copied")?;
        Ok(())
    }
}

fn number(run: &Run, counter: &str) -> Result<u64> {
    let summary = run.said()?.summary.with_context(|| run.tell())?;
    summary.number(counter).with_context(|| format!("no {counter}"))
}

/// What the journal calls done: bytes of content of all tasks that have ended.
fn bytes_on_record(dmover: &Dmover) -> Result<u64> {
    let jobs = dmover.state_directory().join("jobs");
    let Some(job) = std::fs::read_dir(jobs).ok().and_then(|mut jobs| jobs.next()) else {
        return Ok(0);
    };
    let path = job?.path().join("journal.sqlite");
    let Ok(journal) = rusqlite::Connection::open(path) else { return Ok(0) };
    let sql = "SELECT coalesce(sum(bytes), 0) FROM outcome";
    // Killed before it had tables.
    Ok(journal.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap_or(0) as u64)
}

fn moment(rng: &mut ChaCha8Rng, whole: Duration) -> Duration {
    whole.mul_f64(rng.random_range(0.0..1.1))
}

fn one(
    options: &LaneOptions,
    seed: u64,
    ground: &Ground,
    report: &mut LaneReport,
) -> Result<Vec<String>> {
    let mut rng = rng("resume", seed);
    let (source, place) = (ground.stage.source(), ground.stage.mounted.path().join("place"));
    let movers = rng.random_range(1..=4);
    let words = words(&source, &place, movers);
    // A state directory of its own: what an earlier seed left is no matter of this one.
    let dmover = Dmover::new(&options.program)?;
    let mut failures = Vec::new();
    for _ in 0..rng.random_range(1..=3) {
        let run = dmover.start(&words)?.kill_after(moment(&mut rng, ground.whole_run))?;
        report.add("kills", 1);
        report.add("kills_that_hit", u64::from(run.signal() == Some(9)));
        let lies = lying_files(&source, &place).context("look for lies")?;
        failures.extend(lies.into_iter().map(|lie| format!("after a kill: {lie}")));
    }
    let before = bytes_on_record(&dmover)?;
    let run = dmover.run(&words)?;
    if run.code() != Some(0) {
        failures.push(run.tell());
        return Ok(failures);
    }
    let resumed = run.said()?.summary.is_some_and(|summary| summary.0["resumed"] == true);
    report.add("resumed", u64::from(resumed));
    let again = number(&run, "bytes_copied")?;
    // Bytes of an attempt that was repeated are counted again.
    if resumed && number(&run, "retries")? == 0 && before + again > ground.bytes {
        let all = ground.bytes;
        let words = format!("{before} bytes were on record and {again} were copied, of {all}");
        failures.push(format!("{words}: {}", run.tell()));
    }
    report.add("bytes_on_record", before);
    report.add("bytes_copied_after", again);
    let differences = compare(&source, &place, &CompareOptions::default())?;
    failures.extend(differences.iter().map(|difference| format!("{difference}")));
    failures.extend(leftovers(&place)?.iter().map(|left| format!("left: {}", left.display())));
    let told = format!("-j{movers}, {:?}", ground.whole_run);
    Ok(failures.into_iter().map(|failure| format!("{failure} [{told}]")).collect())
}
