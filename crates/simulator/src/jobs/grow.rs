//! Trees, and what changes in them.
use dmover_memory::{Actor, Device, Disk, Handle, Open, Result, SetTime, User, XattrMode};
use dmover_model::{EntryKind, Timestamp};
use rand::Rng as _;
use rand::seq::IndexedRandom as _;
use rand_chacha::ChaCha8Rng;

use super::TREE;

/// A directory of a tree, by its path.
type Path = Vec<Vec<u8>>;

/// A tree that grows.
#[derive(Debug)]
pub struct Grower {
    random: ChaCha8Rng,
    directories: Vec<Path>,
    files: Vec<(Path, Vec<u8>)>,
    named: u32,
}

impl Grower {
    /// For trees without entries.
    pub fn new(random: ChaCha8Rng) -> Self {
        Self::below(random, &[TREE])
    }

    /// For a tree at another path.
    pub fn below(random: ChaCha8Rng, path: &[&[u8]]) -> Self {
        let top = path.iter().map(|name| name.to_vec()).collect();
        Self { random, directories: vec![top], files: Vec::new(), named: 0 }
    }

    /// Adds entries.
    pub fn grow(&mut self, disk: &mut Disk, entries: u32) {
        let root = Actor::root();
        let mut user = disk.as_user(&root);
        if let Some((name, above)) = self.directories[0].split_last()
            && let Ok(above) = open(&mut user, above)
        {
            // It may be there.
            let _ = user.make_directory(above, name, 0o755);
            let _ = user.close(above);
        }
        for _ in 0..entries {
            // What does not fit on the disk is not there.
            let _ = self.add(&mut user);
        }
        for place in self.directories.clone() {
            let Ok(directory) = open(&mut user, &place) else { continue };
            let time = time(&mut self.random);
            let _ = user.set_times(directory, time, time);
            let _ = user.close(directory);
        }
    }

    fn pick_directory(&mut self) -> Path {
        let at = self.random.random_range(0..self.directories.len());
        self.directories[at].clone()
    }

    fn name(&mut self) -> Vec<u8> {
        self.named += 1;
        let odd: [&[u8]; 6] =
            [b"a", b"with space", b"\xff\xfe", b"-n", b"new\nline", "ü".as_bytes()];
        let odd = odd[self.random.random_range(0..odd.len())];
        [odd, self.named.to_string().as_bytes()].concat()
    }

    fn add(&mut self, user: &mut User<'_>) -> Result<()> {
        let place = self.pick_directory();
        let name = self.name();
        let directory = open(user, &place)?;
        let added = self.add_to(user, &place, directory, &name);
        user.close(directory)?;
        added
    }

    fn add_to(
        &mut self,
        user: &mut User<'_>,
        place: &Path,
        directory: Handle,
        name: &[u8],
    ) -> Result<()> {
        match self.random.random_range(0..12_u32) {
            0 | 1 => {
                user.make_directory(directory, name, 0o755)?;
                self.directories.push([place.as_slice(), &[name.to_vec()]].concat());
                // Its times are set when everything is in it.
                return self.dress(user, (directory, name), false);
            }
            2 => user.symlink(b"../somewhere/else", directory, name)?,
            3 => {
                let nodes = [Device::Fifo, Device::Socket, Device::Char(1, 3), Device::Block(7, 9)];
                let node = nodes[self.random.random_range(0..nodes.len())];
                user.make_node(directory, name, node, 0o600)?;
            }
            4 | 5 if !self.files.is_empty() => {
                let at = self.random.random_range(0..self.files.len());
                let (other, first) = self.files[at].clone();
                let other = open(user, &other)?;
                let linked = user.link((other, first.as_slice()), directory, name);
                user.close(other)?;
                linked?;
                self.files.push((place.clone(), name.to_vec()));
                return Ok(());
            }
            _ => {
                let file = user.open(directory, name, Open::new_file(0o644))?;
                self.fill(user, file)?;
                user.close(file)?;
                self.files.push((place.clone(), name.to_vec()));
            }
        }
        self.dress(user, (directory, name), true)
    }

    fn fill(&mut self, user: &mut User<'_>, file: Handle) -> Result<()> {
        let size = match self.random.random_range(0..10_u32) {
            0 => 0,
            1..=5 => self.random.random_range(1..5000),
            6..=8 => self.random.random_range(5000..60_000),
            _ => self.random.random_range(100_000..400_000),
        };
        let has_holes = self.random.random_bool(0.2);
        let mut at = 0;
        while at < size {
            let part = self.random.random_range(1..=20_000).min(size - at);
            if !has_holes || self.random.random_bool(0.5) {
                let mut bytes = vec![0; part];
                self.random.fill(bytes.as_mut_slice());
                write_all(user, file, at as u64, &bytes)?;
            }
            at += part;
        }
        user.truncate(file, size as u64)
    }

    fn dress(
        &mut self,
        user: &mut User<'_>,
        (directory, name): (Handle, &[u8]),
        with_times: bool,
    ) -> Result<()> {
        let of = user.stat((directory, name))?;
        if self.random.random_bool(0.2) {
            let (uid, gid) = (self.random.random_range(0..5), self.random.random_range(0..5));
            user.set_owner((directory, name), Some(1000 + uid), Some(1000 + gid))?;
        }
        if of.kind != EntryKind::Symlink {
            let modes = [0o644, 0o600, 0o755, 0o4755, 0o2711, 0o400, 0o1777, 0o000];
            let mode = modes[self.random.random_range(0..modes.len())];
            user.set_mode((directory, name), mode)?;
        }
        if matches!(of.kind, EntryKind::File | EntryKind::Directory) {
            if self.random.random_bool(0.3) {
                // It may have none.
                let _ = user.remove_xattr((directory, name), b"user.note");
            }
            if self.random.random_bool(0.3) {
                let value = vec![self.random.random(); self.random.random_range(0..300)];
                user.set_xattr((directory, name), b"user.note", &value, XattrMode::Set)?;
            }
        }
        if with_times {
            let (read, written) = (time(&mut self.random), time(&mut self.random));
            user.set_times((directory, name), read, written)?;
        }
        Ok(())
    }

    /// Changes some entries: content, names, attributes; some are removed, some are new.
    pub fn change(&mut self, disk: &mut Disk, changes: u32) {
        let root = Actor::root();
        for _ in 0..changes {
            let mut user = disk.as_user(&root);
            let _ = self.change_one(&mut user);
        }
        self.grow(disk, changes / 2);
    }

    /// Writes other bytes into files that keep their sizes and get other times.
    pub fn overwrite(&mut self, disk: &mut Disk, changes: u32) {
        self.edit(disk, changes, |random, user, (directory, name)| {
            let file = user.open(directory, name, Open::WRITE)?;
            let size = user.stat(file).map_or(0, |of| of.size);
            let mut bytes = vec![0; size as usize];
            random.fill(bytes.as_mut_slice());
            let written = write_all(user, file, 0, &bytes);
            user.close(file)?;
            written?;
            let time = time(random);
            user.set_times((directory, name), time, time)
        });
    }

    /// Changes an extended attribute of files, and nothing else.
    pub fn annotate(&mut self, disk: &mut Disk, changes: u32) {
        self.edit(disk, changes, |random, user, entry| {
            user.set_xattr(entry, b"user.note", &random.random::<[u8; 8]>(), XattrMode::Set)
        });
    }

    /// Does something with so many files.
    fn edit(
        &mut self,
        disk: &mut Disk,
        changes: u32,
        edit: impl Fn(&mut ChaCha8Rng, &mut User<'_>, (Handle, &[u8])) -> Result<()>,
    ) {
        let root = Actor::root();
        let mut user = disk.as_user(&root);
        for _ in 0..changes {
            let Some((place, name)) = self.files.choose(&mut self.random) else { return };
            let Ok(directory) = open(&mut user, place) else { continue };
            // What cannot be changed stays.
            let _ = edit(&mut self.random, &mut user, (directory, name));
            let _ = user.close(directory);
        }
    }

    fn change_one(&mut self, user: &mut User<'_>) -> Result<()> {
        if self.files.is_empty() {
            return Ok(());
        }
        let at = self.random.random_range(0..self.files.len());
        let (place, name) = self.files[at].clone();
        let directory = open(user, &place)?;
        let changed = match self.random.random_range(0..4_u32) {
            0 => {
                self.files.swap_remove(at);
                user.unlink(directory, &name)
            }
            1 => self.rename(user, directory, at),
            2 => self.dress(user, (directory, &name), true),
            _ => self.rewrite(user, directory, &name),
        };
        user.close(directory)?;
        changed
    }

    fn rename(&mut self, user: &mut User<'_>, directory: Handle, at: usize) -> Result<()> {
        let (to, new) = (self.pick_directory(), self.name());
        let target = open(user, &to)?;
        let old = self.files[at].1.clone();
        let renamed = user.rename((directory, &old), (target, &new), dmover_memory::Renaming::New);
        user.close(target)?;
        if renamed.is_ok() {
            self.files[at] = (to, new);
        }
        renamed
    }

    fn rewrite(&mut self, user: &mut User<'_>, directory: Handle, name: &[u8]) -> Result<()> {
        let file = user.open(directory, name, Open::WRITE)?;
        let filled = self.fill(user, file);
        user.close(file)?;
        filled?;
        let (read, written) = (time(&mut self.random), time(&mut self.random));
        user.set_times((directory, name), read, written)
    }
}

fn time(random: &mut ChaCha8Rng) -> SetTime {
    let seconds = random.random_range(-1000..1_600_000_000);
    SetTime::To(Timestamp { seconds, nanoseconds: random.random_range(0..1_000_000_000) })
}

fn write_all(user: &mut User<'_>, file: Handle, mut at: u64, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let written = user.write(file, at, bytes)?;
        (at, bytes) = (at + written as u64, &bytes[written..]);
    }
    Ok(())
}

/// Opens a directory by its path.
fn open(user: &mut User<'_>, path: &[Vec<u8>]) -> Result<Handle> {
    let mut current = user.root();
    for name in path {
        let next = user.open(current, name, Open::DIRECTORY);
        user.close(current)?;
        current = next?;
    }
    Ok(current)
}
