//! Snapshots: complete trees of one source, side by side, that share unchanged files with the previous one.
//!
//! A directory of snapshots has one directory for each snapshot, named after its start time; a link `latest`; and
//! [`OWN`] with a record of each snapshot and the tree in progress. That tree is created by an ordinary `sync` pass and
//! gets its name when it is complete.
use dmover_journal::{
    OWN_SNAPSHOTS as OWN, SnapshotRecord, UNFINISHED, file_of, same_work, source_identity,
};
use dmover_local::directory::tree_identity;
use dmover_local::error::failed;
use dmover_model::{Fatal, JobId, JobSpec};
use dmover_sys::{Errno, OwnedFd, directory, file, flags, mount, path, set, stat};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

mod conclude;
mod paths;
mod prune;
mod start;

pub use conclude::{Concluded, Naming, NotNamed};
pub use prune::kept;
pub use start::{SnapshotInProgress, SnapshotPlan, SnapshotStart};

/// A link to the newest snapshot.
const LATEST: &str = "latest";
/// The prefix of trees that are being removed, in [`OWN`].
const REMOVED: &str = "removed-";
/// The lock for changes, in [`OWN`].
const LOCK: &[u8] = b"lock";
/// An empty directory, in [`OWN`].
const EMPTY: &str = "empty";

/// A directory of snapshots.
#[derive(Debug)]
pub struct SnapshotDirectory {
    path: PathBuf,
    top: OwnedFd,
    own: OwnedFd,
    /// The lock for changes, if held.
    lock: Option<OwnedFd>,
}

/// One complete snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name in the directory.
    pub name: String,
    /// Start time in milliseconds since 1970.
    pub begun_ms: i64,
    /// End time in milliseconds since 1970.
    pub ended_ms: i64,
    /// Counts of the job that created it.
    pub counts: SnapshotCounts,
    /// The job that created it.
    pub job: String,
}

impl Snapshot {
    /// Whether it is complete without missing entries.
    pub fn is_whole(&self) -> bool {
        self.counts.errors == 0
    }
}

/// A source by its path and its identity.
type Origin = (Vec<u8>, Vec<u8>);

/// Counts of the job that created a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotCounts {
    /// Source entries that are missing in it.
    pub errors: u64,
    /// Entries that vanished, or changed during each attempt.
    pub changed: u64,
    /// Attributes that DIR cannot hold, of entries copied for this snapshot or shared with an earlier one.
    pub losses: u64,
    /// `None`: several runs created it, and none has scanned everything.
    pub found: Option<FoundCounts>,
}

/// A snapshot in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Begun {
    /// Start time in milliseconds since 1970.
    at_ms: i64,
    /// An incomplete snapshot of another job, or with other rules, must be removed.
    set_aside: bool,
}

/// The content of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundCounts {
    /// Entries.
    pub entries: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Bytes that were copied, because the previous snapshot does not have them.
    pub new_bytes: u64,
}

impl SnapshotDirectory {
    /// Opens a directory for snapshots, which must exist: if it were created here, it could lie below a file system
    /// that is not mounted.
    ///
    /// # Errors
    /// It does not exist, or cannot be used.
    pub fn open(at: &Path) -> Result<Option<Self>, Fatal> {
        let top = open_top(at)?;
        match path::open_directory_at(&top, OWN.as_bytes()) {
            Ok(own) => Ok(Some(Self { path: at.to_owned(), top, own, lock: None })),
            Err(error) if stat::is_absent(error) => Ok(None),
            Err(error) => Err(failed(at, "open", error)),
        }
    }

    /// Opens a directory for snapshots, and prepares it for the first snapshot.
    ///
    /// # Errors
    /// It does not exist, or cannot be written.
    fn make(at: &Path) -> Result<Self, Fatal> {
        let top = open_top(at)?;
        make(&top, OWN).map_err(|error| failed(at, "write to", error))?;
        let own =
            path::open_directory_at(&top, OWN.as_bytes()).map_err(|e| failed(at, "open", e))?;
        // When the disk is full it is too late.
        make(&own, EMPTY).map_err(|error| failed(at, "write to", error))?;
        Ok(Self { path: at.to_owned(), top, own, lock: None })
    }

    /// Locks the directory for this process, and cleans up after a crash.
    ///
    /// # Errors
    /// Another process has locked it, or it cannot be written.
    pub fn lock(mut self) -> Result<Self, Fatal> {
        let fail = |error| failed(&self.path, "lock", error);
        let lock = match file::create_new(&self.own, LOCK, 0o600) {
            Err(Errno::EXIST) => file::open_for_writing(&self.own, LOCK),
            made => made,
        };
        let lock = lock.map_err(fail)?;
        if !file::try_lock(&lock).map_err(fail)? {
            return Err(Fatal::Locked { lock: self.own_path().join("lock") });
        }
        self.lock = Some(lock);
        self.recover()?;
        Ok(self)
    }

    /// Repairs the records after a crash between the two renames of [`Self::publish`], or after a snapshot was removed
    /// by hand.
    fn recover(&self) -> Result<(), Fatal> {
        let fail = |error| failed(&self.path, "write to", error);
        let tree = self.tree_of(UNFINISHED);
        let names = self.records()?;
        for name in &names {
            match stat::stat_at(&self.top, name.as_bytes(), false) {
                // A damaged record is reported when it is read.
                Ok(_) if Some(name) == names.last() => {
                    let _ = self.dress_again(name);
                    continue;
                }
                Ok(_) => continue,
                Err(error) if !stat::is_absent(error) => return Err(fail(error)),
                Err(_) => {}
            }
            let record = SnapshotRecord::read(self.own_path().join(file_of(name)));
            let own = record.and_then(|record| record.bytes("tree")).ok().flatten();
            if tree.is_some() && own == tree {
                self.give_name(name)?;
            } else {
                directory::unlink(&self.own, file_of(name).as_bytes()).map_err(fail)?;
            }
        }
        Ok(())
    }

    /// The identity of the directory with this name beside the records.
    fn tree_of(&self, name: &str) -> Option<Vec<u8>> {
        let found = stat::stat_born_at(&self.own, name.as_bytes()).ok()?;
        Some(tree_identity(&found))
    }

    fn own_path(&self) -> PathBuf {
        self.path.join(OWN)
    }

    /// The tree in progress.
    fn unfinished(&self) -> PathBuf {
        self.own_path().join(UNFINISHED)
    }

    fn has_tree(&self, name: &str) -> bool {
        path::open_directory_at(&self.top, name.as_bytes()).is_ok()
    }

    /// Names with records, sorted.
    fn records(&self) -> Result<Vec<String>, Fatal> {
        let mut names = self.names(|name| {
            name.strip_suffix(".sqlite").filter(|name| *name != UNFINISHED).map(str::to_owned)
        })?;
        names.sort_unstable();
        Ok(names)
    }

    fn names(&self, choose: impl Fn(&str) -> Option<String>) -> Result<Vec<String>, Fatal> {
        let mut names = Vec::new();
        let read = path::open_directory_at(&self.own, b".").and_then(|fd| {
            directory::DirectoryReader::default().read(&fd, |name, _| -> Result<bool, Errno> {
                names.extend(std::str::from_utf8(name).ok().and_then(&choose));
                Ok(true)
            })
        });
        read.map_err(|e| failed(&self.own_path(), "read", e))?;
        Ok(names)
    }

    /// All complete snapshots, oldest first, and errors for those that cannot be read.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self) -> Result<(Vec<Snapshot>, Vec<Fatal>), Fatal> {
        let (mut found, mut unreadable) = (Vec::new(), Vec::new());
        for name in self.records()?.into_iter().filter(|name| self.has_tree(name)) {
            match self.read(&name) {
                Ok(snapshot) => found.push(snapshot),
                Err(error) => unreadable.push(error),
            }
        }
        found.sort_by(|a, b| (a.begun_ms, &a.name).cmp(&(b.begun_ms, &b.name)));
        Ok((found, unreadable))
    }

    fn read(&self, name: &str) -> Result<Snapshot, Fatal> {
        let record = SnapshotRecord::read(self.own_path().join(file_of(name)))?;
        let number = |key| record.number(key).map(Option::unwrap_or_default);
        let count = |key| record.number(key).map(|n| n.and_then(|n| u64::try_from(n).ok()));
        let found = count("entries")?.zip(count("bytes")?).zip(count("new_bytes")?);
        let counts = SnapshotCounts {
            errors: count("errors")?.unwrap_or_default(),
            changed: count("changed")?.unwrap_or_default(),
            losses: count("losses")?.unwrap_or_default(),
            found: found.map(|((entries, bytes), new_bytes)| FoundCounts {
                entries,
                bytes,
                new_bytes,
            }),
        };
        Ok(Snapshot {
            name: name.to_owned(),
            begun_ms: number("begun_ms")?,
            ended_ms: number("ended_ms")?,
            counts,
            job: String::from_utf8_lossy(&record.bytes("job")?.unwrap_or_default()).into_owned(),
        })
    }

    /// The snapshot that the next one shares unchanged files with.
    ///
    /// # Errors
    /// The directory cannot be read.
    fn newest(&self) -> Result<Option<Snapshot>, Fatal> {
        Ok(self.list()?.0.pop())
    }

    /// Begins a snapshot of `source` by `job`, or resumes an interrupted one.
    ///
    /// # Errors
    /// The directory has snapshots of another source, or the clock was set back.
    fn begin(
        &self,
        source: &Path,
        job: (&JobId, &JobSpec),
        other_source: bool,
        now_ms: i64,
    ) -> Result<Begun, Fatal> {
        let real = path::open_directory(source).ok().and_then(mount::path_of);
        let source = &real.unwrap_or_else(|| source.to_owned());
        let newest = self.newest()?;
        let record = SnapshotRecord::open(self.own_path().join(file_of(UNFINISHED)))?;
        // A run that was refused before it created anything does not bind later ones.
        let known = record.bytes("work")?;
        let work = work_of(job);
        let is_there = is_there(&self.own, UNFINISHED);
        let goes_on = is_there && known.is_some_and(|known| known == work);
        // After a full scan, the next run scans everything again, because the snapshot must show the present source.
        let looked = record.number("looked")?.is_some();
        let begun = match record.number("begun_ms")?.filter(|_| goes_on && !looked) {
            Some(begun) => begun,
            None => {
                record.set("begun_ms", now_ms)?;
                record.unset("looked")?;
                now_ms
            }
        };
        if let Some(newest) = &newest
            && newest.begun_ms >= begun
        {
            let message =
                format!("the newest snapshot, '{}', has a time in the future", newest.name);
            return Err(Fatal::refused(
                message,
                "check the clock; if the time of that snapshot is wrong, rename the snapshot and \
                remove its record",
            ));
        }
        let own = (source.as_os_str().as_bytes().to_vec(), source_identity(source).into_bytes());
        let known = match &newest {
            Some(newest) => {
                Some(SnapshotRecord::read(self.own_path().join(file_of(&newest.name)))?)
            }
            None => None,
        };
        let of = |record: &SnapshotRecord| -> Result<Option<Origin>, Fatal> {
            Ok(record.bytes("source")?.zip(record.bytes("source_identity")?))
        };
        for known in [known.as_ref(), Some(&record).filter(|_| goes_on)].into_iter().flatten() {
            if let Some(of) = of(known)?
                && of != own
                && !other_source
            {
                let known = String::from_utf8_lossy(&of.0).into_owned();
                let same = of.0 == own.0;
                let what = if same {
                    "not the directory or file system of the last snapshot"
                } else {
                    "not the source"
                };
                let message = format!(
                    "'{}' is {what}: '{}' holds snapshots of '{known}'",
                    source.display(),
                    self.path.display()
                );
                let hint = "check that it is mounted; else choose another directory for \
                    snapshots, or use --other-source to continue this one with the new source";
                return Err(Fatal::refused(message, hint));
            }
        }
        let set_aside = is_there && !goes_on;
        if set_aside {
            let aside = format!("{REMOVED}{UNFINISHED}-{now_ms}");
            self.take_out((&self.own, UNFINISHED), &aside)
                .map_err(|error| failed(&self.unfinished(), "move aside", error))?;
        }
        record.set("source", own.0)?;
        record.set("source_identity", own.1)?;
        record.set("work", work)?;
        Ok(Begun { at_ms: begun, set_aside })
    }

    /// Removes what was created here if no snapshot was begun.
    fn leave(&self) {
        let is_used =
            is_there(&self.own, UNFINISHED) || !self.records().is_ok_and(|r| r.is_empty());
        if is_used || self.lock.is_none() {
            return;
        }
        let unfinished = file_of(UNFINISHED);
        for end in ["", "-wal", "-shm", "-journal"] {
            let _ = directory::unlink(&self.own, format!("{unfinished}{end}").as_bytes());
        }
        let _ = directory::remove_directory(&self.own, EMPTY.as_bytes());
        let _ = directory::unlink(&self.own, LOCK);
        // Something else may have come: then it stays.
        let _ = directory::remove_directory(&self.top, OWN.as_bytes());
    }

    /// Ends a snapshot that was scanned completely but does not get its name.
    ///
    /// # Errors
    /// The directory cannot be written.
    fn refuse(&self) -> Result<(), Fatal> {
        SnapshotRecord::open(self.own_path().join(file_of(UNFINISHED)))?.set("looked", 1)
    }

    /// Moves a tree. A user who may not write into a directory cannot move it to another parent either, because of its
    /// `..`.
    fn move_tree(
        &self,
        (from, name): (&OwnedFd, &str),
        (to, new_name): (&OwnedFd, &str),
        loosen: impl FnOnce(Dress) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let (name, new_name) = (name.as_bytes(), new_name.as_bytes());
        let refused = match directory::move_new(from, name, to, new_name) {
            Err(error @ (Errno::ACCESS | Errno::PERM)) => error,
            moved => return moved,
        };
        let tree = path::open_directory_at(from, name).map_err(|_| refused)?;
        let dress = Dress::of(&tree)?;
        loosen(dress)?;
        if dress.flags & flags::LOCKS != 0 {
            flags::set(&tree, dress.flags & !flags::LOCKS)?;
        }
        set::mode(&tree, dress.mode | 0o700)?;
        let moved = directory::move_new(from, name, to, new_name);
        dress.put_on(&tree)?;
        moved
    }

    /// Records the attributes of a tree that is made movable for a moment, in case the process dies before it restores
    /// them.
    fn loosen(&self, name: &str, dress: Dress) -> Result<(), Errno> {
        let record = SnapshotRecord::open(self.own_path().join(file_of(name)));
        let noted = record.and_then(|record| {
            if record.bytes("loosened")?.is_none() {
                record.set("loosened", dress.to_string())?;
            }
            record.close()
        });
        noted.map_err(|_| Errno::IO)
    }

    /// Restores the attributes that a tree had before it was made movable.
    fn dress_again(&self, name: &str) -> Result<(), Fatal> {
        let path = self.own_path().join(file_of(name));
        let Some(dress) = SnapshotRecord::read(path.clone())?.bytes("loosened")? else {
            return Ok(());
        };
        if let Some(dress) = Dress::parse(&dress) {
            let tree = path::open_directory_at(&self.top, name.as_bytes());
            tree.and_then(|tree| dress.put_on(&tree))
                .map_err(|error| failed(&self.path.join(name), "set the mode of", error))?;
        }
        let record = SnapshotRecord::open(path)?;
        record.unset("loosened")?;
        record.close()
    }

    /// Moves a tree to those that will be removed.
    fn take_out(&self, tree: (&OwnedFd, &str), removed: &str) -> Result<(), Errno> {
        self.move_tree(tree, (&self.own, removed), |_| Ok(()))
    }

    /// Gives the finished tree its name.
    ///
    /// # Errors
    /// The directory cannot be written.
    fn publish(
        &self,
        name: &str,
        job: &JobId,
        counts: SnapshotCounts,
        now_ms: i64,
    ) -> Result<(), Fatal> {
        let record = SnapshotRecord::open(self.own_path().join(file_of(UNFINISHED)))?;
        record.set("job", job.0.as_bytes())?;
        record.set("ended_ms", now_ms)?;
        // Which tree it is of, should only one of the two renames be done.
        record.set("tree", self.tree_of(UNFINISHED))?;
        let mut known =
            vec![("errors", counts.errors), ("changed", counts.changed), ("losses", counts.losses)];
        if let Some(FoundCounts { entries, bytes, new_bytes }) = counts.found {
            known.extend([("entries", entries), ("bytes", bytes), ("new_bytes", new_bytes)]);
        }
        for (key, count) in known {
            record.set(key, count.cast_signed())?;
        }
        record.close()?;
        let fail = |error| failed(&self.path, "write to", error);
        if is_there(&self.top, name) || is_there(&self.own, &file_of(name)) {
            return Err(fail(Errno::EXIST));
        }
        file::sync_file_system(&self.top).map_err(fail)?;
        let (from, to) = (file_of(UNFINISHED), file_of(name));
        directory::rename(&self.own, from.as_bytes(), to.as_bytes()).map_err(fail)?;
        self.give_name(name)
    }

    /// The second half of publishing: the record already has its name.
    fn give_name(&self, name: &str) -> Result<(), Fatal> {
        let fail = |error| failed(&self.path, "write to", error);
        // What is complete must not come back as something unfinished.
        file::sync_all(&self.own).map_err(fail)?;
        self.move_tree((&self.own, UNFINISHED), (&self.top, name), |d| self.loosen(name, d))
            .map_err(fail)?;
        self.dress_again(name)?;
        self.set_latest(Some(name)).map_err(fail)?;
        file::sync_all(&self.top).map_err(fail)?;
        file::sync_all(&self.own).map_err(fail)
    }

    /// Points the link to a snapshot. An entry that is not a link belongs to the user and stays.
    fn set_latest(&self, name: Option<&str>) -> Result<(), Errno> {
        const NEW: &[u8] = b"latest.new";
        let there = stat::stat_at(&self.top, LATEST.as_bytes(), false);
        if there.is_ok_and(|found| found.file_type() != stat::FileType::Symlink) {
            return Ok(());
        }
        let Some(name) = name else {
            return match directory::unlink(&self.top, LATEST.as_bytes()) {
                Err(error) if !stat::is_absent(error) => Err(error),
                _ => Ok(()),
            };
        };
        if directory::read_symlink(&self.top, LATEST.as_bytes())
            .is_ok_and(|to| to == name.as_bytes())
        {
            return Ok(());
        }
        match directory::unlink(&self.own, NEW) {
            Err(error) if !stat::is_absent(error) => return Err(error),
            _ => {}
        }
        directory::make_symlink(name.as_bytes(), &self.own, NEW)?;
        directory::move_over(&self.own, NEW, &self.top, LATEST.as_bytes())
    }

    /// Takes a snapshot out of the directory, so that its tree can be removed; so no snapshot ever has missing entries.
    /// Returns the path of the tree if it could not be moved.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn retire(&self, name: &str) -> Result<Option<PathBuf>, Fatal> {
        let fail = |error| failed(&self.path.join(name), "remove", error);
        let removed = format!("{REMOVED}{name}");
        let taken = match self.take_out((&self.top, name), &removed) {
            // A full XFS has no room for another name, however much is removed to make some.
            Err(Errno::NOSPC) => Some(self.path.join(name)),
            taken => taken.map(|()| None).map_err(fail)?,
        };
        directory::unlink(&self.own, file_of(name).as_bytes()).map_err(fail)?;
        let newest = self.newest()?;
        self.set_latest(newest.as_ref().map(|newest| newest.name.as_str())).map_err(fail)?;
        Ok(taken)
    }

    /// Trees to remove, and an empty directory to compare them with.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn removed(&self) -> Result<(Vec<PathBuf>, PathBuf), Fatal> {
        if !is_there(&self.own, EMPTY) {
            make(&self.own, EMPTY).map_err(|error| failed(&self.own_path(), "write to", error))?;
        }
        let mut names = self.names(|name| name.starts_with(REMOVED).then(|| name.to_owned()))?;
        names.sort_unstable();
        let at = |name: &String| self.own_path().join(OsStr::from_bytes(name.as_bytes()));
        Ok((names.iter().map(at).collect(), self.own_path().join(EMPTY)))
    }

    /// Removes the top directory of a tree after everything else.
    ///
    /// # Errors
    /// The directory is not empty.
    fn forget(&self, removed: &Path) -> Result<(), Fatal> {
        let name = removed.file_name().unwrap_or_default().as_bytes();
        let parent = if removed.parent() == Some(&self.path) { &self.top } else { &self.own };
        directory::remove_directory(parent, name).map_err(|e| failed(removed, "remove", e))
    }
}

/// Attributes that prevent a directory from being moved, to be restored afterwards.
#[derive(Debug, Clone, Copy)]
struct Dress {
    mode: u32,
    flags: u32,
}

impl Dress {
    fn of(tree: &OwnedFd) -> Result<Self, Errno> {
        let mode = stat::stat_fd(tree)?.mode & 0o7777;
        Ok(Self { mode, flags: flags::get(tree)?.unwrap_or_default() })
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let (mode, flags) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        let number = |text| u32::from_str_radix(text, 8).ok();
        Some(Self { mode: number(mode)?, flags: number(flags)? })
    }

    fn put_on(self, tree: &OwnedFd) -> Result<(), Errno> {
        set::mode(tree, self.mode)?;
        if self.flags & flags::LOCKS != 0 {
            flags::set(tree, self.flags)?;
        }
        Ok(())
    }
}

impl std::fmt::Display for Dress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:o} {:o}", self.mode, self.flags)
    }
}

/// The job and the rules of a tree: only the same job knows what is in the tree and what a crash may have damaged.
fn work_of((job, spec): (&JobId, &JobSpec)) -> Vec<u8> {
    let mut spec = spec.clone();
    if let Some(sync) = &mut spec.policy.sync {
        // There may be a newer one to share with.
        sync.snapshot = None;
    }
    format!("{job} {}", same_work(&spec)).into_bytes()
}

fn make(parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    match directory::make_directory(parent, name.as_bytes(), 0o700) {
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}

fn is_there(parent: &OwnedFd, name: &str) -> bool {
    stat::stat_at(parent, name.as_bytes(), false).is_ok()
}

fn open_top(at: &Path) -> Result<OwnedFd, Fatal> {
    path::open_directory(at).map_err(|error| {
        let reason = std::io::Error::from(error);
        let message = format!("cannot open '{}' for snapshots: {reason}", at.display());
        Fatal::refused(
            message,
            "create the directory first; dmover does not create it, because its file system may \
            not be mounted",
        )
    })
}
