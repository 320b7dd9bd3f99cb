//! What the verb of a job demands of its movers.
use dmover_model::{
    DeletePolicy, EntryError, ErrorClass, RootId, Side, Verb, VerifyLevel, VerifyPolicy,
};

use super::Engine;

/// The tree that is compared with a manifest; nothing is written to it.
pub(crate) const CHECKED: RootId = RootId(0);

impl Engine {
    pub(crate) fn delete_policy(&self) -> Option<&DeletePolicy> {
        self.spec.policy.sync.as_ref()?.delete.as_ref()
    }

    /// Whether trash directories and temporary files are deleted as well.
    pub(crate) fn clears_all(&self) -> bool {
        self.spec.policy.sync.as_ref().is_some_and(|sync| sync.clears_all)
    }

    /// Whether the manifest also has entries that already existed.
    pub(crate) fn keeps_what_is_there(&self) -> bool {
        self.recorder.as_ref().is_some_and(|recorder| !recorder.is_of_written())
    }

    pub(crate) fn repairs(&self) -> bool {
        self.spec.policy.verify.as_ref().is_some_and(|policy| policy.repair)
    }

    /// Whether directories with repaired entries get recorded times instead of those of a source.
    pub(crate) fn restores_times(&self) -> bool {
        self.spec.verb == Verb::Verify && self.is_recorded()
    }

    /// Whether a missing directory gets its attributes when its own record is processed. A mover that creates it for an
    /// entry inside must not touch it then: another mover may already have finished it.
    pub(crate) fn dresses_by_record(&self) -> bool {
        self.repairs() && self.is_recorded()
    }

    /// The comparison policy, if the job compares.
    pub(crate) fn verify_policy(&self) -> &VerifyPolicy {
        self.spec.policy.verify.as_ref().expect("a job that compares says how")
    }

    /// Whether content is read from storage and not from the page cache.
    pub(crate) fn reads_stored(&self) -> bool {
        self.spec.policy.verify.as_ref().is_some_and(|policy| policy.stored)
    }

    /// Whether hard links are compared.
    pub(crate) fn compares_links(&self) -> bool {
        match self.spec.verb {
            Verb::Copy | Verb::Sync => true,
            Verb::Sum => false,
            // A repair that does not know of them would tear them apart.
            Verb::Verify => self.repairs() || self.verify_policy().level >= VerifyLevel::Mtime,
        }
    }

    /// Whether an error says that a directory to compare is another type of entry.
    pub(crate) fn is_no_directory(&self, error: &EntryError) -> bool {
        let conflict = error.class == ErrorClass::TypeConflict && error.side == Side::Destination;
        conflict && self.spec.verb == Verb::Verify
    }

    /// Whether a tree is compared with a manifest.
    pub(crate) fn is_recorded(&self) -> bool {
        self.root(CHECKED).is_ok_and(|root| root.destination.is_none())
    }
}
