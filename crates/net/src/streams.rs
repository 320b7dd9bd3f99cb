//! Data streams: TCP connections beside the ssh connection, over which everything goes as soon as one of them works.
//!
//! Both sides make a key and a certificate for this connection and exchange the certificates through ssh, in their
//! greetings. The side that was started listens, and the other one connects. TLS 1.3 shows each side that the other one has
//! the key of that certificate. What is sent is cut into chunks that any stream may carry ([`pool`]); the ssh
//! connection stays as the spare stream of the pool.
mod chunk;
mod dial;
pub(crate) mod encrypted;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod growth;
pub(crate) mod handshake;
mod health;
mod identity;
mod incoming;
mod listen;
mod outgoing;
mod packing;
mod pool;
mod report;
mod sealed;
mod shared;
mod through_ssh;
mod watch;
mod ways;
mod worker;

use dmover_model::Protected;
use dmover_wire::streams::{Compression, Protection, RelayedWay, StreamAnswer, StreamOffer};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub use dmover_wire::streams::StreamSettings;

pub(crate) use self::listen::Listening;

pub(crate) use self::dial::Dialer;
use self::identity::Identity;
use self::pool::Pool;
use self::shared::Transport;
pub(crate) use self::through_ssh::ThroughSsh;
pub use self::through_ssh::stream_to;
use crate::connection::{HangUp, Link, Terms};

/// The ports on which an agent listens unless others are named: those that sites open for transfers of GridFTP, too.
pub const PORTS: (u16, u16) = (50_000, 51_000);
/// How many streams a connection has unless a number is given.
pub const STREAMS: u32 = 8;
/// The fewest data streams to each of several hosts, unless the user has chosen.
const STREAMS_LEAST: u32 = 4;
/// How many a connection has at most if the number was not given.
pub const STREAMS_GROWN: u32 = 32;
/// The most streams of a connection.
pub const STREAMS_MAX: u32 = 64;
/// How long both sides keep their ends while the other one cannot be reached, unless something else is given.
pub const PATIENCE: Duration = Duration::from_mins(5);
/// Addresses that the other side may name, and the characters of its reason against streams.
const ADDRESSES_MAX: usize = 4;
const REASON_MAX: usize = 200;
/// A shorter patience would give up a connection that is only quiet.
pub const PATIENCE_MIN: Duration = Duration::from_secs(5);
/// By how much a connection of channels is more patient than the streams below it, which know more.
const MARGIN: Duration = Duration::from_secs(30);

/// Receives what a user should know of the streams, in one line.
#[derive(Clone)]
pub struct Notice(pub Arc<dyn Fn(&str) + Send + Sync>);

impl Notice {
    /// Drops every message.
    pub fn nobody() -> Self {
        Self(Arc::new(|_| ()))
    }
}

impl std::fmt::Debug for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Notice")
    }
}

/// Divides the usual number of streams among connections with several hosts. Together they have about as many as one, and what
/// comes in turns makes losses that more streams would not mend.
pub fn share_among(settings: &mut StreamSettings, hosts: u32) {
    if settings.grows {
        settings.count = settings.count.div_ceil(hosts).max(STREAMS_LEAST);
        settings.grows = false;
    }
}

/// Which data streams are used.
#[derive(Debug, Clone)]
pub struct StreamOptions {
    /// What the user wants. At most [`STREAMS_MAX`] streams are opened, and at most [`STREAMS_GROWN`] if their number grows.
    pub settings: StreamSettings,
    /// The ways that lead through relays; none: streams go directly.
    pub relayed: Vec<RelayedWay>,
    /// Receives what the user should know.
    pub notice: Notice,
}

impl StreamOptions {
    /// No streams beside ssh.
    pub fn none() -> Self {
        let settings = StreamSettings {
            count: 0,
            grows: false,
            protection: Protection::Full,
            ports: PORTS,
            addresses: Vec::new(),
            from: Vec::new(),
            congestion: None,
            buffer_bytes: None,
            patience_ms: PATIENCE.as_millis() as u32,
            compression: Compression::Auto,
        };
        Self { settings, relayed: Vec::new(), notice: Notice::nobody() }
    }

    /// How long both sides wait for each other.
    fn patience(&self) -> Duration {
        Duration::from_millis(self.settings.patience_ms.into())
    }

    /// How long a connection may be silent that goes on as long as these streams.
    pub fn silence(&self) -> Duration {
        self.patience() + MARGIN
    }
}

/// What ssh carries, and how it ends.
pub(crate) struct Carrier {
    pub input: Box<dyn Read + Send>,
    pub output: Box<dyn Write + Send>,
    pub hang_up: HangUp,
    /// What protects bytes that it carries.
    pub protected: Protected,
}

impl Carrier {
    /// The connection without streams.
    pub fn alone(self) -> Link {
        let Self { input, output, hang_up, .. } = self;
        Link { input, output, hang_up, report: None }
    }

    fn with_pool(self, patience: Duration, compression: Compression) -> io::Result<(Pool, HangUp)> {
        let Self { input, output, hang_up, .. } = self;
        // What ends ssh, or this process, ends these.
        let spare =
            Transport { input, output, close: Box::new(|| ()), socket: None, is_in_ssh: false };
        Ok((Pool::new(spare, patience, compression)?, hang_up))
    }
}

/// What the user should know if there are no streams.
fn without_streams(host: &str, spare: &str, why: &str) -> String {
    format!("no data streams to {host}, everything goes through {spare}: {why}")
}

/// Whether to connect to an address that the other side names: it is not to have this host try others of its choice.
fn may_dial(address: &str, is_here: bool) -> bool {
    address.parse::<IpAddr>().is_ok_and(|address| {
        !address.is_multicast() && !address.is_unspecified() && (is_here || !address.is_loopback())
    })
}

fn protected(protection: Protection) -> Protected {
    match protection {
        Protection::Full => Protected::Tls,
        Protection::Integrity => Protected::Integrity,
        Protection::None => Protected::Nothing,
    }
}

/// Whom the side that connects looks for.
pub(crate) struct Peer<'a> {
    /// What the other host is reached by.
    pub name: &'a str,
    /// It says that it is this host.
    pub is_here: bool,
    /// What carries everything without streams.
    pub spare: &'static str,
}

impl Peer<'_> {
    /// Its names and addresses. `said`: those that it says itself.
    pub fn named(&self, said: &[String], settings: &StreamSettings) -> Vec<String> {
        if !settings.addresses.is_empty() {
            return settings.addresses.clone();
        }
        self.reached_at(said)
    }

    /// The addresses that it says itself, as far as they are acceptable, and its name.
    pub fn reached_at(&self, said: &[String]) -> Vec<String> {
        let said = said.iter().filter(|address| may_dial(address, self.is_here));
        said.take(ADDRESSES_MAX).cloned().chain([self.name.to_owned()]).collect()
    }
}

/// The side that starts the other one: what it offers, and the key for it.
pub(crate) struct Offering {
    identity: Identity,
    pub offer: StreamOffer,
}

impl Offering {
    /// # Errors
    /// The kernel has no random numbers.
    pub fn new(settings: &StreamSettings) -> io::Result<Self> {
        let identity = Identity::make()?;
        let offer = StreamOffer {
            certificate: identity.certificate(),
            protection: settings.protection,
            ports: settings.ports,
            congestion: settings.congestion.clone(),
            buffer_bytes: settings.buffer_bytes,
            patience_ms: settings.patience_ms,
            compression: settings.compression,
        };
        Ok(Self { identity, offer })
    }

    /// Goes on over streams, if the other side listens. They are opened when what is returned with the link is started.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn answered(
        self,
        answer: Option<StreamAnswer>,
        carrier: Carrier,
        (to, options): (Peer<'_>, &StreamOptions),
        terms: &mut Terms,
    ) -> io::Result<(Link, Option<Dialer>)> {
        let Peer { name, spare, .. } = to;
        let refused = |why: &str| (options.notice.0)(&without_streams(name, spare, why));
        let (certificate, port, addresses) = match answer {
            Some(StreamAnswer::Listens { certificate, port, addresses }) => {
                (certificate, port, addresses)
            }
            Some(StreamAnswer::Refuses(why)) => {
                refused(&why.chars().take(REASON_MAX).collect::<String>());
                return Ok((carrier.alone(), None));
            }
            None => {
                refused("the version of dmover there has none");
                return Ok((carrier.alone(), None));
            }
        };
        let settings = &options.settings;
        terms.silence = options.silence();
        let spares = carrier.protected;
        let (pool, hang_up) = carrier.with_pool(options.patience(), settings.compression)?;
        let dialer = Dialer {
            pool: pool.clone(),
            config: self.identity.client(certificate)?,
            named: to.named(&addresses, settings),
            port,
            host: name.to_owned(),
            spare,
            through_ssh: None,
            options: options.clone(),
        };
        let link = pool.link(hang_up, (protected(settings.protection), spares));
        Ok((link, Some(dialer)))
    }
}

#[cfg(test)]
mod tests;
