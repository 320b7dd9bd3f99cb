//! Directories of a tree at another host.
use dmover_local::error::no_name;
use dmover_model::{EntryError, Metadata, Name, Operation, TreePath};
use dmover_net::connection::Channel;
use dmover_observe::lock;
use dmover_schedule::sync::{Mutex, OnceLock};
use dmover_tree::{EntryAttributes, ListedKind, RemoteDirectory, RemoteFile, Seen};
use dmover_wire::agent::{Answer, DirectoryAt, FileAt, Head, ListPart, ListedEntry, Request};
use std::sync::Arc;
use std::time::Duration;

use super::ahead::{Ahead, Asks};
use super::asking::About;
use super::entered_ahead::Requested;
use super::file::File;
use super::looks::Looks;
use super::shared::Shared;

/// The most looks of one request.
const LOOKS_MAX: usize = 1024;
/// How many directories one mover asks for before it enters them.
const DIRECTORIES_AHEAD: usize = 4;

/// An open directory.
#[derive(Debug)]
pub(super) struct Directory {
    shared: Arc<Shared>,
    at: DirectoryAt,
    metadata: Metadata,
    looks: Arc<Looks>,
    ahead: Ahead,
    /// Answers that were asked for before it was entered.
    early: Mutex<Early>,
    /// What the first request for its attributes has shown.
    attributes: OnceLock<(Metadata, EntryAttributes)>,
}

/// Answers about a directory that were asked for before it was entered.
#[derive(Debug, Default)]
struct Early {
    /// The first part of its list, and the channel of the others.
    list: Option<(ListPart, Channel)>,
    attributes: Option<Channel>,
}

impl Directory {
    pub(super) fn open(
        shared: &Arc<Shared>,
        at: DirectoryAt,
        metadata: Metadata,
    ) -> Arc<dyn RemoteDirectory> {
        Self::opened(shared, at, metadata, Early::default())
    }

    /// Opens a directory that was asked for ahead; `None`: it was not, or it cannot be listed.
    pub(super) fn open_early(
        shared: &Arc<Shared>,
        path: &TreePath,
    ) -> Option<Arc<dyn RemoteDirectory>> {
        let Requested { metadata, list, attributes, .. } = shared.ahead.take(path)?;
        let first = shared.asking.receive(&list, (Operation::ReadDirectory, path, b"")).ok()?;
        if matches!(first, ListPart::Failed(_)) {
            // It may be another directory by now: it is opened as if it had not been asked for.
            return None;
        }
        let at = DirectoryAt { path: path.clone(), follows: false, identity: metadata.identity };
        let early = Early { list: Some((first, list)), attributes };
        Some(Self::opened(shared, at, metadata, early))
    }

    fn opened(
        shared: &Arc<Shared>,
        at: DirectoryAt,
        metadata: Metadata,
        early: Early,
    ) -> Arc<dyn RemoteDirectory> {
        let looks = shared.known.of(&at, shared.follows_all);
        let key = (at.path.clone(), at.follows);
        let ahead = Ahead::default();
        let directory: Arc<dyn RemoteDirectory> = Arc::new(Self {
            shared: Arc::clone(shared),
            at,
            metadata,
            looks,
            ahead,
            early: Mutex::new(early),
            attributes: OnceLock::new(),
        });
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

    /// Looks at entries with one request. Those that cannot be looked at are left out.
    fn ask_for_looks(
        &self,
        names: &[&[u8]],
        follows: bool,
    ) -> Result<impl Iterator<Item = (Vec<u8>, Seen)>, EntryError> {
        let names: Vec<Name> = names.iter().filter_map(|name| Name::new(*name).ok()).collect();
        let about = self.about(Operation::Stat, b"");
        let request = Request::Look { directory: self.at.clone(), names: names.clone(), follows };
        let channel = self.shared.asking.send(&request, about)?;
        let answers: Vec<Answer<Seen>> = self.shared.asking.receive(&channel, about)?;
        let seen = names.into_iter().zip(answers);
        Ok(seen.filter_map(|(name, seen)| Some((name.as_bytes().to_vec(), seen.ok()?))))
    }

    /// The head of a file, which was announced or is asked for now.
    fn head(&self, name: &Name, follows: bool) -> Result<Head, EntryError> {
        if let Some(head) = self.ahead.take(name, follows, self) {
            return head;
        }
        let channel = self.ask(vec![name.clone()], follows)?;
        self.answers(&channel)?.pop().unwrap_or_else(|| Err(self.answer_is_missing()))
    }

    fn answer_is_missing(&self) -> EntryError {
        let about = self.about(Operation::Open, b"");
        self.shared.asking.violation(about, "an answer is missing")
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

impl Asks for Directory {
    fn ask_ahead(&self, names: Vec<Name>, follows: bool) -> Option<Channel> {
        let request = Request::Heads { directory: self.at.clone(), names, follows };
        self.shared.asking.send_ahead(&request)
    }

    fn ask(&self, names: Vec<Name>, follows: bool) -> Result<Channel, EntryError> {
        let first = names.first().cloned();
        let about = first.as_ref().map(Name::as_bytes).unwrap_or_default();
        let request = Request::Heads { directory: self.at.clone(), names, follows };
        self.shared.asking.send(&request, self.about(Operation::Open, about))
    }

    fn answers(&self, channel: &Channel) -> Result<Vec<Answer<Head>>, EntryError> {
        let about = self.about(Operation::Open, b"");
        let heads: Vec<Answer<Head>> = self.shared.asking.receive(channel, about)?;
        if heads.is_empty() { Err(self.answer_is_missing()) } else { Ok(heads) }
    }
}

impl RemoteDirectory for Directory {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn clock_skew(&self) -> Option<Duration> {
        self.shared.skew.of(&self.metadata)
    }

    fn enter_ahead(&self, names: &[&[u8]]) {
        if self.at.follows || self.shared.follows_all {
            return;
        }
        // A task that got them from another may come after the list was forgotten.
        if let Some(first) = names.first()
            && !self.looks.knows_directory(first)
            && self.shared.ahead.wants(&self.at.path.join(first))
        {
            let names = &names[..names.len().min(LOOKS_MAX)];
            // Errors come when they are entered.
            let Ok(seen) = self.ask_for_looks(names, false) else { return };
            self.looks.keep_directories(seen);
        }
        for name in names.iter().take(DIRECTORIES_AHEAD) {
            let path = self.at.path.join(name);
            if !self.shared.ahead.wants(&path) {
                continue;
            }
            // At a mount point the look may have shown what is below the file system that is mounted when it is opened.
            let is_plain = |found: &Metadata| found.identity.mount == self.metadata.identity.mount;
            let found = self.looks.take_directory(name);
            let Some(metadata) = found.filter(is_plain) else { continue };
            let identity = metadata.identity;
            let directory = DirectoryAt { path: path.clone(), follows: false, identity };
            let list = Request::List { directory: directory.clone(), looks: true, follows: false };
            let Some(list) = self.shared.asking.send_ahead(&list) else { return };
            let attributes = Request::Attributes { directory, name: None, follows: false };
            let attributes = self.shared.asking.send_ahead(&attributes);
            self.shared.ahead.keep(path, Requested::new(metadata, list, attributes));
        }
    }

    fn enter(&self, name: &[u8], follows: bool) -> Result<Arc<dyn RemoteDirectory>, EntryError> {
        if !(self.at.follows || follows)
            && let Some(directory) = Self::open_early(&self.shared, &self.at.path.join(name))
        {
            return Ok(directory);
        }
        // It is not asked for ahead any more.
        let _ = self.looks.take_directory(name);
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
        let looks = self.looks.is_first_list();
        let early = lock(&self.early).list.take();
        let (mut first, channel) = match early {
            Some((first, channel)) => (Some(first), channel),
            None => {
                let follows = self.shared.follows_all;
                let request = Request::List { directory: self.at.clone(), looks, follows };
                (None, self.shared.asking.send(&request, about)?)
            }
        };
        loop {
            let part = match first.take() {
                Some(part) => part,
                None => self.shared.asking.receive(&channel, about)?,
            };
            match part {
                ListPart::Entries(entries) => {
                    if !self.take_part(entries, each) {
                        if looks {
                            self.looks.list_has_ended_early();
                        }
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
            // An entry that cannot be looked at now is looked at when it is needed, and the error comes then.
            let Ok(seen) = self.ask_for_looks(part, follows) else { return };
            self.looks.keep(seen);
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
        let about = self.about(Operation::ReadXattr, name);
        if own && let Some(known) = self.attributes.get() {
            return Ok(known.clone());
        }
        let early = if own { lock(&self.early).attributes.take() } else { None };
        let channel = match early {
            Some(channel) => channel,
            None => {
                let directory = self.at.clone();
                let name = if own { None } else { Some(self.name(name)?) };
                self.shared.asking.send(&Request::Attributes { directory, name, follows }, about)?
            }
        };
        let found = self.shared.asking.receive::<Answer<_>>(&channel, about)??;
        Ok(if own { self.attributes.get_or_init(|| found).clone() } else { found })
    }

    fn announce(&self, names: &[&[u8]], follows: bool) {
        let names = names.iter().filter_map(|name| Name::new(*name).ok());
        self.ahead.announce(names, follows, self);
    }
}
