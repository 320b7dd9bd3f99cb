//! The vocabulary of dmover: plain data that all other crates use, without any I/O.
//!
//! A *job* is one request. It is cut into *tasks*, which movers lease; a mover reports an *outcome* for each task. An
//! *entry* is one name in a tree. See `ARCHITECTURE.md` for the whole picture.
#![forbid(unsafe_code)]

#[macro_use]
mod words;

mod catalog;
mod connection;
mod digest;
mod entry;
mod error;
mod escape;
mod event;
mod exit;
mod fatal;
mod feed;
mod fleet;
mod job;
mod limit;
mod name;
mod place;
mod policy;
mod range;
mod record;
mod stop;
mod sum;
mod sync;
mod task;
pub mod units;
mod verify;

pub use catalog::{
    CatalogEntry, DirectoryState, ListedName, Move, MoveResult, Object, Revisit, Segment, Surveyed,
};
pub use connection::{ConnectionReport, Protected, SentSegments};
pub use digest::{Digest, HashType, Shape};
pub use entry::{EntryKind, EntryRecord, Identity, Metadata, MountId, Timestamp, Version};
pub use error::{EntryError, ErrorClass, Failed, Operation, Side};
pub use escape::{percent_decode, percent_encode};
pub use event::{Action, Event, Item, Note};
pub use exit::ExitCode;
pub use fatal::Fatal;
pub use feed::{ChangeFeed, ChangedPlace, FeedBatch, FeedError, Happened};
pub use fleet::{
    Answer, Carried, CoordinatorRequest, FileSystemName, MountedBelow, Notice, OnTheWay,
    RecheckSet, RootMarks, SideMark, Times, Unmeant, WithheldReason,
};
pub use job::{
    FilterRule, FollowLinks, JobId, JobSpec, Limits, ListFile, Selection, TargetMode, Verb,
};
pub use limit::{Bottleneck, Limit};
pub use name::{Name, NameError, PathBytes, TreePath};
pub use place::{DirectoryRef, FileRef, Placement, RootId};
pub use policy::{
    AccountKey, Attribute, AttributeSet, Backup, CopyEngine, CopyPolicy, IdRule, LossKind, LossSet,
    NameRule, NameTables, Overwrite, RangeCopy, When,
};
pub use range::ByteRange;
pub use record::{Body, Content, Extended, NamedDigest, Record};
pub use stop::StopReason;
pub use sum::{
    DigestPolicy, Expected, FileDigest, FinishHashTask, Guess, HashTask, HashedFile, HashedPieces,
    Subject, SumItem, Verdict,
};
pub use sync::{
    Confirmed, DeleteLimit, DeletePolicy, DeleteWhen, ExtraName, ExtraNames, Share, SnapshotPolicy,
    SyncPolicy,
};
pub use task::{
    Budget, ChunkTask, DoneParts, LargeFile, LargeNews, LinkGroup, LinkName, NewNode, NewTask,
    Outcome, Parent, PartialFile, ScanNames, SealTask, Task, TaskClass, TaskId, TaskKind, Work,
};
pub use verify::{
    Against, CompareTask, Difference, DifferenceDetail, DifferenceKind, DifferenceSet,
    FinishCompareTask, RecordsTask, VerifyLevel, VerifyPolicy,
};
