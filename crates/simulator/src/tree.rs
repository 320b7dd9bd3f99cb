//! A tree that is never written down: each task says how much of it is left, and what is cut off says how much that is.
use dmover_model::{
    Budget, ByteRange, ChunkTask, DirectoryRef, FileRef, Identity, LargeFile, MountId, Name,
    NewNode, NewTask, Outcome, Parent, RootId, ScanNames, SealTask, Task, TaskKind, Timestamp,
    TreePath, Version, Work,
};

/// Pieces that what is left of a directory tree is handed on in.
const PIECES: u64 = 8;
/// Bytes of a chunk at least.
const CHUNK_BYTES: u64 = 64 << 20;

/// How large a tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeSize {
    /// Small files.
    pub files: u64,
    /// Large files, and bytes of each.
    pub large: (u64, u64),
}

/// Work that a task asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// So many entries, and large files that are found on the way.
    Entries(u64, u64),
    /// A large file is to be begun.
    Open,
    /// Bytes.
    Bytes(ByteRange),
    /// Something that takes no longer than a look.
    End,
}

fn identity(inode: u64) -> Identity {
    Identity { mount: MountId(0), inode }
}

/// A directory tree with so many entries and large files in it, said by its path.
fn directory(entries: u64, large: u64) -> DirectoryRef {
    let path = TreePath::new(format!("{entries}-{large}").into_bytes()).unwrap_or_default();
    DirectoryRef {
        root: RootId(0),
        path,
        source: identity(1),
        destination: identity(2),
        made: true,
        ancestors: Vec::new(),
    }
}

fn sizes(path: &TreePath) -> Option<(u64, u64)> {
    let last = path.split_last()?.1;
    let (entries, large) = std::str::from_utf8(last).ok()?.split_once('-')?;
    Some((entries.parse().ok()?, large.parse().ok()?))
}

/// A task for entries and large files below a directory. It has a name, so that whoever hands it on is known to have done so.
pub fn scan(entries: u64, large: u64) -> TaskKind {
    let directory = directory(entries, large);
    let name = Name::new(directory.path.as_bytes().to_vec());
    TaskKind::Scan { directory, names: ScanNames::Directories(name.into_iter().collect()) }
}

fn file() -> Option<FileRef> {
    let name = Name::new(*b"large").ok()?;
    Some(FileRef { directory: directory(0, 0), name: name.clone(), destination_name: name })
}

fn large_file(round: u32, size: u64) -> Option<LargeFile> {
    let time = Timestamp { seconds: 0, nanoseconds: 0 };
    let version = Version { identity: identity(3), size, mtime: time, ctime: time };
    Some(LargeFile {
        file: file()?,
        temporary: Name::new(*b"temporary").ok()?,
        temporary_identity: identity(4),
        version,
        round,
        replaces: false,
        opened_ms: 0,
        shape: None,
        patched: false,
    })
}

/// What a task asks for.
pub fn ask(task: &Task) -> Ask {
    match &task.kind {
        TaskKind::Scan { directory, .. } => {
            let (entries, large) = sizes(&directory.path).unwrap_or_default();
            // Who had it before has handed on a part.
            let given = task.given.iter().filter_map(sizes);
            let (less, fewer) =
                given.fold((0, 0), |(e, l), (entries, large)| (e + entries, l + large));
            Ask::Entries(entries.saturating_sub(less), large.saturating_sub(fewer))
        }
        TaskKind::Open { .. } => Ask::Open,
        TaskKind::Chunk(chunk) => Ask::Bytes(chunk.range),
        _ => Ask::End,
    }
}

/// What a mover says that has opened a large file of so many bytes.
pub fn opened(task: &Task, bytes: u64) -> Outcome {
    let round = match &task.kind {
        TaskKind::Open { round, .. } => *round,
        _ => 1,
    };
    let Some(large) = large_file(round, bytes) else { return Outcome::default() };
    let seal = SealTask { large: large.clone(), failure: None, pieces: Vec::new() };
    let node = NewNode::new(Parent::Inherited, TaskKind::Seal(Box::new(seal)));
    let times = (task.budget.time_ms / BUDGET.time_ms).max(1);
    let step = CHUNK_BYTES.max(bytes.div_ceil(1024)) * times;
    let chunks = dmover_plan::chunk::chunks(bytes, step);
    let tasks = chunks.map(|range| NewTask {
        parent: Parent::New(0),
        kind: TaskKind::Chunk(Box::new(ChunkTask { large: large.clone(), range })),
    });
    Outcome { nodes: vec![node], tasks: tasks.collect(), ..Outcome::default() }
}

/// A seal whose chunks failed has the file begun again.
pub fn sealed(task: &Task) -> Outcome {
    let mut outcome = Outcome::default();
    if let TaskKind::Seal(seal) = &task.kind
        && seal.failure.is_some()
        && let Some(file) = file()
    {
        let kind = TaskKind::Open { file, round: seal.large.round + 1 };
        outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
    }
    outcome
}

/// Whether a task ends a large file well.
pub fn ends_file(task: &Task) -> bool {
    matches!(&task.kind, TaskKind::Seal(seal) if seal.failure.is_none())
}

/// The part of a chunk that is handed on.
pub fn rest_of_chunk(task: &Task, range: ByteRange) -> NewTask {
    let kind = match &task.kind {
        TaskKind::Chunk(chunk) => {
            TaskKind::Chunk(Box::new(ChunkTask { range, ..(**chunk).clone() }))
        }
        other => other.clone(),
    };
    NewTask { parent: Parent::Inherited, kind }
}

/// What is left of a tree below a directory, cut into tasks that hang on a directory of their own, and large files that were found.
pub fn rest_of_tree(entries: u64, large: u64, found: u64) -> Outcome {
    let mut outcome = Outcome::default();
    if entries > 0 {
        let finish = TaskKind::Finish(vec![directory(0, 0)]);
        outcome.nodes.push(NewNode::new(Parent::Inherited, finish));
    }
    let pieces = PIECES.min(entries.max(1));
    for piece in 0..pieces {
        let part = |all: u64| all / pieces + u64::from(piece < all % pieces);
        if part(entries) > 0 {
            let kind = scan(part(entries), part(large));
            outcome.tasks.push(NewTask { parent: Parent::New(0), kind });
        }
    }
    for file in (0..found).filter_map(|_| file()) {
        let kind = TaskKind::Open { file, round: 1 };
        outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
    }
    outcome
}

/// What a task took.
pub fn work(entries: u64, bytes: u64) -> Work {
    Work { entries, bytes, elapsed_ms: 0 }
}

/// What one task may spend at first.
pub const BUDGET: Budget = Budget { entries: 8192, bytes: 512 << 20, time_ms: 500 };
