//! `cargo xtask bench storage`: what storage takes from 1, 2, 4 … threads that only read, only write, or do
//! both at once, beside fio with the same sizes.
//!
//! Reading into memory and writing from it is a copy with a null sink or a null source, so the two
//! columns are what a copy could reach if its other side cost nothing.
use anyhow::{Context, Result, ensure};
use clap::Args;
use dmover_sys::buffer::PageBuffer;
use dmover_testkit::image::{FileSystem, Image, ImageOptions};
use rustix::fs::{FallocateFlags, OFlags};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::time::Instant;

use super::statistics::{interval, median};
use super::word;

const MIB: u64 = 1 << 20;

/// Arguments of `bench storage`.
#[derive(Debug, Args)]
pub struct StorageArgs {
    /// A directory on the storage in question; without it images in memory are used (see --on)
    directory: Option<PathBuf>,
    /// File systems to make in memory: ext4, xfs, btrfs
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "ext4,xfs")]
    on: Vec<FileSystem>,
    /// Threads, each with a file of its own
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8")]
    threads: Vec<usize>,
    /// Size of each file in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    size: u64,
    /// Size of each request in MiB
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1024))]
    block: u64,
    /// Rounds, in each of which both do everything once
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
}

/// What the threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Read,
    Write,
    /// As many threads again for the other direction.
    Both,
}

impl Work {
    const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Both];

    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Both => "read and write",
        }
    }

    fn reads(self) -> bool {
        self != Self::Write
    }

    fn writes(self) -> bool {
        self != Self::Read
    }
}

/// Runs the sweep on each file system and prints a table.
pub fn run(args: &StorageArgs) -> Result<()> {
    ensure!(args.size.is_multiple_of(args.block), "--size must be a multiple of --block");
    let most = args.threads.iter().copied().max().unwrap_or(0);
    ensure!(args.threads.iter().all(|n| *n > 0) && most > 0, "--threads must be 1 or more");
    let fio = Command::new("fio").arg("--version").output();
    ensure!(fio.is_ok_and(|o| o.status.success()), "fio is missing: install the package 'fio'");
    if let Some(directory) = &args.directory {
        let scratch = tempfile::Builder::new().prefix("dmover-sweep-").tempdir_in(directory);
        let scratch = scratch.with_context(|| format!("cannot use {}", directory.display()))?;
        return sweep(args, &word(directory), scratch.path(), most);
    }
    for file_system in &args.on {
        let size_bytes = (args.size * MIB * most as u64) * 5 / 2 + 512 * MIB;
        let options = ImageOptions { size_bytes, ..ImageOptions::default() };
        let mounted = Image::create_with(*file_system, &options)?;
        sweep(args, file_system.name(), mounted.path(), most)?;
    }
    Ok(())
}

fn sweep(args: &StorageArgs, name: &str, directory: &Path, most: usize) -> Result<()> {
    // Written in full, with data: holes and unwritten space cost no storage.
    stream(args, directory, Work::Write, most)?;
    for index in 0..most {
        let (from, to) = (directory.join(file(false, index)), directory.join(file(true, index)));
        std::fs::rename(from, to)?;
    }
    println!(
        "\n## Direct I/O on {name}: files of {} MiB, requests of {} MiB, {} rounds\n",
        args.size, args.block, args.rounds
    );
    println!("| threads | work | GiB/s | fio GiB/s | ratio |\n|---|---|---|---|---|");
    for work in Work::ALL {
        for threads in &args.threads {
            let (mut own, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..args.rounds {
                let rate = stream(args, directory, work, *threads)?;
                let beside = fio(args, directory, work, *threads)?;
                own.push(rate);
                theirs.push(beside);
                ratios.push(rate / beside);
            }
            let (low, high) = interval(&ratios);
            println!(
                "| {threads} | {} | {:.2} | {:.2} | {:.2} [{low:.2} to {high:.2}] |",
                work.name(),
                median(&own),
                median(&theirs),
                median(&ratios),
            );
        }
    }
    Ok(())
}

/// The names that fio gives to the files of its jobs.
fn file(reads: bool, index: usize) -> String {
    format!("{}.{index}.0", if reads { "read" } else { "write" })
}

fn clear(directory: &Path, threads: usize) -> Result<()> {
    for index in 0..threads {
        match std::fs::remove_file(directory.join(file(false, index))) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

/// GiB/s of all threads together, from the moment they start to the end of the last, flushes included.
fn stream(args: &StorageArgs, directory: &Path, work: Work, threads: usize) -> Result<f64> {
    clear(directory, threads)?;
    let directions = usize::from(work.reads()) + usize::from(work.writes());
    let ready = Barrier::new(threads * directions + 1);
    let started = std::thread::scope(|scope| {
        let mut running = Vec::new();
        for index in 0..threads {
            for reads in [true, false] {
                if (reads && !work.reads()) || (!reads && !work.writes()) {
                    continue;
                }
                let (path, ready) = (directory.join(file(reads, index)), &ready);
                running.push(scope.spawn(move || one_thread(args, &path, reads, ready)));
            }
        }
        ready.wait();
        let started = Instant::now();
        for thread in running {
            thread.join().expect("a thread that reports its errors")?;
        }
        anyhow::Ok(started)
    })?;
    let gib = (args.size * (threads * directions) as u64) as f64 / 1024.0;
    Ok(gib / started.elapsed().as_secs_f64())
}

fn one_thread(args: &StorageArgs, path: &Path, reads: bool, ready: &Barrier) -> Result<()> {
    let mut buffer = PageBuffer::new((args.block * MIB) as usize);
    buffer.fill(0x5a);
    let opened = OpenOptions::new()
        .read(reads)
        .write(!reads)
        .create(!reads)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(path);
    // Everybody waits for everybody, those too that cannot work.
    ready.wait();
    let file = opened.with_context(|| format!("open {} for direct I/O", path.display()))?;
    work_through(args, &file, &mut buffer, reads)
        .with_context(|| format!("{} {}", if reads { "read" } else { "write" }, path.display()))
}

fn work_through(
    args: &StorageArgs,
    file: &File,
    buffer: &mut PageBuffer,
    reads: bool,
) -> Result<()> {
    let (size, block) = (args.size * MIB, args.block * MIB);
    if !reads {
        // As fio does; a file system without it just allocates later.
        let _ = rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size);
    }
    for offset in (0..size).step_by(block as usize) {
        if reads {
            file.read_exact_at(buffer, offset)?;
        } else {
            file.write_all_at(buffer, offset)?;
        }
    }
    if !reads {
        file.sync_all()?;
    }
    Ok(())
}

/// The same by fio, by its own clock: GiB/s of its jobs together.
fn fio(args: &StorageArgs, directory: &Path, work: Work, threads: usize) -> Result<f64> {
    clear(directory, threads)?;
    let mut command = Command::new("fio");
    command.args(["--output-format=json", "--group_reporting", "--ioengine=sync", "--direct=1"]);
    command.args(["--iodepth=1", "--end_fsync=1", "--thread", "--invalidate=0"]);
    command.arg(format!("--directory={}", directory.display()));
    command.arg(format!("--bs={}m", args.block)).arg(format!("--size={}m", args.size));
    command.arg(format!("--numjobs={threads}"));
    for (name, wanted) in [("read", work.reads()), ("write", work.writes())] {
        if wanted {
            command.arg(format!("--name={name}")).arg(format!("--rw={name}"));
        }
    }
    let output = command.output().context("run fio")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "fio ended with {}: {said}", output.status);
    let report: Value = serde_json::from_slice(&output.stdout).context("what fio printed")?;
    let jobs = report["jobs"].as_array().context("fio printed no jobs")?;
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let (mut bytes, mut longest_ms) = (0.0, 0.0_f64);
    for job in jobs {
        bytes += number(&job["read"]["io_bytes"]) + number(&job["write"]["io_bytes"]);
        longest_ms = longest_ms.max(number(&job["read"]["runtime"]));
        longest_ms = longest_ms.max(number(&job["write"]["runtime"]));
    }
    ensure!(bytes > 0.0 && longest_ms > 0.0, "fio reported no work: {report}");
    Ok(bytes / (MIB * 1024) as f64 / (longest_ms / 1000.0))
}
