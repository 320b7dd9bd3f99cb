//! Metadata: looking at an entry, and setting its mode, owner, times and flags.
use dmover_model::{EntryKind, Metadata, Timestamp};

use crate::actor::{SET_GID, SET_UID, WRITE};
use crate::disk::{Place, User, kept};
use crate::errno::{Errno, Result};
use crate::faults::Call;
use crate::inode::Attributes;
use crate::profile::AtimeRule;
use crate::state::Change;

/// What a time becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// It stays.
    Omit,
    /// The time of the call.
    Now,
    /// This time, as far as the file system can keep it.
    To(Timestamp),
}

const A_DAY_S: i64 = 24 * 60 * 60;

impl User<'_> {
    /// What `statx` shows of an entry.
    ///
    /// # Errors
    ///
    /// As statx(2).
    pub fn stat<'p>(&mut self, place: impl Into<Place<'p>>) -> Result<Metadata> {
        let place = place.into();
        self.call(Call::Stat, &[place], |user, _| {
            let inode = user.inode_at(place)?;
            let profile = &user.disk.profile;
            Ok(user.node(inode).metadata(profile.mount, inode, profile.counts_subdirectories))
        })
    }

    /// Mode, owner and all times of an entry, also that of its creation.
    ///
    /// # Errors
    ///
    /// As statx(2).
    pub fn stat_attributes<'p>(&mut self, place: impl Into<Place<'p>>) -> Result<Attributes> {
        let place = place.into();
        self.call(Call::Stat, &[place], |user, _| {
            user.inode_at(place).map(|inode| *user.attributes(inode))
        })
    }

    /// Whether the user may do all of these with an entry, in the numbers of access(2): `faccessat` with `AT_EACCESS`.
    ///
    /// # Errors
    ///
    /// As faccessat(2): `ACCES`, or `ROFS` for writing.
    pub fn may<'p>(&mut self, place: impl Into<Place<'p>>, wanted: u32) -> Result<()> {
        let place = place.into();
        self.call(Call::Stat, &[place], |user, _| {
            let inode = user.inode_at(place)?;
            user.permit(inode, wanted)
        })
    }

    /// Sets the mode: `fchmodat`. The set-group-id bit is dropped if the user is not in the group.
    ///
    /// # Errors
    ///
    /// As fchmodat(2); `NOTSUP` for a symbolic link.
    pub fn set_mode<'p>(&mut self, place: impl Into<Place<'p>>, mode: u32) -> Result<()> {
        let place = place.into();
        self.call(Call::SetMode, &[place], |user, _| {
            let inode = user.inode_at(place)?;
            user.check_writable()?;
            if user.node(inode).kind == EntryKind::Symlink {
                return Err(Errno::NOTSUP);
            }
            let of = *user.attributes(inode);
            if of.immutable || of.append_only || !user.actor.acts_as_owner(&of) {
                return Err(Errno::PERM);
            }
            if user.disk.profile.fixed_owner.is_some() {
                return if mode & 0o7777 == of.mode { Ok(()) } else { Err(Errno::PERM) };
            }
            let keeps_set_gid = user.actor.keeps_set_gid(of.gid);
            let dropped = if keeps_set_gid { 0 } else { SET_GID };
            user.disk.edit(inode, |of| of.mode = mode & 0o7777 & !dropped);
            user.disk.touch(inode);
            Ok(())
        })
    }

    /// Sets owner and group, each if it is given: `fchownat`. Set-id bits of what is no directory are dropped.
    ///
    /// # Errors
    ///
    /// As fchownat(2).
    pub fn set_owner<'p>(
        &mut self,
        place: impl Into<Place<'p>>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        let place = place.into();
        self.call(Call::SetOwner, &[place], |user, _| {
            let inode = user.inode_at(place)?;
            user.check_writable()?;
            let of = *user.attributes(inode);
            let is_directory = user.node(inode).is_directory();
            let set_gid = if user.loses_set_gid(&of) { SET_GID } else { 0 };
            let dropped = if is_directory { 0 } else { SET_UID | set_gid };
            user.check_may_own(&of, (uid, gid), dropped)?;
            if user.disk.profile.fixed_owner.is_some() {
                let is_same =
                    uid.is_none_or(|uid| uid == of.uid) && gid.is_none_or(|gid| gid == of.gid);
                return if is_same { Ok(()) } else { Err(Errno::PERM) };
            }
            if let Some(uid) = uid.filter(|uid| *uid != of.uid) {
                let blocks = user.node(inode).owned_blocks();
                user.check_quota(uid, blocks)?;
            }
            let capability = b"security.capability".as_slice();
            if !is_directory && user.node(inode).xattrs.contains_key(capability) {
                let name = capability.into();
                user.disk.commit(vec![Change::Xattr { inode, name, value: None }]);
            }
            user.disk.edit(inode, |of| {
                of.uid = uid.unwrap_or(of.uid);
                of.gid = gid.unwrap_or(of.gid);
                of.mode &= !dropped;
            });
            user.disk.touch(inode);
            Ok(())
        })
    }

    /// Sets the times of access and of the last write: `utimensat`.
    ///
    /// # Errors
    ///
    /// As utimensat(2).
    pub fn set_times<'p>(
        &mut self,
        place: impl Into<Place<'p>>,
        atime: SetTime,
        mtime: SetTime,
    ) -> Result<()> {
        let place = place.into();
        self.call(Call::SetTimes, &[place], |user, _| {
            if (atime, mtime) == (SetTime::Omit, SetTime::Omit) {
                return Ok(());
            }
            let inode = user.inode_at(place)?;
            user.check_writable()?;
            let of = *user.attributes(inode);
            let is_owner = user.actor.acts_as_owner(&of);
            if (atime, mtime) == (SetTime::Now, SetTime::Now) {
                // Who may write may also do what a write does to the times.
                if of.immutable {
                    return Err(Errno::PERM);
                }
                if !is_owner {
                    user.permit(inode, WRITE)?;
                }
            } else if of.immutable || of.append_only || !is_owner {
                return Err(Errno::PERM);
            }
            let now = user.disk.stamp();
            let profile = &user.disk.profile;
            let new = |set: SetTime, old: Timestamp| match set {
                SetTime::Omit => old,
                SetTime::Now => now,
                SetTime::To(time) => kept(profile, time),
            };
            let (atime, mtime) = (new(atime, of.atime), new(mtime, of.mtime));
            user.disk.edit(inode, |of| (of.atime, of.mtime, of.ctime) = (atime, mtime, now));
            Ok(())
        })
    }

    /// Sets the flags immutable and append-only of a file or directory: `FS_IOC_SETFLAGS`.
    ///
    /// # Errors
    ///
    /// `NOTSUP` if the file system has none; `PERM` without privileges, or if the user is not the owner.
    pub fn set_flags<'p>(
        &mut self,
        place: impl Into<Place<'p>>,
        immutable: bool,
        append_only: bool,
    ) -> Result<()> {
        let place = place.into();
        self.call(Call::SetFlags, &[place], |user, _| {
            let inode = user.inode_at(place)?;
            let kind = user.node(inode).kind;
            if !user.disk.profile.has_flags
                || !matches!(kind, EntryKind::File | EntryKind::Directory)
            {
                return Err(Errno::NOTSUP);
            }
            user.check_writable()?;
            let of = *user.attributes(inode);
            let is_same = (of.immutable, of.append_only) == (immutable, append_only);
            if !user.actor.acts_as_owner(&of) || !(is_same || user.actor.is_privileged) {
                return Err(Errno::PERM);
            }
            user.disk.edit(inode, |of| {
                (of.immutable, of.append_only) = (immutable, append_only);
            });
            user.disk.touch(inode);
            Ok(())
        })
    }

    /// The user may give an inode this owner and group, which drops some bits (setattr_prepare() of the kernel).
    fn check_may_own(
        &self,
        of: &Attributes,
        (uid, gid): (Option<u32>, Option<u32>),
        dropped: u32,
    ) -> Result<()> {
        if of.immutable || of.append_only {
            return Err(Errno::PERM);
        }
        if self.actor.is_privileged {
            return Ok(());
        }
        let is_own = self.actor.uid == of.uid;
        let may_uid = uid.is_none_or(|uid| is_own && uid == of.uid);
        let may_gid =
            gid.is_none_or(|gid| is_own && (gid == of.gid || self.actor.is_in_group(gid)));
        // Only the owner may drop them, also if owner and group stay.
        let may_drop = is_own || of.mode & dropped == 0;
        if may_uid && may_gid && may_drop { Ok(()) } else { Err(Errno::PERM) }
    }

    fn check_quota(&self, uid: u32, blocks: u64) -> Result<()> {
        match self.check_space(uid, blocks, 1) {
            Err(Errno::DQUOT) => Err(Errno::DQUOT),
            _ => Ok(()),
        }
    }

    /// The entry was read. `keeps_atime`: through a handle that leaves no trace.
    pub(super) fn touch_access(&mut self, inode: u64, keeps_atime: bool) {
        let now = self.disk.stamp();
        let of = self.attributes(inode);
        let is_due = match self.disk.profile.atime {
            _ if keeps_atime => false,
            AtimeRule::Never => false,
            AtimeRule::Always => true,
            AtimeRule::Relative => {
                of.atime <= of.mtime
                    || of.atime <= of.ctime
                    || now.seconds - of.atime.seconds >= A_DAY_S
            }
        };
        if is_due && !self.disk.is_read_only {
            self.disk.edit(inode, |of| of.atime = now);
        }
    }
}
