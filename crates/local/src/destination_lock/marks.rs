//! Marks by which jobs detect each other on the directories that they write to.
//!
//! A mark is a lock of one byte on a directory (`dmover_sys::lock`). Its position encodes its kind, a hash of its
//! subject, and the process number: `0 | kind: 3 bits | hash: 36 bits | process: 24 bits`.
use dmover_sys::{Errno, OwnedFd, lock, path, stat};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::claims::Claims;

pub(super) const PROCESS_BITS: u32 = 24;
const HASH_BITS: u32 = 36;

/// How a job uses a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Exclusively: no other job may write there.
    Alone,
    /// Beside others that do not write exclusively. Of two files of one name, the last one stays.
    Beside,
}

impl Use {
    /// Uses of others that exclude this one.
    pub fn excluded(self) -> &'static [Self] {
        match self {
            Self::Alone => &[Self::Alone, Self::Beside],
            Self::Beside => &[Self::Alone],
        }
    }
}

/// The kind of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// This directory and everything below it is used.
    Tree(Use),
    /// Something below this directory is used.
    Below(Use),
    /// A name in this directory is used, which was not a directory when the job began.
    Name(Use),
    /// This very copy is being made.
    Work,
}

impl Kind {
    fn number(self) -> u64 {
        match self {
            Self::Tree(Use::Alone) => 1,
            Self::Tree(Use::Beside) => 2,
            Self::Below(Use::Alone) => 3,
            Self::Below(Use::Beside) => 4,
            Self::Name(Use::Alone) => 5,
            Self::Name(Use::Beside) => 6,
            Self::Work => 7,
        }
    }

    /// The positions of marks of this kind about a subject.
    pub fn range(self, about: &[u8]) -> Range<u64> {
        let mut hash = [0; 8];
        if !about.is_empty() {
            hash.copy_from_slice(&blake3::hash(about).as_bytes()[..8]);
        }
        let hash = u64::from_le_bytes(hash) >> (u64::BITS - HASH_BITS);
        let start = self.number() << (HASH_BITS + PROCESS_BITS) | hash << PROCESS_BITS;
        start..start + (1 << PROCESS_BITS)
    }

    /// The mark of this process.
    pub fn mark(self, about: &[u8]) -> u64 {
        let process = u64::from(std::process::id()) & ((1 << PROCESS_BITS) - 1);
        self.range(about).start + process
    }
}

/// The kind of conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Locked,
    Writes,
    WritesBelow,
    Same,
}

impl How {
    pub fn words(self) -> &'static str {
        match self {
            Self::Locked => "another process holds the lock (flock) of",
            Self::Writes => "another job already writes to",
            Self::WritesBelow => "another job already writes below",
            Self::Same => "the same copy already runs in",
        }
    }
}

/// A directory that another job uses.
#[derive(Debug)]
pub(super) struct Marked {
    pub place: PathBuf,
    pub how: How,
    pub by: By,
}

/// Who uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// The process that has set a mark on an inode.
    Mark { inode: u64, at: u64 },
    /// This process has set it.
    Process(u32),
    /// This one says that it has, and runs dmover.
    Likely(u32),
    /// It cannot be seen from here.
    Unknown,
}

/// An open directory with its marks.
#[derive(Debug)]
struct Place {
    fd: OwnedFd,
    path: PathBuf,
    /// Its flock(2) lock to take.
    lock: Option<Use>,
    /// The job needs it; a directory further up need not be readable.
    is_own: bool,
    marks: Vec<u64>,
    looks: Vec<(Range<u64>, How)>,
}

/// Directories that a job marks. Each has one descriptor, which does not see its own marks.
#[derive(Debug)]
pub(super) struct Places {
    usage: Use,
    all: Vec<Place>,
    by_inode: HashMap<(u64, u64), usize>,
    by_path: HashMap<PathBuf, Option<usize>>,
    /// A directory that could not be opened.
    unlocked: Option<(PathBuf, Errno)>,
    /// The first directory above one of them that could not be opened: only claims tell of what is below it.
    closed: Option<(PathBuf, Errno)>,
    /// The same for jobs that do not come to the same directories.
    claims: Claims,
    /// Paths of what the job writes to.
    written: Vec<PathBuf>,
    /// Who has set marks, which costs a look at all processes.
    seen: RefCell<HashMap<(u64, u64), Option<u32>>>,
}

impl Places {
    pub fn new(usage: Use) -> Self {
        Self {
            usage,
            all: Vec::new(),
            by_inode: HashMap::new(),
            by_path: HashMap::new(),
            unlocked: None,
            closed: None,
            claims: Claims::new(usage),
            written: Vec::new(),
            seen: RefCell::default(),
        }
    }

    /// Adds an open directory, unless it is already there.
    pub fn add(&mut self, fd: OwnedFd, path: Option<&Path>) -> usize {
        let identity = stat::stat_fd(&fd).map(|found| (found.device, found.inode));
        let next = self.all.len();
        let at = identity.map_or(next, |identity| *self.by_inode.entry(identity).or_insert(next));
        if let Some(path) = path {
            self.by_path.insert(path.to_owned(), Some(at));
        }
        if at == next {
            let path = path.unwrap_or(Path::new("?")).to_owned();
            let (marks, looks) = (Vec::new(), Vec::new());
            self.all.push(Place { fd, path, lock: None, is_own: false, marks, looks });
        }
        at
    }

    /// Records a directory that cannot be opened.
    pub(crate) fn cannot_lock(&mut self, path: &Path, error: Errno) {
        self.unlocked = Some((path.to_owned(), error));
    }

    fn mark(&mut self, at: usize, kind: Kind, about: &[u8]) {
        let mark = kind.mark(about);
        let marks = &mut self.all[at].marks;
        if !marks.contains(&mark) {
            marks.push(mark);
        }
    }

    fn look(&mut self, at: usize, (kind, about): (Kind, &[u8]), how: How) {
        let look = (kind.range(about), how);
        let looks = &mut self.all[at].looks;
        if !looks.contains(&look) {
            looks.push(look);
        }
    }

    /// Marks this directory and everything below it as used.
    pub fn fill(&mut self, at: usize) {
        self.all[at].is_own = true;
        self.all[at].lock = Some(self.usage);
        self.mark(at, Kind::Tree(self.usage), b"");
        for theirs in self.usage.excluded() {
            self.look(at, (Kind::Tree(*theirs), b""), How::Writes);
            self.look(at, (Kind::Below(*theirs), b""), How::WritesBelow);
        }
    }

    /// Marks a name in this directory as used.
    pub fn name(&mut self, at: usize, name: &[u8], usage: Use) {
        self.all[at].is_own = true;
        self.mark(at, Kind::Name(usage), name);
        if usage == Use::Alone {
            self.look(at, (Kind::Name(Use::Beside), name), How::Writes);
        }
    }

    /// Marks that the job writes below a name in this directory.
    pub fn pass(&mut self, at: usize, name: &[u8]) {
        self.mark(at, Kind::Below(self.usage), b"");
        for theirs in self.usage.excluded() {
            self.look(at, (Kind::Tree(*theirs), b""), How::Writes);
            self.look(at, (Kind::Name(*theirs), name), How::Writes);
        }
    }

    /// Marks that the job writes below each directory above this path.
    pub(crate) fn climb(&mut self, path: &Path) {
        for below in path.ancestors() {
            let (Some(above), Some(name)) = (below.parent(), below.file_name()) else { return };
            let known = self.by_path.get(above).copied();
            let at = known.unwrap_or_else(|| {
                // An unreadable directory has no mark; claims cover it.
                let opened = path::open_directory(above).map(|fd| self.add(fd, Some(above)));
                if let Err(error) = &opened {
                    self.closed.get_or_insert_with(|| (above.to_owned(), *error));
                }
                self.by_path.insert(above.to_owned(), opened.ok());
                opened.ok()
            });
            if let Some(at) = at {
                self.pass(at, name.as_bytes());
            }
        }
    }

    /// Locks the directory with a shared flock(1), as other jobs that only add entries may.
    pub fn share(&mut self, at: usize) {
        let place = &mut self.all[at];
        place.is_own = true;
        place.lock.get_or_insert(Use::Beside);
    }

    /// Publishes to all jobs of this host what is written: a directory, or a name in it.
    pub fn claim(&mut self, at: usize, path: &Path, (name, usage): (Option<&Path>, Use)) {
        self.written.push(name.map_or_else(|| path.to_owned(), |name| path.join(name)));
        self.claims.claim(&self.all[at].fd, path, name, usage);
    }

    /// Marks this very copy under a name in this directory.
    pub fn work(&mut self, above: &Path, what: &[u8]) {
        if let Some(at) = self.by_path.get(above).copied().flatten() {
            self.claims.work(&self.all[at].fd, above, what);
            self.mark(at, Kind::Work, what);
            self.look(at, (Kind::Work, what), How::Same);
        }
    }

    /// Sets all marks, unless another job conflicts. Returns a directory that cannot be marked or locked.
    ///
    /// # Errors
    /// Another job writes there; nothing is marked then.
    pub fn take(&self) -> Result<Option<(PathBuf, Errno)>, Marked> {
        let mut unlocked = self.unlocked.clone();
        let taken = self.try_to_take(&mut unlocked);
        if taken.is_err() {
            self.claims.unset();
            for place in &self.all {
                let _ = lock::unmark(&place.fd);
                let _ = dmover_sys::file::unlock(&place.fd);
            }
        }
        taken.map(|()| unlocked)
    }

    fn try_to_take(&self, unlocked: &mut Option<(PathBuf, Errno)>) -> Result<(), Marked> {
        let mut note = |place: &Place, error| {
            if place.is_own {
                *unlocked = Some((place.path.clone(), error));
            }
        };
        // First all marks, then the looks: of two that begin together one sees the other at least.
        for place in &self.all {
            if let Err(error) = place.marks.iter().try_for_each(|at| lock::mark(&place.fd, *at)) {
                note(place, error);
            }
        }
        let said = self.claims.set();
        for place in &self.all {
            for (range, how) in &place.looks {
                if let Ok(Some(at)) = lock::marked(&place.fd, range)
                    && let Ok(found) = stat::stat_fd(&place.fd)
                {
                    let by = By::Mark { inode: found.inode, at };
                    self.refuse(Marked { place: place.path.clone(), how: *how, by })?;
                }
            }
        }
        let others = said.and_then(|()| self.claims.others());
        let are_seen = others.is_ok();
        others.into_iter().flatten().try_for_each(|other| self.refuse(other))?;
        for place in &self.all {
            match place.lock.map(|usage| usage.try_lock(&place.fd)) {
                Some(Ok(false)) => {
                    let by = lock::holder(&place.fd).map_or(By::Unknown, By::Process);
                    return Err(Marked { place: place.path.clone(), how: How::Locked, by });
                }
                Some(Err(error)) => note(place, error),
                _ => {}
            }
        }
        if !are_seen && self.closed.is_some() {
            // Jobs above that directory do not see this one.
            unlocked.clone_from(&self.closed);
        }
        Ok(())
    }

    /// Refuses with the process that set the mark, unless it cannot be a job.
    fn refuse(&self, marked: Marked) -> Result<(), Marked> {
        let By::Mark { inode, at } = marked.by else { return Err(marked) };
        let said = (at & ((1 << PROCESS_BITS) - 1)) as u32;
        let mut seen = self.seen.borrow_mut();
        let setter = seen.entry((inode, at)).or_insert_with(|| lock::setter(inode, at, said));
        let by = match *setter {
            Some(pid) if self.cannot_write(pid, &marked.place) => {
                let place = marked.place.display();
                tracing::warn!(pid, %place, "ignored a lock of a user who cannot write there");
                return Ok(());
            }
            Some(pid) => By::Process(pid),
            None if dmover_host::other_processes::seems_the_same(said) => By::Likely(said),
            None => By::Unknown,
        };
        Err(Marked { by, ..marked })
    }

    /// Whether a mark on a directory above everything that this job writes belongs to a user who cannot write there: any user
    /// can mark '/'. `false` if that is not known.
    fn cannot_write(&self, pid: u32, place: &Path) -> bool {
        let Some(user) = dmover_host::other_processes::user(pid) else { return false };
        if user == 0 || user == dmover_host::user::effective_uid() {
            return false;
        }
        let mut below = self.written.iter().filter(|written| written.starts_with(place)).peekable();
        if below.peek().is_none() || self.written.iter().any(|written| written == place) {
            return false;
        }
        let between = |written: &Path| -> Vec<PathBuf> {
            let all = written.ancestors().take_while(|at| at.starts_with(place));
            all.map(Path::to_owned).collect()
        };
        below.all(|written| between(written).iter().all(|at| !may_write(user, at)))
    }

    /// The descriptors that carry marks and locks, and the one that carries claims.
    pub(crate) fn into_descriptors(self) -> (Vec<OwnedFd>, Option<OwnedFd>) {
        let held = self.all.into_iter().map(|place| place.fd).collect();
        (held, self.claims.into_descriptor())
    }
}

/// Whether a user may create or remove what others own in a directory. Groups and ACLs, which show in the bits of the group, count as
/// if he were in them. What cannot be seen counts; what is not there does not.
fn may_write(user: u32, directory: &Path) -> bool {
    const STICKY: u32 = 0o1000;
    let nothing = |error: Errno| !stat::is_absent(error);
    let found = path::open_directory(Path::new("/"))
        .and_then(|root| stat::stat_at(&root, directory.as_os_str().as_bytes(), false));
    match found {
        Ok(found) => found.uid == user || (found.mode & STICKY == 0 && found.mode & 0o022 != 0),
        Err(error) => nothing(error),
    }
}
