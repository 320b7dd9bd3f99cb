//! Child processes, and the descriptors of this one.
use std::ffi::CString;
use std::os::fd::AsRawFd;

use crate::BorrowedFd;

/// Has the kernel kill a child (SIGKILL) when the thread that starts it is gone (`PR_SET_PDEATHSIG` of prctl(2)): start it from a thread that lives as
/// long as the process, which is the main thread.
#[allow(unsafe_code)]
pub fn kill_with_parent(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let parent = rustix::process::getpid();
    let prepare = move || {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        if rustix::process::getppid() == Some(parent) {
            return Ok(());
        }
        // The parent ended before the kernel knew of the wish.
        Err(rustix::io::Errno::SRCH.into())
    };
    // SAFETY: between fork(2) and execve(2) the closure makes two system calls; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(prepare) };
}

/// Has a child react to signals as usual, whichever this process ignores.
#[allow(unsafe_code)]
pub fn with_usual_signals(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let prepare = || {
        for signal in
            [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2]
        {
            // SAFETY: it changes one disposition of the child, and may be called between fork(2) and execve(2) (signal-safety(7)).
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(prepare) };
}

/// Has a child ignore the interrupt key of the terminal that it shares with this process (SIGINT of signal(7)). It does so
/// until it decides otherwise.
#[allow(unsafe_code)]
pub fn ignore_interrupts(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let prepare = || {
        // SAFETY: it changes one disposition of the child, and may be called between fork(2) and execve(2) (signal-safety(7)).
        unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
        Ok(())
    };
    // SAFETY: the closure makes one system call; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(prepare) };
}

/// A descriptor of the kernel, also in a simulation.
pub(crate) type KernelFd = rustix::fd::OwnedFd;

/// close(2), with its result.
pub(crate) fn close(file: KernelFd) -> crate::Result<()> {
    use std::os::fd::IntoRawFd;
    #[allow(unsafe_code)]
    // SAFETY: the descriptor is owned and given up here, so nothing else uses it afterwards.
    unsafe {
        rustix::io::try_close(file.into_raw_fd())
    }
}

/// The path in /proc that stands for an open descriptor.
pub(crate) fn descriptor_path(object: BorrowedFd<'_>) -> CString {
    CString::new(format!("/proc/self/fd/{}", object.as_raw_fd())).expect("digits hold no NUL")
}
