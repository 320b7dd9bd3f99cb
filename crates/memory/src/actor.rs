//! Who calls: the user, the groups, and what the permission bits of an inode grant them.
use dmover_model::EntryKind;

use crate::inode::Attributes;

/// Search a directory, or execute a file.
pub const EXECUTE: u32 = 1;
/// Change content, or names in a directory.
pub const WRITE: u32 = 2;
/// Read content, or list names.
pub const READ: u32 = 4;

pub const SET_UID: u32 = 0o4000;
pub const SET_GID: u32 = 0o2000;
pub const STICKY: u32 = 0o1000;
pub const GROUP_EXECUTE: u32 = 0o010;

/// A process as a file system sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// The user.
    pub uid: u32,
    /// The group that new entries get.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// Whether it has all capabilities. Linux gives them one by one; here it is all or none.
    pub is_privileged: bool,
    /// Permission bits that new entries do not get.
    pub umask: u32,
}

impl Actor {
    /// The privileged user 0 with the umask 022.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: Vec::new(), is_privileged: true, umask: 0o022 }
    }

    /// An unprivileged user with one group and the umask 022.
    pub fn user(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: Vec::new(), is_privileged: false, umask: 0o022 }
    }

    /// Whether it is in the group, by its own or a further one.
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether it may do what only the owner may.
    pub(crate) fn acts_as_owner(&self, of: &Attributes) -> bool {
        self.is_privileged || self.uid == of.uid
    }

    /// Whether a set-group-id bit of an inode of that group survives.
    pub(crate) fn keeps_set_gid(&self, gid: u32) -> bool {
        self.is_privileged || self.is_in_group(gid)
    }

    /// Whether the permission bits grant all of `wanted` (path_resolution(7), capabilities(7)).
    pub(crate) fn may(&self, kind: EntryKind, of: &Attributes, wanted: u32) -> bool {
        let shift = match () {
            () if self.uid == of.uid => 6,
            () if self.is_in_group(of.gid) => 3,
            () => 0,
        };
        let is_granted = (of.mode >> shift) & wanted == wanted;
        let overrides =
            kind == EntryKind::Directory || wanted & EXECUTE == 0 || of.mode & 0o111 != 0;
        is_granted || (self.is_privileged && overrides)
    }
}
