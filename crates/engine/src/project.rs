//! Project ids: those of the source, and those that a destination directory hands down.
use dmover_local::attributes::Attributes;
use dmover_local::error::entry_error;
use dmover_model::{Attribute, EntryError, EntryKind, Identity, Operation, Side, TreePath, Verb};
use dmover_sys::flags::{self, Project};
use dmover_sys::{Errno, OwnedFd, path};

use crate::context::Engine;
use crate::level::Level;

const NONE: Project = Project { id: 0, inherit: false };

impl Engine {
    /// The project id that the copy of an entry of this level, or of the level's own directory, must have if its source
    /// has `source`. `None`: do not change it.
    ///
    /// The project that DEST itself hands down was chosen by its owner, often for a quota: entries without a project
    /// get it, unless a directory above them has a project at the source. Then the source has excluded them on purpose.
    pub(crate) fn expected_project(
        &self,
        level: &Level,
        kind: EntryKind,
        source: Project,
    ) -> Result<Option<Project>, EntryError> {
        if source != NONE {
            return Ok(Some(source));
        }
        let is_directory = kind == EntryKind::Directory;
        // What a root, or an entry that is one, lies in is not of this job.
        if !level.root.is_directory {
            return Ok(None);
        }
        if is_directory && level.path.is_root() {
            // What DEST had before the first pass belongs to its owner.
            let is_filled = self.spec.verb == Verb::Sync && self.history.seen_before.is_some();
            return if is_filled { self.project_of_top(level) } else { Ok(None) };
        }
        let there = if is_directory {
            self.handed_down(level, false)?
        } else if let Some(known) = level.source.handed_down.get() {
            *known
        } else {
            let found = self.handed_down(level, true)?;
            *level.source.handed_down.get_or_init(|| found)
        };
        Ok(Some(Project { inherit: there.inherit && is_directory, ..there }))
    }

    /// The project that the top of DEST must have if SOURCE has none. One that it hands down is its owner's choice; any
    /// other came with an earlier copy.
    fn project_of_top(&self, level: &Level) -> Result<Option<Project>, EntryError> {
        let Some(target) = &level.target else { return Ok(None) };
        let there = flags::project(&target.fd).map_err(|e| {
            entry_error(Side::Destination, Operation::ReadXattr, level.own_target_path(), e)
        })?;
        let is_left = there.is_some_and(|there| there != NONE && !there.inherit);
        Ok(is_left.then_some(NONE))
    }

    /// The project of entries without one in a directory, or beside it.
    fn handed_down(&self, level: &Level, inside: bool) -> Result<Project, EntryError> {
        let fail = |operation, e| entry_error(Side::Source, operation, level.own_source_path(), e);
        let asks = |object: &OwnedFd| {
            let found = flags::project(object).map_err(|e| fail(Operation::ReadXattr, e));
            found.map(Option::unwrap_or_default)
        };
        if inside && asks(&level.source.fd)? != NONE {
            return Ok(NONE);
        }
        let mut above: Option<OwnedFd> = None;
        for _ in level.path.components() {
            let below = above.as_ref().unwrap_or(&level.source.fd);
            let next = match path::open_directory_at(below, b"..") {
                // A process without read access cannot know the project; it counts as none.
                Err(Errno::ACCESS) => break,
                next => next.map_err(|e| fail(Operation::Open, e))?,
            };
            if asks(&next)? != NONE {
                return Ok(NONE);
            }
            above = Some(next);
        }
        let top = self.open_target(&level.root, &TreePath::root(), Identity::default())?;
        let there = top.map(|top| flags::project(&top.fd)).transpose().map_err(|e| {
            entry_error(Side::Destination, Operation::ReadXattr, level.own_target_path(), e)
        })?;
        Ok(there.flatten().filter(|there| there.inherit).unwrap_or(NONE))
    }

    /// Determines the project id for the copy of a file with these attributes. For a new file this needs no call unless
    /// the destination directory hands a project down.
    pub(crate) fn settle_project(
        &self,
        level: &Level,
        kind: EntryKind,
        attributes: &mut Attributes,
        is_new: bool,
    ) -> Result<(), EntryError> {
        let source = attributes.project;
        let inherits = level.target.as_ref().is_some_and(|target| target.hands_down_project);
        let is_plain = source == NONE && is_new && !inherits;
        if self.spec.policy.preserve.has(Attribute::Project) && !is_plain {
            attributes.project_there = self.expected_project(level, kind, source)?;
        }
        Ok(())
    }
}
