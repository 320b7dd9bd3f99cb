//! The base: an earlier copy of the tree at the destination, from which unchanged files are taken.
use dmover_model::{
    EntryError, EntryRecord, Fatal, Metadata, Operation, PathBytes, Side, TreePath,
};
use dmover_observe::{Activity, activity};
use dmover_sys::copy::KernelAnswer;
use dmover_sys::{Errno, OwnedFd, copy, directory, path, stat};
use std::path::Path;
use std::sync::Arc;

use crate::directory::{Place, TargetDirectory, tree_identity};
use crate::end::{Local, LocalEnd};
use crate::error::{changed, entry_error, failed};
use crate::file::{self, FileOrder};
use crate::put_in_place;
use crate::rights::Sides;
use crate::root_side::RootNames;
use crate::session::{self, Session, WriteError};
use crate::source::{self, OpenedSource};

/// The top directory of a base, open.
#[derive(Debug)]
pub struct BaseTop(OwnedFd);

impl BaseTop {
    /// Opens a base.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(at: &Path) -> Result<Self, Fatal> {
        path::open_directory(at).map(Self).map_err(|e| failed(at, "open", e))
    }

    /// What identifies the tree, whatever its path. `None`: it cannot be read.
    pub fn tree_identity(&self) -> Option<Vec<u8>> {
        stat::stat_born_at(&self.0, b"").ok().map(|found| tree_identity(&found))
    }
}

impl LocalEnd {
    /// Opens the directory at a path below a base, if it can be opened.
    pub fn open_base(&self, top: &BaseTop, at: &TreePath) -> Option<TargetDirectory> {
        self.directory_of_base(path::open_directory_below(&top.0, at.as_bytes()).ok()?)
    }

    /// Opens a directory in one of a base, if it can be opened.
    pub fn enter_base(&self, above: &TargetDirectory, name: &[u8]) -> Option<TargetDirectory> {
        self.directory_of_base(path::open_directory_below(&above.fd, name).ok()?)
    }

    fn directory_of_base(&self, fd: OwnedFd) -> Option<TargetDirectory> {
        let names = RootNames { display: PathBytes::default(), host: 0, is_directory: true };
        let place = Place::new(&Arc::new(names), TreePath::root());
        self.target_directory(fd, false, place).ok()
    }
}

/// A file of the base in the version that was found, open.
pub struct BaseFile(OwnedFd);

impl Local<'_> {
    /// Opens a file of the base. `None`: it cannot be opened, or is another version by now.
    pub fn open_in_base(
        &self,
        base: &TargetDirectory,
        last: &[u8],
        found: &Metadata,
    ) -> Option<BaseFile> {
        let old = path::open_file_at(&base.fd, last, false).ok()?;
        let now = self.end.mounts.metadata(&stat::stat_fd(&old).ok()?);
        now.same_version(found).then_some(BaseFile(old))
    }
}

impl Session<'_> {
    /// Gives a file of the base a name in the tree. Returns whether that was possible.
    ///
    /// # Errors
    /// Another entry has the name, or the source is another version by now, and the name was removed again.
    pub fn link_from_base(
        &self,
        Sides { from, to, follows }: Sides<'_>,
        record: &EntryRecord,
        (base, found): (&TargetDirectory, &Metadata),
    ) -> Result<bool, EntryError> {
        let (name, last) = (record.name.as_bytes(), record.destination_name().as_bytes());
        self.writes_to(to);
        activity::at(Activity::TargetNames);
        match directory::hard_link(&base.fd, last, &to.fd, last) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(self.taken(to, last)),
            Err(error) => {
                // Too many names already, immutable, another file system, no such thing as links.
                tracing::debug!(?error, "cannot link a file of the previous snapshot");
                return Ok(false);
            }
        }
        // Whatever happens to the source from now on is seen by the next snapshot; what happened before is seen here.
        let now = self.local.look(from, name, follows);
        let same = now.as_ref().is_ok_and(|(now, _)| now.same_version(&record.metadata));
        if same && session::is_at(&self.local, to, last, found.identity) {
            return Ok(true);
        }
        directory::unlink(&to.fd, last).map_err(|e| {
            entry_error(Side::Destination, Operation::Unlink, to.place.entry(last), e)
        })?;
        now?;
        Err(changed(Side::Source, from.place.entry(name)))
    }

    /// Makes a file that shares the blocks of a file of the base and has attributes of its own. Returns whether that was
    /// possible.
    ///
    /// # Errors
    /// It could not be made otherwise, or its source has changed.
    pub fn clone_from_base(
        &self,
        order: FileOrder<'_>,
        supply: &OpenedSource,
        BaseFile(old): &BaseFile,
    ) -> Result<bool, WriteError> {
        let FileOrder { from, to, last, .. } = order;
        let temporary = put_in_place::needs_temporary(&self.local, order.decision)
            .then(|| session::temporary_in(self, from, to));
        let name = temporary.as_ref().map_or(last, |temporary| temporary.as_bytes());
        let file = file::create_file(self, to, name, last, supply)?;
        let size = supply.metadata.size;
        if size > 0 && !matches!(copy::clone_file(old, file.fd()), Ok(KernelAnswer::Done(()))) {
            return Ok(false); // what was made is removed again
        }
        source::check_version(&self.local, from, order.name, supply)?;
        let shown = || to.place.entry(last);
        let flush = temporary.is_some();
        file::finish_file(&self.local, &file, &supply.metadata, &supply.attributes, flush, &shown)?;
        self.settle(order, file, supply)?;
        Ok(true)
    }
}
