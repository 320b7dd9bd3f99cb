//! The relays that a connection leads through, as the side sees them that starts them.
use dmover_model::{Fatal, PathBytes};
use dmover_wire::agent::{RelayAnswer, RelayOrder, Request};
use dmover_wire::streams::{RelayHop, RelayToken, RelayedWay};
use dmover_wire::{decode, encode};
use std::time::Duration;

use super::{ConnectOptions, RemoteAgent};
use crate::connection::{Broken, Channel};
use crate::endpoint::RemoteHost;
use crate::streams::{StreamOptions, StreamSettings, may_dial};

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
        let options = ConnectOptions {
            streams: StreamOptions::none(),
            relays: Vec::new(),
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
            let said = addresses.into_iter().filter(|address| may_dial(address, is_here));
            targets = [host.name.clone()].into_iter().chain(said).collect();
            relays.orders.push((channel, agent));
        }
        let Some(port) = next_port else {
            return Err(Fatal::refused("--relay names no host", "name a host that ssh reaches"));
        };
        Ok((relays, RelayedWay { addresses: targets, port, relays: hops }))
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
