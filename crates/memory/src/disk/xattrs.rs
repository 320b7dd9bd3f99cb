//! Extended attributes: `user.`, `trusted.`, `security.` and, as plain bytes, the ACLs of `system.`.
use std::sync::Arc;

use dmover_model::EntryKind;

use crate::actor::{READ, STICKY, WRITE};
use crate::disk::{Place, User};
use crate::errno::{Errno, Result};
use crate::faults::Call;
use crate::state::Change;

/// Longest name with its prefix (xattr(7)).
const NAME_BYTES_MAX: usize = 255;
/// Largest value (xattr(7)).
const VALUE_BYTES_MAX: usize = 65_536;
/// The attributes of `system.` that are kept; their meaning for access is not modelled.
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// What is done if an extended attribute exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrMode {
    /// It is set, whether it exists or not.
    Set,
    /// It must not exist (`XATTR_CREATE`).
    Create,
    /// It must exist (`XATTR_REPLACE`).
    Replace,
}

impl User<'_> {
    /// The value of an extended attribute: `fgetxattr`, or `lgetxattr`.
    ///
    /// # Errors
    ///
    /// As getxattr(2).
    pub fn xattr<'p>(&mut self, place: impl Into<Place<'p>>, name: &[u8]) -> Result<Vec<u8>> {
        let place = place.into();
        self.call(Call::GetXattr, &[place], |user, _| {
            check_name(name)?;
            let inode = user.inode_at(place)?;
            user.check_xattr(inode, name, READ)?;
            let value = user.node(inode).xattrs.get(name).ok_or(Errno::NODATA)?;
            Ok(value.to_vec())
        })
    }

    /// The names of all extended attributes that the user may see, sorted: `flistxattr`, or `llistxattr`.
    ///
    /// # Errors
    ///
    /// As listxattr(2).
    pub fn list_xattrs<'p>(&mut self, place: impl Into<Place<'p>>) -> Result<Vec<Vec<u8>>> {
        let place = place.into();
        self.call(Call::GetXattr, &[place], |user, _| {
            let inode = user.inode_at(place)?;
            if !user.disk.profile.has_xattrs {
                return Err(Errno::NOTSUP);
            }
            let sees_trusted = user.actor.is_privileged;
            let names = user.node(inode).xattrs.keys();
            let seen = names.filter(|name| sees_trusted || !name.starts_with(b"trusted."));
            Ok(seen.map(|name| name.to_vec()).collect())
        })
    }

    /// Sets an extended attribute: `fsetxattr`, or `lsetxattr`.
    ///
    /// # Errors
    ///
    /// As setxattr(2); `NOSPC` if all attributes together are larger than the file system allows.
    pub fn set_xattr<'p>(
        &mut self,
        place: impl Into<Place<'p>>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let place = place.into();
        self.call(Call::SetXattr, &[place], |user, _| {
            check_name(name)?;
            if value.len() > VALUE_BYTES_MAX {
                return Err(Errno::TOOBIG);
            }
            let inode = user.inode_at(place)?;
            user.check_writable()?;
            user.check_xattr(inode, name, WRITE)?;
            let old = user.node(inode).xattrs.get(name).map(|value| value.len());
            match (mode, old) {
                (XattrMode::Create, Some(_)) => return Err(Errno::EXIST),
                (XattrMode::Replace, None) => return Err(Errno::NODATA),
                _ => {}
            }
            if value.len() > user.disk.profile.xattr_value_max {
                return Err(Errno::NOSPC);
            }
            let all = user.node(inode).xattrs.iter();
            let used: usize = all.map(|(name, value)| name.len() + value.len()).sum();
            let freed = old.map_or(0, |old| old + name.len());
            if used - freed + name.len() + value.len() > user.disk.profile.xattr_bytes_max {
                return Err(Errno::NOSPC);
            }
            user.put_xattr(inode, name, Some(value.into()));
            Ok(())
        })
    }

    /// Removes an extended attribute: `fremovexattr`, or `lremovexattr`.
    ///
    /// # Errors
    ///
    /// As removexattr(2).
    pub fn remove_xattr<'p>(&mut self, place: impl Into<Place<'p>>, name: &[u8]) -> Result<()> {
        let place = place.into();
        self.call(Call::SetXattr, &[place], |user, _| {
            check_name(name)?;
            let inode = user.inode_at(place)?;
            user.check_writable()?;
            user.check_xattr(inode, name, WRITE)?;
            if !user.node(inode).xattrs.contains_key(name) {
                return Err(Errno::NODATA);
            }
            user.put_xattr(inode, name, None);
            Ok(())
        })
    }

    fn put_xattr(&mut self, inode: u64, name: &[u8], value: Option<Arc<[u8]>>) {
        self.disk.commit(vec![Change::Xattr { inode, name: name.into(), value }]);
        self.disk.touch(inode);
    }

    /// The user may read or write an attribute of that name (xattr_permission() of the kernel).
    fn check_xattr(&self, inode: u64, name: &[u8], wanted: u32) -> Result<()> {
        let node = self.node(inode);
        let of = &node.attributes;
        let writes = wanted == WRITE;
        let refusal = if writes { Errno::PERM } else { Errno::NODATA };
        if writes && (of.immutable || of.append_only) {
            return Err(Errno::PERM);
        }
        if name.starts_with(b"trusted.") {
            if !self.actor.is_privileged {
                return Err(refusal);
            }
        } else if name.starts_with(b"security.") {
            if writes && !self.actor.is_privileged {
                return Err(Errno::PERM);
            }
        } else if name.starts_with(b"user.") {
            if !matches!(node.kind, EntryKind::File | EntryKind::Directory) {
                return Err(refusal);
            }
            let is_sticky = node.is_directory() && of.mode & STICKY != 0;
            if writes && is_sticky && !self.actor.acts_as_owner(of) {
                return Err(Errno::PERM);
            }
            self.permit(inode, wanted)?;
        } else if name.starts_with(b"system.") {
            if !ACLS.contains(&name) || node.kind == EntryKind::Symlink {
                return Err(Errno::NOTSUP);
            }
            if writes && !self.actor.acts_as_owner(of) {
                return Err(Errno::PERM);
            }
        } else {
            self.permit(inode, wanted)?;
            return Err(Errno::NOTSUP);
        }
        let bare = name.split(|byte| *byte == b'.').nth(1);
        match () {
            () if !self.disk.profile.has_xattrs => Err(Errno::NOTSUP),
            () if bare.is_none_or(<[u8]>::is_empty) => Err(Errno::INVAL),
            () => Ok(()),
        }
    }
}

/// The name has a length that names can have.
fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX { Err(Errno::RANGE) } else { Ok(()) }
}
