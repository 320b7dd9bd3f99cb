//! Finds a destination inside a source, also through bind mounts, and roots that overlap.
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A path relative to its file system, independent of mount points.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSystemPath {
    /// The device number of the file system.
    pub device: u64,
    /// The path from the file system's own root.
    pub path: PathBuf,
}

impl FileSystemPath {
    /// Whether `other` is the same path or lies below it.
    pub fn contains(&self, other: &Self) -> bool {
        self.device == other.device && other.path.starts_with(&self.path)
    }
}

/// One line of `/proc/self/mountinfo`, see proc_pid_mountinfo(5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountLine {
    /// The mount's id, as `statx` reports it.
    pub id: u64,
    /// The id of the mount that has the mount point.
    pub parent: u64,
    /// The directory of the file system that is mounted there.
    pub root: PathBuf,
    /// Its mount point.
    pub mount_point: PathBuf,
    /// Major and minor number of its device, as `stat` reports it for most file systems.
    pub device: (u32, u32),
    /// The type of the file system.
    pub file_system: String,
    /// The mounted device or export.
    pub source: String,
    /// The options of the file system, as in mountinfo.
    pub options: Vec<u8>,
}

/// Parses mountinfo; invalid lines are skipped.
pub fn parse_mountinfo(text: &[u8]) -> Vec<MountLine> {
    text.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountLine> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let dash = fields.iter().position(|f| *f == b"-")?;
    Some(MountLine {
        id: std::str::from_utf8(fields.first()?).ok()?.parse().ok()?,
        parent: std::str::from_utf8(fields.get(1)?).ok()?.parse().ok()?,
        root: unescape(fields.get(3)?),
        mount_point: unescape(fields.get(4)?),
        device: parse_device(fields.get(2)?)?,
        file_system: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
        source: String::from_utf8_lossy(fields.get(dash + 2)?).into_owned(),
        options: fields.get(dash + 3).copied().unwrap_or_default().to_vec(),
    })
}

fn parse_device(field: &[u8]) -> Option<(u32, u32)> {
    let (major, minor) = std::str::from_utf8(field).ok()?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// A file system that fstab(5) has at a tree or above it, and that is not mounted. If `below` is set, also one inside
/// the tree; such a mount may be missing if it is only mounted by hand (`noauto`).
pub fn missing_mount(
    table: &[u8],
    mounted: &[MountLine],
    tree: &Path,
    below: bool,
) -> Option<PathBuf> {
    let lines = table.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let mut points = lines.filter(|line| !line.starts_with(b"#")).filter_map(|line| {
        let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        // A process that sees only some of the mounts (chroot(2)) does not see this one.
        let point = fields.nth(1).filter(|point| point.starts_with(b"/") && *point != b"/")?;
        let by_hand = fields.nth(1)?.split(|byte| *byte == b',').any(|option| option == b"noauto");
        Some((unescape(point), by_hand))
    });
    let missing = points.find(|(point, by_hand)| {
        let concerns = tree.starts_with(point) || (below && !by_hand && point.starts_with(tree));
        concerns && !mounted.iter().any(|line| line.mount_point == *point)
    });
    missing.map(|(point, _)| point)
}

/// Decodes the three octal digits that stand for blanks, newlines and backslashes.
pub(crate) fn unescape(field: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let octal = (field[at] == b'\\')
            .then(|| field.get(at + 1..at + 4))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(octal.unwrap_or(field[at]));
        at += if octal.is_some() { 4 } else { 1 };
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// Translates a canonical path into a path of the file system, given its mount and device.
pub fn on_file_system(canonical: &Path, mount: &MountLine, device: u64) -> Option<FileSystemPath> {
    let below = canonical.strip_prefix(&mount.mount_point).ok()?;
    Some(FileSystemPath { device, path: mount.root.join(below) })
}

/// Where a canonical path below the mount `id` lies on its file system, then where the point of that mount lies on the file
/// system above, and so on, as far as this mount namespace has it.
pub fn on_each_file_system<'a>(
    canonical: &Path,
    id: u64,
    mounts: &'a [MountLine],
) -> Vec<(&'a MountLine, PathBuf)> {
    let mut found: Vec<(&MountLine, PathBuf)> = Vec::new();
    let (mut at, mut next) = (canonical, id);
    while let Some(line) = mounts.iter().find(|line| line.id == next)
        && let Ok(below) = at.strip_prefix(&line.mount_point)
        && !found.iter().any(|(known, _)| known.id == line.id)
    {
        // Of its parts, because a join with nothing leaves a slash at the end.
        found.push((line, line.root.join(below).components().collect()));
        (at, next) = (&line.mount_point, line.parent);
    }
    found
}

/// The source and destination of one of several roots, as canonical paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ends {
    /// The source.
    pub source: PathBuf,
    /// The destination.
    pub target: PathBuf,
}

/// How the roots of one job are related.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Between {
    /// No root reads what another one writes. In each of these pairs the target of the second root lies below the
    /// target of the first.
    Beside(Vec<(usize, usize)>),
    /// The first root reads what the second writes, or writes what it reads.
    Overlapping(usize, usize),
}

/// Checks all roots at once; their targets are different. There may be as many as a command line holds, so they are not
/// compared pairwise.
pub fn between(roots: &[Ends]) -> Between {
    let mut sources = HashMap::<&Path, Vec<usize>>::new();
    for (index, root) in roots.iter().enumerate() {
        sources.entry(&root.source).or_default().push(index);
    }
    for (index, root) in roots.iter().enumerate() {
        let read = root.target.ancestors().filter_map(|above| sources.get(above)).flatten();
        if let Some(reader) = read.copied().find(|reader| *reader != index) {
            return Between::Overlapping(reader, index);
        }
    }
    let targets: HashMap<&Path, usize> =
        roots.iter().enumerate().map(|(index, root)| (root.target.as_path(), index)).collect();
    for (index, root) in roots.iter().enumerate() {
        let written = root.source.ancestors().filter_map(|above| targets.get(above));
        if let Some(writer) = written.copied().find(|writer| *writer != index) {
            return Between::Overlapping(index, writer);
        }
    }
    let below = roots.iter().enumerate().flat_map(|(index, root)| {
        let above = root.target.ancestors().skip(1).filter_map(|above| targets.get(above));
        above.map(move |above| (*above, index))
    });
    Between::Beside(below.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_lies_on_each_file_system_above_it() {
        let mounts = parse_mountinfo(
            b"20 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 20 8:2 /data /srv rw - xfs /dev/sdb rw\n\
              40 30 8:1 /users/u/d /srv/m rw - ext4 /dev/sda1 rw\n",
        );
        let at = |path: &str, id| {
            let found = on_each_file_system(Path::new(path), id, &mounts);
            found.iter().map(|(line, path)| (line.device.1, path.display().to_string())).collect()
        };
        let expected = |all: &[(u32, &str)]| -> Vec<(u32, String)> {
            all.iter().map(|(device, path)| (*device, (*path).to_owned())).collect()
        };
        let found: Vec<_> = at("/srv/m/x", 40);
        assert_eq!(found, expected(&[(1, "/users/u/d/x"), (2, "/data/m"), (1, "/srv")]));
        let found: Vec<_> = at("/srv", 30);
        assert_eq!(found, expected(&[(2, "/data"), (1, "/srv")]));
        let found: Vec<_> = at("/", 20);
        assert_eq!(found, expected(&[(1, "/")]));
        let found: Vec<_> = at("/srv", 99);
        assert_eq!(found, expected(&[]));
    }

    #[test]
    fn a_table_of_mounts_is_read_as_fstab_says() {
        let table =
            b"# a comment\n/dev/sda1 / ext4 defaults 0 1\nserver:/x\t/data\\040sets nfs ro\n\
                      /dev/sdb none swap sw\n/dev/sdc /data\\040sets/a/b ext4 rw,noatime 0 2\n\
                      /dev/sdd /data\\040sets/cd iso9660 ro,noauto\n\n";
        let line = |point: &str| MountLine {
            id: 1,
            parent: 0,
            root: "/".into(),
            mount_point: point.into(),
            device: (8, 1),
            file_system: "ext4".into(),
            source: "/dev/sda1".into(),
            options: Vec::new(),
        };
        let missing = |mounted: &[&str], tree: &str, below| {
            let mounted: Vec<_> = mounted.iter().map(|point| line(point)).collect();
            let found = missing_mount(table, &mounted, Path::new(tree), below);
            found.map(|path| path.display().to_string()).unwrap_or_default()
        };
        assert_eq!(missing(&["/"], "/data sets/a", true), "/data sets");
        assert_eq!(missing(&["/"], "/data", true), "", "another directory");
        assert_eq!(missing(&["/", "/data sets"], "/data sets/a", true), "/data sets/a/b");
        assert_eq!(missing(&["/", "/data sets"], "/data sets/a", false), "");
        assert_eq!(missing(&["/", "/data sets", "/data sets/a/b"], "/data sets", true), "");
        assert_eq!(missing(&["/", "/data sets"], "/data sets/cd/x", false), "/data sets/cd");
        assert_eq!(missing(&[], "/other", true), "", "the root of a chroot is in no table");
    }
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn ends() -> impl Strategy<Value = Vec<Ends>> {
        let path = || {
            proptest::collection::vec("[ab]", 1..4)
                .prop_map(|names| Path::new("/").join(names.join("/")))
        };
        let ends = (path(), path()).prop_map(|(source, target)| Ends { source, target });
        proptest::collection::vec(ends, 0..5)
    }

    proptest! {
        /// Against every root compared with every other.
        #[test]
        fn roots_in_each_others_way_are_found(mut roots in ends()) {
            let mut seen = HashSet::new();
            roots.retain(|root| seen.insert(root.target.clone()));
            let related = |test: &dyn Fn(&Ends, &Ends) -> bool| {
                let mut pairs = (0..roots.len()).flat_map(|a| (0..roots.len()).map(move |b| (a, b)));
                pairs.any(|(a, b)| a != b && test(&roots[a], &roots[b]))
            };
            let overlap = |reads: &Ends, writes: &Ends| {
                reads.source.starts_with(&writes.target) || writes.target.starts_with(&reads.source)
            };
            match between(&roots) {
                Between::Overlapping(reader, writer) => {
                    prop_assert!(reader != writer && overlap(&roots[reader], &roots[writer]));
                }
                Between::Beside(found) => {
                    prop_assert!(!related(&overlap));
                    let pairs = (0..roots.len()).flat_map(|a| (0..roots.len()).map(move |b| (a, b)));
                    let meet: HashSet<_> = pairs
                        .filter(|(a, b)| a != b && roots[*b].target.starts_with(&roots[*a].target))
                        .collect();
                    prop_assert_eq!(found.into_iter().collect::<HashSet<_>>(), meet);
                }
            }
        }
    }

    #[test]
    fn a_bind_mount_is_seen_through() {
        let text = b"22 1 8:1 / /src rw - ext4 /dev/sda1 rw\n\
                     23 1 8:1 /sub\\040dir /mnt/bind rw shared:1 - ext4 /dev/sda1 rw\n";
        let mounts = parse_mountinfo(text);
        assert_eq!(mounts[1].file_system, "ext4");
        let source = on_file_system(Path::new("/src"), &mounts[0], 5).unwrap();
        let inside = on_file_system(Path::new("/mnt/bind/out"), &mounts[1], 5).unwrap();
        assert_eq!(inside.path, Path::new("/sub dir/out"));
        assert!(source.contains(&inside));
        assert!(!inside.contains(&source));
        let elsewhere = FileSystemPath { device: 6, path: inside.path.clone() };
        assert!(!source.contains(&elsewhere));
    }

    #[test]
    fn a_common_prefix_of_a_name_is_no_overlap() {
        let at = |p: &str| FileSystemPath { device: 1, path: p.into() };
        assert!(!at("/data").contains(&at("/data2/x")));
        assert!(at("/data").contains(&at("/data")));
    }
}
