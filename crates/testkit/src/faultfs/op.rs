//! The operations that the fault file system serves, and their classes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One kind of request that the kernel sends.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // each is named after the call that causes it
pub enum Op {
    Lookup,
    Getattr,
    Setattr,
    Readlink,
    Mknod,
    Mkdir,
    Unlink,
    Rmdir,
    Symlink,
    Rename,
    Link,
    Open,
    Create,
    Read,
    Write,
    Fallocate,
    CopyFileRange,
    Lseek,
    Flush,
    Release,
    Fsync,
    Opendir,
    Readdir,
    Releasedir,
    Fsyncdir,
    Statfs,
    Setxattr,
    Getxattr,
    Listxattr,
    Removexattr,
}

/// A group of operations that share a latency.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpClass {
    /// Questions about entries: lookup, getattr, readlink, readdir, getxattr, statfs, lseek.
    Query,
    /// Changes of names and attributes: create, mkdir, rename, setattr, setxattr.
    Change,
    /// Open and opendir.
    Open,
    /// Flush and release, which every close costs.
    Close,
    /// Reads of file data.
    Read,
    /// Writes of file data, preallocation and server-side copy.
    Write,
    /// Fsync and fsyncdir.
    Sync,
}

impl Op {
    /// Every operation, in the order of their discriminants.
    pub const ALL: [Op; 30] = [
        Op::Lookup,
        Op::Getattr,
        Op::Setattr,
        Op::Readlink,
        Op::Mknod,
        Op::Mkdir,
        Op::Unlink,
        Op::Rmdir,
        Op::Symlink,
        Op::Rename,
        Op::Link,
        Op::Open,
        Op::Create,
        Op::Read,
        Op::Write,
        Op::Fallocate,
        Op::CopyFileRange,
        Op::Lseek,
        Op::Flush,
        Op::Release,
        Op::Fsync,
        Op::Opendir,
        Op::Readdir,
        Op::Releasedir,
        Op::Fsyncdir,
        Op::Statfs,
        Op::Setxattr,
        Op::Getxattr,
        Op::Listxattr,
        Op::Removexattr,
    ];

    /// The class that decides the latency of this operation.
    pub fn class(self) -> OpClass {
        match self {
            Op::Lookup
            | Op::Getattr
            | Op::Readlink
            | Op::Readdir
            | Op::Statfs
            | Op::Getxattr
            | Op::Listxattr
            | Op::Lseek => OpClass::Query,
            Op::Setattr
            | Op::Mknod
            | Op::Mkdir
            | Op::Unlink
            | Op::Rmdir
            | Op::Symlink
            | Op::Rename
            | Op::Link
            | Op::Create
            | Op::Setxattr
            | Op::Removexattr => OpClass::Change,
            Op::Open | Op::Opendir => OpClass::Open,
            Op::Flush | Op::Release | Op::Releasedir => OpClass::Close,
            Op::Read => OpClass::Read,
            Op::Write | Op::Fallocate | Op::CopyFileRange => OpClass::Write,
            Op::Fsync | Op::Fsyncdir => OpClass::Sync,
        }
    }

    /// Position in tables that are indexed by operation.
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_indexed_by_discriminant() {
        for (position, op) in Op::ALL.iter().enumerate() {
            assert_eq!(op.index(), position, "{op}");
        }
        assert_eq!(Op::CopyFileRange.to_string(), "copy_file_range");
    }
}
