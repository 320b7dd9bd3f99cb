//! The mark in a trash directory.
use dmover_sys::{OwnedFd, Result, file, path, stat};

use crate::level::TargetDirectory;

/// The name of the mark in a trash. The mark identifies its directory, so that a copy of it can be distinguished.
pub(crate) const MARK: &[u8] = b".dmover-trash";
/// The longest content of a mark.
const MARK_MAX: usize = 64;

/// Whether an open directory is a trash. If unknown, it is.
pub(crate) fn holds_mark(directory: &OwnedFd) -> bool {
    !stat::stat_at(directory, MARK, false).is_err_and(stat::is_absent)
}

/// Whether a source name is a mark and the destination already has one, which stays: a trash that was moved or restored
/// is another directory than its mark says.
pub(crate) fn is_mark_there(name: &[u8], target: Option<&TargetDirectory>) -> bool {
    name == MARK && target.is_some_and(|target| holds_mark(&target.fd))
}

/// The content of the mark in a directory.
pub(crate) fn read_mark(directory: &OwnedFd) -> Result<Vec<u8>> {
    let file = path::open_file_at(directory, MARK, false)?;
    let mut bytes = [0; MARK_MAX];
    let length = file::read(&file, &mut bytes)?;
    Ok(bytes[..length].to_vec())
}

/// The content of the mark of a directory, which identifies it. `None`: its file system has no lasting identity.
pub(crate) fn mark_of(directory: &OwnedFd) -> Result<Option<Vec<u8>>> {
    let (found, birth) = stat::stat_born_at(directory, b"")?;
    let words = |(seconds, nanoseconds)| format!("{} {seconds}.{nanoseconds:09}\n", found.inode);
    Ok(birth.map(|birth| words(birth).into_bytes()))
}
