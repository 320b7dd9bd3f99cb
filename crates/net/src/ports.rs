//! Listening for data streams.
use dmover_host::tcp::{self, Tuning};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::Duration;

/// How long an accept waits, so that its thread sees when it is over.
const ACCEPT_WITHIN: Duration = Duration::from_millis(500);
/// Ports that are tried.
const PORTS_TRIED: u64 = 1000;

/// Listens at one of these ports, on all addresses.
pub(crate) fn listen((first, last): (u16, u16), tuning: &Tuning) -> io::Result<TcpListener> {
    let at = |port: u16| {
        let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        tcp::listen(both, tuning, ACCEPT_WITHIN).or_else(|error| {
            // Without IPv6.
            let has_none = error.kind() != io::ErrorKind::AddrInUse;
            let old = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            if has_none { tcp::listen(old, tuning, ACCEPT_WITHIN) } else { Err(error) }
        })
    };
    let count = u64::from(last.saturating_sub(first)) + 1;
    // Several agents of a host begin at different ports.
    let begin = dmover_host::random_u64() % count;
    let mut failed = None;
    for place in (0..count.min(PORTS_TRIED)).map(|place| (begin + place) % count) {
        match at(first + place as u16) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => failed = Some(error),
            Err(error) => return Err(error),
        }
    }
    let error = failed.map_or_else(String::new, |error| format!(": {error}"));
    Err(io::Error::other(format!("no port from {first} to {last} is free{error}")))
}
