//! Entries whose content is equal and whose owner or mode is not: only those are set.
use dmover_model::{EntryError, EntryRecord, ErrorClass, Metadata, Operation, Side};
use dmover_sys::xattr::Held;
use dmover_sys::{AsFd, path, stat};

use crate::apply::Moved;
use crate::attributes::Object;
use crate::context::entry_error;
use crate::level::{Level, TargetDirectory};
use crate::mover::Mover;

impl Mover<'_> {
    /// Sets owner, extended attributes and mode of what stands at the destination; content, times and
    /// flags stay.
    pub(crate) fn amend(
        &self,
        level: &Level,
        target: &TargetDirectory,
        record: &EntryRecord,
        existing: &Metadata,
    ) -> Result<Moved, EntryError> {
        let engine = self.engine;
        let (_pinned, attributes) = engine.pinned_attributes(level, record)?;
        let name = record.destination_name().as_bytes();
        let shown = || level.target_path(name);
        let fail = |e| entry_error(Side::Destination, Operation::Open, shown(), e);
        let pinned = path::pin_at(&target.fd, name).map_err(fail)?;
        let now = engine.mounts.metadata(&stat::stat_fd(&pinned).map_err(fail)?);
        if now.identity != existing.identity || now.identity == record.metadata.identity {
            let words = "something else stands here now";
            let (side, class) = (Side::Destination, ErrorClass::Escaped);
            return Err(EntryError::plain(side, Operation::Check, class, shown(), words));
        }
        let object = Object {
            fd: pinned.as_fd(),
            held: Held::Pinned,
            kind: record.metadata.kind,
            facts: &target.facts,
            made: false,
            place: Some((target.fd.as_fd(), name)),
            path: &shown,
        };
        engine.set_attributes(object, &record.metadata, &attributes, &now)?;
        Ok(Moved::default())
    }
}
