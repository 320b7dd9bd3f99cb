//! What has to be true of a destination, checked without any code of the program under test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::Result;
use rustix::fs::{AtFlags, FileType, OFlags};

use super::lines::{Line, ReportItem};
use crate::compare::Difference;
use crate::tree::walk;

/// A source and a destination as the program was told them and prints them.
#[derive(Clone, Copy, Debug)]
pub struct Trees<'a> {
    /// Root of the source tree.
    pub source: &'a Path,
    /// Root of the copy.
    pub destination: &'a Path,
}

impl Trees<'_> {
    /// The path below the roots that a line is about.
    fn below(self, line: &Line) -> Option<PathBuf> {
        let path = line.path();
        let roots = [self.destination, self.source];
        let below = roots.iter().find_map(|root| path.strip_prefix(root).ok())?;
        Some(below.to_owned())
    }
}

/// The other names of each entry that has several, by path below the root.
#[derive(Clone, Debug, Default)]
pub struct LinkGroups(BTreeMap<PathBuf, Vec<PathBuf>>);

impl LinkGroups {
    /// Finds the groups of a tree.
    pub fn of(root: &Path) -> Result<Self> {
        let mut inodes: BTreeMap<(u64, u64), Vec<PathBuf>> = BTreeMap::new();
        walk::walk(root, &mut |entry| {
            if entry.stat.st_nlink > 1 && entry.file_type() != FileType::Directory {
                let inode = (entry.stat.st_dev, entry.stat.st_ino);
                inodes.entry(inode).or_default().push(entry.path.to_owned());
            }
            Ok(())
        })?;
        let groups = inodes.into_values().filter(|names| names.len() > 1);
        let each =
            groups.flat_map(|names| names.clone().into_iter().map(move |n| (n, names.clone())));
        Ok(Self(each.collect()))
    }

    fn names<'a>(&'a self, path: &'a Path) -> Vec<&'a Path> {
        match self.0.get(path) {
            Some(names) => names.iter().map(PathBuf::as_path).collect(),
            None => vec![path],
        }
    }
}

/// What a run has named, by path below the roots.
#[derive(Debug, Default)]
struct Named {
    errors: BTreeSet<PathBuf>,
    /// Directories that could not be entered, so that nothing below them was attempted.
    closed: BTreeSet<PathBuf>,
    losses: BTreeMap<PathBuf, BTreeSet<String>>,
}

impl Named {
    fn new(said: &ReportItem, trees: Trees<'_>) -> Self {
        let mut named = Self::default();
        named.errors.extend(said.errors.iter().filter_map(|line| trees.below(line)));
        // A directory whose mode cannot be narrowed is not entered.
        let entering =
            ["open", "stat", "read_directory", "make_directory", "attempt", "link", "set_mode"];
        let closed = said.errors.iter().filter(|line| entering.contains(&line.text("operation")));
        named.closed.extend(closed.filter_map(|line| trees.below(line)));
        for line in &said.losses {
            if let Some(path) = trees.below(line) {
                named.losses.entry(path).or_default().insert(line.text("kind").to_owned());
            }
        }
        named
    }

    fn has_error(&self, path: &Path) -> bool {
        self.errors.contains(path)
    }

    fn has_error_above(&self, path: &Path) -> bool {
        path.ancestors().skip(1).any(|above| self.closed.contains(above))
    }

    fn has_loss(&self, path: &Path, kinds: &[&str]) -> bool {
        let known = self.losses.get(path);
        known.is_some_and(|known| kinds.iter().any(|kind| known.contains(*kind)))
    }

    fn explains(&self, difference: &Difference, groups: &LinkGroups) -> bool {
        let path = difference.path.as_path();
        let names = groups.names(path);
        match difference.kind.as_str() {
            "leftover" | "extra" => false,
            // The comparer tells such a difference at whichever name it meets later.
            "hardlink" => {
                let about = |name: &&Path| {
                    self.has_error(name)
                        || self.has_error_above(name)
                        || self.has_loss(name, &["links"])
                };
                names.iter().any(about)
            }
            kind => {
                let kinds = losses_that_explain(kind);
                // What belongs to the inode is told once, at one of its names.
                let lost = names.iter().any(|name| self.has_loss(name, kinds));
                self.has_error(path) || self.has_error_above(path) || lost
            }
        }
    }
}

/// The kinds of loss that account for one kind of difference.
fn losses_that_explain(difference: &str) -> &'static [&'static str] {
    match difference {
        "xattr" => &["xattr"],
        "acl" => &["acl"],
        "capability" => &["capability", "xattr"],
        "flags" => &["flags"],
        "project" => &["project"],
        "mtime" | "atime" => &["times"],
        // The group bits of an entry with an ACL are the ACL's mask.
        "mode" => &["mode", "acl"],
        "uid" | "gid" => &["owner"],
        _ => &[],
    }
}

/// The differences that no error and no loss line of the run accounts for.
///
/// A job that paused leaves directories closed on purpose: then their own metadata does not count.
pub fn unexplained(
    differences: &[Difference],
    said: &ReportItem,
    trees: Trees<'_>,
    groups: &LinkGroups,
) -> Vec<String> {
    let named = Named::new(said, trees);
    let paused = !said.paused.is_empty();
    let closed = |difference: &Difference| {
        paused && difference.entry_type == "dir" && difference.kind != "missing"
    };
    differences
        .iter()
        .filter(|difference| !named.explains(difference, groups) && !closed(difference))
        .map(|difference| format!("nothing was said about: {difference}"))
        .collect()
}

/// Whether two files of the same size hold the same bytes; holes on both sides are not read.
fn same_bytes(ours: &File, theirs: &File, size: u64) -> Result<bool> {
    const BLOCK: u64 = 1 << 20;
    let (mut left, mut right) = (vec![0; BLOCK as usize], vec![0; BLOCK as usize]);
    let mut offset = 0;
    while offset < size {
        let data = next_data(ours, offset, size)?.min(next_data(theirs, offset, size)?);
        if data >= size {
            return Ok(true);
        }
        let length = (size - data).min(BLOCK) as usize;
        ours.read_exact_at(&mut left[..length], data)?;
        theirs.read_exact_at(&mut right[..length], data)?;
        if left[..length] != right[..length] {
            return Ok(false);
        }
        offset = data + length as u64;
    }
    Ok(true)
}

fn next_data(file: &File, offset: u64, size: u64) -> Result<u64> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
        Ok(at) => Ok(at),
        Err(rustix::io::Errno::NXIO) => Ok(size),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => Ok(offset),
        Err(error) => Err(error.into()),
    }
}

/// Files at the destination that look complete, by the source's size and modification time, and are not.
pub fn lying_files(source: &Path, destination: &Path) -> Result<Vec<String>> {
    let mut lying = Vec::new();
    if std::fs::symlink_metadata(destination).is_err() {
        return Ok(lying);
    }
    let root = walk::open_beneath(File::open(source)?, Path::new(""))?;
    walk::walk(destination, &mut |entry| {
        if entry.file_type() != FileType::RegularFile {
            return Ok(());
        }
        let above = entry.path.parent().unwrap_or(Path::new(""));
        let Ok(parent) = walk::open_beneath(&root, above) else { return Ok(()) };
        let name = entry.path.file_name().unwrap_or_default();
        let Ok(stat) = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) else {
            return Ok(());
        };
        let shape =
            |s: &rustix::fs::Stat| (s.st_mode & 0o170_000, s.st_size, s.st_mtime, s.st_mtime_nsec);
        if shape(&stat) != shape(&entry.stat) {
            return Ok(());
        }
        let ours = File::from(walk::open_quietly(&parent, name, OFlags::empty())?);
        let theirs = File::from(walk::open_quietly(entry.parent, entry.name, OFlags::empty())?);
        if !same_bytes(&ours, &theirs, stat.st_size as u64)? {
            lying.push(format!("{} looks complete and is not", entry.path.display()));
        }
        Ok(())
    })?;
    Ok(lying)
}

/// Names of temporaries anywhere below a directory.
pub fn leftovers(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if std::fs::symlink_metadata(root).is_err() {
        return Ok(found);
    }
    walk::walk(root, &mut |entry| {
        if entry.name.as_encoded_bytes().starts_with(b".dmover-") {
            found.push(entry.path.to_owned());
        }
        Ok(())
    })?;
    Ok(found)
}

/// Everything that changes when an entry is touched in any way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint(BTreeMap<PathBuf, ([i64; 8], [i64; 3])>);

impl Fingerprint {
    /// Looks at every entry of a tree.
    pub fn of(root: &Path) -> Result<Self> {
        let mut entries = BTreeMap::new();
        walk::walk(root, &mut |entry| {
            let s = &entry.stat;
            let own = [
                s.st_ino as i64,
                i64::from(s.st_mode),
                i64::from(s.st_uid),
                i64::from(s.st_gid),
                s.st_size,
                s.st_blocks,
                s.st_mtime,
                s.st_mtime_nsec as i64,
            ];
            let names = [s.st_nlink as i64, s.st_ctime, s.st_ctime_nsec as i64];
            entries.insert(entry.path.to_owned(), (own, names));
            Ok(())
        })?;
        Ok(Self(entries))
    }

    /// The same without what changes when an inode only gets or loses a name.
    #[must_use]
    pub fn without_names(mut self) -> Self {
        self.0.values_mut().for_each(|(_, names)| *names = [0; 3]);
        self
    }

    /// The paths that are not as they were, in words.
    pub fn changes(&self, later: &Self) -> Vec<String> {
        let paths: BTreeSet<&PathBuf> = self.0.keys().chain(later.0.keys()).collect();
        paths
            .into_iter()
            .filter(|path| self.0.get(*path) != later.0.get(*path))
            .map(|path| {
                let what = match (self.0.get(path), later.0.get(path)) {
                    (Some(was), Some(is)) => what_changed(was, is),
                    (None, _) => "it is new".to_owned(),
                    _ => "it is gone".to_owned(),
                };
                format!("{} was touched: {what}", path.display())
            })
            .collect()
    }

    /// The same for a file system that gives space to files later than it says so (ZFS).
    #[must_use]
    pub fn without_blocks(mut self) -> Self {
        self.0.values_mut().for_each(|(own, _)| own[BLOCKS] = 0);
        self
    }
}

/// Where a look at an entry has its blocks.
const BLOCKS: usize = 5;

fn what_changed(was: &([i64; 8], [i64; 3]), is: &([i64; 8], [i64; 3])) -> String {
    const WORDS: [&str; 11] = [
        "inode", "mode", "uid", "gid", "size", "blocks", "mtime", "mtime ns", "links", "ctime",
        "ctime ns",
    ];
    let all = |look: &([i64; 8], [i64; 3])| look.0.into_iter().chain(look.1).collect::<Vec<_>>();
    let pairs = all(was).into_iter().zip(all(is)).zip(WORDS);
    let changed = pairs.filter(|((was, is), _)| was != is);
    changed.map(|((was, is), word)| format!("{word} {was} -> {is}")).collect::<Vec<_>>().join(", ")
}

/// The bytes of every file below a directory, for trees that are small; links are not followed.
pub fn contents(root: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = BTreeMap::new();
    walk::walk(root, &mut |entry| {
        if entry.file_type() == FileType::RegularFile {
            let file = File::from(walk::open_quietly(entry.parent, entry.name, OFlags::empty())?);
            let mut bytes = vec![0; file.metadata()?.size() as usize];
            file.read_exact_at(&mut bytes, 0)?;
            files.insert(entry.path.to_owned(), bytes);
        }
        Ok(())
    })?;
    Ok(files)
}
