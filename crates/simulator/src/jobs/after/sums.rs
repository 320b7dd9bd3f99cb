//! Digests: those of the bytes on the disk, made in one step by the crates that define the functions.
use dmover_engine::{JobList, SumSupply};
use dmover_model::{
    ByteRange, CopyPolicy, Digest, DigestPolicy, EntryKind, Event, Expected, Guess, HashType,
    JobSpec, PathBytes, Subject, SumItem, Verb, Verdict,
};
use rand::Rng as _;
use rand::seq::IndexedRandom as _;
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use super::super::TREE;
use super::super::compare::{Tree, tree_at};
use super::super::damage::{Damage, Place, damage};
use super::super::run::{DESTINATION, Ended, Scene, Seat, Work, below, job, spec};

/// The digest of some bytes.
fn digest_of(hash: HashType, bytes: &[u8]) -> Digest {
    use sha2::Digest as _;
    let value = match hash {
        HashType::Sha256 => sha2::Sha256::digest(bytes).to_vec(),
        HashType::Sha512 => sha2::Sha512::digest(bytes).to_vec(),
        HashType::Crc32 => crc32fast::hash(bytes).to_be_bytes().to_vec(),
        _ => blake3::hash(bytes).as_bytes().to_vec(),
    };
    Digest::new(&value).expect("a digest")
}

const HASHES: [HashType; 4] =
    [HashType::Blake3, HashType::Sha256, HashType::Sha512, HashType::Crc32];

/// Files to hash, one after another.
#[derive(Debug)]
struct Files(Mutex<VecDeque<SumItem>>);

impl SumSupply for Files {
    fn next(&self, most: usize) -> Option<Vec<SumItem>> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = files.len().min(most);
        Some(files.drain(..count).collect())
    }
}

/// A process that hashes trees, or files of a list, and keeps its findings.
fn work(
    scene: &Scene<'_>,
    (spec, list): (JobSpec, Option<Vec<SumItem>>),
    found: &Arc<Mutex<Vec<Event>>>,
) -> Work {
    let (state, found) = (scene.state.to_owned(), Arc::clone(found));
    Arc::new(move |seat: &Seat| {
        let mut job = job(spec.clone(), &state, seat);
        job.files.state = None;
        let files = list.clone().unwrap_or_default();
        job.list = JobList::Sums(Arc::new(Files(Mutex::new(files.into()))));
        let result = dmover_engine::run_job(&job);
        *found.lock().unwrap_or_else(PoisonError::into_inner) = seat.told.findings();
        match result {
            Ok(report) => Ended::Code(report.exit_code(), report.state),
            Err(error) => Ended::Failed(error.exit_code(), error.to_string()),
        }
    })
}

fn path_of(path: &[u8]) -> PathBytes {
    PathBytes([&below(DESTINATION), &b"/"[..], path].concat())
}

fn files(tree: &Tree) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>)> {
    let files = tree.iter().filter(|(_, entry)| entry.kind == EntryKind::File);
    files.map(|(path, entry)| (path, &entry.content))
}

fn job_of(random: &mut ChaCha8Rng, hash: HashType) -> JobSpec {
    let digest = DigestPolicy {
        piece_bytes: random.random_bool(0.6).then_some(4096),
        pieces: hash.is_parallel() && random.random_bool(0.3),
        ..DigestPolicy::plain(hash)
    };
    let policy = CopyPolicy {
        digest: Some(digest),
        split_bytes: random.random_bool(0.7).then_some(16 << 10),
        ..CopyPolicy::default()
    };
    let destination = PathBytes::default();
    JobSpec { destination, ..spec(Verb::Sum, policy) }
}

/// Hashes a tree, then checks the files against a list of digests, of which some are wrong.
pub(super) fn play(scene: &mut Scene<'_>, random: &mut ChaCha8Rng) {
    let hash = HASHES.choose(random).copied().unwrap_or_default();
    let tree = tree_at(&mut scene.destination, TREE);
    let found = Arc::default();
    let by_tree = random.random();
    let mut spec = job_of(random, hash);
    spec.sources = if by_tree { vec![PathBytes(below(DESTINATION))] } else { Vec::new() };
    let mut wanted: BTreeMap<PathBytes, Digest> = BTreeMap::new();
    let mut items = Vec::new();
    for (path, content) in files(&tree) {
        let range = (!by_tree && random.random_bool(0.4)).then(|| {
            let start = random.random_range(0..=content.len() as u64);
            let end =
                random.random_bool(0.5).then(|| random.random_range(start..100_000.max(start + 1)));
            ByteRange { start, end: end.unwrap_or(u64::MAX) }
        });
        let size = content.len() as u64;
        let part = range.map_or(0..content.len(), |range| {
            range.start as usize..range.end.min(size).max(range.start) as usize
        });
        wanted.insert(path_of(path), digest_of(hash, &content[part]));
        items.push(item(items.len(), path, range, None));
    }
    let list = (!by_tree).then_some(items);
    let what = format!("digests ({hash}, by tree {by_tree})");
    let work = work(scene, (spec, list), &found);
    scene.finish_well(&work, &what, random);
    let mut made = BTreeMap::new();
    for event in found.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        if let Event::Digest(digest) = event {
            made.insert(digest.path, digest.digest);
        }
    }
    scene.expect(made == wanted, || format!("{what}: {made:?} instead of {wanted:?}"));
    check(scene, hash, random);
}

fn item(
    number: usize,
    path: &[u8],
    range: Option<ByteRange>,
    expected: Option<Expected>,
) -> SumItem {
    let subject = Subject::Path(path_of(path));
    SumItem { number: number as u64, subject, range, expected, round: 1 }
}

/// Checks files against their digests from before some were damaged.
fn check(scene: &mut Scene<'_>, hash: HashType, random: &mut ChaCha8Rng) {
    let tree = tree_at(&mut scene.destination, TREE);
    let place = Place { top: TREE, tree: &tree, is_silent: true };
    let kinds = [Damage::Flipped, Damage::Resized, Damage::Removed, Damage::Mode];
    let most = random.random_range(0..4);
    let damaged = damage(&mut scene.destination, &place, &kinds, most, random);
    scene.destination.settle();
    if random.random_bool(0.3) {
        return check_pieces(scene, &tree, &damaged, random);
    }
    let is_guess = matches!(hash, HashType::Blake3 | HashType::Sha256);
    let mut items = Vec::new();
    for (path, content) in files(&tree) {
        let digests = vec![digest_of(hash, content)];
        let guess = is_guess.then_some(Guess::Open);
        let named = if is_guess { HashType::Blake3 } else { hash };
        let expected = Expected { hash: named, leaf: None, piece: None, digests, guess };
        items.push(item(items.len(), path, None, Some(expected)));
    }
    let is_right = |path: &[u8], verdict: &Verdict| match damaged.get(path) {
        None | Some(Damage::Mode) => *verdict == Verdict::Same,
        Some(Damage::Removed) => *verdict == Verdict::Missing,
        Some(_) => matches!(verdict, Verdict::Differs { .. }),
    };
    run_check(scene, (items, &tree), &format!("a check ({hash})"), random, &is_right);
}

/// A list with a digest for each piece: the ranges that differ are known.
fn check_pieces(
    scene: &mut Scene<'_>,
    tree: &Tree,
    damaged: &BTreeMap<Vec<u8>, Damage>,
    random: &mut ChaCha8Rng,
) {
    const PIECE: usize = 4096;
    let mut items = Vec::new();
    let now = tree_at(&mut scene.destination, TREE);
    for (path, content) in files(tree).filter(|(_, content)| !content.is_empty()) {
        let digests = content.chunks(PIECE).map(|piece| digest_of(HashType::Crc32, piece));
        let expected = Expected {
            hash: HashType::Crc32,
            leaf: None,
            piece: Some(PIECE as u64),
            digests: digests.collect(),
            guess: None,
        };
        items.push(item(items.len(), path, None, Some(expected)));
    }
    let is_right = |path: &[u8], verdict: &Verdict| match damaged.get(path) {
        None | Some(Damage::Mode) => *verdict == Verdict::Same,
        Some(Damage::Removed) => *verdict == Verdict::Missing,
        Some(Damage::Resized) => matches!(verdict, Verdict::Differs { .. }),
        Some(_) => {
            let (was, is) = (&tree[path].content, &now[path].content);
            let at = was.iter().zip(is).position(|(a, b)| a != b).unwrap_or(0) as u64;
            let Verdict::Differs { ranges } = verdict else { return false };
            ranges.len() == 1 && ranges[0].start <= at && at < ranges[0].end
        }
    };
    run_check(scene, (items, tree), "a check of pieces", random, &is_right);
}

fn run_check(
    scene: &mut Scene<'_>,
    (items, tree): (Vec<SumItem>, &Tree),
    what: &str,
    random: &mut ChaCha8Rng,
    is_right: &dyn Fn(&[u8], &Verdict) -> bool,
) {
    let paths: Vec<Vec<u8>> = files(tree).map(|(path, _)| path.clone()).collect();
    let (count, found) = (items.len(), Arc::default());
    let mut spec = job_of(random, HashType::Blake3);
    spec.sources.clear();
    let work = work(scene, (spec, Some(items)), &found);
    let ended = scene.run_work(&work, (None, false), what);
    scene.expect(matches!(ended, Ended::Code(..)), || format!("{what} ended with {ended:?}"));
    let mut told = 0;
    for event in found.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let Event::Checked { path, verdict, .. } = event else { continue };
        told += 1;
        let Some(own) = paths.iter().find(|own| path_of(own) == path) else { continue };
        scene.expect(is_right(own, &verdict), || {
            format!("{what}: {verdict:?} of {:?}", String::from_utf8_lossy(own))
        });
    }
    scene.expect(told == count, || format!("{what}: {told} verdicts for {count} files"));
}
