//! What the kernel refuses to a process that has confined itself. Without a harness: the process must have one thread.
#![allow(clippy::unwrap_used, reason = "tests stop")]
#![allow(clippy::disallowed_methods, reason = "paths are looked up as a user's program would")]

use dmover_host::confinement::{Allowed, confine};
use std::fs;
use std::io::ErrorKind::PermissionDenied;

fn main() {
    let place = tempfile::tempdir().unwrap();
    let at = |path: &str| place.path().join(path);
    for directory in ["read", "write", "write/one", "write/two", "away"] {
        fs::create_dir(at(directory)).unwrap();
    }
    for file in ["read/f", "write/one/f", "away/f"] {
        fs::write(at(file), "content").unwrap();
    }
    std::os::unix::fs::symlink(at("away/f"), at("read/link")).unwrap();
    let away = fs::File::open(at("away")).unwrap();
    let allowed =
        Allowed { read: vec![at("read")], write: vec![at("write")], ..Allowed::default() };
    if let Err(error) = confine(&allowed) {
        dmover_testkit::skip!("{error}");
    }
    let denied = |what: &str, result: std::io::Result<()>| {
        let error = result.expect_err(what);
        // Between trees with different limits, moves and links fail with EXDEV.
        let is_across = error.kind() == std::io::ErrorKind::CrossesDevices;
        assert!(error.kind() == PermissionDenied || is_across, "{what}: {error}");
    };
    // What is allowed.
    assert_eq!(fs::read_to_string(at("read/f")).unwrap(), "content");
    assert_eq!(fs::read_dir(at("read")).unwrap().count(), 2);
    fs::write(at("write/new"), "x").unwrap();
    fs::rename(at("write/one/f"), at("write/two/f")).unwrap();
    fs::remove_file(at("write/two/f")).unwrap();
    // What is not.
    denied("read", fs::read(at("away/f")).map(drop));
    denied("read through a link", fs::read(at("read/link")).map(drop));
    denied("list", fs::read_dir(at("away")).map(drop));
    denied("write", fs::write(at("read/f"), "x"));
    denied("create", fs::write(at("read/new"), "x"));
    denied("remove", fs::remove_file(at("read/f")));
    denied("remove elsewhere", fs::remove_file(at("away/f")));
    denied("move out", fs::rename(at("write/new"), at("away/new")));
    denied("move in", fs::rename(at("away/f"), at("write/f")));
    denied("link", fs::hard_link(at("away/f"), at("write/f")));
    denied("truncate", fs::File::options().write(true).open(at("read/f")).map(drop));
    denied("run", std::process::Command::new("/bin/true").status().map(drop));
    // Threads are confined, too, and so is what was open before.
    let inner = at("away/f");
    std::thread::spawn(move || denied("read", fs::read(inner).map(drop))).join().unwrap();
    let below = format!("/proc/self/fd/{}/f", std::os::fd::AsRawFd::as_raw_fd(&away));
    denied("read below an open directory", fs::read(below).map(drop));
    // With a second thread it would not hold for all of them.
    let waits = std::thread::spawn(std::thread::park);
    confine(&Allowed::default()).expect_err("there are two threads");
    waits.thread().unpark();
}
