//! Attributes that this process cannot set without privilege: its copies never have them, so they are counted and are
//! no difference.
use dmover_local::attributes::{is_of_users, without_missing_locks};
use dmover_local::privilege::Privilege;
use dmover_model::{Attribute, DifferenceKind, DifferenceSet, Metadata, Note, PathBytes, Verb};
use dmover_observe::Counter;
use dmover_plan::settable::Unprivileged;

use crate::context::Engine;

/// This process, if it has no privilege.
pub(crate) fn unprivileged(privilege: Privilege) -> Option<Unprivileged> {
    if privilege.privileged {
        return None;
    }
    let own = std::iter::once(privilege.gid);
    let groups = own.chain(dmover_host::user::groups()).collect();
    Some(Unprivileged { uid: privilege.uid, groups })
}

impl Engine {
    /// This process, if it has no privilege and the user did not name these attributes.
    fn lenient(&self, attribute: Attribute) -> Option<&Unprivileged> {
        let demanded = self.spec.policy.demanded.has(attribute);
        self.unprivileged.as_ref().filter(|_| !demanded)
    }

    /// The metadata of the source, as far as this process can set it on an entry with `old`.
    pub(crate) fn as_settable(&self, source: &Metadata, old: Option<&Metadata>) -> Metadata {
        let mut wanted = self.local().as_mapped(source);
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
    pub(crate) fn is_dressed_unlike(&self, new: &Metadata, old: &Metadata) -> bool {
        let keeps = |attribute| self.spec.policy.preserve.has(attribute);
        let has_mode = new.kind != dmover_model::EntryKind::Symlink && keeps(Attribute::Mode);
        let (wanted, found) =
            ((self.ids.user(new.uid), self.ids.group(new.gid)), (old.uid, old.gid));
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
    pub(crate) fn xattr_counts(&self, name: &[u8], is_there: bool) -> bool {
        is_there || is_of_users(name) || self.lenient(Attribute::Xattr).is_none()
    }

    /// The flags of an entry, without the locks of chattr(1) if only privilege sets them and a copy does not have them.
    pub(crate) fn settable_flags(&self, expected: u32, found: u32) -> u32 {
        match self.lenient(Attribute::Flags) {
            Some(_) => without_missing_locks(expected, found),
            None => expected,
        }
    }

    /// Whether an entry is locked (chattr(1)) like its source, as far as this process can lock it.
    pub(crate) fn has_locks(&self, source: &Metadata, found: &Metadata) -> bool {
        let lenient = self.lenient(Attribute::Flags).is_some();
        let same = |wanted: bool, found: bool| wanted == found || (lenient && wanted);
        same(source.immutable, found.immutable) && same(source.append_only, found.append_only)
    }

    /// Reports differences that do not count, because this process cannot set them.
    pub(crate) fn note_unsettable(&self, kinds: DifferenceSet, path: &PathBytes) {
        for kind in kinds.iter() {
            let note = match kind {
                DifferenceKind::Owner => Note::OwnerNotKept,
                DifferenceKind::Mode => Note::SetIdDropped,
                _ => Note::PrivilegedAttribute,
            };
            self.note(note, || path.clone());
        }
    }

    /// Counts an entry that keeps another owner than its source, because this process cannot set it.
    pub(crate) fn count_unsettable(&self, new: &Metadata, old: &Metadata) {
        let keeps = self.spec.policy.preserve.has(Attribute::Owner);
        if self.spec.verb != Verb::Sync || !keeps || self.unprivileged.is_none() {
            return;
        }
        let wanted = self.local().as_mapped(new);
        if (wanted.uid, wanted.gid) != (old.uid, old.gid) {
            self.count(Counter::OwnersNotKept);
        }
    }
}
