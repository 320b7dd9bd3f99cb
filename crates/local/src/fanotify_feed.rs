//! The change feed of local file systems: fanotify(7) marks on all file systems of a source.
//!
//! A thread empties the kernel's queue, which holds 16,384 events by default (`fs.fanotify.max_queued_events`), and
//! finds the present paths of directories, which events identify by handles.
use dmover_model::{ChangeFeed, ChangedPlace, FeedBatch, FeedError, Happened, TreePath};
use dmover_observe::lock;
use dmover_plan::overlap::parse_mountinfo;
use dmover_plan::temporary::is_temporary;
use dmover_schedule::sync::{Condvar, Mutex};
use dmover_schedule::thread;
use dmover_schedule::thread::JoinHandle;
use dmover_sys::fanotify::{self, FsId, mask};
use dmover_sys::{Errno, OwnedFd, mount, path, stat};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The most paths that are remembered: beyond that, a full scan is cheaper.
pub const PLACES_MAX: usize = 200_000;
/// The reason for a full scan if more places have changed than are remembered.
pub const TOO_MANY: &str = "too many entries changed to track each one";

/// Bytes of events that are read at once.
const BUFFER: usize = 256 << 10;
/// The most directories with cached paths.
const KNOWN_MAX: usize = 100_000;
/// How often the thread checks whether it must end.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The findings of the thread.
#[derive(Debug, Default)]
struct Found {
    places: BTreeMap<TreePath, Happened>,
    lost: Option<String>,
    elsewhere: Option<String>,
}

impl Found {
    fn is_nothing(&self) -> bool {
        self.places.is_empty() && self.lost.is_none() && self.elsewhere.is_none()
    }
}

#[derive(Debug, Default)]
struct Shared {
    found: Mutex<Found>,
    news: Condvar,
    over: AtomicBool,
}

/// Changes of a local source.
#[derive(Debug)]
pub struct FanotifyFeed {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
    position: u64,
}

/// A mount of the source.
#[derive(Debug)]
struct Marked {
    fs: FsId,
    directory: OwnedFd,
}

/// Finds the paths of directories.
#[derive(Debug)]
struct Places {
    source: PathBuf,
    marked: Vec<Marked>,
    /// Known paths of directories.
    known: HashMap<Object, Whereabouts>,
}

/// A file system and a handle on it.
type Object = (FsId, Vec<u8>);

/// The place of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Whereabouts {
    /// Below the source: in no place, or in several if it is mounted there.
    Below(Vec<TreePath>),
    /// It was removed.
    Gone,
}

impl Whereabouts {
    fn paths(&self) -> &[TreePath] {
        match self {
            Self::Below(paths) => paths,
            Self::Gone => &[],
        }
    }
}

/// The combined content of events that were read together.
#[derive(Debug, Default)]
struct Heard {
    places: Vec<ChangedPlace>,
    elsewhere: Option<String>,
    /// Objects that were already handled.
    seen: HashSet<Object>,
}

impl FanotifyFeed {
    /// Starts to listen to all changes below `source`; file systems mounted there are included unless `one_file_system`
    /// is set.
    ///
    /// # Errors
    /// A file system does not report changes, or not to this process.
    pub fn open(source: &Path, one_file_system: bool) -> Result<Self, FeedError> {
        let fail = |error: Errno| FeedError {
            message: format!(
                "cannot watch '{}': {}",
                source.display(),
                std::io::Error::from(error)
            ),
            hint: "check the path".into(),
        };
        let queue = fanotify::open().map_err(|error| unusable(source, error))?;
        let top = path::open_directory(source).map_err(fail)?;
        let real = mount::path_of(&top).ok_or_else(|| fail(Errno::NOENT))?;
        let mut marked = vec![mark(&queue, source, top)?];
        let mounts = parse_mountinfo(&mount::mountinfo());
        for line in mounts.iter().filter(|_| !one_file_system) {
            if line.mount_point == real || !line.mount_point.starts_with(&real) {
                continue;
            }
            let at = path::open_directory(&line.mount_point);
            // A file that is mounted, or what is hidden below another mount.
            let Ok(directory) = at else { continue };
            let magic = stat::file_system(&directory).map_or(0, |found| found.magic);
            if stat::is_pseudo(stat::file_system_name(magic)) {
                continue; // it is not copied
            }
            marked.push(mark(&queue, &line.mount_point, directory)?);
        }
        let shared = Arc::new(Shared::default());
        let (own, mut places) =
            (Arc::clone(&shared), Places { source: real, marked, known: HashMap::new() });
        let reader = thread::Builder::new()
            .name("watch".into())
            .spawn(move || places.read(&queue, &own))
            .map_err(|error| FeedError {
                message: format!("cannot start a thread: {error}"),
                hint: "check the process limits".into(),
            })?;
        Ok(Self { shared, reader: Some(reader), position: 0 })
    }
}

impl Drop for FanotifyFeed {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl ChangeFeed for FanotifyFeed {
    fn collect(&mut self, most: Duration) -> Result<FeedBatch, FeedError> {
        let found = lock(&self.shared.found);
        let waited = self.shared.news.wait_timeout_while(found, most, |found| found.is_nothing());
        let (mut found, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let Found { places, lost, elsewhere } = std::mem::take(&mut *found);
        drop(found);
        if self.reader.as_ref().is_none_or(JoinHandle::is_finished) {
            let message = "the kernel no longer reports changes".into();
            return Err(FeedError { message, hint: "run the same command again".into() });
        }
        self.position += places.len() as u64;
        let places = places.into_iter().map(|(path, what)| ChangedPlace { path, what }).collect();
        Ok(FeedBatch { places, lost, elsewhere, position: self.position })
    }

    /// Does nothing: the queue is in memory, and events that were read are already gone from it.
    fn acknowledge(&mut self, _position: u64) -> Result<(), FeedError> {
        Ok(())
    }
}

fn mark(queue: &OwnedFd, at: &Path, directory: OwnedFd) -> Result<Marked, FeedError> {
    fanotify::mark_file_system(queue, &directory).map_err(|error| unusable(at, error))?;
    let fs = fanotify::fs_id(&directory).map_err(|error| unusable(at, error))?;
    Ok(Marked { fs, directory })
}

/// Why changes of a file system are not available, from the errors of fanotify_init(2) and fanotify_mark(2).
fn unusable(at: &Path, error: Errno) -> FeedError {
    let magic = path::open_directory(at).and_then(stat::file_system).map_or(0, |found| found.magic);
    let kind = stat::file_system_name(magic).unwrap_or("this file system");
    let (why, hint) = match error {
        Errno::PERM => (
            "only root may watch a whole file system (CAP_SYS_ADMIN)".to_owned(),
            "run it as root, or run passes without --watch",
        ),
        Errno::XDEV => (
            format!("{kind} reports changes only where its top level is mounted, not a subvolume"),
            "mount the top level of the file system (subvolid=5) and name SOURCE below it, or run \
            passes without --watch",
        ),
        Errno::NODEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS => (
            format!(
                "{kind} does not report changes here (fanotify(7): ext4, XFS, tmpfs and btrfs do, \
                from Linux 5.9 on)"
            ),
            "run passes without --watch; or skip file systems mounted below SOURCE with -x",
        ),
        Errno::MFILE => (
            "too many programs watch for changes (fs.fanotify.max_user_groups)".into(),
            "stop one of them, or raise the limit",
        ),
        other => (std::io::Error::from(other).to_string(), "run passes without --watch"),
    };
    FeedError { message: format!("cannot watch '{}': {why}", at.display()), hint: hint.into() }
}

impl Places {
    fn read(&mut self, queue: &OwnedFd, shared: &Shared) {
        let mut buffer = vec![0; BUFFER];
        while !shared.over.load(Ordering::SeqCst) {
            let read = match fanotify::wait(queue, LOOK_EVERY) {
                Ok(true) => fanotify::read(queue, &mut buffer),
                Ok(false) => continue,
                Err(error) => Err(error),
            };
            let length = match read {
                Ok(length) => length,
                Err(error) => {
                    tracing::error!(?error, "cannot read change events");
                    return;
                }
            };
            let (mut heard, mut lost) = (Heard::default(), self.follow());
            for event in fanotify::events(&buffer[..length]) {
                if event.mask & mask::OVERFLOW != 0 {
                    lost = Some("the kernel's queue of changes overflowed".to_owned());
                } else if let Err(error) = self.take(&event, &mut heard) {
                    let reason = std::io::Error::from(error);
                    lost = Some(format!("cannot locate a change: {reason}"));
                }
            }
            lost = self.follow().or(lost);
            let mut found = lock(&shared.found);
            for ChangedPlace { path, what } in heard.places {
                let known = found.places.entry(path).or_insert(what);
                *known = known.and(what);
            }
            found.elsewhere = found.elsewhere.take().or(heard.elsewhere);
            if found.places.len() > PLACES_MAX {
                lost = Some(TOO_MANY.into());
            }
            if lost.is_some() {
                found.lost = lost;
                found.places.clear();
            }
            drop(found);
            shared.news.notify_all();
        }
    }

    /// Adds the path of an event, if it is below the source.
    fn take(&mut self, event: &fanotify::Event<'_>, heard: &mut Heard) -> Result<(), Errno> {
        const AWAY: u64 = mask::CLOSE_WRITE | mask::MOVED_FROM | mask::MOVED_TO | mask::DELETE;
        const INSIDE: u64 = mask::MODIFY | mask::ATTRIB | mask::CLOSE_WRITE;
        let on_directory = event.mask & mask::ON_DIRECTORY != 0;
        let happened = |bits: u64| event.mask & bits != 0;
        if on_directory && happened(mask::MOVED_FROM | mask::MOVED_TO | mask::DELETE) {
            // Everything below it is elsewhere now.
            self.known.clear();
        }
        if is_temporary(event.name) {
            return Ok(());
        }
        let what = Happened {
            written: !on_directory && happened(mask::MODIFY | mask::CREATE) && !happened(AWAY),
            arrived: on_directory && happened(mask::CREATE | mask::MOVED_TO),
            moved: happened(mask::MOVED_FROM | mask::MOVED_TO),
        };
        let itself = event.name == b".";
        let whereabouts = self.directory(event)?;
        let of = |directory: &TreePath| {
            if itself { directory.clone() } else { directory.join(event.name) }
        };
        let paths: Vec<TreePath> = whereabouts.paths().iter().map(of).collect();
        let may_be_here = !paths.is_empty() || *whereabouts == Whereabouts::Gone;
        if !on_directory && may_be_here && happened(INSIDE) {
            self.other_names(event, &paths, what, heard)?;
        }
        heard.places.extend(paths.into_iter().map(|path| ChangedPlace { path, what }));
        Ok(())
    }

    /// Finds other names of a file that was written under a name that is gone or belongs to another file now: no event
    /// reports the other hard links.
    fn other_names(
        &self,
        event: &fanotify::Event<'_>,
        told: &[TreePath],
        what: Happened,
        heard: &mut Heard,
    ) -> Result<(), Errno> {
        if event.object.is_empty() || !heard.seen.insert((event.fs, event.object.to_vec())) {
            return Ok(());
        }
        let mut found = false;
        for marked in self.marked.iter().filter(|marked| marked.fs == event.fs) {
            let object = match fanotify::open_handle(&marked.directory, event.object) {
                Err(Errno::STALE) => return Ok(()),
                opened => opened?,
            };
            let stat = stat::stat_fd(&object)?;
            match stat.links {
                0 => return Ok(()),
                1 => {}
                _ => {
                    heard.elsewhere = Some("files with several hard links changed".into());
                    return Ok(());
                }
            }
            let is_it = |path: &Path| {
                let named = stat::stat_at(&marked.directory, path.as_os_str().as_bytes(), false);
                named.is_ok_and(|named| (named.device, named.inode) == (stat.device, stat.inode))
            };
            // The kernel may report the object under a name that is gone.
            if let Some(at) = mount::path_of(&object).filter(|at| is_it(at)) {
                found = true;
                if let Ok(below) = at.strip_prefix(&self.source) {
                    let path = TreePath::new(below.as_os_str().as_bytes());
                    let path = path.map_err(|_| Errno::ILSEQ)?;
                    heard.places.push(ChangedPlace { path, what });
                }
            }
            found |= told
                .iter()
                .any(|path| is_it(&self.source.join(std::ffi::OsStr::from_bytes(path.as_bytes()))));
        }
        if !found {
            heard.elsewhere = Some("changed files were renamed".into());
        }
        Ok(())
    }

    /// Checks whether the source, or a directory above it, was renamed while its path still leads to it: then paths are
    /// computed again, and changes in between are unknown.
    fn follow(&mut self) -> Option<String> {
        let now = self.marked.first().and_then(|marked| mount::path_of(&marked.directory))?;
        if now == self.source {
            return None;
        }
        self.source = now;
        self.known.clear();
        Some("SOURCE was renamed".to_owned())
    }

    /// The present path of an event's directory. A removed directory needs no check, because its parent has an event as
    /// well.
    fn directory(&mut self, event: &fanotify::Event<'_>) -> Result<&Whereabouts, Errno> {
        let key = (event.fs, event.directory.to_vec());
        if !self.known.contains_key(&key) {
            let (mut found, mut gone) = (Vec::new(), false);
            for marked in self.marked.iter().filter(|marked| marked.fs == event.fs) {
                let fd = match fanotify::open_handle(&marked.directory, event.directory) {
                    Err(Errno::STALE) => {
                        gone = true;
                        continue;
                    }
                    opened => opened?,
                };
                let at = mount::path_of(fd).ok_or(Errno::NAMETOOLONG)?;
                if let Ok(below) = at.strip_prefix(&self.source) {
                    let path = TreePath::new(below.as_os_str().as_bytes());
                    found.push(path.map_err(|_| Errno::ILSEQ)?);
                }
            }
            found.sort_unstable();
            found.dedup();
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            let whereabouts = if gone { Whereabouts::Gone } else { Whereabouts::Below(found) };
            self.known.insert(key.clone(), whereabouts);
        }
        Ok(&self.known[&key])
    }
}
