//! Lists, looks and content.
use dmover_model::{
    ByteRange, DigestPolicy, EntryKind, ErrorClass, FollowLinks, HashType, TreePath,
};
use dmover_net::connection::SPARE_CHANNELS;
use dmover_remote::{Opening, WithHead};
use dmover_tree::{ListedKind, Needs, RemoteFile, RemoteTree};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use super::near::{Near, opening, plain, read, scratch};

/// All bytes of a file from an offset on, read in pieces of this length.
pub fn all(file: &dyn RemoteFile, mut at: u64, piece: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut buffer = vec![0; piece];
    loop {
        let read = file.read(at, &mut buffer).unwrap();
        if read == 0 {
            return bytes;
        }
        bytes.extend_from_slice(&buffer[..read]);
        at += read as u64;
    }
}

#[test]
fn a_tree_is_listed_looked_at_and_read() {
    let root = scratch();
    let content: Vec<u8> = (0..1_000_000u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(root.path().join("large"), &content).unwrap();
    std::fs::write(root.path().join("small"), b"hello").unwrap();
    std::fs::create_dir(root.path().join("d")).unwrap();
    std::fs::write(root.path().join("d/empty"), b"").unwrap();
    let (tree, near) = plain(root.path());
    assert_eq!(tree.root().metadata.kind, EntryKind::Directory);
    let top = tree.open(&TreePath::root(), false).unwrap();
    near.requests();
    let mut names = BTreeMap::new();
    top.list(&mut |name, _, inode| {
        let (metadata, symlink) = top.look(name, false).unwrap();
        assert_eq!((metadata.identity.inode, symlink), (inode, None));
        names.insert(name.to_vec(), metadata);
        true
    })
    .unwrap();
    assert_eq!(near.requests(), 2, "the list, and the attributes of the directory");
    assert_eq!(top.attributes(b"", false).unwrap().0, *top.metadata());
    assert_eq!(near.requests(), 0, "they have come with the list");
    assert_eq!(names.len(), 3);
    for (name, metadata) in &names {
        let name = std::str::from_utf8(name).unwrap();
        let found = std::fs::metadata(root.path().join(name)).unwrap();
        assert_eq!((metadata.size, metadata.mode), (found.size(), found.mode() & 0o7777));
        assert_eq!((metadata.mtime.seconds, metadata.links), (found.mtime(), found.nlink()));
    }
    let large = top.open_file(b"large", false).unwrap();
    assert!(all(&*large, 0, 100_000) == content);
    assert!(all(&*large, 3_000_001, 1 << 20) == content[3_000_001..]);
    assert_eq!(large.now().unwrap(), *large.metadata());
    let small = top.open_file(b"small", false).unwrap();
    near.requests();
    assert_eq!(all(&*small, 0, 2), b"hello");
    assert_eq!(small.now().unwrap(), *small.metadata());
    assert_eq!(near.requests(), 0);
    let below = top.enter(b"d", false).unwrap();
    let empty = below.open_file(b"empty", false).unwrap();
    assert_eq!(all(&*empty, 0, 2), b"");
    let error = below.look(b"none", false).unwrap_err();
    assert_eq!(error.path, super::near::display(&root.path().join("d/none")));
}

#[test]
fn names_are_any_bytes() {
    let root = scratch();
    let names: [&[u8]; 6] = [b"a\nb", b"\xff\xfe", b" ", b"-x", b"a\\", &[b'n'; 255]];
    for name in names {
        std::fs::write(root.path().join(OsStr::from_bytes(name)), name).unwrap();
    }
    let (tree, _near) = plain(root.path());
    let top = tree.open(&TreePath::root(), false).unwrap();
    let mut listed = BTreeSet::new();
    top.list(&mut |name, kind, _| {
        assert!(matches!(kind, ListedKind::File | ListedKind::Unknown));
        listed.insert(name.to_vec())
    })
    .unwrap();
    assert_eq!(listed, names.map(<[u8]>::to_vec).into());
    for name in names {
        let file = top.open_file(name, false).unwrap();
        assert_eq!(all(&*file, 0, 1000), name);
    }
    for none in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
        assert!(top.look(none, false).is_err(), "{none:?}");
        assert!(top.open_file(none, false).is_err(), "{none:?}");
        assert!(top.enter(none, true).is_err(), "{none:?}");
    }
}

#[test]
fn many_names_come_with_their_metadata_and_each_once() {
    let root = scratch();
    for number in 0..20_000 {
        std::fs::write(root.path().join(format!("{number:05}")), b"").unwrap();
    }
    let (tree, near) = plain(root.path());
    let top = tree.open(&TreePath::root(), false).unwrap();
    near.requests();
    let mut names = BTreeSet::new();
    top.list(&mut |name, _, _| names.insert(name.to_vec())).unwrap();
    assert_eq!(names.len(), 20_000);
    for name in &names {
        assert_eq!(top.look(name, false).unwrap().0.size, 0);
    }
    assert_eq!(near.requests(), 2);
    // A second look of an entry asks again, and sees what is there now.
    std::fs::write(root.path().join("00007"), b"more").unwrap();
    assert_eq!(top.look(b"00007", false).unwrap().0.size, 4);
    assert_eq!(near.requests(), 1);
    // A list that ends early.
    let mut left = 3;
    top.list(&mut |_, _, _| {
        left -= 1;
        left > 0
    })
    .unwrap();
    assert_eq!(left, 0);
    assert_eq!(top.look(b"00008", false).unwrap().0.size, 0);
    // If the first one ended early, the next one brings what it shows along.
    let (tree, near) = plain(root.path());
    let top = tree.open(&TreePath::root(), false).unwrap();
    near.requests();
    top.list(&mut |_, _, _| false).unwrap();
    top.list(&mut |_, _, _| true).unwrap();
    for name in &names {
        assert!(top.look(name, false).is_ok());
    }
    assert_eq!(near.requests(), 4);
}

#[test]
fn announced_files_come_without_a_wait() {
    let root = scratch();
    let names: Vec<String> = (0..200).map(|number| format!("{number:03}")).collect();
    for name in &names {
        std::fs::write(root.path().join(name), name).unwrap();
    }
    let (tree, near) = plain(root.path());
    let top = tree.open(&TreePath::root(), false).unwrap();
    let announced: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    near.requests();
    top.announce(&announced, false);
    assert_eq!(near.requests(), 7, "many files with one request");
    for (number, name) in names.iter().enumerate() {
        if number % 7 == 3 {
            // This one is not wanted any more.
            continue;
        }
        let file = top.open_file(name.as_bytes(), false).unwrap();
        assert_eq!(all(&*file, 0, 100), name.as_bytes());
        assert_eq!(file.now().unwrap(), *file.metadata());
    }
    assert_eq!(near.requests(), 0, "no file was asked for again");
    // Of a file that is gone, the error comes when it is opened.
    top.announce(&[b"gone", b"001"], false);
    assert_eq!(top.open_file(b"gone", false).unwrap_err().class, ErrorClass::Vanished);
    assert_eq!(all(&*top.open_file(b"001", false).unwrap(), 0, 100), b"001");
}

/// Files of a directory by their numbers.
pub fn numbered(root: &Path, count: usize) -> Vec<String> {
    std::fs::create_dir_all(root).unwrap();
    let names: Vec<String> = (0..count).map(|number| format!("{number:05}")).collect();
    for name in &names {
        std::fs::write(root.join(name), name).unwrap();
    }
    names
}

#[test]
fn movers_in_one_directory_do_not_lose_what_others_announced() {
    let (movers, rounds, files) = (4, 100, 64);
    let root = scratch();
    let names = numbered(root.path(), movers * rounds * files);
    let (tree, near) = plain(root.path());
    let top = tree.open(&TreePath::root(), false).unwrap();
    near.requests();
    std::thread::scope(|scope| {
        for own in names.chunks(rounds * files) {
            let top = &top;
            scope.spawn(move || {
                for batch in own.chunks(files) {
                    let announced: Vec<&[u8]> = batch.iter().map(String::as_bytes).collect();
                    top.announce(&announced, false);
                    for name in batch {
                        let file = top.open_file(name.as_bytes(), false).unwrap();
                        assert_eq!(all(&*file, 0, 100), name.as_bytes());
                    }
                }
            });
        }
    });
    assert_eq!(near.requests(), movers * rounds * files / 32);
}

#[test]
fn what_was_announced_without_room_is_asked_for_together() {
    let root = scratch();
    let names = numbered(root.path(), 256);
    // Requests ahead leave as many channels free.
    let near = Near::with(root.path(), SPARE_CHANNELS as u32);
    let tree = read(&near, opening(root.path(), FollowLinks::Never)).unwrap();
    let top = tree.open(&TreePath::root(), false).unwrap();
    near.requests();
    let announced: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    top.announce(&announced, false);
    assert_eq!(near.requests(), 0);
    for name in &names {
        assert_eq!(all(&*top.open_file(name.as_bytes(), false).unwrap(), 0, 100), name.as_bytes());
    }
    assert_eq!(near.requests(), 256 / 32);
}

#[test]
fn nothing_holds_the_connection_after_the_tree_is_dropped() {
    let root = scratch();
    numbered(&root.path().join("a/b"), 3);
    let (tree, near) = plain(root.path());
    let top = tree.open(&TreePath::root(), false).unwrap();
    top.list(&mut |_, _, _| true).unwrap();
    top.enter_ahead(&[b"a"], Needs { goes_below: true, opens_files: false });
    let below = top.enter(b"a", false).unwrap();
    drop(tree);
    // Whoever still has a directory may go on.
    let last = below.enter(b"b", false).unwrap();
    last.list(&mut |_, _, _| true).unwrap();
    assert!(Arc::strong_count(&near) > 1);
    drop((top, below, last));
    assert_eq!(Arc::strong_count(&near), 1);
}

#[test]
fn digests_of_short_files_come_with_their_heads() {
    let root = scratch();
    let content = |number: usize| vec![number as u8; number * 10_000];
    for number in 0..20 {
        std::fs::write(root.path().join(number.to_string()), content(number)).unwrap();
    }
    let policy = DigestPolicy::plain(HashType::Sha256);
    let with_head = WithHead::digests(&policy);
    let near = Near::to(root.path());
    let tree = read(&near, Opening { with_head, ..opening(root.path(), FollowLinks::Never) });
    let tree = tree.unwrap();
    let top = tree.open(&TreePath::root(), false).unwrap();
    let names: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    let announced: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    near.requests();
    top.announce(&announced, false);
    for (number, name) in names.iter().enumerate() {
        let file = top.open_file(name.as_bytes(), false).unwrap();
        let (length, mut hashed) = (number as u64 * 10_000, 0);
        let mut step = |bytes| {
            hashed += bytes;
            Ok(())
        };
        let range = ByteRange { start: 0, end: length };
        let made = file.digests(&[policy.shape(length)], 0, range, &mut step).unwrap();
        let oracle = Command::new("sha256sum").arg(root.path().join(name)).output().unwrap();
        let hex = std::str::from_utf8(&oracle.stdout[..64]).unwrap();
        let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
        assert_eq!(made[0][0].as_bytes(), (0..32).map(byte).collect::<Vec<_>>());
        assert_eq!(hashed, length);
        assert_eq!(file.now().unwrap(), *file.metadata());
    }
    assert_eq!(near.requests(), 1, "all came with one request");
    // Who reads the content afterwards is told of a change that happened meanwhile.
    let file = top.open_file(b"7", false).unwrap();
    std::fs::write(root.path().join("7"), b"changed").unwrap();
    assert_eq!(all(&*file, 0, 100), b"changed");
    assert_ne!(file.now().unwrap().version(), file.metadata().version());
}

#[test]
fn a_root_that_is_a_file_is_read_from_the_directory_above_it() {
    let root = scratch();
    std::fs::write(root.path().join("f"), b"content").unwrap();
    std::fs::write(root.path().join("other"), b"secret").unwrap();
    let (tree, _near) = plain(&root.path().join("f"));
    assert_eq!(tree.root().metadata.kind, EntryKind::File);
    assert_eq!(tree.root().name.as_deref(), Some(&b"f"[..]));
    let canonical = std::fs::canonicalize(root.path().join("f")).unwrap();
    assert_eq!(tree.root().canonical.to_path(), canonical);
    let above = tree.open_above().unwrap();
    assert_eq!(all(&*above.open_file(b"f", false).unwrap(), 0, 3), b"content");
    assert_eq!(above.look(b"f", false).unwrap().0.size, 7);
    // What is beside it is not served.
    assert_eq!(above.open_file(b"other", false).unwrap_err().class, ErrorClass::Escaped);
    assert_eq!(above.look(b"other", false).unwrap_err().class, ErrorClass::Escaped);
    assert_eq!(above.list(&mut |_, _, _| true).unwrap_err().class, ErrorClass::Escaped);
    assert!(above.attributes(b"", false).is_err());
    assert!(tree.open(&TreePath::root().join(b"other"), false).is_err());
}

#[test]
fn a_root_that_cannot_be_opened_is_refused_in_one_line() {
    let root = scratch();
    std::fs::write(root.path().join("f"), b"").unwrap();
    for (path, words) in [
        ("none", "' does not exist"),
        ("none/x", "': No such file or directory"),
        ("f/", "' is not a directory"),
    ] {
        let path = root.path().join(path);
        let refused = read(&Near::to(&path), opening(&path, FollowLinks::Never));
        let why = refused.unwrap_err();
        assert_eq!(why.exit_code(), dmover_model::ExitCode::Usage);
        let message = why.to_string();
        assert!(message.contains("'host:/dev/shm/") && message.contains(words), "{message}");
        assert!(!why.hint().is_empty() && !message.contains('\n'));
    }
}
