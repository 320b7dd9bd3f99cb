//! What a job says to all jobs of its host about the places that it writes to, where it cannot mark directories.
//!
//! A user may write below directories that he may not open, and a container below directories that it does not have at all. So a
//! job also says what it uses on a file in memory that only it has: marks as those of directories (`marks`), each about a hash of a
//! directory. /proc/locks lists them in every mount and PID namespace. A directory has two names there: device and inode, which a
//! rename does not change, and its path on its file system, which bind mounts and containers do not change.
use dmover_plan::overlap::{MountLine, on_each_file_system, parse_mountinfo};
use dmover_sys::stat::Stat;
use dmover_sys::{Errno, OwnedFd, lock, mount, stat};
use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::marks::{By, How, Kind, Marked, PROCESS_BITS, Use};

/// What a job says and looks for.
#[derive(Debug)]
pub(super) struct Claims {
    usage: Use,
    mounts: Vec<MountLine>,
    says: HashSet<u64>,
    /// What excludes this job, by the first position of its range.
    looks: HashMap<u64, (How, PathBuf)>,
    /// Carries what the job says. `Err`: other jobs cannot see it.
    object: Result<OwnedFd, Errno>,
}

impl Claims {
    pub fn new(usage: Use) -> Self {
        let mounts = parse_mountinfo(&mount::mountinfo());
        let object = dmover_host::memory::file(b"")
            .map(OwnedFd::from)
            .map_err(|error| Errno::from_raw_os_error(error.raw_os_error().unwrap_or_default()));
        Self { usage, mounts, says: HashSet::new(), looks: HashMap::new(), object }
    }

    /// The job uses a directory and what is below it, or, if there is a name, what has this name in it. `path`: that of the
    /// directory, without links.
    pub fn claim(&mut self, directory: &OwnedFd, path: &Path, name: Option<&Path>, usage: Use) {
        let shown = name.map_or_else(|| path.to_owned(), |name| path.join(name));
        let id = mount::id_of(directory).unwrap_or_default();
        let mut lies = on_each_file_system(&shown, id, &self.mounts).into_iter();
        let mut keys = Vec::new();
        if name.is_none()
            && let Ok(found) = stat::stat_fd(directory)
        {
            keys.push((by_inode(&found), shown.clone()));
        }
        let mut above = Vec::new();
        if let Some((line, at)) = lies.next() {
            keys.push((by_path(line, &at), shown.clone()));
            above
                .extend(at.ancestors().skip(1).map(|at| (by_path(line, at), self.shown(line, at))));
        }
        for (line, at) in lies {
            // What a mount covers is not written to.
            above
                .extend(at.ancestors().skip(1).map(|at| (by_path(line, at), self.shown(line, at))));
        }
        for at in shown.ancestors().skip(1) {
            // A user who may search a directory may stat it, also where it cannot be opened.
            if let Ok(found) = stat::stat_at(directory, at.as_os_str().as_bytes(), false) {
                above.push((by_inode(&found), at.to_owned()));
            }
        }
        for (key, shown) in keys {
            self.say(Kind::Tree(usage), &key);
            for theirs in usage.excluded() {
                self.look(Kind::Tree(*theirs), &key, (How::Writes, &shown));
                self.look(Kind::Below(*theirs), &key, (How::WritesBelow, &shown));
            }
        }
        for (key, shown) in above {
            self.say(Kind::Below(self.usage), &key);
            for theirs in self.usage.excluded() {
                self.look(Kind::Tree(*theirs), &key, (How::Writes, &shown));
            }
        }
    }

    /// The very copy that is made in a directory.
    pub fn work(&mut self, directory: &OwnedFd, path: &Path, what: &[u8]) {
        if let Ok(found) = stat::stat_fd(directory) {
            let about = [what, &by_inode(&found)].concat();
            self.say(Kind::Work, &about);
            self.look(Kind::Work, &about, (How::Same, path));
        }
    }

    /// The path of a directory here; that on its file system, if no mount shows it.
    fn shown(&self, line: &MountLine, at: &Path) -> PathBuf {
        let all = std::iter::once(line).chain(&self.mounts);
        let mut same = all.filter(|other| other.device == line.device);
        let here = same.find_map(|line| {
            let below = at.strip_prefix(&line.root).ok()?;
            Some(line.mount_point.join(below).components().collect())
        });
        here.unwrap_or_else(|| at.to_owned())
    }

    fn say(&mut self, kind: Kind, about: &[u8]) {
        self.says.insert(kind.mark(about));
    }

    fn look(&mut self, kind: Kind, about: &[u8], (how, shown): (How, &Path)) {
        let start = kind.range(about).start;
        self.looks.entry(start).or_insert_with(|| (how, shown.to_owned()));
    }

    /// Says it all.
    ///
    /// # Errors
    /// Other jobs cannot see it.
    pub fn set(&self) -> Result<(), Errno> {
        let object = self.object.as_ref().map_err(|error| *error)?;
        self.says.iter().try_for_each(|at| lock::mark(object, *at))
    }

    pub fn unset(&self) {
        if let Ok(object) = &self.object {
            let _ = lock::unmark(object);
        }
    }

    /// Jobs that exclude this one.
    ///
    /// # Errors
    /// What others say cannot be read.
    pub fn others(&self) -> Result<Vec<Marked>, Errno> {
        let object = self.object.as_ref().map_err(|error| *error)?;
        let own = stat::stat_fd(object)?;
        let device = stat::device_numbers(own.device);
        let all = lock::all_marks()
            .map_err(|error| Errno::from_raw_os_error(error.raw_os_error().unwrap_or_default()))?;
        let process = (1 << PROCESS_BITS) - 1;
        let in_the_way = |mark: lock::Mark| {
            let (how, place) = self.looks.get(&(mark.at & !process))?;
            let by = By::Mark { inode: mark.inode, at: mark.at };
            Some(Marked { place: place.clone(), how: *how, by })
        };
        // What a directory carries is about that directory, and `Places` looks for it.
        let others = all.into_iter().filter(|it| it.device == device && it.inode != own.inode);
        Ok(others.filter_map(in_the_way).collect())
    }

    /// Says that a directory is used which the job has made.
    pub fn extend(object: &OwnedFd, made: &OwnedFd, usage: Use) {
        if let Ok(found) = stat::stat_fd(made) {
            let _ = lock::mark(object, Kind::Tree(usage).mark(&by_inode(&found)));
        }
    }

    pub(crate) fn into_descriptor(self) -> Option<OwnedFd> {
        self.object.ok()
    }
}

fn by_inode(found: &Stat) -> Vec<u8> {
    [&b"inode"[..], &found.device.to_le_bytes(), &found.inode.to_le_bytes()].concat()
}

fn by_path(line: &MountLine, at: &Path) -> Vec<u8> {
    let (major, minor) = line.device;
    // Exports of one server can share a device, and each calls its own root '/'.
    let export = if line.file_system.starts_with("nfs") { &*line.source } else { "" };
    let device = [major.to_le_bytes(), minor.to_le_bytes()].concat();
    [b"path", &*device, export.as_bytes(), b"\0", at.as_os_str().as_bytes()].concat()
}
