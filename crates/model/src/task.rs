//! Tasks and outcomes: what the coordinator hands out and what a mover answers.
//!
//! Everything here can be sent over a wire. A task may run twice, also at the same time, without
//! harm; see "Invariants" in `ARCHITECTURE.md`.
use serde::{Deserialize, Serialize};

use crate::{
    ByteRange, ChangedPlace, CompareTask, ConcludeTask, EntryError, ExtraNames, HashTask,
    HashedPieces, Identity, JudgeTask, Metadata, Move, Name, RangeCopy, RecordsTask, Revisit,
    SumItem, Surveyed, TreePath, Version,
};

/// Number of a task within its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId(pub u64);

/// Index of a source/destination pair in the job's table of roots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RootId(pub u32);

/// What a task may spend before it has to give the rest back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Entries.
    pub entries: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Milliseconds.
    pub time_ms: u64,
}

/// A directory on both sides, as it was when the task was made; it is checked when re-opened.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DirectoryRef {
    /// Which root it belongs to.
    pub root: RootId,
    /// Where it is below that root.
    pub path: TreePath,
    /// The source directory.
    pub source: Identity,
    /// The destination directory.
    pub destination: Identity,
    /// The destination directory was made by this job.
    pub made: bool,
    /// Source directories above it, kept only where symbolic links are followed (to find cycles).
    pub ancestors: Vec<Identity>,
}

/// One file on both sides.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileRef {
    /// The directory that holds it.
    pub directory: DirectoryRef,
    /// Name at the source.
    pub name: Name,
    /// Name at the destination.
    pub destination_name: Name,
}

/// Names in one directory that a mover has to look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScanNames {
    /// The root entry itself, in the directory that holds it.
    Root,
    /// These names: a shard of a large directory.
    Listed(Vec<Name>),
    /// The same, of which the directory says that they are regular files.
    Files(Vec<Name>),
    /// Directories that were left over.
    Directories(Vec<Name>),
    /// These paths below the root, from a list file.
    Paths(Vec<TreePath>),
    /// These places below the root, of which a feed has told.
    Changed(Vec<ChangedPlace>),
    /// The directory itself and all below it, only to find names that the destination alone has.
    Extra,
}

impl ScanNames {
    /// Names in the directory, as far as they are known.
    pub fn names(&self) -> &[Name] {
        match self {
            Self::Listed(names) | Self::Files(names) | Self::Directories(names) => names,
            Self::Root | Self::Paths(_) | Self::Changed(_) | Self::Extra => &[],
        }
    }
}

/// A large file on its way: opened once, written in chunks, sealed once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LargeFile {
    /// Which file.
    pub file: FileRef,
    /// The temporary that is being filled.
    pub temporary: Name,
    /// The temporary's identity.
    pub temporary_identity: Identity,
    /// The version that every chunk has to come from.
    pub version: Version,
    /// How often this file was started, counting from 1.
    pub round: u32,
    /// Another version stood under the final name when it was opened.
    pub replaces: bool,
    /// Milliseconds since the job began when it was opened.
    pub opened_ms: u64,
    /// How its digest is put together, if one is made.
    pub shape: Option<crate::Shape>,
    /// The temporary has the blocks of the version that it replaces, and only what differs is written.
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

/// The end of a large file: check, set metadata, put it in place, or give it up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealTask {
    /// The file.
    pub large: LargeFile,
    /// What went wrong with a chunk, filled in by the coordinator.
    pub failure: Option<Box<EntryError>>,
    /// Digests of its pieces, filled in by the coordinator.
    pub pieces: Vec<HashedPieces>,
}

/// One name of an inode that has several.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LinkName {
    /// The inode at the source.
    pub identity: Identity,
    /// Which name of it.
    pub file: FileRef,
}

/// Names of one inode, to become one inode at the destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkGroup {
    /// The name that carries the content; the others are linked to it.
    pub first: FileRef,
    /// The other names.
    pub rest: Vec<FileRef>,
    /// The first name was done by an earlier task of the same group.
    pub first_is_done: bool,
}

/// Parts of a large file that are done, with their digests if any are made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DoneParts {
    /// Bytes, in order.
    pub ranges: Vec<ByteRange>,
    /// Digests of their pieces.
    pub pieces: Vec<HashedPieces>,
}

/// What an earlier run of the job has done of a large file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialFile {
    /// The temporary, in the directory of the file.
    pub temporary: Name,
    /// Its inode number.
    pub inode: u64,
    /// The version of the source that its bytes are of. `None`: its file system is not known here.
    pub version: Option<Version>,
    /// How its digest is put together, if one is made.
    pub shape: Option<crate::Shape>,
    /// See [`LargeFile::patched`].
    pub patched: bool,
    /// What is on storage.
    pub done: DoneParts,
    /// A mover of the earlier run may still write to the temporary: it must not become the file.
    pub fenced: bool,
    /// The temporary was changed at this time at the earliest: one that was changed before is an older state of it.
    pub changed: Option<crate::Timestamp>,
    /// No mover of the earlier run has changed it after this.
    pub until: Option<crate::Timestamp>,
}

/// News of a large file that another run has to know to continue it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LargeNews {
    /// These parts of a temporary are on storage.
    Flushed {
        /// The temporary.
        temporary: Name,
        /// The parts.
        done: DoneParts,
        /// When the temporary was last changed by then.
        changed: Option<crate::Timestamp>,
    },
    /// The temporary is gone: it has become the file, or was removed.
    Ended {
        /// The temporary.
        temporary: Name,
    },
}

/// What a task asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskKind {
    /// Look at names of a directory and bring them over, going down within the budget.
    Scan {
        /// The directory; for `ScanNames::Root`, `Paths` and `Changed` only its root counts.
        directory: DirectoryRef,
        /// Which names.
        names: ScanNames,
    },
    /// Begin a large file: create the temporary and cut it into chunks, or cut it into parts to hash.
    Open {
        /// The file.
        file: FileRef,
        /// How often it was begun, counting from 1.
        round: u32,
    },
    /// Copy one chunk of a large file.
    Chunk(Box<ChunkTask>),
    /// Finish a large file.
    Seal(Box<SealTask>),
    /// Bring over inodes with several names.
    Links(Vec<LinkGroup>),
    /// Give directories their final metadata, deepest first.
    Finish(Vec<DirectoryRef>),
    /// Remove names that the source does not have.
    Delete(Vec<ExtraNames>),
    /// Look whether source directories have other names than they had.
    Revisit(Vec<Revisit>),
    /// Rename at the destination what was renamed at the source, in this order.
    Rename(Vec<Move>),
    /// Find out what both sides of directories have alike.
    Catalog(Vec<TreePath>),
    /// Record what both sides have at these places.
    CatalogNames(Vec<TreePath>),
    /// Copy single entries named in a batch list: source, destination, ranges.
    Pairs(Vec<(crate::PathBytes, crate::PathBytes, Option<RangeCopy>)>),
    /// Hash files of a list.
    Sums(Vec<SumItem>),
    /// Hash part of a file.
    Hash(Box<HashTask>),
    /// Make the digest of a file of those of its parts.
    Conclude(Box<ConcludeTask>),
    /// Compare entries with what a manifest says of them.
    Records(RecordsTask),
    /// Compare part of a file.
    Compare(Box<CompareTask>),
    /// End the comparison of a file of which parts were compared.
    Judge(Box<JudgeTask>),
}

impl TaskKind {
    /// What another run does not go on with: it looks at both sides again, and finds it out anew.
    pub fn is_begun_anew(&self) -> bool {
        match self {
            Self::Revisit(_) | Self::Rename(_) | Self::Delete(_) => true,
            Self::Catalog(_) | Self::CatalogNames(_) => true,
            Self::Scan { names, .. } => matches!(names, ScanNames::Extra),
            _ => false,
        }
    }

    /// Paths below the root that whoever reports this task leaves to others.
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

    /// Content of a large file, and what begins and ends it.
    pub fn is_large(&self) -> bool {
        matches!(
            self,
            Self::Open { .. }
                | Self::Chunk(_)
                | Self::Seal(_)
                | Self::Hash(_)
                | Self::Conclude(_)
                | Self::Compare(_)
                | Self::Judge(_)
        )
    }
}

/// A unit of work that one mover leases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Its number.
    pub id: TaskId,
    /// What to do.
    pub kind: TaskKind,
    /// What it may spend.
    pub budget: Budget,
    /// Somebody has had it in hand before: an earlier run, or a mover that lost its lease.
    pub resumed: bool,
    /// Paths below the root that this task has handed on already, sorted: others have them.
    pub given: Vec<TreePath>,
    /// Leases of it that ran out in this run. Whoever had them may be at work still.
    pub lost: Vec<u32>,
    /// Leases that ran out on the tasks that handed this one on: it was part of what their holders had.
    pub lost_above: Vec<u32>,
    /// What an earlier run has done of the large file that this task begins.
    pub partial: Option<Box<PartialFile>>,
}

impl Task {
    /// One that nobody has begun.
    pub fn new(id: TaskId, kind: TaskKind, budget: Budget) -> Self {
        let (given, lost, lost_above) = (Vec::new(), Vec::new(), Vec::new());
        Self { id, kind, budget, resumed: false, given, lost, lost_above, partial: None }
    }

    /// All leases that ran out and may have left something where this task works.
    pub fn lost_leases(&self) -> impl Iterator<Item = u32> {
        self.lost_above.iter().chain(&self.lost).copied()
    }
}

/// What a task is mostly: classes have numbers of movers of their own, so that neither keeps the other waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskClass {
    /// Names, small files, directories.
    Small = 0,
    /// Content of large files.
    Large = 1,
}

impl TaskClass {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Small, Self::Large];

    /// The class of a task.
    pub fn of(task: &Task) -> Self {
        if task.kind.is_large() { Self::Large } else { Self::Small }
    }

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Large => "large",
        }
    }
}

/// What a new task or node hangs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Parent {
    /// Whatever the reporting task hangs on.
    Inherited,
    /// The n-th node that this task has reported, counting from 0 over all its reports.
    New(usize),
}

/// Something that ends when everything below it has ended: a directory, or a file in parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewNode {
    /// What it hangs on.
    pub parent: Parent,
    /// The task that ends it.
    pub finish: TaskKind,
    /// Parts that an earlier run has done.
    pub done: DoneParts,
}

impl NewNode {
    /// One of which nothing is done yet.
    pub fn new(parent: Parent, finish: TaskKind) -> Self {
        Self { parent, finish, done: DoneParts::default() }
    }
}

/// A task that a mover gives back to be handed out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewTask {
    /// What it hangs on.
    pub parent: Parent,
    /// What to do.
    pub kind: TaskKind,
}

/// What a mover reports about a task. Nodes come before the tasks that hang on them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Directories and large files that could not be finished on the spot.
    pub nodes: Vec<NewNode>,
    /// Work that exceeded the budget.
    pub tasks: Vec<NewTask>,
    /// Names of inodes that have several.
    pub links: Vec<LinkName>,
    /// Directories that were changed after they were finished.
    pub dirty: Vec<DirectoryRef>,
    /// Names that only the destination has, to be removed in the end.
    pub extra: Vec<ExtraNames>,
    /// What was found on the way for the catalog, or from it.
    pub survey: Vec<Surveyed>,
    /// Why a chunk or part failed; what ends the file decides what becomes of it.
    pub chunk_failure: Option<Box<EntryError>>,
    /// Which bytes of its file a part has dealt with; none until it has.
    pub covered: Option<ByteRange>,
    /// Digests of the pieces of a part.
    pub pieces: Option<HashedPieces>,
    /// Bytes of a part that are not as they should be.
    pub differing: Vec<ByteRange>,
    /// What another run has to know to continue large files.
    pub large: Vec<LargeNews>,
    /// What it took, once it has ended.
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
    /// How many directories, tasks and names it carries.
    pub fn len(&self) -> usize {
        let extra: usize = self.extra.iter().map(|extra| extra.names.len()).sum();
        let lists = self.nodes.len() + self.tasks.len() + self.links.len() + self.dirty.len();
        lists + self.survey.len() + extra
    }

    /// How much memory it takes, in names: what a survey says of one directory holds thousands.
    pub fn weight(&self) -> usize {
        self.len() + self.survey.iter().map(Surveyed::names).sum::<usize>()
    }

    /// Cuts it into outcomes of at most so many directories, tasks and names each, to be heard in this order. What ends a task
    /// is in the last one.
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

    /// Whether there is nothing to report but the end.
    pub fn is_empty(&self) -> bool {
        // What it took is told at the end in any case.
        let parts = self.chunk_failure.is_some() || self.covered.is_some() || self.pieces.is_some();
        self.len() == 0 && !parts && self.differing.is_empty() && self.large.is_empty()
    }
}

impl Metadata {
    /// Whether two looks at a file saw the same version of it.
    pub fn same_version(&self, other: &Self) -> bool {
        self.version() == other.version()
    }
}
