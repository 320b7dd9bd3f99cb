//! A stream in TLS: one thread reads, and another one writes.
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use rustls::Connection;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use super::handshake::invalid;

/// What is read from the socket at a time.
const READ_BYTES: usize = 64 << 10;
/// What is encrypted before it is sent.
const SENT_BYTES: usize = 64 << 10;

/// Both directions. The lock is not held while the socket is read or written: otherwise two sides that both send would wait
/// for each other.
pub(crate) fn halves(socket: TcpStream, tls: Connection) -> io::Result<(Input<TcpStream>, Output)> {
    let tls = Arc::new(Mutex::new(tls));
    let input = Input::new(socket.try_clone()?, Arc::clone(&tls));
    Ok((input, Output { socket, tls, raw: Vec::new() }))
}

/// What comes.
pub(crate) struct Input<R> {
    socket: R,
    tls: Arc<Mutex<Connection>>,
    /// What was read and not decrypted yet: from `begin` to `end`.
    raw: Vec<u8>,
    begin: usize,
    end: usize,
}

impl<R> Input<R> {
    pub fn new(socket: R, tls: Arc<Mutex<Connection>>) -> Self {
        Self { socket, tls, raw: vec![0; READ_BYTES], begin: 0, end: 0 }
    }
}

impl<R: Read> Read for Input<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut tls = lock(&self.tls);
            loop {
                match tls.reader().read(buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    result => return result,
                }
                let mut rest = &self.raw[self.begin..self.end];
                if rest.is_empty() {
                    break;
                }
                self.begin += tls.read_tls(&mut rest)?;
                tls.process_new_packets().map_err(invalid)?;
            }
            drop(tls);
            self.begin = 0;
            self.end = self.socket.read(&mut self.raw)?;
            if self.end == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// What is sent.
pub(crate) struct Output {
    socket: TcpStream,
    tls: Arc<Mutex<Connection>>,
    /// Encrypted, and not sent yet.
    raw: Vec<u8>,
}

impl Output {
    fn encrypt(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut tls = lock(&self.tls);
        for part in parts {
            tls.writer().write_all(part)?;
        }
        while tls.wants_write() {
            tls.write_tls(&mut self.raw)?;
        }
        Ok(())
    }

    fn send(&mut self) -> io::Result<()> {
        self.socket.write_all(&self.raw)?;
        self.raw.clear();
        Ok(())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.encrypt(parts)?;
        if self.raw.len() >= SENT_BYTES {
            self.send()?;
        }
        Ok(parts.iter().map(|part| part.len()).sum())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}
