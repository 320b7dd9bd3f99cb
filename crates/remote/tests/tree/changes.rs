//! Trees that change while they are read.
use dmover_model::{ErrorClass, FollowLinks, TreePath};
use dmover_tree::RemoteTree;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::near::{open, plain, scratch};
use super::reading::all;

#[test]
fn a_change_shows_in_the_metadata_afterwards() {
    let root = scratch();
    for name in ["small", "large"] {
        std::fs::write(root.path().join(name), vec![1; if name == "small" { 5 } else { 600_000 }])
            .unwrap();
    }
    let (tree, _near) = plain(root.path());
    let top = tree.open(&TreePath::root(), false).unwrap();
    let large = top.open_file(b"large", false).unwrap();
    let mut buffer = [0; 10];
    assert_eq!(large.read(0, &mut buffer).unwrap(), 10);
    let file = File::options().write(true).open(root.path().join("large")).unwrap();
    file.write_all_at(b"x", 5).unwrap();
    assert_ne!(large.now().unwrap().version(), large.metadata().version());
    // What was read ahead of a change is still what was there when it was opened.
    let small = top.open_file(b"small", false).unwrap();
    std::fs::write(root.path().join("small"), b"others").unwrap();
    assert_eq!(all(&*small, 0, 100), [1; 5]);
    assert_eq!(small.now().unwrap(), *small.metadata());
    // A file that shrinks ends earlier.
    file.set_len(300_000).unwrap();
    assert_eq!(all(&*top.open_file(b"large", false).unwrap(), 0, 1 << 20).len(), 300_000);
}

#[test]
fn an_open_file_stays_the_one_that_was_opened() {
    let root = scratch();
    let path = root.path().join("f");
    std::fs::write(&path, vec![1; 600_000]).unwrap();
    let (tree, _near) = plain(root.path());
    let top = tree.open(&TreePath::root(), false).unwrap();
    let file = top.open_file(b"f", false).unwrap();
    std::fs::write(root.path().join("new"), vec![2; 600_000]).unwrap();
    std::fs::rename(root.path().join("new"), &path).unwrap();
    assert!(all(&*file, 0, 1 << 20) == vec![1; 600_000]);
    // More files than stay open take its place at the agent.
    for number in 0..100 {
        let name = format!("{number}");
        std::fs::write(root.path().join(&name), vec![3; 300_000]).unwrap();
        top.open_file(name.as_bytes(), false).unwrap();
    }
    let error = file.now().unwrap_err();
    assert_eq!(error.class, ErrorClass::Changed);
    assert_eq!(error.to_string(), "another file has replaced this one");
    // Sequential reading goes on with a stream that is open; from elsewhere it does not.
    assert_eq!(file.read(7, &mut [0]).unwrap_err().class, ErrorClass::Changed);
}

#[test]
fn a_directory_that_another_one_has_replaced_is_not_read() {
    let root = scratch();
    let d = root.path().join("d");
    std::fs::create_dir(&d).unwrap();
    std::fs::write(d.join("f"), b"old").unwrap();
    let (tree, _near) = plain(root.path());
    let path = TreePath::root().join(b"d");
    let open = tree.open(&path, false).unwrap();
    std::fs::rename(&d, root.path().join("e")).unwrap();
    std::fs::create_dir(&d).unwrap();
    std::fs::write(d.join("f"), b"new").unwrap();
    // It is open at the agent, so it is the same one under another name.
    assert_eq!(all(&*open.open_file(b"f", false).unwrap(), 0, 100), b"old");
    // More directories than stay open take its place.
    for number in 0..300 {
        let name = format!("{number}");
        std::fs::create_dir(root.path().join(&name)).unwrap();
        tree.open(&TreePath::root().join(name.as_bytes()), false).unwrap();
    }
    for error in [
        open.open_file(b"f", false).unwrap_err(),
        open.look(b"f", false).unwrap_err(),
        open.enter(b"g", false).unwrap_err(),
        open.list(&mut |_, _, _| true).unwrap_err(),
        open.attributes(b"", false).unwrap_err(),
    ] {
        assert_eq!(error.class, ErrorClass::Escaped);
        assert_eq!(error.to_string(), "another directory has replaced this one");
        assert_eq!(error.path, super::near::display(&d));
    }
    // One that is there again is found again.
    std::fs::remove_dir_all(&d).unwrap();
    std::fs::rename(root.path().join("e"), &d).unwrap();
    assert_eq!(all(&*open.open_file(b"f", false).unwrap(), 0, 100), b"old");
}

#[test]
fn what_is_no_file_is_not_opened_as_one() {
    let root = scratch();
    std::fs::create_dir(root.path().join("d")).unwrap();
    let fifo = root.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    let (tree, _near) = open(root.path(), FollowLinks::Always);
    let top = tree.open(&TreePath::root(), true).unwrap();
    for name in [&b"d"[..], b"fifo"] {
        assert_eq!(top.open_file(name, true).unwrap_err().class, ErrorClass::Changed);
    }
    assert!(top.attributes(b"fifo", false).unwrap().1.is_pinned);
    assert!(top.enter(b"fifo", false).is_err());
    assert_eq!(top.look(b"gone", false).unwrap_err().class, ErrorClass::Vanished);
    assert_eq!(top.enter(b"gone", false).unwrap_err().class, ErrorClass::Vanished);
}
