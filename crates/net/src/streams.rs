//! Data streams: TCP connections beside the ssh connection, over which everything goes as soon as one of them works.
//!
//! Both sides make a key and a certificate for this connection and exchange the certificates through ssh, in their
//! greetings. The side that was started listens, and the other one connects. TLS 1.3 shows each side that the other one has
//! the key of that certificate. What is sent is cut into chunks that any stream may carry ([`pool`]); the ssh
//! connection stays as the spare stream of the pool.
mod chunk;
mod dial;
mod encrypted;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod growth;
mod handshake;
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
mod watch;
mod worker;

use dmover_host::tcp::Tuning;
use dmover_model::Protected;
use dmover_wire::streams::{Compression, Protection, StreamAnswer, StreamOffer};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::listen::Listening;

use self::dial::Dialer;
use self::identity::Identity;
use self::pool::Pool;
use self::shared::Transport;
use crate::connection::{HangUp, Link, Terms};

/// The ports on which an agent listens unless others are named: those that sites open for transfers of GridFTP, too.
pub const PORTS: (u16, u16) = (50_000, 51_000);
/// How many streams a connection has unless a number is given.
pub const STREAMS: u32 = 8;
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

impl std::fmt::Debug for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Notice")
    }
}

/// Which data streams are used.
#[derive(Debug, Clone)]
pub struct StreamOptions {
    /// How many; zero: everything goes through ssh.
    pub count: u32,
    /// More are opened, up to [`STREAMS_GROWN`], if the line loses packets.
    pub grows: bool,
    /// What protects the bytes.
    pub protection: Protection,
    /// The first and the last port on which the other side may listen; zero: any.
    pub ports: (u16, u16),
    /// The addresses of the other side; none: those that ssh uses.
    pub addresses: Vec<String>,
    /// The address of this side that streams come from.
    pub from: Option<IpAddr>,
    /// The congestion control, by the kernel's name.
    pub congestion: Option<String>,
    /// Bytes of the buffers of each stream in each direction.
    pub buffer_bytes: Option<u32>,
    /// How long both sides keep their ends while the other one cannot be reached.
    pub patience: Duration,
    /// Whether what goes over them is compressed.
    pub compression: Compression,
    /// Receives what the user should know.
    pub notice: Notice,
}

impl StreamOptions {
    /// No streams beside ssh.
    pub fn none() -> Self {
        Self {
            count: 0,
            grows: false,
            protection: Protection::Full,
            ports: PORTS,
            addresses: Vec::new(),
            from: None,
            congestion: None,
            buffer_bytes: None,
            patience: PATIENCE,
            compression: Compression::Auto,
            notice: Notice(Arc::new(|_| ())),
        }
    }

    fn tuning(&self) -> Tuning {
        let Self { congestion, buffer_bytes, from, .. } = self;
        Tuning { congestion: congestion.clone(), buffer_bytes: *buffer_bytes, from: *from }
    }
}

/// What ssh carries, and how it ends.
pub(crate) struct Carrier {
    pub input: Box<dyn Read + Send>,
    pub output: Box<dyn Write + Send>,
    pub hang_up: HangUp,
}

impl Carrier {
    /// The connection without streams.
    pub fn alone(self) -> Link {
        let Self { input, output, hang_up } = self;
        Link { input, output, hang_up, report: None }
    }

    fn with_pool(self, patience: Duration, compression: Compression) -> io::Result<(Pool, HangUp)> {
        let Self { input, output, hang_up } = self;
        // What ends ssh, or this process, ends these.
        let spare = Transport { input, output, close: Box::new(|| ()), socket: None };
        Ok((Pool::new(spare, patience, compression)?, hang_up))
    }
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

/// The side that starts the other one: what it offers, and the key for it.
pub(crate) struct Offering {
    identity: Identity,
    pub offer: StreamOffer,
}

impl Offering {
    /// # Errors
    /// The kernel has no random numbers.
    pub fn new(options: &StreamOptions) -> io::Result<Self> {
        let identity = Identity::make()?;
        let offer = StreamOffer {
            certificate: identity.certificate(),
            protection: options.protection,
            ports: options.ports,
            congestion: options.congestion.clone(),
            buffer_bytes: options.buffer_bytes,
            patience_ms: options.patience.as_millis().try_into().unwrap_or(u32::MAX),
            compression: options.compression,
        };
        Ok(Self { identity, offer })
    }

    /// Goes on over streams, if the other side listens. `name`: what ssh reaches it by; `is_here`: it says that it is this host.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn answered(
        self,
        answer: Option<StreamAnswer>,
        carrier: Carrier,
        (name, is_here, options): (&str, bool, &StreamOptions),
        terms: &mut Terms,
    ) -> io::Result<Link> {
        let refused = |why: &str| {
            (options.notice.0)(&format!(
                "no data streams to {name}, everything goes through ssh: {why}"
            ));
        };
        let (certificate, port, addresses) = match answer {
            Some(StreamAnswer::Listens { certificate, port, addresses }) => {
                (certificate, port, addresses)
            }
            Some(StreamAnswer::Refuses(why)) => {
                refused(&why.chars().take(REASON_MAX).collect::<String>());
                return Ok(carrier.alone());
            }
            None => {
                refused("the version of dmover there has none");
                return Ok(carrier.alone());
            }
        };
        terms.silence = options.patience + MARGIN;
        let (pool, hang_up) = carrier.with_pool(options.patience, options.compression)?;
        let named = if options.addresses.is_empty() {
            let said = addresses.iter().filter(|address| may_dial(address, is_here));
            said.take(ADDRESSES_MAX).cloned().chain([name.to_owned()]).collect()
        } else {
            options.addresses.clone()
        };
        let dialer = Dialer {
            pool: pool.clone(),
            config: self.identity.client(certificate)?,
            named,
            port,
            host: name.to_owned(),
            options: options.clone(),
            tuning: options.tuning(),
        };
        dialer.start()?;
        Ok(pool.link(hang_up, protected(options.protection)))
    }
}

#[cfg(test)]
mod tests;
