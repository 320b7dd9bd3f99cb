//! ext4 on a device whose writes fail when a test says so.
//!
//! The image lies in a fault file system and is mounted through a loop device, so that a write of the page cache fails as it
//! does on a disk: the caller of write(2) hears nothing, the next flush hears it once, and the page cache keeps what was written.
#![allow(clippy::unnecessary_debug_formatting, reason = "names hold control characters")]

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::faultfs::{Action, Config, FaultFs, FaultFsHandle, Op, Rule, errno_by_name};
use crate::image::base_directory;
use crate::skip::skipped;

/// A mounted ext4; dropping it unmounts and deletes it.
pub struct FailingDisk {
    // Dropped in this order, after the file system is unmounted.
    handle: FaultFsHandle,
    /// Bytes of the device before this one hold metadata only.
    data_from: u64,
    directory: TempDir,
}

impl FailingDisk {
    /// Makes a file system of so many bytes, at most 128 MiB; needs root, loop devices and `/dev/fuse`.
    pub fn create(size_bytes: u64) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("disk-").tempdir_in(base_directory()?)?;
        let at = |name: &str| directory.path().join(name);
        for name in ["backing", "seen", "mount"] {
            std::fs::create_dir(at(name))?;
        }
        let image = at("backing").join("image");
        std::fs::File::create(&image)?.set_len(size_bytes)?;
        // The journal lies before the data: it has to stay writable.
        let options = ["-q", "-F", "-I", "256", "-b", "4096", "-E", "packed_meta_blocks=1"];
        tool("mkfs.ext4", &options, &[&image])?;
        let told = tool("dumpe2fs", &[], &[&image])?;
        let data_from = first_free_block(&told).context("no free blocks")? * 4096;
        let handle = FaultFs::mount(&at("backing"), &at("seen"), Config::default())?;
        let disk = Self { handle, data_from, directory };
        disk.mount()?;
        Ok(disk)
    }

    /// Makes a file system, or says loudly that `test` is skipped.
    pub fn create_or_skip(test: &str, size_bytes: u64) -> Option<Self> {
        Self::create(size_bytes).map_err(|error| skipped(test, &format!("{error:#}"))).ok()
    }

    /// The directory where the file system is mounted.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("mount")
    }

    /// The next `count` writes of data fail with EIO; 0: all.
    pub fn fail_writes(&self, count: u64) -> Result<()> {
        let eio = errno_by_name("EIO").context("EIO has a number")?;
        self.set(Action::Errno(eio), count)
    }

    /// One bit of each of the next `count` writes of data arrives inverted, and nobody hears of it.
    pub fn spoil_writes(&self, count: u64) -> Result<()> {
        self.set(Action::BitFlip { offset_in_buffer: 2000 }, count)
    }

    fn set(&self, action: Action, count: u64) -> Result<()> {
        let rule = Rule::new(Op::Write, action).from_offset(self.data_from + 1).count(count);
        self.handle.set_rules(&[rule])
    }

    /// Writes are right again. Answers how many were not.
    pub fn heal(&self) -> Result<u64> {
        let failed = self.handle.counters().rules_fired.iter().sum();
        self.handle.set_rules(&[])?;
        Ok(failed)
    }

    /// Mounts it anew: what is read afterwards comes from the device.
    pub fn remount(&self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }

    fn mount(&self) -> Result<()> {
        let image = self.directory.path().join("seen/image");
        tool("mount", &["-t", "ext4", "-o", "loop"], &[&image, &self.path()]).map(drop)
    }

    fn unmount(&self) -> Result<()> {
        tool("umount", &[], &[&self.path()]).map(drop)
    }
}

impl Drop for FailingDisk {
    fn drop(&mut self) {
        let _ = self.heal();
        if self.unmount().is_err() {
            let _ = tool("umount", &["-l"], &[&self.path()]);
        }
    }
}

/// Where dumpe2fs(8) says that the first free blocks are.
fn first_free_block(told: &str) -> Option<u64> {
    let line = told.lines().find_map(|line| line.strip_prefix("  Free blocks: "))?;
    line.split(['-', ',']).next()?.trim().parse().ok()
}

fn tool(name: &str, words: &[&str], paths: &[&Path]) -> Result<String> {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "60", name]).args(words).args(paths).env("LC_ALL", "C");
    let output = command.output().with_context(|| format!("start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
