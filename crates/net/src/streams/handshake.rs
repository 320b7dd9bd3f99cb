//! From a TCP connection to a stream of the pool: both sides prove who they are, and agree on what protects the bytes.
use dmover_schedule::time::Instant;
use dmover_wire::streams::Protection;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::encrypted;
use super::sealed::{self, KEY_BYTES};
use super::shared::Transport;
use crate::tls;

/// How long the other side may take for all of it.
pub(super) const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// What each side sends first, through TLS: the version, and what protects the bytes afterwards.
const WORDS: [u8; 7] = *b"stream\x01";
const WORDS_BYTES: usize = WORDS.len() + 1;
/// The header of a record of TLS, and the longest one (RFC 8446, section 5).
const RECORD_HEADER: usize = 5;
const RECORD_MAX: usize = (1 << 14) + 256;
/// What the keys of this protocol are derived for (RFC 8446, section 7.5).
const LABEL: &[u8] = b"EXPORTER-dmover-stream";

/// The side that connects.
pub(super) fn connect(
    socket: TcpStream,
    config: &Arc<ClientConfig>,
    protection: Protection,
    within: Duration,
) -> io::Result<Transport> {
    let tls = ClientConnection::new(Arc::clone(config), tls::name()).map_err(invalid)?;
    let mut opening = Opening::new(socket, tls.into(), within);
    opening.prove(words(protection), true)?;
    opening.finish(protection, true)
}

/// The side that accepts.
pub(super) fn accept(
    socket: TcpStream,
    config: &Arc<ServerConfig>,
    protection: Protection,
    within: Duration,
) -> io::Result<Transport> {
    let tls = ServerConnection::new(Arc::clone(config)).map_err(invalid)?;
    let mut opening = Opening::new(socket, tls.into(), within);
    opening.prove(words(protection), false)?;
    opening.finish(protection, false)
}

pub(super) fn words(protection: Protection) -> [u8; WORDS_BYTES] {
    let mut words = [0; WORDS_BYTES];
    words[..WORDS.len()].copy_from_slice(&WORDS);
    words[WORDS.len()] = match protection {
        Protection::Full => 0,
        Protection::Integrity => 1,
        Protection::None => 2,
    };
    words
}

pub(crate) fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// A connection whose sides do not know each other yet. Records are read one by one, so that nothing is read of what follows.
pub(crate) struct Opening<S> {
    pub socket: S,
    pub tls: Connection,
    end: Instant,
}

/// What a handshake needs of a connection.
pub(crate) trait Socket: Read + Write {
    /// How long the next read may take.
    fn limit_reads(&self, limit: Duration) -> io::Result<()>;
    /// How long the next write may take.
    fn limit_writes(&self, limit: Duration) -> io::Result<()>;
}

impl Socket for TcpStream {
    fn limit_reads(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))
    }

    fn limit_writes(&self, limit: Duration) -> io::Result<()> {
        self.set_write_timeout(Some(limit))
    }
}

impl<S: Socket> Opening<S> {
    pub fn new(socket: S, mut tls: Connection, within: Duration) -> Self {
        tls.set_buffer_limit(None);
        Self { socket, tls, end: Instant::now() + within }
    }

    /// Both sides prove who they are, and say what the connection is for. The side that connects says it first.
    pub fn prove(&mut self, words: [u8; WORDS_BYTES], connects: bool) -> io::Result<()> {
        self.greet()?;
        if connects {
            self.send(&words)?;
        }
        self.expect(words)?;
        if connects { Ok(()) } else { self.send(&words) }
    }

    /// The handshake of TLS.
    fn greet(&mut self) -> io::Result<()> {
        while self.tls.is_handshaking() {
            self.flush()?;
            if self.tls.is_handshaking() {
                self.receive()?;
            }
        }
        self.flush()
    }

    fn send(&mut self, words: &[u8]) -> io::Result<()> {
        self.tls.writer().write_all(words)?;
        self.flush()
    }

    fn expect(&mut self, wanted: [u8; WORDS_BYTES]) -> io::Result<()> {
        let mut words = [0; WORDS_BYTES];
        let mut filled = 0;
        while filled < words.len() {
            match self.tls.reader().read(&mut words[filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.receive()?,
                Err(error) => return Err(error),
            }
        }
        if words == wanted {
            return Ok(());
        }
        let message = "the other side wants another protection, or another version";
        Err(io::Error::new(io::ErrorKind::InvalidData, message))
    }

    fn flush(&mut self) -> io::Result<()> {
        let left = self.left()?;
        self.socket.limit_writes(left)?;
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket)?;
        }
        Ok(())
    }

    /// Reads one record.
    fn receive(&mut self) -> io::Result<()> {
        let mut record = vec![0; RECORD_HEADER];
        self.fill(&mut record)?;
        let length = usize::from(u16::from_be_bytes([record[3], record[4]]));
        if length > RECORD_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        record.resize(RECORD_HEADER + length, 0);
        self.fill(&mut record[RECORD_HEADER..])?;
        let mut rest = &record[..];
        while !rest.is_empty() {
            if self.tls.read_tls(&mut rest)? == 0 {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if let Err(error) = self.tls.process_new_packets() {
                // The other side learns why.
                let _ = self.flush();
                return Err(invalid(error));
            }
        }
        Ok(())
    }

    fn fill(&mut self, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            // A limit for each read would let somebody send a byte from time to time for ever.
            let left = self.left()?;
            self.socket.limit_reads(left)?;
            match self.socket.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => buffer = &mut buffer[read..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Opening<TcpStream> {
    /// The connection, without limits of time.
    pub fn opened(self) -> io::Result<(TcpStream, Connection)> {
        let Self { socket, tls, .. } = self;
        socket.set_read_timeout(None)?;
        socket.set_write_timeout(None)?;
        Ok((socket, tls))
    }

    fn finish(self, protection: Protection, connects: bool) -> io::Result<Transport> {
        let (socket, tls) = self.opened()?;
        let (closes, known) = (socket.try_clone()?, socket.try_clone()?);
        let close = Box::new(move || {
            let _ = closes.shutdown(Shutdown::Both);
        });
        let (input, output): (Box<dyn Read + Send>, Box<dyn Write + Send>) = match protection {
            Protection::Full => {
                let (input, output) = encrypted::halves(socket, tls)?;
                (Box::new(input), Box::new(output))
            }
            Protection::Integrity => {
                let [own, other] = keys(&tls, connects)?;
                let output = sealed::Writer::new(socket.try_clone()?, own);
                (Box::new(sealed::Reader::new(socket, other)), Box::new(output))
            }
            Protection::None => (Box::new(socket.try_clone()?), Box::new(Collected::new(socket))),
        };
        Ok(Transport { input, output, close, socket: Some(known), is_in_ssh: false })
    }
}

/// The keys for what this side sends, and for what it receives.
pub(super) fn keys(tls: &Connection, connects: bool) -> io::Result<[[u8; KEY_BYTES]; 2]> {
    let key =
        |of: &[u8]| tls.export_keying_material([0; KEY_BYTES], LABEL, Some(of)).map_err(invalid);
    let keys = [key(b"connects")?, key(b"accepts")?];
    let [first, second] = keys;
    Ok(if connects { keys } else { [second, first] })
}

/// Headers and content of short chunks leave together.
struct Collected {
    socket: TcpStream,
    bytes: Vec<u8>,
}

impl Collected {
    fn new(socket: TcpStream) -> Self {
        Self { socket, bytes: Vec::new() }
    }
}

impl Write for Collected {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[io::IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        Ok(parts.iter().map(|part| part.len()).sum())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.write_all(&self.bytes)?;
        self.bytes.clear();
        Ok(())
    }
}
