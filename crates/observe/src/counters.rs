//! Counters of a job, fed from all threads.
use std::sync::atomic::{AtomicU64, Ordering};

use crate::outlook::Outlook;
use crate::spread::{Histogram, Spread, Spreads, SpreadsSnapshot};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal),* $(,)?) => {
        /// One counter. Text, JSON and tests read them all from here.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Counter { $($(#[doc = $doc])* $variant),* }
        impl Counter {
            /// Every counter, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant),*];
            /// The field name in JSON.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
            /// What it counts.
            pub fn describe(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),*)),* }
            }
        }
    };
}
counters! {
    /// Entries met at the source, of any type.
    EntriesFound = "entries_found",
    /// Bytes of content of the regular files met.
    BytesFound = "bytes_found",
    /// Regular files brought over.
    FilesCopied = "files_copied",
    /// Directories made.
    DirectoriesCreated = "directories_created",
    /// Symbolic links brought over.
    SymlinksCopied = "symlinks_copied",
    /// FIFOs, sockets and device nodes brought over.
    SpecialsCopied = "specials_copied",
    /// Further names linked to a file that was copied.
    HardLinksCreated = "hard_links_created",
    /// Bytes of content written, holes not counted.
    BytesCopied = "bytes_copied",
    /// Bytes of changed files that were right at the destination already and were not written again.
    BytesKept = "bytes_kept",
    /// Files of a snapshot that are as in the one before and were shared with it.
    FilesUnchanged = "files_unchanged",
    /// Bytes of content of these.
    BytesUnchanged = "bytes_unchanged",
    /// Bytes of content that share blocks with the source instead of being written.
    BytesShared = "bytes_shared",
    /// Bytes that were copied inside the kernel.
    BytesInKernel = "bytes_in_kernel",
    /// Bytes that were read past the page cache, those by io_uring aside.
    BytesReadDirect = "bytes_read_direct",
    /// Bytes that were written past the page cache, those by io_uring aside.
    BytesWrittenDirect = "bytes_written_direct",
    /// Bytes that were moved by io_uring.
    BytesByRing = "bytes_by_ring",
    /// Times that a file system or a file refused direct I/O, so that the page cache was used.
    DirectRefusals = "direct_refusals",
    /// Files whose digest was made.
    FilesHashed = "files_hashed",
    /// Bytes that were read to make digests or to compare, on both sides.
    BytesHashed = "bytes_hashed",
    /// Bytes of content that were compared: those of both sides count once, holes as well.
    BytesCompared = "bytes_compared",
    /// Files whose digest is as a list says.
    DigestsEqual = "digests_equal",
    /// Files whose digest is another.
    DigestsDiffer = "digests_differ",
    /// Files of a list that are not there and were to be passed over.
    FilesMissing = "files_missing",
    /// Entries compared with another tree or a manifest.
    EntriesCompared = "entries_compared",
    /// Entries that are not as they should be.
    EntriesDiffering = "entries_differing",
    /// Entries that were brought over again because they differed.
    EntriesRepaired = "entries_repaired",
    /// Entries whose content differs or that are missing, and that were not repaired.
    EntriesCorrupt = "entries_corrupt",
    /// Files of which a manifest has no digest, so that only their metadata was compared.
    FilesWithoutDigest = "files_without_digest",
    /// Entries that were taken for right because they were not changed since --since.
    EntriesUntouched = "entries_untouched",
    /// Entries that were equal already, or that the policy keeps.
    EntriesSkipped = "entries_skipped",
    /// Bytes of content of skipped regular files.
    BytesSkipped = "bytes_skipped",
    /// Entries left out by a rule.
    EntriesExcluded = "entries_excluded",
    /// Entries replaced because another version or type stood there.
    EntriesReplaced = "entries_replaced",
    /// Entries whose owner, mode or other attributes were set, and nothing else.
    EntriesDressed = "entries_dressed",
    /// Directories that were there and got attributes or times of their source.
    DirectoriesUpdated = "directories_updated",
    /// Entries renamed at the destination as they were at the source.
    EntriesRenamed = "entries_renamed",
    /// Entries that only the destination has.
    EntriesExtra = "entries_extra",
    /// Entries that only the destination had and that were removed, or moved to the trash.
    EntriesDeleted = "entries_deleted",
    /// Bytes of content of the files among them.
    BytesDeleted = "bytes_deleted",
    /// Entries that only the destination has and that were left there by the guard.
    DeletesWithheld = "deletes_withheld",
    /// Files that looked equal and were compared byte by byte.
    FilesCompared = "files_compared",
    /// Entries left alone as equal although their owner or mode is another; --overwrite=always copies them again.
    EntriesUnlike = "entries_unlike",
    /// Entries that failed.
    Errors = "errors",
    /// Failed entries that only the source is to blame for: vanished or changing.
    SourceErrors = "source_errors",
    /// Entries or parts of the tree that were not attempted.
    NotAttempted = "not_attempted",
    /// Attempts that were repeated.
    Retries = "retries",
    /// Attributes that did not arrive and were not accepted by `--allow-loss`.
    Losses = "losses",
    /// Attributes that did not arrive and were accepted.
    LossesAllowed = "losses_allowed",
    /// Owners or groups that may not be set without privilege.
    OwnersNotKept = "owners_not_kept",
    /// Set-id bits dropped because the owner was not kept.
    SetIdsDropped = "set_ids_dropped",
    /// Attributes that need privilege and were left out.
    PrivilegedAttributes = "privileged_attributes",
    /// Attributes of the file system itself that are never carried over.
    SystemAttributes = "system_attributes",
    /// Source file systems that update access times whatever they are asked.
    SourceAtimesTouched = "source_atimes_touched",
    /// Leftovers of an interrupted run that were removed.
    LeftoversRemoved = "leftovers_removed",
    /// Temporaries met at the source and skipped.
    TemporariesSkipped = "temporaries_skipped",
    /// Chunks of large files copied.
    ChunksCopied = "chunks_copied",
    /// Tasks that movers have ended.
    TasksDone = "tasks_done",
    /// Tasks whose lease ran out.
    LeasesExpired = "leases_expired",
    /// Files that were open for writing while they were read. The next run of the same command compares them, unless it was --no-state.
    FilesOpenForWriting = "files_open_for_writing",
}

/// The counters of one job, how what it did is spread, and how far it is.
#[derive(Debug)]
pub struct Counters([AtomicU64; Counter::ALL.len()], Spreads, Outlook);

impl Default for Counters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)), Spreads::default(), Outlook::default())
    }
}

impl Counters {
    /// Adds one.
    pub fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds `amount`.
    pub fn add(&self, counter: Counter, amount: u64) {
        self.0[counter as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// The present value.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Ordering::Relaxed)
    }

    /// Takes note of a value, in microseconds or bytes.
    pub fn note(&self, spread: Spread, value: u64) {
        self.1.note(spread, value);
    }

    /// Adds to a cell what somebody else has noted there, see [`Snapshot::cells`].
    pub fn add_to_cell(&self, cell: usize, amount: u64) {
        self.1.add(cell, amount);
    }

    /// How far the job is.
    pub fn outlook(&self) -> &Outlook {
        &self.2
    }

    /// All present values.
    pub fn snapshot(&self) -> Snapshot {
        let counts = std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed));
        Snapshot(counts, self.1.snapshot())
    }
}

/// What was done to entries, as opposed to what was seen of them.
const DONE: [Counter; 24] = [
    Counter::FilesCopied,
    Counter::DirectoriesCreated,
    Counter::SymlinksCopied,
    Counter::SpecialsCopied,
    Counter::HardLinksCreated,
    Counter::BytesCopied,
    Counter::BytesKept,
    Counter::FilesUnchanged,
    Counter::BytesUnchanged,
    Counter::BytesShared,
    Counter::BytesInKernel,
    Counter::BytesReadDirect,
    Counter::BytesWrittenDirect,
    Counter::BytesByRing,
    Counter::EntriesReplaced,
    Counter::EntriesDressed,
    Counter::DirectoriesUpdated,
    Counter::EntriesRenamed,
    Counter::EntriesDeleted,
    Counter::BytesDeleted,
    Counter::FilesCompared,
    Counter::LeftoversRemoved,
    Counter::ChunksCopied,
    Counter::TasksDone,
];

/// The values of all counters at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot([u64; Counter::ALL.len()], SpreadsSnapshot);

impl Snapshot {
    /// The value of one counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// Counters that begin with what was done here, for another look at the same entries.
    pub fn of_what_was_done(&self) -> Counters {
        let counters = Counters::default();
        for counter in DONE {
            counters.add(counter, self.get(counter));
        }
        for (cell, amount) in self.cells() {
            counters.add_to_cell(cell, amount);
        }
        counters
    }

    /// Cells of the spreads that are not empty, with their places.
    pub fn cells(&self) -> impl Iterator<Item = (usize, u64)> {
        self.1.cells()
    }

    /// How the values of something are spread.
    pub(crate) fn histogram(&self, spread: Spread) -> Histogram {
        self.1.histogram(spread)
    }

    /// Bytes of content that were moved or read, and entries that were ended, whatever the verb.
    pub fn moved(&self) -> (u64, u64) {
        Counter::moved(|counter| self.get(counter))
    }

    /// Names and values, in the order of the documentation.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> {
        Counter::ALL.iter().map(|c| (*c, self.get(*c)))
    }
}

impl Counter {
    /// Bytes of content that were moved or read, and entries that were ended, whatever the verb.
    pub fn moved(get: impl Fn(Self) -> u64) -> (u64, u64) {
        let sum = |all: &[Self]| all.iter().map(|counter| get(*counter)).sum::<u64>();
        let bytes = [Self::BytesCopied, Self::BytesShared, Self::BytesHashed];
        let entries = [
            Self::DirectoriesCreated,
            Self::SymlinksCopied,
            Self::SpecialsCopied,
            Self::HardLinksCreated,
            Self::EntriesSkipped,
            Self::EntriesCompared,
            Self::EntriesDeleted,
        ];
        // A file that is copied may have been hashed on the way.
        let files = get(Self::FilesCopied).max(get(Self::FilesHashed));
        (sum(&bytes), files + sum(&entries))
    }
}
