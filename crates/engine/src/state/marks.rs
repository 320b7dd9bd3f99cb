//! Marks by which jobs detect each other on the directories that they write to.
//!
//! A mark is a lock of one byte on a directory (`dmover_sys::lock`). Its position encodes its kind, a hash of its
//! subject, and the process number: `0 | kind: 3 bits | hash: 36 bits | process: 24 bits`.
use dmover_sys::{Errno, OwnedFd, lock, path, stat};
use std::collections::HashMap;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const PROCESS_BITS: u32 = 24;
const HASH_BITS: u32 = 36;

/// How a job uses a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Exclusively: no other job may write there.
    Alone,
    /// It only adds entries, as other jobs may.
    Beside,
}

/// The kind of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
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
    fn range(self, about: &[u8]) -> Range<u64> {
        let mut hash = [0; 8];
        if !about.is_empty() {
            hash.copy_from_slice(&blake3::hash(about).as_bytes()[..8]);
        }
        let hash = u64::from_le_bytes(hash) >> (u64::BITS - HASH_BITS);
        let start = self.number() << (HASH_BITS + PROCESS_BITS) | hash << PROCESS_BITS;
        start..start + (1 << PROCESS_BITS)
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
    pub process: Option<u32>,
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
}

impl Places {
    pub fn new(usage: Use) -> Self {
        let (by_inode, by_path) = (HashMap::new(), HashMap::new());
        Self { usage, all: Vec::new(), by_inode, by_path, unlocked: None }
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
    pub fn cannot_lock(&mut self, path: &Path, error: Errno) {
        self.unlocked = Some((path.to_owned(), error));
    }

    fn mark(&mut self, at: usize, kind: Kind, about: &[u8]) {
        let range = kind.range(about);
        let process = u64::from(std::process::id()) & ((1 << PROCESS_BITS) - 1);
        let marks = &mut self.all[at].marks;
        let mark = range.start + process;
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

    /// The uses by other jobs that conflict with this use.
    fn excluded(&self) -> &'static [Use] {
        match self.usage {
            Use::Alone => &[Use::Alone, Use::Beside],
            Use::Beside => &[Use::Alone],
        }
    }

    /// Marks this directory and everything below it as used.
    pub fn fill(&mut self, at: usize) {
        self.all[at].is_own = true;
        self.all[at].lock = Some(self.usage);
        self.mark(at, Kind::Tree(self.usage), b"");
        for theirs in self.excluded() {
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
        for theirs in self.excluded() {
            self.look(at, (Kind::Tree(*theirs), b""), How::Writes);
            self.look(at, (Kind::Name(*theirs), name), How::Writes);
        }
    }

    /// Marks that the job writes below each directory above this path.
    pub fn climb(&mut self, path: &Path) {
        for below in path.ancestors() {
            let (Some(above), Some(name)) = (below.parent(), below.file_name()) else { return };
            let known = self.by_path.get(above).copied();
            let at = known.unwrap_or_else(|| {
                // An unreadable directory is not marked.
                let opened = path::open_directory(above).ok().map(|fd| self.add(fd, Some(above)));
                self.by_path.insert(above.to_owned(), opened);
                opened
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

    /// Marks this very copy under a name in this directory.
    pub fn work(&mut self, above: &Path, what: &[u8]) {
        if let Some(at) = self.by_path.get(above).copied().flatten() {
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
        for place in &self.all {
            for (range, how) in &place.looks {
                if let Ok(Some(at)) = lock::marked(&place.fd, range) {
                    let process = range.contains(&at).then(|| (at - range.start) as u32);
                    return Err(Marked { place: place.path.clone(), how: *how, process });
                }
            }
        }
        for place in &self.all {
            match place.lock.map(|usage| usage.try_lock(&place.fd)) {
                Some(Ok(false)) => {
                    let process = lock::holder(&place.fd);
                    return Err(Marked { place: place.path.clone(), how: How::Locked, process });
                }
                Some(Err(error)) => note(place, error),
                _ => {}
            }
        }
        Ok(())
    }

    /// The descriptors that hold the marks and locks.
    pub fn into_descriptors(self) -> Vec<OwnedFd> {
        self.all.into_iter().map(|place| place.fd).collect()
    }
}
