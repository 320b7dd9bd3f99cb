//! Modes, owners, extended attributes and ACLs.

use anyhow::Result;
use rustix::fs::FileType;

use super::acl::{ACCESS, Acl, DEFAULT};
use super::builder::{Builder, Place};
use super::features::{CAPABILITY, capability};

/// Modes that are easily lost, or that lock out a program which sets them too early.
pub fn modes(builder: &mut Builder, place: &Place) -> Result<()> {
    let files = builder.directory(place, "files")?;
    for mode in [
        0o0000, 0o0400, 0o0200, 0o0111, 0o0777, 0o0640, 0o4755, 0o2755, 0o6755, 0o1644, 0o2644,
        0o4000, 0o7777,
    ] {
        let name = format!("{mode:04o}");
        builder.file(&files, &name, 40)?;
        files.mode(&name, mode)?;
        builder.case(&format!("mode-file-{name}"), files.join(&name));
    }
    let directories = builder.directory(place, "directories")?;
    // Only root can list what is in the first four.
    for mode in
        [0o0000, 0o0111, 0o0200, 0o0333, 0o0500, 0o0555, 0o1777, 0o2775, 0o4755, 0o3777, 0o7777]
    {
        let name = format!("{mode:04o}");
        let directory = builder.directory(&directories, &name)?;
        builder.file(&directory, "inside", 40)?;
        let below = builder.directory(&directory, "below")?;
        builder.file(&below, "inside", 40)?;
        builder.final_mode(&directory, mode);
        builder.case(&format!("mode-directory-{name}"), directory.path);
    }
    Ok(())
}

/// Owners without an account here, up to the largest valid number.
pub fn owners(builder: &mut Builder, place: &Place) -> Result<()> {
    if !builder.features.owners {
        builder.skip("owners", "only root may give files away");
        return Ok(());
    }
    let owners = [
        (12345, 54321),
        (0, 4242),
        (4242, 0),
        (2_000_000_000, 70_000),
        (4_294_967_294, 4_294_967_294),
    ];
    for owner in owners {
        let name = format!("{}-{}", owner.0, owner.1);
        builder.file(place, format!("file-{name}"), 10)?;
        give(builder, "owner-file", place, &format!("file-{name}"), owner)?;
        let directory = builder.directory(place, format!("directory-{name}"))?;
        builder.file(&directory, "inside", 10)?;
        give(builder, "owner-directory", place, &format!("directory-{name}"), owner)?;
        builder.symlink(place, format!("symlink-{name}"), b"nowhere")?;
        give(builder, "owner-symlink", place, &format!("symlink-{name}"), owner)?;
    }
    builder.node(place, "fifo", FileType::Fifo, (0, 0))?;
    place.owner("fifo", owners[0])?;
    for mode in [0o4755, 0o2755, 0o6711] {
        let name = format!("mode-{mode:04o}");
        builder.file(place, &name, 10)?;
        // In this order: a change of owner clears the bits.
        place.owner(&name, owners[0])?;
        place.mode(&name, mode)?;
        builder.case("owner-setuid", place.join(&name));
    }
    let directory = builder.directory(place, "setgid-directory")?;
    builder.file(&directory, "foreign-group-inside", 10)?;
    place.owner("setgid-directory", owners[0])?;
    builder.final_mode(&directory, 0o2770);
    builder.case("owner-setgid-directory", directory.path);
    Ok(())
}

/// Some file systems cannot keep the largest ids.
fn give(
    builder: &mut Builder,
    case: &str,
    place: &Place,
    name: &str,
    owner: (u32, u32),
) -> Result<()> {
    let given = place.owner(name, owner);
    builder.optional(case, place.join(name), given)
}

/// Extended attributes of every name space, on files and directories.
pub fn xattrs(builder: &mut Builder, place: &Place) -> Result<()> {
    if builder.features.user_xattr {
        user_xattrs(builder, place)?;
    } else {
        builder.skip("user-xattrs", "no user attributes here");
    }
    if builder.features.trusted_xattr {
        builder.file(place, "trusted-file", 10)?;
        place.xattr("trusted-file", "trusted.secret", b"\0binary\xff\n")?;
        builder.case("trusted-file", place.join("trusted-file"));
        let directory = builder.directory(place, "trusted-directory")?;
        place.xattr("trusted-directory", "trusted.secret", b"1")?;
        builder.case("trusted-directory", directory.path);
    } else {
        builder.skip("trusted-xattrs", "no trusted attributes here, or not for this user");
    }
    if !builder.features.capability {
        builder.skip("capability", "no capabilities here, or not for this user");
        return Ok(());
    }
    builder.file(place, "capability", 10)?;
    place.mode("capability", 0o755)?;
    place.xattr("capability", CAPABILITY, &capability(1 << 10))?;
    builder.case("capability", place.join("capability"));
    builder.file(place, "capability-owner", 10)?;
    if builder.features.owners {
        // A change of owner clears capabilities, so this pair shows a wrong order.
        place.owner("capability-owner", (12345, 54321))?;
        place.mode("capability-owner", 0o6755)?;
        builder.case("capability-owner", place.join("capability-owner"));
    }
    place.xattr("capability-owner", CAPABILITY, &capability(1 << 13 | 1))
}

fn user_xattrs(builder: &mut Builder, place: &Place) -> Result<()> {
    let directory = builder.directory(place, "user-directory")?;
    builder.file(&directory, "inside", 10)?;
    builder.case("user-directory", directory.path.clone());
    for name in ["user-file", "user-directory"] {
        if name == "user-file" {
            builder.file(place, name, 10)?;
            builder.case("user-file", place.join(name));
        }
        place.xattr(name, "user.plain", b"value")?;
        place.xattr(name, "user.binary", b"\0\x01\n\xff")?;
        // FUSE and a few others cannot tell an empty value from none.
        let made = place.xattr(name, "user.empty", b"");
        builder.optional("user-empty", place.join(name), made)?;
    }
    builder.file(place, "user-many", 10)?;
    // ext4 has one block for all of them, which may be as small as 1 KiB.
    let made = (0..50_u8).try_for_each(|number| {
        place.xattr("user-many", format!("user.many-{number:02}"), &[number; 9])
    });
    builder.optional("user-many", place.join("user-many"), made)?;
    builder.file(place, "user-large", 10)?;
    let value: Vec<u8> = (0..builder.features.xattr_bytes).map(|at| (at % 251) as u8).collect();
    place.xattr("user-large", "user.large", &value)?;
    builder.case("user-large", place.join("user-large"));
    builder.file(place, "user-long-name", 10)?;
    let long = format!("user.{}", "n".repeat(250));
    let made = place.xattr("user-long-name", long, b"255 bytes of name");
    builder.optional("user-long-name", place.join("user-long-name"), made)?;
    builder.file(place, "user-odd-name", 10)?;
    let made = place.xattr("user-odd-name", b"user.\xff \n=", b"1");
    builder.optional("user-odd-name", place.join("user-odd-name"), made)?;
    // Attributes can be read and written only by who may read and write the file: not before.
    builder.file(place, "user-mode-0", 10)?;
    place.xattr("user-mode-0", "user.locked", b"1")?;
    place.mode("user-mode-0", 0)?;
    builder.case("user-mode-0", place.join("user-mode-0"));
    Ok(())
}

/// ACLs, and children of directories with a default ACL that inherited it, have their own or have none.
pub fn acls(builder: &mut Builder, place: &Place) -> Result<()> {
    if !builder.features.acl {
        builder.skip("acl", "no POSIX ACLs here");
        return Ok(());
    }
    let wide =
        Acl { base: [7, 5, 0], mask: 7, users: vec![(1, 7), (12345, 5)], groups: vec![(2, 6)] };
    // The mask takes away what the entries grant; mode 0640 shows nothing of them.
    let masked =
        Acl { base: [6, 4, 0], mask: 4, users: vec![(12345, 7)], groups: vec![(54321, 7)] };
    let many = Acl {
        base: [6, 0, 0],
        mask: 6,
        users: (1000..1060).map(|id| (id, 4)).collect(),
        groups: vec![(4_294_967_294, 2)],
    };
    for (case, acl) in [("acl-file", &wide), ("acl-file-masked", &masked), ("acl-file-many", &many)]
    {
        builder.file(place, case, 10)?;
        let made = place.xattr(case, ACCESS, &acl.encode());
        builder.optional(case, place.join(case), made)?;
    }
    if builder.features.owners {
        builder.file(place, "acl-owner", 10)?;
        place.owner("acl-owner", (12345, 54321))?;
        place.xattr("acl-owner", ACCESS, &wide.encode())?;
        builder.case("acl-owner", place.join("acl-owner"));
    }
    let directory = builder.directory(place, "acl-directory")?;
    builder.file(&directory, "inside", 10)?;
    place.xattr("acl-directory", ACCESS, &wide.encode())?;
    // A later chmod would set the mask from the group bits.
    builder.final_mode(&directory, 0o770);
    builder.case("acl-directory", directory.path);
    builder.node(place, "acl-fifo", FileType::Fifo, (0, 0))?;
    let made = place.xattr("acl-fifo", ACCESS, &wide.encode());
    builder.optional("acl-fifo", place.join("acl-fifo"), made)?;
    default_acls(builder, place, &wide, &masked)
}

fn default_acls(builder: &mut Builder, place: &Place, wide: &Acl, masked: &Acl) -> Result<()> {
    let directory = builder.directory(place, "acl-default")?;
    // Made before the default ACL is there, so they have none.
    builder.file(&directory, "without", 10)?;
    builder.case("acl-default-child-without", directory.join("without"));
    let plain = builder.directory(&directory, "directory-without")?;
    builder.file(&plain, "inside", 10)?;
    builder.case("acl-default-child-without", plain.path);
    builder.node(&directory, "fifo-without", FileType::Fifo, (0, 0))?;
    builder.symlink(&directory, "symlink", b"without")?;

    place.xattr("acl-default", DEFAULT, &wide.encode())?;
    builder.case("acl-default", directory.path.clone());
    builder.file(&directory, "inherited", 10)?;
    builder.case("acl-default-child-inherited", directory.join("inherited"));
    let heir = builder.directory(&directory, "directory-inherited")?;
    builder.file(&heir, "inside", 10)?;
    builder.case("acl-default-child-inherited", heir.path);
    builder.file(&directory, "own", 10)?;
    directory.xattr("own", ACCESS, &masked.encode())?;
    builder.case("acl-default-child-own", directory.join("own"));
    let own = builder.directory(&directory, "directory-own")?;
    directory.xattr("directory-own", DEFAULT, &masked.encode())?;
    builder.file(&own, "inside", 10)?;
    builder.case("acl-default-child-own", own.path);

    let both = builder.directory(place, "acl-both")?;
    place.xattr("acl-both", ACCESS, &masked.encode())?;
    place.xattr("acl-both", DEFAULT, &wide.encode())?;
    builder.final_mode(&both, 0o2740);
    builder.case("acl-both", both.path);
    Ok(())
}
