//! ZFS through FUSE: one daemon for all test processes, one pool for each image.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};

use super::{ImageOptions, base_directory, is_mounted, run, tool};

/// A pool on one image file; dropping it destroys it.
#[derive(Debug)]
pub(super) struct Pool {
    name: String,
    mount_point: PathBuf,
    // After the pool, so that the daemon outlives it.
    _daemon: Daemon,
}

impl Pool {
    pub(super) fn create(image: &Path, mount_point: &Path, options: &ImageOptions) -> Result<Self> {
        if !options.mount_options.is_empty() {
            bail!("zfs-fuse takes no mount options");
        }
        let daemon = Daemon::join()?;
        let name = pool_name(image.parent().context("image without directory")?);
        // Without a cache file a pool that was left behind is not looked for at the next start.
        run(tool(&["zpool", "create", "-o", "cachefile=none", "-m"])
            .arg(mount_point)
            .args(&options.mkfs_arguments)
            .arg(&name)
            .arg(image))?;
        let pool = Self { name, mount_point: mount_point.to_owned(), _daemon: daemon };
        if !is_mounted(mount_point) {
            bail!("{mount_point:?} is not mounted here; is the daemon in another name space?");
        }
        Ok(pool)
    }

    pub(super) fn mount(&self) -> Result<()> {
        if is_mounted(&self.mount_point) {
            return Ok(());
        }
        // An unmount is answered before the daemon has let go.
        let mount = || run(&mut tool(&["zfs", "mount", &self.name])).is_ok();
        wait_until("zfs to mount again", mount)
    }

    pub(super) fn unmount(&self) -> Result<()> {
        run(&mut tool(&["zfs", "unmount", &self.name]))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for _ in 0..20 {
            if run(&mut tool(&["zpool", "destroy", "-f", &self.name])).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Pools are known to the whole daemon, so the name follows from the image's unique directory.
fn pool_name(directory: &Path) -> String {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    format!("dmover-{name}")
}

/// Destroys the pool of a killed process, if it had one and a daemon still runs.
pub(super) fn destroy_abandoned(directory: &Path) {
    if running() {
        let _ = run(&mut tool(&["zpool", "destroy", "-f", &pool_name(directory)]));
    }
}

/// One user's share of the daemon: whoever leaves last ends a daemon that the testkit started.
#[derive(Debug)]
struct Daemon {
    /// Held shared by every user.
    users: Option<File>,
    base: PathBuf,
}

impl Daemon {
    fn join() -> Result<Self> {
        let base = base_directory()?;
        let _turn = turn(&base)?;
        if !running() {
            start(&base)?;
        }
        let users = File::create(base.join("zfs-users.lock"))?;
        rustix::fs::flock(&users, FlockOperation::LockShared)?;
        Ok(Self { users: Some(users), base })
    }

    fn leave(&mut self) -> Result<()> {
        let _turn = turn(&self.base)?;
        drop(self.users.take());
        let users = File::create(self.base.join("zfs-users.lock"))?;
        if rustix::fs::flock(&users, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(());
        }
        let pid_file = pid_file(&self.base);
        // A daemon without our pid file is somebody else's.
        let Ok(text) = std::fs::read_to_string(&pid_file) else { return Ok(()) };
        let number: i32 = text.trim().parse().context("pid file")?;
        let pid = Pid::from_raw(number).context("pid file")?;
        if is_daemon(number) {
            kill_process(pid, Signal::TERM)?;
            wait_until("zfs-fuse to end", || !is_daemon(number))?;
        }
        Ok(std::fs::remove_file(pid_file)?)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Nothing more can be done: the daemon stays, and the next user ends it.
        let _ = self.leave();
    }
}

/// Starting and ending the daemon happens under this lock, over all processes.
fn turn(base: &Path) -> Result<File> {
    let lock = File::create(base.join("zfs-turn.lock"))?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
    Ok(lock)
}

fn pid_file(base: &Path) -> PathBuf {
    base.join("zfs-fuse.pid")
}

fn start(base: &Path) -> Result<()> {
    let pid_file = pid_file(base);
    let _ = std::fs::remove_file(&pid_file);
    run(tool(&["zfs-fuse", "--no-kstat-mount", "--enable-xattr", "--max-arc-size", "64"])
        .arg("--pidfile")
        .arg(&pid_file))?;
    wait_until("zfs-fuse to answer", running)
}

fn running() -> bool {
    run(&mut tool(&["zpool", "list", "-H"])).is_ok()
}

fn is_daemon(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "zfs-fuse")
}

fn wait_until(what: &str, condition: impl Fn() -> bool) -> Result<()> {
    for _ in 0..100 {
        if condition() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    bail!("waited ten seconds for {what}")
}
