//! Directories that are asked for with all that is below them.
use dmover_model::{FollowLinks, TreePath};
use dmover_tree::{Needs, RemoteDirectory, RemoteTree};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use super::near::{Near, opening, plain, read, scratch};
use super::reading::{all, numbered};

const LISTS: Needs = Needs { goes_below: true, opens_files: false };
const FILES: Needs = Needs { goes_below: true, opens_files: true };

fn list(directory: &dyn RemoteDirectory) -> BTreeSet<Vec<u8>> {
    let mut names = BTreeSet::new();
    directory.list(&mut |name, _, _| names.insert(name.to_vec())).unwrap();
    names
}

/// Enters a directory as a mover does, and compares it with what is there.
fn visit(above: &dyn RemoteDirectory, name: &str, at: &Path) -> Arc<dyn RemoteDirectory> {
    let directory = above.enter(name.as_bytes(), false).unwrap();
    assert_eq!(directory.metadata().identity.inode, std::fs::metadata(at).unwrap().ino());
    assert_eq!(directory.attributes(b"", false).unwrap().0, *directory.metadata());
    let there = std::fs::read_dir(at).unwrap();
    let there: BTreeSet<_> =
        there.map(|entry| entry.unwrap().file_name().into_encoded_bytes()).collect();
    assert_eq!(list(&*directory), there);
    for name in there {
        let found = directory.look(&name, false).unwrap().0;
        let name = std::str::from_utf8(&name).unwrap();
        assert_eq!(found.identity.inode, std::fs::symlink_metadata(at.join(name)).unwrap().ino());
    }
    directory
}

#[test]
fn many_directories_need_few_requests() {
    let root = scratch();
    let names: Vec<String> = (0..200).map(|number| format!("{number:03}")).collect();
    for name in &names {
        numbered(&root.path().join("a").join(name), 1);
    }
    let (tree, near) = plain(root.path());
    let top = tree.open(&TreePath::root().join(b"a"), false).unwrap();
    near.requests();
    let mut left: &[String] = &names;
    while let [first, rest @ ..] = left {
        let ahead: Vec<&[u8]> = left.iter().map(String::as_bytes).collect();
        top.enter_ahead(&ahead, LISTS);
        visit(&*top, first, &root.path().join("a").join(first));
        left = rest;
    }
    assert!(near.requests() <= 8, "one for 32 directories");
}

#[test]
fn what_lies_below_comes_along() {
    let root = scratch();
    let deep: Vec<&str> = vec!["d"; 100];
    numbered(&root.path().join(deep.join("/")), 3);
    let (tree, near) = plain(root.path());
    let mut above = tree.open(&TreePath::root(), false).unwrap();
    near.requests();
    let mut at = root.path().to_owned();
    for _ in &deep {
        above.enter_ahead(&[b"d"], LISTS);
        at.push("d");
        above = visit(&*above, "d", &at);
    }
    assert_eq!(near.requests(), 1);
    // Another mover, which takes a part of what one has asked for.
    let (tree, near) = plain(root.path());
    let top = tree.open(&TreePath::root(), false).unwrap();
    near.requests();
    top.enter_ahead(&[b"d"], LISTS);
    let part = tree.open(&TreePath::root().join(b"d").join(b"d"), false).unwrap();
    assert_eq!(
        part.metadata().identity.inode,
        std::fs::metadata(root.path().join("d/d")).unwrap().ino()
    );
    assert_eq!(near.requests(), 1);
}

#[test]
fn a_walk_has_an_end_and_is_gone_on_with() {
    let root = scratch();
    for wide in 0..40 {
        for below in 0..40 {
            numbered(&root.path().join(format!("{wide:02}/{below:02}")), 2);
        }
    }
    let (tree, near) = plain(root.path());
    let top = tree.open(&TreePath::root(), false).unwrap();
    near.requests();
    let enter_all = |above: &dyn RemoteDirectory, each: &mut dyn FnMut(&str)| {
        let names: Vec<String> = (0..40).map(|number| format!("{number:02}")).collect();
        for first in 0..names.len() {
            let ahead: Vec<&[u8]> = names[first..].iter().map(String::as_bytes).collect();
            above.enter_ahead(&ahead, LISTS);
            each(&names[first]);
        }
    };
    enter_all(&*top, &mut |name| {
        let at = root.path().join(name);
        let directory = visit(&*top, name, &at);
        enter_all(&*directory, &mut |name| drop(visit(&*directory, name, &at.join(name))));
    });
    let requests = near.requests();
    assert!((7..60).contains(&requests), "{requests} requests for 1640 directories");
}

#[test]
fn files_of_new_directories_come_along_and_others_do_not() {
    let root = scratch();
    numbered(&root.path().join("a/b"), 10);
    std::fs::write(root.path().join("a/large"), vec![7; 300 << 10]).unwrap();
    std::fs::write(root.path().join("a/one"), b"one").unwrap();
    std::fs::hard_link(root.path().join("a/one"), root.path().join("a/two")).unwrap();
    for (opens_files, of_short) in [(true, 0), (false, 10)] {
        let (tree, near) = plain(root.path());
        let top = tree.open(&TreePath::root(), false).unwrap();
        near.requests();
        top.enter_ahead(&[b"a"], Needs { opens_files, ..LISTS });
        let above = visit(&*top, "a", &root.path().join("a"));
        above.enter_ahead(&[b"b"], Needs { opens_files, ..LISTS });
        let below = visit(&*above, "b", &root.path().join("a/b"));
        for name in list(&*below) {
            let file = below.open_file(&name, false).unwrap();
            assert_eq!(all(&*file, 0, 100), name);
            assert_eq!(file.now().unwrap(), *file.metadata());
            assert!(file.attributes().is_ok());
        }
        assert_eq!(near.requests(), 2 + of_short, "the walk, the second list, and files");
        // What is long, or has several names, is asked for.
        assert_eq!(all(&*above.open_file(b"large", false).unwrap(), 0, 1 << 20).len(), 300 << 10);
        assert_eq!(all(&*above.open_file(b"one", false).unwrap(), 0, 100), b"one");
        assert!(near.requests() >= 2);
    }
}

#[test]
fn a_large_directory_is_read_by_itself() {
    let root = scratch();
    numbered(&root.path().join("a/large"), 5000);
    numbered(&root.path().join("a/small"), 5);
    let (tree, near) = plain(root.path());
    let top = tree.open(&TreePath::root().join(b"a"), false).unwrap();
    near.requests();
    top.enter_ahead(&[b"large", b"small"], LISTS);
    visit(&*top, "large", &root.path().join("a/large"));
    assert_eq!(near.requests(), 4, "walk, enter, attributes, list");
    top.enter_ahead(&[b"small"], LISTS);
    visit(&*top, "small", &root.path().join("a/small"));
    assert_eq!(near.requests(), 0);
}

#[test]
fn what_is_no_directory_or_gone_is_told_when_it_is_entered() {
    let root = scratch();
    numbered(&root.path().join("a"), 3);
    std::os::unix::fs::symlink("a", root.path().join("link")).unwrap();
    let (tree, _near) = plain(root.path());
    let top = tree.open(&TreePath::root(), false).unwrap();
    top.enter_ahead(&[b"gone", b"link", b"a"], LISTS);
    assert!(top.enter(b"gone", false).is_err());
    assert!(top.enter(b"link", false).is_err());
    visit(&*top, "a", &root.path().join("a"));
    // A new list is a new look.
    let again = tree.open(&TreePath::root().join(b"a"), false).unwrap();
    numbered(&root.path().join("a"), 5);
    assert_eq!(list(&*again).len(), 5);
}

/// What a rule of the job leaves out may hang when it is touched.
#[test]
fn nothing_below_is_touched_unless_it_will_be_entered() {
    let root = scratch();
    numbered(&root.path().join("a/b"), 3);
    let (tree, near) = plain(root.path());
    let top = tree.open(&TreePath::root(), false).unwrap();
    near.requests();
    top.enter_ahead(&[b"a"], Needs::default());
    let above = visit(&*top, "a", &root.path().join("a"));
    assert_eq!(near.requests(), 1);
    visit(&*above, "b", &root.path().join("a/b"));
    assert_eq!(near.requests(), 3, "enter, attributes and list");
}

#[test]
fn an_agent_without_walks_is_asked_for_each_directory() {
    let root = scratch();
    for name in ["a", "b", "c"] {
        numbered(&root.path().join(name), 3);
    }
    let near = Near::to_older(root.path());
    let tree = read(&near, opening(root.path(), FollowLinks::Never)).unwrap();
    let top = tree.open(&TreePath::root(), false).unwrap();
    near.requests();
    let ahead: [&[u8]; 3] = [b"a", b"b", b"c"];
    for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
        top.enter_ahead(&ahead[number..], FILES);
        visit(&*top, name, &root.path().join(name));
    }
    assert_eq!(near.requests(), 1 + 3 * 3, "one walk in vain");
}

#[test]
fn what_is_at_a_path_now_is_asked_for_whatever_is_open() {
    let root = scratch();
    numbered(&root.path().join("d"), 2);
    let (tree, near) = plain(root.path());
    let path = TreePath::root().join(b"d");
    let top = tree.open(&TreePath::root(), false).unwrap();
    top.enter_ahead(&[b"d"], LISTS);
    let before = visit(&*top, "d", &root.path().join("d"));
    std::fs::rename(root.path().join("d"), root.path().join("e")).unwrap();
    numbered(&root.path().join("d"), 1);
    let identity = |directory: &dyn RemoteDirectory| directory.metadata().identity;
    let open = tree.open(&path, false).unwrap();
    assert_eq!(identity(&*open), identity(&*before), "it is open");
    near.requests();
    let now = tree.open_anew(&path, false).unwrap();
    assert_eq!(
        identity(&*now).inode,
        std::fs::metadata(root.path().join("d")).unwrap().ino(),
        "the directory that took its place"
    );
    let name = list(&*now).pop_first().unwrap();
    now.look(&name, false).unwrap();
    assert!(near.requests() >= 2, "the path and its names");
}
