//! What the kernel answers, with plain numbers.
use rustix::fs::FileType;

/// What statx(2) says, with plain numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Device number of the file system (not of a device node).
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names.
    pub links: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// 512-byte blocks.
    pub blocks: u64,
    /// Major and minor number of a device node.
    pub node_device: (u32, u32),
    /// Seconds and nanoseconds of the last access.
    pub atime: (i64, u32),
    /// Of the last write.
    pub mtime: (i64, u32),
    /// Of the last change.
    pub ctime: (i64, u32),
    /// `STATX_ATTR_*` bits that are set, 0 where the kernel does not say.
    pub attributes: u64,
}

/// `STATX_ATTR_IMMUTABLE`.
pub const ATTRIBUTE_IMMUTABLE: u64 = 0x10;
/// `STATX_ATTR_APPEND`.
pub const ATTRIBUTE_APPEND: u64 = 0x20;
/// `STATX_ATTR_MOUNT_ROOT`, Linux 5.8.
pub const ATTRIBUTE_MOUNT_ROOT: u64 = 0x2000;

impl Stat {
    /// The type bits.
    pub fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }
}

/// What fstatfs(2) says of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystem {
    /// The magic number of its type, see statfs(2).
    pub magic: i64,
    /// Bytes that an unprivileged user may still use.
    pub available_bytes: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Free inodes, 0 where they are made as needed.
    pub free_inodes: u64,
    /// Longest name in bytes.
    pub name_max: u64,
    /// Whether it is mounted read-only.
    pub read_only: bool,
}

/// The type of a directory entry as getdents64(2) hints at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypeHint {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// Anything else that is known.
    Other,
    /// The file system does not say.
    Unknown,
}

/// A mark as the table of all locks has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark {
    /// Major and minor number of the file system, which are not those of stat(2) on btrfs.
    pub device: (u32, u32),
    /// The inode that carries it.
    pub inode: u64,
    /// Its position.
    pub at: u64,
}
