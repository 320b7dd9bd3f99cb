//! Project ids: those of the source, and those that a destination directory hands down.
use dmover_model::{Attribute, EntryError, EntryKind, Operation, Side, TreePath};
use dmover_sys::flags::{self, Project};
use dmover_sys::{Errno, OwnedFd, path, stat};

use crate::attributes::Attributes;
use crate::directory::{SourceDirectory, TargetDirectory};
use crate::end::Local;
use crate::error::entry_error;
use crate::handle::DirectoryHandle;
use crate::root_side::RootSide;

const NONE: Project = Project { id: 0, inherit: false };

/// An entry whose project is to be determined, and its copy.
#[derive(Clone, Copy)]
pub struct ProjectOf<'a> {
    /// The directory of the entry, or the entry itself if it is a directory.
    pub from: &'a SourceDirectory,
    /// The same at the destination, if it is there.
    pub to: Option<&'a TargetDirectory>,
    /// The destination of the root.
    pub root: Option<&'a RootSide>,
    /// What the entry is.
    pub kind: EntryKind,
    /// An earlier pass has filled the destination: what it has is not its owner's choice.
    pub is_filled: bool,
}

impl Local<'_> {
    /// The project id that the copy of an entry must have if its source has `source`. `None`: do not change it.
    ///
    /// The project that DEST itself hands down was chosen by its owner, often for a quota: entries without a project
    /// get it, unless a directory above them has a project at the source. Then the source has excluded them on purpose.
    ///
    /// # Errors
    /// A project of a directory above cannot be read.
    pub fn expected_project(
        &self,
        of: ProjectOf<'_>,
        source: Project,
    ) -> Result<Option<Project>, EntryError> {
        let ProjectOf { from, to, kind, is_filled, .. } = of;
        if source != NONE {
            let id = self.rules.ids.project(source.id);
            return Ok(Some(Project { id, ..source }));
        }
        let is_directory = kind == EntryKind::Directory;
        // What a root, or an entry that is one, lies in is not of this job.
        if !from.place.is_of_job() {
            return Ok(None);
        }
        if is_directory && from.place.path().is_root() {
            // What DEST had before the first pass belongs to its owner.
            return if is_filled { project_of_top(to) } else { Ok(None) };
        }
        let there = if is_directory {
            handed_down(self, of, false)?
        } else if let Some(known) = from.handed_down.get() {
            *known
        } else {
            let found = handed_down(self, of, true)?;
            *from.handed_down.get_or_init(|| found)
        };
        Ok(Some(Project { inherit: there.inherit && is_directory, ..there }))
    }

    /// Determines the project id for the copy of an entry with these attributes. For a new one this needs no call unless
    /// the destination directory hands a project down.
    ///
    /// # Errors
    /// A project of a directory above cannot be read.
    pub fn settle_project(
        &self,
        of: ProjectOf<'_>,
        attributes: &mut Attributes,
        is_new: bool,
    ) -> Result<(), EntryError> {
        let source = attributes.project;
        let inherits = of.to.is_some_and(|target| target.hands_down_project);
        let is_plain = source == NONE && is_new && !inherits;
        if self.rules.policy.preserve.has(Attribute::Project) && !is_plain {
            attributes.project_there = self.expected_project(of, source)?;
        }
        Ok(())
    }
}

/// The project of entries without one in a directory, or beside it.
fn handed_down(local: &Local<'_>, of: ProjectOf<'_>, inside: bool) -> Result<Project, EntryError> {
    let ProjectOf { from, root, .. } = of;
    let fail = |operation, e| entry_error(Side::Source, operation, from.place.own(), e);
    let asks = |object: &OwnedFd| {
        let found = flags::project(object).map_err(|e| fail(Operation::ReadXattr, e));
        found.map(Option::unwrap_or_default)
    };
    let from_fd = match &from.handle {
        DirectoryHandle::Open(from) => Some(from),
        // Projects above the directory are not asked for: what has one at the source carries it itself.
        DirectoryHandle::Remote(from) => {
            let has_one = inside && from.attributes(b"", false)?.1.project != (0, false);
            if has_one {
                return Ok(NONE);
            }
            None
        }
    };
    if let Some(from) = from_fd.filter(|_| inside)
        && asks(from)? != NONE
    {
        return Ok(NONE);
    }
    let mut above: Option<OwnedFd> = None;
    for _ in from.place.path().components() {
        let Some(below) = above.as_ref().or(from_fd) else { break };
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
    let Some(root) = root else { return Ok(NONE) };
    let fail = |operation, e| entry_error(Side::Destination, operation, root.display().clone(), e);
    let relative = root.directory(&TreePath::root());
    let top = match path::open_directory_below(&root.parent, &relative) {
        Err(error) if stat::is_absent(error) && local.rules.policy.dry_run => return Ok(NONE),
        top => top.map_err(|e| fail(Operation::Open, e))?,
    };
    let there = flags::project(&top).map_err(|e| fail(Operation::ReadXattr, e))?;
    Ok(there.filter(|there| there.inherit).unwrap_or(NONE))
}

/// The project that the top of DEST must have if SOURCE has none. One that it hands down is its owner's choice; any
/// other came with an earlier copy.
fn project_of_top(target: Option<&TargetDirectory>) -> Result<Option<Project>, EntryError> {
    let Some(target) = target else { return Ok(None) };
    let there = flags::project(&target.fd)
        .map_err(|e| entry_error(Side::Destination, Operation::ReadXattr, target.place.own(), e))?;
    let is_left = there.is_some_and(|there| there != NONE && !there.inherit);
    Ok(is_left.then_some(NONE))
}
