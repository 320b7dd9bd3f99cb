//! The near side: a tree at another host, as a job asks for it.
use dmover_model::{
    AttributeSet, ConnectionReport, EntryError, Fatal, FollowLinks, Metadata, Operation, PathBytes,
    TreePath,
};
use dmover_net::RemoteAgent;
use dmover_net::connection::{Broken, Channel};
use dmover_tree::{RemoteDirectory, RemoteRoot, RemoteTree};
use dmover_wire::agent::{Begin, Begun, DirectoryAt, Request, WithHead};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use asking::Asking;
use directory::Directory;
use shared::Shared;
use skew::Skew;

mod ahead;
mod asking;
mod directory;
mod file;
mod looks;
mod open;
mod opened;
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

/// A tree at another host. Dropping it and all that was opened in it ends the connection.
#[derive(Debug)]
pub struct RemoteSource {
    shared: Arc<Shared>,
    root: RemoteRoot,
}

impl RemoteSource {
    /// Opens the tree that an agent serves.
    ///
    /// # Errors
    /// It does not exist or cannot be read, or the connection is over.
    pub fn open(line: Arc<dyn Line>, opening: Opening) -> Result<Self, Fatal> {
        let Opening { display, follow, preserve, with_head } = opening;
        let begin = Begin { display: display.clone(), follow, preserve, with_head };
        let asking = Asking::new(line, display);
        let sent = SystemTime::now();
        match asking.begin(&Request::Begin(begin))? {
            Begun::Root { root, clock } => {
                let skew =
                    Skew::measured(root.metadata.identity.mount, clock, (sent, SystemTime::now()));
                let follows_all = matches!(follow, FollowLinks::Always | FollowLinks::AlwaysLinked);
                asking.root_is(&root.metadata);
                let (known, open, opened, walks, streams) = Default::default();
                Ok(Self {
                    shared: Arc::new(Shared {
                        asking,
                        known,
                        open,
                        walks,
                        opened,
                        streams,
                        sends_all: AtomicBool::new(false),
                        follows_all,
                        skew,
                    }),
                    root,
                })
            }
            Begun::Refused { message, hint } => Err(Fatal::refused(message, hint)),
        }
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
        let (at, metadata) = self.ask_for(at, follows)?;
        Ok(Directory::open(&self.shared, at, metadata))
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

    fn lost(&self) -> Option<Fatal> {
        self.shared.asking.lost()
    }

    fn connection(&self) -> Option<ConnectionReport> {
        self.shared.asking.report()
    }
}
