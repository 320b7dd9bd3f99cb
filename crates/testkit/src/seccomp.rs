//! Running code under a filter that refuses system calls, as old kernels and containers do.
//!
//! Besides system calls the lists may name some requests of a call: the ioctls `ficlone`,
//! `ficlonerange`, `fs_ioc_getflags`, `fs_ioc_setflags`, `fs_ioc_fsgetxattr`, `fs_ioc_fssetxattr`
//! and `fs_ioc_fiemap`, and the flags of `openat` `o_direct`, `o_tmpfile` and `o_noatime`. A filter cannot look into
//! the argument of `openat2`, so refuse that one too.
#![allow(clippy::unnecessary_debug_formatting, reason = "names hold control characters")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// System calls that a copier may use and must be able to do without, and those that tests break on purpose.
const CALLS: &[(&str, i64)] = &[
    ("cachestat", 451),
    ("clone3", libc::SYS_clone3),
    ("close_range", libc::SYS_close_range),
    ("copy_file_range", libc::SYS_copy_file_range),
    ("execveat", libc::SYS_execveat),
    ("faccessat2", libc::SYS_faccessat2),
    ("fadvise64", libc::SYS_fadvise64),
    ("fallocate", libc::SYS_fallocate),
    ("fanotify_init", libc::SYS_fanotify_init),
    ("fanotify_mark", libc::SYS_fanotify_mark),
    ("fchmod", libc::SYS_fchmod),
    ("fchmodat", libc::SYS_fchmodat),
    ("fchmodat2", 452),
    ("fchown", libc::SYS_fchown),
    ("fchownat", libc::SYS_fchownat),
    ("fdatasync", libc::SYS_fdatasync),
    ("fgetxattr", libc::SYS_fgetxattr),
    ("file_getattr", 468),
    ("file_setattr", 469),
    ("flistxattr", libc::SYS_flistxattr),
    ("flock", libc::SYS_flock),
    ("fremovexattr", libc::SYS_fremovexattr),
    ("fsetxattr", libc::SYS_fsetxattr),
    ("fstatfs", libc::SYS_fstatfs),
    ("fsync", libc::SYS_fsync),
    ("ftruncate", libc::SYS_ftruncate),
    ("getdents64", libc::SYS_getdents64),
    ("getrandom", libc::SYS_getrandom),
    ("getxattr", libc::SYS_getxattr),
    ("getxattrat", 464),
    ("inotify_init1", libc::SYS_inotify_init1),
    ("io_setup", libc::SYS_io_setup),
    ("io_uring_enter", libc::SYS_io_uring_enter),
    ("io_uring_register", libc::SYS_io_uring_register),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("ioctl", libc::SYS_ioctl),
    ("ioprio_set", libc::SYS_ioprio_set),
    ("lgetxattr", libc::SYS_lgetxattr),
    ("linkat", libc::SYS_linkat),
    ("listxattr", libc::SYS_listxattr),
    ("listxattrat", 465),
    ("llistxattr", libc::SYS_llistxattr),
    ("lremovexattr", libc::SYS_lremovexattr),
    ("lseek", libc::SYS_lseek),
    ("lsetxattr", libc::SYS_lsetxattr),
    ("mbind", libc::SYS_mbind),
    ("memfd_create", libc::SYS_memfd_create),
    ("mkdirat", libc::SYS_mkdirat),
    ("mknodat", libc::SYS_mknodat),
    ("name_to_handle_at", libc::SYS_name_to_handle_at),
    ("open_by_handle_at", libc::SYS_open_by_handle_at),
    ("openat2", libc::SYS_openat2),
    ("pidfd_open", libc::SYS_pidfd_open),
    ("preadv2", libc::SYS_preadv2),
    ("pwrite64", libc::SYS_pwrite64),
    ("pwritev2", libc::SYS_pwritev2),
    ("quotactl", libc::SYS_quotactl),
    ("quotactl_fd", libc::SYS_quotactl_fd),
    ("readlinkat", libc::SYS_readlinkat),
    ("removexattr", libc::SYS_removexattr),
    ("removexattrat", 466),
    ("renameat", libc::SYS_renameat),
    ("renameat2", libc::SYS_renameat2),
    ("sched_setaffinity", libc::SYS_sched_setaffinity),
    ("sendfile", libc::SYS_sendfile),
    ("set_mempolicy", libc::SYS_set_mempolicy),
    ("setxattr", libc::SYS_setxattr),
    ("setxattrat", 463),
    ("socket", libc::SYS_socket),
    ("splice", libc::SYS_splice),
    ("statfs", libc::SYS_statfs),
    ("statx", libc::SYS_statx),
    ("symlinkat", libc::SYS_symlinkat),
    ("sync_file_range", libc::SYS_sync_file_range),
    ("syncfs", libc::SYS_syncfs),
    ("tee", libc::SYS_tee),
    ("unlinkat", libc::SYS_unlinkat),
    ("utimensat", libc::SYS_utimensat),
    ("vmsplice", libc::SYS_vmsplice),
];

/// Calls that newer architectures no longer have, and that the C library still uses where they exist.
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: &[(&str, i64)] = &[
    ("chmod", libc::SYS_chmod),
    ("chown", libc::SYS_chown),
    ("lchown", libc::SYS_lchown),
    ("link", libc::SYS_link),
    ("mkdir", libc::SYS_mkdir),
    ("mknod", libc::SYS_mknod),
    ("rename", libc::SYS_rename),
    ("rmdir", libc::SYS_rmdir),
    ("symlink", libc::SYS_symlink),
    ("unlink", libc::SYS_unlink),
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[(&str, i64)] = &[];

/// Requests of `ioctl`, by the number in its second argument.
const REQUESTS: &[(&str, u64)] = &[
    ("ficlone", 0x4004_9409),
    ("ficlonerange", 0x4020_940d),
    ("fs_ioc_fiemap", 0xc020_660b),
    ("fs_ioc_fsgetxattr", 0x801c_581f),
    ("fs_ioc_fssetxattr", 0x401c_5820),
    ("fs_ioc_getflags", 0x8008_6601),
    ("fs_ioc_setflags", 0x4008_6602),
];

/// Commands of `fcntl`, by the number in its second argument.
const COMMANDS: &[(&str, u64)] = &[("f_ofd_getlk", 36), ("f_ofd_setlk", 37)];

/// Flags of `openat`, in its third argument.
const OPEN_FLAGS: &[(&str, i32)] =
    &[("o_direct", libc::O_DIRECT), ("o_noatime", libc::O_NOATIME), ("o_tmpfile", libc::O_TMPFILE)];

/// What to refuse, and with which error.
#[derive(Debug)]
pub struct Denial {
    program: BpfProgram,
}

impl Denial {
    /// Compiles a filter that refuses the named calls with one error and allows everything else.
    ///
    /// Filters add up: for a second error, refuse under a second one.
    pub fn new(denied: &[&str], errno: i32) -> Result<Self> {
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
        let mut whole = Vec::new();
        for name in denied {
            match lookup(name)? {
                (call, None) => whole.push(call),
                (call, Some(condition)) => {
                    let rule = SeccompRule::new(vec![condition])?;
                    rules.entry(call).or_default().push(rule);
                }
            }
        }
        // A call without rules is refused whatever its arguments are, so this comes last.
        rules.extend(whole.into_iter().map(|call| (call, Vec::new())));
        let arch: TargetArch = std::env::consts::ARCH.try_into()?;
        let errno = u32::try_from(errno).context("error number")?;
        let denial = SeccompAction::Errno(errno);
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, denial, arch)?;
        Ok(Self { program: filter.try_into()? })
    }

    /// Refuses the calls from now on to this thread, to threads and processes it starts, and for good.
    pub fn apply(&self) -> Result<()> {
        seccompiler::apply_filter(&self.program).context("cannot install the filter")
    }
}

fn lookup(name: &str) -> Result<(i64, Option<SeccompCondition>)> {
    fn find<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
        table.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }
    if let Some(call) = find(CALLS, name).or_else(|| find(OLD_CALLS, name)) {
        return Ok((call, None));
    }
    let (call, argument, operator, value) = if let Some(request) = find(REQUESTS, name) {
        (libc::SYS_ioctl, 1, SeccompCmpOp::Eq, request)
    } else if let Some(command) = find(COMMANDS, name) {
        (libc::SYS_fcntl, 1, SeccompCmpOp::Eq, command)
    } else if let Some(flag) = find(OPEN_FLAGS, name) {
        let flag = u64::from(flag.cast_unsigned());
        (libc::SYS_openat, 2, SeccompCmpOp::MaskedEq(flag), flag)
    } else {
        bail!("no system call of this name is known here: {name:?}");
    };
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?;
    Ok((call, Some(condition)))
}

/// Runs a closure in a thread to which the calls are refused, with all threads and processes it starts.
///
/// This needs no helper program and is what tests of libraries and of programs should use.
pub fn with_denied<T: Send>(
    denied: &[&str],
    errno: i32,
    work: impl FnOnce() -> T + Send,
) -> Result<T> {
    let denial = Denial::new(denied, errno)?;
    thread::scope(|scope| {
        let filtered = scope.spawn(|| denial.apply().map(|()| work()));
        filtered.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The command that runs a program under `dmover-seccomp`; the caller adds the program's arguments.
///
/// The helper is found beside the running test program, or where `DMOVER_SECCOMP` says.
pub fn seccomp_command(denied: &[&str], errno: i32, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(helper("dmover-seccomp", "DMOVER_SECCOMP"));
    command.arg("--deny").arg(denied.join(","));
    command.arg("--errno").arg(crate::faultfs::errno_name(errno));
    command.arg("--").arg(program);
    command
}

/// Where a helper program of this crate lies: tests are built into a directory below the programs.
fn helper(name: &str, variable: &str) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        return path.into();
    }
    let found = std::env::current_exe()
        .ok()
        .and_then(|own| own.ancestors().skip(1).map(|dir| dir.join(name)).find(|at| at.is_file()));
    found.unwrap_or_else(|| name.into())
}

/// Installs the filter and becomes the program; returns only if that fails.
pub fn exec_denied(denied: &[&str], errno: i32, command: &mut Command) -> Result<()> {
    use std::os::unix::process::CommandExt;

    Denial::new(denied, errno)?.apply()?;
    let error = command.exec();
    Err(anyhow!(error).context(format!("cannot run {:?}", command.get_program())))
}
