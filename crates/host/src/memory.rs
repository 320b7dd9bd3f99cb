//! Memory of this process.
use std::fs::File;
use std::io::{Seek, Write};

/// A file in memory with this content, for another program to read from its beginning (memfd_create(2)).
///
/// # Errors
/// The kernel has no memory for it.
pub fn file(content: &[u8]) -> std::io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("dmover", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file)
}

/// The peak resident set size of this process in bytes (`VmHWM` of proc_pid_status(5)).
pub fn peak_bytes() -> u64 {
    status_bytes("VmHWM:")
}

/// The resident set size of this process in bytes (`VmRSS` of proc_pid_status(5)).
pub fn resident_bytes() -> u64 {
    status_bytes("VmRSS:")
}

fn status_bytes(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(field));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)).and_then(|n| n.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
