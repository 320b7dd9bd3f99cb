//! What the verb of a job demands of its movers.
use dmover_model::{RootId, Verb};

use super::Engine;

/// The tree that is compared with a manifest; nothing is written to it.
pub(crate) const CHECKED: RootId = RootId(0);

impl Engine {
    /// Whether directories with repaired entries get recorded times instead of those of a source.
    pub(crate) fn restores_times(&self) -> bool {
        self.spec.verb == Verb::Verify && self.is_recorded()
    }

    /// Whether a missing directory gets its attributes when its own record is processed. A mover that creates it for an
    /// entry inside must not touch it then: another mover may already have finished it.
    pub(crate) fn dresses_by_record(&self) -> bool {
        self.spec.repairs() && self.is_recorded()
    }

    /// Whether a tree is compared with a manifest.
    pub(crate) fn is_recorded(&self) -> bool {
        self.root(CHECKED).is_ok_and(|root| root.destination.is_none())
    }
}
