//! Lists of directories.
use dmover_local::error::CallFailed;
use dmover_local::listing::{ListedKind as Kind, NameBuffer};
use dmover_net::connection::{Broken, Channel};
use dmover_tree::ListedKind;
use dmover_wire::agent::{DirectoryAt, ListPart, ListedEntry};
use dmover_wire::encode;

use super::progress::Losses;
use super::tree::Tree;
use crate::joined::send;

/// A part has at most so many entries, and about so many bytes of names.
const PART_ENTRIES: usize = 512;
const PART_BYTES: usize = 64 << 10;

impl Tree {
    /// Sends the entries of a directory. `looks`: looks at them, and whether at what symbolic links lead to.
    pub(super) fn list(
        &self,
        at: &DirectoryAt,
        looks: Option<bool>,
        channel: &Channel,
    ) -> Result<(), Broken> {
        let last = match self.read_names(at, looks, channel)? {
            Ok(()) => ListPart::End,
            Err(error) => ListPart::Failed(error),
        };
        send(channel, &encode(&last))
    }

    fn read_names(
        &self,
        at: &DirectoryAt,
        looks: Option<bool>,
        channel: &Channel,
    ) -> Result<Result<(), dmover_model::EntryError>, Broken> {
        // What is beside a root is not the other side's business.
        if let Err(error) = self.check_name(&at.path, b"") {
            return Ok(Err(error));
        }
        let directory = match self.directory_of(at, b"", looks == Some(true)) {
            Ok(directory) => directory,
            Err(error) => return Ok(Err(error)),
        };
        let losses = Losses::default();
        let local = self.host.local(&losses);
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let mut broken = None;
        let read = directory.read(&mut NameBuffer::default(), |listed| -> Result<_, CallFailed> {
            let name = listed.bytes.to_vec();
            let look = |follows| local.look(&directory, &name, follows).ok();
            let seen = looks.and_then(look);
            bytes += name.len()
                + seen.iter().filter_map(|(_, to)| to.as_ref()).map(Vec::len).sum::<usize>();
            let kind = kind(listed.kind);
            entries.push(ListedEntry { name, kind, inode: listed.inode, seen });
            if entries.len() >= PART_ENTRIES || bytes >= PART_BYTES {
                bytes = 0;
                let part = ListPart::Entries(std::mem::take(&mut entries));
                broken = send(channel, &encode(&part)).err();
            }
            Ok(broken.is_none())
        });
        if let Some(why) = broken {
            return Err(why);
        }
        if !entries.is_empty() {
            send(channel, &encode(&ListPart::Entries(entries)))?;
        }
        Ok(read)
    }
}

pub(super) fn kind(kind: Kind) -> ListedKind {
    match kind {
        Kind::Directory => ListedKind::Directory,
        Kind::File => ListedKind::File,
        Kind::Other => ListedKind::Other,
        Kind::Unknown => ListedKind::Unknown,
    }
}
