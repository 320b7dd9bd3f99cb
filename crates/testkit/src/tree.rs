//! A seeded tree with every hard case that the file system below it can hold.
#![allow(clippy::unnecessary_debug_formatting, reason = "names hold control characters")]

mod acl;
mod builder;
mod bulk;
mod content;
mod features;
mod links;
mod metadata;
mod names;
mod states;
pub(crate) mod walk;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{FileType, IFlags, OFlags};

pub use features::Features;

use builder::{Builder, Place};

/// What [`HardTree::generate`] puts into a tree.
#[derive(Clone, Debug)]
pub struct TreeOptions {
    /// Ordinary entries beside the hard cases.
    pub entries: u64,
    /// What the file system can hold; what it cannot is left out and listed in the report.
    pub features: Features,
    /// Groups of cases to leave out; see [`HardTree::groups`].
    pub without: BTreeSet<String>,
}

impl TreeOptions {
    /// Every case that the file system of an existing directory can hold, and so many ordinary entries.
    pub fn probe(directory: &Path, entries: u64) -> Result<Self> {
        Ok(Self { entries, features: Features::probe(directory)?, without: BTreeSet::new() })
    }

    /// The same options without one group of cases.
    #[must_use]
    pub fn without(mut self, group: &str) -> Self {
        self.without.insert(group.to_owned());
        self
    }
}

/// What a generated tree holds.
#[derive(Clone, Debug, Default)]
pub struct TreeReport {
    /// The seed, with which the same tree can be made again.
    pub seed: u64,
    /// Names below the root.
    pub entries: u64,
    /// Name of a case, and a path below the root that shows it.
    pub cases: Vec<(String, PathBuf)>,
    /// Cases that could not be made here, and why.
    pub skipped: Vec<(String, String)>,
}

impl TreeReport {
    /// The paths below the root that show a case; empty if it was skipped.
    pub fn paths<'a>(&'a self, case: &'a str) -> impl Iterator<Item = &'a Path> {
        self.cases.iter().filter(move |(name, _)| name == case).map(|(_, path)| path.as_path())
    }

    /// The only or first path that shows a case.
    pub fn path(&self, case: &str) -> Option<&Path> {
        self.cases.iter().find(|(name, _)| name == case).map(|(_, path)| path.as_path())
    }
}

/// The generator of hard-case trees.
#[derive(Debug)]
pub struct HardTree;

type Group = fn(&mut Builder, &Place) -> Result<()>;

const GROUPS: [(&str, Group); 17] = [
    ("names", names::names),
    ("deep", names::deep),
    ("long-path", names::long_path),
    ("symlinks", links::symlinks),
    ("hardlinks", links::hard_links),
    ("special", links::special),
    ("sparse", content::sparse),
    ("huge", content::huge),
    ("sizes", content::sizes),
    ("modes", metadata::modes),
    ("owners", metadata::owners),
    ("xattrs", metadata::xattrs),
    ("acl", metadata::acls),
    ("project", states::projects),
    ("flags", states::flags),
    ("times", states::times),
    ("bulk", bulk::bulk),
];

impl HardTree {
    /// The groups of cases; each is a directory below the root.
    pub fn groups() -> impl Iterator<Item = &'static str> {
        GROUPS.iter().map(|(name, _)| *name)
    }

    /// Fills an empty or absent directory; the same seed and options make the same tree.
    ///
    /// A caller that draws a seed should print it.
    ///
    /// # Errors
    /// When the directory is not empty, or an operation fails that the probed features promise.
    pub fn generate(root: &Path, seed: u64, options: &TreeOptions) -> Result<TreeReport> {
        std::fs::create_dir_all(root).with_context(|| format!("create {root:?}"))?;
        if std::fs::read_dir(root)?.next().is_some() {
            bail!("{root:?} is not empty");
        }
        if let Some(unknown) = options.without.iter().find(|g| !Self::groups().any(|k| k == *g)) {
            bail!("unknown group {unknown:?}");
        }
        let mut builder = Builder::new(root, seed, options)?;
        let top = builder.top()?;
        for (name, fill) in GROUPS {
            if options.without.contains(name) {
                continue;
            }
            // Every group draws from its own sequence, so leaving one out changes no other.
            builder.reseed(seed, name);
            let place = builder.directory(&top, name)?;
            fill(&mut builder, &place).with_context(|| format!("group {name} of {root:?}"))?;
        }
        builder.reseed(seed, "finish");
        builder.finish()
    }
}

/// Clears the inode flags that forbid deletion, everywhere below a root.
pub fn cleanup(root: &Path) -> Result<()> {
    walk::walk(root, &mut |entry| {
        let directory = match entry.file_type() {
            FileType::Directory => OFlags::DIRECTORY,
            FileType::RegularFile => OFlags::empty(),
            _ => return Ok(()),
        };
        let file = walk::open_quietly(entry.parent, entry.name, directory)?;
        let Ok(flags) = rustix::fs::ioctl_getflags(&file) else { return Ok(()) };
        let forbidding = IFlags::IMMUTABLE | IFlags::APPEND;
        if flags.intersects(forbidding) {
            rustix::fs::ioctl_setflags(&file, flags - forbidding)
                .with_context(|| format!("clear flags of {:?}", entry.path))?;
        }
        Ok(())
    })
}

/// Deletes a tree, whatever its flags and however long its paths.
pub fn remove(root: &Path) -> Result<()> {
    cleanup(root)?;
    std::fs::remove_dir_all(root).with_context(|| format!("remove {root:?}"))
}
