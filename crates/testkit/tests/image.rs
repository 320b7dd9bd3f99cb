//! Images mount, unmount and disappear, whatever happens to their users.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests stop and print their seeds")]

use std::process::Command;

use dmover_testkit::image::{FileSystem, Image, ImageOptions, base_directory};
use dmover_testkit::skip;

const SIZE: u64 = 64 << 20;

fn mounted_type(path: &std::path::Path) -> String {
    let output = Command::new("stat").args(["-f", "-c", "%T"]).arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn mount_table() -> String {
    std::fs::read_to_string("/proc/self/mountinfo").unwrap()
}

#[test]
fn every_file_system_mounts_keeps_and_disappears() {
    for (file_system, name) in [
        (FileSystem::Ext4, "ext2/ext3"),
        (FileSystem::Xfs, "xfs"),
        (FileSystem::Btrfs, "btrfs"),
        (FileSystem::Tmpfs, "tmpfs"),
        (FileSystem::ZfsFuse, "fuseblk"),
    ] {
        let test = format!("images of {file_system}");
        let Some(mut image) = Image::create_or_skip(&test, file_system, SIZE) else { continue };
        assert_eq!(mounted_type(image.path()), name, "{file_system}");
        let file = image.path().join("file");
        std::fs::write(&file, "kept").unwrap();
        image.unmount().unwrap();
        assert!(!file.exists(), "{file_system} is unmounted");
        image.mount().unwrap();
        assert_eq!(file.exists(), file_system != FileSystem::Tmpfs, "{file_system}");
        let directory = image.path().parent().unwrap().to_owned();
        drop(image);
        assert!(!directory.exists(), "{file_system} left {directory:?}");
        assert!(!mount_table().contains(directory.to_str().unwrap()), "{file_system}");
    }
}

#[test]
fn a_panicking_test_leaves_nothing() {
    let Some(image) = Image::create_or_skip("panic", FileSystem::Ext4, SIZE) else { return };
    let directory = image.path().parent().unwrap().to_owned();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _open = std::fs::File::create(image.path().join("open")).unwrap();
        panic!("as a failing test does");
    }));
    assert!(outcome.is_err());
    assert!(!directory.exists());
}

#[test]
fn sixteen_images_at_once() {
    let handles: Vec<_> =
        (0..16).map(|_| std::thread::spawn(|| Image::create(FileSystem::Ext4, 16 << 20))).collect();
    let images: Result<Vec<_>, _> = handles.into_iter().map(|h| h.join().unwrap()).collect();
    match images {
        Ok(images) => {
            for image in &images {
                assert_eq!(mounted_type(image.path()), "ext2/ext3");
            }
        }
        Err(unavailable) => skip!("{unavailable}"),
    }
}

#[test]
fn read_only_and_further_options() {
    let options = ImageOptions {
        size_bytes: SIZE,
        mount_options: vec!["noatime".into()],
        ..ImageOptions::default()
    };
    let Ok(image) = Image::create_with(FileSystem::Ext4, &options) else {
        skip!("no ext4 images here");
    };
    let path = image.path().to_str().unwrap().to_owned();
    assert!(mount_table().lines().any(|line| line.contains(&path) && line.contains("noatime")));
    image.remount("ro").unwrap();
    let error = std::fs::write(image.path().join("file"), "no").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
}

#[test]
fn unavailable_says_why() {
    let options = ImageOptions {
        size_bytes: SIZE,
        mkfs_arguments: vec!["--no-such-option".into()],
        ..ImageOptions::default()
    };
    let unavailable = Image::create_with(FileSystem::Ext4, &options).unwrap_err();
    assert!(unavailable.to_string().starts_with("no ext4 here: "), "{unavailable}");
}

#[test]
fn an_abandoned_image_is_swept() {
    let Some(_first) = Image::create_or_skip("sweep", FileSystem::Tmpfs, SIZE) else { return };
    // What a process that was killed an hour ago has left: nobody holds the lock.
    let abandoned = base_directory().unwrap().join(format!("image-killed-{}", std::process::id()));
    let mount = abandoned.join("mount");
    std::fs::create_dir_all(&mount).unwrap();
    let run = |command: &mut Command| assert!(command.status().unwrap().success());
    run(Command::new("mount").args(["-t", "tmpfs", "dmover-test"]).arg(&mount));
    run(Command::new("touch").args(["-d", "1 hour ago"]).arg(&abandoned));
    let second = Image::create(FileSystem::Tmpfs, SIZE).unwrap();
    assert!(!abandoned.exists());
    assert!(second.path().exists());
}

#[test]
fn pools_of_several_processes_share_one_daemon() {
    let Some(first) = Image::create_or_skip("zfs", FileSystem::ZfsFuse, SIZE) else { return };
    let second = Image::create(FileSystem::ZfsFuse, SIZE).unwrap();
    std::fs::write(first.path().join("file"), "one").unwrap();
    drop(first);
    std::fs::write(second.path().join("file"), "two").unwrap();
    assert_eq!(std::fs::read_to_string(second.path().join("file")).unwrap(), "two");
}
