//! What earlier passes of a job have seen, and which changes the times of an entry allow since then.
use dmover_model::{EntryKind, Metadata, Timestamp};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How far the clocks of two servers may differ, unless more is known.
pub const SKEW: Duration = Duration::from_hours(1);
/// The coarsest time resolution of file systems, that of FAT, plus one second.
pub const COARSE: Duration = Duration::from_secs(3);
/// More than what is subtracted from the end of a pass for the kernel's clock.
const TICKS: Duration = Duration::from_millis(12);

/// A time that is later by a duration.
#[must_use]
pub fn later(time: Timestamp, by: Duration) -> Timestamp {
    const SECOND: u32 = 1_000_000_000;
    let nanoseconds = time.nanoseconds + by.subsec_nanos();
    let seconds = by.as_secs() + u64::from(nanoseconds / SECOND);
    let seconds = time.seconds.saturating_add_unsigned(seconds);
    Timestamp { seconds, nanoseconds: nanoseconds % SECOND }
}

/// Whose clocks set the times of a source and a destination directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    /// The source's times come from the clock of this host.
    pub source_is_local: bool,
    /// Those of the destination do.
    pub destination_is_local: bool,
    /// How far the source's clock differs from that of this host, as measured in this run, if it is another one; `None`:
    /// not known.
    pub source_skew: Option<Duration>,
}

/// What a time in whole seconds does not tell.
fn cut(of: &Metadata) -> Duration {
    if of.ctime.nanoseconds == 0 { COARSE } else { Duration::ZERO }
}

/// Whether the last write to the source was so shortly before the copy that another write may have left the same times.
/// This needs a file system with coarse times: on others, a recently written file is waited for.
pub fn is_racy(source: &Metadata, destination: &Metadata) -> bool {
    let is_coarse = source.ctime.nanoseconds == 0 && source.kind == EntryKind::File;
    is_coarse && later(source.ctime, COARSE) >= destination.ctime
}

/// When earlier passes saw the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// An earlier pass has seen all changes at the source before this time. `None`: there was no full comparison.
    pub seen_before: Option<Timestamp>,
    /// When that pass ended: later changes at the destination were made by others, or by passes over a part of the
    /// tree.
    pub seen_until: Option<Timestamp>,
    /// Changes at the source after this time may have happened during the present pass.
    pub pass_began: Timestamp,
    /// Entries that earlier passes have written since this time, in seconds since 1970, may not be on storage.
    pub suspect_since: Option<i64>,
    /// How far the clock of a source on another host differed from that of this host when the pass of `seen_before`
    /// measured it.
    pub source_skew: Option<Duration>,
}

impl History {
    /// How far the clocks of both sides may differ, or have differed since the last pass.
    fn skew(&self, clocks: Clocks) -> Duration {
        match (clocks.source_is_local, clocks.destination_is_local) {
            (true, true) => Duration::ZERO,
            (false, true) => self.measured_skew(clocks).unwrap_or_else(|| {
                let known = clocks.source_skew.or(self.source_skew);
                known.unwrap_or_default().max(SKEW)
            }),
            (_, false) => SKEW,
        }
    }

    /// How far the clocks of both sides differed, if this pass and the earlier one have measured it.
    fn measured_skew(&self, clocks: Clocks) -> Option<Duration> {
        let (now, then) = (clocks.source_skew?, self.source_skew?);
        clocks.destination_is_local.then_some(now.max(then))
    }

    /// The latest time of the last change of a source entry, by the clock of the destination. With times in whole
    /// seconds, the change may have happened at the end of the second.
    fn changed_at_the_latest(&self, clocks: Clocks, source: &Metadata) -> Timestamp {
        later(source.ctime, self.skew(clocks) + cut(source))
    }

    /// Whether the source may have changed later than the destination, by the times of both sides alone.
    pub fn is_later(&self, clocks: Clocks, source: &Metadata, destination: &Metadata) -> bool {
        self.changed_at_the_latest(clocks, source) >= destination.ctime
    }

    /// Whether the source may have changed later than its copy was made. What was copied in the present pass was so by the clocks as
    /// they are now.
    pub fn is_later_than_copy(&self, clocks: Clocks, source: &Metadata, copy: &Metadata) -> bool {
        let is_of_this_pass = clocks.destination_is_local && copy.ctime >= self.pass_began;
        match clocks.source_skew.filter(|_| is_of_this_pass && !clocks.source_is_local) {
            Some(skew) => later(source.ctime, skew + cut(source)) >= copy.ctime,
            None => self.is_later(clocks, source, copy),
        }
    }

    /// Whether the source may have changed after the destination was last written: only a change moves either time, and
    /// dmover writes only after the change that it copies. But linking a name to a file, or removing one, moves its
    /// time as well, so changes that the last pass cannot have seen always count. `unseen`: what counts if no pass has
    /// seen the whole tree.
    pub fn is_touched(
        &self,
        clocks: Clocks,
        (source, destination): (&Metadata, &Metadata),
        unseen: bool,
    ) -> bool {
        let changed = self.changed_at_the_latest(clocks, source);
        match self.seen_before {
            None => unseen || changed >= destination.ctime,
            Some(seen) => {
                // What was copied within the difference of the clocks would be compared in each pass, so that only counts
                // which certainly changed after it was copied: it was renamed to here, or the destination is an older one.
                let is_newer = match self.measured_skew(clocks) {
                    Some(skew) => source.ctime > later(destination.ctime, skew),
                    None => changed >= destination.ctime,
                };
                changed >= seen || is_newer
            }
        }
    }

    /// Whether a destination entry was changed after the last full pass ended, so that its attributes may be anything.
    /// On file systems of other hosts, clocks may differ by more than a pass takes, and nothing is known.
    pub fn is_foreign(&self, clocks: Clocks, destination: &Metadata) -> bool {
        let changed = later(destination.ctime, cut(destination));
        clocks.destination_is_local && self.seen_until.is_some_and(|until| changed >= until)
    }

    /// Whether a locked destination entry (chattr(1)) was locked by an earlier pass, like its source then. Locks of
    /// other programs are not removed.
    pub fn is_own_lock(&self, clocks: Clocks, destination: &Metadata) -> bool {
        // A pass locks entries last, perhaps in the tick in which it ends.
        let ended = self.seen_until.map(|until| later(until, TICKS));
        destination.is_locked()
            && clocks.destination_is_local
            && ended.is_some_and(|ended| destination.ctime <= ended)
    }

    /// Whether a source entry may have been changed or renamed since the pass began.
    pub fn is_recent(&self, clocks: Clocks, source: &Metadata) -> bool {
        later(source.ctime, self.skew(clocks)) >= self.pass_began
    }

    /// Whether an interrupted pass may have left a destination entry, last changed at `ctime`, incomplete: those that it
    /// has flushed are on record, and not asked about.
    pub fn is_unfinished(&self, clocks: Clocks, ctime: Timestamp) -> bool {
        let skew = if clocks.destination_is_local { COARSE } else { SKEW };
        self.suspect_since.is_some_and(|since| later(ctime, skew).seconds >= since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_model::{Identity, MountId};

    const HERE: Clocks =
        Clocks { source_is_local: true, destination_is_local: true, source_skew: None };
    const FAR_SOURCE: Clocks = Clocks { source_is_local: false, ..HERE };
    const FAR_DESTINATION: Clocks = Clocks { destination_is_local: false, ..HERE };

    fn time(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp { seconds, nanoseconds }
    }

    fn changed(at: Timestamp) -> Metadata {
        Metadata {
            identity: Identity { mount: MountId(1), inode: 2 },
            kind: EntryKind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            size: 7,
            blocks: 8,
            links: 1,
            device: (0, 0),
            atime: at,
            mtime: at,
            ctime: at,
            immutable: false,
            append_only: false,
        }
    }

    fn history(seen_before: Option<Timestamp>, seen_until: Option<Timestamp>) -> History {
        let pass_began = time(20_000, 0);
        History { seen_before, seen_until, pass_began, suspect_since: None, source_skew: None }
    }

    #[test]
    fn nanoseconds_are_carried_into_seconds() {
        assert_eq!(later(time(1, 999_000_000), Duration::from_millis(12)), time(2, 11_000_000));
        assert_eq!(later(time(-1, 0), Duration::from_millis(2_500)), time(1, 500_000_000));
        assert_eq!(later(time(5, 7), COARSE), time(8, 7));
    }

    #[test]
    fn a_source_is_touched_by_what_moves_its_time_and_by_what_no_pass_has_seen() {
        let copy = changed(time(10_000, 1));
        let seen = history(Some(time(9_000, 0)), None);
        let touched =
            |at, clocks, history: &History| history.is_touched(clocks, (&changed(at), &copy), true);
        // Changed before the copy, and before the last pass began.
        assert!(!touched(time(8_000, 1), HERE, &seen));
        assert!(touched(time(10_000, 1), HERE, &seen), "in the same instant");
        assert!(touched(time(9_000, 0), HERE, &seen), "the pass cannot have seen it");
        // Whole seconds hide up to three.
        assert!(!touched(time(8_996, 0), HERE, &seen) && touched(time(8_997, 0), HERE, &seen));
        // Clocks of servers may differ by an hour.
        assert!(touched(time(8_000, 1), FAR_SOURCE, &seen));
        assert!(!touched(time(5_000, 1), FAR_SOURCE, &seen));
        // If both this pass and the last one have measured the difference, the larger one counts.
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let measured = |now, then| {
            let clocks = Clocks { source_skew: seconds(now), ..FAR_SOURCE };
            let history = History { source_skew: then, ..seen.clone() };
            touched(time(8_900, 1), clocks, &history)
        };
        assert!(!measured(2, seconds(2)) && !measured(2, seconds(99)));
        assert!(measured(2, seconds(100)) && measured(100, seconds(2)), "it was more at one time");
        assert!(measured(2, None), "it may have been more at that time");
        // It was copied at once, and compared by a pass that began later.
        let late = History { source_skew: seconds(2), ..history(Some(time(20_000, 0)), None) };
        let clocks = Clocks { source_skew: seconds(2), ..FAR_SOURCE };
        assert!(!touched(time(9_999, 1), clocks, &late));
        assert!(touched(time(9_999, 1), FAR_SOURCE, &late));
        assert!(!touched(time(10_001, 1), clocks, &late));
        assert!(touched(time(10_003, 1), clocks, &late), "it is newer than its copy");
        // Without a pass, the caller says what counts.
        let never = history(None, None);
        let early = changed(time(1, 1));
        assert!(never.is_touched(HERE, (&early, &copy), true));
        assert!(!never.is_touched(HERE, (&early, &copy), false));
    }

    #[test]
    fn others_change_the_destination_after_the_last_pass_only() {
        let known = history(None, Some(time(9_000, 5)));
        let foreign = |at, clocks| known.is_foreign(clocks, &changed(at));
        assert!(foreign(time(9_000, 5), HERE) && !foreign(time(9_000, 4), HERE));
        assert!(foreign(time(8_998, 0), HERE), "whole seconds hide up to three");
        assert!(!foreign(time(9_999, 9), FAR_DESTINATION), "its clock may be another");
        assert!(!history(None, None).is_foreign(HERE, &changed(time(9_999, 9))));
    }

    #[test]
    fn a_lock_is_the_jobs_own_until_the_end_of_its_last_pass() {
        let known = history(None, Some(time(9_000, 0)));
        let lock = |at, immutable| Metadata { immutable, ..changed(at) };
        let own = |clocks, of: &Metadata| known.is_own_lock(clocks, of);
        assert!(own(HERE, &lock(time(9_000, 12_000_000), true)));
        assert!(!own(HERE, &lock(time(9_000, 12_000_001), true)), "by somebody else, later");
        assert!(!own(HERE, &lock(time(8_000, 0), false)), "no lock");
        assert!(!own(FAR_DESTINATION, &lock(time(8_000, 0), true)));
        assert!(!history(None, None).is_own_lock(HERE, &lock(time(8_000, 0), true)));
    }

    #[test]
    fn what_is_recent_or_unfinished_may_change_or_be_incomplete() {
        let known = History { suspect_since: Some(9_000), ..history(None, None) };
        assert!(known.is_recent(HERE, &changed(time(20_000, 0))));
        assert!(!known.is_recent(HERE, &changed(time(19_999, 9))));
        assert!(known.is_recent(FAR_SOURCE, &changed(time(16_400, 0))));
        assert!(known.is_unfinished(HERE, time(8_997, 0)));
        assert!(!known.is_unfinished(HERE, time(8_996, 999_999_999)));
        assert!(known.is_unfinished(FAR_DESTINATION, time(5_400, 0)));
        assert!(!history(None, None).is_unfinished(HERE, time(9_999, 0)));
    }

    #[test]
    fn only_files_with_coarse_times_are_racy() {
        let racy = |source: &Metadata, at| is_racy(source, &changed(at));
        let coarse = changed(time(100, 0));
        assert!(racy(&coarse, time(103, 0)) && !racy(&coarse, time(103, 1)));
        assert!(!racy(&changed(time(100, 1)), time(100, 1)));
        let directory = Metadata { kind: EntryKind::Directory, ..coarse };
        assert!(!racy(&directory, time(100, 0)));
    }
}
