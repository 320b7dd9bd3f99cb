//! Sources of a job by their names: `HOST:PATH`.
use dmover_model::{AttributeSet, Fatal, FollowLinks, PathBytes};
use dmover_net::{ConnectOptions, Endpoint, RemoteAgent, RemoteHost};
use dmover_tree::{RemoteTree, RemoteTrees};
use dmover_wire::agent::WithHead;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use crate::source::{Line, Opening, RemoteSource};

/// Opens the trees that a job names, each with a connection of its own.
#[derive(Debug, Clone)]
pub struct Sources {
    options: ConnectOptions,
    preserve: AttributeSet,
    with_head: WithHead,
}

impl Sources {
    /// `options`: how hosts are reached; `preserve`: which attributes are read; `with_head`: what comes with the head of a
    /// short file.
    pub fn new(options: ConnectOptions, preserve: AttributeSet, with_head: WithHead) -> Self {
        Self { options, preserve, with_head }
    }
}

impl RemoteTrees for Sources {
    fn open(&self, named: &PathBytes, follow: FollowLinks) -> Result<Arc<dyn RemoteTree>, Fatal> {
        let Endpoint::Remote(remote) = Endpoint::parse(OsStr::from_bytes(&named.0))? else {
            let shown = named.to_path();
            let message = format!("'{}' names no other host", shown.display());
            return Err(Fatal::refused(message, "name it as host:/path"));
        };
        let (preserve, with_head) = (self.preserve, self.with_head.clone());
        let opening = Opening { display: remote.typed, follow, preserve, with_head };
        Ok(Arc::new(connect(&remote.host, &remote.path, &self.options, opening)?))
    }

    fn names(&self, path: &PathBytes) -> bool {
        matches!(Endpoint::parse(OsStr::from_bytes(&path.0)), Ok(Endpoint::Remote(_)))
    }
}

/// Starts an agent at another host, and opens the tree at a path there. Call it from a thread that lives as long as the
/// tree is read: ssh is killed with it.
///
/// # Errors
/// The host cannot be reached or has no agent that can be used; the tree does not exist there or cannot be read.
pub fn connect(
    host: &RemoteHost,
    path: &PathBytes,
    options: &ConnectOptions,
    opening: Opening,
) -> Result<RemoteSource, Fatal> {
    let agent = RemoteAgent::connect(host, path, options)?;
    let line: Arc<dyn Line> = Arc::new(agent);
    RemoteSource::open(line, opening)
}
