//! Directories of a tree at another host.
use dmover_local::error::no_name;
use dmover_model::{EntryError, Metadata, Name, Operation};
use dmover_net::connection::Channel;
use dmover_tree::{EntryAttributes, ListedKind, RemoteDirectory, RemoteFile, Seen};
use dmover_wire::agent::{Answer, DirectoryAt, FileAt, Head, ListPart, ListedEntry, Request};
use std::sync::Arc;
use std::time::Duration;

use super::ahead::Ahead;
use super::asking::About;
use super::file::File;
use super::looks::Looks;
use super::shared::Shared;

/// The most looks of one request.
const LOOKS_MAX: usize = 1024;

/// An open directory.
#[derive(Debug)]
pub(super) struct Directory {
    shared: Arc<Shared>,
    at: DirectoryAt,
    metadata: Metadata,
    looks: Arc<Looks>,
    ahead: Ahead,
}

impl Directory {
    pub(super) fn open(
        shared: &Arc<Shared>,
        at: DirectoryAt,
        metadata: Metadata,
    ) -> Arc<dyn RemoteDirectory> {
        let looks = shared.known.of(&at, shared.follows_all);
        let key = (at.path.clone(), at.follows);
        let ahead = Ahead::default();
        let directory: Arc<dyn RemoteDirectory> =
            Arc::new(Self { shared: Arc::clone(shared), at, metadata, looks, ahead });
        shared.open.keep(key, &directory);
        directory
    }

    fn about<'a>(&'a self, operation: Operation, name: &'a [u8]) -> About<'a> {
        (operation, &self.at.path, name)
    }

    fn name(&self, name: &[u8]) -> Result<Name, EntryError> {
        Name::new(name).map_err(|_| {
            let plain = self.shared.asking.plain(
                self.about(Operation::Stat, name),
                dmover_model::ErrorClass::Other,
                "",
            );
            no_name(plain.path)
        })
    }

    fn ask_for_heads(&self, names: Vec<Name>, follows: bool) -> Result<Channel, EntryError> {
        let first = names.first().cloned();
        let about = first.as_ref().map(Name::as_bytes).unwrap_or_default();
        let request = Request::Heads { directory: self.at.clone(), names, follows };
        self.shared.asking.send(&request, self.about(Operation::Open, about))
    }

    /// Looks at entries with one request, and keeps what it shows.
    fn ask_for_looks(&self, names: &[Name], follows: bool) -> Result<(), EntryError> {
        if names.is_empty() {
            return Ok(());
        }
        let about = self.about(Operation::Stat, b"");
        let request = Request::Look { directory: self.at.clone(), names: names.to_vec(), follows };
        let channel = self.shared.asking.send(&request, about)?;
        let answers: Vec<Answer<Seen>> = self.shared.asking.receive(&channel, about)?;
        let seen = names.iter().zip(answers);
        let seen = seen.filter_map(|(name, seen)| Some((name.as_bytes().to_vec(), seen.ok()?)));
        self.looks.keep(seen);
        Ok(())
    }

    fn fill(&self) {
        self.ahead.fill(|names, follows| {
            let request = Request::Heads { directory: self.at.clone(), names, follows };
            self.shared.asking.send_ahead(&request)
        });
    }

    /// The head of a file, which was announced or is asked for now.
    fn head(&self, name: &Name, follows: bool) -> Result<Head, EntryError> {
        let about = self.about(Operation::Open, name.as_bytes());
        let receive = |channel: &Channel| {
            let heads: Vec<Answer<Head>> = self.shared.asking.receive(channel, about)?;
            let is_none = heads.is_empty();
            let missing = || Err(self.shared.asking.violation(about, "an answer is missing"));
            if is_none { missing() } else { Ok(heads) }
        };
        let taken = self.ahead.take(name, follows, receive);
        if let Some(head) = taken {
            // Those after it are on their way while this one is used.
            self.fill();
            return head;
        }
        let channel = self.ask_for_heads(vec![name.clone()], follows)?;
        let mut heads = receive(&channel)?;
        heads
            .pop()
            .unwrap_or_else(|| Err(self.shared.asking.violation(about, "an answer is missing")))
    }

    fn take_part(
        &self,
        entries: Vec<ListedEntry>,
        each: &mut dyn FnMut(&[u8], ListedKind, u64) -> bool,
    ) -> bool {
        let listed: Vec<_> = entries.iter().map(|entry| (entry.kind, entry.inode)).collect();
        let mut names = Vec::with_capacity(listed.len());
        let kept = entries.into_iter().filter_map(|entry| {
            names.push(entry.name.clone());
            Some((entry.name, entry.seen?))
        });
        // All at once: whoever is told of a name may look at it at once.
        self.looks.keep(kept.collect::<Vec<_>>().into_iter());
        names.iter().zip(listed).all(|(name, (kind, inode))| each(name, kind, inode))
    }
}

impl RemoteDirectory for Directory {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn clock_skew(&self) -> Option<Duration> {
        self.shared.skew.of(&self.metadata)
    }

    fn enter(&self, name: &[u8], follows: bool) -> Result<Arc<dyn RemoteDirectory>, EntryError> {
        let request =
            Request::Enter { directory: self.at.clone(), name: self.name(name)?, follows };
        let metadata: Metadata =
            self.shared.asking.ask(&request, self.about(Operation::Open, name))?;
        let at = DirectoryAt {
            path: self.at.path.join(name),
            follows: self.at.follows || follows,
            identity: metadata.identity,
        };
        Ok(Self::open(&self.shared, at, metadata))
    }

    fn list(&self, each: &mut dyn FnMut(&[u8], ListedKind, u64) -> bool) -> Result<(), EntryError> {
        let about = self.about(Operation::ReadDirectory, b"");
        let request = Request::List {
            directory: self.at.clone(),
            looks: self.looks.is_first_list(),
            follows: self.shared.follows_all,
        };
        let channel = self.shared.asking.send(&request, about)?;
        loop {
            match self.shared.asking.receive(&channel, about)? {
                ListPart::Entries(entries) => {
                    if !self.take_part(entries, each) {
                        return Ok(());
                    }
                }
                ListPart::End => return Ok(()),
                ListPart::Failed(error) => return Err(error),
            }
        }
    }

    fn look(&self, name: &[u8], follows: bool) -> Result<Seen, EntryError> {
        if let Some(seen) = self.looks.take(name, follows) {
            return Ok(seen);
        }
        let about = self.about(Operation::Stat, name);
        let names = vec![self.name(name)?];
        let channel = self
            .shared
            .asking
            .send(&Request::Look { directory: self.at.clone(), names, follows }, about)?;
        let mut answers: Vec<Answer<Seen>> = self.shared.asking.receive(&channel, about)?;
        let answer = answers.pop();
        answer.unwrap_or_else(|| Err(self.shared.asking.violation(about, "an answer is missing")))
    }

    fn look_ahead(&self, names: &[&[u8]], follows: bool) {
        if follows != self.looks.follows {
            // What such looks show cannot be kept with the others.
            return;
        }
        let unknown = self.looks.unknown(names, follows);
        for part in unknown.chunks(LOOKS_MAX) {
            let names: Vec<Name> = part.iter().filter_map(|name| Name::new(*name).ok()).collect();
            // An entry that cannot be looked at now is looked at when it is needed, and the error comes then.
            if self.ask_for_looks(&names, follows).is_err() {
                return;
            }
        }
    }

    fn open_file(&self, name: &[u8], follows: bool) -> Result<Arc<dyn RemoteFile>, EntryError> {
        let name = self.name(name)?;
        let head = self.head(&name, follows)?;
        let at =
            FileAt { directory: self.at.clone(), name, follows, version: head.metadata.version() };
        Ok(Arc::new(File::new(Arc::clone(&self.shared), at, head)))
    }

    fn attributes(
        &self,
        name: &[u8],
        follows: bool,
    ) -> Result<(Metadata, EntryAttributes), EntryError> {
        let own = name.is_empty();
        let request = Request::Attributes {
            directory: self.at.clone(),
            name: if own { None } else { Some(self.name(name)?) },
            follows,
        };
        self.shared.asking.ask(&request, self.about(Operation::ReadXattr, name))
    }

    fn announce(&self, names: &[&[u8]], follows: bool) {
        self.ahead.announce(names.iter().filter_map(|name| Name::new(*name).ok()), follows);
        self.fill();
    }
}
