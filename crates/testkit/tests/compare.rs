//! The comparer finds every single damage, and nothing where there is none.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests stop and print their seeds")]

use std::path::Path;
use std::process::Command;

use dmover_testkit::compare::{
    CompareOptions, assert_same_trees, compare, rsync_check, snapshot_atimes,
};
use dmover_testkit::image::{FileSystem, Image, Mounted};
use dmover_testkit::tree::{HardTree, TreeOptions};

const SIZE: u64 = 400 << 20;

/// Makes a small tree with one entry of each kind at `$S`, and a faithful copy at `$D`.
const SMALL_TREE: &str = r#"
mkdir "$S" "$S/dir" "$S/dir/sub" "$S/defaults"
echo 0123456789 > "$S/file"; cp "$S/file" "$S/twin"
echo set > "$S/setuid"; chown 12345:54321 "$S/setuid"; chmod 4755 "$S/setuid"
echo first > "$S/dir/link1"; ln "$S/dir/link1" "$S/dir/sub/link2"
ln -s target "$S/symlink"; setfattr -h -n trusted.s -v 1 "$S/symlink"
mkfifo "$S/fifo"; mknod "$S/device" c 1 3
truncate -s 8M "$S/sparse"; echo end >> "$S/sparse"
echo x > "$S/xattr"; setfattr -n user.x -v 1 "$S/xattr"; setfattr -n user.y -v 1 "$S/dir"
echo x > "$S/acl"; setfacl -m u:12345:r,g:54321:rw "$S/acl"
setfacl -d -m u:12345:rwx "$S/defaults"
echo x > "$S/capability"; setcap cap_net_raw+ep "$S/capability"
echo x > "$S/flagged"; chattr +d "$S/flagged"
echo x > "$S/$(printf 'odd\n\377')"
touch -d @1000000000.000000001 "$S/file" "$S/twin"
touch -h -d @1100000000.000000001 "$S/symlink"
touch -d @1200000000.000000001 "$S/fifo" "$S/dir/sub" "$S/dir" "$S"
cp -a "$S" "$D"; chattr +d "$D/flagged"
"#;

/// Damage, the script that does it, and exactly what has to be found as "kind path".
type Damage = (&'static str, &'static str, &'static [&'static str]);

/// `fix` gives back the modification times that the damage should not change.
const DAMAGES: &[Damage] = &[
    ("nothing", "true", &[]),
    (
        "byte",
        "printf X | dd of=$D/file bs=1 seek=7 conv=notrunc status=none; fix file",
        &["content file"],
    ),
    (
        "byte far in",
        "printf X | dd of=$D/sparse bs=1 seek=8388609 conv=notrunc status=none; fix sparse",
        &["content sparse"],
    ),
    (
        "byte in a hole",
        "printf X | dd of=$D/sparse bs=1 seek=3000000 conv=notrunc status=none; fix sparse",
        &["content sparse"],
    ),
    ("truncated", "truncate -s -1 $D/file; fix file", &["size file"]),
    ("longer", "echo x >> $D/file; fix file", &["size file"]),
    ("mode", "chmod o+x $D/file", &["mode file"]),
    ("mode of a directory", "chmod g+s $D/dir", &["mode dir"]),
    ("mode of the top", "chmod 700 $D", &["mode "]),
    ("set-id lost", "chmod u-s $D/setuid", &["mode setuid"]),
    ("owner", "chown 1 $D/file", &["uid file"]),
    ("group", "chgrp 1 $D/file", &["gid file"]),
    ("owner of a symlink", "chown -h 1 $D/symlink", &["uid symlink"]),
    ("owner of a directory", "chown 1:1 $D/dir", &["gid dir", "uid dir"]),
    ("1 ns", "touch -d @1000000000.000000002 $D/file", &["mtime file"]),
    ("time of a symlink", "touch -h -d @1100000000 $D/symlink", &["mtime symlink"]),
    ("time of a directory", "touch -d @1200000000 $D/dir/sub", &["mtime dir/sub"]),
    ("time of the top", "touch -d @1200000000 $D", &["mtime "]),
    ("time of a FIFO", "touch -d @1200000000 $D/fifo", &["mtime fifo"]),
    ("xattr lost", "setfattr -x user.x $D/xattr", &["xattr xattr"]),
    ("xattr changed", "setfattr -n user.x -v 2 $D/xattr", &["xattr xattr"]),
    ("xattr added", "setfattr -n user.z -v 2 $D/xattr", &["xattr xattr"]),
    ("xattr of a directory", "setfattr -x user.y $D/dir", &["xattr dir"]),
    ("xattr of a symlink", "setfattr -h -x trusted.s $D/symlink", &["xattr symlink"]),
    ("xattr of a FIFO", "setfattr -n trusted.z -v 1 $D/fifo", &["xattr fifo"]),
    ("ACL lost", "setfacl -x u:12345 $D/acl", &["acl acl"]),
    ("ACL leaked", "setfacl -m u:1:r $D/file", &["acl file"]),
    ("default ACL lost", "setfacl -k $D/defaults", &["acl defaults"]),
    ("capability lost", "setcap -r $D/capability", &["capability capability"]),
    ("hole filled", "cat $S/sparse > $D/sparse; fix sparse", &["allocation sparse"]),
    (
        "hard link broken",
        "cp -a $D/dir/link1 $D/dir/x; mv $D/dir/x $D/dir/sub/link2; fix dir/sub; fix dir",
        &["hardlink dir/sub/link2"],
    ),
    ("hard link invented", "ln -f $D/file $D/twin; fix .", &["hardlink twin"]),
    ("hard link to the source", "ln -f $S/file $D/file; fix .", &["hardlink file"]),
    ("extra", "touch $D/dir/new; fix dir", &["extra dir/new"]),
    ("missing", "rm $D/dir/link1; fix dir", &["missing dir/link1"]),
    ("missing directory", "rm -r $D/dir/sub; fix dir", &["missing dir/sub"]),
    ("left over", "touch $D/dir/.dmover-1-1-abc; fix dir", &["leftover dir/.dmover-1-1-abc"]),
    (
        "renamed by a byte",
        "mv \"$D/$(printf 'odd\\n\\377')\" $D/odd; fix .",
        &["extra odd", "missing odd\n\\xff"],
    ),
    ("type", "rm $D/file; mkdir $D/file; fix .", &["type file"]),
    ("followed", "rm $D/symlink; echo x > $D/symlink; fix .", &["type symlink"]),
    (
        "target",
        "ln -sfn targex $D/symlink; setfattr -h -n trusted.s -v 1 $D/symlink; fix symlink; fix .",
        &["target symlink"],
    ),
    ("device number", "rm $D/device; mknod $D/device c 1 5; fix device; fix .", &["rdev device"]),
    ("device as block", "rm $D/device; mknod $D/device b 1 3; fix device; fix .", &["type device"]),
    ("flag lost", "chattr -d $D/flagged", &["flags flagged"]),
    ("flag added", "chattr +i $D/file", &["flags file"]),
    ("flag of a directory", "chattr +A $D/dir", &["flags dir"]),
];

fn shell(script: &str, source: &Path, destination: &Path) {
    let fix = r#"set -eu; umask 022; fix() { touch -h -r "$S/$1" "$D/$1"; }; "#;
    let output = Command::new("bash")
        .args(["-c", &format!("{fix}{script}")])
        .envs([("S", source), ("D", destination)])
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{script}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn image(test: &str, file_system: FileSystem) -> Option<Mounted> {
    Image::create_or_skip(test, file_system, SIZE)
}

/// Like `Path`'s debug form, but only bytes that are not text are escaped.
fn text(path: &Path) -> String {
    use std::fmt::Write;
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes().utf8_chunks().fold(String::new(), |mut text, chunk| {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| write!(text, "\\x{byte:02x}").unwrap());
        text
    })
}

#[test]
fn every_damage_is_found_and_nothing_else() {
    let Some(image) = image("comparer", FileSystem::Ext4) else { return };
    for (number, (name, script, expected)) in DAMAGES.iter().enumerate() {
        let source = image.path().join(format!("source{number}"));
        let destination = image.path().join(format!("destination{number}"));
        shell(SMALL_TREE, &source, &destination);
        shell(script, &source, &destination);
        let differences = compare(&source, &destination, &CompareOptions::default()).unwrap();
        let mut found: Vec<String> =
            differences.iter().map(|d| format!("{} {}", d.kind, text(&d.path))).collect();
        found.sort();
        assert_eq!(found, *expected, "damage: {name}");
        // What is ignored by kind is not found.
        let mut options = CompareOptions::default();
        options.ignore.extend(differences.iter().map(|d| d.kind.clone()));
        assert_same_trees(&source, &destination, &options);
        dmover_testkit::tree::remove(&destination).unwrap();
        dmover_testkit::tree::remove(&source).unwrap();
    }
}

#[test]
fn options_narrow_what_counts() {
    let Some(image) = image("comparer options", FileSystem::Ext4) else { return };
    let (source, destination) = (image.path().join("source"), image.path().join("destination"));
    shell(SMALL_TREE, &source, &destination);
    shell("touch -m -d @1000000000.5 $D/file; touch -h -d @5 $D/symlink", &source, &destination);
    let found = |options: &CompareOptions| -> Vec<String> {
        let differences = compare(&source, &destination, options).unwrap();
        differences.iter().map(|d| format!("{}@{}", d.kind, d.entry_type)).collect()
    };
    assert_eq!(found(&CompareOptions::default()), ["mtime@file", "mtime@symlink"]);
    assert_eq!(found(&CompareOptions::default().ignoring("mtime@symlink")), ["mtime@file"]);
    let second = CompareOptions { mtime_granularity_ns: 1_000_000_000, ..Default::default() };
    assert_eq!(found(&second), ["mtime@symlink"]);
    assert_eq!(found(&CompareOptions { limit: 1, ..Default::default() }).len(), 1);

    let atimes = CompareOptions { atime: true, ..Default::default() }.ignoring("mtime");
    shell("cd $S; find . -exec touch -h -a -r {} $D/{} ';'", &source, &destination);
    shell("touch -a -d @7 $D/twin", &source, &destination);
    assert_eq!(found(&atimes), ["atime@file"]);

    shell("touch -d @1200000001 $D; setfattr -x user.x $D/xattr", &source, &destination);
    let options = CompareOptions { ignore_xattrs: vec!["user.*".into()], ..Default::default() };
    assert_eq!(found(&options.ignoring("mtime@top")), ["mtime@file", "mtime@symlink"]);
}

#[test]
fn project_ids_are_compared() {
    let Some(image) = image("project ids", FileSystem::Xfs) else { return };
    let (source, destination) = (image.path().join("source"), image.path().join("destination"));
    shell(SMALL_TREE, &source, &destination);
    assert_same_trees(&source, &destination, &CompareOptions::default());
    shell("xfs_io -c 'chproj 7' $D/file; xfs_io -c 'chattr +P' $D/dir", &source, &destination);
    let mut found = compare(&source, &destination, &CompareOptions::default()).unwrap();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    let found: Vec<_> = found.iter().map(|d| (d.kind.as_str(), d.path.to_str().unwrap())).collect();
    assert_eq!(found, [("project", "dir"), ("project", "file")]);
}

#[test]
fn an_unreadable_tree_is_an_error_not_a_match() {
    let empty = tempfile::tempdir().unwrap();
    let absent = empty.path().join("absent");
    assert!(compare(empty.path(), &absent, &CompareOptions::default()).is_err());
    assert!(compare(&absent, empty.path(), &CompareOptions::default()).is_err());
}

#[test]
fn a_faithful_copy_has_no_differences() {
    for file_system in [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs, FileSystem::Tmpfs] {
        let test = format!("copy on {file_system}");
        let Some(image) = image(&test, file_system) else { continue };
        // So that cp does not change what rsync compares.
        image.remount("noatime").unwrap();
        let (source, destination) = (image.path().join("source"), image.path().join("copy"));
        // cp knows neither paths beyond PATH_MAX nor flags nor project ids.
        let options = TreeOptions::probe(image.path(), 300)
            .unwrap()
            .without("long-path")
            .without("huge")
            .without("flags")
            .without("project");
        println!("seed 11 on {file_system}");
        HardTree::generate(&source, 11, &options).unwrap();
        shell("cp -a --sparse=always $S $D", &source, &destination);
        assert_same_trees(&source, &destination, &CompareOptions::default());
        assert_eq!(rsync_check(&source, &destination).unwrap(), Vec::<String>::new());

        shell(
            "rm $D/sizes/4096; printf X | dd of=$D/sizes/4095 conv=notrunc bs=1 status=none; fix sizes/4095; fix sizes",
            &source,
            &destination,
        );
        let lines = rsync_check(&source, &destination).unwrap();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with(">fc") && lines[0].ends_with("sizes/4095"), "{lines:?}");
        assert!(lines[1].starts_with(">f+++") && lines[1].ends_with("sizes/4096"), "{lines:?}");
    }
}

#[test]
fn a_copy_to_another_file_system_keeps_what_both_can_hold() {
    let kinds = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs, FileSystem::Tmpfs];
    let images: Vec<Mounted> =
        kinds.iter().filter_map(|kind| image(&format!("copy from {kind}"), *kind)).collect();
    for (from, to) in images.iter().flat_map(|from| images.iter().map(move |to| (from, to))) {
        let (source, destination) = (from.path().join("source"), to.path().join("copy"));
        let mut options = TreeOptions::probe(from.path(), 100)
            .unwrap()
            .without("long-path")
            .without("flags")
            .without("project");
        options.features =
            options.features.common(&TreeOptions::probe(to.path(), 0).unwrap().features);
        println!("seed 13 from {} to {}", from.file_system(), to.file_system());
        HardTree::generate(&source, 13, &options).unwrap();
        shell("cp -a --sparse=always $S $D", &source, &destination);
        let mut options = CompareOptions::default();
        if to.file_system() == FileSystem::Xfs {
            // cp makes files longer as it writes, so XFS allocates ahead of each piece of data.
            options = options.ignoring("allocation");
        }
        assert_same_trees(&source, &destination, &options);
        dmover_testkit::tree::remove(&source).unwrap();
        dmover_testkit::tree::remove(&destination).unwrap();
    }
}

#[test]
fn comparing_changes_no_access_time() {
    for file_system in [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs, FileSystem::Tmpfs] {
        let test = format!("access times on {file_system}");
        let Some(image) = image(&test, file_system) else { continue };
        let (source, destination) = (image.path().join("source"), image.path().join("copy"));
        let options = TreeOptions::probe(image.path(), 100).unwrap().without("huge");
        println!("seed 12 on {file_system}");
        HardTree::generate(&source, 12, &options).unwrap();
        HardTree::generate(&destination, 12, &options).unwrap();
        let before = [&source, &destination].map(|root| snapshot_atimes(root).unwrap());
        let options = CompareOptions { atime: true, ..Default::default() };
        assert_same_trees(&source, &destination, &options);
        rsync_check(&source, &destination).unwrap();
        let after = [&source, &destination].map(|root| snapshot_atimes(root).unwrap());
        for (before, after) in before.into_iter().zip(after) {
            before.assert_same(&after);
        }
    }
}

#[test]
fn a_changed_access_time_is_noticed() {
    let Some(image) = image("access times", FileSystem::Ext4) else { return };
    let source = image.path().join("source");
    shell(SMALL_TREE, &source, &image.path().join("copy"));
    let before = snapshot_atimes(&source).unwrap();
    before.assert_same(&snapshot_atimes(&source).unwrap());
    shell("cat $S/file > /dev/null; ls $S/dir > /dev/null", &source, &source);
    let after = snapshot_atimes(&source).unwrap();
    // relatime counts a read only if the last one was before the last change.
    assert_eq!(before.differences(&after).len(), 0);
    shell("touch -a -d @1 $S/file $S/dir", &source, &source);
    let before = snapshot_atimes(&source).unwrap();
    shell("cat $S/file > /dev/null; ls $S/dir > /dev/null", &source, &source);
    let after = snapshot_atimes(&source).unwrap();
    assert_eq!(before.differences(&after).len(), 2);
}
