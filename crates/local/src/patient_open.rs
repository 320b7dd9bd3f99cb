//! Leases of file servers (fcntl(2), `F_SETLEASE`): samba and the kernel's NFS server hold leases for their clients.
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use dmover_sys::Errno;
use std::time::Duration;

/// The longest wait for a lease: it is returned within `/proc/sys/fs/lease-break-time`, which is 45 s by default.
const PATIENCE: Duration = Duration::from_mins(2);
const EVERY: Duration = Duration::from_millis(50);

/// Opens a file, and retries while the holder of a lease is asked to return it (EAGAIN).
pub(crate) fn past_leases<T>(
    open: impl Fn() -> Result<T, Errno>,
    is_stopping: &dyn Fn() -> bool,
) -> Result<T, Errno> {
    let began = Instant::now();
    loop {
        match open() {
            Err(Errno::AGAIN) if began.elapsed() < PATIENCE && !is_stopping() => {
                thread::sleep(EVERY);
            }
            opened => return opened,
        }
    }
}
