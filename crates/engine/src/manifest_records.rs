//! Records of copied files for the manifest, with the digests that were computed while their bytes passed.
use dmover_digest::Fold;
use dmover_local::digest;
use dmover_local::digest_tap::Made;
use dmover_local::entry_attributes;
use dmover_model::{
    Action, Attribute, Body, ByteRange, Carried, Content, EntryError, EntryKind, EntryRecord,
    ErrorClass, Event, Extended, FileDigest, Operation, Record, Side,
};
use dmover_observe::Counter;
use serde_bytes::ByteBuf;
use std::time::Duration;

use crate::alike;
use crate::context::Engine;
use crate::directory_pair::DirectoryPair;
use crate::file;
use crate::manifest_attributes;
use crate::mover::Mover;
use crate::planned::{CopyResult, Planned};

/// Writes an entry that was copied, or that already existed, to the manifest.
pub(crate) fn keep_entry(
    engine: &Engine,
    level: &DirectoryPair,
    record: &EntryRecord,
    extended: Extended,
    content: Option<Content>,
) {
    if engine.proof.recorder.is_none() {
        return;
    }
    let metadata = &record.metadata;
    let path = level.root.manifest_path(&level.path, record.destination_name().as_bytes());
    let linked = metadata.links > 1 && metadata.kind != EntryKind::Directory;
    let is_device = matches!(metadata.kind, EntryKind::CharDevice | EntryKind::BlockDevice);
    let body = Body {
        kind: metadata.kind,
        mode: metadata.mode,
        uid: engine.settable.ids.user(metadata.uid),
        gid: engine.settable.ids.group(metadata.gid),
        size: if metadata.kind == EntryKind::File { metadata.size } else { 0 },
        mtime: metadata.mtime,
        link: (linked
            && engine.spec.policy.preserve.has(Attribute::Links)
            && !engine.spec.follows_links())
        .then(|| metadata.identity.inode ^ u64::from(metadata.identity.mount.0) << 56),
        symlink: record.symlink.clone().map(ByteBuf::from),
        device: is_device.then_some(metadata.device),
        extended,
        content,
    };
    engine.proof.keep(|| Record { path, body });
}

/// Writes a directory to the manifest.
pub(crate) fn keep_directory(engine: &Engine, level: &DirectoryPair) {
    if engine.proof.recorder.is_none() {
        return;
    }
    let metadata = &level.source.metadata;
    let path = level.root.manifest_path(&level.path, b"");
    // An unreadable one is reported when the directory is finished.
    let extended = if engine.proof.keeps_what_is_there() {
        let attributes = entry_attributes::attributes_of(&engine.local(), &level.source);
        attributes
            .map(|all| manifest_attributes::extended_to_keep(engine, &all))
            .unwrap_or_default()
    } else {
        Extended::default()
    };
    let body = Body {
        kind: EntryKind::Directory,
        mode: metadata.mode,
        uid: engine.settable.ids.user(metadata.uid),
        gid: engine.settable.ids.group(metadata.gid),
        size: 0,
        mtime: metadata.mtime,
        link: None,
        symlink: None,
        device: None,
        extended,
        content: None,
    };
    engine.proof.keep(|| Record { path, body });
}

/// Computes the digest of a file that an earlier run has copied, for the manifest.
pub(crate) fn digest_of_skipped(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    record: &EntryRecord,
) -> Result<CopyResult, EntryError> {
    let engine = mover.engine;
    if !engine.proof.keeps_what_is_there() {
        return Ok(CopyResult::default());
    }
    if record.metadata.kind != EntryKind::File {
        let extended = manifest_attributes::extended_of_skipped(engine, level, record)?;
        return Ok(CopyResult { extended, ..CopyResult::default() });
    }
    let Some(shape) = mover.session.local.rules.digest_shape(record.metadata.size) else {
        return Ok(CopyResult::default());
    };
    let content = file::open_source_file(engine, level, record, mover.permit())?;
    if content.metadata.version() != record.metadata.version() {
        let (side, class) = (Side::Source, ErrorClass::Changed);
        let words = "the file changed after it was compared";
        let path = level.source_path(record.name.as_bytes());
        return Err(EntryError::plain(side, Operation::Check, class, path, words));
    }
    let shown = || level.source_path(record.name.as_bytes());
    let attributes = entry_attributes::attributes_of_content(&engine.local(), &content, &shown)?;
    let extended = manifest_attributes::extended_to_keep(engine, &attributes);
    let pieces = digest::digest_of_file(&mut mover.session, &content, shape, &shown)?;
    Ok(CopyResult {
        made: vec![Made { shape, at: None, pieces }],
        extended,
        ..CopyResult::default()
    })
}

/// Reports the digests of a file, and writes them to the manifest.
pub(crate) fn tell_made(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    record: &EntryRecord,
    (action, moved): (Action, CopyResult),
    kept: bool,
    elapsed: Duration,
) {
    let engine = mover.engine;
    let policy = &engine.spec.policy;
    let mut content = None;
    // It may have got other attributes, or blocks of another file, but nothing was written.
    let unwritten = matches!(action, Action::Skipped | Action::MetadataUpdated | Action::Shared)
        && moved.made.is_empty();
    for Made { shape, at, pieces } in moved.made {
        let Some(digest) = Fold::of(&shape, &pieces) else {
            engine.proof.leave_out();
            continue;
        };
        engine.reports.count(Counter::FilesHashed);
        if at.is_none() && engine.proof.recorder.is_some() {
            let pieces = if pieces.len() > 1 { pieces.clone() } else { Vec::new() };
            content = Some(Content { shape, digest, pieces });
        }
        let Some(side) = policy.print_hash.filter(|_| action != Action::Skipped) else {
            continue;
        };
        let (path, start) = match side {
            Side::Source => (level.source_path(record.name.as_bytes()), at.map(|at| at.0)),
            Side::Destination => {
                let name = record.destination_name().as_bytes();
                // The list is checked where the copies are.
                let names = level.root.destination_names();
                (names.without_host(&level.target_path(name)), at.map(|at| at.1))
            }
        };
        let range = start.map(|start| ByteRange { start, end: start + shape.length() });
        let wants = policy.digest.as_ref().is_some_and(|policy| policy.pieces);
        engine.reports.show(Event::Digest(FileDigest {
            path,
            number: None,
            shape,
            range,
            digest,
            pieces: if wants { pieces } else { Vec::new() },
            elapsed_us: elapsed.as_micros() as u64,
        }));
    }
    if unwritten && !engine.proof.keeps_what_is_there() {
        return;
    }
    if kept {
        // The policy keeps another entry there.
        engine.proof.leave_out();
        return;
    }
    if engine.proof.recorder.is_none() {
        return;
    }
    let metadata = moved.version.unwrap_or_else(|| record.metadata.clone());
    let extended = moved.extended;
    if metadata.links > 1 {
        let (extended, content) = (extended.clone(), content.clone());
        let carried = Carried { of: metadata.identity, extended, content };
        engine.proof.remember_sealed(&carried);
        mover.entry.carried = Some(carried);
    }
    keep_entry(engine, level, &EntryRecord { metadata, ..record.clone() }, extended, content);
}

/// Whether a skipped entry is equal, and not merely kept by the policy.
pub(crate) fn is_equal_there(engine: &Engine, level: &DirectoryPair, planned: &Planned) -> bool {
    let both = planned.existing.as_ref().zip(level.target.as_ref());
    both.is_some_and(|(old, target)| {
        alike::is_the_same(&engine.spec, &planned.record.metadata, old, target)
    })
}
