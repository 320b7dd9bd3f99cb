//! The trees and verbs that a mover accepts, whatever a job demands.
use dmover_local::allowed_trees::AllowedTrees;
use dmover_model::{Fatal, FollowLinks, JobSpec, Verb};
use std::path::PathBuf;

/// The word for `verify --repair`, which writes.
pub const REPAIR: &str = "repair";

/// Trees and verbs that a mover accepts. An empty list accepts everything.
#[derive(Debug, Clone, Default)]
pub struct Bounds {
    /// Trees in which the roots of a job may lie.
    pub(crate) trees: AllowedTrees,
    verbs: Vec<String>,
}

impl Bounds {
    /// `roots`: existing directories; `verbs`: verbs by their words, and [`REPAIR`].
    ///
    /// # Errors
    /// A directory cannot be opened.
    pub fn new(roots: &[PathBuf], verbs: Vec<String>) -> Result<Self, Fatal> {
        Ok(Self { trees: AllowedTrees::new(roots)?, verbs })
    }

    /// Refuses jobs with other verbs, and jobs that could leave the trees.
    pub(crate) fn check_spec(&self, spec: &JobSpec) -> Result<(), Fatal> {
        let allows = |verb: &str| self.verbs.is_empty() || self.verbs.iter().any(|v| v == verb);
        let repairs = spec.policy.verify.as_ref().is_some_and(|policy| policy.repair);
        let needed = if spec.verb == Verb::Verify && repairs { REPAIR } else { spec.verb.word() };
        if !allows(needed) {
            let verbs = self.verbs.join(", ");
            let message = format!(
                "this mover does not run '{needed}' jobs; it accepts {verbs} (--allow-verb)"
            );
            return Err(Fatal::refused(message, "use another mover for this job"));
        }
        if !self.trees.is_everything() && spec.selection.follow != FollowLinks::Never {
            let message = "the job follows symbolic links, which may lead out of the directories \
                that this mover accepts (--allow-root)";
            return Err(Fatal::refused(
                message,
                "omit -L and --dereference-args, or use another mover",
            ));
        }
        Ok(())
    }
}
