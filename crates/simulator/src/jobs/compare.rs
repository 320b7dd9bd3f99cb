//! The oracle: two trees entry by entry, read from the disks without any code of dmover that copies or compares.
use dmover_memory::{Actor, Disk, Handle, Open, User};
use dmover_model::{EntryKind, Metadata};
use std::collections::BTreeMap;

use super::TREE;

/// An entry with everything that a copy has to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub(super) kind: EntryKind,
    pub(super) mode: u32,
    pub(super) owner: (u32, u32),
    pub(super) mtime: (i64, u32),
    device: (u32, u32),
    pub(super) content: Vec<u8>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) inode: u64,
    pub(super) links: u64,
}

/// All entries by their paths; the root has the empty path.
pub type Tree = BTreeMap<Vec<u8>, Seen>;

/// Reads the tree of a disk; one that is not there has no entries.
///
/// # Panics
/// If the disk cannot be read.
pub fn tree(disk: &mut Disk) -> Tree {
    tree_at(disk, TREE)
}

/// Reads the tree below a path of a disk.
///
/// # Panics
/// If the disk cannot be read.
pub fn tree_at(disk: &mut Disk, path: &[u8]) -> Tree {
    let actor = Actor::root();
    let mut user = disk.as_user(&actor);
    let top = user.root();
    let mut all = Tree::new();
    if let Ok(root) = user.walk(top, path, false) {
        add(&mut user, root, &[], &mut all);
        user.close(root).expect("an open handle");
    }
    user.close(top).expect("an open handle");
    all
}

fn add(user: &mut User<'_>, at: Handle, path: &[u8], all: &mut Tree) {
    let of = user.stat(at).expect("an entry");
    let readable =
        user.reopen(at, if of.kind == EntryKind::Directory { Open::DIRECTORY } else { Open::READ });
    let content = match of.kind {
        EntryKind::File => read(user, *readable.as_ref().expect("a file"), of.size),
        EntryKind::Symlink => user.read_link(at).expect("a link"),
        _ => Vec::new(),
    };
    all.insert(path.to_vec(), seen(user, at, &of, content));
    if of.kind == EntryKind::Directory {
        let directory = *readable.as_ref().expect("a directory");
        let (names, _) = user.list(directory, None, usize::MAX).expect("names");
        for entry in names {
            let below = user.reach((directory, entry.name.as_slice())).expect("an entry");
            let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
            add(user, below, &[path, slash, &entry.name].concat(), all);
            user.close(below).expect("an open handle");
        }
    }
    if let Ok(handle) = readable {
        user.close(handle).expect("an open handle");
    }
}

fn read(user: &mut User<'_>, file: Handle, size: u64) -> Vec<u8> {
    let mut content = vec![0; size as usize];
    let mut filled = 0;
    while filled < content.len() {
        match user.read(file, filled as u64, &mut content[filled..]).expect("content") {
            0 => break,
            bytes => filled += bytes,
        }
    }
    content
}

fn seen(user: &mut User<'_>, at: Handle, of: &Metadata, content: Vec<u8>) -> Seen {
    let names = user.list_xattrs(at).unwrap_or_default();
    let xattrs = names.into_iter().map(|name| {
        let value = user.xattr(at, &name).expect("an attribute that was listed");
        (name, value)
    });
    Seen {
        kind: of.kind,
        mode: if of.kind == EntryKind::Symlink { 0 } else { of.mode },
        owner: (of.uid, of.gid),
        mtime: (of.mtime.seconds, of.mtime.nanoseconds),
        device: of.device,
        content,
        xattrs: xattrs.collect(),
        inode: of.identity.inode,
        links: of.links,
    }
}

/// What differs. `is_whole`: the destination has nothing else.
pub fn differences(source: &Tree, destination: &Tree, is_whole: bool) -> Vec<String> {
    let mut found = Vec::new();
    let shown = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    for (path, expected) in source {
        let Some(there) = destination.get(path) else {
            found.push(format!("{:?} is missing", shown(path)));
            continue;
        };
        if let Some(what) = differs(expected, there) {
            found.push(format!("{:?}: {what}", shown(path)));
        }
    }
    for path in destination.keys() {
        let is_own = path.split(|byte| *byte == b'/').any(|name| name.starts_with(b".dmover-"));
        if is_own || (is_whole && !source.contains_key(path)) {
            found.push(format!("{:?} should not be there", shown(path)));
        }
    }
    let groups = |tree: &Tree| {
        let mut groups: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
        for (path, entry) in tree.iter().filter(|(path, _)| source.contains_key(*path)) {
            if entry.kind != EntryKind::Directory {
                groups.entry(entry.inode).or_default().push(path.clone());
            }
        }
        let mut groups: Vec<_> = groups.into_values().collect();
        groups.sort();
        groups
    };
    let (expected, there) = (groups(source), groups(destination));
    if found.is_empty() && expected != there {
        found.push("names are linked in another way".into());
    }
    found
}

fn differs(expected: &Seen, there: &Seen) -> Option<String> {
    let pairs = [
        ("kind", format!("{:?}", expected.kind), format!("{:?}", there.kind)),
        ("mode", format!("{:o}", expected.mode), format!("{:o}", there.mode)),
        ("owner", format!("{:?}", expected.owner), format!("{:?}", there.owner)),
        ("mtime", format!("{:?}", expected.mtime), format!("{:?}", there.mtime)),
        ("device", format!("{:?}", expected.device), format!("{:?}", there.device)),
        ("size", expected.content.len().to_string(), there.content.len().to_string()),
    ];
    if let Some((what, expected, there)) = pairs.into_iter().find(|(_, a, b)| a != b) {
        return Some(format!("{what} {expected}, and there {there}"));
    }
    if expected.xattrs != there.xattrs {
        return Some("extended attributes".into());
    }
    let at = expected.content.iter().zip(&there.content).position(|(a, b)| a != b);
    at.map(|at| format!("content from byte {at}"))
}

/// Files that look complete, by their size and time, and are not.
pub fn false_files(source: &Tree, destination: &Tree) -> Vec<String> {
    let files = source.iter().filter(|(_, entry)| entry.kind == EntryKind::File);
    let is_false = |(path, expected): (&Vec<u8>, &Seen)| {
        let there = destination.get(path)?;
        let looks_equal = there.kind == EntryKind::File
            && there.mtime == expected.mtime
            && there.content.len() == expected.content.len();
        (looks_equal && there.content != expected.content)
            .then(|| format!("{:?} looks complete", String::from_utf8_lossy(path)))
    };
    files.filter_map(is_false).collect()
}
