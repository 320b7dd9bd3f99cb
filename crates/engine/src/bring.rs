//! Carries out the decision for an entry of a copy, a pass or a repair.
use dmover_local::session::WriteError;
use dmover_local::source::Opened;
use dmover_model::{EntryError, EntryKind, Operation, Side, Verb, When};
use dmover_plan::decide::Decision;

use crate::context::Engine;
use crate::directory_pair::{self, DirectoryPair, TargetDirectory};
use crate::extra;
use crate::file;
use crate::inspect::{self, Compared};
use crate::manifest_records;
use crate::mover::Mover;
use crate::planned::{CopyResult, Planned};
use crate::snapshot;

/// Carries out the decision for an entry.
pub(crate) fn bring(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    planned: &Planned,
    opened: Option<Opened>,
) -> Result<CopyResult, WriteError> {
    let record = &planned.record;
    if let Decision::Refuse(class, words) = planned.decision {
        let path = level.target_path(record.destination_name().as_bytes());
        let operation = Operation::Create;
        return Err(EntryError::plain(Side::Destination, operation, class, path, words).into());
    }
    match planned.decision {
        Decision::Skip => return Ok(manifest_records::digest_of_skipped(mover, level, record)?),
        Decision::Clear if !mover.engine.spec.policy.dry_run => {
            extra::delete::clear(mover, level, planned);
            return Ok(CopyResult::otherwise(Decision::Clear));
        }
        Decision::Clear if !extra::delete::clear(mover, level, planned) => {
            return Ok(CopyResult::otherwise(Decision::Clear));
        }
        Decision::Clear => {
            let instead = Some(Decision::Replace);
            return Ok(CopyResult { instead, ..would_move(mover.engine, level, planned) });
        }
        Decision::Compare => {
            let may_lack_size = match inspect::compare_with_source(mover, level, planned)? {
                Compared::Differs(decision) => {
                    return bring_instead(mover, level, planned, decision);
                }
                Compared::Equal { may_lack_size } => may_lack_size,
            };
            let moved = if mover.engine.spec.verb == Verb::Sync {
                inspect(mover, level, planned)?
            } else {
                // What is equal keeps its attributes, whatever they are.
                let kept = manifest_records::digest_of_skipped(mover, level, record)?;
                CopyResult { instead: Some(Decision::Skip), ..kept }
            };
            let is_as_it_was = moved.instead != Some(Decision::Replace);
            if may_lack_size && is_as_it_was && !store_size(mover, level, planned)? {
                return bring_instead(mover, level, planned, Decision::Replace);
            }
            return Ok(moved);
        }
        Decision::Inspect => return inspect(mover, level, planned),
        _ => {}
    }
    let target = match &level.target {
        Some(target) if !mover.engine.spec.policy.dry_run => target,
        _ if planned.is_in_base() => {
            return Ok(CopyResult::otherwise(Decision::Share));
        }
        _ => return Ok(would_move(mover.engine, level, planned)),
    };
    mover.check_lease(level, record.destination_name().as_bytes())?;
    if let Some(moved) = snapshot::take_from_base(mover, level, target, planned)? {
        return Ok(moved);
    }
    let result = match record.metadata.kind {
        EntryKind::File => file::bring_file(mover, level, target, planned, opened),
        _ => file::bring_other(mover, level, target, record, planned.decision).map_err(Into::into),
    };
    result.map_err(|e| WriteError { error: explain(mover, target, planned, e.error), ..e })
}

/// Makes the size of a file that is equal reach storage. Returns whether that was possible.
fn store_size(
    mover: &Mover<'_>,
    level: &DirectoryPair,
    planned: &Planned,
) -> Result<bool, EntryError> {
    let both = level.target.as_ref().zip(planned.existing.as_ref());
    let Some((target, found)) = both.filter(|_| !mover.engine.spec.policy.dry_run) else {
        return Ok(true);
    };
    if found.links > 1 && found.links != mover.entry.names_here {
        // Another name of the inode may belong to another tree, such as an earlier snapshot.
        return Ok(false);
    }
    mover.session.store_size(target, planned.record.destination_name().as_bytes(), found)
}

/// Carries out another decision than the planned one.
fn bring_instead(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    planned: &Planned,
    decision: Decision,
) -> Result<CopyResult, WriteError> {
    let planned = Planned { decision, ..planned.clone() };
    let moved = bring(mover, level, &planned, None)?;
    Ok(CopyResult { instead: Some(decision), ..moved })
}

/// Sets the attributes of an entry with the right content.
fn inspect(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    planned: &Planned,
) -> Result<CopyResult, WriteError> {
    let needed = inspect::dress_if_unlike(mover, level, planned)?;
    if needed == Decision::Replace {
        return bring_instead(mover, level, planned, needed);
    }
    // What is left as it was counts for a manifest like anything that was skipped.
    let kept = manifest_records::digest_of_skipped(mover, level, &planned.record);
    // Other attributes have moved the change time, so another attempt would skip the entry.
    let in_place = needed == Decision::Inspect;
    let kept = kept.map_err(|error| WriteError { error, in_place })?;
    Ok(CopyResult { instead: Some(needed), ..kept })
}

fn explain(
    mover: &Mover<'_>,
    target: &TargetDirectory,
    planned: &Planned,
    error: EntryError,
) -> EntryError {
    const EEXIST: i32 = 17;
    let create = error.operation == Operation::Create && planned.decision == Decision::Create;
    if error.errno == EEXIST && create {
        return mover.session.taken(target, planned.record.destination_name().as_bytes());
    }
    error
}

/// The bytes that a dry run reports for an entry; holes are not copied.
fn would_move(engine: &Engine, level: &DirectoryPair, planned: &Planned) -> CopyResult {
    let record = &planned.record;
    let size = match record.metadata.kind {
        EntryKind::File => record.metadata.size,
        _ => return CopyResult::default(),
    };
    let has_holes = record.metadata.may_have_holes()
        && level.source.facts.local
        && level.root.range.is_none()
        && engine.spec.policy.sparse != When::Never;
    if !has_holes {
        return CopyResult::bytes(size);
    }
    // What cannot be opened will be an error of the copy.
    let follows = directory_pair::follows(&engine.spec, level);
    CopyResult::bytes(level.source.data_in(record.name.as_bytes(), follows, size))
}
