//! Attributes, and permissions.
use dmover_model::{AttributeSet, ErrorClass, FollowLinks, TreePath};
use dmover_tree::RemoteTree;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::near::{Near, opening, plain, read, scratch};

/// An access ACL: the owner may do all, the user 12345 read, the owning group execute, the mask read and execute.
const ACL: [u8; 44] = [
    2, 0, 0, 0, //
    1, 0, 7, 0, 255, 255, 255, 255, //
    2, 0, 4, 0, 57, 48, 0, 0, //
    4, 0, 1, 0, 255, 255, 255, 255, //
    16, 0, 5, 0, 255, 255, 255, 255, //
    32, 0, 0, 0, 255, 255, 255, 255,
];

#[test]
fn attributes_are_those_of_the_entry() {
    // Memory may have no attributes of users.
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = root.path().join("f");
    std::fs::write(&file, b"").unwrap();
    let set =
        |path: &Path, name: &str, value: &[u8]| setxattr(path, name, value, XattrFlags::empty());
    if set(&file, "user.a", b"\x00\xff").is_err() {
        println!("the file system has no attributes of users");
        return;
    }
    set(&file, "user.long", &[7; 1000]).unwrap();
    let has_acl = set(&file, "system.posix_acl_access", &ACL).is_ok();
    set(root.path(), "user.of_directory", b"x").unwrap();
    let (tree, near) = plain(root.path());
    let top = tree.open(&TreePath::root(), false).unwrap();
    let open = top.open_file(b"f", false).unwrap();
    near.requests();
    let found = open.attributes().unwrap();
    assert_eq!(near.requests(), 0);
    for (name, value) in &found.xattrs {
        let name = std::str::from_utf8(name).unwrap();
        let mut buffer = vec![0; 70_000];
        let length = getxattr(&file, name, &mut buffer[..]).unwrap();
        assert_eq!(value, &buffer[..length], "{name}");
    }
    let has = |name: &[u8]| found.xattrs.iter().any(|(its, _)| its == name);
    assert!(has(b"user.a") && has(b"user.long"));
    assert_eq!(has(b"system.posix_acl_access"), has_acl);
    assert_eq!(found.owning_group, has_acl.then_some(1));
    assert!(!found.is_pinned && found.losses.is_empty());
    let (metadata, own) = top.attributes(b"", false).unwrap();
    assert_eq!(metadata.identity, top.metadata().identity);
    assert!(own.xattrs.contains(&(b"user.of_directory".to_vec(), b"x".to_vec())));
    // What is not preserved is not read.
    let none = dmover_remote::Opening {
        preserve: AttributeSet::NONE,
        ..opening(root.path(), FollowLinks::Never)
    };
    let tree = read(&Near::to(root.path()), none).unwrap();
    let top = tree.open(&TreePath::root(), false).unwrap();
    let found = top.open_file(b"f", false).unwrap().attributes().unwrap();
    assert_eq!(found, dmover_tree::EntryAttributes::default());
}

/// The name of the copy of this program that another user runs.
const PROGRAM: &str = "run_by_another_user";

/// Runs again as a user whom permissions hold back.
#[test]
fn what_may_not_be_read_is_denied() {
    let own = std::env::current_exe().unwrap();
    if own.ends_with(PROGRAM) {
        check_denied(own.parent().unwrap());
        return;
    }
    let root = scratch();
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(root.path(), 0o755);
    std::fs::write(root.path().join("f"), b"secret").unwrap();
    std::fs::create_dir(root.path().join("d")).unwrap();
    mode(&root.path().join("f"), 0);
    mode(&root.path().join("d"), 0);
    if !rustix::process::geteuid().is_root() {
        check_denied(root.path());
        mode(&root.path().join("d"), 0o700);
        return;
    }
    let program = root.path().join(PROGRAM);
    std::fs::copy(own, &program).unwrap();
    let name = "attributes::what_may_not_be_read_is_denied";
    let mut again = Command::new(&program);
    again.args(["--exact", name]).uid(65_534).gid(65_534);
    let output = again.current_dir("/").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn check_denied(root: &Path) {
    let (tree, _near) = plain(root);
    let top = tree.open(&TreePath::root(), false).unwrap();
    let error = top.open_file(b"f", false).unwrap_err();
    assert_eq!((error.class, error.errno), (ErrorClass::Denied, 13));
    assert_eq!(error.path, super::near::display(&root.join("f")));
    assert_eq!(top.enter(b"d", false).unwrap_err().class, ErrorClass::Denied);
    assert_eq!(top.look(b"f", false).unwrap().0.size, 6);
    let denied = root.join("d");
    let refused = read(&Near::to(&denied), opening(&denied, FollowLinks::Never));
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("/d': Permission denied"), "{message}");
}
