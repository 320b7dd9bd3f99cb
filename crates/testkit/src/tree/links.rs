//! Symlinks, hard links and special files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;

use anyhow::Result;
use rustix::fs::FileType;

use super::builder::{Builder, Place};

const FOREIGN: (u32, u32) = (12345, 54321);

/// Symlinks that are to be copied, never followed.
pub fn symlinks(builder: &mut Builder, place: &Place) -> Result<()> {
    builder.file(place, "target", 30)?;
    let directory = builder.directory(place, "directory")?;
    builder.file(&directory, "inside", 30)?;
    let plain: [(&str, &[u8]); 12] = [
        ("symlink-relative", b"target"),
        ("symlink-dot", b"./directory/../target"),
        ("symlink-absolute", b"/etc/hostname"),
        ("symlink-dangling", b"nowhere"),
        ("symlink-dangling-absolute", b"/nowhere/at/all"),
        ("symlink-self", b"symlink-self"),
        ("symlink-loop-1", b"symlink-loop-2"),
        ("symlink-loop-2", b"symlink-loop-1"),
        ("symlink-directory", b"directory"),
        ("symlink-directory-slash", b"directory/"),
        ("symlink-parent", b".."),
        ("symlink-outside", b"../../../../../../../etc"),
    ];
    for (case, target) in plain {
        builder.symlink(place, case, target)?;
        builder.case(case, place.join(case));
    }
    builder.symlink(place, "symlink-non-utf8", b"\xff\xfe \n target")?;
    builder.case("symlink-non-utf8", place.join("symlink-non-utf8"));
    let long: Vec<u8> =
        b"long/".iter().copied().cycle().take(builder.features.symlink_bytes).collect();
    builder.symlink(place, "symlink-long", &long)?;
    builder.case("symlink-long", place.join("symlink-long"));
    if long.len() < 4095 {
        builder.skip("symlink-4095", format!("targets have at most {} bytes", long.len()));
    }
    if builder.features.owners {
        builder.symlink(place, "symlink-owner", b"target")?;
        place.owner("symlink-owner", FOREIGN)?;
        builder.case("symlink-owner", place.join("symlink-owner"));
    }
    if builder.features.symlink_xattr {
        builder.symlink(place, "symlink-xattr", b"target")?;
        place.xattr("symlink-xattr", "trusted.symlink", b"on the link itself")?;
        builder.case("symlink-xattr", place.join("symlink-xattr"));
    } else {
        builder.skip("symlink-xattr", "no trusted attributes on symlinks");
    }
    Ok(())
}

/// Groups of names that share an inode, of every type, near and far apart.
pub fn hard_links(builder: &mut Builder, place: &Place) -> Result<()> {
    if !builder.features.hardlinks {
        builder.skip("hardlinks", "no hard links here");
        return Ok(());
    }
    let a = builder.directory(place, "a")?;
    let b = builder.directory(place, "b")?;
    builder.file(&a, "same-1", 4000)?;
    twin(builder, "hardlink-same-directory", (&a, "same-1"), &a, "same-2")?;
    builder.file(&a, "across-1", 70_000)?;
    twin(builder, "hardlink-across", (&a, "across-1"), &b, "across-2")?;
    // The pair's names sort the other way round in the second directory.
    builder.file(&b, "zz", 10)?;
    twin(builder, "hardlink-across", (&b, "zz"), &a, "aa")?;
    builder.file(&a, "empty-1", 0)?;
    twin(builder, "hardlink-empty", (&a, "empty-1"), &b, "empty-2")?;
    builder.symlink(&a, "symlink-1", b"same-1")?;
    twin(builder, "hardlink-symlink", (&a, "symlink-1"), &b, "symlink-2")?;
    builder.node(&a, "fifo-1", FileType::Fifo, (0, 0))?;
    twin(builder, "hardlink-fifo", (&a, "fifo-1"), &b, "fifo-2")?;
    builder.node(&a, "socket-1", FileType::Socket, (0, 0))?;
    twin(builder, "hardlink-socket", (&a, "socket-1"), &b, "socket-2")?;
    if builder.features.specials {
        builder.node(&a, "device-1", FileType::CharacterDevice, (1, 3))?;
        twin(builder, "hardlink-device", (&a, "device-1"), &b, "device-2")?;
    }
    if builder.features.user_xattr {
        builder.file(&a, "xattr-1", 10)?;
        a.xattr("xattr-1", "user.shared", b"by both names")?;
        twin(builder, "hardlink-xattr", (&a, "xattr-1"), &b, "xattr-2")?;
    }
    if builder.features.owners {
        builder.file(&a, "setuid-1", 10)?;
        a.owner("setuid-1", FOREIGN)?;
        a.mode("setuid-1", 0o4755)?;
        twin(builder, "hardlink-setuid", (&a, "setuid-1"), &b, "setuid-2")?;
    }
    let locked = builder.directory(place, "read-only")?;
    builder.file(&locked, "first", 50)?;
    twin(builder, "hardlink-read-only", (&locked, "first"), &b, "out-of-read-only")?;
    builder.final_mode(&locked, 0o555);
    crowd(builder, place)
}

fn twin(
    builder: &mut Builder,
    case: &str,
    from: (&Place, &str),
    to: &Place,
    name: &str,
) -> Result<()> {
    builder.link((from.0, OsStr::new(from.1)), to, name)?;
    builder.case(case, from.0.join(from.1));
    builder.case(case, to.join(name));
    Ok(())
}

/// One inode with a hundred names in ten directories.
fn crowd(builder: &mut Builder, place: &Place) -> Result<()> {
    let crowd = builder.directory(place, "crowd")?;
    builder.file(&crowd, "0", 100_000)?;
    builder.case("hardlink-crowd", crowd.join("0"));
    for directory in 0..10 {
        let here = builder.directory(&crowd, format!("d{directory}"))?;
        for name in 0..10 {
            builder.link((&crowd, OsStr::new("0")), &here, format!("{name}"))?;
            builder.case("hardlink-crowd", here.join(format!("{name}")));
        }
    }
    Ok(())
}

/// FIFOs, sockets and devices; the numbers need all bits that every file system stores.
pub fn special(builder: &mut Builder, place: &Place) -> Result<()> {
    builder.node(place, "fifo", FileType::Fifo, (0, 0))?;
    builder.case("fifo", place.join("fifo"));
    builder.node(place, "socket-node", FileType::Socket, (0, 0))?;
    builder.case("socket", place.join("socket-node"));
    let name = OsStr::new("socket-bound");
    // Some FUSE file systems have no sockets to bind.
    if UnixListener::bind(place.through_proc(name)).is_ok() {
        builder.made(place, name)?;
        builder.case("socket", place.join(name));
    } else {
        builder.skip("socket-bound", "bind is not possible");
    }
    if builder.features.owners {
        builder.node(place, "fifo-owner", FileType::Fifo, (0, 0))?;
        place.owner("fifo-owner", FOREIGN)?;
        place.mode("fifo-owner", 0o2606)?;
        builder.case("fifo-owner", place.join("fifo-owner"));
    }
    if !builder.features.specials {
        builder.skip("devices", "no device nodes here, or not for this user");
        return Ok(());
    }
    let (char, block) = (FileType::CharacterDevice, FileType::BlockDevice);
    // XFS keeps 9 bits of the major and 18 of the minor number.
    let devices = [
        ("device-null", char, (1, 3)),
        ("device-whiteout", char, (0, 0)),
        ("device-char-large", char, (240, 262_143)),
        ("device-block", block, (7, 300)),
        ("device-block-large", block, (511, 70_001)),
    ];
    for (case, kind, number) in devices {
        let made = builder.node(place, case, kind, number);
        builder.optional(case, place.join(case), made)?;
    }
    if builder.features.trusted_xattr {
        let made = place.xattr("device-null", "trusted.device", b"1");
        builder.optional("device-xattr", place.join("device-null"), made)?;
        let made = place.xattr("fifo", "trusted.fifo", b"1");
        builder.optional("fifo-xattr", place.join("fifo"), made)?;
    }
    let name = OsStr::from_bytes(b"fifo\n\xff");
    builder.node(place, name, FileType::Fifo, (0, 0))
}
