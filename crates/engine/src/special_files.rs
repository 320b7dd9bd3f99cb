//! Symbolic links, FIFOs, sockets and device nodes.
use dmover_model::{EntryError, EntryKind, EntryRecord, ErrorClass, Metadata, Operation, Side};
use dmover_observe::{Activity, station};
use dmover_plan::decide::Decision;
use dmover_sys::directory::{self, NodeType};
use dmover_sys::xattr::Held;
use dmover_sys::{AsFd, OwnedFd, path, stat};
use dmover_tree::{Limit, Permit};

use crate::apply::{Moved, Renaming};
use crate::context::Engine;
use crate::level::{Level, TargetDirectory};
use crate::mover::Mover;
use dmover_local::attributes::{Attributes, Object};
use dmover_local::error::entry_error;

impl Engine {
    /// Opens a source entry with O_PATH and reads its extended attributes.
    pub(crate) fn pinned_attributes(
        &self,
        level: &Level,
        record: &EntryRecord,
    ) -> Result<(OwnedFd, Attributes), EntryError> {
        let shown = || level.source_path(record.name.as_bytes());
        let (pinned, held) = self.open_for_attributes(level, record)?;
        let attributes = self.attributes().read(pinned.as_fd(), held, &shown)?;
        Ok((pinned, attributes))
    }
}

impl Mover<'_> {
    /// Copies an entry without file content.
    pub(crate) fn bring_other(
        &self,
        level: &Level,
        target: &TargetDirectory,
        record: &EntryRecord,
        decision: Decision,
    ) -> Result<Moved, EntryError> {
        let engine = self.engine;
        let (_pinned, attributes) = engine.pinned_attributes(level, record)?;
        let last = record.destination_name().as_bytes();
        let temporary = self.needs_temporary(decision).then(|| self.temporary_in(level));
        let name = temporary.as_ref().map_or(last, |t| t.as_bytes());
        self.make(level, target, record, name)?;
        let made = self.pin_made(level, target, record, name)?;
        let done = self.dress(level, target, record, &made, &attributes);
        let settled = done.and_then(|()| {
            if name == last {
                return Ok(());
            }
            let identity = made.metadata.identity;
            let source = record.metadata.identity;
            let renaming = Renaming { name, last, decision, locks: false, identity, source };
            self.put_in_place(level, target, renaming)
        });
        if let Err(error) = settled {
            let there = stat::stat_at(&target.fd, name, false).ok();
            if there.map(|s| engine.mounts.identity(&s)) == Some(made.metadata.identity) {
                // An incomplete entry must not stay; the error below reports it if it does.
                let _ = directory::unlink(&target.fd, name);
            }
            return Err(error);
        }
        let extended = engine.extended_to_keep(&attributes, Held::Pinned);
        Ok(Moved { extended, ..Moved::default() })
    }

    fn make(
        &self,
        level: &Level,
        target: &TargetDirectory,
        record: &EntryRecord,
        name: &[u8],
    ) -> Result<(), EntryError> {
        station::at(Activity::TargetNames);
        let node = match record.metadata.kind {
            EntryKind::Fifo => Some(NodeType::Fifo),
            EntryKind::Socket => Some(NodeType::Socket),
            EntryKind::CharDevice => Some(NodeType::CharacterDevice),
            EntryKind::BlockDevice => Some(NodeType::BlockDevice),
            _ => None,
        };
        self.permit().one_more(Limit::Creates);
        let result = match node {
            Some(node) => {
                let mode = self.engine.attributes().closed_mode(&record.metadata);
                directory::make_node(&target.fd, name, node, mode, record.metadata.device)
            }
            None => {
                let content = record.symlink.as_deref().unwrap_or_default();
                directory::make_symlink(content, &target.fd, name)
            }
        };
        let last = record.destination_name().as_bytes();
        result.map_err(|e| self.not_made(level, target, name, last, e))
    }

    /// Opens an entry that was just created with O_PATH, after a check of its identity.
    fn pin_made<'n>(
        &self,
        level: &Level,
        target: &TargetDirectory,
        record: &EntryRecord,
        name: &'n [u8],
    ) -> Result<Made<'n>, EntryError> {
        let shown = || level.target_path(record.destination_name().as_bytes());
        let fail = |e| entry_error(Side::Destination, Operation::Open, shown(), e);
        let pinned = path::pin_at(&target.fd, name).map_err(fail)?;
        let metadata = self.engine.mounts.metadata(&stat::stat_fd(&pinned).map_err(fail)?);
        let own = target.facts.is_own(metadata.uid, self.engine.privilege.uid);
        if own && is_alike(&metadata, &record.metadata) {
            return Ok(Made { name, pinned, metadata });
        }
        let words = "another entry has replaced this one";
        let (side, class) = (Side::Destination, ErrorClass::Escaped);
        Err(EntryError::plain(side, Operation::Check, class, shown(), words))
    }

    /// Sets the attributes of an entry that was just created.
    fn dress(
        &self,
        level: &Level,
        target: &TargetDirectory,
        record: &EntryRecord,
        made: &Made<'_>,
        attributes: &Attributes,
    ) -> Result<(), EntryError> {
        let engine = self.engine;
        let shown = || level.target_path(record.destination_name().as_bytes());
        let object = Object {
            fd: made.pinned.as_fd(),
            held: Held::Pinned,
            kind: record.metadata.kind,
            facts: &target.facts,
            made: true,
            replaces: None,
            inherits: target.default_acl,
            place: Some((target.fd.as_fd(), made.name)),
            path: &shown,
        };
        if engine.attributes().takes_acl_away(object, attributes) {
            engine.prepare_pinned(object)?;
        }
        engine.attributes().set(object, &record.metadata, attributes, &made.metadata)?;
        engine.attributes().set_times(object, &record.metadata)
    }
}

/// An entry that was just created, held open so that no other program can replace it.
struct Made<'a> {
    name: &'a [u8],
    pinned: OwnedFd,
    metadata: Metadata,
}

/// Whether an entry has the type that was just created and one name.
fn is_alike(now: &Metadata, wanted: &Metadata) -> bool {
    now.kind == wanted.kind && now.links == 1 && now.device == wanted.device
}

impl Engine {
    fn prepare_pinned(&self, object: Object<'_>) -> Result<(), EntryError> {
        use dmover_local::attributes::ACCESS_ACL;
        dmover_sys::xattr::remove(object.fd, object.held, ACCESS_ACL)
            .map_err(|e| entry_error(Side::Destination, Operation::SetXattr, (object.path)(), e))
    }
}
