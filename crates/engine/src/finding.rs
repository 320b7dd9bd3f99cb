//! The result of comparing an entry.
use dmover_model::{
    ByteRange, DifferenceDetail, DifferenceKind, DifferenceSet, EntryError, EntryKind, ErrorClass,
    Operation, PathBytes, Side, Version,
};
use dmover_plan::verify::{Differing, Sight, describe};

use dmover_local::source::Content;

/// The result of comparing an entry.
#[derive(Debug, Default, Clone)]
pub(crate) struct Finding {
    pub kinds: DifferenceSet,
    /// Differences that do not count, because this process cannot set the attributes.
    pub unsettable: DifferenceSet,
    /// Ranges of the content that differ.
    pub ranges: Vec<ByteRange>,
    pub detail: Vec<DifferenceDetail>,
    /// All content that both sides have was compared.
    pub read: bool,
    /// The compared versions: of the source if there is one, and of the destination.
    pub source: Option<Version>,
    pub destination: Option<Version>,
}

impl Finding {
    pub fn of(kind: DifferenceKind) -> Self {
        let kinds = DifferenceSet::from_iter([kind]);
        let detail = vec![DifferenceDetail::Words(kind.word().into())];
        Self { kinds, detail, ..Self::default() }
    }

    /// `ranges`: differences in content that was read.
    pub fn new(
        Differing { mut kinds, unsettable }: Differing,
        ranges: Option<Vec<ByteRange>>,
        (expected, found): (Sight<'_>, Sight<'_>),
    ) -> Self {
        let read = ranges.is_some();
        let ranges = ranges.unwrap_or_default();
        if !ranges.is_empty() {
            kinds.insert(DifferenceKind::Content);
        }
        let detail = describe(kinds, expected, found, &ranges);
        Self { kinds, unsettable, ranges, detail, read, ..Self::default() }
    }

    pub fn between(self, source: Option<Version>, destination: Version) -> Self {
        Self { source, destination: Some(destination), ..self }
    }

    /// Whether only a complete copy is certainly right: nothing can be kept, or it is unknown which bytes differ.
    pub fn needs_all(&self) -> bool {
        let has = |kind| self.kinds.has(kind);
        let suspicious = has(DifferenceKind::Size) || has(DifferenceKind::Mtime);
        has(DifferenceKind::Missing) || has(DifferenceKind::Type) || (suspicious && !self.read)
    }

    pub fn tell_left_over(&mut self, left: DifferenceSet) {
        if !left.is_empty() {
            self.detail.push(DifferenceDetail::Words(format!("still different: {}", left.words())));
        }
    }
}

/// The differences of an entry that could not be repaired.
pub(crate) struct Unrepaired {
    pub path: PathBytes,
    pub kind: EntryKind,
    pub finding: Finding,
}

/// Both sides of a file, open.
pub(crate) struct Pair {
    pub source: Content,
    pub destination: Content,
}

impl Pair {
    /// The range that both sides have.
    pub fn common(&self) -> ByteRange {
        let end = self.source.metadata.size.min(self.destination.metadata.size);
        ByteRange { start: 0, end }
    }
}

/// The error for a file that has changed a moment ago.
pub(crate) fn changed(side: Side, path: PathBytes) -> EntryError {
    let words = "the file changed while it was compared";
    EntryError::plain(side, Operation::Check, ErrorClass::Changed, path, words)
}
