//! A relay for the connections of a job that counts their bytes and stops everything at an exact one of them.
//!
//! While it is stopped no byte moves in any direction, so that a test does what it wants at a moment that a number names.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::faultfs::lock;

const BUFFER: usize = 16 << 10;
/// How long a client may take until it has said who it is.
const PRESENTING: Duration = Duration::from_secs(10);

/// Relays connections until its process ends.
#[derive(Clone, Debug, Default)]
pub struct Relay {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    meter: Mutex<Meter>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Meter {
    /// Counts the calls of [`Relay::arm`]; connections of earlier rounds flow freely.
    round: u64,
    passed: u64,
    stop_at: Option<u64>,
    stopped: bool,
    connections: Vec<Arc<Connection>>,
}

#[derive(Debug)]
struct Connection {
    round: u64,
    line: usize,
    ends: [TcpStream; 2],
    cut: AtomicBool,
}

/// Where the connections to one port go.
#[derive(Clone, Copy, Debug)]
enum Goal {
    Address(SocketAddr),
    /// Clients that present themselves with the same number meet.
    Meeting,
}

impl Relay {
    /// Relays to an address; answers the port of this host to connect to. `line`: what [`Self::cut`] calls it.
    ///
    /// # Errors
    /// No port to listen at.
    pub fn to(&self, address: SocketAddr, line: usize) -> Result<u16> {
        self.listen(Goal::Address(address), line)
    }

    /// Relays between two clients that send the same four bytes first, the near one before the far one.
    ///
    /// # Errors
    /// No port to listen at.
    pub fn meeting(&self, line: usize) -> Result<u16> {
        self.listen(Goal::Meeting, line)
    }

    fn listen(&self, goal: Goal, line: usize) -> Result<u16> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let relay = self.clone();
        std::thread::Builder::new().name("relay".into()).spawn(move || {
            let mut waiting = BTreeMap::new();
            for client in listener.incoming().map_while(Result::ok) {
                let Some(ends) = ends(goal, client, &mut waiting) else { continue };
                // Without a thread the connection ends at once, which a client sees.
                let _ = relay.join(ends, line);
            }
        })?;
        Ok(port)
    }

    fn join(&self, ends: [TcpStream; 2], line: usize) -> Result<()> {
        ends.iter().try_for_each(|end| end.set_nodelay(true))?;
        let mut meter = lock(&self.shared.meter);
        let (round, cut) = (meter.round, AtomicBool::new(false));
        let connection = Arc::new(Connection { round, line, ends, cut });
        meter.connections.push(Arc::clone(&connection));
        drop(meter);
        for from in [0, 1] {
            let (shared, connection) = (Arc::clone(&self.shared), Arc::clone(&connection));
            std::thread::Builder::new()
                .name("relay".into())
                .spawn(move || connection.relay(from, &shared))
                .context("a thread of the relay")?;
        }
        Ok(())
    }

    /// Begins to count, and stops everything when so many bytes have passed in both directions of all connections
    /// that begin from now on.
    pub fn arm(&self, stop_at: Option<u64>) {
        let mut meter = lock(&self.shared.meter);
        let round = meter.round + 1;
        *meter = Meter { round, stop_at, ..Meter::default() };
        self.shared.changed.notify_all();
    }

    /// How many bytes have passed since then.
    pub fn passed(&self) -> u64 {
        lock(&self.shared.meter).passed
    }

    /// Waits until everything is stopped; false if that takes longer.
    pub fn wait_stopped(&self, patience: Duration) -> bool {
        let meter = lock(&self.shared.meter);
        let waited = self.shared.changed.wait_timeout_while(meter, patience, |m| !m.stopped);
        waited.unwrap_or_else(PoisonError::into_inner).0.stopped
    }

    /// Has everything flow from now on.
    pub fn release(&self) {
        let mut meter = lock(&self.shared.meter);
        (meter.stop_at, meter.stopped) = (None, false);
        self.shared.changed.notify_all();
    }

    /// Ends the connections of one line, or of all. What was sent so far arrives.
    pub fn cut(&self, line: Option<usize>) {
        let meter = lock(&self.shared.meter);
        for connection in &meter.connections {
            if line.is_none_or(|line| connection.line == line) {
                connection.cut();
            }
        }
        self.shared.changed.notify_all();
    }
}

/// The two ends of a connection; none: the other one is still to come, or there is none.
fn ends(
    goal: Goal,
    mut client: TcpStream,
    waiting: &mut BTreeMap<[u8; 4], TcpStream>,
) -> Option<[TcpStream; 2]> {
    match goal {
        // A server that is down is a connection that ends at once.
        Goal::Address(address) => Some([client, TcpStream::connect(address).ok()?]),
        Goal::Meeting => {
            let mut number = [0; 4];
            client.set_read_timeout(Some(PRESENTING)).ok()?;
            client.read_exact(&mut number).ok()?;
            client.set_read_timeout(None).ok()?;
            match waiting.remove(&number) {
                Some(first) => Some([first, client]),
                None => {
                    waiting.insert(number, client);
                    None
                }
            }
        }
    }
}

impl Shared {
    /// Waits while everything is stopped.
    fn pass<'a>(&'a self, connection: &Connection) -> MutexGuard<'a, Meter> {
        let held = |meter: &mut Meter| meter.stopped && connection.is_held(meter);
        let waited = self.changed.wait_while(lock(&self.meter), held);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts bytes that have come; answers how many of them go before everything stops, if it has to.
    fn count(&self, connection: &Connection, read: usize) -> Option<usize> {
        let mut meter = self.pass(connection);
        if connection.round != meter.round {
            return None;
        }
        let before = meter.passed;
        let stop = meter.stop_at.filter(|at| before < *at && *at <= before + read as u64);
        meter.passed += read as u64;
        stop.map(|at| (at - before) as usize)
    }

    fn stop(&self, connection: &Connection) {
        let mut meter = lock(&self.meter);
        if connection.is_held(&meter) && meter.stop_at.is_some() {
            meter.stopped = true;
            self.changed.notify_all();
        }
        drop(meter);
        drop(self.pass(connection));
    }
}

impl Connection {
    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }

    fn is_held(&self, meter: &Meter) -> bool {
        self.round == meter.round && !self.is_cut()
    }

    fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        self.shut();
    }

    /// Peers that have ended are no error.
    fn shut(&self) {
        self.ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
    }

    fn relay(&self, from: usize, shared: &Shared) {
        let (mut reader, mut writer) = (&self.ends[from], &self.ends[1 - from]);
        let mut buffer = vec![0; BUFFER];
        let ended = loop {
            let Ok(read) = reader.read(&mut buffer) else { break false };
            if read == 0 {
                break true;
            }
            let first = shared.count(self, read);
            let (before, after) = buffer[..read].split_at(first.unwrap_or(read));
            if self.is_cut() || writer.write_all(before).is_err() {
                break false;
            }
            if first.is_some() {
                shared.stop(self);
                if self.is_cut() || writer.write_all(after).is_err() {
                    break false;
                }
            }
        };
        if ended && !self.is_cut() {
            // The other direction may have more to say.
            drop(writer.shutdown(Shutdown::Write));
        } else {
            self.shut();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests stop")]
    use super::*;

    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || {
                    let (mut from, mut to) = (&stream, &stream);
                    std::io::copy(&mut from, &mut to).ok();
                    to.shutdown(Shutdown::Write).ok();
                });
            }
        });
        address
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn it_stops_after_exactly_so_many_bytes_and_flows_again() {
        let relay = Relay::default();
        let port = relay.to(echo(), 0).unwrap();
        relay.arm(Some(100_007));
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let mut writer = client.try_clone().unwrap();
        let sent: Vec<u8> = (0..300_000_u32).map(|number| number as u8).collect();
        let copy = sent.clone();
        std::thread::spawn(move || {
            writer.write_all(&copy).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        assert!(relay.wait_stopped(LONG));
        let held = relay.passed();
        relay.release();
        // The rest of two buffers is counted and held.
        assert!((100_007..100_007 + 2 * BUFFER as u64).contains(&held), "{held}");
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        assert!(received == sent);
        assert_eq!(relay.passed(), 600_000);
    }

    #[test]
    fn a_cut_ends_both_ends_of_its_line_only() {
        let relay = Relay::default();
        let ports = [relay.meeting(0).unwrap(), relay.meeting(1).unwrap()];
        relay.arm(Some(10));
        let connect = |port: u16| {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            stream.write_all(b"same").unwrap();
            stream
        };
        let [mut one, mut other] = ports.map(|port| [connect(port), connect(port)]);
        one[0].write_all(&[7; 30]).unwrap();
        assert!(relay.wait_stopped(LONG));
        relay.cut(Some(0));
        relay.release();
        let mut received = Vec::new();
        one[1].read_to_end(&mut received).unwrap();
        assert_eq!(received, [7; 10]);
        assert!(matches!(one[0].read(&mut [0; 9]), Ok(0) | Err(_)));
        other[0].write_all(b"flows").unwrap();
        let mut flows = [0; 5];
        other[1].read_exact(&mut flows).unwrap();
        assert_eq!(&flows, b"flows");
    }
}
