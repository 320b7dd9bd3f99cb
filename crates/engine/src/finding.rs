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

/// Reports and counts the result for an entry.
pub(crate) fn tell_finding(
    engine: &Engine,
    path: PathBytes,
    kind: EntryKind,
    finding: Finding,
    repaired: Option<bool>,
) {
    engine.reports.count(Counter::EntriesCompared);
    engine.reports.progress();
    let Finding { kinds, unsettable, ranges, detail, .. } = finding;
    if repaired.is_none() {
        engine.reports.note_unsettable(unsettable, &path);
    }
    if kinds.is_empty() {
        return tell_equal(engine, path, kind);
    }
    engine.reports.count(Counter::EntriesDiffering);
    if repaired == Some(true) {
        engine.reports.count(Counter::EntriesRepaired);
    } else if kinds.is_of_content() {
        engine.reports.count(Counter::EntriesCorrupt);
    }
    let difference = Difference { path, kind, kinds, ranges, detail, repaired };
    if let Some(failures) = &engine.reports.failures {
        // Of a copy that reads back: only some of them are printed.
        failures.note(&difference.as_error());
    }
    engine.reports.show(Event::Difference(difference));
}

/// Names an entry without a difference to a monitor that wants entries.
fn tell_equal(engine: &Engine, path: PathBytes, kind: EntryKind) {
    if engine.reports.wants_items() {
        engine.reports.show(Event::Item(Item {
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
pub(crate) fn is_untouched(engine: &Engine, found: &Metadata) -> bool {
    let since = engine.spec.verify_policy().since;
    let untouched = since.is_some_and(|since| found.ctime < since);
    if untouched {
        engine.reports.count(Counter::EntriesUntouched);
    }
    untouched
}

/// Reports that an entry of another type exists where a directory is expected.
pub(crate) fn tell_no_directory(engine: &Engine, path: PathBytes) {
    let finding = Finding::of(DifferenceKind::Type);
    let repaired = engine.spec.repairs().then_some(false);
    tell_finding(engine, path, EntryKind::Directory, finding, repaired);
}
