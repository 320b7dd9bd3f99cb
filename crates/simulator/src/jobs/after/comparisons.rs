//! Comparisons: the simulator damages the destination itself, so it knows what they have to find.
use dmover_engine::{JobList, JobState, RecordSupply};
use dmover_job::{ManifestFile, ReadBack, Recorded, Request, compare};
use dmover_model::{
    CopyPolicy, DigestPolicy, EntryKind, Event, ExitCode, HashType, JobSpec, Overwrite, PathBytes,
    Side, Timestamp, Verb, VerifyLevel, VerifyPolicy,
};
use rand::Rng as _;
use rand::seq::IndexedRandom as _;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::super::TREE;
use super::super::compare::Tree;
use super::super::damage::{Damage, Place, damage};
use super::super::run::{
    DESTINATION, Ended, Nobody, Scene, Seat, Work, below, ended, job, look, spec,
};
use super::{DONE, policy};

/// A comparison.
#[derive(Clone)]
struct Comparison {
    level: VerifyLevel,
    repairs: bool,
    /// The content of no file is read.
    samples_nothing: bool,
    /// Entries that only the destination has count.
    with_extra: bool,
    spec: JobSpec,
    /// The manifest to compare with, instead of the source.
    manifest: Option<PathBuf>,
}

const LEVELS: [VerifyLevel; 5] = [
    VerifyLevel::Exists,
    VerifyLevel::Size,
    VerifyLevel::Mtime,
    VerifyLevel::Digest,
    VerifyLevel::Bytes,
];

impl Comparison {
    /// `since`: before any damage.
    fn new(
        levels: &[VerifyLevel],
        with_extra: bool,
        since: Timestamp,
        random: &mut ChaCha8Rng,
    ) -> Self {
        let level = levels.choose(random).copied().unwrap_or(VerifyLevel::Digest);
        let repairs: bool = random.random();
        let samples_nothing = !repairs && random.random_bool(0.15);
        let since = (!repairs && random.random_bool(0.15)).then_some(since);
        let verify = VerifyPolicy {
            level,
            repair: repairs,
            extra: with_extra,
            sample_millionths: samples_nothing.then_some(0),
            seed: 0,
            since,
            stored: random.random_bool(0.2),
            marks_unproven: false,
        };
        let policy = CopyPolicy {
            overwrite: Overwrite::Always,
            dry_run: !repairs,
            split_bytes: random.random_bool(0.7).then_some(64 << 10),
            verify: Some(verify),
            ..CopyPolicy::default()
        };
        let spec = spec(Verb::Verify, policy);
        Self { level, repairs, samples_nothing, with_extra, spec, manifest: None }
    }

    /// A process that runs it, and tells what it has found.
    fn work(&self, scene: &Scene<'_>, found: &Arc<Mutex<Vec<PathBytes>>>) -> Work {
        let (own, state, found) = (self.clone(), scene.state.to_owned(), Arc::clone(found));
        Arc::new(move |seat: &Seat| {
            let mut job = job(own.spec.clone(), &state, seat);
            if !own.repairs {
                job.files.state = None;
            }
            let recorded = own.manifest.as_ref().map(|at| Recorded::open(at.as_os_str()));
            let recorded = match recorded.transpose() {
                Ok(recorded) => recorded.map(Arc::new),
                Err(words) => return Ended::Failed(ExitCode::Fatal, words),
            };
            if let Some(recorded) = &recorded {
                job.list = JobList::Records(Arc::clone(recorded) as Arc<dyn RecordSupply>);
            }
            let compared = compare(&job, recorded.as_deref());
            let differences = seat.told.findings().into_iter().filter_map(|event| match event {
                Event::Difference(difference) => Some(difference.path),
                _ => None,
            });
            *found.lock().unwrap_or_else(PoisonError::into_inner) = differences.collect();
            match compared {
                Ok(compared) => Ended::Code(compared.code, compared.report.state),
                Err(error) => Ended::Failed(error.exit_code(), error.to_string()),
            }
        })
    }

    /// Damages the destination, runs the comparison, and checks what it has found.
    fn play(&self, scene: &mut Scene<'_>, random: &mut ChaCha8Rng) {
        let (source, before) = scene.both();
        let common: Tree =
            before.into_iter().filter(|(path, _)| source.contains_key(path)).collect();
        let kinds: Vec<Damage> = Damage::COUNTED
            .into_iter()
            // A repair is judged by the whole tree, so it has to see everything; and a directory in the place of
            // another entry is reported, not replaced.
            .filter(|kind| !self.repairs || kind.level() <= self.level && *kind != Damage::Retyped)
            .collect();
        let most = random.random_range(0..6);
        let place = Place { top: TREE, tree: &common, is_silent: true };
        let damaged = damage(&mut scene.destination, &place, &kinds, most, random);
        scene.destination.settle();
        let is_found = |kind: Damage| {
            kind.level() <= self.level
                && (kind != Damage::Beside || self.with_extra)
                && (kind != Damage::Flipped || !self.samples_nothing)
        };
        let at = |path: &[u8]| PathBytes([&below(DESTINATION), &b"/"[..], path].concat());
        // Which of two names that are not linked any more is the wrong one, nobody knows: the first stands for both.
        let first_name = |path: &PathBytes| {
            let same = common.iter().find(|(name, _)| at(name) == *path).and_then(|(_, it)| {
                let is_group = it.links == 2 && it.kind == EntryKind::File;
                is_group.then(|| common.iter().find(|(_, other)| other.inode == it.inode)).flatten()
            });
            same.map_or_else(|| path.clone(), |(name, _)| at(name))
        };
        let expected: BTreeSet<PathBytes> = damaged
            .iter()
            .filter(|(_, kind)| is_found(**kind))
            .map(|(path, _)| first_name(&at(path)))
            .collect();
        let damaged_tree = look(&mut scene.destination);
        let found = Arc::default();
        let work = self.work(scene, &found);
        let what = format!("a comparison ({:?}, repair {})", self.level, self.repairs);
        // An interrupted repair leaves times of directories that the next one does not look at.
        let may_break_off = !self.repairs || self.level >= VerifyLevel::Mtime;
        let broke_off = may_break_off && random.random_bool(0.3);
        if broke_off {
            scene.interrupt(&work, &what, random);
        }
        let end = scene.run_work(&work, (None, false), &what);
        let found = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
        let found_set: BTreeSet<PathBytes> = found.iter().map(first_name).collect();
        // What an interrupted repair has mended is not found again.
        if !(broke_off && self.repairs) {
            scene.expect(found_set == expected && found.len() == expected.len(), || {
                format!("{what} found {found:?} instead of {expected:?}, damage {damaged:?}")
            });
            self.check_end(scene, &end, &expected, &what, &damaged);
        }
        if self.repairs {
            scene.expect_equal(&what, false);
        } else {
            let after = look(&mut scene.destination);
            scene.expect(after == damaged_tree, || format!("{what} changed the destination"));
        }
        let after = look(&mut scene.source);
        scene.expect(after == source, || format!("{what} changed the source"));
    }

    fn check_end(
        &self,
        scene: &mut Scene<'_>,
        end: &Ended,
        expected: &BTreeSet<PathBytes>,
        what: &str,
        damaged: &std::collections::BTreeMap<Vec<u8>, Damage>,
    ) {
        let has_extra = self.with_extra && damaged.values().any(|it| *it == Damage::Beside);
        let is_clean = if self.repairs { !has_extra } else { expected.is_empty() };
        let is_right = match end {
            Ended::Code(ExitCode::Done, JobState::Finished) => is_clean,
            Ended::Code(ExitCode::Different, JobState::Finished) => !is_clean,
            // Only a manifest says which content is right.
            Ended::Code(ExitCode::Integrity, JobState::Finished) => {
                !is_clean && self.manifest.is_some()
            }
            _ => false,
        };
        scene.expect(is_right, || format!("{what} ended with {end:?}, damage {damaged:?}"));
    }
}

/// A time before any damage: change times may be a tick older than the clock.
fn since(scene: &Scene<'_>) -> Timestamp {
    let now = scene.destination.clock().now();
    Timestamp { seconds: now.seconds - 1, ..now }
}

/// Whether the destination has nothing else than the source.
fn is_alike(scene: &mut Scene<'_>) -> bool {
    let (source, destination) = scene.both();
    destination.keys().all(|path| source.contains_key(path))
}

/// A comparison with the source.
pub(super) fn with_source(scene: &mut Scene<'_>, random: &mut ChaCha8Rng) {
    let with_extra = is_alike(scene) && random.random_bool(0.7);
    let since = since(scene);
    Comparison::new(&LEVELS, with_extra, since, random).play(scene, random);
}

/// A copy that writes a manifest, then a comparison with it.
pub(super) fn with_manifest(scene: &mut Scene<'_>, random: &mut ChaCha8Rng) {
    let verb = if random.random() { Verb::Copy } else { Verb::Sync };
    let overwrites = [Overwrite::Changed, Overwrite::Always];
    let hashes = [HashType::Blake3, HashType::Sha256, HashType::Md5, HashType::Crc32c];
    let digest = DigestPolicy {
        piece_bytes: random.random_bool(0.5).then_some(4096),
        ..DigestPolicy::plain(hashes.choose(random).copied().unwrap_or_default())
    };
    let policy = CopyPolicy {
        overwrite: overwrites.choose(random).copied().unwrap_or_default(),
        digest: Some(digest),
        print_hash: random.random_bool(0.5).then_some(Side::Destination),
        ..policy(verb, random)
    };
    let read_back = match random.random_range(0..3_u32) {
        0 => ReadBack::None,
        1 => ReadBack::All,
        _ => ReadBack::Sample(500_000),
    };
    let spec = spec(verb, policy);
    let manifest = scene.state.join("manifest");
    let (at, state) = (manifest.clone(), scene.state.to_owned());
    let work: Work = Arc::new(move |seat: &Seat| {
        let file = match ManifestFile::create(at.as_os_str(), 0o022) {
            Ok(file) => file,
            Err(words) => return Ended::Failed(ExitCode::Fatal, words),
        };
        let mut job = job(spec.clone(), &state, seat);
        job.manifest = Some(file.recorder());
        ended(dmover_job::run(Request { job, manifest: Some(file), read_back }, &Nobody))
    });
    let what = format!("a {verb:?} with a manifest, {read_back:?}");
    let mut end = scene.run_work(&work, (None, false), &what);
    if random.random_bool(0.3) {
        end = scene.run_work(&work, (None, false), &what);
    }
    scene.expect(end == DONE, || format!("{what} ended with {end:?}"));
    scene.expect_equal(&what, verb == Verb::Sync);
    if !scene.broken.is_empty() {
        return;
    }
    let with_extra = is_alike(scene) && random.random_bool(0.7);
    let since = since(scene);
    let mut comparison = Comparison::new(&LEVELS[..4], with_extra, since, random);
    if !comparison.repairs {
        comparison.spec.sources.clear();
    }
    comparison.manifest = Some(manifest);
    comparison.play(scene, random);
}
