//! Counters of a job, fed from all threads.
use std::sync::atomic::{AtomicU64, Ordering};

use crate::histograms::{Histogram, Histograms, HistogramsSnapshot, Quantity};
use crate::outlook::Outlook;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal),* $(,)?) => {
        /// One counter. Text, JSON and tests all read these counters.
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
    /// Entries found at the source, of any type.
    EntriesFound = "entries_found",
    /// Bytes of content of the regular files found.
    BytesFound = "bytes_found",
    /// Regular files copied.
    FilesCopied = "files_copied",
    /// Directories created.
    DirectoriesCreated = "directories_created",
    /// Symbolic links copied.
    SymlinksCopied = "symlinks_copied",
    /// FIFOs, sockets and device nodes copied.
    SpecialsCopied = "specials_copied",
    /// Hard links created to a copied file.
    HardLinksCreated = "hard_links_created",
    /// Bytes of content written, without holes.
    BytesCopied = "bytes_copied",
    /// Bytes of changed files that the destination already had and that were not written again.
    BytesKept = "bytes_kept",
    /// Files of a snapshot that are unchanged since the previous snapshot and shared with it.
    FilesUnchanged = "files_unchanged",
    /// Bytes of content of the unchanged files.
    BytesUnchanged = "bytes_unchanged",
    /// Bytes of content that share blocks with the source instead of being written.
    BytesShared = "bytes_shared",
    /// Bytes copied inside the kernel.
    BytesInKernel = "bytes_in_kernel",
    /// Bytes read past the page cache, without those by io_uring.
    BytesReadDirect = "bytes_read_direct",
    /// Bytes written past the page cache, without those by io_uring.
    BytesWrittenDirect = "bytes_written_direct",
    /// Bytes copied by io_uring.
    BytesByRing = "bytes_by_ring",
    /// Times that a file system or a file refused direct I/O and dmover used the page cache instead.
    DirectRefusals = "direct_refusals",
    /// Files whose digest was computed.
    FilesHashed = "files_hashed",
    /// Bytes read to compute digests or to compare, on both sides.
    BytesHashed = "bytes_hashed",
    /// Bytes of content compared, with holes; both sides together count once.
    BytesCompared = "bytes_compared",
    /// Files whose digest matches the list.
    DigestsEqual = "digests_equal",
    /// Files whose digest differs from the list.
    DigestsDiffer = "digests_differ",
    /// Listed files that do not exist and that --ignore-missing skips.
    FilesMissing = "files_missing",
    /// Entries compared with another tree or a manifest.
    EntriesCompared = "entries_compared",
    /// Entries that differ from the other tree or from the manifest.
    EntriesDiffering = "entries_differing",
    /// Entries copied again because they differed.
    EntriesRepaired = "entries_repaired",
    /// Entries whose content differs or that are missing, and that were not repaired.
    EntriesCorrupt = "entries_corrupt",
    /// Files without a digest in the manifest; only their metadata was compared.
    FilesWithoutDigest = "files_without_digest",
    /// Entries accepted without a comparison, because they did not change after --since.
    EntriesUntouched = "entries_untouched",
    /// Entries skipped because they are up to date or the policy keeps them.
    EntriesSkipped = "entries_skipped",
    /// Bytes of content of skipped regular files.
    BytesSkipped = "bytes_skipped",
    /// Entries excluded by a rule.
    EntriesExcluded = "entries_excluded",
    /// Entries replaced because the destination had another version or type.
    EntriesReplaced = "entries_replaced",
    /// Entries whose owner, mode or other attributes were updated, but not their content.
    MetadataUpdated = "metadata_updated",
    /// Existing directories whose attributes or times were updated.
    DirectoriesUpdated = "directories_updated",
    /// Entries renamed at the destination to follow a rename at the source.
    EntriesRenamed = "entries_renamed",
    /// Entries that only the destination has.
    EntriesExtra = "entries_extra",
    /// Entries that only the destination had and that were deleted or moved to the trash.
    EntriesDeleted = "entries_deleted",
    /// Bytes of content of the deleted files.
    BytesDeleted = "bytes_deleted",
    /// Entries that only the destination has and that the guard did not delete.
    DeletesWithheld = "deletes_withheld",
    /// Files that looked equal and were compared byte by byte.
    FilesCompared = "files_compared",
    /// Entries skipped as equal although their owner or mode differs; --overwrite=always copies them again.
    EntriesUnlike = "entries_unlike",
    /// Entries that failed.
    Errors = "errors",
    /// Failed entries that vanished or changed at the source.
    SourceErrors = "source_errors",
    /// Entries or parts of the tree that were not attempted.
    NotAttempted = "not_attempted",
    /// Attempts that were repeated.
    Retries = "retries",
    /// Attributes lost and not accepted by `--allow-loss`.
    Losses = "losses",
    /// Attributes lost and accepted by `--allow-loss`.
    LossesAllowed = "losses_allowed",
    /// Owners or groups not set, because that needs privilege.
    OwnersNotKept = "owners_not_kept",
    /// Set-id bits dropped because the owner was not kept.
    SetIdsDropped = "set_ids_dropped",
    /// Attributes not copied, because that needs privilege.
    PrivilegedAttributes = "privileged_attributes",
    /// Attributes of the file system itself, which dmover never copies.
    SystemAttributes = "system_attributes",
    /// Source file systems that update access times although dmover asks them not to.
    SourceAtimesTouched = "source_atimes_touched",
    /// Leftovers of an interrupted run that were removed.
    LeftoversRemoved = "leftovers_removed",
    /// Temporaries found at the source and skipped.
    TemporariesSkipped = "temporaries_skipped",
    /// Chunks of large files copied.
    ChunksCopied = "chunks_copied",
    /// Tasks that movers have finished.
    TasksDone = "tasks_done",
    /// Tasks whose lease expired.
    LeasesExpired = "leases_expired",
    /// Files that were open for writing while they were read. The next run of the same command compares them, except after --no-state.
    FilesOpenForWriting = "files_open_for_writing",
    /// Users and groups without an account at DEST, which keep their numbers or become what *:TO says (-v names them).
    OwnersWithoutAccount = "owners_without_account",
}

/// The counters, histograms and progress of one job.
#[derive(Debug)]
pub struct Counters([AtomicU64; Counter::ALL.len()], Histograms, Outlook);

impl Default for Counters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)), Histograms::default(), Outlook::default())
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

    /// The present value of a counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Ordering::Relaxed)
    }

    /// Adds one value to a histogram: microseconds for durations, bytes for sizes.
    pub fn note(&self, quantity: Quantity, value: u64) {
        self.1.note(quantity, value);
    }

    /// Adds to a histogram cell values that another process has counted, see [`Snapshot::cells`].
    pub fn add_to_cell(&self, cell: usize, amount: u64) {
        self.1.add(cell, amount);
    }

    /// The progress of the job.
    pub fn outlook(&self) -> &Outlook {
        &self.2
    }

    /// All present values.
    pub fn snapshot(&self) -> Snapshot {
        let counts = std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed));
        Snapshot(counts, self.1.snapshot())
    }
}

/// Counters of actions on entries, as opposed to counters of entries that were only seen.
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
    Counter::MetadataUpdated,
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
pub struct Snapshot([u64; Counter::ALL.len()], HistogramsSnapshot);

impl Snapshot {
    /// The value of one counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// New counters that start with the actions of this snapshot, for a second scan of the same entries.
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

    /// Indexes and values of all histogram cells that are not zero.
    pub fn cells(&self) -> impl Iterator<Item = (usize, u64)> {
        self.1.cells()
    }

    /// The histogram of one measured quantity.
    pub(crate) fn histogram(&self, quantity: Quantity) -> Histogram {
        self.1.histogram(quantity)
    }

    /// Bytes of content copied or read, and entries completed, for any verb.
    pub fn moved(&self) -> (u64, u64) {
        Counter::moved(|counter| self.get(counter))
    }

    /// Names and values, in the order of the documentation.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> {
        Counter::ALL.iter().map(|c| (*c, self.get(*c)))
    }
}

impl Counter {
    /// Bytes of content copied or read, and entries completed, for any verb.
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
