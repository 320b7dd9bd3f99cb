//! Names and paths that break programs which treat them as text, or as short.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use anyhow::Result;

use super::builder::{Builder, Place};

const DEPTH: usize = 300;
/// 20 names of 250 bytes make a path of 5020 bytes; `PATH_MAX` is 4096.
const LONG_NAMES: usize = 20;

const NAMES: [(&str, &[u8]); 36] = [
    ("name-newline", b"first\nsecond"),
    ("name-newline-end", b"end\n"),
    ("name-return", b"a\rb"),
    ("name-tab", b"a\tb"),
    ("name-control", b"\x01\x02\x07\x08\x1b[31m\x7f"),
    ("name-invalid-utf8", b"\xff\xfe\xc3("),
    ("name-latin1", b"caf\xe9"),
    ("name-surrogate", b"\xed\xa0\x80"),
    ("name-dash", b"-"),
    ("name-option", b"-rf"),
    ("name-long-option", b"--delete"),
    ("name-single-quote", b"it's"),
    ("name-double-quote", b"a\"b"),
    ("name-back-quote", b"`id`"),
    ("name-dollar", b"$HOME$(id)"),
    ("name-shell", b";&|<>#!~"),
    ("name-glob", b"*?[a-z]{b,c}"),
    ("name-backslash", b"a\\b"),
    ("name-escape", b"a\\nb\\#012"),
    ("name-percent", b"%2F%s%n"),
    ("name-colon", b"host:path"),
    ("name-equals", b"a=b,c"),
    ("name-blank", b" "),
    ("name-leading-blank", b" a"),
    ("name-trailing-blank", b"a "),
    ("name-hidden", b".hidden"),
    ("name-three-dots", b"..."),
    ("name-trailing-dot", b"a."),
    ("name-case-upper", b"CASE"),
    ("name-case-lower", b"case"),
    ("name-composed", "é-composed".as_bytes()),
    ("name-decomposed", "e\u{301}-composed".as_bytes()),
    ("name-emoji", "🦀".as_bytes()),
    ("name-right-to-left", "\u{202e}txt.exe".as_bytes()),
    ("name-byte-order-mark", "\u{feff}a".as_bytes()),
    ("name-suffix", b"x.rclonelink"),
];

/// Every name as a file, as a directory with something in it, and as a symlink.
pub fn names(builder: &mut Builder, place: &Place) -> Result<()> {
    let files = builder.directory(place, "files")?;
    let directories = builder.directory(place, "directories")?;
    let symlinks = builder.directory(place, "symlinks")?;
    let mut all: Vec<(&str, OsString)> =
        NAMES.iter().map(|(case, name)| (*case, OsStr::from_bytes(name).to_owned())).collect();
    all.push(("name-255", "n".repeat(255).into()));
    all.push(("name-255-utf8", "€".repeat(85).into()));
    all.push(("name-255-invalid-utf8", OsString::from_vec(vec![0xfe; 255])));
    for (case, name) in all {
        let made = builder.file(&files, &name, 20);
        builder.optional(case, files.join(&name), made)?;
        let made = inside(builder, &directories, &name);
        builder.optional(case, directories.join(&name), made)?;
        let made = builder.symlink(&symlinks, &name, name.as_bytes());
        builder.optional(case, symlinks.join(&name), made)?;
    }
    Ok(())
}

fn inside(builder: &mut Builder, parent: &Place, name: &OsStr) -> Result<()> {
    let directory = builder.directory(parent, name)?;
    builder.file(&directory, "inside", 20)
}

/// A chain of directories deeper than most recursions and descriptor limits like.
pub fn deep(builder: &mut Builder, place: &Place) -> Result<()> {
    let mut here = place.clone();
    for level in 1..=DEPTH {
        here = builder.directory(&here, "d")?;
        if level % 50 == 0 {
            builder.file(&here, "f", 100)?;
        }
    }
    builder.case("deep", here.join("f"));
    Ok(())
}

/// A chain of long names whose end no single path can reach.
pub fn long_path(builder: &mut Builder, place: &Place) -> Result<()> {
    builder.file(place, "near", 1000)?;
    let mut here = place.clone();
    for level in 0..LONG_NAMES {
        let mut name = format!("{level:02}-").into_bytes();
        name.resize(250, b'p');
        here = builder.directory(&here, OsStr::from_bytes(&name))?;
    }
    builder.file(&here, "file", 5000)?;
    builder.case("long-path-file", here.join("file"));
    builder.symlink(&here, "symlink", b"../nowhere")?;
    builder.case("long-path-symlink", here.join("symlink"));
    builder.directory(&here, "empty")?;
    builder.case("long-path-directory", here.join("empty"));
    if builder.features.user_xattr {
        here.xattr("file", "user.far", b"away")?;
    }
    if builder.features.hardlinks {
        builder.link((place, OsStr::new("near")), &here, "far")?;
        builder.case("long-path-hardlink", here.join("far"));
    }
    Ok(())
}
