//! What a file system can hold, how much of it, and how it survives a power cut.
use std::collections::BTreeMap;

use dmover_model::MountId;

/// When a read changes the time of the last access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtimeRule {
    /// Never (`noatime`).
    Never,
    /// If it is not later than the other times, or a day old (`relatime`).
    Relative,
    /// Always (`strictatime`).
    Always,
}

/// Which names are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Folding {
    /// Those of the same bytes.
    None,
    /// Those whose lower-case forms are equal; of bytes that are not UTF-8, the ASCII letters count.
    Case,
}

/// What one user may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Bytes of allocated blocks.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// In which order operations on metadata reach the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// That of the calls.
    Prefix,
    /// Any, but for operations on the same inode or directory.
    Partial,
}

/// What a file system promises for a power cut; [`crate::stored`] says what that means, and from where it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashModel {
    /// The order of operations on metadata.
    pub order: Order,
    /// Whether a file gets its size on storage with its data, and not with the call.
    pub late_sizes: bool,
    /// If a rename replaces a file, so many bytes of the new one are there if the rename is.
    pub replacing_bytes: u64,
}

impl CrashModel {
    /// ext4 with `data=ordered`, delayed allocation and `auto_da_alloc`, its defaults.
    pub const EXT4: Self =
        Self { order: Order::Prefix, late_sizes: true, replacing_bytes: 1 << 20 };
    /// XFS: as ext4, but a file that replaced another may be empty.
    pub const XFS: Self = Self { order: Order::Prefix, late_sizes: true, replacing_bytes: 0 };
    /// Only what POSIX promises.
    pub const WEAK: Self = Self { order: Order::Partial, late_sizes: false, replacing_bytes: 0 };
}

/// The abilities and limits of a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The number of the mount in identities.
    pub mount: MountId,
    /// Space is allocated, and holes are kept, in units of so many bytes; a power of two.
    pub block_bytes: u32,
    /// Space for content.
    pub capacity_bytes: u64,
    /// Number of inodes, with the root.
    pub capacity_inodes: u64,
    /// Limits by user; privileged users are exempt.
    pub quotas: BTreeMap<u32, Quota>,
    /// Longest name.
    pub name_bytes_max: usize,
    /// Most names of an inode; also bounds the subdirectories of a directory, where they count.
    pub links_max: u64,
    /// Largest file.
    pub file_bytes_max: u64,
    /// Longest value of one extended attribute.
    pub xattr_value_max: usize,
    /// Names and values of all extended attributes of an inode.
    pub xattr_bytes_max: usize,
    /// Times are kept as multiples of this (1 to 2,000,000,000).
    pub time_step_ns: u32,
    /// Changes are stamped with multiples of this: the kernel's clock for that is coarser than the file system.
    pub stamp_step_ns: u32,
    /// Seconds of the earliest and the latest time that can be kept; others are moved to these.
    pub time_range_s: (i64, i64),
    /// What a read does to the time of access.
    pub atime: AtimeRule,
    /// Which names are the same.
    pub folding: Folding,
    /// Whether an inode can have several names.
    pub has_links: bool,
    /// Whether there are symbolic links.
    pub has_symlinks: bool,
    /// Whether there are FIFOs, sockets and devices.
    pub has_special_files: bool,
    /// Whether there are extended attributes.
    pub has_xattrs: bool,
    /// Whether files can have holes; without them, holes are filled with zeros.
    pub has_holes: bool,
    /// Whether blocks can be shared.
    pub has_clones: bool,
    /// Without owners and modes: the user and the group that everything belongs to, with the mode 0755.
    pub fixed_owner: Option<(u32, u32)>,
    /// Whether there are the flags immutable and append-only.
    pub has_flags: bool,
    /// Whether two names can be exchanged, and a rename can refuse to replace.
    pub has_rename_flags: bool,
    /// Whether a subdirectory counts as a name of its parent (not on btrfs, where each directory has one name).
    pub counts_subdirectories: bool,
    /// Whether the number of a deleted inode is given to the next new one, as ext4 does.
    pub reuses_inodes: bool,
    /// Whether an unprivileged user can link a file that is not its own only if it may read and write it, and the file
    /// has no set-id bits (the sysctl `fs.protected_hardlinks`).
    pub protects_links: bool,
    /// What a power cut may do.
    pub crash: CrashModel,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            mount: MountId(0),
            block_bytes: 4096,
            capacity_bytes: 1 << 50,
            capacity_inodes: 1 << 40,
            quotas: BTreeMap::new(),
            name_bytes_max: 255,
            links_max: 65_000,
            file_bytes_max: 1 << 44,
            xattr_value_max: 65_536,
            xattr_bytes_max: 1 << 20,
            time_step_ns: 1,
            stamp_step_ns: 1,
            time_range_s: (-(1 << 31), (1 << 34) - 1),
            atime: AtimeRule::Relative,
            folding: Folding::None,
            has_links: true,
            has_symlinks: true,
            has_special_files: true,
            has_xattrs: true,
            has_holes: true,
            has_clones: false,
            fixed_owner: None,
            has_flags: true,
            has_rename_flags: true,
            counts_subdirectories: true,
            reuses_inodes: true,
            protects_links: true,
            crash: CrashModel::EXT4,
        }
    }
}

impl Profile {
    /// As ext4 with its defaults: extended attributes of an inode fit in a block, 4 ms between stamps.
    pub fn ext4() -> Self {
        Self { xattr_bytes_max: 4096 - 32, stamp_step_ns: 4_000_000, ..Self::default() }
    }

    /// As XFS with its defaults: blocks can be shared, a replaced file may be empty after a power cut.
    pub fn xfs() -> Self {
        Self {
            links_max: (1 << 31) - 1,
            file_bytes_max: (1 << 63) - 1,
            stamp_step_ns: 4_000_000,
            has_clones: true,
            crash: CrashModel::XFS,
            ..Self::default()
        }
    }

    /// As FAT: times of 2 s, no links, holes, owners, attributes or special files, and upper case is lower case.
    pub fn fat() -> Self {
        Self {
            file_bytes_max: (1 << 32) - 1,
            links_max: 1,
            time_step_ns: 2_000_000_000,
            time_range_s: (315_532_800, 4_354_819_198),
            folding: Folding::Case,
            has_links: false,
            has_symlinks: false,
            has_special_files: false,
            has_xattrs: false,
            has_holes: false,
            fixed_owner: Some((0, 0)),
            has_flags: false,
            has_rename_flags: false,
            crash: CrashModel::WEAK,
            ..Self::default()
        }
    }
}
