//! The near side: a tree at another host, as a job asks for it.
use dmover_host::boot_clock_ms;
use dmover_model::{
    AttributeSet, ConnectionReport, EntryError, EntryKind, Fatal, FollowLinks, Metadata, Operation,
    PathBytes, TreePath,
};
use dmover_net::connection::{Broken, Channel};
use dmover_net::{Notice, RemoteAgent};
use dmover_tree::{Owner, RemoteCatalog, RemoteDirectory, RemoteRoot, RemoteTree};
use dmover_wire::agent::{Begin, Begun, DirectoryAt, Request, WithHead};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use asking::{Asking, begin};
use directory::Directory;
use hosts::{Hosts, Shown};
pub use keeper::Connect;
use shared::Shared;
use skew::Skew;

mod ahead;
mod asking;
mod catalog;
mod directory;
mod file;
mod hosts;
mod keeper;
mod looks;
mod open;
mod opened;
mod sent_there;
mod shared;
mod skew;
mod stream;
mod walk;

/// What carries requests to an agent.
pub trait Line: Debug + Send + Sync {
    /// Sends a request; the answers come on the channel.
    ///
    /// # Errors
    /// The connection is over.
    fn request(&self, message: &[u8]) -> Result<Channel, Broken>;

    /// Sends a request that can do without; `None`: channels are scarce.
    ///
    /// # Errors
    /// The connection is over.
    fn request_ahead(&self, message: &[u8]) -> Result<Option<Channel>, Broken>;

    /// Why the connection is over; `None`: it is not.
    fn is_over(&self) -> Option<Broken>;

    /// The error of a job that needs the connection.
    fn fatal(&self, why: &Broken) -> Fatal;

    /// What is known of the connection.
    fn report(&self) -> Option<ConnectionReport> {
        None
    }

    /// The bytes of all messages that have come; zero: they are not counted.
    fn received(&self) -> u64 {
        0
    }
}

impl Line for RemoteAgent {
    fn request(&self, message: &[u8]) -> Result<Channel, Broken> {
        Self::request(self, message)
    }

    fn request_ahead(&self, message: &[u8]) -> Result<Option<Channel>, Broken> {
        Self::request_ahead(self, message)
    }

    fn is_over(&self) -> Option<Broken> {
        Self::is_over(self)
    }

    fn fatal(&self, why: &Broken) -> Fatal {
        Self::fatal(self, why)
    }

    fn report(&self) -> Option<ConnectionReport> {
        Self::report(self)
    }

    fn received(&self) -> u64 {
        Self::received(self)
    }
}

/// How a tree is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// The root as the user has typed it, with its host.
    pub display: PathBytes,
    /// Which symbolic links are followed.
    pub follow: FollowLinks,
    /// Which attributes are read.
    pub preserve: AttributeSet,
    /// What comes with the head of a short file.
    pub with_head: WithHead,
}

impl Opening {
    fn begin(&self) -> Begin {
        let Self { display, follow, preserve, with_head } = self.clone();
        Begin { display, follow, preserve, with_head }
    }
}

/// How long a look at the root counts as one of now.
const FRESH_MS: u64 = 30_000;

/// A tree at another host. Dropping it and all that was opened in it ends the connection.
#[derive(Debug)]
pub struct RemoteSource {
    shared: Arc<Shared>,
    root: RemoteRoot,
    /// When the root was opened and looked at, by [`boot_clock_ms`]; `None`: it was perhaps only looked at.
    opened_ms: Option<u64>,
    round_trip: Duration,
}

impl RemoteSource {
    /// Opens the tree that an agent serves.
    ///
    /// # Errors
    /// It does not exist or cannot be read, or the connection is over.
    pub fn open(line: Arc<dyn Line>, opening: Opening) -> Result<Self, Fatal> {
        let sent = SystemTime::now();
        match begin(&*line, &Request::Begin(opening.begin()))? {
            Begun::Root { root, clock } => {
                let times = (sent, SystemTime::now());
                Ok(Self::of(
                    Arc::new(Hosts::one(line)),
                    opening,
                    Shown { root, mounts: Vec::new(), clock, times },
                ))
            }
            Begun::Refused { message, hint } => Err(Fatal::refused(message, hint)),
        }
    }

    /// Opens a tree that the agents of several hosts serve, each with the name of the root there. `patience`: how long is waited for a host after the last one was lost;
    /// `notice`: what the user should know of them.
    ///
    /// # Errors
    /// No host can be reached, or it cannot be read there.
    pub fn of_several(
        hosts: Vec<(PathBytes, Connect)>,
        opening: Opening,
        (patience, notice): (Duration, Notice),
    ) -> Result<Self, Fatal> {
        let (names, connects): (Vec<_>, Vec<_>) = hosts.into_iter().unzip();
        let hosts = Arc::new(Hosts::new(names, patience, notice));
        let mut connects = connects.into_iter().enumerate();
        let started = connects.try_for_each(|each| keeper::start(&hosts, each, opening.begin()));
        let begun = started.and_then(|()| hosts.first_shown());
        match begun {
            Ok(shown) => Ok(Self::of(hosts, opening, shown)),
            Err(why) => {
                hosts.close();
                Err(why)
            }
        }
    }

    fn of(hosts: Arc<Hosts>, opening: Opening, shown: Shown) -> Self {
        let Opening { display, follow, .. } = opening;
        let asking = Asking::new(hosts, display);
        let Shown { root, clock, times, .. } = shown;
        let skew = Skew::measured(root.metadata.identity.mount, clock, times);
        let follows_all = matches!(follow, FollowLinks::Always | FollowLinks::AlwaysLinked);
        asking.root_is(&root.metadata);
        let (known, open, opened, walks, streams, sends_all) = Default::default();
        let shared =
            Shared { asking, known, open, walks, opened, streams, sends_all, follows_all, skew };
        // A clock that was set meanwhile says nothing.
        let round_trip = times.1.duration_since(times.0).unwrap_or_default();
        // A host tells its clock once it has opened the root.
        let opened_ms = clock.map(|_| boot_clock_ms());
        Self { shared: Arc::new(shared), root, opened_ms, round_trip }
    }

    fn directory(
        &self,
        at: &TreePath,
        follows: bool,
    ) -> Result<Arc<dyn RemoteDirectory>, EntryError> {
        if self.lost().is_none()
            && let Some(open) = self.shared.open.at(at, follows)
        {
            return Ok(open);
        }
        if !follows && let Some(directory) = Directory::open_walked(&self.shared, at) {
            return Ok(directory);
        }
        let (at, metadata) = match self.root_just_seen(at, follows) {
            Some(seen) => seen,
            None => self.ask_for(at, follows)?,
        };
        Ok(Directory::open(&self.shared, at, metadata))
    }

    /// The root, if it is a directory that was opened a moment ago.
    fn root_just_seen(&self, at: &TreePath, follows: bool) -> Option<(DirectoryAt, Metadata)> {
        let metadata = self.root.metadata.clone();
        let is_root = metadata.kind == EntryKind::Directory && *at == TreePath::root();
        let age = self.opened_ms.map(|opened| boot_clock_ms().saturating_sub(opened));
        let is_fresh = self.lost().is_none() && age.is_some_and(|age| age <= FRESH_MS);
        let counts = is_root && !follows && is_fresh;
        let at = DirectoryAt { path: at.clone(), follows, identity: metadata.identity };
        counts.then_some((at, metadata))
    }

    /// What is at a path now.
    fn ask_for(&self, at: &TreePath, follows: bool) -> Result<(DirectoryAt, Metadata), EntryError> {
        let request = Request::Open { at: at.clone(), follows };
        let of = (Operation::Open, at, &b""[..]);
        let metadata: Metadata = self.shared.asking.ask(&request, of)?;
        let at = DirectoryAt { path: at.clone(), follows, identity: metadata.identity };
        Ok((at, metadata))
    }
}

impl Drop for RemoteSource {
    fn drop(&mut self) {
        self.shared.open.close();
        self.shared.opened.close();
    }
}

impl RemoteTree for RemoteSource {
    fn root(&self) -> &RemoteRoot {
        &self.root
    }

    fn display(&self) -> &PathBytes {
        self.shared.asking.display()
    }

    fn open(&self, at: &TreePath, follows: bool) -> Result<Arc<dyn RemoteDirectory>, EntryError> {
        self.directory(at, follows)
    }

    fn open_anew(
        &self,
        at: &TreePath,
        follows: bool,
    ) -> Result<Arc<dyn RemoteDirectory>, EntryError> {
        let (at, metadata) = self.ask_for(at, follows)?;
        Ok(Directory::anew(&self.shared, at, metadata))
    }

    fn open_above(&self) -> Result<Arc<dyn RemoteDirectory>, EntryError> {
        self.directory(&TreePath::root(), false)
    }

    fn clock_skew(&self) -> Option<Duration> {
        self.shared.skew.of(&self.root.metadata)
    }

    fn round_trip(&self) -> Duration {
        self.round_trip
    }

    fn owner_name(&self, owner: Owner) -> Result<Option<String>, EntryError> {
        let root = TreePath::root();
        let of = (Operation::Check, &root, &b""[..]);
        let names: Vec<Option<String>> =
            self.shared.asking.ask(&Request::Names(vec![owner]), of)?;
        Ok(names.into_iter().next().flatten())
    }

    fn catalog(&self) -> Option<&dyn RemoteCatalog> {
        Some(self)
    }

    fn told(&self, at: &TreePath, metadata: Metadata) -> Option<Arc<dyn RemoteDirectory>> {
        let at = DirectoryAt { path: at.clone(), follows: false, identity: metadata.identity };
        Some(Directory::anew(&self.shared, at, metadata))
    }

    fn lost(&self) -> Option<Fatal> {
        self.shared.asking.lost()
    }

    fn connections(&self) -> Vec<(PathBytes, ConnectionReport)> {
        self.shared.asking.reports()
    }
}
