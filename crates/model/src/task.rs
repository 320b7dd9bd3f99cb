//! Tasks and outcomes: what the coordinator assigns and what a mover reports.
//!
//! All of these types can be sent over a network. A task may run twice, even at the same time, without harm; see
//! "Invariants" in `ARCHITECTURE.md`.
use serde::{Deserialize, Serialize};

use crate::{
    ByteRange, ChangedPlace, CompareTask, DirectoryRef, EntryError, ExtraNames, FileRef,
    FinishCompareTask, FinishHashTask, HashTask, HashedPieces, Identity, Metadata, Move, Name,
    RangeCopy, RecordsTask, Revisit, SumItem, Surveyed, TreePath, Version,
};

/// Number of a task within its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId(pub u64);

/// What a task may use before it must return the rest of its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Entries.
    pub entries: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Milliseconds.
    pub time_ms: u64,
}

impl Budget {
    /// The budget of one task. Half a second keeps outcomes flowing and stops quick.
    pub const USUAL: Self = Self { entries: 8192, bytes: 512 << 20, time_ms: 500 };
}

/// Names in one directory for a mover to scan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScanNames {
    /// The root entry itself, in its parent directory.
    Root,
    /// These names, a shard of a large directory.
    Listed(Vec<Name>),
    /// These names, which the directory lists as regular files.
    Files(Vec<Name>),
    /// Directories that remain to be scanned.
    Directories(Vec<Name>),
    /// These paths below the root, from a list file.
    Paths(Vec<TreePath>),
    /// These paths below the root, reported by a change feed.
    Changed(Vec<ChangedPlace>),
    /// The directory and everything below it, only to find names that the destination alone has.
    Extra,
}

impl ScanNames {
    /// The names in the directory, as far as they are known.
    pub fn names(&self) -> &[Name] {
        match self {
            Self::Listed(names) | Self::Files(names) | Self::Directories(names) => names,
            Self::Root | Self::Paths(_) | Self::Changed(_) | Self::Extra => &[],
        }
    }
}

/// A large file in progress: opened once, written in chunks, sealed once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LargeFile {
    /// The file.
    pub file: FileRef,
    /// The temporary file that is being written.
    pub temporary: Name,
    /// The temporary's identity.
    pub temporary_identity: Identity,
    /// The version that every chunk must have.
    pub version: Version,
    /// The number of attempts, counting from 1.
    pub round: u32,
    /// The destination had another version under the final name when the file was opened.
    pub replaces: bool,
    /// When it was opened, in milliseconds since the start of the job.
    pub opened_ms: u64,
    /// How its digest is computed, if there is one.
    pub shape: Option<crate::Shape>,
    /// The temporary file shares the blocks of the version that it replaces, and only differing ranges are written.
    pub patched: bool,
}

/// One chunk of a large file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkTask {
    /// The file.
    pub large: LargeFile,
    /// The bytes to copy.
    pub range: ByteRange,
}

/// The last task of a large file: check it, set its metadata and rename it into place, or remove it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealTask {
    /// The file.
    pub large: LargeFile,
    /// The failure of a chunk, filled in by the coordinator.
    pub failure: Option<Box<EntryError>>,
    /// The digests of its pieces, filled in by the coordinator.
    pub pieces: Vec<HashedPieces>,
}

/// One name of an inode that has several names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LinkName {
    /// The inode at the source.
    pub identity: Identity,
    /// One of its names.
    pub file: FileRef,
}

/// The names of one inode, which become one inode at the destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkGroup {
    /// The name that is copied; the other names become hard links to it.
    pub first: FileRef,
    /// The other names.
    pub rest: Vec<FileRef>,
    /// An earlier task of the same group has copied the first name.
    pub first_is_done: bool,
}

/// Parts of a large file that are done, with their digests if there are any.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DoneParts {
    /// Ranges, in order.
    pub ranges: Vec<ByteRange>,
    /// Digests of the pieces.
    pub pieces: Vec<HashedPieces>,
}

/// What an earlier run of the job has copied of a large file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialFile {
    /// The temporary file, in the directory of the file.
    pub temporary: Name,
    /// Its inode number.
    pub inode: u64,
    /// The source version that was copied. `None`: its file system is not known here.
    pub version: Option<Version>,
    /// How its digest is computed, if there is one.
    pub shape: Option<crate::Shape>,
    /// See [`LargeFile::patched`].
    pub patched: bool,
    /// The parts that are on storage.
    pub done: DoneParts,
    /// A mover of the earlier run may still write to the temporary file: it must not become the file.
    pub fenced: bool,
    /// The earliest ctime that the temporary file may have: with an earlier one, it is an older state of the file.
    pub changed: Option<crate::Timestamp>,
    /// The latest time at which a mover of the earlier run has changed it.
    pub until: Option<crate::Timestamp>,
}

/// News about a large file that another run needs to resume it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LargeNews {
    /// These parts of a temporary file are on storage.
    Flushed {
        /// The temporary file.
        temporary: Name,
        /// The parts.
        done: DoneParts,
        /// When the temporary file was last changed by then.
        changed: Option<crate::Timestamp>,
    },
    /// The temporary file is gone: it was renamed into place, or removed.
    Ended {
        /// The temporary file.
        temporary: Name,
    },
}

/// The work of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskKind {
    /// Scan names of a directory and copy them, descending within the budget.
    Scan {
        /// The directory; for `ScanNames::Root`, `Paths` and `Changed` only its root is used.
        directory: DirectoryRef,
        /// The names.
        names: ScanNames,
    },
    /// Start a large file: create the temporary file and cut the content into chunks, or cut it into parts to hash.
    Open {
        /// The file.
        file: FileRef,
        /// The number of attempts, counting from 1.
        round: u32,
    },
    /// Copy one chunk of a large file.
    Chunk(Box<ChunkTask>),
    /// Finish a large file.
    Seal(Box<SealTask>),
    /// Copy inodes with several names.
    Links(Vec<LinkGroup>),
    /// Set the final metadata of directories, deepest first.
    Finish(Vec<DirectoryRef>),
    /// Delete names that the source does not have.
    Delete(Vec<ExtraNames>),
    /// Check whether the names of source directories have changed.
    Revisit(Vec<Revisit>),
    /// Repeat renames of the source at the destination, in this order.
    Rename(Vec<Move>),
    /// Find the entries of directories that are equal on both sides.
    Catalog(Vec<TreePath>),
    /// Record what both sides have at these paths.
    CatalogNames(Vec<TreePath>),
    /// Copy single entries from a batch list: source, destination, ranges.
    Pairs(Vec<(crate::PathBytes, crate::PathBytes, Option<RangeCopy>)>),
    /// Hash files of a list.
    Sums(Vec<SumItem>),
    /// Hash part of a file.
    Hash(Box<HashTask>),
    /// Compute the digest of a file from the digests of its parts.
    FinishHash(Box<FinishHashTask>),
    /// Compare entries with their records in a manifest.
    Records(RecordsTask),
    /// Compare part of a file.
    Compare(Box<CompareTask>),
    /// Finish the comparison of a file that was compared in parts.
    FinishCompare(Box<FinishCompareTask>),
}

impl TaskKind {
    /// Whether another run does not resume this task, but checks both sides again and creates it afresh.
    pub fn is_begun_anew(&self) -> bool {
        match self {
            Self::Revisit(_) | Self::Rename(_) | Self::Delete(_) => true,
            Self::Catalog(_) | Self::CatalogNames(_) => true,
            Self::Scan { names, .. } => matches!(names, ScanNames::Extra),
            _ => false,
        }
    }

    /// Paths below the root that the reporter of this task returns for other movers.
    pub fn gives(&self) -> Vec<TreePath> {
        match self {
            Self::Scan { directory, names } => {
                let names = names.names().iter();
                names.map(|name| directory.path.join(name.as_bytes())).collect()
            }
            Self::Open { file, .. } => vec![file.directory.path.join(file.name.as_bytes())],
            _ => Vec::new(),
        }
    }

    /// Whether it is about the content of a large file: a chunk, or the start or end of the file.
    pub fn is_large(&self) -> bool {
        matches!(
            self,
            Self::Open { .. }
                | Self::Chunk(_)
                | Self::Seal(_)
                | Self::Hash(_)
                | Self::FinishHash(_)
                | Self::Compare(_)
                | Self::FinishCompare(_)
        )
    }
}

/// A unit of work that one mover leases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Its number.
    pub id: TaskId,
    /// The work.
    pub kind: TaskKind,
    /// What it may use.
    pub budget: Budget,
    /// An earlier run or another mover has already worked on it.
    pub resumed: bool,
    /// Paths below the root that this task has already returned, sorted: other tasks have them.
    pub given: Vec<TreePath>,
    /// Leases of this task that expired in this run. Their movers may still be running.
    pub lost: Vec<u32>,
    /// Expired leases of the tasks that returned this one: this work was part of those tasks.
    pub lost_above: Vec<u32>,
    /// What an earlier run has copied of the large file that this task starts.
    pub partial: Option<Box<PartialFile>>,
}

impl Task {
    /// A task that no mover has started.
    pub fn new(id: TaskId, kind: TaskKind, budget: Budget) -> Self {
        let (given, lost, lost_above) = (Vec::new(), Vec::new(), Vec::new());
        Self { id, kind, budget, resumed: false, given, lost, lost_above, partial: None }
    }

    /// All expired leases whose movers may have changed what this task works on.
    pub fn lost_leases(&self) -> impl Iterator<Item = u32> {
        self.lost_above.iter().chain(&self.lost).copied()
    }
}

/// The class of a task: each class has its own number of movers, so that neither delays the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskClass {
    /// Names, small files, directories.
    Small = 0,
    /// Content of large files.
    Large = 1,
}

impl TaskClass {
    /// Both classes.
    pub const ALL: [Self; 2] = [Self::Small, Self::Large];

    /// The class of a task.
    pub fn of(task: &Task) -> Self {
        if task.kind.is_large() { Self::Large } else { Self::Small }
    }

    /// The word for the class.
    pub fn word(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Large => "large",
        }
    }
}

/// The parent of a new task or node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Parent {
    /// The parent of the reporting task.
    Inherited,
    /// The n-th node that this task has reported, counting from 0 over all its reports.
    New(usize),
}

/// A node that is finished when everything below it is done: a directory, or a file in parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewNode {
    /// Its parent.
    pub parent: Parent,
    /// The task that finishes it.
    pub finish: TaskKind,
    /// Parts that an earlier run has copied.
    pub done: DoneParts,
}

impl NewNode {
    /// A node without completed parts.
    pub fn new(parent: Parent, finish: TaskKind) -> Self {
        Self { parent, finish, done: DoneParts::default() }
    }
}

/// A task that a mover returns, for the coordinator to assign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewTask {
    /// Its parent.
    pub parent: Parent,
    /// The work.
    pub kind: TaskKind,
}

/// What a mover reports about a task. Nodes come before the tasks below them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Directories and large files that could not be finished at once.
    pub nodes: Vec<NewNode>,
    /// Work that exceeded the budget.
    pub tasks: Vec<NewTask>,
    /// Names of inodes that have several names.
    pub links: Vec<LinkName>,
    /// Directories that were changed after they were finished.
    pub dirty: Vec<DirectoryRef>,
    /// Names that only the destination has, to delete at the end.
    pub extra: Vec<ExtraNames>,
    /// Findings for the catalog, or from a check of the catalog.
    pub survey: Vec<Surveyed>,
    /// Why a chunk or part failed; the last task of the file decides what follows.
    pub chunk_failure: Option<Box<EntryError>>,
    /// The range of the file that a part has completed; `None` until then.
    pub covered: Option<ByteRange>,
    /// Digests of the pieces of a part.
    pub pieces: Option<HashedPieces>,
    /// Ranges of a part that differ.
    pub differing: Vec<ByteRange>,
    /// What another run needs to resume large files.
    pub large: Vec<LargeNews>,
    /// The work of the task, once it has ended.
    pub work: Work,
}

/// What a task has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Work {
    /// Entries.
    pub entries: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Milliseconds.
    pub elapsed_ms: u64,
}

impl Outcome {
    /// Number of directories, tasks and names in it.
    pub fn len(&self) -> usize {
        let extra: usize = self.extra.iter().map(|extra| extra.names.len()).sum();
        let lists = self.nodes.len() + self.tasks.len() + self.links.len() + self.dirty.len();
        lists + self.survey.len() + extra
    }

    /// Its memory use, measured in names: a survey entry of one directory holds thousands.
    pub fn weight(&self) -> usize {
        self.len() + self.survey.iter().map(Surveyed::names).sum::<usize>()
    }

    /// Splits it into outcomes of at most `most` directories, tasks and names each, to be applied in this order. The
    /// last one has the fields that end a task.
    #[must_use]
    pub fn split(self, most: usize) -> Vec<Self> {
        fn pieces<T>(
            all: Vec<T>,
            most: usize,
            piece: impl Fn(Vec<T>) -> Outcome,
        ) -> impl Iterator<Item = Outcome> {
            let mut all = all.into_iter().peekable();
            std::iter::from_fn(move || {
                all.peek()?;
                Some(piece(all.by_ref().take(most).collect()))
            })
        }
        let most = most.max(1);
        let Self { nodes, tasks, links, dirty, extra, survey, .. } = self;
        let mut all: Vec<Self> = Vec::new();
        // Nodes come first: tasks hang on them.
        all.extend(pieces(nodes, most, |nodes| Self { nodes, ..Self::default() }));
        all.extend(pieces(tasks, most, |tasks| Self { tasks, ..Self::default() }));
        all.extend(pieces(links, most, |links| Self { links, ..Self::default() }));
        all.extend(pieces(dirty, most, |dirty| Self { dirty, ..Self::default() }));
        all.extend(pieces(extra, 1, |extra| Self { extra, ..Self::default() }));
        all.extend(pieces(survey, most, |survey| Self { survey, ..Self::default() }));
        let Self { chunk_failure, covered, pieces, differing, large, work, .. } = self;
        all.push(Self {
            chunk_failure,
            covered,
            pieces,
            differing,
            large,
            work,
            ..Self::default()
        });
        all
    }

    /// Whether it reports nothing but the end of the task.
    pub fn is_empty(&self) -> bool {
        // The work is reported at the end in any case.
        let parts = self.chunk_failure.is_some() || self.covered.is_some() || self.pieces.is_some();
        self.len() == 0 && !parts && self.differing.is_empty() && self.large.is_empty()
    }
}

impl Metadata {
    /// Whether two scans saw the same version of a file.
    pub fn same_version(&self, other: &Self) -> bool {
        self.version() == other.version()
    }
}
