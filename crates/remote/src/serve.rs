//! The far side: serves one tree of this host.
use dmover_engine::Bounds;
use dmover_host::user::Accounts;
use dmover_model::{
    EntryError, EntryKind, ErrorClass, Fatal, FollowLinks, Operation, PathBytes, SentSegments, Side,
};
use dmover_net::agent::{self, Role, Service};
use dmover_net::connection::{Broken, Channel, bytes};
use dmover_net::hello::{Hello, Refusal};
use dmover_net::relay::Relay;
use dmover_schedule::sync::RwLock;
use dmover_tree::{Owner, RemoteRoot};
use dmover_wire::agent::{
    Answer, Begin, Begun, BegunShared, CATALOG_MAX, Inspection, Measure, NAMES_MAX, NOT_ACCEPTED,
    RelayAnswer, RelayOrder, Request, RootKind, SharedMount, UNKNOWN_REQUEST,
};
use dmover_wire::{decode, encode};
use std::sync::{Arc, PoisonError};

use crate::joined::send;
use catalog::ForCatalog;
use host::Numbering;
use tree::Tree;

mod cache;
mod catalog;
mod changed;
mod content;
mod digests;
mod host;
mod list;
mod measure;
mod progress;
mod tree;
mod walk;

/// Why an agent does not let third hosts use it.
const ONE_OTHER: &str = "this host serves one other host";

/// How an agent introduces itself to a third host.
#[derive(Debug, Clone)]
pub struct Introduction {
    /// Its greeting.
    pub hello: Hello,
    /// The addresses by which third hosts may reach this one, the best one first.
    pub addresses: Vec<String>,
}

/// Serves one root to one job. Requests may come at the same time, each on a thread of its own.
#[derive(Debug)]
pub struct TreeService {
    path: PathBytes,
    /// The only way of following symbolic links that the other side may ask for.
    follow: Option<FollowLinks>,
    /// How this side greets a third host that reads the root as well; `None`: none does.
    third: Option<Introduction>,
    /// The trees and verbs that the other side may use.
    bounds: Bounds,
    measured: measure::Written,
    /// What the pass that began last reads.
    tree: RwLock<Option<Arc<Tree>>>,
}

impl TreeService {
    /// Serves the root at a path. Nothing is opened before the other side begins.
    pub fn new(path: PathBytes) -> Self {
        let (tree, measured, bounds) = Default::default();
        Self { path, follow: None, third: None, bounds, measured, tree }
    }

    /// The same, also for a third host if the other side asks for that.
    #[must_use]
    pub fn introduced(self, introduction: Introduction) -> Self {
        Self { third: Some(introduction), ..self }
    }

    /// The same within limits.
    #[must_use]
    pub fn within(self, bounds: Bounds) -> Self {
        Self { bounds, ..self }
    }

    /// Serves a root to a host that may read nothing but what the job of this host names. `follow`: which symbolic links the job
    /// follows.
    pub fn following(path: PathBytes, follow: FollowLinks) -> Self {
        Self { follow: Some(follow), ..Self::new(path) }
    }

    /// Serves the root to a third host, until its connection ends.
    fn connect(&self, follow: FollowLinks, channel: &Arc<Channel>) -> Result<(), Broken> {
        let Some(Introduction { hello, addresses }) = self.third.clone() else {
            return Err(Broken::Cancelled(ONE_OTHER.into()));
        };
        let (input, output) = bytes::of(channel);
        let end = agent::run(input, output, (hello, addresses), |peer| {
            if peer.serves {
                let hint = "use one version of dmover on all hosts".into();
                return Err(Refusal { message: "this host only reads".into(), hint });
            }
            let ports =
                peer.offer.as_ref().map_or(Ok(()), |offer| self.bounds.check_ports(offer.ports));
            ports.map_err(|why| Refusal { message: why.to_string(), hint: why.hint() })?;
            let service = Self::following(self.path.clone(), follow);
            Ok(Role::Serves(Arc::new(service.within(self.bounds.clone()))))
        });
        tracing::debug!(?end, "the connection of a third host ends");
        channel.cancel("it was closed");
        Ok(())
    }

    /// Passes data streams on until the channel ends.
    fn relay(&self, order: RelayOrder, channel: &Channel) -> Result<(), Broken> {
        let Some(Introduction { addresses, .. }) = &self.third else {
            return Err(Broken::Cancelled(ONE_OTHER.into()));
        };
        let checked = self.bounds.check_verb("relay");
        let checked = checked.and_then(|()| self.bounds.check_ports(order.ports));
        checked.map_err(|why| not_accepted(&why))?;
        let (answer, relay) = match Relay::start(order) {
            Ok((relay, port)) => {
                (RelayAnswer::Listens { port, addresses: addresses.clone() }, Some(relay))
            }
            Err(error) => (RelayAnswer::Refuses(error.to_string()), None),
        };
        channel.send(&encode(&answer))?;
        if relay.is_some() {
            while channel.receive()?.is_some() {}
        }
        Ok(())
    }

    fn inspect(&self) -> Inspection {
        let path = self.path.to_path();
        if let Err(why) = self.bounds.trees().check_look(&path) {
            let kind = RootKind::Unknown(why.to_string());
            return Inspection { kind, free_bytes: None, is_writable: false };
        }
        let kind = match dmover_local::root::kind_of_path(&self.path) {
            Ok(Some(EntryKind::Directory)) => RootKind::Directory,
            Ok(Some(EntryKind::File)) => RootKind::File,
            Ok(Some(_)) => RootKind::Other,
            Ok(None) => RootKind::Missing,
            Err(error) => RootKind::Unknown(error.to_string()),
        };
        Inspection {
            kind,
            free_bytes: dmover_host::free_bytes(&path),
            is_writable: dmover_host::may_write(&path)
                && self.bounds.trees().check_place(&path).is_ok(),
        }
    }

    fn begin(&self, begin: Begin, numbering: Numbering) -> Result<Begun, Broken> {
        if self.follow.is_some_and(|follow| follow != begin.follow) {
            return Err(Broken::Cancelled("the job follows other symbolic links".into()));
        }
        let (is_limited, mut begin) = (!self.bounds.trees().is_everything(), begin);
        let follows = || {
            let message = "the agent follows no symbolic links, which may lead out of its trees";
            tracing::warn!("refused a tree: the client wants symbolic links to be followed");
            let hint = "omit -L and --dereference-args, or name what the link leads to";
            Begun::Refused { message: message.into(), hint: hint.into() }
        };
        let follows_root = is_limited && begin.follow == FollowLinks::Arguments;
        if follows_root {
            // What is no link is the same without following.
            begin.follow = FollowLinks::Never;
        }
        if is_limited && begin.follow != FollowLinks::Never {
            return Ok(follows());
        }
        let bounds = self.bounds.trees();
        let (tree, root) = match Tree::open(&self.path, begin, (numbering, bounds)) {
            Ok(opened) => opened,
            Err(why) => {
                // The kernel would only say that it does not permit that, and only of what is there.
                let why = bounds.check_look(&self.path.to_path()).err().unwrap_or(why);
                tracing::warn!(path = %self.path.to_path().display(), "refused a tree: {why}");
                let (message, hint) = (why.to_string(), why.hint());
                return Ok(Begun::Refused { message, hint });
            }
        };
        if follows_root && root.metadata.kind == EntryKind::Symlink {
            return Ok(follows());
        }
        let clock = tree.clock();
        // A job may need another pass, which reads the tree as it is then. Requests of the last pass keep what they have.
        *self.tree.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(tree));
        Ok(Begun::Root { root, clock })
    }

    fn mounts_below(&self, root: &RemoteRoot) -> Vec<SharedMount> {
        let is_directory = root.metadata.kind == EntryKind::Directory;
        let tree = self.tree().filter(|_| is_directory);
        tree.map_or_else(Vec::new, |tree| tree.host.mounts_in(&root.canonical.to_path()))
    }

    fn tree(&self) -> Option<Arc<Tree>> {
        self.tree.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A request without the wish to follow symbolic links.
fn unfollowed(mut request: Request) -> Request {
    match &mut request {
        Request::Open { follows, .. }
        | Request::Enter { follows, .. }
        | Request::List { follows, .. }
        | Request::Look { follows, .. }
        | Request::Attributes { follows, .. }
        | Request::Heads { follows, .. } => *follows = false,
        Request::Content { file, .. }
        | Request::NextData { file, .. }
        | Request::Now { file }
        | Request::Digests { file, .. }
        | Request::Changed { file, .. } => file.follows = false,
        Request::Inspect
        | Request::Sent
        | Request::Begin(_)
        | Request::BeginShared(_)
        | Request::Connect { .. }
        | Request::Relay(_)
        | Request::Measure(_)
        | Request::Names(_)
        | Request::Objects(_)
        | Request::Acls(_)
        | Request::Revisit(_)
        | Request::Describe(_)
        | Request::Walk { .. } => {}
    }
    request
}

/// Refuses requests for a catalog that ask for too much at once.
fn check_number(asked: usize) -> Result<(), Broken> {
    if asked <= CATALOG_MAX {
        return Ok(());
    }
    Err(Broken::Cancelled("there are too many paths in one request".into()))
}

fn name_of(owner: Owner) -> Result<Option<String>, EntryError> {
    let found = match owner {
        Owner::User(id) => Accounts::Users.name(id),
        Owner::Group(id) => Accounts::Groups.name(id),
    };
    found.map_err(|error| {
        let (side, root) = (Side::Source, PathBytes::default());
        let message = format!("the accounts of the host cannot be read: {error}");
        EntryError::plain(side, Operation::Check, ErrorClass::Io, root, message)
    })
}

/// What this side has sent; `None`: no data streams carry the connection.
fn sent(channel: &Channel) -> Option<SentSegments> {
    let known = channel.report().filter(|known| known.streams > 0)?;
    Some(SentSegments { segments: known.segments, retransmits: known.retransmits })
}

fn not_accepted(why: &Fatal) -> Broken {
    tracing::warn!("refused a request: {why}");
    Broken::Cancelled(format!("{NOT_ACCEPTED}{why}"))
}

impl Service for TreeService {
    fn serve(&self, request: &[u8], channel: &Arc<Channel>) -> Result<(), Broken> {
        let request = decode(request).map_err(|error| {
            tracing::debug!(%error, "a request cannot be read");
            Broken::Cancelled(UNKNOWN_REQUEST.into())
        })?;
        match request {
            Request::Inspect => channel.send(&encode(&self.inspect())),
            Request::Sent => channel.send(&encode(&sent(channel))),
            Request::Begin(begin) => send(channel, &encode(&self.begin(begin, Numbering::OfHost)?)),
            Request::BeginShared(begin) => {
                let begun = self.begin(begin, Numbering::OfAllHosts)?;
                let mounts = match &begun {
                    Begun::Root { root, .. } => self.mounts_below(root),
                    Begun::Refused { .. } => Vec::new(),
                };
                send(channel, &encode(&BegunShared { begun, mounts }))
            }
            Request::Connect { follow } => self.connect(follow, channel),
            Request::Relay(order) => self.relay(order, channel),
            Request::Measure(what) if self.third.is_some() => {
                self.bounds.check_verb("bench").map_err(|why| not_accepted(&why))?;
                if matches!(what, Measure::Write | Measure::Read(_)) {
                    let trees = self.bounds.trees();
                    trees.check_place(&self.path.to_path()).map_err(|why| not_accepted(&why))?;
                }
                self.measured.serve(what, &self.path, channel)
            }
            Request::Measure(_) => Err(Broken::Cancelled(ONE_OTHER.into())),
            Request::Names(owners) if owners.len() <= NAMES_MAX && self.tree().is_some() => {
                let names: Answer<Vec<_>> = owners.into_iter().map(name_of).collect();
                send(channel, &encode(&names))
            }
            Request::Names(_) => {
                Err(Broken::Cancelled("no tree was opened, or there are too many owners".into()))
            }
            about_tree => {
                let tree = self.tree();
                let tree = tree.ok_or_else(|| Broken::Cancelled("no tree was opened".into()))?;
                tree.serve(about_tree, channel)
            }
        }
    }
}

impl Tree {
    /// Answers a request about the tree.
    fn serve(&self, request: Request, channel: &Channel) -> Result<(), Broken> {
        let tree = self;
        match if tree.is_limited { unfollowed(request) } else { request } {
            Request::Inspect
            | Request::Sent
            | Request::Begin(_)
            | Request::BeginShared(_)
            | Request::Connect { .. }
            | Request::Relay(_)
            | Request::Names(_)
            | Request::Measure(_) => Ok(()),
            Request::Open { at, follows } => send(channel, &encode(&tree.open_at(&at, follows))),
            Request::Enter { directory, name, follows } => {
                send(channel, &encode(&tree.enter(&directory, &name, follows)))
            }
            Request::List { directory, looks, follows } => {
                tree.list(&directory, looks.then_some(follows), channel)
            }
            Request::Look { directory, names, follows } => {
                send(channel, &encode(&tree.look(&directory, &names, follows)))
            }
            Request::Attributes { directory, name, follows } => {
                let answer = tree.attributes(&directory, name.as_ref(), follows);
                send(channel, &encode(&answer))
            }
            Request::Heads { directory, names, follows } => {
                tree.heads(&directory, (&names, follows), channel)
            }
            Request::Content { file, range } => tree.content(&file, range, channel),
            Request::NextData { file, at } => send(channel, &encode(&tree.next_data(&file, at))),
            Request::Now { file } => send(channel, &encode(&tree.now(&file))),
            Request::Digests { file, shapes, start, range } => {
                tree.digests(&file, &shapes, (start, range), channel)
            }
            Request::Changed { file, known } => tree.changed(&file, &known, channel),
            Request::Walk { directory, names, needs } => {
                tree.walk(&directory, (&names, needs), channel)
            }
            Request::Objects(paths) => {
                check_number(paths.len())?;
                send(channel, &encode(&ForCatalog(tree).objects(&paths)))
            }
            Request::Acls(paths) => {
                check_number(paths.len())?;
                send(channel, &encode(&ForCatalog(tree).acls(&paths)))
            }
            Request::Revisit(directories) => {
                check_number(directories.len())?;
                ForCatalog(tree).revisit(&directories, channel)
            }
            Request::Describe(directories) => {
                check_number(directories.len())?;
                ForCatalog(tree).describe(&directories, channel)
            }
        }
    }
}
