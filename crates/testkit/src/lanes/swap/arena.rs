//! The trees of a swap attack, and the alarm around what lies outside.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow};
use rustix::fs::{CWD, RenameFlags, inotify};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::image::base_directory;
use crate::lanes::check::{Fingerprint, contents};
use crate::swap::Decoy;
use crate::tree;

/// What every file outside holds, and none inside.
pub const SECRET: &[u8] = b"what lies outside the tree is secret";
/// Files in the directory that is attacked.
const FILES: usize = 24;
const FILE_BYTES: usize = 150_000;

/// A source, a destination and, with the same names as both, what lies outside of them.
pub struct Arena {
    directory: TempDir,
    before: Fingerprint,
    secrets: std::collections::BTreeMap<PathBuf, Vec<u8>>,
}

impl Arena {
    pub fn new(seed: u64) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("swap-").tempdir_in(base_directory()?)?;
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir(at("decoys"))?;
        fill(&at("source"), format!("inside {seed} ").as_bytes(), 1_000_000_000)?;
        fill(&at("outside"), SECRET, 900_000_000)?;
        let before = Fingerprint::of(&at("outside"))?;
        let secrets = contents(&at("outside"))?;
        Ok(Self { directory, before, secrets })
    }

    pub fn source(&self) -> PathBuf {
        self.directory.path().join("source")
    }

    pub fn destination(&self) -> PathBuf {
        self.directory.path().join("destination")
    }

    pub fn outside(&self) -> PathBuf {
        self.directory.path().join("outside")
    }

    /// Where the decoy lies while the victim is in its place.
    pub fn decoy(&self) -> PathBuf {
        self.directory.path().join("decoys/decoy")
    }

    pub fn empty_destination(&self) -> Result<()> {
        if std::fs::symlink_metadata(self.destination()).is_ok() {
            tree::remove(&self.destination())?;
        }
        Ok(())
    }

    /// Whether these are exactly the bytes of the outside file of this path.
    pub fn is_outside_file(&self, path: &Path, bytes: &[u8]) -> Result<bool> {
        let known = self.secrets.get(path).context("no such file outside")?;
        Ok(known == bytes)
    }

    /// Rings at whatever is done outside; behind a hard link only writing is wrong.
    pub fn watch(&self, by_hard_link: bool) -> Result<Watch> {
        Watch::new(&self.outside(), by_hard_link)
    }

    /// What is not outside as it was.
    pub fn outside_changes(&self, by_hard_link: bool) -> Result<Vec<String>> {
        let outside = self.outside();
        let mut failures = Vec::new();
        if contents(&outside)? != self.secrets {
            failures.push("bytes outside were changed".to_owned());
        }
        let mut prints = [self.before.clone(), Fingerprint::of(&outside)?];
        if by_hard_link {
            prints = prints.map(Fingerprint::without_names);
        }
        let changes = prints[0].changes(&prints[1]);
        failures.extend(changes.into_iter().map(|change| format!("outside, {change}")));
        Ok(failures)
    }
}

/// Files at three depths, all of the same names on both sides.
fn fill(root: &Path, text: &[u8], mtime: u64) -> Result<()> {
    for directory in ["top/victim/deep/er", "top/victim", "top", "."] {
        let directory = root.join(directory);
        std::fs::create_dir_all(&directory)?;
        let files = if directory.ends_with("victim") { FILES } else { 4 };
        for number in 0..files {
            let path = directory.join(format!("f{number:02}"));
            let name = path.strip_prefix(root)?.as_os_str().as_encoded_bytes();
            let line = [text, name, b"\n"].concat();
            let length = FILE_BYTES / (1 + number % 4);
            let bytes: Vec<u8> = line.iter().copied().cycle().take(length).collect();
            std::fs::write(&path, bytes)?;
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(mtime + number as u64);
            File::options().write(true).open(&path)?.set_modified(time)?;
        }
    }
    Ok(())
}

/// The kernel's own record of what happened to files and directories.
pub struct Watch(OwnedFd);

impl Watch {
    fn new(root: &Path, by_hard_link: bool) -> Result<Self> {
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        let watch = Self(inotify::init(flags)?);
        let mut wanted = inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::CREATE
            | inotify::WatchFlags::DELETE
            | inotify::WatchFlags::MOVE;
        if !by_hard_link {
            wanted |= inotify::WatchFlags::OPEN
                | inotify::WatchFlags::ACCESS
                | inotify::WatchFlags::ATTRIB;
        }
        let mut pending = vec![root.to_owned()];
        while let Some(directory) = pending.pop() {
            for entry in std::fs::read_dir(&directory)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    pending.push(entry.path());
                }
            }
            // After it was read, so that this does not ring.
            inotify::add_watch(&watch.0, &directory, wanted)?;
        }
        // A file of which another name is used rings at itself only.
        inotify::add_watch(&watch.0, root.join("top/victim/f00"), wanted)?;
        watch.events()?;
        Ok(watch)
    }

    /// What happened since the last call.
    pub fn events(&self) -> Result<Vec<String>> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.0, &mut buffer);
        let mut events = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => events.push(format!("{:?} {:?}", event.events(), event.file_name())),
                Err(Errno::AGAIN) => return Ok(events),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Exchanges every temporary that appears in the attacked directory with a link to the outside.
pub struct TemporarySwapper {
    stop: Arc<AtomicBool>,
    swaps: Arc<AtomicU64>,
    thread: JoinHandle<Result<()>>,
}

impl TemporarySwapper {
    pub fn start(arena: &Arena) -> Result<Self> {
        let (stop, swaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let victim = arena.destination().join("top/victim");
        let decoys = arena.directory.path().join("decoys");
        let target = arena.outside().join("top/victim/f01");
        let thread = std::thread::Builder::new().name("swapper".to_owned()).spawn({
            let (stop, swaps) = (Arc::clone(&stop), Arc::clone(&swaps));
            move || exchange_temporaries(&victim, &decoys, &target, &stop, &swaps)
        })?;
        Ok(Self { stop, swaps, thread })
    }

    /// How many swaps there were, and whether it went on to the end.
    pub fn stop(self) -> (u64, Result<()>) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.join().unwrap_or_else(|_| Err(anyhow!("the swapper panicked")));
        (self.swaps.load(Ordering::Relaxed), ended)
    }
}

fn exchange_temporaries(
    victim: &Path,
    decoys: &Path,
    target: &Path,
    stop: &AtomicBool,
    swaps: &AtomicU64,
) -> Result<()> {
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        for entry in std::fs::read_dir(victim)?.flatten() {
            if !entry.file_name().as_encoded_bytes().starts_with(b".dmover-") {
                continue;
            }
            number += 1;
            let decoy = decoys.join(number.to_string());
            if number.is_multiple_of(2) {
                Decoy::SymlinkTo(target).create(&decoy)?;
            } else {
                Decoy::HardLinkTo(target).create(&decoy)?;
            }
            let flags = RenameFlags::EXCHANGE;
            if rustix::fs::renameat_with(CWD, entry.path(), CWD, &decoy, flags).is_ok() {
                swaps.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}
