//! Files that are unchanged since the previous snapshot: they are shared with it instead of being copied.
//!
//! A file of the base is taken if nothing distinguishes it from its source: the checks of a `sync` pass on the
//! destination are made on the base. Files that changed at the source after the base was begun are checked more
//! closely.
use dmover_journal::{OWN_SNAPSHOTS as OWN, SnapshotRecord, UNFINISHED, file_of, ticked};
use dmover_local::base::BaseTop;
use dmover_local::entry_attributes;
use dmover_local::error::changed;
use dmover_local::rights::Sides;
use dmover_local::session::WriteError;
use dmover_model::{
    ByteRange, EntryError, EntryKind, Fatal, Identity, PathBytes, Share, Side, SnapshotPolicy,
};
use dmover_observe::Counter;
use dmover_plan::decide::Decision;
use dmover_schedule::sync::Mutex;

use crate::alike;
use crate::compare_content;
use crate::context::Engine;
use crate::directory_pair::{self, DirectoryPair, TargetDirectory};
use crate::doubts;
use crate::file;
use crate::manifest_records;
use crate::mover::Mover;
use crate::planned::{Based, CopyResult, Planned};
use crate::sharing::{Base, Sharing};
use crate::snapshot_base::source_object;

impl Sharing {
    /// Opens the state for a job that creates a snapshot.
    pub fn open(policy: &SnapshotPolicy, dry_run: bool) -> Result<Self, Fatal> {
        let directory = policy.directory.to_path();
        let own = directory.join(OWN);
        let base = policy.base.as_ref().map(|name| -> Result<Option<Base>, Fatal> {
            let at = directory.join(name);
            let top = BaseTop::open(&at)?;
            let record = SnapshotRecord::read(own.join(file_of(name)))?;
            let tree = top.tree_identity();
            if record.bytes("tree")?.is_some_and(|known| tree.is_some_and(|tree| tree != known)) {
                // It was copied here, and the record speaks of inodes of another tree.
                tracing::warn!(
                    ?at,
                    "the previous snapshot is a copy from elsewhere; the new one \
                    shares no files with it"
                );
                return Ok(None);
            }
            let begun = ticked(record.number("begun_ms")?.unwrap_or_default());
            let record = record.has_linked()?.then_some(Mutex::new(record));
            Ok(Some(Base { top, begun, record }))
        });
        let unfinished = || SnapshotRecord::open(own.join(file_of(UNFINISHED)));
        Ok(Self {
            share: policy.share,
            base: base.transpose()?.flatten(),
            record: (!dry_run).then(unfinished).transpose()?.map(Mutex::new),
            linked: Mutex::default(),
        })
    }
}

/// Takes a file from the base. `None`: it must be copied.
pub(crate) fn take_from_base(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    target: &TargetDirectory,
    planned: &Planned,
) -> Result<Option<CopyResult>, WriteError> {
    let (Some(based), Some(base)) = (&planned.base, &level.base) else { return Ok(None) };
    let Some(sharing) = &mover.engine.pass.sharing else { return Ok(None) };
    if !planned.is_in_base() || !is_as_in_base(mover, level, base, planned, sharing.share)? {
        return Ok(None);
    }
    let taken = match sharing.share {
        Share::Link => {
            let (from, follows) =
                (&level.source, directory_pair::follows(&mover.engine.spec, level));
            let sides = Sides { from, to: target, follows };
            mover.session.link_from_base(sides, &planned.record, (base, &based.metadata))?
        }
        Share::Reflink => clone_from_base(mover, level, target, planned, base, based)?,
    };
    if !taken {
        return Ok(None);
    }
    mover.engine.reports.add(Counter::BytesUnchanged, planned.record.metadata.size);
    let kept = manifest_records::digest_of_skipped(mover, level, &planned.record)
        .map_err(WriteError::in_place)?;
    Ok(Some(CopyResult { instead: Some(Decision::Share), ..kept }))
}

/// Checks more closely where there is a reason.
fn is_as_in_base(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    base: &TargetDirectory,
    planned: &Planned,
    share: Share,
) -> Result<bool, EntryError> {
    let (engine, record) = (mover.engine, &planned.record);
    let Some(based) = &planned.base else { return Ok(false) };
    if based.decision == Decision::Skip {
        return Ok(true);
    }
    let over = level.over(base)?;
    if based.decision == Decision::Compare {
        let pair =
            compare_content::open_pair(engine, &over, record, &based.metadata, mover.permit())?;
        let source = &pair.source;
        doubts::note_writers(engine, level, &record.name, source.open_file());
        let all = ByteRange { start: 0, end: pair.source.metadata.size };
        let differs = compare_content::compare_range(mover, &over, record, &pair, all)?;
        engine.reports.count(Counter::FilesCompared);
        if !differs.is_empty() {
            return Ok(false);
        }
    }
    if share == Share::Reflink {
        return Ok(true); // it gets attributes of its own
    }
    let source = file::open_source_file(engine, level, record, mover.permit())?;
    let name = record.destination_name().as_bytes();
    let shown = || level.source_path(record.name.as_bytes());
    let other_shown = || level.target_path(name);
    let paths: [&dyn Fn() -> PathBytes; 2] = [&shown, &other_shown];
    let Some(attributes) =
        entry_attributes::attributes_beside(&engine.local(), &source, base, name, paths)?
    else {
        return Ok(false);
    };
    let differs = alike::attribute_differences(engine, level, EntryKind::File, &attributes)?;
    Ok(differs.kinds.is_empty())
}

fn clone_from_base(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    target: &TargetDirectory,
    planned: &Planned,
    base: &TargetDirectory,
    based: &Based,
) -> Result<bool, WriteError> {
    let (engine, record) = (mover.engine, &planned.record);
    let last = record.destination_name().as_bytes();
    let Some(old) = mover.session.local.open_in_base(base, last, &based.metadata) else {
        return Ok(false);
    };
    let supply = file::supply(engine, level, record, mover.permit())?;
    if !supply.metadata.same_version(&record.metadata) {
        return Err(changed(Side::Source, level.source_path(record.name.as_bytes())).into());
    }
    mover.session.clone_from_base(file::order(mover.engine, level, target, planned), &supply, &old)
}

/// Records a group of names that are one inode now.
pub(crate) fn note_linked(engine: &Engine, level: &DirectoryPair, name: &[u8], identity: Identity) {
    let Some(sharing) = &engine.pass.sharing else { return };
    // If it cannot be seen, it belongs to no source inode, and the next snapshot copies it again.
    sharing.note(identity.inode, source_object(level, name).unwrap_or_default());
}
