//! Ordinary entries in any number, with a sprinkling of everything.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::Result;
use rand::Rng;
use rustix::fs::FileType;

use super::acl::{ACCESS, Acl};
use super::builder::{Builder, Place};
use super::walk;

/// Directories that may still get entries; forgetting old ones bounds memory.
const OPEN_DIRECTORIES: usize = 1000;
const LARGEST: f64 = (256 << 10) as f64;

/// Fills a random tree, one directory at a time.
pub fn bulk(builder: &mut Builder, place: &Place) -> Result<()> {
    let mut directories: Vec<PathBuf> = vec![PathBuf::new()];
    let mut left = builder.entries;
    let mut number = 0;
    while left > 0 {
        let chosen = builder.rng.random_range(0..directories.len());
        let path = directories[chosen].clone();
        let here =
            Place { fd: walk::open_beneath(&*place.fd, &path)?.into(), path: place.join(&path) };
        let run = builder.rng.random_range(1..200).min(left);
        left -= run;
        let mut last_file = None;
        for _ in 0..run {
            number += 1;
            let name = name(builder, number);
            if entry(builder, &here, &name, &mut last_file)? && path.components().count() < 12 {
                directories.push(path.join(&name));
            }
        }
        if directories.len() > OPEN_DIRECTORIES {
            directories.drain(..OPEN_DIRECTORIES / 2);
        }
    }
    Ok(())
}

/// A name that is unique by its number; one in fifty is awkward.
fn name(builder: &mut Builder, number: u64) -> OsString {
    const ENDINGS: [&[u8]; 6] = [b"", b".dat", b".h5", b".txt", b"-run.nc", b".fastq.gz"];
    const AWKWARD: [&[u8]; 5] = [b"\n", b"\xff\xfe", b" ", b"'\"*", "ü€".as_bytes()];
    let mut name = format!("{number:x}").into_bytes();
    let endings: &[&[u8]] = if builder.rng.random_ratio(1, 50) { &AWKWARD } else { &ENDINGS };
    name.extend(endings[builder.rng.random_range(0..endings.len())]);
    OsStr::from_bytes(&name).to_owned()
}

/// Makes one entry; true if it is a directory.
fn entry(
    builder: &mut Builder,
    here: &Place,
    name: &OsStr,
    last_file: &mut Option<OsString>,
) -> Result<bool> {
    match builder.rng.random_range(0..100) {
        0..5 => {
            builder.directory(here, name)?;
            return Ok(true);
        }
        5..9 => builder.symlink(here, name, b"../some/where")?,
        9..12 if last_file.is_some() && builder.features.hardlinks => {
            let first = last_file.clone().unwrap_or_default();
            builder.link((here, &first), here, name)?;
        }
        12 => builder.node(here, name, FileType::Fifo, (0, 0))?,
        _ => {
            let size = size(builder);
            builder.file(here, name, size)?;
            decorate(builder, here, name)?;
            *last_file = Some(name.to_owned());
        }
    }
    Ok(false)
}

/// Log-uniform up to 256 KiB; one in twenty is empty.
fn size(builder: &mut Builder) -> u64 {
    if builder.rng.random_ratio(1, 20) {
        return 0;
    }
    LARGEST.powf(builder.rng.random_range(0.0..1.0)) as u64
}

fn decorate(builder: &mut Builder, here: &Place, name: &OsStr) -> Result<()> {
    let draw = builder.rng.random_range(0..100);
    if draw < 5 && builder.features.owners {
        here.owner(name, (10_000 + draw, 20_000))?;
    }
    if draw < 10 {
        let mode = [0o600, 0o755, 0o444, 0o4711, 0o2755][draw as usize % 5];
        here.mode(name, mode)?;
    }
    if (10..15).contains(&draw) && builder.features.user_xattr {
        here.xattr(name, "user.origin", b"bulk")?;
    }
    if (15..18).contains(&draw) && builder.features.acl {
        let acl = Acl { base: [6, 4, 0], mask: 6, users: vec![(12345, 6)], groups: vec![] };
        here.xattr(name, ACCESS, &acl.encode())?;
    }
    Ok(())
}
