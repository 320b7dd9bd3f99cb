//! Hashing of files from trees and lists, whole or in parts.
use dmover_digest::Fold;
use dmover_local::digest::{self, Part};
use dmover_local::error::has_no_place;
use dmover_local::source::{Content, Opened};
use dmover_local::subject;
use dmover_model::JobSpec;
use dmover_model::{
    ByteRange, Digest, DigestPolicy, EntryError, EntryKind, EntryRecord, ErrorClass, Event,
    Expected, FileDigest, FileRef, FinishHashTask, Guess, HashTask, HashType, HashedFile,
    HashedPieces, NewNode, NewTask, Operation, Parent, PathBytes, Shape, Side, Subject, SumItem,
    TaskKind, Verdict,
};
use dmover_observe::{Activity, Counter, activity};
use dmover_plan::verify::differing;
use dmover_plan::{chunk, retry};
use dmover_schedule::time::Instant;
use dmover_tree::Permit;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::context::Engine;
use crate::directory_pair::{self, DirectoryPair};
use crate::file;
use crate::mover::Mover;
use crate::plan_entry;
use crate::planned::CopyResult;
use crate::queue::Class;

mod guess;

/// Other files do not wait for one of this size.
const ALONE: u64 = 8 << 20;

/// What to compute from some content.
#[derive(Clone, Copy, Default)]
struct Wanted<'a> {
    /// Its index in a list.
    number: Option<u64>,
    range: Option<ByteRange>,
    expected: Option<&'a Expected>,
    item: Option<&'a SumItem>,
}

impl<'a> From<&'a SumItem> for Wanted<'a> {
    fn from(item: &'a SumItem) -> Self {
        let (number, range) = (listed(item), item.range);
        Self { number, range, expected: item.expected.as_ref(), item: Some(item) }
    }
}

type Shown<'a> = &'a dyn Fn() -> PathBytes;

/// The digest policy for a file of a list or tree.
fn digest_policy(spec: &JobSpec, wanted: Wanted<'_>) -> DigestPolicy {
    let expected = wanted.expected.map(Expected::policy);
    let policy = expected.or_else(|| spec.policy.digest.clone());
    policy.unwrap_or_else(|| DigestPolicy::plain(HashType::default()))
}

/// First byte and number of bytes to hash.
fn part_of(engine: &Engine, wanted: Wanted<'_>, size: u64) -> Part {
    let whole = ByteRange { start: 0, end: u64::MAX };
    let range = wanted.range.unwrap_or(whole);
    let (start, end) = (range.start.min(size), range.end.min(size));
    let shape = digest_policy(&engine.spec, wanted).shape(end.saturating_sub(start));
    Part { shape, start }
}

/// Whether a file of a tree becomes a task of its own: it needs several movers, or one for so long that others
/// could do the rest of the directory.
pub(crate) fn hashes_apart(engine: &Engine, size: u64) -> bool {
    const LONG: u64 = 4 << 20;
    size >= LONG || hash_chunk(engine, &part_of(engine, Wanted::default(), size).shape).is_some()
}

/// The chunks that movers hash independently; `None` if one mover hashes all of it.
pub(crate) fn hash_chunk(engine: &Engine, shape: &Shape) -> Option<u64> {
    let demanded = engine.spec.policy.split_bytes;
    let bytes = chunk::chunk_bytes(shape.length(), engine.chunk_takers(), demanded)?;
    let bytes = bytes.max(1).checked_next_multiple_of(shape.piece())?;
    (bytes < shape.length()).then_some(bytes)
}

/// Hashes a file of a tree; any other entry has no content.
pub(crate) fn sum_entry(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    record: &EntryRecord,
    opened: Option<Opened>,
) -> Result<CopyResult, EntryError> {
    if record.metadata.kind != EntryKind::File {
        return Ok(CopyResult::default());
    }
    let opened = match opened {
        Some(opened) => opened,
        None => file::open_content(mover.engine, level, record, mover.permit())?,
    };
    let local = mover.session.local;
    let permit = mover.permit();
    let mut content = local.content_of_opened(&level.source, record, opened, permit)?;
    content.is_stream = content.may_be_generated();
    let shown = || level.source_path(record.name.as_bytes());
    sum_whole(mover, &content, Wanted::default(), &shown, None)
}

/// Starts a large file of a tree.
pub(crate) fn open_sum(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    file: &FileRef,
    round: u32,
) -> Result<(), EntryError> {
    let record = plan_entry::look(mover, level, &file.name)?;
    let mut content = file::open_source_file(mover.engine, level, &record, mover.permit())?;
    content.is_stream = content.may_be_generated();
    let item = SumItem { round, ..plain_item(Subject::Entry(file.clone())) };
    let shown = || level.source_path(file.name.as_bytes());
    sum_content(mover, &content, &item, &shown)
}

/// Hashes files of a list, or starts large ones.
pub(crate) fn run_sums(mover: &mut Mover<'_>, items: &[SumItem]) {
    let mut items = VecDeque::from(items.to_vec());
    while let Some(item) = items.pop_front() {
        if mover.engine.control.is_stopping() {
            items.push_front(item);
            break;
        }
        if !mover.lease.holds() {
            return; // they were reported as not attempted
        }
        sum_item(mover, &item, &mut items);
        mover.lease.extend();
        mover.spent.entries += 1;
        if mover.queue.is_hungry(Class::Small) && items.len() > 1 {
            let rest = items.split_off(items.len() / 2);
            hand_back_sums(mover, rest);
        }
        if mover.budget_is_spent() {
            break;
        }
    }
    hand_back_sums(mover, items);
}

fn hand_back_sums(mover: &mut Mover<'_>, items: VecDeque<SumItem>) {
    if !items.is_empty() {
        let kind = TaskKind::Sums(items.into());
        mover.report.outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
        mover.report.flush();
    }
}

/// Hashes a file. `rest`: those that this task has after it, which do not wait for a large one.
fn sum_item(mover: &mut Mover<'_>, item: &SumItem, rest: &mut VecDeque<SumItem>) {
    let likely = guess::likely(&mover.engine.proof, item);
    let item = likely.as_ref().unwrap_or(item);
    mover.engine.resources.limits.operation(&mover.engine.control, mover.lease);
    let shown = || subject_path(mover.engine, &item.subject);
    let mut attempt = item.round;
    let error = loop {
        let mut again = true;
        let result =
            open_subject(mover.engine, &item.subject, mover.permit()).and_then(|content| {
                if content.metadata.size >= ALONE {
                    // In halves: if all are large, each is handed back a few times and not once for each before it.
                    let second = rest.split_off(rest.len() / 2);
                    hand_back_sums(mover, std::mem::take(rest));
                    hand_back_sums(mover, second);
                }
                // Data read from a pipe is gone: another attempt would hash only the rest.
                again = content.metadata.kind == EntryKind::File && item.subject != Subject::Stdin;
                sum_content(mover, &content, item, &shown)
            });
        match result {
            Ok(()) => return,
            Err(error) if again && mover.engine.may_pass(&error, attempt) => attempt += 1,
            Err(error) => break EntryError { attempt, ..error },
        }
    };
    tell_unsummed(mover.engine, item, error);
}

/// Hashes open content, or cuts it into parts.
fn sum_content(
    mover: &mut Mover<'_>,
    content: &Content,
    item: &SumItem,
    shown: Shown<'_>,
) -> Result<(), EntryError> {
    // What is read from a pipe cannot be read again.
    let tries_both = match item.expected.as_ref().and_then(|expected| expected.guess) {
        Some(Guess::Open) => true,
        Some(Guess::Likely) => content.is_stream,
        Some(Guess::Last) | None => false,
    };
    if tries_both {
        return guess::sum_with_both(mover, content, item, shown);
    }
    let part = part_of(mover.engine, item.into(), content.metadata.size);
    match hash_chunk(mover.engine, &part.shape).filter(|_| !content.is_stream) {
        Some(chunk) => {
            report_parts(mover, content, item, part, chunk);
            Ok(())
        }
        None => sum_whole(mover, content, item.into(), shown, Some(part)).map(drop),
    }
}

fn report_parts(mover: &mut Mover<'_>, content: &Content, item: &SumItem, part: Part, chunk: u64) {
    let file = HashedFile {
        item: item.clone(),
        version: content.metadata.version(),
        start: part.start,
        shape: part.shape,
        begun_ms: mover.engine.reports.started.elapsed().as_millis() as u64,
    };
    let conclude = FinishHashTask { file: file.clone(), pieces: Vec::new(), failure: None };
    let finish = TaskKind::FinishHash(Box::new(conclude));
    let number = mover.report.add_node(NewNode::new(Parent::Inherited, finish));
    // What they should be is for the conclusion; there may be a million digests.
    let item = SumItem { expected: None, ..file.item.clone() };
    let file = HashedFile { item, ..file };
    for range in chunk::chunks(part.shape.length(), chunk) {
        let kind = TaskKind::Hash(Box::new(HashTask { file: file.clone(), range }));
        mover.report.outcome.tasks.push(NewTask { parent: Parent::New(number), kind });
    }
    mover.report.flush();
}

fn sum_whole(
    mover: &mut Mover<'_>,
    content: &Content,
    wanted: Wanted<'_>,
    shown: Shown<'_>,
    part: Option<Part>,
) -> Result<CopyResult, EntryError> {
    let started = Instant::now();
    let engine = mover.engine;
    // A pipe cannot be read again.
    let item = wanted.item.filter(|_| content.metadata.kind == EntryKind::File);
    let wanted = Wanted { item, ..wanted };
    let (part, pieces) = if content.is_stream {
        let policy = digest_policy(&engine.spec, wanted);
        let [made] =
            digest::digest_stream(&mut mover.session, content, wanted.range, [policy], shown)?;
        made
    } else {
        let part = part.unwrap_or_else(|| part_of(engine, wanted, content.metadata.size));
        let pieces = digest::digest(&mut mover.session, content, part, part.all(), shown)?;
        (part, pieces)
    };
    if content.metadata.kind == EntryKind::File {
        engine.local().check_unchanged(content, shown)?;
    }
    tell_sum(mover, wanted, part, pieces, started.elapsed(), shown)?;
    Ok(CopyResult::bytes(part.shape.length()))
}

/// Hashes a part of a file. The last task of the file handles a failure.
pub(crate) fn run_hash(mover: &mut Mover<'_>, task: &HashTask) {
    match hash_part(mover, task) {
        Ok(digests) => {
            mover.report.outcome.pieces = Some(HashedPieces { start: task.range.start, digests });
            mover.report.outcome.covered = Some(task.range);
            mover.engine.reports.progress();
        }
        Err(error) => mover.report.outcome.chunk_failure = Some(Box::new(error)),
    }
}

fn hash_part(mover: &mut Mover<'_>, task: &HashTask) -> Result<Vec<Digest>, EntryError> {
    let HashedFile { item, version, start, shape, .. } = &task.file;
    let engine = mover.engine;
    let shown = || subject_path(engine, &item.subject);
    let content = open_subject(engine, &item.subject, mover.permit())?;
    if content.metadata.version() != *version {
        return Err(changed(&shown, "the file changed while it was read"));
    }
    let part = Part { shape: *shape, start: *start };
    let digests = digest::digest(&mut mover.session, &content, part, task.range, &shown)?;
    engine.local().check_unchanged(&content, &shown)?;
    Ok(digests)
}

/// Finishes a file that was hashed in parts.
pub(crate) fn run_finish_hash(mover: &mut Mover<'_>, task: &FinishHashTask) {
    let HashedFile { item, shape, start, begun_ms, .. } = &task.file;
    let shown = || subject_path(mover.engine, &item.subject);
    let part = Part { shape: *shape, start: *start };
    let begun = mover.engine.reports.started + Duration::from_millis(*begun_ms);
    let result = match &task.failure {
        None => in_order(&task.pieces, shape)
            .and_then(|pieces| tell_sum(mover, item.into(), part, pieces, begun.elapsed(), &shown)),
        Some(error) => Err((**error).clone()),
    };
    let Err(mut error) = result else { return };
    error.attempt = item.round;
    if error.path.0.is_empty() {
        error.path = shown();
    }
    let again = error.retryable() || error.class == ErrorClass::Fenced;
    if again && item.round < retry::ATTEMPTS_MAX && !mover.engine.control.is_stopping() {
        mover.engine.reports.count(Counter::Retries);
        let kind = match &item.subject {
            Subject::Entry(file) => TaskKind::Open { file: file.clone(), round: item.round + 1 },
            _ => TaskKind::Sums(vec![SumItem { round: item.round + 1, ..item.clone() }]),
        };
        mover.report.outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
    } else {
        tell_unsummed(mover.engine, item, error);
    }
}

/// Computes the digest from its pieces, and reports it or the result of the check.
fn tell_sum(
    mover: &mut Mover<'_>,
    wanted: Wanted<'_>,
    Part { shape, start }: Part,
    pieces: Vec<Digest>,
    elapsed: Duration,
    shown: Shown<'_>,
) -> Result<(), EntryError> {
    let engine = mover.engine;
    let digest = Fold::of(&shape, &pieces).ok_or_else(|| {
        let words = "digests of some parts are missing; please report this as a bug in dmover";
        EntryError::plain(Side::Source, Operation::Check, ErrorClass::Other, shown(), words)
    })?;
    if guess::is_guessed_otherwise(mover, wanted, &digest) {
        return Ok(());
    }
    engine.reports.count(Counter::FilesHashed);
    engine.reports.progress();
    activity::did(activity::ENTRY_WORK);
    let elapsed_us = elapsed.as_micros() as u64;
    engine.reports.done(elapsed_us, shape.length());
    engine.reports.slow(elapsed_us, shape.length(), shown);
    let Some(expected) = wanted.expected else {
        let wants = engine.spec.policy.digest.as_ref().is_some_and(|policy| policy.pieces);
        let end = start + shape.length();
        engine.reports.show(Event::Digest(FileDigest {
            path: shown(),
            number: wanted.number,
            shape,
            range: wanted.range.map(|_| ByteRange { start, end }),
            digest,
            pieces: if wants { pieces } else { Vec::new() },
            elapsed_us,
        }));
        return Ok(());
    };
    let made = if expected.piece.is_some() { pieces } else { vec![digest] };
    let same = made == expected.digests;
    let guessed = expected.guess.filter(|_| same).map(|_| expected.hash);
    let verdict = if same {
        engine.reports.count(Counter::DigestsEqual);
        Verdict::Same
    } else {
        engine.reports.count(Counter::DigestsDiffer);
        let located = expected.piece.is_some();
        let ranges =
            if located { differing(&shape, start, &made, &expected.digests) } else { Vec::new() };
        Verdict::Differs { ranges }
    };
    engine.reports.show(Event::Checked {
        path: shown(),
        number: wanted.number.unwrap_or_default(),
        verdict,
        guessed,
    });
    Ok(())
}

fn open_subject(engine: &Engine, of: &Subject, permit: &dyn Permit) -> Result<Content, EntryError> {
    let shown = || subject_path(engine, of);
    let open = |subject| engine.local().open_subject(subject, permit, &shown);
    match of {
        Subject::Entry(file) => {
            activity::at(Activity::SourceNames);
            let level = directory_pair::open_level(engine, &file.directory)?;
            let (from, name) = (&level.source, file.name.as_bytes());
            open(subject::Subject::Entry {
                from,
                name,
                follows: directory_pair::follows(&engine.spec, &level),
            })
        }
        Subject::Path(path) => {
            let path = engine.places.base.join(path.to_path());
            open(subject::Subject::Path(&path, &engine.places.bounds.trees))
        }
        Subject::Stdin => open(subject::Subject::Input),
    }
}

/// Reports a file of a list or tree without a digest.
fn tell_unsummed(engine: &Engine, item: &SumItem, error: EntryError) {
    let path = error.path.clone();
    let missing = has_no_place(&error);
    let ignored = engine.spec.policy.digest.as_ref().is_some_and(|policy| policy.ignore_missing);
    if missing && ignored {
        engine.reports.count(Counter::FilesMissing);
    } else {
        engine.error(error);
    }
    if let Some(number) = listed(item) {
        let verdict = if missing { Verdict::Missing } else { Verdict::Unreadable };
        engine.reports.show(Event::Checked { path, number, verdict, guessed: None });
    }
}

/// An item of a tree, which is in no list.
fn plain_item(subject: Subject) -> SumItem {
    SumItem { number: 0, subject, range: None, expected: None, round: 1 }
}

fn listed(item: &SumItem) -> Option<u64> {
    (!matches!(item.subject, Subject::Entry(_))).then_some(item.number)
}

/// A subject as a user would type it.
pub(crate) fn subject_path(engine: &Engine, subject: &Subject) -> PathBytes {
    match subject {
        Subject::Entry(file) => {
            let at = &file.directory;
            // Nothing is written, so it has the name of the source.
            engine.destination_path(at.root, &at.path, file.name.as_bytes())
        }
        Subject::Path(path) => path.clone(),
        Subject::Stdin => PathBytes(b"-".to_vec()),
    }
}

fn changed(shown: Shown<'_>, words: &str) -> EntryError {
    EntryError::plain(Side::Source, Operation::Read, ErrorClass::Changed, shown(), words)
}

/// The digests of the pieces of a file, each once and none missing. A part whose mover lost its lease may have been
/// hashed twice, and so may a part that an interrupted run had split: the digests are equal.
pub(crate) fn in_order(parts: &[HashedPieces], shape: &Shape) -> Result<Vec<Digest>, EntryError> {
    let piece = shape.piece();
    let each = parts.iter().flat_map(|part| {
        let places = (part.start..).step_by(piece.max(1) as usize);
        places.zip(part.digests.iter().copied())
    });
    let all: Vec<Digest> = each.collect::<BTreeMap<u64, Digest>>().into_values().collect();
    if all.len() as u64 == shape.pieces() {
        return Ok(all);
    }
    let (side, class) = (Side::Source, ErrorClass::Fenced);
    let words = "digests of some parts are missing";
    Err(EntryError::plain(side, Operation::Read, class, PathBytes::default(), words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_in_any_order_and_may_come_twice() {
        let digest = |value: u8| Digest::new(&[value]).expect("one byte");
        let part = |start, values: &[u8]| HashedPieces {
            start,
            digests: values.iter().map(|value| digest(*value)).collect(),
        };
        let parts = [part(2048, &[3]), part(0, &[1, 2]), part(2048, &[3]), part(0, &[1, 2])];
        let shape = Shape::plain(HashType::Blake3, 2500, 1024);
        let all = Ok(vec![1, 2, 3].into_iter().map(digest).collect());
        assert_eq!(in_order(&parts, &shape), all);
        // One that was cut, and then done as a whole by another run.
        let parts = [part(0, &[1]), part(1024, &[2]), part(2048, &[3]), part(0, &[1, 2, 3])];
        assert_eq!(in_order(&parts, &shape), all);
        let missing = in_order(&[part(0, &[1]), part(2048, &[3])], &shape);
        assert_eq!(missing.map_err(|error| error.class), Err(ErrorClass::Fenced));
    }
}
