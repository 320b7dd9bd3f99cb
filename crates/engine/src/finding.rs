//! The result of comparing an entry.
use dmover_model::{
    Action, ByteRange, Difference, DifferenceDetail, DifferenceKind, DifferenceSet, EntryKind,
    Event, Item, Metadata, PathBytes, Version,
};
use dmover_observe::Counter;
use dmover_plan::verify::{Differing, Sight, describe};

use crate::context::Engine;

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

impl Engine {
    /// Reports and counts the result for an entry.
    pub(crate) fn tell_finding(
        &self,
        path: PathBytes,
        kind: EntryKind,
        finding: Finding,
        repaired: Option<bool>,
    ) {
        self.reports.count(Counter::EntriesCompared);
        self.reports.progress();
        let Finding { kinds, unsettable, ranges, detail, .. } = finding;
        if repaired.is_none() {
            self.reports.note_unsettable(unsettable, &path);
        }
        if kinds.is_empty() {
            return self.tell_equal(path, kind);
        }
        self.reports.count(Counter::EntriesDiffering);
        if repaired == Some(true) {
            self.reports.count(Counter::EntriesRepaired);
        } else if kinds.is_of_content() {
            self.reports.count(Counter::EntriesCorrupt);
        }
        let difference = Difference { path, kind, kinds, ranges, detail, repaired };
        if let Some(failures) = &self.reports.failures {
            // Of a copy that reads back: only some of them are printed.
            failures.note(&difference.as_error());
        }
        self.reports.show(Event::Difference(difference));
    }

    /// Names an entry without a difference to a monitor that wants entries.
    fn tell_equal(&self, path: PathBytes, kind: EntryKind) {
        if self.reports.wants_items() {
            self.reports.show(Event::Item(Item {
                path: path.clone(),
                target: path,
                action: Action::Skipped,
                kind,
                bytes: 0,
                elapsed_us: 0,
                itemized: String::new(),
            }));
        }
    }

    /// Whether an entry did not change since the time in the policy.
    pub(crate) fn is_untouched(&self, found: &Metadata) -> bool {
        let since = self.spec.verify_policy().since;
        let untouched = since.is_some_and(|since| found.ctime < since);
        if untouched {
            self.reports.count(Counter::EntriesUntouched);
        }
        untouched
    }

    /// Reports that an entry of another type exists where a directory is expected.
    pub(crate) fn tell_no_directory(&self, path: PathBytes) {
        let finding = Finding::of(DifferenceKind::Type);
        let repaired = self.spec.repairs().then_some(false);
        self.tell_finding(path, EntryKind::Directory, finding, repaired);
    }
}
