//! The file systems of this host as an end of a job.
use dmover_model::{Attribute, CopyPolicy, Metadata};
use dmover_plan::history::History;
use dmover_plan::idmap::IdentityMap;
use dmover_tree::Reports;
use std::sync::Arc;

use crate::attributes::AttributeRules;
use crate::capability::CapabilityCache;
use crate::content::ContentRules;
use crate::flush::Flusher;
use crate::layout::LayoutHook;
use crate::mounts::MountTable;
use crate::privilege::Privilege;
use crate::unflushed::Unflushed;

/// What the movers of one process know together of the file systems of this host.
pub struct LocalEnd {
    /// The job's numbers of file systems.
    pub mounts: MountTable,
    /// What was learnt of file systems.
    pub capabilities: CapabilityCache,
    /// What this process may do.
    pub privilege: Privilege,
    /// Flushes completed work to storage, if that is required.
    pub flusher: Option<Flusher>,
    /// Files that stay although their content could not be flushed.
    pub unflushed: Unflushed,
    /// Chooses where the bytes of new files are placed.
    pub layout: Arc<dyn LayoutHook>,
}

/// What a job demands of its ends.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    /// What is preserved, and how content is copied.
    pub policy: &'a CopyPolicy,
    /// Which owners become which.
    pub ids: &'a IdentityMap,
    /// What earlier runs of the job have left.
    pub history: &'a History,
    /// The job is a comparison: it counts what it compares, and reports what it finds after a repair.
    pub compares: bool,
    /// The destination is a copy that is kept up to date: directories are opened up only for a change, and of a file only
    /// what differs is written.
    pub updates: bool,
    /// The job writes into the destination.
    pub fills: bool,
}

impl Rules<'_> {
    /// Whether the destination gets the modes of the source: what gives more access than its source is narrowed before
    /// anything enters it.
    pub fn sets_modes(&self) -> bool {
        let Self { policy, fills, .. } = *self;
        let clears_all = policy.sync.as_ref().is_some_and(|sync| sync.clears_all);
        fills
            && policy.preserve.has(Attribute::Mode)
            && !(policy.dry_run || policy.skip_chmod || clears_all)
    }
}

/// This host as an end of one job.
#[derive(Clone, Copy)]
pub struct Local<'a> {
    /// What is known of its file systems.
    pub end: &'a LocalEnd,
    /// What the job demands.
    pub rules: Rules<'a>,
    /// Receives losses and notes.
    pub reports: &'a dyn Reports,
}

impl<'a> Local<'a> {
    /// How attributes are read and set.
    pub fn attributes(&self) -> AttributeRules<'a> {
        let Rules { policy, ids, compares, .. } = self.rules;
        AttributeRules {
            policy,
            ids,
            privilege: self.end.privilege,
            compares,
            reports: self.reports,
        }
    }

    /// How content is copied, read and compared.
    pub fn content(&self) -> ContentRules<'a> {
        let Rules { policy, compares, .. } = self.rules;
        ContentRules { policy, compares, reports: self.reports }
    }

    /// The metadata of the source, with the owner mapped to the destination.
    pub fn as_mapped(&self, source: &Metadata) -> Metadata {
        let ids = self.rules.ids;
        Metadata { uid: ids.user(source.uid), gid: ids.group(source.gid), ..source.clone() }
    }
}
