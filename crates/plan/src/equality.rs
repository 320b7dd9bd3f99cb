//! When an entry at the destination counts as equal to the one of the source, as far as metadata can tell. Every verb
//! asks here.
use dmover_model::{EntryKind, Metadata, Timestamp};

/// The first second that a file system with signed 32-bit times cannot keep; it cannot keep times before 1970 either.
const SMALL_RANGE_END: i64 = 1 << 31;

/// Whether two times are equal when both are rounded down to the time resolution of the destination.
pub fn same_time(new: Timestamp, old: Timestamp, step_ns: u32) -> bool {
    new.truncated(step_ns) == old.truncated(step_ns)
}

/// Whether the existing entry is not older than the new one, at the time resolution of the destination.
pub fn is_not_older(old: Timestamp, new: Timestamp, step_ns: u32) -> bool {
    old.truncated(step_ns) >= new.truncated(step_ns)
}

/// Whether two entries have the same type and, where the metadata has them, the same size or device number.
pub fn same_type_and_size(new: &Metadata, old: &Metadata) -> bool {
    let content = match new.kind {
        EntryKind::File => new.size == old.size,
        EntryKind::CharDevice | EntryKind::BlockDevice => new.device == old.device,
        EntryKind::Symlink | EntryKind::Fifo | EntryKind::Socket | EntryKind::Directory => true,
    };
    new.kind == old.kind && content
}

/// The quick check: the same type, size, target of a symbolic link, and time of the last change of content.
pub fn is_quickly_equal(
    (new, new_target): (&Metadata, Option<&[u8]>),
    (old, old_target): (&Metadata, Option<&[u8]>),
    step_ns: u32,
) -> bool {
    let targets = new.kind != EntryKind::Symlink || new_target == old_target;
    same_type_and_size(new, old) && targets && same_time(new.mtime, old.mtime, step_ns)
}

/// The quick check for names of one inode, whose time only tells something if the job keeps times and every file system
/// can record it.
pub fn is_same_of_group(new: &Metadata, old: &Metadata, step_ns: u32, keeps_times: bool) -> bool {
    let tells = keeps_times && (0..SMALL_RANGE_END).contains(&new.mtime.seconds);
    same_type_and_size(new, old) && (!tells || same_time(new.mtime, old.mtime, step_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_model::{Identity, MountId};

    const SECOND: u32 = 1_000_000_000;

    fn at(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp { seconds, nanoseconds }
    }

    fn metadata(kind: EntryKind) -> Metadata {
        let mount = MountId(1);
        Metadata { size: 7, mtime: at(100, 5), ..empty(kind, Identity { mount, inode: 2 }) }
    }

    fn empty(kind: EntryKind, identity: Identity) -> Metadata {
        Metadata {
            identity,
            kind,
            mode: 0o644,
            uid: 0,
            gid: 0,
            size: 0,
            blocks: 0,
            links: 1,
            device: (0, 0),
            atime: at(0, 0),
            mtime: at(0, 0),
            ctime: at(0, 0),
            immutable: false,
            append_only: false,
        }
    }

    #[test]
    fn times_are_equal_at_the_resolution_of_the_destination() {
        // New, old, step, equal, old is not older.
        let table = [
            (at(5, 7), at(5, 7), 1, true, true),
            (at(5, 8), at(5, 7), 1, false, false),
            (at(5, 999), at(5, 0), SECOND, true, true),
            (at(6, 0), at(5, 999_999_999), SECOND, false, false),
            (at(5, 0), at(6, 0), SECOND, false, true),
            (at(3, 1), at(2, 0), 2 * SECOND, true, true),
            (at(-1, 500_000_000), at(-1, 0), SECOND, true, true),
            (at(0, 0), at(-1, 999_999_999), SECOND, false, false),
        ];
        for (new, old, step, equal, not_older) in table {
            assert_eq!(same_time(new, old, step), equal, "{new:?} {old:?} {step}");
            assert_eq!(is_not_older(old, new, step), not_older, "{new:?} {old:?} {step}");
        }
    }

    #[test]
    fn each_field_alone_makes_a_difference() {
        let file = metadata(EntryKind::File);
        let quick = |new: &Metadata, old: &Metadata| is_quickly_equal((new, None), (old, None), 1);
        assert!(quick(&file, &file));
        assert!(!quick(&file, &Metadata { size: 8, ..file }));
        assert!(!quick(&file, &Metadata { mtime: at(100, 6), ..file }));
        assert!(!quick(&file, &metadata(EntryKind::Fifo)));
        let device = metadata(EntryKind::CharDevice);
        assert!(!quick(&device, &Metadata { device: (1, 3), ..device }));
        // The size of anything but a file says nothing: file systems disagree about it.
        assert!(quick(&device, &Metadata { size: 8, ..device }));
        let link = metadata(EntryKind::Symlink);
        let links = |old: &[u8]| is_quickly_equal((&link, Some(b"a")), (&link, Some(old)), 1);
        assert!(links(b"a") && !links(b"b"));
    }

    #[test]
    fn the_time_of_a_group_counts_only_if_it_is_kept_as_it_is() {
        let file = metadata(EntryKind::File);
        let later = Metadata { mtime: at(101, 0), ..file };
        assert!(!is_same_of_group(&file, &later, 1, true));
        assert!(is_same_of_group(&file, &later, 1, false));
        for seconds in [-1, SMALL_RANGE_END] {
            let far = Metadata { mtime: at(seconds, 0), ..file };
            assert!(is_same_of_group(&far, &later, 1, true), "{seconds} may have been cut");
        }
        assert!(!is_same_of_group(&file, &Metadata { size: 8, ..file }, 1, false));
    }
}
