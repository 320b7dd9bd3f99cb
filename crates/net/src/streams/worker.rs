//! The two threads of a stream: one sends, the other one receives.
use dmover_schedule::thread;
use std::io::{self, BufReader, IoSlice, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::chunk::{Header, Kind, Malformed};
use super::shared::{End, Lost, Shared, Stream};
use crate::vectored;

/// Chunks are read past the buffer.
const BUFFER_BYTES: usize = 32 << 10;

/// Starts both threads.
pub(super) fn start(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    input: Box<dyn Read + Send>,
    output: Box<dyn Write + Send>,
) -> io::Result<()> {
    let (its, pool) = (Arc::clone(stream), Arc::clone(shared));
    thread::Builder::new().name("net-send".into()).spawn(move || {
        if let Err(error) = send_all(&pool, &its, output) {
            pool.lose(&its, &lost(&error));
        }
    })?;
    let (its, pool) = (Arc::clone(stream), Arc::clone(shared));
    thread::Builder::new().name("net-receive".into()).spawn(move || {
        let how = match receive_all(&pool, &its, input) {
            Ok(()) => Lost::Ended,
            Err(error) => lost(&error),
        };
        pool.lose(&its, &how);
    })?;
    Ok(())
}

/// What an error says about the other side.
fn lost(error: &io::Error) -> Lost {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Lost::Ended,
        io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted => Lost::Reset,
        _ => Lost::Failed(error.to_string()),
    }
}

fn send_all(
    shared: &Shared,
    stream: &Arc<Stream>,
    mut output: Box<dyn Write + Send>,
) -> io::Result<()> {
    while let Some(work) = shared.next_work(stream) {
        if let Some(number) = work.received {
            let header = Header { kind: Kind::Received, length: 0, number };
            output.write_all(&header.encode())?;
        }
        if let Some(number) = work.wanted {
            let header = Header { kind: Kind::Wanted, length: 0, number };
            output.write_all(&header.encode())?;
        }
        for chunk in work.chunks {
            let length = chunk.bytes.len();
            let header = Header { kind: Kind::Data, length, number: chunk.number }.encode();
            let mut parts = [IoSlice::new(&header), IoSlice::new(&chunk.bytes)];
            vectored::write_all(&mut output, &mut parts)?;
        }
        output.flush()?;
    }
    Ok(())
}

/// Notes when something was heard, also inside a chunk.
struct Heard<'a> {
    input: Box<dyn Read + Send>,
    shared: &'a Shared,
    stream: &'a Stream,
}

impl Read for Heard<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        let now = self.shared.now_ms();
        self.stream.heard_ms.store(now, Relaxed);
        self.shared.heard_ms.store(now, Relaxed);
        Ok(read)
    }
}

/// Receives until the stream ends, or the pool.
pub(super) fn receive_all(
    shared: &Shared,
    stream: &Stream,
    input: Box<dyn Read + Send>,
) -> io::Result<()> {
    let mut input = BufReader::with_capacity(BUFFER_BYTES, Heard { input, shared, stream });
    loop {
        let header = match Header::read(&mut input) {
            Ok(read) => read?,
            Err(Malformed) => {
                shared.end(End::Violation("a chunk has no valid header"));
                return Ok(());
            }
        };
        let Some(header) = header else { return Ok(()) };
        match header.kind {
            Kind::Received => shared.has_received(header.number),
            Kind::Wanted => shared.want(header.number),
            Kind::Data => {
                let mut bytes = shared.buffer(header.length);
                input.read_exact(&mut bytes)?;
                shared.came(header.number, bytes);
            }
        }
        if shared.over().is_some() {
            return Ok(());
        }
    }
}
