//! The generator really makes what its report says, as other programs see it.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests stop and print their seeds")]

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use dmover_testkit::compare::{CompareOptions, assert_same_trees, compare};
use dmover_testkit::image::{FileSystem, Image, Mounted};
use dmover_testkit::shapes::{self, Shape};
use dmover_testkit::tree::{self, HardTree, TreeOptions, TreeReport};

const SIZE: u64 = 500 << 20;

fn generate(image: &Mounted, name: &str, seed: u64) -> (std::path::PathBuf, TreeReport) {
    let root = image.path().join(name);
    let options = TreeOptions::probe(image.path(), 200).unwrap();
    println!("seed {seed} on {}", image.file_system());
    let report = HardTree::generate(&root, seed, &options).unwrap();
    (root, report)
}

fn output(root: &Path, command: &[&str]) -> String {
    let output = Command::new(command[0])
        .args(&command[1..])
        .current_dir(root)
        .envs([("LC_ALL", "C"), ("TZ", "UTC")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

fn stat(root: &Path, format: &str, path: &str) -> String {
    output(root, &["stat", "-c", format, path])
}

#[test]
fn ext4_holds_every_case_but_a_few() {
    let Some(image) = Image::create_or_skip("tree on ext4", FileSystem::Ext4, SIZE) else { return };
    let (root, report) = generate(&image, "tree", 21);
    let skipped: Vec<&str> = report.skipped.iter().map(|(case, _)| case.as_str()).collect();
    // Project ids need a kernel option that not every kernel has.
    let without_project: Vec<&str> = skipped.into_iter().filter(|c| *c != "project").collect();
    assert_eq!(without_project, ["flag-nocow", "flag-nocompress"]);
    for (case, path) in &report.cases {
        if !case.starts_with("long-path") {
            assert!(root.join(path).symlink_metadata().is_ok(), "{case}: {path:?}");
        }
    }
    let names = output(&root, &["find", ".", "-printf", "."]).len() as u64;
    assert_eq!(names, report.entries + 1, "entries, and the root itself");
    names_and_links(&root);
    content(&root);
    metadata(&root);
    times(&root);
    flags(&root);
}

fn names_and_links(root: &Path) {
    let files = root.join("names/files");
    for name in ["first\nsecond", "a\tb", "-rf", "it's", "*?[a-z]{b,c}", "a\\b", " ", "a "] {
        assert!(files.join(name).exists(), "{name:?}");
    }
    let longest =
        output(root, &["find", "names/files", "-regextype", "egrep", "-regex", ".*/n{255}"]);
    assert!(longest.ends_with(&"n".repeat(255)));
    assert!(root.join("deep").join("d/".repeat(300)).join("f").exists());
    let depth = output(root, &["find", "long-path", "-name", "far", "-printf", "%d %n"]);
    assert_eq!(depth, "21 2");

    assert_eq!(
        stat(root, "%N", "symlinks/symlink-self"),
        "'symlinks/symlink-self' -> 'symlink-self'"
    );
    assert_eq!(stat(root, "%s", "symlinks/symlink-long"), "4095");
    assert_eq!(stat(root, "%u:%g", "symlinks/symlink-owner"), "12345:54321");
    let attribute =
        ["getfattr", "-h", "--only-values", "-n", "trusted.symlink", "symlinks/symlink-xattr"];
    assert_eq!(output(root, &attribute), "on the link itself");

    for pair in [
        ["a/across-1", "b/across-2"],
        ["a/symlink-1", "b/symlink-2"],
        ["a/fifo-1", "b/fifo-2"],
        ["a/device-1", "b/device-2"],
        ["a/socket-1", "b/socket-2"],
        ["read-only/first", "b/out-of-read-only"],
    ] {
        let inodes = pair.map(|name| root.join("hardlinks").join(name).symlink_metadata().unwrap());
        assert_eq!(inodes[0].ino(), inodes[1].ino(), "{pair:?}");
        assert_eq!(inodes[0].nlink(), 2, "{pair:?}");
    }
    assert_eq!(stat(root, "%h", "hardlinks/crowd/d9/9"), "101");
    assert_eq!(stat(root, "%F", "special/fifo"), "fifo");
    assert_eq!(stat(root, "%F", "special/socket-bound"), "socket");
    assert_eq!(stat(root, "%F %Hr:%Lr", "special/device-whiteout"), "character special file 0:0");
    assert_eq!(
        stat(root, "%F %Hr:%Lr", "special/device-char-large"),
        "character special file 240:262143"
    );
    assert_eq!(
        stat(root, "%F %Hr:%Lr", "special/device-block-large"),
        "block special file 511:70001"
    );
}

fn content(root: &Path) {
    for size in [0, 1, 511, 4096, 65537, 1_048_575] {
        assert_eq!(stat(root, "%s", &format!("sizes/{size}")), size.to_string());
    }
    let metadata = root.join("huge/sparse-over-4g").metadata().unwrap();
    assert!(metadata.size() > 5 << 30);
    assert!(metadata.blocks() * 512 < 1 << 20);
    assert_eq!(stat(root, "%b %s", "sparse/sparse-whole-odd"), "0 3145745");
    assert_eq!(stat(root, "%b", "sparse/zeros-written"), "512");
    assert_eq!(stat(root, "%s", "sparse/reserved-beyond-end"), "10000");
    assert!(root.join("sparse/reserved-beyond-end").metadata().unwrap().blocks() >= 2048);
    let odd = std::fs::read(root.join("sparse/sparse-odd")).unwrap();
    let data: Vec<usize> = (0..200_000).filter(|at| odd[*at] != 0).collect();
    assert_eq!(data, [1, 65537, 65538, 65539]);
    let ordinary = std::fs::read(root.join("sizes/1048577")).unwrap();
    assert!(ordinary.iter().all(|byte| *byte != 0));
}

fn metadata(root: &Path) {
    for mode in ["0", "400", "200", "777", "4755", "2755", "1644", "2644", "7777"] {
        assert_eq!(stat(root, "%a", &format!("modes/files/{mode:0>4}")), mode);
    }
    for mode in ["0", "111", "555", "1777", "2775", "7777"] {
        assert_eq!(stat(root, "%a", &format!("modes/directories/{mode:0>4}")), mode);
    }
    assert_eq!(stat(root, "%u:%g %a", "owners/mode-4755"), "12345:54321 4755");
    assert_eq!(stat(root, "%u", "owners/directory-4294967294-4294967294"), "4294967294");
    let dump = output(root, &["getfattr", "-d", "-m-", "-e", "hex", "xattrs/user-directory"]);
    for line in ["user.binary=0x00010aff", "user.empty", "user.plain=0x76616c7565"] {
        assert!(dump.contains(line), "{dump}");
    }
    let many = output(root, &["getfattr", "-m-", "xattrs/user-many"]);
    assert_eq!(many.lines().filter(|line| line.starts_with("user.many-")).count(), 50);
    let trusted = ["getfattr", "-n", "trusted.secret", "-e", "hex", "xattrs/trusted-file"];
    assert!(output(root, &trusted).ends_with("0x0062696e617279ff0a"));
    assert_eq!(
        output(root, &["getcap", "xattrs/capability"]),
        "xattrs/capability cap_net_bind_service=ep"
    );
    assert_eq!(stat(root, "%u %a", "xattrs/capability-owner"), "12345 6755");

    let acl = output(root, &["getfacl", "-nc", "acl/acl-file-masked"]);
    assert!(acl.contains("user:12345:rwx\t#effective:r--"), "{acl}");
    assert_eq!(stat(root, "%a", "acl/acl-file-masked"), "640");
    let default = output(root, &["getfacl", "-ncd", "acl/acl-default"]);
    assert!(default.contains("user:12345:r-x"), "{default}");
    let count = |path: &str| output(root, &["getfacl", "-nc", path]).lines().count();
    assert_eq!(count("acl/acl-default/without"), 3);
    assert_eq!(count("acl/acl-default/inherited"), 7);
    assert_eq!(count("acl/acl-default/directory-without"), 3);
    assert_eq!(count("acl/acl-default/directory-inherited"), 14);
}

fn times(root: &Path) {
    let modified = |path: &str| stat(root, "%y", path);
    assert_eq!(modified("times/file-epoch-minus-1ns"), "1969-12-31 23:59:59.999999999 +0000");
    assert_eq!(modified("times/symlink-2200"), "2200-01-01 00:00:00.123456789 +0000");
    assert_eq!(modified("times/directory-1960"), "1960-01-01 00:00:00.000000005 +0000");
    assert_eq!(modified("times/fifo-2038"), "2038-01-19 03:14:08.000000001 +0000");
    assert_eq!(modified("times/file-last"), "2446-05-10 22:38:55.000000000 +0000");
    assert_eq!(modified("."), "2200-01-01 00:00:00.123456789 +0000");
    // Nothing was touched after its time was set.
    assert_eq!(
        output(root, &["find", ".", "-newermt", "2023-12-01", "-not", "-newermt", "2037-01-01"]),
        ""
    );
}

fn flags(root: &Path) {
    for (name, letter) in [
        ("immutable-file", 'i'),
        ("immutable-directory", 'i'),
        ("append-file", 'a'),
        ("append-directory", 'a'),
        ("nodump-file", 'd'),
        ("noatime-directory", 'A'),
        ("sync-file", 'S'),
        ("dirsync-directory", 'D'),
    ] {
        let line = output(root, &["lsattr", "-d", &format!("flags/{name}")]);
        let flags = line.split(' ').next().unwrap_or_default();
        assert!(flags.contains(letter), "{line}");
    }
}

#[test]
fn xfs_holds_project_ids() {
    let Some(image) = Image::create_or_skip("tree on xfs", FileSystem::Xfs, SIZE) else { return };
    let (root, _) = generate(&image, "tree", 22);
    for (path, project) in [
        ("file", "4242"),
        ("large", "4000000000"),
        ("directory/before", "0"),
        ("directory/below/inside", "4242"),
    ] {
        let path = format!("project/{path}");
        assert_eq!(
            output(&root, &["xfs_io", "-r", "-c", "lsproj", &path]),
            format!("projid = {project}")
        );
    }
}

#[test]
fn btrfs_holds_its_own_flags() {
    let Some(image) = Image::create_or_skip("tree on btrfs", FileSystem::Btrfs, SIZE) else {
        return;
    };
    let (root, _) = generate(&image, "tree", 23);
    for (name, letter) in
        [("nocow-file", 'C'), ("compress-directory", 'c'), ("nocompress-file", 'm')]
    {
        let line = output(&root, &["lsattr", "-d", &format!("flags/{name}")]);
        assert!(line.split(' ').next().unwrap_or_default().contains(letter), "{line}");
    }
}

#[test]
fn the_same_seed_makes_the_same_tree_even_after_a_remount() {
    for file_system in FileSystem::ALL {
        let test = format!("seeds on {file_system}");
        let Some(mut image) = Image::create_or_skip(&test, file_system, SIZE) else { continue };
        let (first, report) = generate(&image, "first", 31);
        if file_system != FileSystem::Tmpfs {
            image.unmount().unwrap();
            image.mount().unwrap();
        }
        let (second, _) = generate(&image, "second", 31);
        let options = CompareOptions { atime: true, ..Default::default() };
        assert_same_trees(&first, &second, &options);
        assert!(report.entries > 1000 && report.path("fifo").is_some(), "{file_system}");

        let (other, _) = generate(&image, "other", 32);
        assert!(!compare(&first, &other, &options).unwrap().is_empty(), "{file_system}");
        for root in [first, second, other] {
            tree::remove(&root).unwrap();
            assert!(!root.exists());
        }
    }
}

#[test]
fn flags_have_to_be_cleared_before_a_tree_can_go() {
    let Some(image) = Image::create_or_skip("cleanup", FileSystem::Ext4, SIZE) else { return };
    let (root, _) = generate(&image, "tree", 41);
    assert!(std::fs::remove_dir_all(&root).is_err());
    tree::cleanup(&root).unwrap();
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn groups_can_be_left_out_and_names_are_checked() {
    let root = tempfile::tempdir().unwrap();
    let options = TreeOptions::probe(root.path(), 0).unwrap().without("deep").without("flags");
    let tree = root.path().join("tree");
    HardTree::generate(&tree, 1, &options).unwrap();
    assert!(!tree.join("deep").exists() && tree.join("names").exists());
    assert!(HardTree::generate(&tree, 1, &options).is_err(), "not empty any more");
    let fewer = options.clone().without("sizes");
    HardTree::generate(&root.path().join("fewer"), 1, &fewer).unwrap();
    let [all, fewer] = ["tree/xattrs", "fewer/xattrs"].map(|path| root.path().join(path));
    assert_same_trees(&all, &fewer, &CompareOptions::default());
    let unknown = options.without("no-such-group");
    assert!(HardTree::generate(&root.path().join("other"), 1, &unknown).is_err());
}

#[test]
fn shapes_have_their_counts_and_sizes() {
    let root = tempfile::tempdir().unwrap();
    let made = shapes::generate(root.path(), Shape::files_93_mb(), 0.001, 1).unwrap();
    assert_eq!(made.count, 8);
    let total = output(root.path(), &["find", ".", "-type", "f", "-printf", "%s\n"]);
    let sizes: Vec<u64> = total.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(sizes, [made.size_bytes; 8]);
    assert_eq!(made.total_bytes() / 1000, 378 * 93);
}
