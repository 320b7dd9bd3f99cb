//! Decides what one entry needs, from what is known about both sides.
use dmover_model::{
    CopyPolicy, EntryKind, EntryRecord, ErrorClass, Metadata, Overwrite, SyncPolicy,
};

use crate::equality::{self, is_quickly_equal};

/// What to do with one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The destination has no such entry: create it under its final name.
    Create,
    /// The destination has another entry: create this one under a temporary name and rename it into place.
    Replace,
    /// Write into the existing file.
    UpdateInPlace,
    /// It is a directory: descend.
    Descend,
    /// It looks equal, and its content must be compared.
    Compare,
    /// Its content is equal, but its attributes may differ.
    Inspect,
    /// The destination has a directory that must be removed first.
    Clear,
    /// It is unchanged since the previous snapshot, and was taken from there.
    Share,
    /// It is equal, or the policy keeps the existing entry.
    Skip,
    /// It cannot be done, for this reason.
    Refuse(ErrorClass, &'static str),
}

/// The destination entry with the same name.
#[derive(Debug, Clone, Copy)]
pub struct Existing<'a> {
    /// Its metadata.
    pub metadata: &'a Metadata,
    /// Its target, if it is a symbolic link.
    pub symlink: Option<&'a [u8]>,
    /// The time resolution of its file system, in nanoseconds.
    pub granularity_ns: u32,
    /// The job copies only ranges of the file.
    pub ranged: bool,
    /// Immutable and append-only flags are kept, so a missing flag is a difference.
    pub flags_matter: bool,
    /// Its owner or mode differs from the expected one, or its other attributes may differ.
    pub unlike: bool,
    /// The source may have changed after it was copied, although size and mtime are equal.
    pub touched: bool,
    /// It may have lost content that was not yet on storage, although size and times are equal.
    pub suspect: bool,
    /// The last write to the source is so recent that another write may not change its times.
    pub racy: bool,
    /// It was copied while another program had the source open for writing, so equal times do not prove equal content.
    pub doubtful: bool,
}

/// Decides what `source` needs under `policy`.
pub fn decide(
    source: &EntryRecord,
    existing: Option<Existing<'_>>,
    policy: &CopyPolicy,
) -> Decision {
    let Some(existing) = existing else {
        let directory = source.metadata.kind == EntryKind::Directory;
        return if directory { Decision::Descend } else { Decision::Create };
    };
    let old = existing.metadata;
    match (source.metadata.kind, old.kind) {
        (EntryKind::Directory, EntryKind::Directory) => return Decision::Descend,
        (EntryKind::Directory, _) => {
            let words =
                "the destination entry is not a directory, and a directory cannot replace it";
            return Decision::Refuse(ErrorClass::TypeConflict, words);
        }
        (_, EntryKind::Directory) if deletes(policy) => return Decision::Clear,
        (_, EntryKind::Directory) => {
            let words = match &policy.sync {
                Some(_) => "the destination entry is a directory; only --delete removes it",
                None => "the destination entry is a directory",
            };
            return Decision::Refuse(ErrorClass::TypeConflict, words);
        }
        _ => {}
    }
    let doubtful = existing.doubtful && source.metadata.kind == EntryKind::File;
    match policy.overwrite {
        Overwrite::Never => return Decision::Skip,
        Overwrite::Changed | Overwrite::Older
            if (doubtful || existing.suspect) && !existing.ranged && is_equal(source, existing) =>
        {
            return Decision::Compare;
        }
        Overwrite::Older if is_not_older(source, existing) => return Decision::Skip,
        // A range may go anywhere, so equality of the whole says nothing about it.
        Overwrite::Changed | Overwrite::Older if !existing.ranged && is_equal(source, existing) => {
            return policy
                .sync
                .as_ref()
                .map_or(Decision::Skip, |sync| settle(source, existing, sync));
        }
        _ => {}
    }
    let may_write_into = source.metadata.kind == EntryKind::File
        && old.kind == EntryKind::File
        && old.links == 1
        && old.identity != source.metadata.identity;
    if policy.inplace && policy.backup.is_none() && may_write_into {
        Decision::UpdateInPlace
    } else {
        Decision::Replace
    }
}

/// The quick check: type, size and modification time, and other fields that cost nothing to compare.
pub fn is_equal(source: &EntryRecord, existing: Existing<'_>) -> bool {
    let (new, old) = (&source.metadata, existing.metadata);
    // Flags are the only thing set after the times; a run killed in between must be seen.
    let missing = (new.immutable && !old.immutable) || (new.append_only && !old.append_only);
    let flags = existing.flags_matter && missing;
    let targets = (source.symlink.as_deref(), existing.symlink);
    !flags && is_quickly_equal((new, targets.0), (old, targets.1), existing.granularity_ns)
}

/// What an equal-looking entry needs in a sync pass.
fn settle(source: &EntryRecord, existing: Existing<'_>, sync: &SyncPolicy) -> Decision {
    let doubtful = sync.checksum || existing.racy || (sync.ctime && existing.touched);
    if doubtful && source.metadata.kind == EntryKind::File {
        Decision::Compare
    } else if existing.unlike || existing.touched {
        Decision::Inspect
    } else {
        Decision::Skip
    }
}

fn deletes(policy: &CopyPolicy) -> bool {
    policy.sync.as_ref().is_some_and(|sync| sync.delete.is_some())
}

fn is_not_older(source: &EntryRecord, existing: Existing<'_>) -> bool {
    let (old, new) = (existing.metadata.mtime, source.metadata.mtime);
    equality::is_not_older(old, new, existing.granularity_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_model::{Confirmed, DeletePolicy, DeleteWhen, Identity, MountId, Name, Timestamp};

    fn record(kind: EntryKind) -> EntryRecord {
        let time = Timestamp { seconds: 100, nanoseconds: 123_456_789 };
        EntryRecord {
            name: Name::new(*b"x").unwrap(),
            renamed: None,
            symlink: None,
            metadata: Metadata {
                kind,
                mode: 0o644,
                uid: 0,
                gid: 0,
                size: 10,
                blocks: 8,
                links: 1,
                device: (0, 0),
                identity: Identity { mount: MountId(0), inode: 7 },
                atime: time,
                mtime: time,
                ctime: time,
                immutable: false,
                append_only: false,
            },
        }
    }

    fn view(old: &Metadata, granularity_ns: u32) -> Existing<'_> {
        Existing {
            metadata: old,
            symlink: None,
            granularity_ns,
            ranged: false,
            flags_matter: true,
            unlike: false,
            touched: false,
            suspect: false,
            racy: false,
            doubtful: false,
        }
    }

    #[test]
    fn what_may_have_lost_its_content_is_compared_by_every_verb() {
        let new = record(EntryKind::File);
        let old = Metadata { identity: Identity::default(), ..new.metadata.clone() };
        let suspect = Existing { suspect: true, ..view(&old, 1) };
        let with = |overwrite| CopyPolicy { overwrite, ..CopyPolicy::default() };
        for overwrite in [Overwrite::Changed, Overwrite::Older] {
            assert_eq!(decide(&new, Some(suspect), &with(overwrite)), Decision::Compare);
        }
        assert_eq!(decide(&new, Some(suspect), &with(Overwrite::Never)), Decision::Skip);
        let younger = Metadata { mtime: Timestamp { seconds: 200, nanoseconds: 0 }, ..old.clone() };
        let other = Existing { metadata: &younger, ..suspect };
        let decision = decide(&new, Some(other), &with(Overwrite::Older));
        assert_eq!(decision, Decision::Skip, "it is another version");
    }

    #[test]
    fn equality_of_the_whole_says_nothing_about_a_range() {
        let new = record(EntryKind::File);
        let old = Metadata { identity: Identity::default(), ..new.metadata.clone() };
        let ranged = Existing { ranged: true, ..view(&old, 1) };
        assert_eq!(decide(&new, Some(ranged), &CopyPolicy::default()), Decision::Replace);
    }

    fn run(new: &EntryRecord, old: &Metadata, policy: &CopyPolicy) -> Decision {
        decide(new, Some(view(old, 1)), policy)
    }

    #[test]
    fn equal_means_type_size_and_time() {
        let new = record(EntryKind::File);
        let mut old = new.metadata.clone();
        old.identity.inode = 8;
        let policy = CopyPolicy::default();
        assert_eq!(run(&new, &old, &policy), Decision::Skip);
        old.mtime.nanoseconds += 1;
        assert_eq!(run(&new, &old, &policy), Decision::Replace);
        let coarse = |old: &Metadata| decide(&new, Some(view(old, 1_000_000_000)), &policy);
        assert_eq!(coarse(&old), Decision::Skip);
        old.size += 1;
        assert_eq!(coarse(&old), Decision::Replace);
    }

    #[test]
    fn a_lost_immutable_flag_is_not_equal() {
        let mut new = record(EntryKind::File);
        let old = new.metadata.clone();
        new.metadata.immutable = true;
        assert_eq!(run(&new, &old, &CopyPolicy::default()), Decision::Replace);
    }

    #[test]
    fn in_place_never_touches_an_inode_with_other_names_or_the_source_itself() {
        let new = record(EntryKind::File);
        let policy =
            CopyPolicy { inplace: true, overwrite: Overwrite::Always, ..CopyPolicy::default() };
        let mut old = new.metadata.clone();
        assert_eq!(run(&new, &old, &policy), Decision::Replace, "same inode as the source");
        old.identity.inode = 8;
        assert_eq!(run(&new, &old, &policy), Decision::UpdateInPlace);
        old.links = 2;
        assert_eq!(run(&new, &old, &policy), Decision::Replace, "another name would change");
    }

    #[test]
    fn update_and_no_clobber_keep_what_is_there() {
        let new = record(EntryKind::File);
        let mut old = new.metadata.clone();
        old.size = 3;
        let never = CopyPolicy { overwrite: Overwrite::Never, ..CopyPolicy::default() };
        let older = CopyPolicy { overwrite: Overwrite::Older, ..CopyPolicy::default() };
        assert_eq!(run(&new, &old, &never), Decision::Skip);
        assert_eq!(run(&new, &old, &older), Decision::Skip);
        old.mtime.seconds -= 1;
        assert_eq!(run(&new, &old, &older), Decision::Replace);
    }

    #[test]
    fn a_pass_looks_closer_at_what_looks_equal_where_there_is_a_reason() {
        let new = record(EntryKind::File);
        let old = Metadata { identity: Identity::default(), ..new.metadata.clone() };
        let with = |sync: SyncPolicy| CopyPolicy { sync: Some(sync), ..CopyPolicy::default() };
        let (plain, touched) = (view(&old, 1), Existing { touched: true, ..view(&old, 1) });
        let sync = with(SyncPolicy::default());
        assert_eq!(decide(&new, Some(plain), &sync), Decision::Skip);
        assert_eq!(decide(&new, Some(touched), &sync), Decision::Inspect);
        let unlike = Existing { unlike: true, ..plain };
        assert_eq!(decide(&new, Some(unlike), &sync), Decision::Inspect);
        let racy = Existing { racy: true, ..plain };
        assert_eq!(decide(&new, Some(racy), &sync), Decision::Compare);
        let ctime = with(SyncPolicy { ctime: true, ..SyncPolicy::default() });
        assert_eq!(decide(&new, Some(plain), &ctime), Decision::Skip);
        assert_eq!(decide(&new, Some(touched), &ctime), Decision::Compare);
        let checksum = with(SyncPolicy { checksum: true, ..SyncPolicy::default() });
        assert_eq!(decide(&new, Some(plain), &checksum), Decision::Compare);
        let link = EntryRecord { symlink: Some(b"x".to_vec()), ..record(EntryKind::Symlink) };
        let to = Metadata { kind: EntryKind::Symlink, ..old.clone() };
        let found = Existing { metadata: &to, symlink: Some(b"x"), touched: true, ..plain };
        assert_eq!(decide(&link, Some(found), &checksum), Decision::Inspect);
    }

    #[test]
    fn a_directory_goes_only_where_deleting_is_allowed() {
        let (file, dir) = (record(EntryKind::File), record(EntryKind::Directory));
        let delete = DeletePolicy {
            when: DeleteWhen::Delay,
            limit: None,
            trash: None,
            confirmed: Confirmed::All,
        };
        let decided = |delete| {
            let sync = Some(SyncPolicy { delete, ..SyncPolicy::default() });
            run(&file, &dir.metadata, &CopyPolicy { sync, ..CopyPolicy::default() })
        };
        assert!(matches!(decided(None), Decision::Refuse(..)));
        assert_eq!(decided(Some(delete)), Decision::Clear);
    }

    #[test]
    fn directories_and_files_do_not_replace_each_other() {
        let (file, dir) = (record(EntryKind::File), record(EntryKind::Directory));
        let policy = CopyPolicy::default();
        assert!(matches!(run(&file, &dir.metadata, &policy), Decision::Refuse(..)));
        assert!(matches!(run(&dir, &file.metadata, &policy), Decision::Refuse(..)));
        assert_eq!(run(&dir, &dir.metadata, &policy), Decision::Descend);
        assert_eq!(decide(&dir, None, &policy), Decision::Descend);
    }
}
