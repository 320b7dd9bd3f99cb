//! Files that are unchanged since the previous snapshot: they are shared with it instead of being copied.
//!
//! A file of the base is taken if nothing distinguishes it from its source: the checks of a `sync` pass on the
//! destination are made on the base. Files that changed at the source after the base was begun are checked more
//! closely.
use dmover_journal::{OWN_SNAPSHOTS as OWN, SnapshotRecord, UNFINISHED, file_of, ticked};
use dmover_local::directory::tree_identity;
use dmover_local::error::{entry_error, failed};
use dmover_local::session::WriteError;
use dmover_model::{
    ByteRange, EntryError, EntryKind, Fatal, Identity, Operation, Share, Side, SnapshotPolicy,
};
use dmover_observe::{Activity, Counter, station};
use dmover_plan::decide::Decision;
use dmover_sys::copy::Offer;
use dmover_sys::xattr::Held;
use dmover_sys::{AsFd, Errno, copy, directory, path, stat};
use std::sync::Mutex;

use crate::finding::changed;
use crate::level::{Level, TargetDirectory};
use crate::mover::Mover;
use crate::planned::{Based, Moved, Planned};
use crate::sharing::{Base, Sharing};
use crate::snapshot_base::source_object;

impl Sharing {
    /// Opens the state for a job that creates a snapshot.
    pub fn open(policy: &SnapshotPolicy, dry_run: bool) -> Result<Self, Fatal> {
        let directory = policy.directory.to_path();
        let own = directory.join(OWN);
        let base = policy.base.as_ref().map(|name| -> Result<Option<Base>, Fatal> {
            let at = directory.join(name);
            let top = path::open_directory(&at).map_err(|e| failed(&at, "open", e))?;
            let record = SnapshotRecord::read(own.join(file_of(name)))?;
            let tree = stat::stat_born_at(&top, b"").map(|found| tree_identity(&found));
            if record.bytes("tree")?.is_some_and(|known| tree.is_ok_and(|tree| tree != known)) {
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

impl Mover<'_> {
    /// Takes a file from the base. `None`: it must be copied.
    pub(crate) fn take_from_base(
        &mut self,
        level: &Level,
        target: &TargetDirectory,
        planned: &Planned,
    ) -> Result<Option<Moved>, WriteError> {
        let (Some(based), Some(base)) = (&planned.base, &level.base) else { return Ok(None) };
        let Some(sharing) = &self.engine.sharing else { return Ok(None) };
        if !planned.is_in_base() || !self.is_as_in_base(level, base, planned, sharing.share)? {
            return Ok(None);
        }
        let taken = match sharing.share {
            Share::Link => self.link_from_base(level, target, planned, base, based)?,
            Share::Reflink => self.clone_from_base(level, target, planned, base, based)?,
        };
        if !taken {
            return Ok(None);
        }
        self.engine.add(Counter::BytesUnchanged, planned.record.metadata.size);
        let kept = self.digest_of_skipped(level, &planned.record).map_err(WriteError::in_place)?;
        Ok(Some(Moved { instead: Some(Decision::Share), ..kept }))
    }

    /// Checks more closely where there is a reason.
    fn is_as_in_base(
        &mut self,
        level: &Level,
        base: &TargetDirectory,
        planned: &Planned,
        share: Share,
    ) -> Result<bool, EntryError> {
        let (engine, record) = (self.engine, &planned.record);
        let Some(based) = &planned.base else { return Ok(false) };
        if based.decision == Decision::Skip {
            return Ok(true);
        }
        let over = level.over(base)?;
        if based.decision == Decision::Compare {
            let pair = engine.open_pair(&over, record, &based.metadata, self.permit())?;
            let source = &pair.source;
            engine.note_writers(level, &record.name, (&source.metadata, &source.fd));
            let all = ByteRange { start: 0, end: pair.source.metadata.size };
            let differs = self.compare_range(&over, record, &pair, all)?;
            engine.count(Counter::FilesCompared);
            if !differs.is_empty() {
                return Ok(false);
            }
        }
        if share == Share::Reflink {
            return Ok(true); // it gets attributes of its own
        }
        let (source, _) = engine.open_source_file(level, record, self.permit())?;
        let name = record.destination_name().as_bytes();
        let Ok(other) = path::open_file_at(&base.fd, name, false) else { return Ok(false) };
        let shown = || level.source_path(record.name.as_bytes());
        let other_shown = || level.target_path(name);
        let of = (level, EntryKind::File, Held::Open);
        let sides = (source.as_fd(), other.as_fd());
        let differs = engine.attribute_differences(of, sides, (&shown, &other_shown))?;
        Ok(differs.kinds.is_empty())
    }

    fn link_from_base(
        &self,
        level: &Level,
        target: &TargetDirectory,
        planned: &Planned,
        base: &TargetDirectory,
        based: &Based,
    ) -> Result<bool, EntryError> {
        let record = &planned.record;
        let last = record.destination_name().as_bytes();
        self.session.writes_to(target);
        station::at(Activity::TargetNames);
        match directory::hard_link(&base.fd, last, &target.fd, last) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(self.session.taken(target, last)),
            Err(error) => {
                // Too many names already, immutable, another file system, no such thing as links.
                tracing::debug!(?error, "cannot link a file of the previous snapshot");
                return Ok(false);
            }
        }
        // Whatever happens to the source from now on is seen by the next snapshot; what happened before is seen here.
        station::at(Activity::SourceNames);
        let now = self.look(level, &record.name);
        let same = now.as_ref().is_ok_and(|now| now.metadata.same_version(&record.metadata));
        let right = same && self.session.is_at(target, last, based.metadata.identity);
        if right {
            return Ok(true);
        }
        let fail =
            |e| entry_error(Side::Destination, Operation::Unlink, level.target_path(last), e);
        directory::unlink(&target.fd, last).map_err(fail)?;
        now?;
        Err(changed(Side::Source, level.source_path(record.name.as_bytes())))
    }

    fn clone_from_base(
        &mut self,
        level: &Level,
        target: &TargetDirectory,
        planned: &Planned,
        base: &TargetDirectory,
        based: &Based,
    ) -> Result<bool, WriteError> {
        let (engine, record) = (self.engine, &planned.record);
        let last = record.destination_name().as_bytes();
        let Ok(old) = path::open_file_at(&base.fd, last, false) else { return Ok(false) };
        let found = stat::stat_fd(&old).map(|found| engine.end.mounts.metadata(&found));
        if !found.is_ok_and(|found| found.same_version(&based.metadata)) {
            return Ok(false);
        }
        let supply = engine.supply(level, record, self.permit())?;
        if !supply.metadata.same_version(&record.metadata) {
            return Err(changed(Side::Source, level.source_path(record.name.as_bytes())).into());
        }
        let temporary = self
            .session
            .needs_temporary(planned.decision)
            .then(|| self.session.temporary_in(&level.source, target));
        let name = temporary.as_ref().map_or(last, |temporary| temporary.as_bytes());
        let file = self.session.create_file(target, name, last, &supply)?;
        let size = supply.metadata.size;
        if size > 0 && !matches!(copy::clone_file(&old, file.fd()), Ok(Offer::Done(()))) {
            return Ok(false); // what was made is removed again
        }
        engine.local().check_version(
            &level.source,
            record.name.as_bytes(),
            &supply.fd,
            &supply.metadata,
        )?;
        let shown = || level.target_path(last);
        engine.local().finish_file(
            &file,
            &supply.metadata,
            &supply.attributes,
            temporary.is_some(),
            &shown,
        )?;
        let order = self.order(level, target, planned);
        self.session.settle(order, file, &supply)?;
        Ok(true)
    }

    /// Records a group of names that are one inode now.
    pub(crate) fn note_linked(&self, level: &Level, name: &[u8], identity: Identity) {
        let Some(sharing) = &self.engine.sharing else { return };
        match source_object(level, name) {
            Ok(source) => sharing.note(identity.inode, source),
            // Then it belongs to no source inode, and the next snapshot copies it again.
            Err(_) => sharing.note(identity.inode, (0, 0)),
        }
    }
}
