//! The side that connects to an agent.
use dmover_host::tcp::{self, Tuning};
use dmover_model::Fatal;
use rustls::{CertificateError, ClientConnection, Error};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::{Fingerprint, HANDSHAKE_WITHIN, Identity, KnownAgents, Pinned, WORDS, why_invalid};
use crate::endpoint::RemoteHost;
use crate::streams::encrypted::{self, Input, Output};
use crate::streams::handshake::{Opening, invalid};
use crate::tls;

/// How long one address may take to accept.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// What a user shows to agents, and the agents that the user knows.
pub struct KnownAs {
    /// What is shown.
    pub own: Identity,
    /// The file of it, for messages.
    pub own_file: String,
    /// The agents.
    pub agents: KnownAgents,
}

/// Finds out what a user shows to agents, when one is needed.
#[derive(Clone)]
pub struct Credentials(pub Arc<dyn Fn() -> Result<KnownAs, Fatal> + Send + Sync>);

impl Credentials {
    /// Those of a process that reaches no agent by itself.
    pub fn none() -> Self {
        let refused = || Fatal::refused("this process connects to no agent", "use ssh");
        Self(Arc::new(move || Err(refused())))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

/// A connection with an agent, before both sides have greeted.
pub(crate) struct Line {
    pub input: Input<TcpStream>,
    pub output: Output,
    pub socket: TcpStream,
}

/// Connects to a known agent.
///
/// # Errors
/// It cannot be reached, or one of the two does not know the other one.
pub(crate) fn connect(host: &RemoteHost, port: u16, as_whom: &KnownAs) -> Result<Line, Fatal> {
    let shown = host.shown();
    let accepted = as_whom.agents.of(&host.name, port);
    if accepted.is_empty() {
        return Err(Fatal::refused(
            format!("the agent at '{shown}' is not known"),
            format!("compare its fingerprint, and accept it: dmover agent --trust {shown}"),
        ));
    }
    let shown_there = Arc::default();
    let opened = open((host, port), &as_whom.own, (Some(accepted), &shown_there));
    opened.map_err(|why| why.words(&shown, shown_there.get().copied(), as_whom))
}

/// The certificate that an agent shows, whoever that is, and whether it accepts the one of this side or not.
///
/// # Errors
/// It cannot be reached, or shows none that can be used.
pub fn seen_at(host: &RemoteHost, port: u16, as_whom: &KnownAs) -> Result<Fingerprint, Fatal> {
    let shown = Arc::default();
    let why = match open((host, port), &as_whom.own, (None, &shown)) {
        Ok(_) => None,
        Err(Failed::Proving(error)) if refused_by_agent(&error).is_some() => None,
        Err(failed) => Some(failed),
    };
    let shown = shown.get().copied();
    match (shown, why) {
        (Some(shown), None) => Ok(shown),
        (_, why) => {
            let why = why.unwrap_or_else(|| Failed::Proving(ErrorKind::UnexpectedEof.into()));
            Err(why.words(&host.shown(), shown, as_whom))
        }
    }
}

/// Why there is no connection.
enum Failed {
    /// The name has no address.
    Name(io::Error),
    /// No address accepts connections; the last reason.
    Connecting(io::Error),
    /// One of the two sides has not proved who it is.
    Proving(io::Error),
}

type Accepts<'a> = (Option<Vec<Fingerprint>>, &'a Arc<OnceLock<Fingerprint>>);

fn open(
    (host, port): (&RemoteHost, u16),
    own: &Identity,
    (accepted, shown): Accepts<'_>,
) -> Result<Line, Failed> {
    // Zones of link-local addresses are for the resolver.
    let addresses = (&*host.name, port).to_socket_addrs().map_err(Failed::Name)?;
    let socket = dial(addresses).map_err(Failed::Connecting)?;
    let judge = Pinned { accepted, shown: Arc::clone(shown) };
    prove(socket, own, judge).map_err(Failed::Proving)
}

fn dial(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut failed = io::Error::from(ErrorKind::AddrNotAvailable);
    for address in addresses {
        match tcp::connect(address, &Tuning::default(), CONNECT_WITHIN) {
            Ok(socket) => return Ok(socket),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn prove(socket: TcpStream, own: &Identity, judge: Pinned) -> io::Result<Line> {
    let config = tls::client(own.certificate.clone(), own.key.clone_key(), judge)?;
    let tls = ClientConnection::new(config, tls::name()).map_err(invalid)?;
    let mut opening = Opening::new(socket, tls.into(), HANDSHAKE_WITHIN);
    opening.prove(WORDS, true)?;
    let (socket, tls) = opening.opened()?;
    let known = socket.try_clone()?;
    let (input, output) = encrypted::halves(socket, tls)?;
    Ok(Line { input, output, socket: known })
}

fn of_tls(error: &io::Error) -> Option<&Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// What the agent has said against the certificate of this side.
fn refused_by_agent(error: &io::Error) -> Option<String> {
    match of_tls(error)? {
        Error::AlertReceived(alert) => Some(format!("{alert:?}")),
        _ => None,
    }
}

impl Failed {
    /// The error for users. `shown`: the certificate of the agent, if it has shown one.
    fn words(&self, host: &str, shown: Option<Fingerprint>, as_whom: &KnownAs) -> Fatal {
        const AGAIN: &str = "then run the same command again";
        match self {
            Self::Name(error) => Fatal::unavailable(
                format!("cannot find the address of the host '{host}': {error}"),
                "check the name",
            ),
            Self::Connecting(error) => Fatal::unavailable(
                format!("cannot connect to the agent at '{host}': {error}"),
                format!(
                    "check that 'dmover agent --listen' runs there, the port, and firewalls; {AGAIN}"
                ),
            ),
            Self::Proving(error) => Self::unproved(error, host, shown, as_whom),
        }
    }

    fn unproved(
        error: &io::Error,
        host: &str,
        shown: Option<Fingerprint>,
        as_whom: &KnownAs,
    ) -> Fatal {
        match (of_tls(error), shown) {
            (
                Some(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
                Some(shown),
            ) => Fatal::refused(
                format!("the agent at '{host}' shows another certificate than before: {shown}"),
                format!(
                    "another host may answer in its place; ask its administrator for the fingerprint, then: \
                     dmover agent --trust {host}"
                ),
            ),
            (Some(why @ Error::InvalidCertificate(_)), _) => Fatal::refused(
                format!(
                    "the certificate of the agent at '{host}' cannot be used: {}",
                    why_invalid(why)
                ),
                "check the clocks of both hosts, or have its administrator make a new identity",
            ),
            (Some(Error::AlertReceived(_)), _) => {
                let KnownAs { own, own_file, .. } = as_whom;
                let own_reason = own.why_invalid().map(|why| format!(": {why}"));
                let fingerprint = own.fingerprint();
                let hint = match &own_reason {
                    Some(_) => "move the file away, make a new identity, and have the administrator accept its \
                        fingerprint (dmover agent --make-identity)"
                        .to_owned(),
                    None => format!(
                        "its administrator has to add a client with fingerprint = \"{fingerprint}\" there; its log \
                         says more"
                    ),
                };
                Fatal::refused(
                    format!(
                        "the agent at '{host}' does not accept the certificate in {own_file}{}",
                        own_reason.unwrap_or_default()
                    ),
                    hint,
                )
            }
            (Some(why), _) => Fatal::refused(
                format!("what listens at '{host}' is no agent of dmover: {why}"),
                "check the port",
            ),
            (None, _) => Fatal::unavailable(
                format!("the agent at '{host}' ends connections before the greeting: {error}"),
                format!(
                    "check the port and firewalls; {AGAIN}",
                    AGAIN = "then run the same command again"
                ),
            ),
        }
    }
}
