//! Sources of a job by their names: `HOST:PATH`.
use dmover_model::{AttributeSet, Fatal, FollowLinks, PathBytes};
use dmover_net::streams::share_among;
use dmover_net::{ConnectOptions, Endpoint, Notice, RemoteAgent, RemotePath};
use dmover_tree::{RemoteTree, RemoteTrees};
use dmover_wire::agent::WithHead;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use crate::source::{Connect, Opening, RemoteSource};

/// The limit for a login at one of several hosts. Several programs that ask for passwords at the same time help nobody.
const LOGIN_WITHIN: Duration = Duration::from_mins(1);

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
        let opening = Opening { display: remote.typed.clone(), follow, preserve, with_head };
        let RemotePath { host, others, path, .. } = remote;
        if others.is_empty() {
            let agent = RemoteAgent::connect(&host, &path, &self.options)?;
            return Ok(Arc::new(RemoteSource::open(Arc::new(agent), opening)?));
        }
        let shared = SharedOptions::of(&self.options, 1 + others.len() as u32)?;
        let hosts = std::iter::once(host).chain(others).map(|host| {
            let named = host.place(&path);
            let (path, options) = (path.clone(), shared.each.clone());
            let connect: Connect =
                Box::new(move || Ok(Arc::new(RemoteAgent::connect(&host, &path, &options)?)));
            (named, connect)
        });
        Ok(Arc::new(RemoteSource::of_several(hosts.collect(), opening, shared.source)?))
    }

    fn names(&self, path: &PathBytes) -> bool {
        matches!(Endpoint::parse(OsStr::from_bytes(&path.0)), Ok(Endpoint::Remote(_)))
    }
}

/// How a tree is reached that several hosts have.
pub(crate) struct SharedOptions {
    /// How each host is reached.
    pub(crate) each: ConnectOptions,
    /// How long requests wait while no host can be reached, and what receives messages about hosts.
    pub(crate) source: (Duration, Notice),
}

impl SharedOptions {
    /// For so many hosts.
    ///
    /// # Errors
    /// An option names an address of one host.
    pub(crate) fn of(options: &ConnectOptions, hosts: u32) -> Result<Self, Fatal> {
        let mut each = options.clone();
        let settings = &mut each.streams.settings;
        if !settings.addresses.is_empty() {
            let message = "--data-address names addresses of one host, and SOURCE is on several";
            return Err(Fatal::refused(message, "omit it, or name the hosts by these addresses"));
        }
        let patience = Duration::from_millis(settings.patience_ms.into());
        share_among(settings, hosts);
        each.hello_within = Some(each.hello_within.unwrap_or(LOGIN_WITHIN).min(LOGIN_WITHIN));
        let source = (patience, options.streams.notice.clone());
        Ok(Self { each, source })
    }
}
