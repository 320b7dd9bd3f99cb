//! `dmover doctor` as a black box: what it finds is what the file systems are known for, and it leaves no trace.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
#![allow(missing_docs, clippy::unwrap_used, reason = "tests stop")]

use std::path::Path;

use dmover_testkit::image::{FileSystem, Image};
use dmover_testkit::lanes::check::Fingerprint;
use dmover_testkit::lanes::lines::{Line, parse_lines};
use dmover_testkit::lanes::run::{Dmover, Run};
use dmover_testkit::skip;

fn dmover() -> Dmover {
    Dmover::new(env!("CARGO_BIN_EXE_dmover")).unwrap()
}

fn doctor(paths: &[&Path]) -> Run {
    let words = ["doctor".as_ref(), "--json".as_ref()].into_iter();
    dmover().run(words.chain(paths.iter().map(|path| path.as_os_str()))).unwrap()
}

/// What it says about one directory.
#[track_caller]
fn findings(path: &Path) -> Line {
    let run = doctor(&[path]);
    assert_eq!(run.code(), Some(0), "{}", run.tell());
    let mut lines = parse_lines(&run.stdout).unwrap();
    assert_eq!(lines.len(), 1, "{}", run.text());
    let line = lines.remove(0);
    assert!(line.is("doctor"), "{line:?}");
    assert_eq!(line.path(), path);
    line
}

#[test]
fn every_file_system_shows_what_it_can_do() {
    // Name; what it has; what it has not.
    let table: [(FileSystem, &str, &[&str], &[&str]); 5] = [
        (
            FileSystem::Ext4,
            "ext4",
            &["acl", "flags", "hard_links", "times_before_1970"],
            &["reflink"],
        ),
        (FileSystem::Xfs, "xfs", &["acl", "flags", "reflink", "project"], &["times_after_2446"]),
        (
            FileSystem::Btrfs,
            "btrfs",
            &["acl", "flags", "reflink", "times_after_2446"],
            &["project"],
        ),
        (
            FileSystem::Tmpfs,
            "tmpfs",
            &["acl", "devices", "holes_kept", "xattr_user"],
            &["reflink", "project"],
        ),
        (FileSystem::ZfsFuse, "", &["hard_links", "xattr_user"], &["flags", "reflink"]),
    ];
    for (file_system, name, has, lacks) in table {
        let test = format!("doctor on {file_system}");
        let Some(image) = Image::create_or_skip(&test, file_system, 64 << 20) else { continue };
        let before = Fingerprint::of(image.path()).unwrap();
        let line = findings(image.path());
        if !name.is_empty() {
            assert!(line.text("file_system").contains(name), "{line:?}");
        }
        for (fields, wanted) in [(has, true), (lacks, false)] {
            for field in fields {
                let told = line.0.get(*field).and_then(serde_json::Value::as_bool);
                assert_eq!(told, Some(wanted), "{field} on {file_system}: {line:?}");
            }
        }
        let step = if file_system == FileSystem::ZfsFuse { 1_000_000_000 } else { 1 };
        assert_eq!(line.number("time_granularity_ns"), Some(step), "{file_system}");
        assert!(line.number("available_bytes").is_some_and(|bytes| bytes > 1 << 20));
        let names = std::fs::read_dir(image.path()).unwrap().count();
        let after = Fingerprint::of(image.path()).unwrap();
        // The times of the directory itself change when something is made in it.
        let changes = before.changes(&after);
        assert!(changes.len() <= 1, "{file_system} has {names} names: {changes:?}");
    }
}

#[test]
fn it_can_be_read_by_people_and_takes_several_paths() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = dmover().run(["doctor".as_ref(), one.path().as_os_str(), other.path().as_os_str()]);
    let run = run.unwrap().expect_code(0);
    for directory in [&one, &other] {
        assert!(run.text().contains(directory.path().to_str().unwrap()), "{}", run.text());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "it left something");
    }
    assert!(
        run.text().contains("can preserve") && run.text().contains("hard links"),
        "{}",
        run.text()
    );
}

#[test]
fn what_is_no_directory_is_named() {
    let scratch = tempfile::tempdir().unwrap();
    let missing = scratch.path().join("nowhere");
    let run = doctor(&[&missing]).expect_code(2);
    assert!(run.stderr.contains("nowhere"), "{}", run.stderr);
    let run = doctor(&[&missing, scratch.path()]).expect_code(2);
    assert_eq!(parse_lines(&run.stdout).unwrap().len(), 1, "the other path is shown all the same");
    let run = dmover().run(["doctor"]).unwrap().expect_code(2);
    assert!(run.stderr.contains("PATH"), "{}", run.stderr);
}

#[test]
fn where_nothing_can_be_made_it_shows_the_rest() {
    let line = findings(Path::new("/proc/self"));
    assert!(!line.flag("probed"), "{line:?}");
    assert!(line.text("file_system").contains("proc"), "{line:?}");
    assert!(!line.text("reason").is_empty() && line.0.get("can_preserve").is_none(), "{line:?}");
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("file");
    std::fs::write(&file, "x").unwrap();
    assert!(findings(&file).flag("probed"), "a file stands for its directory");
}

#[test]
fn without_privilege_it_says_what_this_user_can_do() {
    if !rustix::process::geteuid().is_root() {
        skip!("needs root to become somebody else");
    }
    let Some(image) = Image::create_or_skip("doctor as nobody", FileSystem::Tmpfs, 8 << 20) else {
        return;
    };
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
    std::fs::set_permissions(image.path(), open).unwrap();
    let nobody = dmover().unprivileged(65534).unwrap();
    let words = ["doctor".as_ref(), "--json".as_ref(), image.path().as_os_str()];
    let run = nobody.run(words).unwrap().expect_code(0);
    let line = &parse_lines(&run.stdout).unwrap()[0];
    for field in ["devices", "owners", "xattr_trusted"] {
        assert!(!line.flag(field), "{field}: {line:?}");
    }
    assert!(line.flag("hard_links") && line.flag("symlinks"), "{line:?}");
}
