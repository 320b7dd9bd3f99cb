//! Directories of a tree at another host.
use dmover_local::error::no_name;
use dmover_model::{EntryError, ErrorClass, Metadata, Name, Operation, TreePath, Version};
use dmover_observe::lock;
use dmover_schedule::sync::{Mutex, OnceLock};
use dmover_tree::{EntryAttributes, ListedKind, Needs, RemoteDirectory, RemoteFile, Seen};
use dmover_wire::agent::{
    Answer, DirectoryAt, FileAt, Head, ListPart, ListedEntry, Request, WalkedDirectory,
};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::ahead::{Ahead, Asks};
use super::asking::{About, Asked};
use super::file::File;
use super::hosts::Choice;
use super::looks::Looks;
use super::shared::Shared;
use super::walk::Walk;

/// So many names of a list are kept, so that another host can continue it.
const TOLD_MAX: usize = 1 << 20;
/// The most looks of one request.
const LOOKS_MAX: usize = 1024;
/// Directories of one walk, and how many are asked for before the first one is entered.
const WALK_NAMES: usize = 32;
const DIRECTORIES_AHEAD: usize = 64;

/// How long attributes that were asked for together with a list may come after it.
const LATE: Duration = Duration::from_secs(1);

/// An open directory.
#[derive(Debug)]
pub(super) struct Directory {
    shared: Arc<Shared>,
    at: DirectoryAt,
    metadata: Metadata,
    looks: Arc<Looks>,
    ahead: Ahead,
    /// The walk that has shown it, which may show what is below it.
    walk: Option<Arc<Walk>>,
    /// The walks that were begun for directories in it.
    walks: Mutex<HashMap<Name, Arc<Walk>>>,
    /// What the walk has brought, each for one use.
    brought: Mutex<Brought>,
    /// What the first request for its attributes has shown.
    attributes: OnceLock<(Metadata, EntryAttributes)>,
}

/// What a walk has brought of a directory.
#[derive(Debug, Default)]
struct Brought {
    entries: Option<Vec<ListedEntry>>,
    heads: HashMap<Name, Head>,
}

impl Directory {
    pub(super) fn open(
        shared: &Arc<Shared>,
        at: DirectoryAt,
        metadata: Metadata,
    ) -> Arc<dyn RemoteDirectory> {
        Self::new(shared, at, metadata).keep()
    }

    /// Opens a directory of which nothing is known from before, and which nobody else gets.
    pub(super) fn anew(
        shared: &Arc<Shared>,
        at: DirectoryAt,
        metadata: Metadata,
    ) -> Arc<dyn RemoteDirectory> {
        let new = Self::new(shared, at, metadata);
        Arc::new(Self { looks: Arc::new(Looks::new(shared.follows_all)), ..new })
    }

    /// Opens a directory that another mover has asked for; `None`: it has not, or it was not sent.
    pub(super) fn open_walked(
        shared: &Arc<Shared>,
        path: &TreePath,
    ) -> Option<Arc<dyn RemoteDirectory>> {
        let (found, walk) = shared.walks.take(path, &shared.asking)?;
        Some(Self::walked(shared, path.clone(), found, walk))
    }

    fn walked(
        shared: &Arc<Shared>,
        path: TreePath,
        found: WalkedDirectory,
        walk: Arc<Walk>,
    ) -> Arc<dyn RemoteDirectory> {
        let WalkedDirectory { metadata, attributes, entries, heads } = found;
        let at = DirectoryAt { path, follows: false, identity: metadata.identity };
        let brought = Brought { entries: Some(entries), heads: heads.into_iter().collect() };
        // An error comes again when they are asked for.
        let attributes = attributes.map_or_else(|_| OnceLock::new(), OnceLock::from);
        let new = Self::new(shared, at, metadata);
        Self { walk: Some(walk), brought: Mutex::new(brought), attributes, ..new }.keep()
    }

    fn new(shared: &Arc<Shared>, at: DirectoryAt, metadata: Metadata) -> Self {
        Self {
            looks: shared.known.of(&at, shared.follows_all),
            shared: Arc::clone(shared),
            at,
            metadata,
            ahead: Ahead::default(),
            walk: None,
            walks: Mutex::default(),
            brought: Mutex::default(),
            attributes: OnceLock::new(),
        }
    }

    fn keep(self) -> Arc<dyn RemoteDirectory> {
        let shared = Arc::clone(&self.shared);
        let key = (self.at.path.clone(), self.at.follows);
        let directory: Arc<dyn RemoteDirectory> = Arc::new(self);
        shared.open.keep(key, &directory);
        directory
    }

    /// The walk that has, or will have, a directory in this one.
    fn walk_of(&self, name: &Name, path: &TreePath) -> Option<Arc<Walk>> {
        let asked = lock(&self.walks).get(name).cloned();
        asked.or_else(|| self.walk.clone()).filter(|walk| walk.may_have(path))
    }

    fn about<'a>(&'a self, operation: Operation, name: &'a [u8]) -> About<'a> {
        (operation, &self.at.path, name)
    }

    /// Whether what the walk has brought still counts.
    fn is_walk_fresh(&self) -> bool {
        self.walk.as_ref().is_some_and(|walk| walk.is_fresh())
    }

    /// Enters a directory that a walk has shown.
    fn enter_walked(&self, name: &[u8], follows: bool) -> Option<Arc<dyn RemoteDirectory>> {
        if self.at.follows || follows {
            return None;
        }
        let name = Name::new(name).ok()?;
        let path = self.at.path.join(name.as_bytes());
        let walk = self.walk_of(&name, &path);
        lock(&self.walks).remove(&name);
        // Another task may have asked for it.
        let walk = walk.or_else(|| self.shared.walks.of(&self.at, &path))?;
        let found = walk.take(&path, &self.shared.asking)?;
        Some(Self::walked(&self.shared, path, found, walk))
    }

    fn name(&self, name: &[u8]) -> Result<Name, EntryError> {
        Name::new(name).map_err(|_| {
            let plain =
                self.shared.asking.plain(self.about(Operation::Stat, name), ErrorClass::Other, "");
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
        let answers = self.looks_of(&request, about)?;
        let seen = names.into_iter().zip(answers);
        Ok(seen.filter_map(|(name, seen)| Some((name.as_bytes().to_vec(), seen.ok()?))))
    }

    fn looks_of(
        &self,
        request: &Request,
        about: About<'_>,
    ) -> Result<Vec<Answer<Seen>>, EntryError> {
        let asking = &self.shared.asking;
        asking.despite_losses(|| {
            let asked = asking.send(request, Choice::First, about)?;
            let answers: Vec<Answer<Seen>> = asking.receive(&asked, about)?;
            if answers.is_empty() {
                return Err(asking.violation(about, &asked, "an answer is missing"));
            }
            Ok(answers)
        })
    }

    /// The head of a file, which was announced or is asked for now.
    fn head(&self, name: &Name, follows: bool) -> Result<Head, EntryError> {
        self.shared.asking.despite_losses(|| {
            // What was announced and lost is asked for once more below.
            if let Some(head) = self.ahead.take(name, follows, self) {
                return head;
            }
            let asked = self.ask(vec![name.clone()], follows)?;
            self.answers(&asked)?.pop().unwrap_or_else(|| Err(self.answer_is_missing(&asked)))
        })
    }

    /// Asks for the attributes of the directory itself, which are needed once what is in it was copied.
    fn attributes_ahead(&self) -> Option<Asked> {
        if self.attributes.get().is_some() {
            return None;
        }
        let (directory, follows) = (self.at.clone(), self.at.follows);
        let request = Request::Attributes { directory, name: None, follows };
        self.shared.asking.send_ahead(&request)
    }

    fn answer_is_missing(&self, asked: &Asked) -> EntryError {
        let about = self.about(Operation::Open, b"");
        self.shared.asking.violation(about, asked, "an answer is missing")
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
    fn ask_ahead(&self, names: Vec<Name>, follows: bool) -> Option<Asked> {
        let request = Request::Heads { directory: self.at.clone(), names, follows };
        self.shared.asking.send_ahead(&request)
    }

    fn ask(&self, names: Vec<Name>, follows: bool) -> Result<Asked, EntryError> {
        let first = names.first().cloned();
        let about = first.as_ref().map(Name::as_bytes).unwrap_or_default();
        let request = Request::Heads { directory: self.at.clone(), names, follows };
        self.shared.asking.send(&request, Choice::First, self.about(Operation::Open, about))
    }

    fn answers(&self, asked: &Asked) -> Result<Vec<Answer<Head>>, EntryError> {
        let about = self.about(Operation::Open, b"");
        let heads: Vec<Answer<Head>> = self.shared.asking.receive(asked, about)?;
        if heads.is_empty() { Err(self.answer_is_missing(asked)) } else { Ok(heads) }
    }
}

impl RemoteDirectory for Directory {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn clock_skew(&self) -> Option<Duration> {
        self.shared.skew.of(&self.metadata)
    }

    fn enter_ahead(&self, names: &[&[u8]], needs: Needs) {
        if self.at.follows || self.shared.follows_all {
            return;
        }
        let mut unknown = Vec::new();
        for (number, name) in names.iter().take(DIRECTORIES_AHEAD).enumerate() {
            let Ok(name) = Name::new(*name) else { continue };
            let path = self.at.path.join(name.as_bytes());
            let asked = self.walk_of(&name, &path);
            let walk = asked.or_else(|| self.shared.walks.of(&self.at, &path));
            if let Some(walk) = walk.as_ref().filter(|_| number == 0) {
                // If it has ended before this one, it was to be large, and those after it are not in it either.
                walk.wait_for(&path, &self.shared.asking);
            }
            if walk.is_none_or(|walk| !walk.may_have(&path)) {
                unknown.push(name);
            }
        }
        // Few that are far away can wait until they are more.
        let is_urgent = unknown.first().map(Name::as_bytes) == names.first().copied();
        if !is_urgent && unknown.len() < WALK_NAMES {
            return;
        }
        for names in unknown.chunks(WALK_NAMES) {
            let begun = (&self.at, names.to_vec());
            let walk = self.shared.walks.begin(begun, needs, &self.shared.asking);
            let Some(walk) = walk else { return };
            let mut walks = lock(&self.walks);
            walks.extend(names.iter().map(|name| (name.clone(), Arc::clone(&walk))));
        }
    }

    fn enter(&self, name: &[u8], follows: bool) -> Result<Arc<dyn RemoteDirectory>, EntryError> {
        if let Some(directory) = self.enter_walked(name, follows) {
            return Ok(directory);
        }
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
        let brought = lock(&self.brought).entries.take();
        if let Some(entries) = brought.filter(|_| self.is_walk_fresh()) {
            if !self.take_part(entries, each) {
                self.looks.list_has_ended_early();
            }
            return Ok(());
        }
        let follows = self.shared.follows_all;
        let request = Request::List { directory: self.at.clone(), looks, follows };
        let asking = &self.shared.asking;
        let mut ahead = if looks { self.attributes_ahead() } else { None };
        let mut told = HashSet::new();
        asking.despite_losses(|| {
            let has_begun = !told.is_empty();
            let attributes = ahead.take();
            if told.len() >= TOLD_MAX {
                let words =
                    "its host was lost while it was read, and it is too large to begin again";
                return Err(asking.plain(about, ErrorClass::Io, words));
            }
            let asked = asking.send(&request, Choice::First, about)?;
            loop {
                match asking.receive(&asked, about)? {
                    ListPart::Entries(mut entries) => {
                        if has_begun {
                            // Another host has begun the list.
                            entries.retain(|entry| !told.contains(&entry.name));
                        }
                        if asking.are_several() && told.len() < TOLD_MAX {
                            told.extend(entries.iter().map(|entry| entry.name.clone()));
                        }
                        if !self.take_part(entries, each) {
                            if looks {
                                self.looks.list_has_ended_early();
                            }
                            return Ok(());
                        }
                    }
                    ListPart::End => break,
                    ListPart::Failed(error) => return Err(error),
                }
            }
            if let Some(asked) = &attributes {
                // They have come with the list. An error comes again when they are asked for, as they are then.
                let found = asking.receive_within::<Answer<_>>(asked, about, LATE);
                if let Some(Ok(Ok(found))) = found {
                    self.attributes.get_or_init(|| found);
                }
            }
            Ok(())
        })
    }

    fn look(&self, name: &[u8], follows: bool) -> Result<Seen, EntryError> {
        if let Some(seen) = self.looks.take(name, follows) {
            return Ok(seen);
        }
        let about = self.about(Operation::Stat, name);
        let names = vec![self.name(name)?];
        let request = Request::Look { directory: self.at.clone(), names, follows };
        let mut answers = self.looks_of(&request, about)?;
        answers.swap_remove(0)
    }

    fn look_at_all(&self, names: &[&[u8]], follows: bool) -> Result<Vec<Answer<Seen>>, EntryError> {
        let mut all = Vec::with_capacity(names.len());
        for part in names.chunks(LOOKS_MAX) {
            let about = self.about(Operation::Stat, part[0]);
            let named = part.iter().map(|name| self.name(name)).collect::<Result<_, _>>()?;
            let request = Request::Look { directory: self.at.clone(), names: named, follows };
            let answers = self.looks_of(&request, about)?;
            if answers.len() != part.len() {
                return Err(self.shared.asking.plain(about, ErrorClass::Io, "answers are missing"));
            }
            all.extend(answers);
        }
        Ok(all)
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
        let brought = lock(&self.brought).heads.remove(&name);
        let brought = brought.filter(|_| !follows && self.is_walk_fresh());
        let head = match brought {
            Some(head) => head,
            None => self.head(&name, follows)?,
        };
        let at =
            FileAt { directory: self.at.clone(), name, follows, version: head.metadata.version() };
        let file = Arc::new(File::new(Arc::clone(&self.shared), at, head));
        if file.is_large() {
            self.shared.opened.keep(&file);
        }
        Ok(file)
    }

    fn reopen_file(
        &self,
        name: &[u8],
        follows: bool,
        version: &Version,
    ) -> Option<Arc<dyn RemoteFile>> {
        let file = self.shared.opened.find(&self.at, (name, follows), version)?;
        Some(file)
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
        let directory = self.at.clone();
        let asked = if own { None } else { Some(self.name(name)?) };
        let request = Request::Attributes { directory, name: asked, follows };
        let found: (Metadata, EntryAttributes) = self.shared.asking.ask(&request, about)?;
        Ok(if own { self.attributes.get_or_init(|| found).clone() } else { found })
    }

    fn announce(&self, names: &[&[u8]], follows: bool) {
        let brought = lock(&self.brought);
        let counts = !follows && self.is_walk_fresh();
        let is_here = |name: &Name| counts && brought.heads.contains_key(name);
        let names = names.iter().filter_map(|name| Name::new(*name).ok());
        let names: Vec<Name> = names.filter(|name| !is_here(name)).collect();
        drop(brought);
        if !names.is_empty() {
            self.ahead.announce(names.into_iter(), follows, self);
        }
    }
}
