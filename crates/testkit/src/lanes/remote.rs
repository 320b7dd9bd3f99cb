//! Jobs between hosts in which either side or ssh is killed, the connection cut, or the line silent, after a seeded number of
//! bytes; the same command, repeated, then completes the job. Two thirds of the seeds have data streams.

mod hosts;
mod road;
mod victim;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use self::hosts::{Hosts, NAMES, Route};
use self::road::Road;
use self::victim::{Blow, Victim};
use super::check::{Fingerprint, leftovers, lying_files};
use super::run::{Dmover, Run};
use super::stage::{self, OldVersions, plant_old_versions, torn_files};
use super::{LaneOptions, LaneReport, MEANT, rng, tell};
use crate::cluster::{Piece, needs};
use crate::compare::{CompareOptions, compare, rsync_check};
use crate::image::{FileSystem, Mounted};
use crate::python::python;
use crate::skip::skipped;
use crate::tree::{self, Features};

const MUTATE: &str = include_str!("../../python/mutate_tree.py");
const SIZE: u64 = 512 << 20;
/// Ordinary entries in the source, beside the hard cases.
const ENTRIES: u64 = 60;
/// Seeds that share a source on one file system.
const SEEDS_PER_SOURCE: u64 = 40;
/// Groups of hard cases that only cost time here.
const WITHOUT: [&str; 3] = ["deep", "long-path", "huge"];
/// Edits that an older state of the tree differs by.
const EDITS: u64 = 60;
/// How often the end of a job is looked for while nothing is stopped.
const LOOK: Duration = Duration::from_millis(5);
/// What passes before and after the content, more or less.
const EDGE: u64 = 20_000;
/// One of so many seeds has no data streams.
const WITHOUT_STREAMS: u64 = 3;

/// Disturbs jobs at seeded points on one file system after the other.
///
/// # Errors
/// What keeps it from running at all.
pub fn remote(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("remote");
    if let Err(why) = needs(&[Piece::Network, Piece::Sshd, Piece::Tun]) {
        skipped("lane remote", &why);
        report.add("skipped", 1);
        return Ok(report);
    }
    let all = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs, FileSystem::Tmpfs];
    let mut grounds = Vec::new();
    for mounted in report.images(&all, SIZE) {
        grounds.push(Ground::new(mounted)?);
    }
    if grounds.is_empty() {
        return Ok(report);
    }
    let (relayed, lines) =
        (Hosts::relayed(&options.program)?, Hosts::over_lines(&options.program)?);
    report.each_seed(options, |seed, report| {
        let turn = seed as usize % grounds.len();
        let ground = &mut grounds[turn];
        ground.renew(seed / SEEDS_PER_SOURCE)?;
        let hosts = if seed % WITHOUT_STREAMS == 0 { &relayed } else { &lines };
        let mut experiment = Experiment::new(options, seed, ground, hosts)?;
        let failures = experiment.run(report);
        hosts.wait_quiet()?;
        hosts.forget()?;
        ground.clean()?;
        let told = format!("{} {}", ground.mounted.file_system(), experiment.told());
        if options.verbose {
            tell(&format!("remote seed {seed}: {told}"));
        }
        Ok(failures?.into_iter().map(|failure| format!("{failure} [{told}]")).collect())
    });
    Ok(report)
}

/// A file system with a source that some seeds share.
struct Ground {
    mounted: Mounted,
    features: Features,
    source_seed: Option<u64>,
}

impl Ground {
    fn new(mounted: Mounted) -> Result<Self> {
        let features = Features::probe(mounted.path())?;
        Ok(Self { mounted, features, source_seed: None })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.mounted.path().join(name)
    }

    fn renew(&mut self, source_seed: u64) -> Result<()> {
        if self.source_seed == Some(source_seed) {
            return Ok(());
        }
        let source = self.at("source");
        if self.source_seed.take().is_some() {
            tree::remove(&source)?;
        }
        stage::source(&source, source_seed, &self.features, ENTRIES, &WITHOUT)?;
        self.source_seed = Some(source_seed);
        Ok(())
    }

    fn clean(&self) -> Result<()> {
        for place in ["place", "measured"].map(|name| self.at(name)) {
            if std::fs::symlink_metadata(&place).is_ok() {
                tree::remove(&place)?;
            }
        }
        Ok(())
    }
}

/// Which host has SOURCE and which has DEST; none: this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    source: Option<usize>,
    destination: Option<usize>,
}

impl Way {
    fn draw(rng: &mut ChaCha8Rng) -> Self {
        let (source, destination) = match rng.random_range(0..100) {
            0..37 => (Some(0), None),
            37..74 => (None, Some(0)),
            74..94 => (Some(0), Some(1)),
            _ => (Some(0), Some(0)),
        };
        Self { source, destination }
    }

    fn hosts(self) -> BTreeSet<usize> {
        self.source.into_iter().chain(self.destination).collect()
    }
}

/// A path as the command line names it.
fn named(host: Option<usize>, path: &Path) -> OsString {
    let mut name = host.map_or_else(OsString::new, |host| format!("{}:", NAMES[host]).into());
    name.push(path);
    name
}

/// What DEST has before the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    /// Older versions of some files.
    OldFiles,
    /// The whole tree as it was before some edits.
    OldTree,
}

struct Experiment<'a> {
    dmover: Dmover,
    rng: ChaCha8Rng,
    ground: &'a Ground,
    hosts: &'a Hosts,
    route: Route,
    way: Way,
    before: Before,
    /// The command without SOURCE and DEST.
    words: Vec<OsString>,
    /// What the edits of an older state are drawn from.
    edits: u64,
    story: Vec<String>,
}

impl<'a> Experiment<'a> {
    fn new(options: &LaneOptions, seed: u64, ground: &'a Ground, hosts: &'a Hosts) -> Result<Self> {
        let mut rng = rng("remote", seed);
        let way = Way::draw(&mut rng);
        let route = match hosts.road {
            Road::Lines { .. } => Route::Streams,
            Road::Relay(_) if rng.random_bool(0.3) => Route::Ssh,
            Road::Relay(_) => Route::Plain,
        };
        let (verb, before): (&[&str], _) = match rng.random_range(0..5) {
            0 => (&["copy", "-T"], Before::Nothing),
            1 => (&["copy", "-T"], Before::OldFiles),
            2 => (&["sync"], Before::OldFiles),
            3 => (&["sync", "--delete", MEANT], Before::Nothing),
            _ => (&["sync", "--delete", MEANT], Before::OldTree),
        };
        let mut words: Vec<OsString> = verb.iter().map(Into::into).collect();
        words.extend(["--json".into(), "--progress=never".into()]);
        words.push(format!("-j{}", rng.random_range(1..=4)).into());
        // Without it, large files are written under their final names.
        if rng.random_bool(0.5) {
            words.push("--split-size=1M".into());
        }
        if verb[0] == "sync" && rng.random_bool(0.1) {
            words.push("--checksum".into());
        }
        words.extend(connection_words(&mut rng, hosts, route));
        if let Some(host) = way.destination {
            // Otherwise root has its state in a directory of this machine, where it outlives the seed.
            words.extend(["--state-dir".into(), hosts.state(host).into()]);
        }
        let dmover = Dmover::new(&options.program)?.wrapped(hosts.words());
        let edits = rng.random();
        let story = Vec::new();
        Ok(Self { dmover, rng, ground, hosts, route, way, before, words, edits, story })
    }

    fn told(&self) -> String {
        let (route, way, before) = (self.route, self.way, self.before);
        let words = self.words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>();
        let story = self.story.join("; ");
        format!("{route:?} {way:?} {before:?} {}: {story}", words.join(" "))
    }

    fn command(&self, words: &[OsString], target: &Path) -> Vec<OsString> {
        let mut all = words.to_vec();
        all.push(named(self.way.source, &self.ground.at("source")));
        all.push(named(self.way.destination, target));
        all
    }

    /// Makes what DEST has before the job, the same each time.
    fn plant(&self, target: &Path) -> Result<OldVersions> {
        let source = self.ground.at("source");
        match self.before {
            Before::Nothing => Ok(OldVersions::new()),
            Before::OldFiles => {
                std::fs::create_dir(target)?;
                plant_old_versions(&source, target, &mut rng("remote olds", self.edits))
            }
            Before::OldTree => {
                let mut copy = Command::new("cp");
                let done = copy.arg("-a").args([&source, target]).stderr(Stdio::null()).status()?;
                ensure!(done.success(), "cp ended with {done}");
                // cp keeps no flags, and passes do not set some of them on entries that are there.
                tree::remove(&target.join("flags"))?;
                let mut edit = python();
                edit.args(["-c", MUTATE]).arg(target).arg((self.edits >> 1).to_string());
                edit.args(["nomap", "attributes", &format!("steps={EDITS}")]);
                let done = edit.stdin(Stdio::null()).output()?;
                let errors = String::from_utf8_lossy(&done.stderr);
                ensure!(done.status.success(), "the edits failed: {errors}");
                Ok(OldVersions::new())
            }
        }
    }

    /// How many bytes pass if nobody disturbs the job.
    fn measure(&self, command: &[OsString]) -> Result<([u64; NAMES.len()], Run)> {
        self.hosts.road.arm(0, None);
        let before = self.hosts.road.passed();
        let run = self.dmover.run(command)?;
        ensure!(run.code() == Some(0), "undisturbed: {}", run.tell());
        let mut passed = self.hosts.road.passed();
        if self.route == Route::Streams {
            passed.iter_mut().zip(before).for_each(|(passed, before)| *passed -= before);
        }
        Ok((passed, run))
    }

    fn run(&mut self, report: &mut LaneReport) -> Result<Vec<String>> {
        let source = self.ground.at("source");
        let (measured, place) = (self.ground.at("measured"), self.ground.at("place"));
        // XFS and btrfs give blocks later than they say so.
        let state = Fingerprint::of(&source)?.without_blocks();
        self.plant(&measured)?;
        let (whole, first) = self.measure(&self.command(&self.words, &measured))?;
        self.hosts.wait_quiet()?;
        self.hosts.forget()?;
        tree::remove(&measured)?;
        let olds = self.plant(&place)?;
        report.add("through_ssh", u64::from(self.route == Route::Ssh));
        if self.route == Route::Streams {
            report.add("with_streams", 1);
            report.add("whole_jobs_over_streams", u64::from(used_streams(&first)));
        }
        let command = self.command(&self.words, &place);
        let mut failures = Vec::new();
        let points = [1, 1, 1, 2, 2, 3][self.rng.random_range(0..6)];
        let mut busy = false;
        for number in 0..points {
            // What is there already does not pass again.
            let left = if number == 0 { whole } else { whole.map(|bytes| bytes * 2 / 3) };
            let (run, blow) = self.disturb(&command, left, report)?;
            failures.extend(unexpected(&run, busy, blow));
            // Somebody may type the command again at once.
            busy = self.rng.random_bool(0.25);
            if !busy {
                failures.extend(self.check_interrupted(&olds)?);
            }
        }
        failures.extend(self.complete(&command, busy, report)?);
        failures.extend(self.check()?);
        failures.extend(self.read_again(report)?);
        failures.extend(state.changes(&Fingerprint::of(&source)?.without_blocks()));
        Ok(failures)
    }

    /// A point of a job: a number of bytes, mostly any, sometimes close to the begin or the end.
    fn draw_point(&mut self, whole: u64) -> u64 {
        let edge = EDGE.min(whole);
        match self.rng.random_range(0..10) {
            0 => self.rng.random_range(1..=edge),
            1 => self.rng.random_range(whole - edge..whole) + 1,
            _ => self.rng.random_range(1..=whole),
        }
    }

    /// Runs a command, and kills, cuts or silences something when so many bytes have passed.
    fn disturb(
        &mut self,
        command: &[OsString],
        whole: [u64; NAMES.len()],
        report: &mut LaneReport,
    ) -> Result<(Run, Option<Blow>)> {
        let has_streams = self.route == Route::Streams;
        // `sum` reads SOURCE only.
        let hosts: Vec<usize> =
            self.way.hosts().into_iter().filter(|host| whole[*host] > 0).collect();
        // The relay counts the bytes of both together.
        let counted = if has_streams { hosts[self.rng.random_range(0..hosts.len())] } else { 0 };
        let whole = whole[counted];
        let at = self.draw_point(whole);
        let victim = Victim::draw(&mut self.rng, &hosts, has_streams);
        let road = &self.hosts.road;
        road.arm(counted, Some(at));
        let mut running = self.dmover.start(command)?;
        let stopped = loop {
            if road.wait_stopped(LOOK) {
                break true;
            }
            if running.has_ended()? {
                break false;
            }
        };
        let mut blow = None;
        if stopped {
            let is_live = has_streams && road.has_streams(&hosts)?;
            // Otherwise what the kernel says of a killed process is lost, too.
            if has_streams && self.rng.random_bool(0.5) {
                road.release();
            }
            let hit = victim.strike(&mut running, self.hosts, report)?;
            blow = Some(Blow { victim, is_live: is_live && hit });
        }
        road.release();
        let run = running.finish()?;
        self.count(&run, blow.as_ref(), has_streams, report);
        let how = run.code().map_or("killed".to_owned(), |code| code.to_string());
        let live = blow.is_some_and(|blow| blow.is_live);
        self.story.push(format!(
            "{victim:?} at {at} of {whole}, stopped {stopped}, streams live {live}: {how} after {:?}",
            run.elapsed
        ));
        Ok((run, blow))
    }

    fn count(&self, run: &Run, blow: Option<&Blow>, has_streams: bool, report: &mut LaneReport) {
        let hit = run.code() != Some(0);
        report.add("points", 1);
        report.add("points_that_hit", u64::from(hit));
        if let Some(blow) = blow {
            report.add(blow.victim.count(), 1);
            if has_streams {
                report.add("points_with_streams", 1);
                report.add("points_with_live_streams", u64::from(blow.is_live));
                report.most("longest_run_ms", run.elapsed.as_millis() as u64);
            }
        }
    }

    /// What is at DEST once nothing runs any more.
    fn check_interrupted(&self, olds: &OldVersions) -> Result<Vec<String>> {
        self.hosts.wait_quiet()?;
        let (source, place) = (self.ground.at("source"), self.ground.at("place"));
        let mut failures = Vec::new();
        // Old trees have files that look the same and are not: edits of bytes keep size, and some the time.
        if self.before != Before::OldTree {
            failures = lying_files(&source, &place).context("look for lies")?;
        }
        if std::fs::symlink_metadata(&place).is_ok() {
            failures.extend(torn_files(&source, &place, olds)?);
        }
        Ok(failures.into_iter().map(|failure| format!("interrupted: {failure}")).collect())
    }

    /// The same command, undisturbed. It may be refused as long as the last one has not ended.
    fn complete(
        &mut self,
        command: &[OsString],
        busy: bool,
        report: &mut LaneReport,
    ) -> Result<Vec<String>> {
        let mut run = self.measure_again(command)?;
        if busy && is_refused(&run) {
            report.add("refused_while_busy", 1);
            self.hosts.wait_quiet()?;
            run = self.measure_again(command)?;
        }
        let said = run.said().ok().and_then(|said| said.summary);
        let resumed = said.is_some_and(|summary| summary.0["resumed"] == true);
        report.add("resumed", u64::from(resumed));
        let wrong = run.code() != Some(0);
        Ok(wrong.then(|| format!("the same command: {}", run.tell())).into_iter().collect())
    }

    fn measure_again(&self, command: &[OsString]) -> Result<Run> {
        self.hosts.road.arm(0, None);
        self.dmover.run(command)
    }

    /// Both trees are the same, to the comparer and to rsync, and nothing is left.
    fn check(&self) -> Result<Vec<String>> {
        let (source, place) = (self.ground.at("source"), self.ground.at("place"));
        if std::fs::symlink_metadata(&place).is_err() {
            return Ok(vec!["nothing at DEST".to_owned()]);
        }
        self.ground.mounted.free_reserved()?;
        let found = compare(&source, &place, &CompareOptions::default())?;
        let mut failures: Vec<String> = found.iter().map(ToString::to_string).collect();
        let xfs = self.ground.mounted.file_system() == FileSystem::Xfs;
        let lines = rsync_check(&source, &place)?;
        let counts = |line: &String| {
            // Access times of what was there before, and of what the checks of interrupted trees have read.
            let does_not = is_only(line, "......u..") || xfs && is_only(line, "........x");
            !does_not
        };
        let told = lines.into_iter().filter(counts);
        failures.extend(told.map(|line| format!("rsync: {line}")));
        let left = leftovers(&place)?;
        failures.extend(left.iter().map(|path| format!("left over: {}", path.display())));
        Ok(failures)
    }

    /// Verbs that only read, now and then: repeated, they report what they report undisturbed.
    fn read_again(&mut self, report: &mut LaneReport) -> Result<Vec<String>> {
        let verb = match self.rng.random_range(0..10) {
            0 | 1 => "verify",
            2 if self.way.source.is_some() => "sum",
            _ => return Ok(Vec::new()),
        };
        report.add(verb, 1);
        let (source, place) = (self.ground.at("source"), self.ground.at("place"));
        let mut command: Vec<OsString> = vec![verb.into(), "--ssh-command".into()];
        command.push(self.hosts.ssh_command(self.route).into());
        if self.route != Route::Streams {
            command.push("--streams=0".into());
        }
        command.push(named(self.way.source, &source));
        if verb == "verify" {
            command.push(named(self.way.destination, &place));
        }
        let before = Fingerprint::of(&place)?.without_blocks();
        let (whole, first) = self.measure(&command)?;
        let (run, blow) = self.disturb(&command, whole, report)?;
        let mut failures: Vec<String> = unexpected(&run, false, blow).into_iter().collect();
        self.hosts.wait_quiet()?;
        let (_, again) = self.measure(&command)?;
        if verb == "sum" && sorted(&first) != sorted(&again) {
            failures.push(format!("other digests: {}\n{}", first.tell(), again.tell()));
        }
        failures.extend(before.changes(&Fingerprint::of(&place)?.without_blocks()));
        Ok(failures.into_iter().map(|failure| format!("{verb}: {failure}")).collect())
    }
}

fn sorted(run: &Run) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = run.stdout.split(|byte| *byte == b'\n').collect();
    lines.sort_unstable();
    lines
}

/// Whether a line of rsync reports these differences only. XFS shows each ACL a second time as an attribute, which counts as
/// one for rsync.
pub(super) fn is_only(line: &str, letters: &str) -> bool {
    line.get(2..).and_then(|rest| rest.split(' ').next()) == Some(letters)
}

/// Another run of the same job has not ended.
fn is_refused(run: &Run) -> bool {
    let text = format!("{}{}", run.stderr, run.text());
    run.code() == Some(6) && text.contains("already")
}

/// A job that was disturbed is complete, killed, or says that a connection has ended. Some events it must survive.
fn unexpected(run: &Run, busy: bool, blow: Option<Blow>) -> Option<String> {
    let refused = is_refused(run);
    if blow.is_some_and(Blow::must_be_survived) && run.code() != Some(0) && !(busy && refused) {
        return Some(format!("not survived: {blow:?}: {}", run.tell()));
    }
    let good = matches!((run.code(), run.signal()), (Some(0 | 6), _) | (_, Some(9)));
    (!good || refused && !busy).then(|| format!("disturbed: {}", run.tell()))
}

/// What the command line says of the connection.
fn connection_words(rng: &mut ChaCha8Rng, hosts: &Hosts, route: Route) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["--ssh-command".into(), hosts.ssh_command(route).into()];
    if route != Route::Streams {
        // Bytes that pass beside the relay would not be counted.
        words.push("--streams=0".into());
        return words;
    }
    if rng.random_bool(0.2) {
        words.push(format!("--streams={}", rng.random_range(1..=3)).into());
    }
    match rng.random_range(0..10) {
        0 => words.push("--encrypt=integrity".into()),
        1 => words.push("--encrypt=none".into()),
        _ => {}
    }
    words
}

/// Whether the summary names streams. A job may be over before they are open.
pub(super) fn used_streams(run: &Run) -> bool {
    let summary = run.said().ok().and_then(|said| said.summary);
    let first = summary.map(|summary| summary.0["connections"][0]["streams"].clone());
    first.and_then(|streams| streams.as_u64()).is_some_and(|streams| streams > 0)
}
