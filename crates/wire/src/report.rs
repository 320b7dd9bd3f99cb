//! What a mover reports beside outcomes: counts, and what concerns single entries.
use dmover_model::{
    ByteRange, Carried, Difference, EntryError, ExtraNames, FileDigest, HashType, Identity, Item,
    LossKind, Note, PathBytes, Record, StopReason, Times, TreePath, Verdict, WithheldReason,
};
use dmover_observe::{Counter, Slow};
use serde::{Deserialize, Serialize};

/// Counters that grow only when an entry succeeds.
const PROGRESS: &[Counter] = &[
    Counter::FilesCopied,
    Counter::BytesCopied,
    Counter::SymlinksCopied,
    Counter::SpecialsCopied,
    Counter::HardLinksCreated,
    Counter::MetadataUpdated,
    Counter::FilesUnchanged,
    Counter::EntriesRenamed,
    Counter::EntriesDeleted,
    Counter::FilesHashed,
    Counter::EntriesCompared,
    // Parts of large files.
    Counter::BytesShared,
    Counter::BytesKept,
    Counter::BytesHashed,
    Counter::BytesCompared,
];

/// The reports of one mover since its last message.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
pub struct MoverReport {
    /// Amounts, by the index of the counter in [`Counter::ALL`].
    pub counts: Vec<(u16, u64)>,
    /// Amounts, by the cell of a [`Quantity`].
    pub cells: Vec<(u16, u64)>,
    /// Reports about entries, in order.
    pub said: Vec<ReportItem>,
    /// The slowest entries.
    pub slow: Vec<Slow>,
    /// Entries that both sides have and that the destination had before the pass.
    pub had: u64,
}

/// One report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ReportItem {
    /// An entry was processed.
    Item(Item),
    /// A file was hashed.
    Digest(FileDigest),
    /// A file was checked against a list.
    Checked {
        /// The file.
        path: PathBytes,
        /// Its index in the list.
        number: u64,
        /// The result.
        verdict: Found,
        /// The hash function that matched, if the list does not name it.
        guessed: Option<HashType>,
    },
    /// An entry differs from what it should be.
    Difference(Difference),
    /// An entry failed.
    Error(EntryError),
    /// An entry was copied without an attribute.
    Loss {
        /// Its path at the destination.
        path: PathBytes,
        /// The kind of attribute.
        kind: LossKind,
        /// Details in words.
        detail: String,
    },
    /// A remark about an entry.
    Note {
        /// The entry.
        path: PathBytes,
        /// The remark.
        note: Note,
    },
    /// An entry for the manifest.
    Record(Box<Record>),
    /// An entry is missing in the manifest.
    LeftOut,
    /// A doubtful file.
    Doubt(TreePath),
    /// A file that is not doubtful any more.
    Settled(TreePath),
    /// A file with another name was open for writing.
    Writer(Identity),
    /// Further names of a file that was open for writing.
    SharedDoubts(Identity, Vec<TreePath>),
    /// These were renamed, with any doubts about them.
    Moved(Vec<(TreePath, TreePath)>),
    /// A directory that should be deleted but contains entries that stay.
    Held(PathBytes),
    /// Why the next pass must read the source again.
    LookAgain(String),
    /// These names are not deleted, for this reason.
    Withheld(Vec<ExtraNames>, WithheldReason),
    /// Times to set on a directory in the end; `true`: unless it already has some.
    KeptTimes(TreePath, Times, bool),
    /// The result of a large file with several names.
    Sealed(Box<Carried>),
    /// A destination directory that must not be entered as a source.
    Forbidden(Identity),
    /// A path that counts as part of the manifest.
    Known(TreePath),
    /// The job must stop.
    Stop(StopReason),
}

/// A [`Verdict`], whose own form is for JSON, in the form for messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Found {
    /// The content matches the list.
    Same,
    /// These ranges differ, as far as they are known.
    Differs(Vec<ByteRange>),
    /// The file does not exist.
    Missing,
    /// It could not be read.
    Unreadable,
}

impl From<Verdict> for Found {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Same => Self::Same,
            Verdict::Differs { ranges } => Self::Differs(ranges),
            Verdict::Missing => Self::Missing,
            Verdict::Unreadable => Self::Unreadable,
        }
    }
}

impl From<Found> for Verdict {
    fn from(found: Found) -> Self {
        match found {
            Found::Same => Self::Same,
            Found::Differs(ranges) => Self::Differs { ranges },
            Found::Missing => Self::Missing,
            Found::Unreadable => Self::Unreadable,
        }
    }
}

impl MoverReport {
    /// Takes all errors out.
    #[must_use]
    pub fn take_errors(&mut self) -> Self {
        let is_error = |said: &ReportItem| matches!(said, ReportItem::Error(_));
        if !self.said.iter().any(is_error) {
            return Self::default();
        }
        let (errors, others) = std::mem::take(&mut self.said).into_iter().partition(is_error);
        self.said = others;
        Self { said: errors, ..Self::default() }
    }

    /// Takes out the reports that others need before the task ends. Reports about entries stay.
    #[must_use]
    pub fn take_urgent(&mut self) -> Self {
        let waits = |said: &ReportItem| {
            matches!(
                said,
                ReportItem::Difference(_)
                    | ReportItem::Error(_)
                    | ReportItem::Loss { .. }
                    | ReportItem::Note { .. }
            )
        };
        let (waiting, said) = std::mem::take(&mut self.said).into_iter().partition(waits);
        self.said = waiting;
        Self { said, ..Self::default() }
    }

    /// The repairs: a repeated task finds them equal.
    #[must_use]
    pub fn into_repairs(mut self) -> Self {
        let repaired = |said: &ReportItem| matches!(said, ReportItem::Difference(found) if found.repaired == Some(true));
        self.said.retain(repaired);
        let number = self.said.len() as u64;
        let counted = [Counter::EntriesDiffering, Counter::EntriesRepaired];
        let places = (0..).zip(Counter::ALL).filter(|(_, counter)| counted.contains(counter));
        let counts =
            if number == 0 { Vec::new() } else { places.map(|(at, _)| (at, number)).collect() };
        Self { counts, said: self.said, ..Self::default() }
    }

    /// Whether it has errors that may be caused by the host and not by the entries.
    pub fn has_hosts_errors(&self) -> bool {
        let is_hosts = |said: &ReportItem| matches!(said, ReportItem::Error(error) if error.may_be_the_hosts());
        self.said.iter().any(is_hosts)
    }

    /// Whether it has a failed flush of the destination.
    pub fn has_failed_flush(&self) -> bool {
        let is_flush =
            |said: &ReportItem| matches!(said, ReportItem::Error(error) if error.is_failed_flush());
        self.said.iter().any(is_flush)
    }

    /// Whether its errors need not count if another host repeats the task without them. The kernel reports a failed flush
    /// only once, so that a repetition would not meet it.
    pub fn may_be_withdrawn(&self) -> bool {
        self.has_hosts_errors() && !self.has_failed_flush()
    }

    /// Appends the reports of another message.
    pub fn append(&mut self, other: Self) {
        let Self { counts, cells, said, slow, had } = other;
        self.counts.extend(counts);
        self.cells.extend(cells);
        self.said.extend(said);
        self.slow.extend(slow);
        self.had += had;
    }

    /// Whether an entry was copied, updated, renamed, deleted or read in the time that this covers. Counts of earlier messages say nothing
    /// about it: a mover may fail at everything that it tries now.
    pub fn shows_progress(&self) -> bool {
        self.counts.iter().any(|(index, amount)| {
            let counter = Counter::ALL.get(usize::from(*index));
            *amount > 0 && counter.is_some_and(|counter| PROGRESS.contains(counter))
        })
    }

    /// Whether there are no reports.
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }

    /// The number of reports.
    pub fn len(&self) -> usize {
        self.said.len() + self.slow.len()
    }

    /// Splits the reports into messages of at most `most` reports each.
    pub fn split(self, most: usize) -> Vec<Self> {
        let Self { counts, cells, mut said, slow, had } = self;
        let mut pieces = Vec::new();
        while said.len() > most {
            let rest = said.split_off(most);
            pieces.push(Self { said, ..Self::default() });
            said = rest;
        }
        pieces.push(Self { counts, cells, said, slow, had });
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_model::{
        Action, DifferenceDetail, DifferenceKind, DifferenceSet, EntryKind, ErrorClass, Operation,
        Side,
    };

    #[test]
    fn errors_of_a_host_are_withdrawn_unless_a_flush_has_failed() {
        let failed = |side, operation| {
            let class = ErrorClass::Io;
            let path = PathBytes(b"a".to_vec());
            ReportItem::Error(EntryError::plain(side, operation, class, path, "w"))
        };
        let report =
            |said: &[ReportItem]| MoverReport { said: said.to_vec(), ..Default::default() };
        let write = failed(Side::Destination, Operation::Write);
        let flush = failed(Side::Destination, Operation::Sync);
        assert!(report(std::slice::from_ref(&write)).may_be_withdrawn());
        assert!(!report(std::slice::from_ref(&flush)).may_be_withdrawn());
        assert!(!report(&[write.clone(), flush.clone()]).may_be_withdrawn());
        assert!(!report(&[flush, write]).may_be_withdrawn());
        assert!(!report(&[]).may_be_withdrawn());
    }

    #[test]
    fn whatever_is_told_comes_back_from_a_message() {
        let path = PathBytes(b"a/\xff".to_vec());
        let class = ErrorClass::Other;
        let error = EntryError::plain(Side::Source, Operation::Read, class, path.clone(), "w");
        let range = ByteRange { start: 1, end: 2 };
        let verdicts =
            [Found::Same, Found::Differs(vec![range]), Found::Missing, Found::Unreadable];
        let (number, guessed) = (3, Some(HashType::Sha256));
        let checked =
            |verdict| ReportItem::Checked { path: path.clone(), number, verdict, guessed };
        let checked = verdicts.map(checked);
        let said = [
            ReportItem::Error(error),
            ReportItem::Item(Item {
                path: path.clone(),
                target: path.clone(),
                action: Action::Created,
                kind: EntryKind::File,
                bytes: 1,
                elapsed_us: 2,
                itemized: ">f".into(),
            }),
            ReportItem::Difference(Difference {
                path: path.clone(),
                kind: EntryKind::File,
                kinds: DifferenceSet::from_iter([DifferenceKind::Missing]),
                ranges: vec![range],
                detail: vec![DifferenceDetail::Words("size".into())],
                repaired: None,
            }),
            ReportItem::Loss { path: path.clone(), kind: LossKind::ALL[0], detail: "d".into() },
            ReportItem::Note { path: path.clone(), note: Note::LeftoverRemoved },
            ReportItem::LookAgain("why".into()),
            ReportItem::Withheld(Vec::new(), WithheldReason::NotMounted(path.clone())),
            ReportItem::Stop(StopReason::Cancelled),
        ];
        let said: Vec<ReportItem> = said.into_iter().chain(checked).collect();
        let told = MoverReport { counts: vec![(3, 4)], said, ..MoverReport::default() };
        let bytes = postcard::to_stdvec(&told).unwrap();
        assert_eq!(postcard::from_bytes::<MoverReport>(&bytes).unwrap(), told);
        let all: usize = told.clone().split(4).iter().map(MoverReport::len).sum();
        assert_eq!(all, told.len());
    }

    #[test]
    fn only_what_succeeded_in_a_message_shows_progress() {
        let told = |counter: Counter, amount| {
            let index = Counter::ALL.iter().position(|other| *other == counter).unwrap() as u16;
            MoverReport { counts: vec![(index, amount)], ..MoverReport::default() }
        };
        assert!(told(Counter::BytesCopied, 1).shows_progress());
        assert!(!told(Counter::BytesCopied, 0).shows_progress());
        assert!(!told(Counter::EntriesFound, 9).shows_progress());
        assert!(!MoverReport::default().shows_progress());
    }
}
