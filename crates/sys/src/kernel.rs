//! The calls of the kernel that take descriptors of files and directories. With the feature `simulated`, which is for tests
//! only, they can mean disks in memory.
#[cfg(not(feature = "simulated"))]
pub(crate) use crate::process::close;
#[cfg(not(feature = "simulated"))]
pub use rustix::{
    fs::{
        accessat, chmod, chownat, copy_file_range, fadvise, fallocate, fchmod, fcntl_getfl,
        fcntl_setfl, fdatasync, fgetxattr, flistxattr, flock, fremovexattr, fsetxattr, fsync,
        ftruncate, futimens, getxattr, ioctl_ficlone, ioctl_getflags, ioctl_setflags, linkat,
        listxattr, mkdirat, mknodat, openat, openat2, readlinkat, removexattr, renameat,
        renameat_with, seek, setxattr, symlinkat, syncfs, unlinkat, utimensat,
    },
    io::{fcntl_dupfd_cloexec, pread, pwrite, read},
    mount::open_tree,
};

#[cfg(feature = "simulated")]
pub use crate::simulated::calls::{
    accessat, chmod, chownat, close, copy_file_range, fadvise, fallocate, fchmod,
    fcntl_dupfd_cloexec, fcntl_getfl, fcntl_setfl, fdatasync, fgetxattr, flistxattr, flock,
    fremovexattr, fsetxattr, fsync, ftruncate, futimens, getxattr, ioctl_ficlone, ioctl_getflags,
    ioctl_setflags, linkat, listxattr, mkdirat, mknodat, open_tree, openat, openat2, pread, pwrite,
    read, readlinkat, removexattr, renameat, renameat_with, seek, setxattr, symlinkat, syncfs,
    unlinkat, utimensat,
};
