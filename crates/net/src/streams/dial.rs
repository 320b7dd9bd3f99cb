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
use super::pool::Pool;
use super::{StreamOptions, growth};

/// How long an address may take to accept a connection. After an outage the next attempt comes soon.
const CONNECT_WITHIN: Duration = Duration::from_secs(4);
/// Pauses between attempts, from the first to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How often it is tried if it never worked. A firewall does not go away.
const FIRST_ATTEMPTS: u32 = 3;
/// Streams that are opened at the same time.
const DIALS_MAX: usize = 8;
/// If so many times the number of streams end soon after they were opened, and none lives longer, ssh is better.
const YOUNG_ROUNDS: u32 = 3;

/// Keeps a pool at its number of streams.
pub(super) struct Dialer {
    pub pool: Pool,
    pub config: Arc<ClientConfig>,
    /// Names and addresses of the other side.
    pub named: Vec<String>,
    pub port: u16,
    pub host: String,
    /// What carries everything without streams.
    pub spare: &'static str,
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

    fn wanted(&self) -> usize {
        growth::kept(&self.options.settings, self.pool.wanted())
    }

    fn run(self: &Arc<Self>) {
        let Some(mut address) = self.first() else { return };
        let (sender, opened) = mpsc::channel();
        let (mut dialing, mut pause) = (0, PAUSE_MIN);
        while !self.pool.is_over() {
            if self.pool.young_losses() >= YOUNG_ROUNDS * self.options.settings.count {
                let why = "they end soon after they were opened";
                return self.without_streams(&format!("port {}: {why}", self.port));
            }
            let missing = self.wanted().saturating_sub(self.pool.streams() + dialing);
            for _ in 0..missing.min(DIALS_MAX - dialing) {
                dialing += 1;
                self.open(address, sender.clone());
            }
            // Each by itself: one that hangs holds up no other one.
            let Ok((_, result)) = opened.recv_timeout(PAUSE_MIN) else { continue };
            dialing -= 1;
            let Err(error) = result else {
                pause = PAUSE_MIN;
                continue;
            };
            tracing::debug!(%error, host = %self.host, "cannot open a data stream");
            if dialing == 0 && self.pool.streams() == 0 {
                // The other side may have another address by now, or this one may.
                address = self.race().unwrap_or(address);
            }
            self.pool.wait_for_change(pause);
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    fn without_streams(&self, why: &str) {
        let notice = super::without_streams(&self.host, self.spare, why);
        (self.options.notice.0)(&notice);
    }

    /// The address at which the first stream was opened.
    fn first(self: &Arc<Self>) -> Option<SocketAddr> {
        for attempt in 1..=FIRST_ATTEMPTS {
            let begin = Instant::now();
            match self.race() {
                Ok(address) => return Some(address),
                Err(_) if self.pool.is_over() => return None,
                Err(error) if attempt == FIRST_ATTEMPTS => {
                    self.without_streams(&format!("port {}: {error}", self.port));
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
        let (sender, opened) = mpsc::channel();
        for address in addresses {
            self.open(address, sender.clone());
        }
        drop(sender);
        let mut failed = None;
        for (address, result) in opened {
            match result {
                Ok(()) => return Ok(address),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.unwrap_or_else(|| io::Error::other("its address is not known")))
    }

    /// Opens a stream at an address, on a thread that says so in the end.
    fn open(self: &Arc<Self>, address: SocketAddr, done: Done) {
        let (dialer, failed) = (Arc::clone(self), done.clone());
        let opens = move || {
            // Whoever waited for it may have gone.
            let _ = done.send((address, dialer.dial(address)));
        };
        let started = thread::Builder::new().name("net-dial".into()).spawn(opens);
        if let Err(error) = started {
            let _ = failed.send((address, Err(error)));
        }
    }

    fn dial(&self, address: SocketAddr) -> io::Result<()> {
        let socket = tcp::connect(address, &self.tuning, CONNECT_WITHIN)?;
        if self.pool.streams() >= self.wanted() {
            // Another address was faster.
            return Ok(());
        }
        let protection = self.options.settings.protection;
        let transport = handshake::connect(socket, &self.config, protection, HANDSHAKE_WITHIN)?;
        self.pool.add(transport).map(drop)
    }
}

/// Receives what has become of an attempt.
type Done = mpsc::Sender<(SocketAddr, io::Result<()>)>;
