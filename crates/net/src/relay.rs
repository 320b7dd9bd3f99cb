//! Relays: hosts on the way that pass data streams on where the two ends cannot reach each other.
//!
//! ssh starts an agent at each of them. It listens, and who connects says first, in the [`preface`], a token that only this
//! job knows and the port to connect to. Everything after it is passed on as it is: both ends of the stream prove to each other
//! who they are, so a relay reads nothing that is encrypted and changes nothing unnoticed. One relay after another works as well: each
//! takes the preface that is for it.
use dmover_host::tcp::{self, Tuning};
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use dmover_wire::agent::RelayOrder;
use dmover_wire::streams::{RelayHop, RelayToken, RelayedWay};
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::ports::listen;

/// How a preface begins.
const MAGIC: [u8; 8] = *b"dmrelay\x01";
/// The magic, the token and the port.
const PREFACE_BYTES: usize = MAGIC.len() + 32 + 2;
/// How long it may take to come.
const PREFACE_WITHIN: Duration = Duration::from_secs(10);
/// How long an address may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(4);
/// Connections that a relay passes on at a time, and those that may send their preface.
const RELAYED_MAX: usize = 256;
const UNPROVED_MAX: usize = 64;
/// Addresses that are tried.
const TARGETS_MAX: usize = 8;

/// What a relay reads first.
fn preface(token: &RelayToken, port: u16) -> Vec<u8> {
    [&MAGIC[..], token, &port.to_le_bytes()].concat()
}

/// What the relays on a way read first, one after the other. `port`: that of the accepting side.
pub(crate) fn prefaces(way: &RelayedWay, port: u16) -> Vec<u8> {
    let each = |hop: &RelayHop| preface(&hop.token, hop.next_port.unwrap_or(port));
    way.relays.iter().flat_map(each).collect()
}

/// A relay at work. Dropping it ends what it passes on.
pub struct Relay(Arc<Relaying>);

struct Relaying {
    order: RelayOrder,
    tuning: Tuning,
    is_over: AtomicBool,
    open: AtomicUsize,
    /// Connections whose preface has not come yet.
    unproved: AtomicUsize,
    /// The address that has accepted last.
    accepts: Mutex<Option<SocketAddr>>,
    /// Both ends of what is passed on, by the number of the connection.
    streams: Mutex<Vec<(usize, TcpStream)>>,
}

impl Relay {
    /// Listens, and returns the port.
    ///
    /// # Errors
    /// No port is free, or a thread cannot be started.
    pub fn start(order: RelayOrder) -> io::Result<(Self, u16)> {
        let RelayOrder { congestion, buffer_bytes, .. } = &order;
        let tuning =
            Tuning { congestion: congestion.clone(), buffer_bytes: *buffer_bytes, from: None };
        let listener = listen(order.ports, &tuning)?;
        let port = listener.local_addr()?.port();
        let relaying = Arc::new(Relaying {
            order,
            tuning,
            is_over: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            unproved: AtomicUsize::new(0),
            accepts: Mutex::default(),
            streams: Mutex::default(),
        });
        let accepting = Arc::clone(&relaying);
        thread::Builder::new()
            .name("net-relay".into())
            .spawn(move || accepting.accept_all(&listener))?;
        Ok((Self(relaying), port))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.0.is_over.store(true, SeqCst);
        for (_, stream) in &*lock(&self.0.streams) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Relaying {
    fn accept_all(self: &Arc<Self>, listener: &TcpListener) {
        let mut number = 0;
        while !self.is_over.load(SeqCst) {
            let Ok((socket, from)) = listener.accept() else {
                // The usual end of a wait; anything else may go away.
                thread::sleep(Duration::from_millis(10));
                continue;
            };
            let is_full = self.open.load(SeqCst) >= RELAYED_MAX;
            if is_full || self.unproved.load(SeqCst) >= UNPROVED_MAX {
                tracing::warn!(%from, "refused to pass a stream on: there are too many");
                continue;
            }
            number += 1;
            self.open.fetch_add(1, SeqCst);
            self.unproved.fetch_add(1, SeqCst);
            let relaying = Arc::clone(self);
            let started = thread::Builder::new().name("net-relay".into()).spawn(move || {
                if let Err(error) = relaying.pass_on(number, &socket) {
                    tracing::warn!(%from, %error, "a stream is not passed on any more");
                }
                lock(&relaying.streams).retain(|(of, _)| *of != number);
                relaying.open.fetch_sub(1, SeqCst);
            });
            if started.is_err() {
                self.open.fetch_sub(1, SeqCst);
                self.unproved.fetch_sub(1, SeqCst);
            }
        }
    }

    fn pass_on(self: &Arc<Self>, number: usize, here: &TcpStream) -> io::Result<()> {
        let admitted = self.admitted(here);
        self.unproved.fetch_sub(1, SeqCst);
        let port = admitted?;
        let there = self.connect(port)?;
        tcp::accepted(here, &self.tuning)?;
        for stream in [here, &there] {
            tcp::take_little_ahead(stream);
        }
        {
            let mut streams = lock(&self.streams);
            streams.extend([(number, here.try_clone()?), (number, there.try_clone()?)]);
        }
        if self.is_over.load(SeqCst) {
            return Ok(());
        }
        let [from, to] = [there.try_clone()?, here.try_clone()?];
        let back = thread::Builder::new()
            .name("net-relay".into())
            .spawn(move || forward_all(&from, &to))?;
        forward_all(here, &there);
        let _ = back.join();
        Ok(())
    }

    /// The port that the preface names.
    fn admitted(&self, socket: &TcpStream) -> io::Result<u16> {
        let refused = |why| io::Error::new(io::ErrorKind::PermissionDenied, why);
        let preface: [u8; PREFACE_BYTES] = read_within(socket, PREFACE_WITHIN)?;
        let (magic, rest) = preface.split_at(MAGIC.len());
        let (token, port) = rest.split_at(self.order.token.len());
        // Values of this type are compared in constant time.
        let is_known = blake3::hash(token) == blake3::hash(&self.order.token);
        if magic != MAGIC || !is_known {
            return Err(refused("it does not know the token"));
        }
        let port = u16::from_le_bytes([port[0], port[1]]);
        match self.order.target_ports {
            (0, _) if port >= 1024 => Ok(port),
            (first, last) if first > 0 && (first..=last).contains(&port) => Ok(port),
            _ => Err(refused("the port is not one of data streams")),
        }
    }

    /// Connects to whatever address accepts first.
    fn connect(self: &Arc<Self>, port: u16) -> io::Result<TcpStream> {
        let known = lock(&self.accepts).filter(|known| known.port() == port);
        if let Some(stream) = known.and_then(|known| self.try_address(known).ok()) {
            return Ok(stream);
        }
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for target in &self.order.targets {
            let found = (target.as_str(), port).to_socket_addrs().into_iter().flatten();
            let new = found.filter(|found| !addresses.contains(found));
            addresses.extend(new.collect::<Vec<_>>());
        }
        addresses.truncate(TARGETS_MAX);
        let (sender, opened) = mpsc::channel();
        for address in addresses {
            let (relaying, sender) = (Arc::clone(self), sender.clone());
            // Without a thread it is not tried.
            let _ = thread::Builder::new().name("net-relay".into()).spawn(move || {
                // Another one may have been faster.
                let _ = sender.send((address, relaying.try_address(address)));
            });
        }
        drop(sender);
        let mut failed = io::Error::other("the address of the next host is not known");
        for (address, result) in opened {
            match result {
                Ok(stream) => {
                    *lock(&self.accepts) = Some(address);
                    return Ok(stream);
                }
                Err(error) => failed = io::Error::new(error.kind(), format!("{address}: {error}")),
            }
        }
        Err(failed)
    }

    fn try_address(&self, address: SocketAddr) -> io::Result<TcpStream> {
        tcp::connect(address, &self.tuning, CONNECT_WITHIN)
    }
}

/// Reads so many bytes, however slowly they come, within this time.
fn read_within<const COUNT: usize>(
    mut socket: &TcpStream,
    within: Duration,
) -> io::Result<[u8; COUNT]> {
    let end = Instant::now() + within;
    let mut bytes = [0; COUNT];
    let mut filled = 0;
    while filled < COUNT {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        match socket.read(&mut bytes[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    socket.set_read_timeout(None)?;
    Ok(bytes)
}

/// Passes on one direction, and its end.
fn forward_all(from: &TcpStream, to: &TcpStream) {
    let passed = tcp::forward(from, to);
    let how = if passed.is_ok() { Shutdown::Write } else { Shutdown::Both };
    // It may have ended already.
    let _ = to.shutdown(how);
    if passed.is_err() {
        let _ = from.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A host that sends back whatever comes, and its port.
    fn echo() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let socket = socket.unwrap();
                std::thread::spawn(move || io::copy(&mut &socket, &mut &socket));
            }
        });
        port
    }

    fn relay(token: u8, target_ports: (u16, u16)) -> (Relay, u16) {
        let targets = vec!["no.such.host.invalid".to_owned(), "127.0.0.1".to_owned()];
        let order = RelayOrder {
            token: [token; 32],
            targets,
            target_ports,
            ports: (0, 0),
            congestion: None,
            buffer_bytes: None,
        };
        Relay::start(order).unwrap()
    }

    fn connect(port: u16, begin: &[u8]) -> TcpStream {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        socket.write_all(begin).unwrap();
        socket
    }

    /// Sends bytes, and whether they come back.
    fn comes_back(mut socket: TcpStream) -> bool {
        let sent: Vec<u8> = (0..3_000_000u32).map(|at| (at / 5) as u8).collect();
        let mut writer = socket.try_clone().unwrap();
        let content = sent.clone();
        let writing = std::thread::spawn(move || {
            let _ = writer.write_all(&content);
            let _ = writer.shutdown(Shutdown::Write);
        });
        let mut got = Vec::new();
        let read = socket.read_to_end(&mut got);
        writing.join().unwrap();
        read.is_ok() && got == sent
    }

    #[test]
    fn bytes_pass_with_the_token_and_to_the_ports_of_the_order_only() {
        let port = echo();
        let (_relay, at) = relay(1, (port, port));
        assert!(comes_back(connect(at, &preface(&[1; 32], port))));
        for wrong in [
            preface(&[2; 32], port),
            preface(&[1; 32], port - 1),
            preface(&[1; 32], 22),
            b"GET / HTTP/1.0\r\n\r\nand something so that it is long enough".to_vec(),
        ] {
            assert!(!comes_back(connect(at, &wrong)), "{wrong:?}");
        }
        assert!(comes_back(connect(at, &preface(&[1; 32], port))));
        let (_any, at) = relay(1, (0, 0));
        assert!(comes_back(connect(at, &preface(&[1; 32], port))));
        assert!(!comes_back(connect(at, &preface(&[1; 32], 22))), "a port of the system");
    }

    #[test]
    fn relays_follow_each_other() {
        let port = echo();
        let (_second, between) = relay(2, (port, port));
        let (_first, at) = relay(1, (between, between));
        let relays = vec![
            RelayHop { token: [1; 32], next_port: Some(between) },
            RelayHop { token: [2; 32], next_port: None },
        ];
        let way = RelayedWay { addresses: Vec::new(), port: at, relays };
        assert!(comes_back(connect(at, &prefaces(&way, port))));
    }

    #[test]
    fn what_it_passes_on_ends_with_it() {
        let port = echo();
        let (relay, at) = relay(1, (port, port));
        let mut socket = connect(at, &preface(&[1; 32], port));
        socket.write_all(b"words").unwrap();
        let mut words = [0; 5];
        socket.read_exact(&mut words).unwrap();
        drop(relay);
        assert!(matches!(socket.read(&mut words), Ok(0) | Err(_)));
    }
}
