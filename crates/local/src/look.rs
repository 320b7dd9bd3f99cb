//! Looks at names: what they are at either end, without opening them.
use dmover_model::{
    EntryError, EntryKind, ErrorClass, Identity, Metadata, Operation, Side, Timestamp,
};
use dmover_observe::{Activity, station};
use dmover_sys::{Errno, OwnedFd, directory, file, path, set, stat};
use std::path::Path;

use crate::directory::{SourceDirectory, TargetDirectory};
use crate::end::{Local, LocalEnd};
use crate::error::entry_error;
use crate::session::Session;

/// An entry as a look shows it: its metadata, and the target of a symbolic link.
pub type Seen = (Metadata, Option<Vec<u8>>);

impl Local<'_> {
    /// Looks at a name of the source. `follows`: at what it is a symbolic link to.
    ///
    /// # Errors
    /// It is not there, or its directory cannot be searched.
    pub fn look(
        &self,
        from: &SourceDirectory,
        name: &[u8],
        follows: bool,
    ) -> Result<Seen, EntryError> {
        station::at(Activity::SourceNames);
        let shown = || from.place.entry(name);
        let found = stat::stat_at(&from.fd, name, follows).map_err(|e| {
            let mut error = entry_error(Side::Source, Operation::Stat, shown(), e);
            if follows && stat::stat_at(&from.fd, name, false).is_ok() {
                error.class = ErrorClass::Other;
                "the symbolic link is dangling".clone_into(&mut error.detail);
            }
            error
        })?;
        let metadata = self.end.mounts.metadata(&found);
        let symlink = (metadata.kind == EntryKind::Symlink)
            .then(|| directory::read_symlink(&from.fd, name))
            .transpose()
            .map_err(|e| {
                // EINVAL: it is no link any more.
                let error = if e == Errno::INVAL { Errno::LOOP } else { e };
                entry_error(Side::Source, Operation::ReadLink, shown(), error)
            })?;
        Ok((metadata, symlink))
    }

    /// Looks at a name of the destination; `None` if it is absent. `reads_links`: the target of a symbolic link matters.
    ///
    /// # Errors
    /// Its directory cannot be searched.
    pub fn existing(
        &self,
        to: &TargetDirectory,
        name: &[u8],
        reads_links: bool,
    ) -> Result<Option<Seen>, EntryError> {
        station::at(Activity::TargetNames);
        let fail =
            |operation, e| entry_error(Side::Destination, operation, to.place.entry(name), e);
        let metadata = match stat::stat_at(&to.fd, name, false) {
            Ok(found) => self.end.mounts.metadata(&found),
            Err(error) if stat::is_absent(error) => return Ok(None),
            Err(error) => return Err(fail(Operation::Stat, error)),
        };
        let symlink = (reads_links && metadata.kind == EntryKind::Symlink)
            .then(|| directory::read_symlink(&to.fd, name))
            .transpose()
            .map_err(|e| fail(Operation::ReadLink, e))?;
        Ok(Some((metadata, symlink)))
    }

    /// The metadata of a name of the destination, if it can be seen.
    pub fn visible(&self, to: &TargetDirectory, name: &[u8]) -> Option<Metadata> {
        let found = stat::stat_at(&to.fd, name, false).ok()?;
        Some(self.end.mounts.metadata(&found))
    }
}

impl LocalEnd {
    /// What a symbolic link leads to, by its path as a person knows it: no link leads out of the source's own mount.
    pub fn leads_to(&self, link: &Path, name: &[u8]) -> Option<Identity> {
        let above = link.parent().filter(|above| !above.as_os_str().is_empty());
        let directory = path::open_directory(above.unwrap_or(Path::new("."))).ok()?;
        let found = stat::stat_at(&directory, name, true).ok()?;
        Some(self.mounts.identity(&found))
    }
}

impl Session<'_> {
    /// Learns the time resolution of the destination from times that differ only by rounding.
    pub fn learn_granularity(&self, to: &TargetDirectory, new: Timestamp, was: Timestamp) {
        let doubtful = new != was && new.truncated(2_000_000_000) == was.truncated(2_000_000_000);
        let cut = was.nanoseconds.is_multiple_of(100) && was < new;
        let known = to.facts.granularity_is_known();
        if !(doubtful && cut) || known || self.local.rules.policy.dry_run {
            return;
        }
        if let Err(error) = self.probe_granularity(to) {
            tracing::debug!(%error, "cannot determine the granularity of timestamps");
        }
    }

    fn probe_granularity(&self, to: &TargetDirectory) -> Result<(), Errno> {
        let odd = Timestamp { seconds: 1_000_000_001, nanoseconds: 123_456_789 };
        let time = Some((odd.seconds, odd.nanoseconds));
        let kept =
            |probe: OwnedFd| set::times(&probe, time, time).and_then(|()| stat::stat_fd(&probe));
        // A name would move the directory's times, and could not be removed from a locked one.
        let found = match file::create_unnamed(&to.fd, 0o600) {
            Err(_) if !to.metadata.is_locked() => {
                let name = self.temporary_name();
                let found = file::create_new(&to.fd, name.as_bytes(), 0o600).map(kept)?;
                directory::unlink(&to.fd, name.as_bytes())?;
                found
            }
            made => made.and_then(kept),
        };
        to.facts.learn_granularity(odd, self.local.end.mounts.metadata(&found?).mtime);
        Ok(())
    }
}
