//! The side that connects: opens streams, and others in the place of those that end.
use dmover_host::tcp::{self, Tuning};
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use rustls::ClientConfig;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::handshake::{self, HANDSHAKE_WITHIN};
use super::pool::{Pool, Transport};
use super::{STREAMS_GROWN, StreamOptions};

/// How long an address may take to accept a connection. After an outage the next attempt comes soon.
const CONNECT_WITHIN: Duration = Duration::from_secs(4);
/// Pauses between attempts, from the first to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How often it is tried if it never worked. A firewall does not go away.
const FIRST_ATTEMPTS: u32 = 3;

/// Keeps a pool at its number of streams.
pub(super) struct Dialer {
    pub pool: Pool,
    pub config: Arc<ClientConfig>,
    /// Names and addresses of the other side.
    pub named: Vec<String>,
    pub port: u16,
    pub host: String,
    pub options: StreamOptions,
    pub tuning: Tuning,
}

impl Dialer {
    /// Starts the thread, which ends with the pool.
    pub fn start(self) -> io::Result<()> {
        let dialer = Arc::new(self);
        thread::Builder::new().name("net-dial".into()).spawn(move || dialer.run())?;
        Ok(())
    }

    fn run(self: &Arc<Self>) {
        let Some(mut address) = self.first() else { return };
        let mut pause = PAUSE_MIN;
        while !self.pool.is_over() {
            let count = self.options.count;
            let more = if self.options.grows { self.pool.wanted().min(STREAMS_GROWN) } else { 0 };
            let missing = (count.max(more) as usize).saturating_sub(self.pool.streams());
            if missing == 0 {
                self.pool.wait_for_change(PAUSE_MAX);
                continue;
            }
            let opened = self.open(&vec![address; missing]);
            if opened.iter().any(Result::is_ok) {
                pause = PAUSE_MIN;
            } else {
                // The other side may have another address by now, or this one may.
                match self.race() {
                    Ok(found) => address = found,
                    Err(error) => {
                        tracing::debug!(%error, host = %self.host, "cannot open a data stream");
                        self.pool.wait_for_change(pause);
                        pause = (2 * pause).min(PAUSE_MAX);
                    }
                }
            }
        }
    }

    /// The address at which the first stream was opened.
    fn first(self: &Arc<Self>) -> Option<SocketAddr> {
        for attempt in 1..=FIRST_ATTEMPTS {
            let begin = Instant::now();
            match self.race() {
                Ok(address) => return Some(address),
                Err(_) if self.pool.is_over() => return None,
                Err(error) if attempt == FIRST_ATTEMPTS => {
                    let (host, port) = (&self.host, self.port);
                    (self.options.notice.0)(&format!(
                        "no data streams to {host}, everything goes through ssh: port {port}: {error}"
                    ));
                }
                Err(_) => self.pool.wait_for_change(CONNECT_WITHIN.saturating_sub(begin.elapsed())),
            }
        }
        None
    }

    /// Opens a stream at whatever address answers first.
    fn race(self: &Arc<Self>) -> io::Result<SocketAddr> {
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for name in &self.named {
            let found = (name.as_str(), self.port).to_socket_addrs();
            let new = found.into_iter().flatten().filter(|found| !addresses.contains(found));
            addresses.extend(new.collect::<Vec<_>>());
        }
        let opened = self.open(&addresses);
        let mut failed = None;
        for (result, address) in opened.into_iter().zip(addresses) {
            match result {
                Ok(()) => return Ok(address),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.unwrap_or_else(|| io::Error::other("its address is not known")))
    }

    /// Opens a stream at each of these addresses at the same time.
    fn open(self: &Arc<Self>, addresses: &[SocketAddr]) -> Vec<io::Result<()>> {
        let (sender, done) = mpsc::channel();
        for (place, address) in addresses.iter().copied().enumerate() {
            let (dialer, sent) = (Arc::clone(self), sender.clone());
            let opens = move || {
                let opened = dialer.dial(address).and_then(|transport| dialer.pool.add(transport));
                let _ = sent.send((place, opened.map(drop)));
            };
            let started = thread::Builder::new().name("net-dial".into()).spawn(opens);
            if let Err(error) = started {
                let _ = sender.send((place, Err(error)));
            }
        }
        drop(sender);
        let mut results: Vec<(usize, io::Result<()>)> = done.iter().collect();
        results.sort_by_key(|(place, _)| *place);
        results.into_iter().map(|(_, result)| result).collect()
    }

    fn dial(&self, address: SocketAddr) -> io::Result<Transport> {
        let socket = tcp::connect(address, &self.tuning, CONNECT_WITHIN)?;
        handshake::connect(socket, &self.config, self.options.protection, HANDSHAKE_WITHIN)
    }
}
