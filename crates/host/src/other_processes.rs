//! Other processes of this host.

/// Whether a process here has a file open (proc(5), `fd`). Numbers of processes are used again, and mean others in other namespaces.
pub fn has_open(pid: u32, file: &std::path::Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |path: &std::path::Path| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    let Some(wanted) = identity(file) else { return false };
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.map(|entry| identity(&entry.path())).any(|found| found == Some(wanted))
}

/// When a process was started, in ticks since the boot (`starttime` of proc_pid_stat(5)); `None`: it is gone, or hidden. Together with
/// the boot and the namespace it identifies a process.
pub fn started(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in parentheses, may contain anything. The state follows, the third field; this is the 22nd.
    text[text.rfind(')')? + 1..].split_whitespace().nth(19)?.parse().ok()
}

/// Whether a process is gone with all its threads. One that was killed is still there as long as a thread of it hangs in a system
/// call, although its first thread has ended.
pub fn is_gone(pid: u32, started_at: u64) -> bool {
    let Some(number) = rustix::process::Pid::from_raw(pid as i32) else { return false };
    match rustix::process::test_kill_process(number) {
        Err(rustix::io::Errno::SRCH) => true,
        // It has the number of another one that is gone.
        _ => started(pid).is_some_and(|now| now != started_at),
    }
}

/// The namespace in which numbers of processes mean what they mean here (pid_namespaces(7)).
pub fn namespace() -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    Some(std::fs::metadata("/proc/self/ns/pid").ok()?.ino())
}

/// The words of a process's command, with blanks between them (proc(5), `cmdline`); `None` where it is hidden, or gone.
pub fn command(pid: u32) -> Option<Vec<u8>> {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = words.strip_suffix(b"\0").unwrap_or(&words);
    Some(words.iter().map(|byte| if *byte == 0 { b' ' } else { *byte }).collect())
}

/// The user who started a process: its real user id (`Uid` of proc_pid_status(5)). A program that is set-user-ID, and one that
/// hides what it does, keeps it.
pub fn user(pid: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Whether a process that hides its files runs a program of the same name as this one (`comm` of proc(5)).
pub fn seems_the_same(pid: u32) -> bool {
    let name = |pid: u32| std::fs::read(format!("/proc/{pid}/comm")).ok();
    let is_hidden = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).is_err();
    is_hidden && name(pid).is_some_and(|theirs| name(std::process::id()) == Some(theirs))
}

/// Sends a signal to a process (kill(2)). One that is gone needs none.
pub fn signal(pid: u32, signal: i32) {
    let process = rustix::process::Pid::from_raw(pid as i32);
    let signal = rustix::process::Signal::from_named_raw(signal);
    if let (Some(process), Some(signal)) = (process, signal) {
        let _ = rustix::process::kill_process(process, signal);
    }
}

/// Asks a process to end (SIGTERM). One that is gone needs no asking.
pub fn terminate(pid: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

/// Ends a process at once (SIGKILL). One that is gone needs no end.
pub fn kill(pid: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_start_until_it_is_gone() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let begun = started(child.id()).unwrap();
        assert!(Some(begun) >= started(std::process::id()), "{begun:?}");
        assert!(!is_gone(child.id(), begun) && is_gone(child.id(), begun - 1));
        child.kill().unwrap();
        // Nobody has taken note of its end.
        assert!(!is_gone(child.id(), begun));
        child.wait().unwrap();
        assert!(is_gone(child.id(), begun));
        assert!(namespace().is_some());
    }
}
