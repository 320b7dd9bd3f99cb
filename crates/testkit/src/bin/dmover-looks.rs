//! The yardstick for a pass that finds nothing to do: one thread for each tree looks at every entry of it once (statx(2)),
//! and does nothing else. It compares nothing and remembers nothing.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, StatxFlags};

/// Look at every entry of trees, with a thread for each.
#[derive(Parser)]
struct Args {
    trees: Vec<PathBuf>,
}

/// Answers how many entries there are.
fn look(directory: &OwnedFd) -> Result<u64> {
    let mut buffer = vec![MaybeUninit::uninit(); 32 << 10];
    let mut below = Vec::new();
    let mut found = 0;
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::statx(directory, name, flags, StatxFlags::BASIC_STATS)?;
        found += 1;
        if entry.file_type() == FileType::Directory {
            below.push(name.to_owned());
        }
    }
    for name in below {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        found += look(&rustix::fs::openat(directory, &name, flags, Mode::empty())?)?;
    }
    Ok(found)
}

fn main() -> Result<()> {
    let args = Args::parse();
    let counts: Vec<Result<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = args
            .trees
            .iter()
            .map(|tree| {
                scope.spawn(move || {
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                    let top = rustix::fs::openat(CWD, tree, flags, Mode::empty());
                    look(&top.with_context(|| tree.display().to_string())?)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a walk")).collect()
    });
    let counts = counts.into_iter().collect::<Result<Vec<u64>>>()?;
    anyhow::ensure!(counts.iter().all(|count| *count > 0), "an empty tree: {counts:?}");
    Ok(())
}
