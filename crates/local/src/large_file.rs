//! Files that several movers write: begun under a temporary name, continued by a later run, and ended by one of them.
use dmover_model::{EntryError, Identity, Metadata, Name, Operation, Side, When};
use dmover_sys::copy::{self, Offer};
use dmover_sys::{AsFd, Errno, OwnedFd, directory, file, stat};

use crate::content::{Holes, Transfer};
use crate::digest_tap::Tap;
use crate::directory::{SourceDirectory, TargetDirectory};
use crate::end::LocalEnd;
use crate::error::entry_error;
use crate::file::{FileOrder, Unfinished, cannot_share};
use crate::session::{Session, WriteError};
use crate::source::Supply;

impl Session<'_> {
    /// Gives a new temporary file the blocks of an older version, or reserves its space. Returns whether it shares the old
    /// blocks.
    ///
    /// # Errors
    /// There is no space, or blocks must be shared and cannot.
    pub fn fill_up(
        &self,
        order: FileOrder<'_>,
        source: &Metadata,
        file: &Unfinished<'_>,
    ) -> Result<bool, EntryError> {
        let shown = || order.to.place.entry(order.last);
        if self.local.rules.policy.reflink == When::Always {
            return Err(cannot_share(shown()));
        }
        let patched = self.begins_with_old(order, source, file)?;
        if !patched {
            let fail = |e| entry_error(Side::Destination, Operation::Allocate, shown(), e);
            self.reserve(file, source).map_err(fail)?;
        }
        Ok(patched)
    }

    /// Sets the size. Where files are written in place and there are no holes to keep, the space is reserved at once:
    /// it is contiguous, a lack of space is noticed before the first byte, and direct writes need not grow the file.
    fn reserve(&self, file: &Unfinished<'_>, source: &Metadata) -> Result<(), Errno> {
        let reserves = file.target.facts.writes_in_place
            && self.local.content().holes(source) == Holes::Fill
            && file::allocate(file.fd(), source.size)?;
        if reserves { Ok(()) } else { file::set_size(file.fd(), source.size) }
    }

    /// Tries to share all blocks of the source.
    ///
    /// # Errors
    /// The source cannot be read for its digest.
    pub fn share_whole(
        &mut self,
        order: FileOrder<'_>,
        supply: &Supply,
        file: &Unfinished<'_>,
        tap: Option<&Tap>,
    ) -> Result<bool, EntryError> {
        let source_path = || order.from.place.entry(order.name);
        let target_path = || order.to.place.entry(order.last);
        let size = supply.metadata.size;
        let transfer = Transfer {
            source: supply.fd.as_fd(),
            destination: file.fd(),
            size,
            flushed: true,
            source_mount: supply.metadata.identity.mount,
            source_facts: &order.from.facts,
            facts: &file.target.facts,
            source_path: &source_path,
            target_path: &target_path,
            permit: self.permit,
            tap: tap.map(|tap| &tap.pieces),
        };
        let content = self.local.content();
        let shared = content.share(transfer, size)?;
        if shared {
            content.read_for_digest(transfer, size, self.tools)?;
        }
        Ok(shared)
    }

    /// Sets metadata, flushes, and renames into place.
    ///
    /// # Errors
    /// One of these steps failed.
    pub fn end_file(
        &self,
        order: FileOrder<'_>,
        supply: &Supply,
        file: Unfinished<'_>,
    ) -> Result<(), WriteError> {
        let shown = || order.to.place.entry(order.last);
        let (metadata, attributes) = (&supply.metadata, &supply.attributes);
        self.local.finish_file(&file, metadata, attributes, true, &shown)?;
        self.settle(order, file, supply)
    }

    /// Continues in the temporary file of an earlier run, to which no other mover can write any more.
    pub fn adopt<'t>(&self, target: &'t TargetDirectory, name: &Name) -> Option<Unfinished<'t>> {
        self.writes_to(target);
        let fd = file::open_for_writing(&target.fd, name.as_bytes()).ok()?;
        let mut unfinished = Unfinished::new(self.local.end, target, fd, name.as_bytes()).ok()?;
        // Whatever happens: the record has it, and another attempt continues it.
        unfinished.disarm();
        Some(unfinished)
    }

    /// Continues in a file that shares the blocks of the temporary file of an earlier run: a mover that still writes to
    /// the old file does not affect it.
    ///
    /// # Errors
    /// The new file cannot be created.
    pub fn clone_partial<'t>(
        &self,
        (from, target): (&SourceDirectory, &'t TargetDirectory),
        last: &[u8],
        supply: &Supply,
        old: &OwnedFd,
    ) -> Result<Option<(Name, Unfinished<'t>)>, EntryError> {
        let name = self.temporary_in(from, target);
        let unfinished = self.create_file(target, name.as_bytes(), last, supply)?;
        // If blocks cannot be shared, the file is started again: a copy of the old data would be written as well.
        let is_shared = matches!(copy::clone_file(old, unfinished.fd()), Ok(Offer::Done(())));
        // The record says of it at once that the shared blocks are on storage.
        let is_durable = is_shared && file::sync_data(unfinished.fd()).is_ok();
        Ok(is_durable.then_some((name, unfinished)))
    }
}

/// Removes a temporary file of this job. Returns whether it is gone.
pub fn remove_temporary(target: &TargetDirectory, name: &Name) -> bool {
    match directory::unlink(&target.fd, name.as_bytes()) {
        Ok(()) => true,
        Err(error) if stat::is_absent(error) => true,
        Err(error) => {
            tracing::warn!(%error, ?name, "cannot remove a temporary");
            false
        }
    }
}

impl LocalEnd {
    /// Removes a temporary file if it is this one. Returns whether it is not there any more.
    pub fn remove_if_same(&self, target: &TargetDirectory, name: &Name, is: Identity) -> bool {
        let there = stat::stat_at(&target.fd, name.as_bytes(), false);
        let same = there.is_ok_and(|there| self.mounts.identity(&there) == is);
        !same || remove_temporary(target, name)
    }
}
