//! Locks on the directories that a job writes to: jobs detect each other even with different state directories.
use dmover_model::{Event, Fatal, PathBytes, Placement};
use dmover_observe::Monitor;
use dmover_observe::lock as locked;
use dmover_schedule::sync::Mutex;
use dmover_schedule::thread;
use dmover_sys::{OwnedFd, file, lock, mount, path};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::directory::TargetDirectory;
use crate::root::{Resolved, Root};
use claims::Claims;
use marks::{By, Kind, Marked, Places, Use};

mod claims;
mod marks;

/// A job with more roots than this locks their parent directory instead of each root: a shell expands a '*' to
/// thousands.
const FEW: usize = 8;
/// Bytes of another process's command in a message.
const COMMAND_MAX: usize = 120;

/// How often, and at what interval, a lock is tried that another process is only testing.
const LOOKS: u32 = 10;
const LOOK: std::time::Duration = std::time::Duration::from_millis(10);

/// How a job writes to its destination.
#[derive(Debug)]
pub struct Writing<'a> {
    /// No other job may write there at the same time.
    pub alone: bool,
    /// The directory of snapshots that the job adds one to.
    pub snapshots: Option<PathBuf>,
    /// The directory that contains DEST, and what identifies the same copy: two of them must not run at the same time.
    pub work: Option<(&'a Path, Vec<u8>)>,
}

/// Locks of the directories that a job writes to. They are released when the last clone is dropped.
#[derive(Debug, Clone, Default)]
pub struct DestinationLock {
    own: Arc<Mutex<Option<Locks>>>,
    /// Other jobs neither matter nor see this one.
    is_off: bool,
}

#[derive(Debug)]
struct Locks {
    usage: Use,
    /// Directories that the job creates are locked as well.
    each: bool,
    held: Vec<OwnedFd>,
    /// Carries what all jobs of the host can see.
    claims: Option<OwnedFd>,
}

impl DestinationLock {
    /// Locks nothing if it is off.
    pub fn new(is_off: bool) -> Self {
        Self { is_off, ..Self::default() }
    }

    /// Locks the places of a job. A job that has them already keeps them.
    ///
    /// # Errors
    /// Another job writes there.
    pub fn take(
        &self,
        writing: &Writing<'_>,
        resolved: &Resolved,
        monitor: &dyn Monitor,
    ) -> Result<(), Fatal> {
        let mut own = locked(&self.own);
        if self.is_off || own.is_some() {
            return Ok(());
        }
        let usage = if writing.alone { Use::Alone } else { Use::Beside };
        let written = |root: &&Root| root.destination.is_some();
        let each = resolved.roots.iter().filter(written).count() <= FEW;
        let places = places(writing, resolved, (usage, each));
        let mut taken = places.take();
        for attempt in 1..LOOKS {
            if taken.is_ok() {
                break;
            }
            // Two that begin together see each other, and do not wait for equally long.
            thread::sleep(LOOK + LOOK * (std::process::id() % 7) * (attempt % 2));
            taken = places.take();
        }
        if let Some((place, error)) = taken.map_err(refusal)? {
            let reason = std::io::Error::from(error).to_string();
            let path = PathBytes::from(place.as_os_str());
            monitor.event(&Event::Unlocked { path, reason });
        }
        let (held, claims) = places.into_descriptors();
        *own = Some(Locks { usage, each, held, claims });
        Ok(())
    }

    /// The number of descriptors that are held during the job.
    pub fn descriptors(&self) -> u64 {
        let own = locked(&self.own);
        let to_come = |locks: &Locks| if locks.each { FEW } else { 0 };
        own.as_ref().map_or(0, |locks| (locks.held.len() + to_come(locks) + 1) as u64)
    }

    /// Locks a directory that the job has created as one of its roots.
    pub fn extend(&self, made: &TargetDirectory) {
        if let Some(locks) = locked(&self.own).as_mut().filter(|locks| locks.each)
            && let Ok(directory) = path::open_directory_at(&made.fd, b".")
        {
            let _ = locks.usage.try_lock(&directory);
            let _ = lock::mark(&directory, Kind::Tree(locks.usage).mark(b""));
            if let Some(claims) = &locks.claims {
                Claims::extend(claims, &made.fd, locks.usage);
            }
            locks.held.push(directory);
        }
    }
}

impl Use {
    /// Takes the lock of a directory as flock(1) does; `false`: another process has it.
    pub(super) fn try_lock(self, directory: &OwnedFd) -> Result<bool, dmover_sys::Errno> {
        let free = match self {
            Self::Alone => file::try_lock(directory),
            Self::Beside => file::try_lock_shared(directory),
        }?;
        Ok(free || lock::is_inherited(directory))
    }
}

/// The directories that a job writes to, and their parents.
fn places(writing: &Writing<'_>, resolved: &Resolved, (usage, each): (Use, bool)) -> Places {
    let mut places = Places::new(usage);
    let is_inside = resolved.placement == Placement::Inside;
    let mut last = None;
    for root in &resolved.roots {
        let Some(side) = &root.destination else { continue };
        // Roots in one directory share it, and it is locked once.
        let is_locked =
            last.replace(&side.parent).is_some_and(|last| Arc::ptr_eq(last, &side.parent));
        if is_locked && !each {
            continue;
        }
        let parent = match path::open_directory_at(&side.parent, b".") {
            Ok(parent) => parent,
            Err(error) => {
                places.cannot_lock(&side.display().to_path(), error);
                continue;
            }
        };
        let above = mount::path_of(&parent);
        let parent = places.add(parent, above.as_deref());
        let name = side.name.as_ref().filter(|_| each);
        if let (Some(name), Some(above)) = (name, &above) {
            let name = name.as_bytes();
            // Parts of a file are written beside each other.
            let is_file = !root.is_directory && root.range.is_none();
            let as_named = if is_file { Use::Alone } else { usage };
            let named = Path::new(OsStr::from_bytes(name));
            let tree = root.is_directory.then(|| path::open_directory_below(&side.parent, name));
            if let Some(Ok(tree)) = tree {
                let at = above.join(named);
                let tree = places.add(tree, Some(&at));
                places.fill(tree);
                places.claim(tree, &at, (None, usage));
            } else {
                places.claim(parent, above, (Some(named), as_named));
            }
            places.name(parent, name, as_named);
            places.pass(parent, name);
        } else {
            places.fill(parent);
            if let Some(above) = &above {
                places.claim(parent, above, (None, usage));
            }
        }
        if is_inside {
            places.share(parent);
        }
        if let Some(above) = above {
            places.climb(&above);
        }
    }
    if let Some(snapshots) = &writing.snapshots
        && let Ok(directory) = path::open_directory(snapshots)
    {
        let at = mount::path_of(&directory);
        let at = places.add(directory, at.as_deref());
        places.share(at);
    }
    if usage == Use::Beside
        && let Some((above, work)) = &writing.work
    {
        places.work(above, work);
    }
    places
}

fn refusal(Marked { place, how, by }: Marked) -> Fatal {
    let named = |pid: u32, words: &str| match command(pid) {
        Some(command) => format!("{words} {pid}: {command}"),
        None => format!("{words} {pid}"),
    };
    let who = match by {
        By::Process(pid) => named(pid, "process"),
        By::Likely(pid) => named(pid, "probably process"),
        By::Mark { .. } | By::Unknown => {
            "a process of another user or in a container, whose number is not visible here".into()
        }
    };
    let mut hint =
        "wait for the other job to end, or stop it; then run the same command again".to_owned();
    if !matches!(by, By::Process(_)) {
        hint += "; if no such job exists, ask root which process holds the lock, or use --no-lock";
    }
    Fatal::Occupied { message: format!("{} '{}' ({who})", how.words(), place.display()), hint }
}

/// The command of a process, shortened for a message.
fn command(pid: u32) -> Option<String> {
    let text = String::from_utf8_lossy(&dmover_host::other_processes::command(pid)?).into_owned();
    let plain = text.chars().map(|letter| if letter.is_control() { '?' } else { letter });
    let shown: String = plain.take(COMMAND_MAX).collect();
    (!shown.is_empty()).then_some(shown)
}
