//! Looks at names: what they are at either end, without opening them.
use dmover_model::{
    EntryError, EntryKind, ErrorClass, Identity, Metadata, Operation, Side, Timestamp,
};
use dmover_observe::{Activity, activity};
use dmover_plan::equality::same_time;
use dmover_sys::stat::{ATTRIBUTE_APPEND, ATTRIBUTE_IMMUTABLE, FileType, Stat};
use dmover_sys::{AsFd, Errno, OwnedFd, directory, file, path, set, stat};
use std::path::Path;

use crate::directory::{SourceDirectory, TargetDirectory};
use crate::end::{Local, LocalEnd};
use crate::error::{CallFailed, entry_error};
use crate::handle::{DirectoryHandle, present_of};
use crate::mounts::{MountTable, kind_of};
use crate::root_side::RootSide;
use crate::session::{self, Session};
use crate::source_root::SourceRoot;

pub use dmover_tree::Seen;

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
        activity::at(Activity::SourceNames);
        let shown = || from.place.entry(name);
        let fd = match &from.handle {
            DirectoryHandle::Open(fd) => fd,
            DirectoryHandle::Remote(from) => return from.look(name, follows),
        };
        let found = stat::stat_at(fd, name, follows).map_err(|e| {
            let mut error = entry_error(Side::Source, Operation::Stat, shown(), e);
            if follows && stat::stat_at(fd, name, false).is_ok() {
                error.class = ErrorClass::Other;
                "the symbolic link is dangling".clone_into(&mut error.detail);
            }
            error
        })?;
        let metadata = self.end.mounts.metadata(&found);
        let symlink = (metadata.kind == EntryKind::Symlink)
            .then(|| directory::read_symlink(fd, name))
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
        activity::at(Activity::TargetNames);
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
}

/// One look at a name of each end.
pub struct BothSides {
    new: Stat,
    old: Stat,
}

impl BothSides {
    /// Whether both are regular files without a visible difference, the new one with a single name. `step_ns`: the time
    /// resolution of the destination.
    pub fn are_alike(&self, step_ns: u32) -> bool {
        let Self { new, old } = self;
        let flags = |of: &Stat| of.attributes & (ATTRIBUTE_IMMUTABLE | ATTRIBUTE_APPEND);
        let alike = new.size == old.size
            && new.mode == old.mode
            && (new.uid, new.gid) == (old.uid, old.gid)
            && flags(new) == flags(old)
            && same_time(time_of(new.mtime), time_of(old.mtime), step_ns);
        alike && new.file_type() == FileType::RegularFile && new.links == 1
    }

    /// The size of the new one.
    pub fn size(&self) -> u64 {
        self.new.size
    }

    /// How many names the old one has.
    pub fn old_links(&self) -> u64 {
        self.old.links
    }

    /// The last change of the old one, and its size.
    pub fn old_change(&self) -> (Timestamp, u64) {
        (time_of(self.old.ctime), self.old.size)
    }

    /// The metadata of both, the new one first.
    pub fn metadata(&self, mounts: &MountTable) -> (Metadata, Metadata) {
        (mounts.metadata(&self.new), mounts.metadata(&self.old))
    }
}

fn time_of((seconds, nanoseconds): (i64, u32)) -> Timestamp {
    Timestamp { seconds, nanoseconds }
}

/// Looks at a name of both ends, without memory for it; `None` if it is not at both, or cannot be looked at, or if one end
/// is read through messages.
pub fn look_at_both(
    from: &SourceDirectory,
    to: &TargetDirectory,
    name: &[u8],
) -> Option<BothSides> {
    activity::at(Activity::SourceNames);
    let new = stat::stat_at(from.handle.fd()?, name, false).ok()?;
    activity::at(Activity::TargetNames);
    let old = stat::stat_at(&to.fd, name, false).ok()?;
    Some(BothSides { new, old })
}

impl SourceDirectory {
    /// Whether it surely has no such name.
    pub fn lacks(&self, name: &[u8]) -> bool {
        self.handle.has(name) == Ok(false)
    }
}

impl TargetDirectory {
    /// The type of the entry under a name, if there is one that can be looked at.
    pub fn kind_of(&self, name: &[u8]) -> Option<EntryKind> {
        stat::stat_at(&self.fd, name, false).ok().map(|found| kind_of(&found))
    }
}

impl RootSide {
    /// Whether its entry is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.name.as_ref().is_some_and(|name| {
            let found = stat::stat_at(&self.parent, name.as_bytes(), false);
            found.is_ok_and(|found| found.file_type() == FileType::Symlink)
        })
    }
}

impl LocalEnd {
    /// The metadata of a name of the source; `None` if it is absent. Whoever asks knows what an error means.
    ///
    /// # Errors
    /// Its directory cannot be searched.
    pub fn find_source(
        &self,
        from: &SourceDirectory,
        name: &[u8],
        follows: bool,
    ) -> Result<Option<Metadata>, CallFailed> {
        from.handle.find(name, follows, &self.mounts)
    }

    /// The metadata of a name of the destination; `None` if it is absent. Whoever asks knows what an error means.
    ///
    /// # Errors
    /// Its directory cannot be searched.
    pub fn find_target(
        &self,
        to: &TargetDirectory,
        name: &[u8],
    ) -> Result<Option<Metadata>, CallFailed> {
        self.find(&to.fd, name, false)
    }

    /// The metadata of a name of the destination, if it can be seen.
    pub fn visible(&self, to: &TargetDirectory, name: &[u8]) -> Option<Metadata> {
        self.find_target(to, name).ok().flatten()
    }

    pub(crate) fn find(
        &self,
        directory: impl AsFd,
        name: &[u8],
        follows: bool,
    ) -> Result<Option<Metadata>, CallFailed> {
        match stat::stat_at(directory, name, follows) {
            Ok(found) => Ok(Some(self.mounts.metadata(&found))),
            Err(error) if stat::is_absent(error) => Ok(None),
            Err(error) => Err(CallFailed(error)),
        }
    }

    /// The metadata of a name of the source, itself if it is a symbolic link; `None` if it is absent.
    ///
    /// # Errors
    /// Its directory cannot be searched.
    pub fn present(
        &self,
        from: &SourceDirectory,
        name: &[u8],
    ) -> Result<Option<Metadata>, EntryError> {
        let at = (Side::Source, Operation::Stat);
        self.find_source(from, name, false).map_err(|e| e.at(at, from.place.entry(name)))
    }

    /// The same for many names at once, if the source is on another host.
    ///
    /// # Errors
    /// They cannot be asked for. Errors within are those of single names.
    pub fn all_present(
        &self,
        from: &SourceDirectory,
        names: &[&[u8]],
    ) -> Result<Vec<Result<Option<Metadata>, EntryError>>, EntryError> {
        let DirectoryHandle::Remote(directory) = &from.handle else {
            return Ok(names.iter().map(|name| self.present(from, name)).collect());
        };
        let found = directory.look_at_all(names, false)?;
        let at = (Side::Source, Operation::Stat);
        let each = names
            .iter()
            .zip(found)
            .map(|(name, found)| present_of(found).map_err(|e| e.at(at, from.place.entry(name))));
        Ok(each.collect())
    }

    /// The metadata of the entry of a root, if it can be looked at. `None` too if the root is a directory itself.
    pub fn look_at_root(&self, root: &SourceRoot, follows: bool) -> Option<Metadata> {
        match root {
            SourceRoot::Here(side) => self.look_at_named(side, follows),
            SourceRoot::Remote { tree, name, .. } => {
                let found = tree.open_above().ok()?.look(name.as_ref()?.as_bytes(), follows);
                found.ok().map(|(metadata, _)| metadata)
            }
        }
    }

    fn look_at_named(&self, side: &RootSide, follows: bool) -> Option<Metadata> {
        let name = side.name.as_ref()?;
        let found = stat::stat_at(&side.parent, name.as_bytes(), follows).ok()?;
        Some(self.mounts.metadata(&found))
    }

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
        if let Err(error) = probe_granularity(self, to) {
            tracing::debug!(%error, "cannot determine the granularity of timestamps");
        }
    }
}

fn probe_granularity(session: &Session<'_>, to: &TargetDirectory) -> Result<(), Errno> {
    let odd = Timestamp { seconds: 1_000_000_001, nanoseconds: 123_456_789 };
    let time = Some((odd.seconds, odd.nanoseconds));
    let kept = |probe: OwnedFd| set::times(&probe, time, time).and_then(|()| stat::stat_fd(&probe));
    // A name would move the directory's times, and could not be removed from a locked one.
    let found = match file::create_unnamed(&to.fd, 0o600) {
        Err(_) if !to.metadata.is_locked() => {
            let name = session::temporary_name(session);
            let found = file::create_new(&to.fd, name.as_bytes(), 0o600).map(kept)?;
            directory::unlink(&to.fd, name.as_bytes())?;
            found
        }
        made => made.and_then(kept),
    };
    to.facts.learn_granularity(odd, session.local.end.mounts.metadata(&found?).mtime);
    Ok(())
}
