//! Lists that do not name their hash function: BLAKE3 and SHA-256 both have 64 digits.
use crate::context::Proof;
use dmover_digest::Fold;
use dmover_local::digest;
use dmover_model::{
    Digest, EntryError, EntryKind, Expected, Guess, HashType, NewTask, Parent, SumItem, TaskKind,
};
use dmover_schedule::time::Instant;

use super::{Content, Part, Shown, Wanted};
use crate::hash_guesses::FUNCTIONS;
use crate::mover::Mover;
use crate::sum;

fn with(item: &SumItem, hash: HashType, guess: Guess) -> SumItem {
    let expected = item.expected.clone();
    let expected = expected.map(|expected| Expected { hash, guess: Some(guess), ..expected });
    SumItem { expected, ..item.clone() }
}

/// The item with the function of the files before it, if its own function is not known.
pub(super) fn likely(proof: &Proof, item: &SumItem) -> Option<SumItem> {
    let is_open = item.expected.as_ref()?.guess == Some(Guess::Open);
    let hash = proof.guesses.only().filter(|_| is_open)?;
    Some(with(item, hash, Guess::Likely))
}

/// Hashes content with both functions, reading it once. No other mover takes part, because SHA-256 cannot be split.
pub(super) fn sum_with_both(
    mover: &mut Mover<'_>,
    content: &Content,
    item: &SumItem,
    shown: Shown<'_>,
) -> Result<(), EntryError> {
    let started = Instant::now();
    let engine = mover.engine;
    let tried = FUNCTIONS.map(|hash| with(item, hash, Guess::Last));
    let wanted = tried.each_ref().map(Wanted::from);
    let made = if content.is_stream {
        let policies = wanted.map(|wanted| sum::digest_policy(&engine.spec, wanted));
        digest::digest_stream(&mut mover.session, content, item.range, policies, shown)?
    } else {
        let parts = wanted.map(|wanted| sum::part_of(engine, wanted, content.metadata.size));
        let shapes = (parts.map(|part| part.shape), parts[0].start);
        let pieces = digest::digests(&mut mover.session, content, shapes, parts[0].all(), shown)?;
        let ([one, other], [first, second]) = (pieces, parts);
        [(first, one), (second, other)]
    };
    if content.metadata.kind == EntryKind::File {
        engine.local().check_unchanged(content, shown)?;
    }
    let fits = |(wanted, (part, pieces)): &(Wanted<'_>, (Part, Vec<Digest>))| {
        let digest = Fold::of(&part.shape, pieces);
        let expected = wanted.expected.map(|expected| &expected.digests[..]);
        digest.is_some_and(|digest| expected == Some(&[digest]))
    };
    let mut all = wanted.into_iter().zip(made);
    let first = all.next();
    let chosen = all.find(fits).or(first);
    let Some((wanted, (part, pieces))) = chosen else { return Ok(()) };
    sum::tell_sum(mover, wanted, part, pieces, started.elapsed(), shown)
}

/// Whether the function was guessed from earlier files and did not match: the file is read again with the other
/// one.
pub(super) fn is_guessed_otherwise(
    mover: &mut Mover<'_>,
    wanted: Wanted<'_>,
    digest: &Digest,
) -> bool {
    let Some((expected, item)) = wanted.expected.zip(wanted.item) else { return false };
    if expected.guess.is_none() || expected.digests == [*digest] {
        if expected.guess.is_some() {
            mover.engine.proof.guesses.matched(expected.hash);
        }
        return false;
    }
    let other = FUNCTIONS.into_iter().find(|function| *function != expected.hash);
    let Some(other) = other.filter(|_| expected.guess == Some(Guess::Likely)) else {
        return false;
    };
    let kind = TaskKind::Sums(vec![with(item, other, Guess::Last)]);
    mover.report.outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
    true
}
