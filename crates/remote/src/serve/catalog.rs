//! What the catalog of a pass needs to know of the tree, with which the next pass detects renames.
use dmover_local::directory::SourceDirectory;
use dmover_local::error::CallFailed;
use dmover_local::listing::NameBuffer;
use dmover_model::{DirectoryState, ListedName, Metadata, Operation, Revisit, Side, TreePath};
use dmover_net::connection::{Broken, Channel};
use dmover_tree::{CatalogPart, DescribedEntry, Looked, LookedAcl};
use dmover_wire::agent::Answer;
use dmover_wire::encode;
use serde::Serialize;

use super::tree::Tree;
use crate::joined::send;

/// A message is sent when it has about this many bytes.
const PART_BYTES: usize = 64 << 10;
/// About how many bytes a part takes in a message, besides names.
const ENTRY_BYTES: usize = 48;
const DIRECTORY_BYTES: usize = 100;

/// An answer in several messages.
struct Answers<'c, E> {
    channel: &'c Channel,
    parts: Vec<CatalogPart<E>>,
    entries: Vec<E>,
    bytes: usize,
}

impl<'c, E: Serialize> Answers<'c, E> {
    fn new(channel: &'c Channel) -> Self {
        Self { channel, parts: Vec::new(), entries: Vec::new(), bytes: 0 }
    }

    fn directory(&mut self, state: DirectoryState, metadata: Metadata) {
        self.bytes += DIRECTORY_BYTES;
        self.parts.push(CatalogPart::Directory(state, metadata));
    }

    fn entry(&mut self, entry: E, name: usize) -> Result<(), Broken> {
        self.bytes += ENTRY_BYTES + name;
        self.entries.push(entry);
        self.send_if_large()
    }

    fn end(&mut self, read: Answer<()>) -> Result<(), Broken> {
        self.keep_entries();
        self.parts.push(read.map_or_else(CatalogPart::Failed, |()| CatalogPart::End));
        self.send_if_large()
    }

    fn keep_entries(&mut self) {
        if !self.entries.is_empty() {
            self.parts.push(CatalogPart::Entries(std::mem::take(&mut self.entries)));
        }
    }

    fn send_if_large(&mut self) -> Result<(), Broken> {
        if self.bytes < PART_BYTES {
            return Ok(());
        }
        self.keep_entries();
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Broken> {
        self.bytes = 0;
        let parts = std::mem::take(&mut self.parts);
        if parts.is_empty() { Ok(()) } else { send(self.channel, &encode(&parts)) }
    }

    /// Sends what is left, and that there is no more.
    fn finish(mut self) -> Result<(), Broken> {
        self.flush()?;
        send(self.channel, &encode(&self.parts))
    }
}

/// A tree, as it tells of itself for a catalog.
pub(super) struct ForCatalog<'t>(pub &'t Tree);

impl ForCatalog<'_> {
    /// Looks at entries by their paths.
    pub(super) fn objects(&self, paths: &[TreePath]) -> Vec<Looked> {
        self.each_entry(paths, |directory, name| self.described(directory, name))
    }

    /// Reads the access ACLs of entries.
    pub(super) fn acls(&self, paths: &[TreePath]) -> Vec<LookedAcl> {
        self.each_entry(paths, |directory, name| {
            let found = directory.access_acl(name);
            let at = (Side::Source, Operation::ReadXattr);
            found.map_err(|error| error.at(at, directory.place.entry(name)))
        })
    }

    /// Does something with each entry. Neighbours need their directory once.
    fn each_entry<T>(
        &self,
        paths: &[TreePath],
        look: impl Fn(&SourceDirectory, &[u8]) -> Answer<T>,
    ) -> Vec<Answer<T>> {
        let mut above: Option<(TreePath, Answer<SourceDirectory>)> = None;
        let mut look_at = |path: &TreePath| {
            let (place, name) = path.split_last().unwrap_or((TreePath::root(), b""));
            let (_, directory) = match &mut above {
                Some(open) if open.0 == place => open,
                other => {
                    let opened = self.open_directory_of_catalog(&place);
                    other.insert((place, opened))
                }
            };
            look(directory.as_ref().map_err(Clone::clone)?, name)
        };
        paths.iter().map(&mut look_at).collect()
    }

    /// Sends which directories of an earlier pass have another state, and the names in them.
    pub(super) fn revisit(&self, directories: &[Revisit], channel: &Channel) -> Result<(), Broken> {
        let mut answers = Answers::<ListedName>::new(channel);
        let root = self.open_directory_of_catalog(&TreePath::root());
        let root = match root {
            Ok(root) => root.metadata.identity.mount,
            // Whether names count is not known.
            Err(error) => {
                for _ in directories {
                    answers.end(Err(error.clone()))?;
                }
                return answers.finish();
            }
        };
        for Revisit { path, inode, known } in directories {
            let Some((directory, state)) = self.begin_directory(path, &mut answers)? else {
                continue;
            };
            let own = directory.metadata.identity;
            let is_there = own.inode == *inode && own.mount == root;
            if !is_there || *known == Some(state) {
                answers.end(Ok(()))?;
                continue;
            }
            let mut broken = None;
            let read = directory.each_numbered(|listed| {
                let name = listed.name.as_bytes().len();
                broken = answers.entry(listed, name).err();
                broken.is_none()
            });
            broken.map_or(Ok(()), Err)?;
            answers.end(read.map_err(|error| directory.unread(error)))?;
        }
        answers.finish()
    }

    /// Sends what a look at every entry of directories shows.
    pub(super) fn describe(
        &self,
        directories: &[TreePath],
        channel: &Channel,
    ) -> Result<(), Broken> {
        let mut answers = Answers::<DescribedEntry>::new(channel);
        for path in directories {
            let Some((directory, _)) = self.begin_directory(path, &mut answers)? else { continue };
            let mut broken = None;
            let mut buffer = NameBuffer::default();
            let read = directory.read(&mut buffer, |listed| -> Result<bool, CallFailed> {
                let name = listed.name()?;
                let looked = self.described(&directory, name.as_bytes());
                let bytes = ENTRY_BYTES + name.as_bytes().len();
                broken = answers.entry((name, looked), bytes).err();
                Ok(broken.is_none())
            });
            broken.map_or(Ok(()), Err)?;
            answers.end(read)?;
        }
        answers.finish()
    }

    /// Opens a directory, and adds its state to the answer; `None`: it cannot be opened, which the answer says.
    fn begin_directory<E: Serialize>(
        &self,
        path: &TreePath,
        answers: &mut Answers<'_, E>,
    ) -> Result<Option<(SourceDirectory, DirectoryState)>, Broken> {
        let opened = self.open_directory_of_catalog(path).and_then(|directory| {
            let state = directory.state().map_err(|error| directory.unread(error))?;
            Ok((directory, state))
        });
        match opened {
            Ok((directory, state)) => {
                answers.directory(state, directory.metadata.clone());
                Ok(Some((directory, state)))
            }
            Err(error) => answers.end(Err(error)).map(|()| None),
        }
    }

    fn open_directory_of_catalog(&self, path: &TreePath) -> Answer<SourceDirectory> {
        // What is beside a root is not the other side's business.
        self.0.check_name(path, b"")?;
        self.0.open_directory(path, false)
    }

    fn described(&self, directory: &SourceDirectory, name: &[u8]) -> Looked {
        let shown = || directory.place.entry(name);
        let found = self.0.host.end().source_object(directory, name);
        found.map_err(|error| error.at((Side::Source, Operation::Stat), shown()))
    }
}
