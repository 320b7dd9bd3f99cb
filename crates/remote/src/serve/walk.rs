//! Directories that are read with all that is below them, so that a tree of many small ones does not cost a round trip each.
use dmover_local::directory::SourceDirectory;
use dmover_local::error::CallFailed;
use dmover_local::listing::NameBuffer;
use dmover_model::{EntryKind, Name, TreePath};
use dmover_net::connection::{Broken, Channel};
use dmover_tree::Needs;
use dmover_wire::agent::{
    Answer, DirectoryAt, Head, ListedEntry, SHORT_MAX, WALK_ENTRIES, WALK_MAX, WALKED_ENTRIES_MAX,
    WalkPart, Walked, WalkedDirectory, encode_content,
};
use std::sync::Arc;

use super::content::{attribute_bytes, sent_bytes};
use super::list::kind;
use super::progress::Losses;
use super::tree::Tree;
use crate::joined::send;

/// A walk ends after about so many bytes. What it reads in vain, because the other side leaves it out, is then no more.
const BYTES_MAX: usize = 4 << 20;
/// Files come along from directories with no more entries. Those of larger ones are asked for when they are entered, many with
/// one request, and would delay what is needed sooner.
const ENTRIES_WITH_FILES_MAX: usize = 16;
/// A message is sent when it has about this many bytes.
const PART_BYTES: usize = 64 << 10;
/// About how many bytes an entry takes in a message, besides its name.
const ENTRY_BYTES: usize = 100;

/// What may still be sent, and what is to be sent next.
struct Walk<'c> {
    channel: &'c Channel,
    needs: Needs,
    directories: usize,
    entries: usize,
    bytes_left: usize,
    part: Vec<Walked>,
    bytes: usize,
}

impl Walk<'_> {
    fn is_used_up(&self) -> bool {
        self.directories == 0 || self.entries == 0 || self.bytes_left == 0
    }

    fn add(&mut self, path: TreePath, found: Option<WalkedDirectory>) -> Result<(), Broken> {
        self.directories -= 1;
        self.bytes += ENTRY_BYTES + path.as_bytes().len();
        if let Some(found) = &found {
            self.entries = self.entries.saturating_sub(found.entries.len());
            let target = |entry: &ListedEntry| {
                entry.seen.as_ref().and_then(|(_, target)| target.as_ref()).map_or(0, Vec::len)
            };
            let of_entry = |entry: &ListedEntry| ENTRY_BYTES + entry.name.len() + target(entry);
            let heads = found.heads.iter().map(|(_, head)| sent_bytes(head)).sum::<usize>();
            let attributes =
                found.attributes.as_ref().map_or(0, |(_, found)| attribute_bytes(found));
            let bytes = found.entries.iter().map(of_entry).sum::<usize>() + heads + attributes;
            self.bytes_left = self.bytes_left.saturating_sub(bytes);
            self.bytes += bytes;
        }
        self.part.push(Walked { path, found });
        if self.bytes < PART_BYTES { Ok(()) } else { self.flush(false) }
    }

    fn flush(&mut self, is_last: bool) -> Result<(), Broken> {
        self.bytes = 0;
        let directories = std::mem::take(&mut self.part);
        send(self.channel, &encode_content(&WalkPart { directories, is_last }))
    }
}

impl Tree {
    /// Sends directories with all that is below them, depth first, as far as they are short.
    pub(super) fn walk(
        &self,
        at: &DirectoryAt,
        (names, needs): (&[Name], Needs),
        channel: &Channel,
    ) -> Result<(), Broken> {
        let mut walk = Walk {
            channel,
            needs,
            directories: WALK_MAX,
            entries: WALK_ENTRIES,
            bytes_left: BYTES_MAX,
            part: Vec::new(),
            bytes: 0,
        };
        // An error comes again when the other side asks for what is missing.
        if let Ok(above) = self.directory_of(at, b"", false) {
            // The last of a list is the next one: what was found below a directory comes before its siblings.
            let mut left: Vec<(Arc<SourceDirectory>, TreePath, Name)> = names
                .iter()
                .rev()
                .map(|name| (above.clone(), at.path.clone(), name.clone()))
                .collect();
            while let Some((above, path, name)) = left.pop()
                && !walk.is_used_up()
            {
                let path = path.join(name.as_bytes());
                let Some((directory, found)) = self.walk_into(&above, (&path, &name), &walk) else {
                    walk.add(path, None)?;
                    continue;
                };
                if needs.goes_below {
                    let is_below = |entry: &&ListedEntry| {
                        let of = entry.seen.as_ref().map(|(metadata, _)| metadata.kind);
                        of == Some(EntryKind::Directory)
                    };
                    let below = found.entries.iter().rev().filter(is_below);
                    let names = below.filter_map(|entry| Name::new(&*entry.name).ok());
                    left.extend(names.map(|name| (Arc::clone(&directory), path.clone(), name)));
                }
                walk.add(path, Some(found))?;
            }
        }
        walk.flush(true)
    }

    /// Reads one directory of a walk; `None`: it is not sent.
    fn walk_into(
        &self,
        above: &SourceDirectory,
        (path, name): (&TreePath, &Name),
        walk: &Walk<'_>,
    ) -> Option<(Arc<SourceDirectory>, WalkedDirectory)> {
        let directory = self.host.end().enter_source(above, name.as_bytes(), false).ok()?;
        let directory = Arc::new(directory);
        let metadata = directory.metadata.clone();
        // What is mounted here may be left out by the job.
        if metadata.identity.mount != above.metadata.identity.mount {
            return None;
        }
        let at = DirectoryAt { path: path.clone(), follows: false, identity: metadata.identity };
        self.keep_directory(at.clone(), &directory);
        let mut entries = self.all_entries(&directory)?;
        let losses = Losses::default();
        let local = self.host.local(&losses);
        for entry in &mut entries {
            entry.seen = local.look(&directory, &entry.name, false).ok();
        }
        let heads = if walk.needs.opens_files && entries.len() <= ENTRIES_WITH_FILES_MAX {
            self.heads_of(&at, &entries)
        } else {
            Vec::new()
        };
        let attributes = self.own_attributes(&directory);
        Some((directory, WalkedDirectory { metadata, attributes, entries, heads }))
    }

    /// The names in a directory; `None`: they are too many, or cannot be read.
    fn all_entries(&self, directory: &SourceDirectory) -> Option<Vec<ListedEntry>> {
        let mut entries = Vec::new();
        let read = directory.read(&mut NameBuffer::default(), |listed| -> Result<_, CallFailed> {
            let (name, kind, inode) = (listed.bytes.to_vec(), kind(listed.kind), listed.inode);
            entries.push(ListedEntry { name, kind, inode, seen: None });
            Ok(entries.len() <= WALKED_ENTRIES_MAX)
        });
        read.ok().filter(|()| entries.len() <= WALKED_ENTRIES_MAX)?;
        Some(entries)
    }

    /// Opens the short files of a directory.
    fn heads_of(&self, at: &DirectoryAt, entries: &[ListedEntry]) -> Vec<(Name, Head)> {
        let mut heads = Vec::new();
        for entry in entries {
            let Some((metadata, _)) = &entry.seen else { continue };
            // A file with several names is copied once.
            let is_short = metadata.kind == EntryKind::File
                && metadata.size <= SHORT_MAX
                && metadata.links == 1;
            let Some(name) = Name::new(&*entry.name).ok().filter(|_| is_short) else { continue };
            let head: Answer<Head> = self.head(at, &name, false);
            let Ok(head) = head else { continue };
            heads.push((name, head));
        }
        heads
    }
}
