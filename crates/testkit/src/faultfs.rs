//! A FUSE file system that mirrors a directory and adds latency and faults.
//!
//! Everything a faithful copier uses passes through unchanged; rules then make chosen requests fail, come up
//! short, lie or hang. Attributes and names are not cached by default, so that each system call is a request.
//!
//! Limits: `syncfs` never reaches a FUSE server; creation times and inode flags are not shown;
//! `O_TMPFILE` and reflinks are unsupported; a descriptor is held for each inode that the
//! kernel remembers, as far as the limit of the process allows. An injected `ENOSYS` or `ESTALE` is interpreted by the kernel: it stops asking, or asks once more.
#![allow(clippy::unnecessary_debug_formatting, reason = "names hold control characters")]

mod backing;
mod errno;
mod gate;
mod inodes;
mod mirror;
mod op;
mod record;
mod rule;
mod session;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use fuser::{BackgroundSession, MountOption, SessionACL};
use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;
use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};

pub use errno::{errno_by_name, errno_name};
pub use gate::Latency;
pub use op::{Op, OpClass};
pub use record::{Counters, OpCounter, Record};
pub use rule::{Action, Rule, When};

use gate::Gate;
use mirror::{Mirror, Switches};
use record::Recorder;

/// How a mount behaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Time that every request takes; waits of different requests overlap.
    pub latency: Latency,
    /// Faults.
    pub rules: Vec<Rule>,
    /// Seed of the rules that draw.
    pub seed: u64,
    /// Requests served at one time; each has a thread.
    pub threads: usize,
    /// How long the kernel may cache names and attributes, in milliseconds.
    pub ttl_ms: u64,
    /// Every read and write is a request and short transfers are seen; else the page cache comes between.
    pub direct_io: bool,
    /// Directory reads carry attributes.
    pub readdirplus: bool,
    /// Server-side copy works; else the kernel falls back to reading and writing.
    pub copy_file_range: bool,
    /// The kernel checks access by ACLs; they pass through as xattrs in any case.
    pub posix_acl: bool,
    /// Names that differ in case alone are one, as in directories of ext4 with the flag `F` (chattr(1)).
    pub fold_case: bool,
    /// File that gets a line of JSON for each request.
    pub log: Option<PathBuf>,
    /// Keeps the log in memory for [`FaultFsHandle::records`].
    pub keep_records: bool,
    /// File that gets the counters at unmount.
    pub stats: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            latency: Latency::default(),
            rules: Vec::new(),
            seed: 0,
            threads: 32,
            ttl_ms: 0,
            direct_io: true,
            readdirplus: false,
            copy_file_range: true,
            posix_acl: false,
            fold_case: false,
            log: None,
            keep_records: false,
            stats: None,
        }
    }
}

/// The fault file system.
pub struct FaultFs;

/// A mounted fault file system; dropping it unmounts.
pub struct FaultFsHandle {
    gate: Arc<Gate>,
    mountpoint: PathBuf,
    stats: Option<PathBuf>,
    session: Option<BackgroundSession>,
}

impl FaultFs {
    /// Mounts a mirror of one directory on another; needs root and `/dev/fuse`.
    pub fn mount(backing: &Path, mountpoint: &Path, config: Config) -> Result<FaultFsHandle> {
        raise_descriptor_limit();
        let mountpoint =
            mountpoint.canonicalize().with_context(|| format!("mount point {mountpoint:?}"))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(backing, flags, Mode::empty())
            .with_context(|| format!("backing directory {backing:?}"))?;
        let stat = rustix::fs::fstat(&root)?;
        let recorder = Recorder::new(config.log.as_deref(), config.keep_records)?;
        let gate = Gate::new(config.latency, &config.rules, config.seed, recorder)?;
        let gate = Arc::new(gate);
        let switches = Switches {
            ttl: Duration::from_millis(config.ttl_ms),
            direct_io: config.direct_io,
            readdirplus: config.readdirplus,
            copy_file_range: config.copy_file_range,
            posix_acl: config.posix_acl,
            fold_case: config.fold_case,
            threads: config.threads.max(1),
        };
        let mirror = Mirror::new(root, &stat, Arc::clone(&gate), switches);
        let session = fuser::spawn_mount(mirror, &mountpoint, &mount_config(switches.threads))
            .with_context(|| format!("cannot mount on {mountpoint:?}"))?;
        Ok(FaultFsHandle { gate, mountpoint, stats: config.stats, session: Some(session) })
    }
}

fn mount_config(threads: usize) -> fuser::Config {
    let mut config = fuser::Config::default();
    config.mount_options = vec![
        MountOption::FSName("dmover-faultfs".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::Dev,
        MountOption::Suid,
    ];
    config.acl = SessionACL::All;
    config.n_threads = Some(threads);
    config
}

/// The kernel may remember very many inodes, each of which costs a descriptor here.
fn raise_descriptor_limit() {
    const ENOUGH: u64 = 1 << 20;
    let current = rustix::process::getrlimit(Resource::Nofile).current;
    if current.is_none_or(|current| current >= ENOUGH) {
        return;
    }
    let raised = Rlimit { current: Some(ENOUGH), maximum: Some(ENOUGH) };
    if rustix::process::setrlimit(Resource::Nofile, raised).is_err() {
        let mut within = rustix::process::getrlimit(Resource::Nofile);
        within.current = within.maximum;
        rustix::process::setrlimit(Resource::Nofile, within).ok();
    }
}

impl FaultFsHandle {
    /// The directory it is mounted on.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Replaces all rules; their counts start anew.
    pub fn set_rules(&self, rules: &[Rule]) -> Result<()> {
        self.gate.set_rules(rules)
    }

    /// Replaces the latency of the requests to come.
    pub fn set_latency(&self, latency: Latency) {
        self.gate.set_latency(latency);
    }

    /// Lets all requests go on that hang now.
    pub fn release_hangs(&self) {
        self.gate.release_hangs();
    }

    /// Totals since the mount or the last reset.
    pub fn counters(&self) -> Counters {
        self.gate.recorder.counters(self.gate.rules_fired())
    }

    /// The requests so far in the order in which they were answered, if they are kept.
    pub fn records(&self) -> Vec<Record> {
        self.gate.recorder.kept()
    }

    /// Sets the counters to zero and empties the records that are kept; call it while no request runs.
    pub fn reset(&self) {
        self.gate.recorder.clear();
    }

    /// Writes the counters into the file named by the configuration, and the log to its end.
    pub fn write_stats(&self) -> Result<()> {
        self.gate.recorder.flush();
        if let Some(path) = &self.stats {
            let text = serde_json::to_vec_pretty(&self.counters())?;
            fs::write(path, text).with_context(|| format!("counters {path:?}"))?;
        }
        Ok(())
    }

    /// Whether somebody else has unmounted it.
    pub fn is_finished(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.guard.is_finished())
    }

    /// Unmounts and returns the final counters; requests that hang go on, files in use are cut off.
    pub fn unmount(mut self) -> Result<Counters> {
        self.end()?;
        Ok(self.counters())
    }

    fn end(&mut self) -> Result<()> {
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        self.gate.release_hangs();
        if !session.guard.is_finished() {
            let connection = connection_number(&self.mountpoint);
            if rustix::mount::unmount(&self.mountpoint, UnmountFlags::empty()).is_err() {
                rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH).ok();
            }
            // Files in use and other mount namespaces, which have their own copy of the mount, keep the session alive.
            if let Err(error) = abort(connection) {
                self.write_stats()?;
                let at = &self.mountpoint;
                return Err(error.context(format!("cannot end the FUSE connection of {at:?}")));
            }
        }
        session.join().context("session of the fault file system")?;
        self.write_stats()
    }
}

impl Drop for FaultFsHandle {
    fn drop(&mut self) {
        self.end().ok();
    }
}

/// The kernel names a FUSE connection by the minor number of its device.
fn connection_number(mountpoint: &Path) -> Option<u32> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let of_mount =
        |line: &&str| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == mountpoint);
    let line = table.lines().rfind(of_mount)?;
    let (_, minor) = line.split(' ').nth(2)?.split_once(':')?;
    minor.parse().ok()
}

/// Ends a FUSE connection: every request that waits on it gets an error. One that has ended already is no error.
fn abort(connection: Option<u32>) -> Result<()> {
    use std::io::Write as _;

    const CONTROL: &str = "/sys/fs/fuse/connections";
    /// `FUSE_CTL_SUPER_MAGIC` of linux/magic.h.
    const CONTROL_MAGIC: i64 = 0x6573_5543;

    let connection = connection.context("the mount is not in /proc/self/mountinfo")?;
    if rustix::fs::statfs(CONTROL)?.f_type != CONTROL_MAGIC {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("fusectl", CONTROL, "fusectl", flags, None)?;
    }
    let control = Path::new(CONTROL).join(connection.to_string()).join("abort");
    let written = File::options().write(true).open(control).and_then(|mut it| it.write_all(b"1"));
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Locks a mutex whose data stays consistent even if a holder panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
