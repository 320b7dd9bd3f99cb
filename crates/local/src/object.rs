//! What tells an entry apart from a later one that gets its inode number: the time of its creation.
use dmover_model::{EntryError, Metadata, Object, Operation, Side, Timestamp};
use dmover_sys::stat::{self, Stat};

use crate::directory::SourceDirectory;
use crate::end::Local;
use crate::error::entry_error;

/// The object that a look with the time of creation has found.
pub(crate) fn object_of((found, birth): &(Stat, Option<(i64, u32)>)) -> Object {
    let birth = birth.map(|(seconds, nanoseconds)| Timestamp { seconds, nanoseconds });
    Object { inode: found.inode, birth }
}

impl SourceDirectory {
    /// The object that has a name. `None`: it cannot be looked at.
    pub fn object_at(&self, name: &[u8]) -> Option<Object> {
        stat::stat_born_at(&self.fd, name).ok().map(|found| object_of(&found))
    }
}

impl Local<'_> {
    /// Looks at a name of the source, and tells which object has it.
    ///
    /// # Errors
    /// It is not there, or its directory cannot be searched.
    pub fn look_at_object(
        &self,
        from: &SourceDirectory,
        name: &[u8],
    ) -> Result<(Metadata, Object), EntryError> {
        let found = stat::stat_born_at(&from.fd, name)
            .map_err(|e| entry_error(Side::Source, Operation::Stat, from.place.entry(name), e))?;
        Ok((self.end.mounts.metadata(&found.0), object_of(&found)))
    }
}
