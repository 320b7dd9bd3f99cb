//! Attributes that this process cannot set without privilege: its copies never have them, so they are counted and are
//! no difference.
use dmover_local::attributes::{is_of_users, without_missing_locks};
use dmover_local::privilege::Privilege;
use dmover_model::{Attribute, EntryKind, JobSpec, Metadata, Verb};
use dmover_plan::idmap::{IdentityMap, OwnersByName};
use dmover_plan::settable::Unprivileged;
use std::sync::Arc;

/// Which attributes this process can set, and to which values.
pub(crate) struct Settable {
    spec: Arc<JobSpec>,
    /// Users and groups of the source, as the destination has them.
    pub ids: IdentityMap,
    /// The user and groups of a process without privilege.
    pub unprivileged: Option<Unprivileged>,
}

/// This process, if it has no privilege.
fn unprivileged(privilege: Privilege) -> Option<Unprivileged> {
    if privilege.privileged {
        return None;
    }
    let own = std::iter::once(privilege.gid);
    let groups = own.chain(dmover_host::user::groups()).collect();
    Some(Unprivileged { uid: privilege.uid, groups })
}

impl Settable {
    /// `names`: the owners of the source by their names, if they count.
    pub fn new(
        spec: Arc<JobSpec>,
        privilege: Privilege,
        names: Option<Arc<dyn OwnersByName>>,
    ) -> Self {
        let policy = &spec.policy;
        let ids = IdentityMap::new(policy.user_map.clone(), policy.group_map.clone());
        let ids = ids.projects(policy.project_map.clone());
        let ids = names.map_or(ids.clone(), |names| ids.by_name(names));
        Self { ids, unprivileged: unprivileged(privilege), spec }
    }

    /// The owner and group of an entry of the source, as the destination should have them.
    pub fn owner(&self, source: &Metadata) -> (u32, u32) {
        (self.ids.user(source.uid), self.ids.group(source.gid))
    }

    /// This process, if it has no privilege and the user did not name these attributes.
    fn lenient(&self, attribute: Attribute) -> Option<&Unprivileged> {
        let demanded = self.spec.policy.demanded.has(attribute);
        self.unprivileged.as_ref().filter(|_| !demanded)
    }

    /// The metadata of the source, as far as this process can set it on an entry with `old`.
    pub fn as_settable(&self, source: &Metadata, old: Option<&Metadata>) -> Metadata {
        let (uid, gid) = self.owner(source);
        let mut wanted = Metadata { uid, gid, ..source.clone() };
        let Some(old) = old else { return wanted };
        let (owner, found) = ((wanted.uid, wanted.gid), (old.uid, old.gid));
        if let Some(process) = self.lenient(Attribute::Owner) {
            (wanted.uid, wanted.gid) = process.owner(owner, found);
        }
        if let Some(process) = self.lenient(Attribute::Mode) {
            wanted.mode = process.mode((owner, wanted.mode), (found, old.mode));
        }
        wanted
    }

    /// Whether an entry has another owner or mode than this process would set.
    pub fn owner_or_mode_differs(&self, new: &Metadata, old: &Metadata) -> bool {
        let keeps = |attribute| self.spec.policy.preserve.has(attribute);
        let has_mode = new.kind != EntryKind::Symlink && keeps(Attribute::Mode);
        let (wanted, found) = (self.owner(new), (old.uid, old.gid));
        if let Some(process) = &self.unprivileged {
            let mode = process.mode((wanted, new.mode), (found, old.mode));
            let owner = process.owner(wanted, found);
            return (keeps(Attribute::Owner) && owner != found) || (has_mode && mode != old.mode);
        }
        // Set-id bits go with the owner.
        let mask = if wanted == found { 0o7777 } else { 0o1777 };
        (keeps(Attribute::Owner) && wanted != found)
            || (has_mode && (new.mode ^ old.mode) & mask != 0)
    }

    /// Whether an extended attribute counts in a comparison: one that needs privilege does not count if a copy lacks
    /// it.
    pub fn xattr_counts(&self, name: &[u8], is_there: bool) -> bool {
        is_there || is_of_users(name) || self.lenient(Attribute::Xattr).is_none()
    }

    /// The flags of an entry, without the locks of chattr(1) if only privilege sets them and a copy does not have them.
    pub fn settable_flags(&self, expected: u32, found: u32) -> u32 {
        match self.lenient(Attribute::Flags) {
            Some(_) => without_missing_locks(expected, found),
            None => expected,
        }
    }

    /// Whether an entry is locked (chattr(1)) like its source, as far as this process can lock it.
    pub fn has_locks(&self, source: &Metadata, found: &Metadata) -> bool {
        let lenient = self.lenient(Attribute::Flags).is_some();
        let same = |wanted: bool, found: bool| wanted == found || (lenient && wanted);
        same(source.immutable, found.immutable) && same(source.append_only, found.append_only)
    }

    /// Whether an entry keeps another owner than its source, because this process cannot set it.
    pub fn keeps_other_owner(&self, new: &Metadata, old: &Metadata) -> bool {
        let keeps = self.spec.policy.preserve.has(Attribute::Owner);
        self.spec.verb == Verb::Sync
            && keeps
            && self.unprivileged.is_some()
            && self.owner(new) != (old.uid, old.gid)
    }
}
