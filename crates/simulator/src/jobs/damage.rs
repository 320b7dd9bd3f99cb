//! Changes of single entries, of which it is known what they change: damage for comparisons to find, and changes of a source
//! while a job reads it.
use dmover_memory::{Actor, Disk, Handle, Open, Result, SetTime, User, XattrMode};
use dmover_model::{EntryKind, Timestamp, VerifyLevel};
use rand::Rng as _;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};

use super::compare::{Seen, Tree};

/// What happens to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// It is removed.
    Removed,
    /// Another entry appears beside it.
    Beside,
    /// A directory is in its place.
    Retyped,
    /// A directory with a file in it is in its place.
    Blocked,
    /// It was a hard link, and is a separate file now that is equal otherwise.
    Unlinked,
    /// It has another size.
    Resized,
    /// It has other permission bits.
    Mode,
    /// It has another owner.
    Owner,
    /// It was written at another time.
    Mtime,
    /// One byte differs.
    Flipped,
    /// It has one extended attribute more.
    Xattr,
}

/// What `Damage::Beside` adds to the name of an entry.
pub const BESIDE: &[u8] = b".beside";

impl Damage {
    /// Those that a comparison counts as one entry each.
    pub const COUNTED: [Self; 10] = [
        Self::Removed,
        Self::Beside,
        Self::Retyped,
        Self::Unlinked,
        Self::Resized,
        Self::Mode,
        Self::Owner,
        Self::Mtime,
        Self::Flipped,
        Self::Xattr,
    ];

    /// The lowest level of a comparison that has to find it.
    pub fn level(self) -> VerifyLevel {
        match self {
            Self::Removed | Self::Beside | Self::Retyped | Self::Blocked => VerifyLevel::Exists,
            Self::Resized => VerifyLevel::Size,
            Self::Mode | Self::Owner | Self::Mtime | Self::Unlinked => VerifyLevel::Mtime,
            Self::Flipped | Self::Xattr => VerifyLevel::Digest,
        }
    }

    /// Whether it can happen to an entry. Those with several names are left alone: each name would count.
    fn fits(self, path: &[u8], entry: &Seen, tree: &Tree) -> bool {
        let is_file = entry.kind == EntryKind::File && entry.links == 1;
        match self {
            Self::Removed | Self::Retyped => entry.kind != EntryKind::Directory && entry.links == 1,
            Self::Blocked => entry.kind != EntryKind::Directory,
            // Of more than two names, the comparison chooses the one that is right.
            Self::Unlinked => entry.kind == EntryKind::File && entry.links == 2,
            // An earlier one may have been copied.
            Self::Beside => !path.is_empty() && !tree.contains_key(&[path, BESIDE].concat()),
            Self::Resized => is_file,
            Self::Flipped => is_file && !entry.content.is_empty(),
            Self::Mode | Self::Owner | Self::Mtime => {
                is_file || (entry.kind == EntryKind::Directory && !path.is_empty())
            }
            Self::Xattr => is_file,
        }
    }
}

/// Where trees are damaged.
#[derive(Debug)]
pub struct Place<'a> {
    /// The path of the tree on its disk.
    pub top: &'a [u8],
    /// What is there.
    pub tree: &'a Tree,
    /// The times of what is changed stay as they are, as if the disk had done it.
    pub is_silent: bool,
}

/// Damages different entries, at most so many. Returns the paths that differ then.
pub fn damage(
    disk: &mut Disk,
    place: &Place<'_>,
    kinds: &[Damage],
    most: usize,
    random: &mut ChaCha8Rng,
) -> BTreeMap<Vec<u8>, Damage> {
    let root = Actor::root();
    let mut user = disk.as_user(&root);
    let mut paths: Vec<&Vec<u8>> = place.tree.keys().collect();
    paths.shuffle(random);
    let mut done = BTreeMap::new();
    let mut inodes = BTreeSet::new();
    for path in paths {
        if done.len() == most {
            break;
        }
        let entry = &place.tree[path];
        // All names of an entry are in the tree.
        let names = place.tree.values().filter(|it| it.inode == entry.inode).count();
        let fits = |it: &Damage| {
            it.fits(path, entry, place.tree)
                && (*it != Damage::Unlinked || names as u64 == entry.links)
        };
        let fitting: Vec<Damage> = kinds.iter().copied().filter(fits).collect();
        let Some(kind) = fitting.choose(random).copied() else { continue };
        if !inodes.insert(entry.inode) {
            continue;
        }
        if damage_one(&mut user, place, (path, entry), kind, random).is_ok() {
            let beside: &[u8] = if kind == Damage::Beside { BESIDE } else { b"" };
            done.insert([path, beside].concat(), kind);
        }
    }
    done
}

fn damage_one(
    user: &mut User<'_>,
    place: &Place<'_>,
    (path, entry): (&[u8], &Seen),
    kind: Damage,
    random: &mut ChaCha8Rng,
) -> Result<()> {
    let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
    let whole = [place.top, slash, path].concat();
    let (above, name) = match whole.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&whole[..at], &whole[at + 1..]),
        None => (&b"."[..], &whole[..]),
    };
    let root = user.root();
    let directory = user.walk(root, above, false)?;
    let directory_time = user.stat(directory)?.mtime;
    let done = change(user, (directory, name), entry, kind, random);
    if place.is_silent {
        let stays =
            !matches!(kind, Damage::Removed | Damage::Retyped | Damage::Blocked | Damage::Mtime);
        if stays && entry.kind != EntryKind::Symlink {
            let (seconds, nanoseconds) = entry.mtime;
            let time = SetTime::To(Timestamp { seconds, nanoseconds });
            user.set_times((directory, name), SetTime::Omit, time)?;
        }
        user.set_times(directory, SetTime::Omit, SetTime::To(directory_time))?;
    }
    user.close(directory)?;
    user.close(root)?;
    done
}

fn change(
    user: &mut User<'_>,
    (directory, name): (Handle, &[u8]),
    entry: &Seen,
    kind: Damage,
    random: &mut ChaCha8Rng,
) -> Result<()> {
    let place = (directory, name);
    match kind {
        Damage::Removed => user.unlink(directory, name),
        Damage::Beside => {
            let file = user.open(directory, &[name, BESIDE].concat(), Open::new_file(0o600))?;
            user.write(file, 0, b"nobody else has this")?;
            user.close(file)
        }
        Damage::Retyped => {
            user.unlink(directory, name)?;
            user.make_directory(directory, name, 0o700)
        }
        Damage::Blocked => {
            user.unlink(directory, name)?;
            user.make_directory(directory, name, 0o700)?;
            let inside = user.open(directory, name, Open::DIRECTORY)?;
            let file = user.open(inside, b"inside", Open::new_file(0o600))?;
            user.close(file)?;
            user.close(inside)
        }
        Damage::Unlinked => {
            user.unlink(directory, name)?;
            let file = user.open(directory, name, Open::new_file(0o600))?;
            let mut at = 0;
            while at < entry.content.len() {
                at += user.write(file, at as u64, &entry.content[at..])?;
            }
            user.close(file)?;
            for (attribute, value) in &entry.xattrs {
                user.set_xattr(place, attribute, value, XattrMode::Set)?;
            }
            user.set_owner(place, Some(entry.owner.0), Some(entry.owner.1))?;
            user.set_mode(place, entry.mode)
        }
        Damage::Resized => {
            let file = user.open(directory, name, Open::WRITE)?;
            user.truncate(file, entry.content.len() as u64 + random.random_range(1..5000))?;
            user.close(file)
        }
        Damage::Mode => user.set_mode(place, entry.mode ^ 0o020),
        Damage::Owner => user.set_owner(place, Some(entry.owner.0 + 1), None).and_then(|()| {
            // A change of the owner clears the set-id bits.
            user.set_mode(place, entry.mode)
        }),
        Damage::Mtime => {
            let time = SetTime::To(Timestamp { seconds: entry.mtime.0 + 7, nanoseconds: 0 });
            user.set_times(place, SetTime::Omit, time)
        }
        Damage::Flipped => {
            let at = random.random_range(0..entry.content.len());
            let byte = entry.content[at] ^ (1 << random.random_range(0..8_u32));
            let file = user.open(directory, name, Open::WRITE)?;
            user.write(file, at as u64, &[byte])?;
            user.close(file)?;
            // A write clears the set-id bits.
            user.set_mode(place, entry.mode)
        }
        Damage::Xattr => user.set_xattr(place, b"user.more", b"than it had", XattrMode::Set),
    }
}
