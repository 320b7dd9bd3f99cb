//! The process itself: privilege, limits, the creation mask.
use rustix::process::{Resource, Rlimit};
use std::ffi::CString;
use std::os::fd::AsRawFd;

use crate::BorrowedFd;

/// The name of this host.
pub fn host_name() -> Vec<u8> {
    rustix::system::uname().nodename().to_bytes().to_vec()
}

/// The effective user id.
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The effective group id.
pub fn effective_gid() -> u32 {
    rustix::process::getegid().as_raw()
}

/// The supplementary groups, getgroups(2); none where they cannot be found out.
pub fn groups() -> Vec<u32> {
    let groups = rustix::process::getgroups().unwrap_or_default();
    groups.into_iter().map(rustix::process::Gid::as_raw).collect()
}

/// A file in memory with this content, for another program to read from its beginning (memfd_create(2)).
pub fn file_in_memory(content: &[u8]) -> std::io::Result<crate::OwnedFd> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = crate::retry(|| rustix::fs::memfd_create("dmover", flags))?;
    crate::file::write_all_at(&file, content, 0)?;
    Ok(file)
}

/// The name of a signal, such as `SIGTERM`; `signal 40` for one without a name.
pub fn signal_name(signal: i32) -> String {
    let name = signal_hook::low_level::signal_name(signal);
    name.map_or_else(|| format!("signal {signal}"), str::to_owned)
}

/// Leaves the session of the terminal, setsid(2). Nothing happens to a process that leads one already.
pub fn begin_session() {
    // EPERM: it is the leader of its group.
    let _ = rustix::process::setsid();
}

/// Has this process be asked to end (SIGTERM) when the one that has started it is gone (`PR_SET_PDEATHSIG` of prctl(2)).
pub fn end_with_parent() {
    let wanted = Some(rustix::process::Signal::TERM);
    // Every kernel knows it.
    let _ = rustix::process::set_parent_process_death_signal(wanted);
}

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

/// Bytes that an ordinary user may still write to the file system of a directory (statvfs(3)); `None` where that is not known.
pub fn free_bytes(directory: &std::path::Path) -> Option<u64> {
    let found = rustix::fs::statvfs(directory).ok()?;
    Some(found.f_bavail * found.f_frsize)
}

/// Whether the process may give files away (CAP_CHOWN) and read and write whatever it likes
/// (CAP_DAC_OVERRIDE), as root usually may. A root without capabilities, as in many containers,
/// counts as an ordinary user.
pub fn is_privileged() -> bool {
    use rustix::thread::CapabilitySet;
    let needed = CapabilitySet::CHOWN | CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER;
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// Capabilities without which entries come out otherwise, by the names of capabilities(7), as far as the process has them.
pub fn capabilities_that_matter() -> Vec<String> {
    use rustix::thread::CapabilitySet;
    let effective = rustix::thread::capabilities(None).map(|sets| sets.effective);
    let effective = effective.unwrap_or(CapabilitySet::empty());
    let all = [
        ("CAP_CHOWN", CapabilitySet::CHOWN),
        ("CAP_DAC_OVERRIDE", CapabilitySet::DAC_OVERRIDE),
        ("CAP_DAC_READ_SEARCH", CapabilitySet::DAC_READ_SEARCH),
        ("CAP_FOWNER", CapabilitySet::FOWNER),
        ("CAP_FSETID", CapabilitySet::FSETID),
        ("CAP_LINUX_IMMUTABLE", CapabilitySet::LINUX_IMMUTABLE),
        ("CAP_MKNOD", CapabilitySet::MKNOD),
        ("CAP_SETFCAP", CapabilitySet::SETFCAP),
    ];
    let has = all.iter().filter(|(_, capability)| effective.contains(*capability));
    has.map(|(name, _)| (*name).to_owned()).collect()
}

/// Whether attributes of the namespace `trusted.` are shown to the process: to CAP_SYS_ADMIN of the first user namespace
/// only (xattr(7)), so not to root in most containers.
pub fn sees_trusted() -> bool {
    use rustix::thread::CapabilitySet;
    let sets = rustix::thread::capabilities(None);
    let admin = sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    let ids = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    admin && ids.split_whitespace().eq(["0", "0", "4294967295"])
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

/// The path in /proc that stands for an open descriptor.
pub(crate) fn descriptor_path(object: BorrowedFd<'_>) -> CString {
    CString::new(format!("/proc/self/fd/{}", object.as_raw_fd())).expect("digits hold no NUL")
}

/// Random bytes from the kernel, for names that nobody can guess.
pub fn random_u64() -> u64 {
    let mut bytes = [0u8; 8];
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).is_ok() {
        return u64::from_ne_bytes(bytes);
    }
    // Sandboxes may forbid getrandom(2); time and pid still tell runs apart.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanoseconds = now.map_or(0, |d| d.as_nanos() as u64);
    nanoseconds ^ (u64::from(std::process::id()) << 40)
}

/// The peak resident set size of this process in bytes (`VmHWM` of proc_pid_status(5)).
pub fn peak_memory_bytes() -> u64 {
    status_bytes("VmHWM:")
}

/// The resident set size of this process in bytes (`VmRSS` of proc_pid_status(5)).
pub fn resident_memory_bytes() -> u64 {
    status_bytes("VmRSS:")
}

fn status_bytes(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(field));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)).and_then(|n| n.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// How many files this process has open, the directory that is read for it left out.
pub fn open_files() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |all| (all.count() as u64).saturating_sub(1))
}

/// Whether this process was started with a signal ignored, as by nohup(1) (`SigIgn` of proc_pid_status(5)).
pub fn is_ignored(signal: i32) -> bool {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = text.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (1..=64).contains(&signal) && mask >> (signal - 1) & 1 == 1
}

/// Whether standard output is a terminal.
pub fn stdout_is_terminal() -> bool {
    rustix::termios::isatty(rustix::stdio::stdout())
}

/// Whether standard error is a terminal.
pub fn stderr_is_terminal() -> bool {
    rustix::termios::isatty(rustix::stdio::stderr())
}

/// How many processors this process may use: its affinity and the quota of its control group count.
pub fn available_processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Milliseconds since the kernel was booted, suspended or not (`CLOCK_BOOTTIME` of clock_gettime(2)).
pub fn boot_clock_ms() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Seconds that processors have spent on this process since it started (clock_gettime(2)).
pub fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Seconds that processors have spent on this thread since it started (clock_gettime(2)).
pub fn thread_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Gives this thread the lowest priority (setpriority(2) with a thread's number, see its notes). A failure costs only the
/// others a little time.
pub fn yield_to_others() {
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 19);
}

/// Time that all processors of the machine have spent since it started, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessorTimes {
    /// At work, for whomever.
    pub busy: u64,
    /// At all.
    pub all: u64,
}

/// The first line of /proc/stat (proc_stat(5)); `None` where it is hidden.
pub fn processor_times() -> Option<ProcessorTimes> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    // user nice system idle iowait irq softirq steal; what follows is part of user and nice.
    let all: u64 = ticks.iter().take(8).sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    Some(ProcessorTimes { busy: all - idle, all })
}

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
