//! This process: its session, its limits, its children.
use rustix::process::{Resource, Rlimit};
use std::fs::File;

pub use dmover_sys::process::{ignore_interrupts, kill_with_parent, with_usual_signals};

/// Takes standard output for bytes of a protocol: what else this process prints there goes to standard error from now on.
///
/// # Errors
/// Standard output or standard error is closed.
pub fn take_stdout() -> std::io::Result<File> {
    let taken = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    enlarge_pipe(&taken);
    Ok(File::from(taken))
}

/// Another descriptor for standard error.
///
/// # Errors
/// It is closed.
pub fn another_stderr() -> std::io::Result<File> {
    Ok(File::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3)?))
}

/// Sends what this process prints from now on into two pipes, and returns their other ends: of standard output and of standard
/// error. They end when [`release_output`] was called, or with the process.
///
/// # Errors
/// There are no descriptors left.
pub fn capture_output() -> std::io::Result<[File; 2]> {
    let flags = rustix::pipe::PipeFlags::CLOEXEC;
    let (output, standard) = rustix::pipe::pipe_with(flags)?;
    let (errors, error) = rustix::pipe::pipe_with(flags)?;
    rustix::stdio::dup2_stdout(standard)?;
    rustix::stdio::dup2_stderr(error)?;
    Ok([File::from(output), File::from(errors)])
}

/// Sends what this process prints from now on into a file, and returns what has received it until now: standard output and
/// standard error.
///
/// # Errors
/// There are no descriptors left.
pub fn redirect_output(file: &File) -> std::io::Result<[File; 2]> {
    let output = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    let errors = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3)?;
    rustix::stdio::dup2_stdout(file)?;
    rustix::stdio::dup2_stderr(file)?;
    Ok([File::from(output), File::from(errors)])
}

/// Sends what this process prints from now on nowhere, which ends the pipes of [`capture_output`].
///
/// # Errors
/// /dev/null cannot be opened.
pub fn release_output() -> std::io::Result<()> {
    let nowhere = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    rustix::stdio::dup2_stderr(&nowhere)?;
    Ok(())
}

/// Standard input, without the buffer of the standard library, which would keep bytes that belong to somebody else.
///
/// # Errors
/// It is closed.
pub fn take_stdin() -> std::io::Result<File> {
    let taken = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    enlarge_pipe(&taken);
    Ok(File::from(taken))
}

/// Has a pipe hold more than the usual 64 KiB (`F_SETPIPE_SZ` of fcntl(2)), so that its two ends wait for each other less
/// often. Nothing happens to what is no pipe, and beyond the limits of the user.
pub fn enlarge_pipe(pipe: impl rustix::fd::AsFd) {
    /// One block of content. All pipes of a user together have 64 MiB (pipe(7), `pipe-user-pages-soft`), and data in a pipe
    /// delays what comes after it on a slow line.
    const BYTES: usize = 256 << 10;
    if rustix::pipe::fcntl_getpipe_size(&pipe).is_ok_and(|bytes| bytes < BYTES) {
        let _ = rustix::pipe::fcntl_setpipe_size(pipe, BYTES);
    }
}

/// Leaves the session of the terminal, setsid(2). Nothing happens to a process that leads one already.
pub fn begin_session() {
    // EPERM: it is the leader of its group.
    let _ = rustix::process::setsid();
}

/// Has this process continue when the one that has started it is gone.
pub fn outlive_parent() {
    // Every kernel knows it.
    let _ = rustix::process::set_parent_process_death_signal(None);
}

/// Has this process be asked to end (SIGTERM) when the one that has started it is gone (`PR_SET_PDEATHSIG` of prctl(2)).
pub fn end_with_parent() {
    let wanted = Some(rustix::process::Signal::TERM);
    // Every kernel knows it.
    let _ = rustix::process::set_parent_process_death_signal(wanted);
}

/// Clears the creation mask once, so that every mode is exactly the one asked for, and answers the
/// old mask.
pub fn clear_umask() -> u32 {
    rustix::process::umask(rustix::fs::Mode::empty()).as_raw_mode()
}

/// Raises the soft limit of open files to the hard one and answers it.
pub fn raise_open_files() -> u64 {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // A refusal leaves the old limit, which is answered below.
    let _ = rustix::process::setrlimit(Resource::Nofile, wanted);
    rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many files this process has open, the directory that is read for it left out.
pub fn open_files() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |all| (all.count() as u64).saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_holds_more_after_it_was_enlarged() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        enlarge_pipe(&reader);
        assert_eq!(rustix::pipe::fcntl_getpipe_size(&reader).unwrap(), 256 << 10);
        // Nothing happens to what is no pipe.
        enlarge_pipe(File::open("/dev/null").unwrap());
    }
}
