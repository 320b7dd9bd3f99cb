//! Handshakes: a side goes on only with the one whose certificate it has, and with the same keys.
use dmover_schedule::sync::Mutex;
use dmover_wire::streams::Protection;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::changes::Changes;
use crate::streams::encrypted;
use crate::streams::handshake::{Opening, Socket, keys, words};
use crate::streams::identity::Identity;
use crate::tls;

/// Nothing here waits.
const WITHIN: Duration = Duration::from_mins(10);
/// What follows a handshake at once.
const AFTER: &[u8] = b"after the handshake";
/// Longer than a record of TLS.
const CONTENT_BYTES: usize = 20_000;

/// Two sides of a connection, and two that do not belong to it.
struct Sides {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    foreign_client: Arc<ClientConfig>,
    foreign_server: Arc<ServerConfig>,
}

static SIDES: LazyLock<Sides> = LazyLock::new(|| {
    let make = || Identity::make().expect("random numbers");
    let (client, server) = (make(), make());
    let (of_client, of_server) = (client.certificate(), server.certificate());
    Sides {
        foreign_client: make().client(of_server.clone()).expect("certificate"),
        foreign_server: make().server(of_client.clone()).expect("certificate"),
        client: client.client(of_server).expect("certificate"),
        server: server.server(of_client).expect("certificate"),
    }
});

fn client(config: &Arc<ClientConfig>) -> Connection {
    let client = ClientConnection::new(Arc::clone(config), tls::name());
    client.expect("a configuration").into()
}

fn server(config: &Arc<ServerConfig>) -> Connection {
    ServerConnection::new(Arc::clone(config)).expect("a configuration").into()
}

/// Bytes of somebody who knows nothing.
///
/// # Panics
/// They are accepted.
pub fn strange_handshake(bytes: &[u8]) {
    for connects in [true, false] {
        let tls = if connects { client(&SIDES.client) } else { server(&SIDES.server) };
        let stranger = Stranger { sends: bytes };
        let proved = Opening::new(stranger, tls, WITHIN).prove(words(Protection::Full), connects);
        assert!(proved.is_err(), "a stranger is accepted");
    }
}

/// A handshake with the other side, or with a foreign one, and changes of what it sends: one byte that chooses, one for the
/// length of its writes, and the changes. Without changes everything is as it was sent.
///
/// # Panics
/// A foreign side is accepted, or other bytes than those that were sent.
pub fn changed_handshake(bytes: &[u8]) {
    let [choice, step, changes @ ..] = bytes else { return };
    let protections = [Protection::Full, Protection::Integrity, Protection::None];
    let protection = protections[usize::from(choice / 4 % 3)];
    let (connects, is_foreign) = (choice & 1 == 1, choice & 2 == 2);
    let own = if connects { client(&SIDES.client) } else { server(&SIDES.server) };
    let other = match (connects, is_foreign) {
        (true, false) => server(&SIDES.server),
        (true, true) => server(&SIDES.foreign_server),
        (false, false) => client(&SIDES.client),
        (false, true) => client(&SIDES.foreign_client),
    };
    let changes = Changes(changes);
    let mut opening = Opening::new(Other::new(other, changes, protection), own, WITHIN);
    let proved = opening.prove(words(protection), connects);
    assert!(!(is_foreign && proved.is_ok()), "a foreign side is accepted");
    if proved.is_err() {
        let has_reason = is_foreign || opening.socket.is_changed;
        return assert!(has_reason, "an unchanged handshake fails: {proved:?}");
    }
    let Opening { socket: mut other, tls, .. } = opening;
    let [sends, receives] = keys(&tls, connects).expect("a handshake");
    let its = keys(&other.tls, !connects).expect("the other side has ended it, too");
    assert_eq!(its, [receives, sends], "the keys differ");
    match protection {
        Protection::Full => content(other, tls, usize::from(*step) * 100 + 1),
        Protection::Integrity | Protection::None => {
            // Nothing is read of what follows.
            if !other.is_changed {
                other.sends.make_contiguous();
                assert_eq!(other.sends.as_slices().0, AFTER);
            }
        }
    }
}

/// What comes after a handshake is a beginning of what was sent, and all of it unless it was changed.
fn content(mut other: Other<'_>, tls: Connection, step: usize) {
    let sent: Vec<u8> = (0..CONTENT_BYTES).map(|at| (at / 3) as u8).collect();
    for part in sent.chunks(step) {
        other.tls.writer().write_all(part).expect("memory");
        other.send();
    }
    let is_changed = other.is_changed;
    let mut input = encrypted::Input::new(other, Arc::new(Mutex::new(tls)));
    let (mut read, mut failures) = (Vec::new(), 0);
    let mut buffer = vec![0; 1 + step * 3];
    while failures < 3 {
        match input.read(&mut buffer) {
            Ok(0) | Err(_) => failures += 1,
            Ok(count) => read.extend(&buffer[..count]),
        }
    }
    assert!(sent.starts_with(&read), "not what was sent");
    assert!(is_changed || read == sent, "something is missing");
}

/// Sends some bytes and takes everything.
struct Stranger<'a> {
    sends: &'a [u8],
}

impl Read for Stranger<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.sends.read(buffer)
    }
}

impl Write for Stranger<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The other side, as a connection to it: what it sends is changed on the way.
struct Other<'a> {
    tls: Connection,
    changes: Changes<'a>,
    protection: Protection,
    has_named: bool,
    is_changed: bool,
    /// Bytes that it has sent.
    sent: usize,
    /// Those that were not read yet.
    sends: VecDeque<u8>,
}

impl<'a> Other<'a> {
    fn new(mut tls: Connection, changes: Changes<'a>, protection: Protection) -> Self {
        tls.set_buffer_limit(None);
        let (has_named, is_changed) = (false, false);
        Self { tls, changes, protection, has_named, is_changed, sent: 0, sends: VecDeque::new() }
    }

    fn send(&mut self) {
        let names = !self.tls.is_handshaking() && !self.has_named;
        if names {
            self.has_named = true;
            self.tls.writer().write_all(&words(self.protection)).expect("memory");
        }
        let mut new = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut new).expect("memory");
        }
        let changed = self.changes.apply(self.sent, &new);
        self.sent += new.len();
        self.is_changed |= changed != new;
        self.sends.extend(changed);
        if names && self.protection != Protection::Full {
            self.sends.extend(AFTER);
        }
    }
}

impl Read for Other<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.sends.is_empty() {
            self.send();
        }
        self.sends.read(buffer)
    }
}

impl Write for Other<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            // After an error it answers no more.
            if self.tls.read_tls(&mut rest).is_err() || self.tls.process_new_packets().is_err() {
                break;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Socket for Stranger<'_> {
    fn limit_reads(&self, _: Duration) -> io::Result<()> {
        Ok(())
    }

    fn limit_writes(&self, _: Duration) -> io::Result<()> {
        Ok(())
    }
}

impl Socket for Other<'_> {
    fn limit_reads(&self, _: Duration) -> io::Result<()> {
        Ok(())
    }

    fn limit_writes(&self, _: Duration) -> io::Result<()> {
        Ok(())
    }
}
