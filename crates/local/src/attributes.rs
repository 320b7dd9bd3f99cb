//! Attributes of an entry apart from its content: read at the source, and set at the destination in the order that
//! preserves them (owner, attributes, ACL, capability, mode, times, flags).
use dmover_model::{
    Attribute, CopyPolicy, EntryError, EntryKind, LossKind, Metadata, Note, Operation, PathBytes,
    Side, Timestamp,
};
use dmover_plan::acl;
use dmover_plan::idmap::IdentityMap;
use dmover_sys::flags::{self, Flags, Project};
use dmover_sys::xattr::{self, Held};
use dmover_sys::{BorrowedFd, Errno, set, stat};
use dmover_tree::{EntryAttributes, Reports};

use crate::capability::Facts;
use crate::error::entry_error;
use crate::privilege::Privilege;

mod inode_flags;

/// The attributes of a source entry beyond `stat`.
#[derive(Debug, Clone, Default)]
pub struct Attributes {
    /// Extended attributes with ACLs and capabilities, but without system attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Read from an entry that is not open for reading: it has neither flags nor a project.
    pub is_pinned: bool,
    /// The number of system attributes that were skipped and reported.
    pub left_out: u32,
    /// Inode flags, as `FS_IOC_GETFLAGS` returns them, of those that are carried over.
    pub flags: Flags,
    /// Whether the file system has reported the flags.
    pub knows_flags: bool,
    /// The project id of the source.
    pub project: Project,
    /// The project id for the copy; `None`: do not change it.
    pub project_there: Option<Project>,
    /// The permissions of the owning group, if an ACL exists and the group bits of the mode are its mask.
    pub owning_group: Option<u32>,
}

impl From<Attributes> for EntryAttributes {
    /// As they are sent to another host. What could not be read was reported where they were read.
    fn from(found: Attributes) -> Self {
        Self {
            xattrs: found.xattrs,
            is_pinned: found.is_pinned,
            left_out: found.left_out,
            flags: found.knows_flags.then_some(found.flags),
            project: (found.project.id, found.project.inherit),
            owning_group: found.owning_group,
            losses: Vec::new(),
        }
    }
}

impl Attributes {
    /// Whether the source has a project.
    pub fn has_project(&self) -> bool {
        self.project != Project::default()
    }
}

/// The attribute of an access ACL.
pub(crate) const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// The attribute of a directory's default ACL.
pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Attributes of a file system or a security module, by full name. Copying them would be wrong: the destination creates
/// its own labels and signatures, and layouts have an option of their own. A name that only begins like one of these is
/// an ordinary attribute.
const NEVER_COPIED: &[&[u8]] = &[
    b"security.selinux",
    b"security.ima",
    b"security.evm",
    b"security.apparmor",
    b"security.SMACK64",
    b"security.SMACK64EXEC",
    b"security.SMACK64IPIN",
    b"security.SMACK64IPOUT",
    b"security.SMACK64MMAP",
    b"security.SMACK64TRANSMUTE",
    b"trusted.lov",
    b"trusted.lma",
    b"trusted.lmv",
    b"trusted.link",
    b"trusted.fid",
    b"trusted.som",
    b"trusted.dmv",
    b"trusted.hsm",
    b"trusted.version",
];

/// Namespaces that belong to a file system, with no attributes of users.
const NAMESPACES_OF_SYSTEMS: &[&[u8]] =
    &[b"lustre.", b"system.cifs_", b"system.nfs4_", b"system.ntfs_", b"system.smb3_"];

/// The form in which XFS stores ACLs, which it lists in addition to the ACLs themselves.
const SHOWN_TWICE: &[&[u8]] = &[b"trusted.SGI_ACL_FILE", b"trusted.SGI_ACL_DEFAULT"];

/// Whether an attribute is an ACL.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_ACL || name == DEFAULT_ACL
}

/// Whether an attribute belongs to a file system or a security module, and is not copied.
pub fn is_never_copied(name: &[u8]) -> bool {
    NEVER_COPIED.contains(&name)
        || NAMESPACES_OF_SYSTEMS.iter().any(|namespace| name.starts_with(namespace))
        || SHOWN_TWICE.contains(&name)
}

/// Whether flags differ from those of a copy: some flags that a new entry inherits from its directory stay.
pub fn flags_differ(expected: Flags, found: Flags) -> bool {
    let missing = expected & !found;
    missing != 0 || found & !expected & !flags::EARLY != 0
}

/// The flags of an entry, without the locks of chattr(1) that its copy does not have.
pub fn without_missing_locks(expected: Flags, found: Flags) -> Flags {
    expected & !(flags::LOCKS & !found)
}

/// A destination entry whose attributes are being set.
#[derive(Clone, Copy)]
pub struct Object<'a> {
    /// The open entry.
    pub fd: BorrowedFd<'a>,
    /// How it is open, which decides how its attributes can be reached.
    pub held: Held,
    /// What it is.
    pub kind: EntryKind,
    /// The facts of its file system.
    pub facts: &'a Facts,
    /// This job created it, so its mode is free to choose where the mode of the source is not kept.
    pub made: bool,
    /// The file that it replaces: attributes that are not kept from the source stay as they were there, as in cp and
    /// rsync.
    pub replaces: Option<&'a Metadata>,
    /// The most permissions that the default ACL of its directory gives to a new entry.
    pub inherits: Option<u32>,
    /// The directory and name, for one call that needs them on old kernels.
    pub place: Option<(BorrowedFd<'a>, &'a [u8])>,
    /// Its path, for messages.
    pub path: &'a dyn Fn() -> PathBytes,
}

impl Object<'_> {
    fn fail(&self, operation: Operation, error: Errno) -> EntryError {
        entry_error(Side::Destination, operation, (self.path)(), error)
    }
}

/// What decides how attributes are read and set.
#[derive(Clone, Copy)]
pub struct AttributeRules<'a> {
    /// What is preserved.
    pub policy: &'a CopyPolicy,
    /// Which owners become which.
    pub ids: &'a IdentityMap,
    /// What this process may set.
    pub privilege: Privilege,
    /// A comparison reports what it finds after a repair.
    pub compares: bool,
    /// Receives losses and notes.
    pub reports: &'a dyn Reports,
}

impl AttributeRules<'_> {
    fn keeps(&self, attribute: Attribute) -> bool {
        self.policy.preserve.has(attribute)
    }

    /// The names of all attributes. The kernel lists at most 64 KiB of names: beyond that only known names that grant
    /// rights are read, and the others are lost.
    fn attribute_names(
        &self,
        fd: BorrowedFd<'_>,
        held: Held,
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<Vec<Vec<u8>>, EntryError> {
        match xattr::list(fd, held) {
            Err(Errno::TOOBIG) => {
                let words = "their names exceed 64 KiB, so the kernel cannot list them";
                if self.keeps(Attribute::Xattr) {
                    self.reports.loss(LossKind::Xattr, shown(), words.into());
                }
                Ok([ACCESS_ACL, DEFAULT_ACL, b"security.capability"].map(<[u8]>::to_vec).into())
            }
            listed => listed
                .map(Option::unwrap_or_default)
                .map_err(|e| entry_error(Side::Source, Operation::ReadXattr, shown(), e)),
        }
    }

    /// Reads the attributes that the policy keeps.
    pub fn read(
        &self,
        fd: BorrowedFd<'_>,
        held: Held,
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<Attributes, EntryError> {
        let fail = |e| entry_error(Side::Source, Operation::ReadXattr, shown(), e);
        let is_pinned = held == Held::Pinned;
        let mut attributes = Attributes { is_pinned, ..Attributes::default() };
        let wanted = self.keeps(Attribute::Xattr) || self.keeps(Attribute::Acl);
        // Asked of every object: under a union mount, or where a server answers for each file, the
        // refusal of one says nothing about the next, and an attribute that is not read is lost unseen.
        if wanted {
            for name in self.attribute_names(fd, held, shown)? {
                if is_never_copied(&name) {
                    let told = self.keeps(Attribute::Xattr) && !SHOWN_TWICE.contains(&&*name);
                    attributes.left_out += u32::from(told);
                } else if let Some(value) = self.read_xattr(fd, held, &name, shown)? {
                    attributes.xattrs.push((name, value));
                }
            }
        }
        if self.keeps(Attribute::Mode) {
            let known = attributes.xattrs.iter().find(|(name, _)| name == ACCESS_ACL);
            let acl = match known {
                None if !self.keeps(Attribute::Acl) => {
                    xattr::get(fd, held, ACCESS_ACL).map_err(fail)?
                }
                known => known.map(|(_, value)| value.clone()),
            };
            attributes.owning_group = acl.as_deref().and_then(acl::owning_group);
        }
        if is_pinned {
            return Ok(attributes);
        }
        // One call answers whether there are flags; what has none has no project either, and asking would cost
        // a FUSE server an open and a close of its own.
        let mut has_flags = true;
        if self.keeps(Attribute::Flags) {
            let bits = flags::get(fd).map_err(fail)?;
            has_flags = bits.is_some();
            attributes.knows_flags = has_flags;
            attributes.flags = bits.unwrap_or(0) & flags::CARRIED;
        }
        if has_flags && self.keeps(Attribute::Project) {
            attributes.project = flags::project(fd).map_err(fail)?.unwrap_or_default();
        }
        Ok(attributes)
    }

    /// The attributes of an entry that was read through messages.
    pub(crate) fn received(
        &self,
        found: EntryAttributes,
        shown: &dyn Fn() -> PathBytes,
    ) -> Attributes {
        let EntryAttributes { xattrs, is_pinned, left_out, flags, project, .. } = found;
        for (kind, words) in found.losses {
            self.reports.loss(kind, shown(), words);
        }
        Attributes {
            xattrs,
            is_pinned,
            left_out,
            flags: flags.unwrap_or(0),
            knows_flags: flags.is_some(),
            project: Project { id: project.0, inherit: project.1 },
            project_there: None,
            owning_group: found.owning_group,
        }
    }

    fn read_xattr(
        &self,
        fd: BorrowedFd<'_>,
        held: Held,
        name: &[u8],
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<Option<Vec<u8>>, EntryError> {
        let kept =
            if is_acl(name) { self.keeps(Attribute::Acl) } else { self.keeps(Attribute::Xattr) };
        if !kept {
            return Ok(None);
        }
        xattr::get(fd, held, name)
            .map_err(|e| entry_error(Side::Source, Operation::ReadXattr, shown(), e))
    }

    /// Whether a new entry must lose the ACL from the default of its directory, because it gets the ACL of its source
    /// or the mode alone.
    pub(crate) fn takes_acl_away(&self, object: Object<'_>, attributes: &Attributes) -> bool {
        let replaces = object.replaces.is_some() && !self.keeps(Attribute::Mode);
        let keeps = self.keeps(Attribute::Acl) && !self.obeys_default(object, attributes);
        object.inherits.is_some() && object.kind != EntryKind::Symlink && (keeps || replaces)
    }

    /// Whether a new entry keeps the permissions from the default ACL of its directory, as if any program had created
    /// it: modes are not kept, and there is no ACL to copy.
    fn obeys_default(&self, object: Object<'_>, attributes: &Attributes) -> bool {
        let has_acl = |(name, _): &(Vec<u8>, Vec<u8>)| name == ACCESS_ACL || name == DEFAULT_ACL;
        object.inherits.is_some()
            && object.made
            && object.replaces.is_none()
            && !self.keeps(Attribute::Mode)
            && !attributes.xattrs.iter().any(has_acl)
    }

    /// Prepares a new file before the first byte: sets the flags that only count on an empty file, and removes an ACL
    /// from the default of the parent.
    pub fn prepare(&self, object: Object<'_>, attributes: &Attributes) -> Result<(), EntryError> {
        if self.takes_acl_away(object, attributes) {
            for name in [ACCESS_ACL, DEFAULT_ACL] {
                if name == ACCESS_ACL || object.kind == EntryKind::Directory {
                    xattr::remove(object.fd, object.held, name)
                        .map_err(|e| object.fail(Operation::SetXattr, e))?;
                }
            }
        }
        let early = attributes.flags & flags::EARLY;
        if early != 0 {
            self.set_flags(object, early, early)?;
        }
        Ok(())
    }

    /// Sets owner, extended attributes, ACL, capability and mode, in this order. `now`: the present metadata; equal
    /// attributes cost no call.
    pub fn set(
        &self,
        object: Object<'_>,
        source: &Metadata,
        attributes: &Attributes,
        now: &Metadata,
    ) -> Result<(), EntryError> {
        let owner_kept = self.set_owner(object, source, now)?;
        let has_acl = self.set_xattrs(object, attributes)?;
        let mut mode = source.mode;
        if let Some(group) = attributes.owning_group.filter(|_| !has_acl) {
            // The mask without its ACL would let the whole group in.
            mode = mode & !0o070 | group << 3;
        }
        // An ACL, also one of NFSv4, has rewritten the mode, and to another one than this if modes are not kept.
        let is_acl = |(name, _): &(Vec<u8>, Vec<u8>)| name.starts_with(b"system.");
        let rewritten = attributes.xattrs.iter().any(is_acl);
        let seen = if rewritten { None } else { Some(now) };
        if let Some(bits) = object.inherits.filter(|_| self.obeys_default(object, attributes)) {
            return self.change_mode(object, mode & 0o777 & bits, seen, source);
        }
        self.set_mode(object, &Metadata { mode, ..source.clone() }, seen, owner_kept)
    }

    /// Sets owner and group. Returns whether the entry now has the right ones.
    fn set_owner(
        &self,
        object: Object<'_>,
        source: &Metadata,
        now: &Metadata,
    ) -> Result<bool, EntryError> {
        let (uid, gid) = (self.ids.user(source.uid), self.ids.group(source.gid));
        let keeps_old = !self.keeps(Attribute::Owner) && object.replaces.is_some();
        if (uid, gid) == (now.uid, now.gid) && !keeps_old {
            return Ok(true);
        }
        if !self.keeps(Attribute::Owner) {
            let old = object.replaces.filter(|_| self.privilege.privileged);
            if let Some(old) = old.filter(|old| (old.uid, old.gid) != (now.uid, now.gid)) {
                set::owner(object.fd, Some(old.uid), Some(old.gid))
                    .map_err(|e| object.fail(Operation::SetOwner, e))?;
            }
            return Ok(false);
        }
        match set::owner(object.fd, Some(uid), Some(gid)) {
            Ok(()) if !object.facts.remote || has_owner(object, uid, gid)? => return Ok(true),
            Ok(()) => {
                self.reports.loss(LossKind::Owner, (object.path)(), format!("{uid}:{gid}"));
                return Ok(false);
            }
            Err(Errno::PERM | Errno::INVAL) if !self.privilege.privileged => {}
            Err(Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.reports.loss(LossKind::Owner, (object.path)(), format!("{uid}:{gid}"));
                return Ok(false);
            }
            Err(error) => return Err(object.fail(Operation::SetOwner, error)),
        }
        // A user may at least give an own file to a group that the user belongs to.
        if gid != now.gid && uid == now.uid && set::owner(object.fd, None, Some(gid)).is_ok() {
            return Ok(true);
        }
        if gid != now.gid && uid != now.uid {
            let _ = set::owner(object.fd, None, Some(gid));
        }
        if !self.compares && self.policy.demanded.has(Attribute::Owner) {
            self.reports.loss(LossKind::Owner, (object.path)(), format!("{uid}:{gid}"));
        } else {
            self.reports.note(Note::OwnerNotKept, object.path);
        }
        Ok(false)
    }

    /// Sets extended attributes. Returns whether the entry now has the access ACL of its source.
    fn set_xattrs(&self, object: Object<'_>, attributes: &Attributes) -> Result<bool, EntryError> {
        for _ in 0..attributes.left_out {
            self.reports.note(Note::SystemAttribute, object.path);
        }
        let bytes: usize = attributes.xattrs.iter().map(|(n, v)| n.len() + v.len()).sum();
        let mut has_acl = false;
        let may_not_fit = bytes >= XATTR_BYTES_THAT_FIT;
        let mut in_order: Vec<_> = attributes.xattrs.iter().collect();
        in_order.sort_by_key(|(name, _)| rank(name));
        for (name, value) in in_order {
            let set = self.set_xattr(object, name, value, may_not_fit)?;
            has_acl |= set && name == ACCESS_ACL;
        }
        // An existing directory may have an ACL that the source does not have.
        let obeys = self.obeys_default(object, attributes);
        if object.kind == EntryKind::Directory && self.keeps(Attribute::Acl) && !obeys {
            for acl in [ACCESS_ACL, DEFAULT_ACL] {
                let wanted = attributes.xattrs.iter().any(|(name, _)| name == acl);
                if !wanted && self.has_xattr(object, acl)? {
                    xattr::remove(object.fd, object.held, acl)
                        .map_err(|e| object.fail(Operation::SetXattr, e))?;
                }
            }
        }
        Ok(has_acl)
    }

    /// Removes attributes that the source does not have.
    pub(crate) fn remove_foreign(
        &self,
        object: Object<'_>,
        attributes: &Attributes,
    ) -> Result<(), EntryError> {
        if !self.keeps(Attribute::Xattr) && !self.keeps(Attribute::Acl) {
            return Ok(());
        }
        let fail = |e| object.fail(Operation::SetXattr, e);
        for name in xattr::list(object.fd, object.held).map_err(fail)?.unwrap_or_default() {
            let kept = if is_acl(&name) { Attribute::Acl } else { Attribute::Xattr };
            let wanted = attributes.xattrs.iter().any(|(other, _)| *other == name);
            // What btrfs shows of its own compression belongs to the flags.
            let of_btrfs = name.starts_with(b"btrfs.");
            if wanted || of_btrfs || !self.keeps(kept) || is_never_copied(&name) {
                continue;
            }
            let remove = || xattr::remove(object.fd, object.held, &name);
            match self.with_write_access(object, &name, remove) {
                Ok(()) => {}
                Err(Errno::PERM | Errno::ACCESS)
                    if !self.privilege.privileged && !is_of_users(&name) =>
                {
                    self.reports.note(Note::PrivilegedAttribute, object.path);
                }
                Err(error) => return Err(fail(error)),
            }
        }
        Ok(())
    }

    /// Changes an attribute. Without privilege, attributes of `user.*` need an entry that its owner may write to; an
    /// entry of this user is made writable for a moment, whatever its mode or ACL (xattr(7)).
    fn with_write_access(
        &self,
        object: Object<'_>,
        name: &[u8],
        action: impl Fn() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let done = action();
        let denied = done == Err(Errno::ACCESS) && is_of_users(name);
        if !denied || self.privilege.privileged || object.held != Held::Open {
            return done;
        }
        let found = stat::stat_fd(object.fd)?;
        let mode = found.mode & 0o7777;
        if found.uid != self.privilege.uid || mode & OWNER_WRITES != 0 {
            return done;
        }
        set::mode(object.fd, mode | OWNER_WRITES)?;
        let done = action();
        set::mode(object.fd, mode)?;
        done
    }

    fn has_xattr(&self, object: Object<'_>, name: &[u8]) -> Result<bool, EntryError> {
        let value = xattr::get(object.fd, object.held, name);
        Ok(value.map_err(|e| object.fail(Operation::SetXattr, e))?.is_some())
    }

    /// Sets one attribute. Returns whether the entry has it now.
    fn set_xattr(
        &self,
        object: Object<'_>,
        name: &[u8],
        value: &[u8],
        may_not_fit: bool,
    ) -> Result<bool, EntryError> {
        let is_acl = is_acl(name);
        let mapped =
            (is_acl && !self.ids.is_identity()).then(|| self.ids.posix_acl(value)).flatten();
        let value = mapped.as_deref().unwrap_or(value);
        // Equal already, as on every rerun: nothing is written, so no change time moves.
        if object.kind == EntryKind::Directory
            && let Ok(Some(now)) = xattr::get(object.fd, object.held, name)
            && now == value
        {
            return Ok(true);
        }
        let kind = match name {
            b"security.capability" => LossKind::Capability,
            _ if is_acl || name.starts_with(b"system.nfs4") => LossKind::Acl,
            _ => LossKind::Xattr,
        };
        let set = || xattr::set(object.fd, object.held, name, value);
        match self.with_write_access(object, name, set) {
            Ok(()) => {
                // The kernel rewrites ACLs and capabilities; the others have to come back as they are.
                let plain = name.starts_with(b"user.") || name.starts_with(b"trusted.");
                if plain && object.facts.remote {
                    let got = xattr::get(object.fd, object.held, name);
                    if got.map_err(|e| object.fail(Operation::SetXattr, e))?.as_deref()
                        != Some(value)
                    {
                        let detail = format!(
                            "the destination stored another value for {}",
                            String::from_utf8_lossy(name)
                        );
                        self.reports.loss(kind, (object.path)(), detail);
                    }
                }
                Ok(true)
            }
            // Attributes of `user.*` need no privilege: if they are denied, they are lost.
            Err(error @ (Errno::PERM | Errno::ACCESS)) if !self.privilege.privileged => {
                if is_of_users(name) {
                    let detail = format!("{} ({error})", String::from_utf8_lossy(name));
                    self.reports.loss(kind, (object.path)(), detail);
                } else {
                    self.reports.note(Note::PrivilegedAttribute, object.path);
                }
                Ok(false)
            }
            Err(error) if is_loss(object, error, may_not_fit) => {
                let detail = format!("{} ({error})", String::from_utf8_lossy(name));
                self.reports.loss(kind, (object.path)(), detail);
                Ok(false)
            }
            Err(error) => Err(object.fail(Operation::SetXattr, error)),
        }
    }

    /// The mode that the entry must get.
    pub(crate) fn final_mode(&self, source: &Metadata) -> u32 {
        if self.keeps(Attribute::Mode) {
            source.mode
        } else {
            source.mode & 0o777 & !self.privilege.umask
        }
    }

    /// The permission bits of a file that is being written: closed to group and others.
    ///
    /// Without privilege the owner must be able to write, or attributes could not be set.
    pub(crate) fn closed_mode(&self, source: &Metadata) -> u32 {
        if self.privilege.privileged { source.mode & 0o700 } else { 0o600 }
    }

    fn set_mode(
        &self,
        object: Object<'_>,
        source: &Metadata,
        now: Option<&Metadata>,
        owner_kept: bool,
    ) -> Result<(), EntryError> {
        const SET_ID: u32 = 0o6000;
        let kept_as_it_is = !self.keeps(Attribute::Mode) && !object.made;
        if object.kind == EntryKind::Symlink || self.policy.skip_chmod || kept_as_it_is {
            return Ok(());
        }
        let old = object.replaces.filter(|_| !self.keeps(Attribute::Mode));
        // Set-id bits were given to other content.
        let mut mode = old.map_or_else(|| self.final_mode(source), |old| old.mode & !SET_ID);
        if !owner_kept && mode & SET_ID != 0 {
            mode &= !SET_ID;
            self.reports.note(Note::SetIdDropped, object.path);
        }
        self.change_mode(object, mode, now, source)
    }

    fn change_mode(
        &self,
        object: Object<'_>,
        mode: u32,
        now: Option<&Metadata>,
        source: &Metadata,
    ) -> Result<(), EntryError> {
        if object.kind == EntryKind::Symlink || self.policy.skip_chmod {
            return Ok(());
        }
        let now = self.present_mode(object, now, source)?;
        if now == mode {
            return Ok(());
        }
        let result = match object.held {
            Held::Open => set::mode(object.fd, mode),
            Held::Pinned => set::mode_pinned(object.fd, mode),
        };
        match result {
            Ok(()) => self.check_mode(object, mode),
            // The file is our own, so a refusal is the file system's.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => {
                self.reports.loss(LossKind::Mode, (object.path)(), format!("{mode:04o}"));
                Ok(())
            }
            Err(error) => Err(object.fail(Operation::SetMode, error)),
        }
    }

    /// Checks the mode that was set: the kernel silently drops the set-group-id bit of a group that the process is not
    /// in, and a server may not keep every bit.
    fn check_mode(&self, object: Object<'_>, mode: u32) -> Result<(), EntryError> {
        const SET_GID: u32 = 0o2000;
        let doubtful = !self.privilege.privileged && mode & SET_GID != 0;
        if !doubtful && !object.facts.remote {
            return Ok(());
        }
        let found = stat::stat_fd(object.fd).map_err(|e| object.fail(Operation::Stat, e))?;
        let got = found.mode & 0o7777;
        if doubtful && got == mode & !SET_GID {
            self.reports.note(Note::SetIdDropped, object.path);
        } else if got != mode {
            self.reports.loss(
                LossKind::Mode,
                (object.path)(),
                format!("{mode:04o} became {got:04o}"),
            );
        }
        Ok(())
    }

    /// The present mode, if it was `now` before the owner was set, which clears set-id bits.
    fn present_mode(
        &self,
        object: Object<'_>,
        now: Option<&Metadata>,
        source: &Metadata,
    ) -> Result<u32, EntryError> {
        // A change of owner clears nothing else, but a server may.
        let untouched = |now: &&Metadata| {
            let same_owner = (now.uid, now.gid) == (source.uid, source.gid);
            let set_id = now.mode & 0o6000 != 0;
            !set_id && (same_owner || object.facts.local) && object.kind == EntryKind::File
        };
        if let Some(now) = now.filter(untouched) {
            return Ok(now.mode);
        }
        let found = stat::stat_fd(object.fd).map_err(|e| object.fail(Operation::Stat, e))?;
        Ok(found.mode & 0o7777)
    }

    /// Sets the times, as the last step before the flags.
    pub fn set_times(&self, object: Object<'_>, source: &Metadata) -> Result<(), EntryError> {
        if !self.keeps(Attribute::Times) {
            return Ok(());
        }
        let pair = |t: Timestamp| Some((t.seconds, t.nanoseconds));
        let (atime, mtime) = (pair(source.atime), pair(source.mtime));
        let set = |atime, mtime| match (object.held, object.place) {
            (Held::Pinned, Some((parent, name))) => {
                set::times_pinned(object.fd, parent, name, atime, mtime)
            }
            _ => set::times(object.fd, atime, mtime),
        };
        let mut result = set(atime, mtime);
        if result == Err(Errno::OVERFLOW) {
            // Most file systems clamp silently; those that refuse are clamped here.
            let clamp = |t: Timestamp| Some((t.seconds.clamp(i32::MIN.into(), i32::MAX.into()), 0));
            result = set(clamp(source.atime), clamp(source.mtime));
        }
        result.map_err(|e| object.fail(Operation::SetTimes, e))?;
        self.check_times(object, source)
    }

    /// Checks the times that were set: file systems silently reduce times to their resolution and range.
    fn check_times(&self, object: Object<'_>, source: &Metadata) -> Result<(), EntryError> {
        let usual = |t: Timestamp| (0..1 << 31).contains(&t.seconds);
        let facts = object.facts;
        let in_range = usual(source.mtime) && usual(source.atime);
        let fits = |t: Timestamp| t.truncated(facts.granularity_ns()) == t;
        let known = facts.granularity_is_known() || source.mtime.nanoseconds == 0;
        if in_range && known && fits(source.mtime) && fits(source.atime) {
            return Ok(());
        }
        let found = stat::stat_fd(object.fd).map_err(|e| object.fail(Operation::Stat, e))?;
        let time = |(seconds, nanoseconds)| Timestamp { seconds, nanoseconds };
        let (got_atime, got_mtime) = (time(found.atime), time(found.mtime));
        if in_range {
            facts.learn_granularity(source.mtime, got_mtime);
        }
        if got_mtime != source.mtime || got_atime != source.atime {
            let words = format!(
                "atime became {}.{:09} and mtime {}.{:09}",
                got_atime.seconds, got_atime.nanoseconds, got_mtime.seconds, got_mtime.nanoseconds
            );
            self.reports.loss(LossKind::Times, (object.path)(), words);
        }
        Ok(())
    }
}

/// The permission bit for writing by the owner.
const OWNER_WRITES: u32 = 0o200;

/// Whether any user who may write to an entry may set this attribute.
pub fn is_of_users(name: &[u8]) -> bool {
    name.starts_with(b"user.")
}

/// The order in which attributes are set. An ACL may deny its owner writing, which attributes of `user.*` need without
/// privilege; and setting any other attribute may clear a capability.
fn rank(name: &[u8]) -> u8 {
    match name {
        b"security.capability" => 2,
        _ if name.starts_with(b"system.") => 1,
        _ => 0,
    }
}

/// Attributes of an entry with a smaller total size fit into the block that ext4 has for them (1 KiB, ext4(5)), the
/// smallest space of any file system.
const XATTR_BYTES_THAT_FIT: usize = 900;

/// Whether the entry has the owner that a server accepted.
fn has_owner(object: Object<'_>, uid: u32, gid: u32) -> Result<bool, EntryError> {
    let found = stat::stat_fd(object.fd).map_err(|e| object.fail(Operation::Stat, e))?;
    Ok((found.uid, found.gid) == (uid, gid))
}

/// Whether an error means that the file system cannot hold this attribute.
fn is_loss(object: Object<'_>, error: Errno, may_not_fit: bool) -> bool {
    match error {
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::TOOBIG | Errno::RANGE | Errno::INVAL => true,
        Errno::PERM => true,
        // ext4 and btrfs say "no space" when an attribute is too large; otherwise the disk is full, and
        // a later run may have more luck.
        Errno::NOSPC => {
            may_not_fit && stat::file_system(object.fd).is_ok_and(|fs| fs.available_bytes > 1 << 20)
        }
        _ => false,
    }
}
