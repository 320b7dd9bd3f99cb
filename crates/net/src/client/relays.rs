//! The relays that a connection leads through, as the side sees them that starts them.
use dmover_model::{ExitCode, Fatal, PathBytes};
use dmover_wire::agent::{RelayAnswer, RelayOrder, Request};
use dmover_wire::streams::{RelayHop, RelayToken, RelayedWay, StreamAnswer};
use dmover_wire::{decode, encode};
use std::time::Duration;

use super::{ConnectOptions, RemoteAgent};
use crate::connection::{Broken, Channel};
use crate::endpoint::RemoteHost;
use crate::hello::Hello;
use crate::streams::{Peer, StreamOptions, StreamSettings};

/// How long a relay may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_mins(1);

/// Relays of a connection, from the first to the last. Dropping them ends what they pass on.
#[derive(Debug, Default)]
pub struct Relays {
    // Channels end before their agents.
    orders: Vec<(Channel, RemoteAgent)>,
}

impl Relays {
    /// Starts relays at these hosts, from the first to the last, towards a host with these names and addresses. Call it from a thread
    /// that lives as long as they are needed: ssh is killed with it.
    ///
    /// # Errors
    /// A host cannot be reached, or cannot be a relay.
    pub fn start(
        hosts: &[RemoteHost],
        mut targets: Vec<String>,
        options: &ConnectOptions,
    ) -> Result<(Self, RelayedWay), Fatal> {
        let settings = &options.streams.settings;
        check(settings)?;
        // They last as long as the streams that they pass on would wait for each other.
        let options = ConnectOptions {
            streams: StreamOptions::none(),
            relays: Vec::new(),
            silence: options.streams.silence(),
            ..options.clone()
        };
        let (mut relays, mut hops) = (Self::default(), Vec::new());
        let mut next_port = None;
        for host in hosts.iter().rev() {
            let token: RelayToken = dmover_host::random_bytes().map_err(Fatal::Thread)?;
            let agent = RemoteAgent::connect(host, &PathBytes(b".".to_vec()), &options)?;
            let ports = match next_port {
                None => settings.ports,
                Some(port) => (port, port),
            };
            let order = order(settings, token, (targets, ports));
            let (channel, port, addresses) = ask(&agent, order)?;
            hops.insert(0, RelayHop { token, next_port });
            next_port = Some(port);
            let is_here = agent.hello().host == dmover_host::name();
            let (first, last) = settings.ports;
            if first > 0 && !(first..=last).contains(&port) {
                return Err(agent.fatal(&Broken::Violation("a port that was not asked for")));
            }
            let to = Peer { name: &host.name, is_here, spare: "" };
            targets = to.reached_at(&addresses);
            relays.orders.push((channel, agent));
        }
        let Some(port) = next_port else {
            return Err(Fatal::refused("--relay names no host", "name a host that ssh reaches"));
        };
        Ok((relays, RelayedWay { addresses: targets, port, relays: hops }))
    }
}

/// Refuses relays for nothing.
pub(super) fn check(settings: &StreamSettings) -> Result<(), Fatal> {
    let refused = || {
        let hint = "omit one of the two options";
        Err(Fatal::refused("--relay leads data streams, and --streams is 0", hint))
    };
    if settings.count == 0 { refused() } else { Ok(()) }
}

/// The names and addresses to which relays pass streams on: those that the user has chosen, or those that the host says itself, and that
/// of the command line.
pub(super) fn targets(name: &str, hello: &Hello, settings: &StreamSettings) -> Vec<String> {
    // Its loopback addresses are others at the relay.
    let to = Peer { name, is_here: false, spare: "" };
    match &hello.answer {
        Some(StreamAnswer::Listens { addresses, .. }) => to.named(addresses, settings),
        _ => to.named(&[], settings),
    }
}

/// Starts all relays of the options towards a host. One chain of several may fail.
///
/// # Errors
/// None can be started.
pub fn start_any(
    targets: &[String],
    options: &ConnectOptions,
) -> Result<Vec<(Relays, RelayedWay)>, Fatal> {
    let (mut started, mut failed) = (Vec::new(), None);
    for chain in &options.relays {
        match Relays::start(chain, targets.to_vec(), options) {
            Ok(relays) => started.push(relays),
            Err(error) if options.relays.len() > 1 && error.exit_code() == ExitCode::Temporary => {
                (options.streams.notice.0)(&format!("one relay of several is not used: {error}"));
                failed = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    match failed {
        Some(error) if started.is_empty() => Err(error),
        _ => Ok(started),
    }
}

fn order(
    settings: &StreamSettings,
    token: RelayToken,
    (targets, target_ports): (Vec<String>, (u16, u16)),
) -> RelayOrder {
    RelayOrder {
        token,
        targets,
        target_ports,
        ports: settings.ports,
        congestion: settings.congestion.clone(),
        buffer_bytes: settings.buffer_bytes,
    }
}

/// Has an agent listen.
fn ask(agent: &RemoteAgent, order: RelayOrder) -> Result<(Channel, u16, Vec<String>), Fatal> {
    let asked = agent.request(&encode(&Request::Relay(order))).and_then(|channel| {
        let answer =
            channel.receive_within(ANSWER_WITHIN).unwrap_or(Err(Broken::Silent(ANSWER_WITHIN)))?;
        Ok((channel, answer))
    });
    let (channel, answer) = asked.map_err(|why| agent.fatal(&why))?;
    let host = agent.host();
    match answer.as_deref().map(decode) {
        Some(Ok(RelayAnswer::Listens { port, addresses })) => Ok((channel, port, addresses)),
        Some(Ok(RelayAnswer::Refuses(why))) => {
            let why: String = why.chars().take(200).collect();
            let message = format!("the host '{host}' cannot be a relay: {why}");
            Err(Fatal::unavailable(message, "name other ports with --data-ports, or another host"))
        }
        _ => Err(agent.fatal(&Broken::Violation("an answer cannot be read"))),
    }
}
