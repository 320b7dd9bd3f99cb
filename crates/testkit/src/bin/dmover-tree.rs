//! Makes and compares test trees by hand.
#![allow(clippy::print_stdout, reason = "a command for developers")]
#![allow(clippy::unnecessary_debug_formatting, reason = "names hold control characters")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};
use dmover_testkit::compare::{CompareOptions, compare, rsync_check};
use dmover_testkit::image::{FileSystem, Image, ImageOptions};
use dmover_testkit::shapes::{self, Shape};
use dmover_testkit::tree::{self, HardTree, TreeOptions};

/// Makes and compares test trees.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Fill ROOT with every hard case that its file system can hold.
    Hard(Hard),
    /// Fill ROOT with a data set of many files of one size.
    Shape {
        /// One of files-16mb, files-50gb, files-93mb, files-2gb, tiny.
        name: Shape,
        root: PathBuf,
        /// Part of the full number of bytes.
        #[arg(long, default_value_t = 0.001)]
        scale: f64,
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Print how DESTINATION differs from SOURCE; exit status 1 if it does.
    Compare(Compare),
    /// Mount a new file system on DIR (a symlink to it) until the standard input ends.
    Mount {
        /// One of ext4, xfs, btrfs, tmpfs, zfs-fuse.
        file_system: FileSystem,
        dir: PathBuf,
        /// Size in MiB.
        #[arg(long, default_value_t = 1024)]
        size: u64,
        /// Mount options, separated by commas.
        #[arg(long, value_delimiter = ',')]
        options: Vec<String>,
    },
    /// Delete ROOT, whatever its flags.
    Remove { root: PathBuf },
}

#[derive(Args, Debug)]
struct Hard {
    root: PathBuf,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Ordinary entries beside the hard cases.
    #[arg(long, default_value_t = 1000)]
    entries: u64,
    /// Groups of cases to leave out, such as long-path.
    #[arg(long, value_delimiter = ',')]
    without: Vec<String>,
    /// List every case that was made.
    #[arg(long)]
    list: bool,
}

#[derive(Args, Debug)]
struct Compare {
    source: PathBuf,
    destination: PathBuf,
    /// Kinds of difference that do not count, such as flags or mtime@symlink.
    #[arg(long, value_delimiter = ',')]
    ignore: Vec<String>,
    /// Shell patterns of attributes that do not count.
    #[arg(long)]
    ignore_xattr: Vec<String>,
    #[arg(long, default_value_t = 1)]
    mtime_granularity: u64,
    #[arg(long)]
    atime: bool,
    /// Ask rsync instead.
    #[arg(long)]
    rsync: bool,
}

fn main() -> Result<ExitCode> {
    match Arguments::parse().command {
        Verb::Hard(hard) => make_hard(&hard)?,
        Verb::Shape { name, root, scale, seed } => {
            let started = Instant::now();
            let made = shapes::generate(&root, name, scale, seed)?;
            let speed = made.total_bytes() as f64 / started.elapsed().as_secs_f64() / 1e6;
            println!("{} files of {} bytes, {speed:.0} MB/s", made.count, made.size_bytes);
        }
        Verb::Compare(arguments) => return print_differences(arguments),
        Verb::Mount { file_system, dir, size, options } => {
            let size_bytes = size << 20;
            let options =
                ImageOptions { size_bytes, mount_options: options, mkfs_arguments: Vec::new() };
            let mounted = Image::create_with(file_system, &options)?;
            std::os::unix::fs::symlink(mounted.path(), &dir)?;
            println!("{file_system} at {}; unmounted at end of input", dir.display());
            std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
            std::fs::remove_file(&dir)?;
        }
        Verb::Remove { root } => tree::remove(&root)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn make_hard(hard: &Hard) -> Result<()> {
    std::fs::create_dir_all(&hard.root)?;
    let mut options = TreeOptions::probe(&hard.root, hard.entries)?;
    options.without.extend(hard.without.iter().cloned());
    let report = HardTree::generate(&hard.root, hard.seed, &options)?;
    println!("seed {}, {} entries, {} cases", report.seed, report.entries, report.cases.len());
    if hard.list {
        for (case, path) in &report.cases {
            println!("{case}: {path:?}");
        }
    }
    for (case, why) in &report.skipped {
        println!("not made: {case}: {why}");
    }
    Ok(())
}

fn print_differences(arguments: Compare) -> Result<ExitCode> {
    let Compare { source, destination, ignore, ignore_xattr, mtime_granularity, atime, rsync } =
        arguments;
    let lines: Vec<String> = if rsync {
        if atime || !ignore.is_empty() || !ignore_xattr.is_empty() {
            bail!("--rsync takes no other options");
        }
        rsync_check(&source, &destination)?
    } else {
        let options = CompareOptions {
            ignore,
            ignore_xattrs: ignore_xattr,
            mtime_granularity_ns: mtime_granularity,
            atime,
            ..CompareOptions::default()
        };
        compare(&source, &destination, &options)?.iter().map(ToString::to_string).collect()
    };
    for line in &lines {
        println!("{line}");
    }
    Ok(if lines.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
