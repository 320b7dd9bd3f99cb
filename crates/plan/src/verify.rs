//! Compares the metadata of an entry with what it should be.
use dmover_model::{
    Attribute, AttributeSet, ByteRange, DifferenceDetail as Detail, DifferenceKind as Kind,
    DifferenceSet, Digest, EntryKind, Metadata, Shape, Timestamp, VerifyLevel,
};
use std::fmt::Write;

use crate::equality::same_time;
use crate::settable::Unprivileged;

/// One side of a comparison.
#[derive(Debug, Clone, Copy)]
pub struct Sight<'a> {
    /// Type of the entry.
    pub kind: EntryKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner and group; those of the source after mapping to the destination.
    pub owner: (u32, u32),
    /// Size of a file.
    pub size: u64,
    /// Last write.
    pub mtime: Timestamp,
    /// Device number.
    pub device: (u32, u32),
    /// The target of a symbolic link.
    pub symlink: Option<&'a [u8]>,
}

impl<'a> Sight<'a> {
    /// The fields of an entry's metadata.
    pub fn of(metadata: &Metadata, symlink: Option<&'a [u8]>) -> Self {
        Self {
            kind: metadata.kind,
            mode: metadata.mode,
            owner: (metadata.uid, metadata.gid),
            size: metadata.size,
            mtime: metadata.mtime,
            device: metadata.device,
            symlink,
        }
    }
}

/// Which differences count.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    /// The level of the comparison.
    pub level: VerifyLevel,
    /// Attributes that should be equal.
    pub attributes: AttributeSet,
    /// Attributes that the user named: they count even where this process cannot set them.
    pub demanded: AttributeSet,
    /// The time resolution of the destination, in nanoseconds.
    pub granularity_ns: u32,
    /// The process that compares, if it runs without privilege.
    pub unprivileged: Option<&'a Unprivileged>,
}

/// How an entry differs from what it should be.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Differing {
    /// Differences that count.
    pub kinds: DifferenceSet,
    /// Differences only in attributes that this process cannot set, so that its own copy would look the same.
    pub unsettable: DifferenceSet,
}

impl Differing {
    /// The union of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            kinds: self.kinds.and(other.kinds),
            unsettable: self.unsettable.and(other.unsettable),
        }
    }
}

/// How `found` differs from `expected`, as far as `scope` demands.
pub fn differences(expected: Sight<'_>, found: Sight<'_>, scope: Scope<'_>) -> Differing {
    let kinds = all_differences(expected, found, scope);
    let Some(process) = scope.unprivileged else {
        return Differing { kinds, ..Differing::default() };
    };
    let mut can_get = expected;
    if !scope.demanded.has(Attribute::Owner) {
        can_get.owner = process.owner(expected.owner, found.owner);
    }
    if !scope.demanded.has(Attribute::Mode) {
        can_get.mode = process.mode((expected.owner, expected.mode), (found.owner, found.mode));
    }
    let counted = all_differences(can_get, found, scope);
    let unsettable = kinds.iter().filter(|kind| !counted.has(*kind)).collect();
    Differing { kinds: counted, unsettable }
}

fn all_differences(expected: Sight<'_>, found: Sight<'_>, scope: Scope<'_>) -> DifferenceSet {
    let mut kinds = DifferenceSet::NONE;
    if expected.kind != found.kind {
        kinds.insert(Kind::Type);
        return kinds;
    }
    if scope.level >= VerifyLevel::Size {
        let (kind, differs) = match expected.kind {
            EntryKind::File => (Kind::Size, expected.size != found.size),
            EntryKind::Symlink => (Kind::Target, expected.symlink != found.symlink),
            EntryKind::CharDevice | EntryKind::BlockDevice => {
                (Kind::Device, expected.device != found.device)
            }
            EntryKind::Directory | EntryKind::Fifo | EntryKind::Socket => (Kind::Type, false),
        };
        if differs {
            kinds.insert(kind);
        }
    }
    if scope.level < VerifyLevel::Mtime {
        return kinds;
    }
    let step = scope.granularity_ns;
    let has_mode = expected.kind != EntryKind::Symlink;
    let checks = [
        (Attribute::Times, Kind::Mtime, !same_time(expected.mtime, found.mtime, step)),
        (Attribute::Mode, Kind::Mode, has_mode && expected.mode != found.mode),
        (Attribute::Owner, Kind::Owner, expected.owner != found.owner),
    ];
    for (attribute, kind, differs) in checks {
        if differs && scope.attributes.has(attribute) {
            kinds.insert(kind);
        }
    }
    kinds
}

/// Describes the difference: what was found, and what was expected.
pub fn describe(
    kinds: DifferenceSet,
    expected: Sight<'_>,
    found: Sight<'_>,
    ranges: &[ByteRange],
) -> Vec<Detail> {
    let detail = |kind: Kind| {
        if kind == Kind::Mtime {
            return Detail::Mtime { is: found.mtime, should: expected.mtime };
        }
        let mut text = kind.word().to_owned();
        if kind == Kind::Content {
            push_ranges(&mut text, ranges);
        } else if let Some((is, should)) = values(kind, expected, found) {
            // Writing into a string does not fail.
            let _ = write!(text, " {is} instead of {should}");
        }
        Detail::Words(text)
    };
    kinds.iter().map(detail).collect()
}

fn values(kind: Kind, expected: Sight<'_>, found: Sight<'_>) -> Option<(String, String)> {
    let text = |sight: Sight<'_>| match kind {
        Kind::Type => Some(sight.kind.word().to_owned()),
        Kind::Size => Some(sight.size.to_string()),
        Kind::Mode => Some(format!("{:04o}", sight.mode)),
        Kind::Owner => Some(format!("{}:{}", sight.owner.0, sight.owner.1)),
        Kind::Device => Some(format!("{}:{}", sight.device.0, sight.device.1)),
        Kind::Target => sight.symlink.map(|link| format!("'{}'", link.escape_ascii())),
        _ => None,
    };
    Some((text(found)?, text(expected)?))
}

/// The most ranges that a message names; the event has all of them.
const RANGES_SHOWN: usize = 4;

fn push_ranges(text: &mut String, ranges: &[ByteRange]) {
    for (number, ByteRange { start, end }) in ranges.iter().take(RANGES_SHOWN).enumerate() {
        text.push_str(if number == 0 { " in bytes " } else { ", " });
        let _ = write!(text, "{start}-{}", end.saturating_sub(1));
    }
    if ranges.len() > RANGES_SHOWN {
        let _ = write!(text, " and {} more ranges", ranges.len() - RANGES_SHOWN);
    }
}

/// Sorts ranges and joins those that touch or overlap.
pub fn merged(mut ranges: Vec<ByteRange>) -> Vec<ByteRange> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<ByteRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Ranges of the pieces that differ, with neighbours joined.
pub fn differing(
    shape: &Shape,
    start: u64,
    made: &[Digest],
    expected: &[Digest],
) -> Vec<ByteRange> {
    let mut ranges: Vec<ByteRange> = Vec::new();
    for number in 0..made.len().max(expected.len()) {
        if made.get(number) == expected.get(number) {
            continue;
        }
        let from = start.saturating_add((number as u64).saturating_mul(shape.piece()));
        let whole = from.saturating_add(shape.piece());
        // A piece that should follow the end of the content is named in full.
        let end = if number < made.len() { whole.min(start + shape.length()) } else { whole };
        match ranges.last_mut() {
            Some(last) if last.end == from => last.end = end,
            _ => ranges.push(ByteRange { start: from, end }),
        }
    }
    ranges
}

/// Whether a sample of this many millionths includes the entry at `path`.
pub fn is_sampled(millionths: Option<u32>, seed: u64, path: &[u8]) -> bool {
    // FNV-1a with a last mix (splitmix64): a choice that spreads, nothing that has to be secret.
    let Some(millionths) = millionths else { return true };
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ seed;
    for byte in path {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash ^ (hash >> 31)) % 1_000_000 < u64::from(millionths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_model::HashType;

    fn sight(kind: EntryKind) -> Sight<'static> {
        let mtime = Timestamp { seconds: 100, nanoseconds: 5 };
        let symlink = (kind == EntryKind::Symlink).then_some(&b"a"[..]);
        Sight { kind, mode: 0o644, owner: (1, 2), size: 10, mtime, device: (0, 0), symlink }
    }

    fn scope(level: VerifyLevel) -> Scope<'static> {
        let (attributes, demanded) = (AttributeSet::all(), AttributeSet::NONE);
        Scope { level, attributes, demanded, granularity_ns: 1, unprivileged: None }
    }

    #[test]
    fn every_level_includes_those_before_it() {
        let expected = sight(EntryKind::File);
        let mtime = Timestamp { seconds: 101, nanoseconds: 5 };
        let found = Sight { mode: 0o600, owner: (3, 2), size: 11, mtime, ..expected };
        let words = |level| differences(expected, found, scope(level)).kinds.words();
        assert_eq!(words(VerifyLevel::Exists), "");
        assert_eq!(words(VerifyLevel::Size), "size");
        assert_eq!(words(VerifyLevel::Mtime), "size,mtime,mode,owner");
        assert_eq!(words(VerifyLevel::Bytes), "size,mtime,mode,owner");
        let link = sight(EntryKind::Symlink);
        let other = Sight { symlink: Some(b"b"), mode: 0o777, ..link };
        assert_eq!(differences(link, other, scope(VerifyLevel::Bytes)).kinds.words(), "target");
        // Of another type nothing else can be said.
        assert_eq!(differences(expected, other, scope(VerifyLevel::Bytes)).kinds.words(), "type");
    }

    #[test]
    fn what_is_not_kept_is_not_compared() {
        let expected = sight(EntryKind::File);
        let found = Sight { mode: 0o600, ..expected };
        let mut scope = scope(VerifyLevel::Bytes);
        scope.attributes.remove(Attribute::Mode);
        assert!(differences(expected, found, scope).kinds.is_empty());
        // A coarse file system cuts times.
        let cut = Sight { mtime: Timestamp { seconds: 100, nanoseconds: 0 }, ..expected };
        assert_eq!(differences(expected, cut, scope).kinds.words(), "mtime");
        scope.granularity_ns = 1_000_000_000;
        assert!(differences(expected, cut, scope).kinds.is_empty());
    }

    #[test]
    fn what_may_not_be_set_is_told_apart_unless_it_is_asked_for() {
        let process = Unprivileged { uid: 10, groups: vec![20, 21] };
        let mut scope = Scope { unprivileged: Some(&process), ..scope(VerifyLevel::Mtime) };
        let expected = Sight { mode: 0o4755, owner: (0, 0), ..sight(EntryKind::File) };
        let found = Sight { mode: 0o755, owner: (10, 20), ..expected };
        let words = |differing: Differing| (differing.kinds.words(), differing.unsettable.words());
        let of = |kinds: &str, unsettable: &str| (kinds.to_owned(), unsettable.to_owned());
        assert_eq!(words(differences(expected, found, scope)), of("", "mode,owner"));
        let open = Sight { mode: 0o777, ..found };
        assert_eq!(words(differences(expected, open, scope)), of("mode", "owner"));
        let group = Sight { owner: (0, 21), ..expected };
        assert_eq!(words(differences(group, found, scope)), of("owner", "mode"));
        scope.demanded.insert(Attribute::Owner);
        assert_eq!(words(differences(expected, found, scope)), of("owner", "mode"));
        scope.demanded.insert(Attribute::Mode);
        assert_eq!(words(differences(expected, found, scope)), of("mode,owner", ""));
    }

    #[test]
    fn ranges_are_merged_and_described() {
        let range = |start, end| ByteRange { start, end };
        let ranges = merged(vec![range(10, 20), range(0, 5), range(20, 30), range(4, 6)]);
        assert_eq!(ranges, [range(0, 6), range(10, 30)]);
        let kinds = DifferenceSet::from_iter([Kind::Size, Kind::Content]);
        let expected = sight(EntryKind::File);
        let found = Sight { size: 7, ..expected };
        let words = ["size 7 instead of 10", "content in bytes 0-5, 10-29"];
        assert_eq!(
            describe(kinds, expected, found, &ranges),
            words.map(|words| Detail::Words(words.into()))
        );
    }

    #[test]
    fn a_sample_takes_its_share() {
        let taken = (0..100_000)
            .filter(|number: &u32| is_sampled(Some(50_000), 7, &number.to_le_bytes()))
            .count();
        assert!((4_500..5_500).contains(&taken), "{taken}");
        assert!(is_sampled(None, 7, b"x") && !is_sampled(Some(0), 7, b"x"));
        assert!(is_sampled(Some(1_000_000), 7, b"x"));
    }

    #[test]
    fn differing_pieces_that_touch_are_one_range() {
        let digest = |value: u8| Digest::new(&[value; 32]).expect("a digest");
        let shape = Shape::plain(HashType::Blake3, 10_000, 1024);
        let mut made = vec![digest(0); 10];
        let expected = made.clone();
        for piece in [1, 2, 9] {
            made[piece] = digest(1);
        }
        let range = |start, end| ByteRange { start, end };
        assert_eq!(
            differing(&shape, 0, &made, &expected),
            [range(1024, 3072), range(9216, 10_000)]
        );
        // From another start, and with more pieces than there should be, or fewer.
        assert_eq!(differing(&shape, 50, &made, &expected)[0], range(1074, 3122));
        assert_eq!(differing(&shape, 0, &expected, &expected[..8]), [range(8192, 10_000)]);
        let longer = [expected.clone(), vec![digest(2)]].concat();
        assert_eq!(differing(&shape, 0, &expected, &longer), [range(10_240, 11_264)]);
    }
}
