//! Lists, looks and content.
use dmover_model::{EntryKind, TreePath};
use dmover_tree::{RemoteFile, RemoteTree};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use super::near::{plain, scratch};

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
    assert_eq!(near.requests(), 1);
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
