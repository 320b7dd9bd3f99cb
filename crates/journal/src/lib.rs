//! What a job keeps on disk between its runs: its journal, its catalog, the record of its large files, its status for
//! other processes, and the tasks that do not fit in memory.
#![forbid(unsafe_code)]

mod catalog;
mod database;
mod failed_flushes;
mod flush_record;
mod journal;
mod known_paths;
mod ledger;
mod movers_elsewhere;
mod open_files;
mod partial_files;
mod snapshot_record;
mod state;

pub use catalog::{Catalog, Only, Scope, Survey};
pub use failed_flushes::{FailedFlush, FailedFlushes};
pub use flush_record::{FlushRecord, SeenWhole, WrittenPlace, other_flush_records};
pub use journal::{
    Begun, Ending, FailedList, FailedPaths, Journal, JournalEntry, JournalReader, LastPass, Left,
    LookedInto, PassKind, PassPlaces, RecordedError, RecordedPass, RunEnd, now_ms, same_work,
    ticked,
};
pub use known_paths::KnownPaths;
pub use ledger::{Ledger, SpillLedger};
pub use movers_elsewhere::{EarlierMovers, MoversElsewhere};
pub use open_files::OpenFiles;
pub use partial_files::{Locator, PartialFiles, Starts, Unneeded};
pub use snapshot_record::{
    OWN as OWN_SNAPSHOTS, SnapshotRecord, SourceObject, UNFINISHED, file_of,
};
pub use state::{
    Ask, ErrorList, Failures, JobFile, JobLock, JobPhase, JobStatus, LabelHeld, LabelTurn, Listed,
    StandbyTurn, StateDirectory, Unlisted, Volume, source_identity,
};
