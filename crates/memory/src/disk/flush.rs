//! Flushes, the end of a process, and power cuts.
use crate::disk::{Disk, Handle, User};
use crate::errno::{Errno, Result};
use crate::faults::{Call, Fault, Faults};
use crate::stored::{Flush, Log};

impl User<'_> {
    /// The content of a file is on storage: `fdatasync`.
    ///
    /// # Errors
    ///
    /// As fdatasync(2).
    pub fn sync_data(&mut self, file: Handle) -> Result<()> {
        self.call(Call::SyncData, &[file.into()], |user, fault| {
            let inode = user.opened_to_flush(file)?;
            user.flush(Flush::Data(inode), fault)
        })
    }

    /// Content and metadata of a file, or the names in a directory, are on storage: `fsync`.
    ///
    /// # Errors
    ///
    /// As fsync(2).
    pub fn sync(&mut self, object: Handle) -> Result<()> {
        self.call(Call::Sync, &[object.into()], |user, fault| {
            let inode = user.opened_to_flush(object)?;
            user.flush(Flush::Inode(inode), fault)
        })
    }

    /// Everything is on storage: `syncfs`.
    ///
    /// # Errors
    ///
    /// As syncfs(2).
    pub fn sync_all(&mut self, object: Handle) -> Result<()> {
        self.call(Call::SyncAll, &[object.into()], |user, fault| {
            user.opened_to_flush(object)?;
            user.flush(Flush::All, fault)
        })
    }

    /// The cache forgets a range of a file: what a failed flush has lost is read from storage afterwards, as
    /// `POSIX_FADV_DONTNEED` does. A length of 0 means up to the end.
    ///
    /// # Errors
    ///
    /// `BADF`, or `INVAL` if it is no file.
    pub fn forget(&mut self, file: Handle, offset: u64, length: u64) -> Result<()> {
        let inode = self.opened_to_flush(file)?;
        let size = self.content(inode)?.size();
        let end = if length == 0 { size } else { offset.saturating_add(length).min(size) };
        if let Some(stored) = self.disk.log.without_lost(&self.disk.stored, inode) {
            self.disk.cached.edit_content(inode, |of| of.replace_blocks(&stored, offset, end));
        }
        Ok(())
    }

    /// A handle that was only reached (`O_PATH`) cannot be flushed.
    fn opened_to_flush(&self, handle: Handle) -> Result<u64> {
        let opened = self.disk.opened(handle)?;
        if opened.reads || opened.writes { Ok(opened.inode) } else { Err(Errno::BADF) }
    }

    fn flush(&mut self, what: Flush, fault: Option<Fault>) -> Result<()> {
        if let Some(Fault::LosesData(errno)) = fault {
            self.disk.log.lose(what);
            return Err(errno);
        }
        self.disk.log.flush(what, self.disk.profile.crash.order);
        if what == Flush::All && self.disk.log.is_stored() {
            self.disk.settle();
        }
        Ok(())
    }
}

impl Disk {
    /// Everything is on storage, without a call; also what a failed flush has lost.
    pub fn settle(&mut self) {
        self.stored = self.cached.clone();
        self.log.clear();
    }

    /// All processes end: their handles are closed. What they have changed stays.
    pub fn kill(&mut self) {
        while let Some((handle, _)) = self.handles.first_key_value() {
            let handle = Handle(*handle);
            // It was in the table a moment ago.
            let _ = self.drop_handle(handle);
        }
    }

    /// The disk after a power cut at this moment, mounted again: one of the states that the profile's model allows. It
    /// has no handles, no rules for faults and no record of calls; this disk stays as it is.
    #[must_use]
    pub fn cut(&self, seed: u64) -> Self {
        let state = self.log.cut(&self.stored, self.profile.crash, seed);
        Self {
            profile: self.profile.clone(),
            clock: self.clock.clone(),
            seed: self.seed,
            is_read_only: false,
            cached: state.clone(),
            stored: state,
            log: Log::default(),
            handles: std::collections::BTreeMap::new(),
            next_handle: self.next_handle,
            unnamed: std::collections::BTreeSet::new(),
            faults: Faults::new(seed),
        }
    }
}
