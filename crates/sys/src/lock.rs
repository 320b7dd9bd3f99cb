//! Locks that directories carry: marks that other processes see, and who holds a lock of flock(2).
pub use crate::answers::Mark;
use std::ops::Range;
use std::os::fd::AsRawFd;

use crate::{AsFd, Result, in_memory, retry};

/// A lock of fcntl_locking(2) over these bytes.
fn request(kind: libc::c_int, bytes: &Range<u64>) -> libc::flock {
    let length = bytes.end.saturating_sub(bytes.start);
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: bytes.start.cast_signed(),
        l_len: length.cast_signed(),
        // Locks of a descriptor have to say 0 here.
        l_pid: 0,
    }
}

fn ask(object: impl AsFd, command: libc::c_int, lock: &mut libc::flock) -> Result<()> {
    let fd = object.as_fd().as_raw_fd();
    retry(|| {
        #[allow(unsafe_code)]
        // SAFETY: the kernel reads and writes one `struct flock` at the pointer, which is a live one.
        let answer = unsafe { libc::fcntl(fd, command, std::ptr::from_mut(&mut *lock)) };
        if answer == 0 { Ok(()) } else { Err(crate::flags::last_errno()) }
    })
}

/// Marks an open directory at a position for as long as the descriptor is open: a shared lock of one byte that belongs to the
/// descriptor (fcntl_locking(2), Linux 3.15). A directory has no bytes; its locks have positions all the same.
pub fn mark(object: impl AsFd, at: u64) -> Result<()> {
    in_memory!(crate::simulated::look::mark(object.as_fd(), at));
    ask(object, libc::F_OFD_SETLK, &mut request(libc::F_RDLCK, &(at..at + 1)))
}

/// Removes all marks that a descriptor has set.
pub fn unmark(object: impl AsFd) -> Result<()> {
    in_memory!(crate::simulated::look::unmark(object.as_fd()));
    // A length of 0 means up to the end.
    ask(object, libc::F_OFD_SETLK, &mut request(libc::F_UNLCK, &(0..0)))
}

/// The position of a mark in a range that another descriptor has set. A lock of more than one byte is no mark.
pub fn marked(object: impl AsFd, range: &Range<u64>) -> Result<Option<u64>> {
    in_memory!(crate::simulated::look::marked(object.as_fd(), range));
    let mut lock = request(libc::F_WRLCK, range);
    ask(object, libc::F_OFD_GETLK, &mut lock)?;
    let is_free = libc::c_int::from(lock.l_type) == libc::F_UNLCK;
    Ok((!is_free && lock.l_len == 1).then_some(lock.l_start.cast_unsigned()))
}

/// The marks of all processes of this host, from /proc/locks (proc_locks(5)): locks that belong to a descriptor are listed in every
/// mount and PID namespace.
///
/// # Errors
/// /proc/locks cannot be read.
pub fn all_marks() -> std::io::Result<std::collections::HashSet<Mark>> {
    in_memory!(crate::simulated::look::all_marks().map(Ok));
    // The kernel writes the table in pieces: when a lock ends between two of them, one reading can miss another lock.
    let mut found = std::collections::HashSet::new();
    for _ in 0..2 {
        found.extend(std::fs::read_to_string("/proc/locks")?.lines().filter_map(mark_in));
    }
    Ok(found)
}

/// The process that has set a mark, from /proc/PID/fdinfo (proc_pid_fdinfo(5)): `likely` if it is that one. `None`: it belongs to
/// another user, or to another PID namespace that cannot be seen from here.
pub fn setter(inode: u64, at: u64, likely: u32) -> Option<u32> {
    let has_set = |pid: &u32| {
        let all = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
        let mut texts = all.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
        texts.any(|text| {
            let mut locks = text.lines().filter_map(|line| line.strip_prefix("lock:"));
            locks.any(|line| mark_in(line).is_some_and(|it| (it.inode, it.at) == (inode, at)))
        })
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    std::iter::once(likely).chain(numbers).find(has_set)
}

/// `4: OFDLCK ADVISORY  READ -1 fe:00:2 4611686018427416443 4611686018427416443`
fn mark_in(line: &str) -> Option<Mark> {
    let mut words = line.split_whitespace().skip(1);
    let is_mark = words.next() == Some("OFDLCK");
    let mut object = words.nth(3).filter(|_| is_mark)?.split(':');
    let (major, minor) = (object.next()?, object.next()?);
    let number = |digits| u32::from_str_radix(digits, 16).ok();
    let device = (number(major)?, number(minor)?);
    let inode = object.next()?.parse().ok()?;
    let (at, end) = (words.next()?, words.next()?);
    (at == end).then_some(Mark { device, inode, at: at.parse().ok()? })
}

/// Whether a descriptor that this process inherited holds the exclusive lock (flock(2)) of a directory: `flock DIR COMMAND` takes it
/// for the command. From /proc/self/fdinfo (proc(5), Linux 4.1).
pub fn is_inherited(object: impl AsFd) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(own) = crate::stat::stat_fd(&object) else { return false };
    let descriptors = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    descriptors.into_iter().any(|entry| {
        let found = std::fs::metadata(entry.path());
        let is_it = found.is_ok_and(|found| found.ino() == own.inode && found.dev() == own.device);
        let about = std::path::Path::new("/proc/self/fdinfo").join(entry.file_name());
        is_it
            && std::fs::read_to_string(about).is_ok_and(|text| {
                let mut locks = text.lines().filter(|line| line.starts_with("lock:"));
                locks.any(|line| line.contains("FLOCK") && line.contains("WRITE"))
            })
    })
}

/// The process that took a lock (flock(2)) of an object, from /proc/locks; `None` where that is not known.
pub fn holder(object: impl AsFd) -> Option<u32> {
    let own = crate::stat::stat_fd(object).ok()?;
    let (major, minor) = crate::stat::device_numbers(own.device);
    let text = std::fs::read_to_string("/proc/locks").ok()?;
    holder_in(&text, &format!("{major:02x}:{minor:02x}:{}", own.inode))
}

/// `1: FLOCK  ADVISORY  WRITE 18674 fe:00:5309945 0 EOF`; a process that waits has an arrow behind the number.
fn holder_in(locks: &str, object: &str) -> Option<u32> {
    let of_line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_it = words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&object);
        words.get(4).filter(|_| is_it)?.parse().ok().filter(|pid| *pid > 0)
    };
    locks.lines().find_map(of_line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::open_directory;

    #[test]
    fn others_see_a_mark_until_it_goes() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (open_directory(directory.path()), open_directory(directory.path()));
        let (one, other) = (one.unwrap(), other.unwrap());
        let at = 7 << 60 | 5;
        mark(&one, at).unwrap();
        assert_eq!(marked(&other, &(7 << 60..(7 << 60) + 16)), Ok(Some(at)));
        assert_eq!(marked(&other, &(6 << 60..(6 << 60) + 16)), Ok(None));
        assert_eq!(marked(&one, &(7 << 60..(7 << 60) + 16)), Ok(None), "its own");
        unmark(&one).unwrap();
        assert_eq!(marked(&other, &(7 << 60..(7 << 60) + 16)), Ok(None));
        mark(&one, at).unwrap();
        drop(one);
        assert_eq!(marked(&other, &(7 << 60..(7 << 60) + 16)), Ok(None));
    }

    #[test]
    fn the_table_of_all_locks_has_a_mark_and_its_process() {
        let memory = rustix::fs::memfd_create("dmover", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let at = 7 << 60 | 0x1234;
        mark(&memory, at).unwrap();
        let own = crate::stat::stat_fd(&memory).unwrap();
        let device = crate::stat::device_numbers(own.device);
        let set = Mark { device, inode: own.inode, at };
        assert!(all_marks().unwrap().contains(&set));
        // A number that belongs to another process, or to none, does not hide the one that has set it.
        for likely in [std::process::id(), 1, u32::MAX] {
            assert_eq!(setter(set.inode, at, likely), Some(std::process::id()));
        }
        assert_eq!(setter(set.inode, at + 1, 1), None);
        assert_eq!(mark_in("4: OFDLCK ADVISORY  READ -1 fe:00:2 5 7"), None, "many bytes");
        assert_eq!(mark_in("4: FLOCK  ADVISORY  READ 5 fe:00:2 0 EOF"), None);
    }

    #[test]
    fn the_holder_of_a_lock_is_in_the_table() {
        let table = "1: FLOCK  ADVISORY  WRITE 77 fe:00:53 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 78 fe:00:54 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 79 fe:00:54 0 EOF\n3: FLOCK  ADVISORY  READ 80 fe:00:54 0 EOF\n";
        assert_eq!(holder_in(table, "fe:00:53"), Some(77));
        assert_eq!(holder_in(table, "fe:00:54"), Some(80));
        assert_eq!(holder_in(table, "fe:00:55"), None);
    }
}
