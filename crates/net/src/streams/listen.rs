//! The side that listens: accepts streams of the other side, and of nobody else.
use dmover_host::tcp::{self, Tuning};
use dmover_schedule::thread;
use dmover_wire::streams::{Compression, Protection, StreamAnswer, StreamOffer};
use rustls::ServerConfig;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use super::handshake::{self, HANDSHAKE_WITHIN};
use super::identity::Identity;
use super::pool::Pool;
use super::shared::Transport;
use super::{Carrier, MARGIN, PATIENCE_MIN, STREAMS_MAX};
use crate::connection::{Link, Terms};
use crate::ports::listen;

/// Connections that may prove at a time who they are.
const OPENING_MAX: usize = 16;

/// Waits for streams.
pub(crate) struct Listening {
    listener: TcpListener,
    opens: Opens,
    patience: Duration,
    compression: Compression,
}

/// How a stream is opened.
#[derive(Clone)]
struct Opens {
    config: Arc<ServerConfig>,
    protection: Protection,
    tuning: Tuning,
    /// The other side runs on this host, too.
    is_here: bool,
}

impl Listening {
    /// Listens, as the other side has asked for. `addresses`: those of this host by which it may be reached.
    /// `is_here`: the other side runs on this host, too.
    pub fn start(
        offer: &StreamOffer,
        addresses: Vec<String>,
        is_here: bool,
    ) -> (StreamAnswer, Option<Self>) {
        match Self::begin(offer, is_here) {
            Ok((listening, certificate, port)) => {
                (StreamAnswer::Listens { certificate, port, addresses }, Some(listening))
            }
            Err(error) => (StreamAnswer::Refuses(error.to_string()), None),
        }
    }

    fn begin(offer: &StreamOffer, is_here: bool) -> io::Result<(Self, Vec<u8>, u16)> {
        let tuning = Tuning {
            congestion: offer.congestion.clone(),
            buffer_bytes: offer.buffer_bytes,
            from: None,
        };
        let listener = listen(offer.ports, &tuning)?;
        let port = listener.local_addr()?.port();
        let identity = Identity::make()?;
        let certificate = identity.certificate();
        let config = identity.server(offer.certificate.clone())?;
        let listening = Self {
            listener,
            opens: Opens { config, protection: offer.protection, tuning, is_here },
            patience: Duration::from_millis(offer.patience_ms.into()).max(PATIENCE_MIN),
            compression: offer.compression,
        };
        Ok((listening, certificate, port))
    }

    /// Goes on over the streams that come.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn go_on(self, carrier: Carrier, terms: &mut Terms) -> io::Result<Link> {
        terms.silence = self.patience + MARGIN;
        let spares = carrier.protected;
        let (pool, hang_up) = carrier.with_pool(self.patience, self.compression)?;
        let streams = pool.clone();
        let protected = super::protected(self.opens.protection);
        thread::Builder::new()
            .name("net-listen".into())
            .spawn(move || self.accept_all(&streams))?;
        Ok(pool.link(hang_up, (protected, spares)))
    }

    fn accept_all(self, pool: &Pool) {
        let Self { listener, opens, .. } = self;
        let opening = Arc::new(AtomicUsize::new(0));
        while !pool.is_over() {
            let Ok((socket, from)) = listener.accept() else {
                // The usual end of a wait; anything else may go away.
                pool.wait_for_change(Duration::from_millis(10));
                continue;
            };
            if opening.load(SeqCst) >= OPENING_MAX || pool.streams() >= STREAMS_MAX as usize {
                tracing::warn!(%from, "refused a data stream: there are too many");
                continue;
            }
            opening.fetch_add(1, SeqCst);
            let (opens, pool) = (opens.clone(), pool.clone());
            let counted = Counted(Arc::clone(&opening));
            let work = move || {
                match opens.open(socket, &pool) {
                    Ok(()) => {}
                    // The other side has closed what it was still opening.
                    Err(error) if pool.is_over() => {
                        tracing::debug!(%from, %error, "no data stream is needed any more");
                    }
                    Err(error) => tracing::warn!(%from, %error, "refused a data stream"),
                }
                drop(counted);
            };
            // Without a thread the connection is closed.
            let _ = thread::Builder::new().name("net-accept".into()).spawn(work);
        }
    }
}

impl Opens {
    fn open(&self, socket: TcpStream, pool: &Pool) -> io::Result<()> {
        tcp::accepted(&socket, &self.tuning)?;
        // The other side's ssh has started what connects from this host.
        let is_in_ssh = !self.is_here && socket.peer_addr()?.ip().to_canonical().is_loopback();
        let transport = handshake::accept(socket, &self.config, self.protection, HANDSHAKE_WITHIN)?;
        pool.add(Transport { is_in_ssh, ..transport }).map(drop)
    }
}

/// Counts a connection until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}
