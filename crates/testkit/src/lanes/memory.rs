//! Millions of entries: memory stays bounded, and copying begins at once.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::run::Dmover;
use super::{LaneOptions, LaneReport};
use crate::image::{FileSystem, Image, ImageOptions, Mounted};
use crate::skip::skipped;

/// What the bar allows, whatever the number of entries.
const PEAK_MAX_KIB: u64 = 96 << 10;
const FIRST_BYTE_MAX: Duration = Duration::from_secs(1);
const ENTRIES: f64 = 1_000_000.0;
const PATIENCE: Duration = Duration::from_mins(20);
/// Every so many files one has content: a page for each would cost the machine more than the copy.
const CONTENT_EVERY: u64 = 50;

/// What there are a million of.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Files in one directory.
    Flat,
    /// Directories below each other and beside each other.
    Directories,
    /// Names of inodes with two names each, far apart.
    Links,
}

const SHAPES: [Shape; 3] = [Shape::Flat, Shape::Directories, Shape::Links];

/// Copies a million entries of one shape after the other, and once more when all are there.
pub fn memory(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("memory");
    report.each_seed(options, |seed, report| {
        let entries = (ENTRIES * options.scale) as u64;
        let mounted = match mount(entries) {
            Ok(mounted) => mounted,
            Err(why) => {
                report.add("skipped", 1);
                skipped("lane memory", &format!("{why:#}"));
                return Ok(Vec::new());
            }
        };
        let shape = SHAPES[seed as usize % SHAPES.len()];
        let source = mounted.path().join("source");
        make(shape, &source, entries)?;
        report.add("entries", entries);
        let experiment = Experiment { shape, mounted, source };
        let mut failures = experiment.run(options, "first run", report)?;
        failures.extend(experiment.count(entries)?);
        failures.extend(experiment.run(options, "second run", report)?);
        Ok(failures.into_iter().map(|failure| format!("{shape:?}: {failure}")).collect())
    });
    Ok(report)
}

fn mount(entries: u64) -> Result<Mounted> {
    let inodes = format!("nr_inodes={}", entries * 2 + 10_000);
    let size_bytes = entries * 2 * 1024 + (64 << 20);
    let options = ImageOptions { size_bytes, mount_options: vec![inodes], ..Default::default() };
    Ok(Image::create_with(FileSystem::Tmpfs, &options)?)
}

fn make(shape: Shape, source: &Path, entries: u64) -> Result<()> {
    fs::create_dir(source)?;
    match shape {
        Shape::Flat => {
            for number in 0..entries {
                let content: &[u8] = if number % CONTENT_EVERY == 0 { b"content" } else { b"" };
                fs::write(source.join(format!("file-{number:08}")), content)?;
            }
        }
        Shape::Directories => {
            let (wide, deep) = (100, entries / 100);
            for top in 0..wide {
                let top = source.join(format!("top-{top:03}"));
                fs::create_dir(&top)?;
                fs::write(top.join("file"), "content")?;
                make_directories(&top, deep)?;
            }
        }
        Shape::Links => {
            fs::create_dir(source.join("first"))?;
            fs::create_dir(source.join("second"))?;
            fs::write(source.join("file"), "content")?;
            for number in 0..entries / 2 {
                let first = source.join(format!("first/{number:08}"));
                fs::write(&first, "")?;
                fs::hard_link(first, source.join(format!("second/{:08}", entries - number)))?;
            }
        }
    }
    Ok(())
}

/// So many directories: chains of ten, so that there is depth as well as width.
fn make_directories(top: &Path, mut left: u64) -> Result<()> {
    let mut chain = 0;
    while left > 0 {
        let mut path = top.join(format!("chain-{chain:06}"));
        for _ in 0..left.min(10) {
            fs::create_dir(&path)?;
            path.push("below");
            left -= 1;
        }
        chain += 1;
    }
    Ok(())
}

struct Experiment {
    shape: Shape,
    mounted: Mounted,
    source: PathBuf,
}

impl Experiment {
    fn copy(&self) -> PathBuf {
        self.mounted.path().join("copy")
    }

    fn run(
        &self,
        options: &LaneOptions,
        name: &str,
        report: &mut LaneReport,
    ) -> Result<Vec<String>> {
        let peak = self.mounted.path().join("peak");
        let time = ["/usr/bin/time", "-f", "%M", "-o"].map(OsString::from);
        let wrapper = time.into_iter().chain([peak.clone().into_os_string()]);
        let dmover = Dmover::new(&options.program)?.patience(PATIENCE).wrapped(wrapper);
        let mut failures = Vec::new();
        let (source, copy) = (self.source.as_os_str(), self.copy());
        let fresh = !copy.exists();
        let words = ["copy".as_ref(), "-q".as_ref(), "-T".as_ref(), source, copy.as_os_str()];
        let mut running = dmover.start(words)?;
        let started = Instant::now();
        if fresh {
            let first = self.first_byte(started, || running.has_ended())?;
            report.most("first_byte_ms_max", first.as_millis() as u64);
            if first > FIRST_BYTE_MAX {
                failures.push(format!("{name}: the first byte came after {first:?}"));
            }
        }
        let run = running.finish()?;
        if run.code() != Some(0) {
            failures.push(format!("{name}: {}", run.tell()));
        }
        report.most("seconds_max", run.elapsed.as_secs());
        let told = fs::read_to_string(&peak)?;
        let last = told.lines().last().context("time said nothing")?;
        let kib: u64 = last.trim().parse().with_context(|| told.clone())?;
        report.most("peak_kib_max", kib);
        if kib > PEAK_MAX_KIB {
            failures.push(format!("{name}: peak of {kib} KiB, allowed are {PEAK_MAX_KIB}"));
        }
        Ok(failures)
    }

    /// Polls until some file of the copy has content.
    fn first_byte(
        &self,
        started: Instant,
        mut has_ended: impl FnMut() -> Result<bool>,
    ) -> Result<Duration> {
        loop {
            let ended = has_ended()?;
            if self.has_content() || ended {
                return Ok(started.elapsed());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn has_content(&self) -> bool {
        const LOOKED_AT: usize = 300;
        let full =
            |path: PathBuf| fs::metadata(path).is_ok_and(|data| data.is_file() && data.len() > 0);
        let Ok(entries) = fs::read_dir(self.copy()) else { return false };
        let mut paths = entries.flatten().map(|entry| entry.path()).take(LOOKED_AT);
        match self.shape {
            Shape::Flat | Shape::Links => paths.any(full),
            Shape::Directories => paths.any(|path| full(path.join("file"))),
        }
    }

    /// As many entries as there were, counted by somebody else.
    fn count(&self, entries: u64) -> Result<Vec<String>> {
        let count = |path: &Path| -> Result<u64> {
            let output = std::process::Command::new("find")
                .arg(path)
                .args(["-mindepth", "1", "-printf", "."])
                .output()
                .context("find")?;
            Ok(output.stdout.len() as u64)
        };
        let (ours, theirs) = (count(&self.source)?, count(&self.copy())?);
        let enough = ours >= entries / 2;
        Ok((ours != theirs || !enough)
            .then(|| format!("{theirs} of {ours} entries arrived"))
            .into_iter()
            .collect())
    }
}
