//! The 11 columns of rsync's `--itemize-changes`, for scripts that parse them.
use dmover_model::{Action, EntryKind, Metadata};

/// The columns `YXcstpoguax`: the action, the type, and the attributes that differed.
pub fn columns(action: Action, source: &Metadata, destination: Option<&Metadata>) -> String {
    if matches!(action, Action::Deleted | Action::Trashed) {
        return "*deleting  ".into();
    }
    let kind = match source.kind {
        EntryKind::File => 'f',
        EntryKind::Directory => 'd',
        EntryKind::Symlink => 'L',
        EntryKind::CharDevice | EntryKind::BlockDevice => 'D',
        EntryKind::Fifo | EntryKind::Socket => 'S',
    };
    let what = match action {
        Action::Skipped | Action::Excluded | Action::MetadataUpdated | Action::Renamed => '.',
        Action::Linked | Action::Shared => 'h',
        _ if source.kind == EntryKind::File => '>',
        _ => 'c',
    };
    let Some(old) = destination.filter(|d| d.kind == source.kind && action != Action::Created)
    else {
        return format!("{what}{kind}+++++++++");
    };
    let mark = |differs: bool, letter: char| if differs { letter } else { '.' };
    let is_file = source.kind == EntryKind::File;
    [
        what,
        kind,
        '.',
        mark(is_file && old.size != source.size, 's'),
        mark(old.mtime != source.mtime, 't'),
        mark(old.mode != source.mode, 'p'),
        mark(old.uid != source.uid, 'o'),
        mark(old.gid != source.gid, 'g'),
        '.',
        '.',
        '.',
    ]
    .iter()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_model::{Identity, Timestamp};

    fn file(size: u64, mode: u32) -> Metadata {
        let (time, identity) = (Timestamp::default(), Identity::default());
        Metadata {
            kind: EntryKind::File,
            mode,
            uid: 0,
            gid: 0,
            size,
            blocks: 0,
            links: 1,
            device: (0, 0),
            identity,
            atime: time,
            mtime: time,
            ctime: time,
            immutable: false,
            append_only: false,
        }
    }

    #[test]
    fn looks_like_rsync() {
        assert_eq!(columns(Action::Created, &file(1, 0o644), None), ">f+++++++++");
        let old = file(2, 0o600);
        assert_eq!(columns(Action::Replaced, &file(1, 0o644), Some(&old)), ">f.s.p.....");
        assert_eq!(columns(Action::Skipped, &file(2, 0o600), Some(&old)), ".f.........");
    }
}
