//! Symbolic links, and that nothing leads out of the tree.
use dmover_model::{EntryKind, ErrorClass, FollowLinks, TreePath};
use dmover_tree::RemoteTree;
use std::os::unix::fs::symlink;

use super::near::{open, plain, scratch};
use super::reading::all;

#[test]
fn links_are_followed_only_if_the_job_follows_them() {
    let (root, outside) = (scratch(), scratch());
    std::fs::write(outside.path().join("f"), b"outside").unwrap();
    std::fs::create_dir(root.path().join("d")).unwrap();
    std::fs::write(root.path().join("d/f"), b"inside").unwrap();
    symlink("d", root.path().join("in")).unwrap();
    symlink(outside.path(), root.path().join("out")).unwrap();
    symlink(outside.path().join("f"), root.path().join("file")).unwrap();
    symlink("/nothing/here", root.path().join("dangling")).unwrap();
    let path = |bytes: &[u8]| TreePath::new(bytes).unwrap();

    let (tree, near) = plain(root.path());
    let top = tree.open(&TreePath::root(), false).unwrap();
    near.requests();
    top.list(&mut |_, _, _| true).unwrap();
    for (name, target) in [(&b"in"[..], "d"), (b"dangling", "/nothing/here")] {
        let (metadata, symlink) = top.look(name, false).unwrap();
        assert_eq!(metadata.kind, EntryKind::Symlink);
        assert_eq!(symlink.as_deref(), Some(target.as_bytes()));
    }
    assert_eq!(near.requests(), 2, "the list, and the attributes of the directory");
    for follows in [false, true] {
        assert!(top.enter(b"in", follows).is_err());
        assert!(top.enter(b"out", follows).is_err());
        assert!(top.open_file(b"file", follows).is_err());
        assert!(tree.open(&path(b"out"), follows).is_err());
        assert!(tree.open(&path(b"in"), follows).is_err());
    }
    assert_eq!(top.look(b"file", true).unwrap_err().class, ErrorClass::Escaped);

    let (tree, near) = open(root.path(), FollowLinks::Always);
    let top = tree.open(&TreePath::root(), true).unwrap();
    near.requests();
    top.list(&mut |_, _, _| true).unwrap();
    let (metadata, symlink) = top.look(b"file", true).unwrap();
    assert_eq!((metadata.kind, metadata.size, symlink), (EntryKind::File, 7, None));
    assert_eq!(near.requests(), 2);
    let dangling = top.look(b"dangling", true).unwrap_err();
    assert!(dangling.to_string().contains("the symbolic link is dangling"), "{dangling}");
    assert_eq!(all(&*top.open_file(b"file", true).unwrap(), 0, 100), b"outside");
    let out = top.enter(b"out", true).unwrap();
    assert_eq!(all(&*out.open_file(b"f", true).unwrap(), 0, 100), b"outside");
    let inside = tree.open(&path(b"in"), true).unwrap();
    assert_eq!(all(&*inside.open_file(b"f", false).unwrap(), 0, 100), b"inside");
    // Also where the job follows links, a name that is not followed is not.
    assert!(top.open_file(b"file", false).is_err());
}

#[test]
fn a_root_that_is_a_link_is_the_link_or_what_it_leads_to() {
    let root = scratch();
    std::fs::create_dir(root.path().join("d")).unwrap();
    std::fs::write(root.path().join("d/f"), b"inside").unwrap();
    symlink("d", root.path().join("l")).unwrap();
    let (tree, _near) = plain(&root.path().join("l"));
    assert_eq!(tree.root().metadata.kind, EntryKind::Symlink);
    let (_, symlink) = tree.open_above().unwrap().look(b"l", false).unwrap();
    assert_eq!(symlink.as_deref(), Some(&b"d"[..]));
    for (path, follow) in [("l", FollowLinks::Arguments), ("l/", FollowLinks::Never)] {
        let (tree, _near) = open(&root.path().join(path), follow);
        assert_eq!(tree.root().metadata.kind, EntryKind::Directory);
        let top = tree.open(&TreePath::root(), false).unwrap();
        assert_eq!(all(&*top.open_file(b"f", false).unwrap(), 0, 100), b"inside");
    }
}
