//! fanotify(7): what has changed anywhere on a file system, told with the directory and the name.
//!
//! Events carry file handles, which stay valid whatever is renamed meanwhile. Linux 5.9 (FAN_REPORT_DFID_NAME, and
//! FAN_REPORT_FID with it); marking a file system needs CAP_SYS_ADMIN, and so does opening handles (CAP_DAC_READ_SEARCH).
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::time::Duration;

use crate::process::KernelFd;
use crate::{OwnedFd, Result};

/// What happened to a name, as bits of an event.
pub mod mask {
    /// Content was written.
    pub const MODIFY: u64 = libc::FAN_MODIFY;
    /// Metadata was changed.
    pub const ATTRIB: u64 = libc::FAN_ATTRIB;
    /// Who had it open for writing has closed it, mappings included.
    pub const CLOSE_WRITE: u64 = libc::FAN_CLOSE_WRITE;
    /// It came from another name.
    pub const MOVED_TO: u64 = libc::FAN_MOVED_TO;
    /// It went to another name.
    pub const MOVED_FROM: u64 = libc::FAN_MOVED_FROM;
    /// It was made, or linked.
    pub const CREATE: u64 = libc::FAN_CREATE;
    /// It was removed.
    pub const DELETE: u64 = libc::FAN_DELETE;
    /// It is about a directory.
    pub const ON_DIRECTORY: u64 = libc::FAN_ONDIR;
    /// The queue was full: events are missing.
    pub const OVERFLOW: u64 = libc::FAN_Q_OVERFLOW;
}

const ASKED: u64 = mask::MODIFY
    | mask::ATTRIB
    | mask::CLOSE_WRITE
    | mask::MOVED_TO
    | mask::MOVED_FROM
    | mask::CREATE
    | mask::DELETE
    | mask::ON_DIRECTORY;

/// `struct fanotify_event_metadata`.
const METADATA_LEN: usize = 24;
/// `struct fanotify_event_info_header`, and the identifier of the file system after it.
const INFO_HEADER_LEN: usize = 4;
const FSID_LEN: usize = 8;
/// `struct file_handle` without the handle.
const HANDLE_HEADER_LEN: usize = 8;

/// Tells one file system from another within this kernel.
pub type FsId = [u8; FSID_LEN];

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// What happened, by [`mask`].
    pub mask: u64,
    /// On which file system.
    pub fs: FsId,
    /// The directory that holds the name, for [`open_handle`]; empty if the event is about none.
    pub directory: &'a [u8],
    /// The name; `.` is the directory itself.
    pub name: &'a [u8],
    /// What was written or changed under this name, for [`open_handle`]; empty if the event is about names alone.
    pub object: &'a [u8],
}

/// A queue of events. `EPERM`: not for this process; `EINVAL`, `ENOSYS`: not by this kernel.
#[allow(unsafe_code)]
pub fn open() -> Result<OwnedFd> {
    let flags = libc::FAN_CLASS_NOTIF
        | libc::FAN_CLOEXEC
        | libc::FAN_NONBLOCK
        | libc::FAN_REPORT_FID
        | libc::FAN_REPORT_DIR_FID
        | libc::FAN_REPORT_NAME;
    // SAFETY: no pointers are passed; what is answered is a new descriptor or an error.
    unsafe {
        let fd = libc::fanotify_init(flags, libc::O_RDONLY as libc::c_uint);
        if fd < 0 { Err(last()) } else { Ok(own(fd)) }
    }
}

/// Has everything on the file system of `directory` told. `EXDEV`, `ENODEV`, `EOPNOTSUPP`: it cannot.
#[allow(unsafe_code)]
pub fn mark_file_system(queue: impl AsFd, directory: impl AsFd) -> Result<()> {
    let (queue, directory) = (queue.as_fd().as_raw_fd(), directory.as_fd().as_raw_fd());
    let flags = libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM;
    // SAFETY: both descriptors are open; a null path stands for `directory` itself.
    let result = unsafe { libc::fanotify_mark(queue, flags, ASKED, directory, std::ptr::null()) };
    if result == 0 { Ok(()) } else { Err(last()) }
}

/// The identifier that events of this file system carry.
#[allow(unsafe_code)]
pub fn fs_id(directory: impl AsFd) -> Result<FsId> {
    let mut found = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: fstatfs(2) fills the structure, which is plain numbers; `fsid_t` is eight bytes of it.
    unsafe {
        if libc::fstatfs(directory.as_fd().as_raw_fd(), found.as_mut_ptr()) != 0 {
            return Err(last());
        }
        Ok(std::mem::transmute::<libc::fsid_t, FsId>(found.assume_init().f_fsid))
    }
}

/// Opens what a handle stands for as a place only (O_PATH). `ESTALE`: it is gone.
#[allow(unsafe_code)]
pub fn open_handle(mount: impl AsFd, handle: &[u8]) -> Result<OwnedFd> {
    // Aligned as the structure asks for.
    let mut aligned = vec![0_u64; handle.len().div_ceil(8)];
    for (word, bytes) in aligned.iter_mut().zip(handle.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(whole);
    }
    let claimed = handle.get(..4).map_or(usize::MAX, |bytes| number(bytes) as usize);
    if handle.len() < HANDLE_HEADER_LEN || claimed > handle.len() - HANDLE_HEADER_LEN {
        return Err(Errno::INVAL);
    }
    // SAFETY: the handle has as many bytes as it says, which was checked; the kernel only reads it.
    unsafe {
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        let fd =
            libc::open_by_handle_at(mount.as_fd().as_raw_fd(), aligned.as_mut_ptr().cast(), flags);
        if fd < 0 { Err(last()) } else { Ok(own(fd)) }
    }
}

/// Takes a descriptor that a call has just made.
///
/// # Safety
/// Nobody else closes it.
#[allow(clippy::useless_conversion, unsafe_code)] // simulations have a type of their own
unsafe fn own(fd: std::os::fd::RawFd) -> OwnedFd {
    // SAFETY: as the caller says.
    unsafe { KernelFd::from_raw_fd(fd) }.into()
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Waits until there are events, at most so long. Answers whether there are.
pub fn wait(queue: impl AsFd, most: Duration) -> Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(queue.as_fd(), PollFlags::IN)];
    let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
    match rustix::event::poll(&mut fds, Some(&most)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads events that are there into `buffer`; answers how many bytes, 0 if there are none.
pub fn read(queue: impl AsFd, buffer: &mut [u8]) -> Result<usize> {
    match rustix::io::retry_on_intr(|| rustix::io::read(queue.as_fd(), &mut *buffer)) {
        Err(Errno::AGAIN) => Ok(0),
        read => read,
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_ne_bytes)
}

/// The events in what was read. What does not look like events ends them.
pub fn events(mut bytes: &[u8]) -> impl Iterator<Item = Event<'_>> {
    std::iter::from_fn(move || {
        let length = number(bytes.get(..4)?) as usize;
        let event = bytes.get(..length)?;
        let metadata = usize::from(u16::from_ne_bytes(event.get(6..8)?.try_into().ok()?));
        let mask = u64::from_ne_bytes(event.get(8..16)?.try_into().ok()?);
        let rest = event.get(metadata.max(METADATA_LEN)..)?;
        bytes = &bytes[length..];
        Some(about(mask, rest))
    })
}

/// What an event is about: the directory and the name, and what is written or changed there.
fn about(mask: u64, mut records: &[u8]) -> Event<'_> {
    const NONE: &[u8] = &[];
    let mut event = Event { mask, fs: FsId::default(), directory: NONE, name: NONE, object: NONE };
    while let Some(&[kind, _, low, high]) = records.first_chunk::<INFO_HEADER_LEN>() {
        let length = usize::from(u16::from_ne_bytes([low, high]));
        let Some(record) = records.get(INFO_HEADER_LEN..length) else { break };
        if let Some((fs, handle, rest)) = taken_apart(record) {
            match kind {
                libc::FAN_EVENT_INFO_TYPE_DFID_NAME | libc::FAN_EVENT_INFO_TYPE_DFID => {
                    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
                    (event.fs, event.directory, event.name) = (fs, handle, &rest[..end]);
                }
                libc::FAN_EVENT_INFO_TYPE_FID => event.object = handle,
                _ => {}
            }
        }
        records = &records[length.max(1)..];
    }
    event
}

/// The file system, the handle and what comes after it in a record.
fn taken_apart(record: &[u8]) -> Option<(FsId, &[u8], &[u8])> {
    let (fs, rest) = record.split_first_chunk::<FSID_LEN>()?;
    let handle = HANDLE_HEADER_LEN + number(rest.get(..4)?) as usize;
    Some((*fs, rest.get(..handle)?, rest.get(handle..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, inode: u8, name: &[u8]) -> Vec<u8> {
        let mut record = vec![kind, 0, 0, 0];
        record.extend([7; FSID_LEN]);
        record.extend(8_u32.to_ne_bytes());
        record.extend(1_i32.to_ne_bytes());
        record.extend([inode; 8]);
        record.extend(name);
        record.push(0);
        record.resize(record.len().next_multiple_of(4), 0);
        let length = (record.len() as u16).to_ne_bytes();
        record[2..4].copy_from_slice(&length);
        record
    }

    fn event(mask: u64, name: &[u8]) -> Vec<u8> {
        let mut records = record(libc::FAN_EVENT_INFO_TYPE_DFID_NAME, 9, name);
        records.extend(record(libc::FAN_EVENT_INFO_TYPE_FID, 5, b""));
        let mut all = ((METADATA_LEN + records.len()) as u32).to_ne_bytes().to_vec();
        all.extend([3, 0]);
        all.extend((METADATA_LEN as u16).to_ne_bytes());
        all.extend(mask.to_ne_bytes());
        all.extend((-1_i32).to_ne_bytes());
        all.extend(0_i32.to_ne_bytes());
        all.extend(records);
        all
    }

    #[test]
    fn events_are_taken_apart() {
        let mut bytes = event(mask::CREATE, b"a");
        bytes.extend(event(mask::MODIFY | mask::ON_DIRECTORY, b"another name"));
        let found: Vec<Event<'_>> = events(&bytes).collect();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].mask, found[0].name, found[0].fs), (mask::CREATE, &b"a"[..], [7; 8]));
        assert_eq!((found[0].directory.len(), found[0].directory[8]), (16, 9));
        assert_eq!((found[0].object.len(), found[0].object[8]), (16, 5));
        assert_eq!(found[1].name, b"another name");
    }

    #[test]
    fn what_is_cut_off_is_no_event_and_ends_nothing_badly() {
        let bytes = event(mask::CREATE, b"name");
        for length in 0..bytes.len() {
            assert_eq!(events(&bytes[..length]).count(), 0, "{length}");
        }
        // Lengths that lie.
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                let _ = events(&bytes).map(|event| event.name.len()).sum::<usize>();
            }
        }
    }

    #[test]
    fn a_handle_that_lies_about_its_length_is_not_given_to_the_kernel() {
        let root = crate::path::open_directory(std::path::Path::new("/")).unwrap();
        let mut handle = 64_u32.to_ne_bytes().to_vec();
        handle.extend([0; 12]);
        assert_eq!(open_handle(&root, &handle).unwrap_err(), Errno::INVAL);
    }
}
