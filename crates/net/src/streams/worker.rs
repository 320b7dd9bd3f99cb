//! The two threads of a stream: one sends, the other one receives.
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use std::io::{self, BufReader, IoSlice, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use zstd::bulk::{Compressor, Decompressor};

use super::chunk::{CHUNK_MAX, Header, Kind, Malformed};
use super::packing::Packing;
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
    let mut packing = Packing::new(shared.compression);
    let mut compressor = None;
    while let Some(work) = shared.next_work(stream) {
        if let Some(number) = work.received {
            let header = Header { kind: Kind::Received, length: 0, number };
            output.write_all(&header.encode())?;
        }
        if let Some(number) = work.wanted {
            let header = Header { kind: Kind::Wanted, length: 0, number };
            output.write_all(&header.encode())?;
        }
        let length = work.chunks.iter().map(|chunk| chunk.bytes.len()).sum();
        let begin = Instant::now();
        let mut line = 0;
        let packs = length > 0 && packing.compresses(length);
        for chunk in work.chunks {
            let packed = if packs { packed(&mut compressor, &chunk.bytes)? } else { None };
            let (kind, bytes) = match &packed {
                Some(packed) => (Kind::Packed, packed),
                None => (Kind::Data, &*chunk.bytes),
            };
            let header = Header { kind, length: bytes.len(), number: chunk.number }.encode();
            let mut parts = [IoSlice::new(&header), IoSlice::new(bytes)];
            vectored::write_all(&mut output, &mut parts)?;
            shared.carried.add(chunk.bytes.len(), bytes.len());
            line += bytes.len();
        }
        output.flush()?;
        packing.sent(packs, (length, line), begin.elapsed());
    }
    Ok(())
}

/// The level of compression: the fastest one.
const LEVEL: i32 = 1;

/// A chunk in fewer bytes; `None`: it does not become shorter.
fn packed(
    compressor: &mut Option<Compressor<'static>>,
    bytes: &[u8],
) -> io::Result<Option<Vec<u8>>> {
    let compressor = match compressor {
        Some(compressor) => compressor,
        None => compressor.insert(Compressor::new(LEVEL)?),
    };
    // A little shorter is not worth the work at the other side.
    let mut packed = Vec::with_capacity(bytes.len() / 16 * 15);
    let length = compressor.compress_to_buffer(bytes, &mut packed);
    Ok(length.is_ok_and(|length| length > 0).then_some(packed))
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
    let (mut decompressor, mut packed) = (None, Vec::new());
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
                shared.carried.add(header.length, header.length);
                shared.came(header.number, bytes);
            }
            Kind::Packed => {
                packed.resize(header.length, 0);
                input.read_exact(&mut packed)?;
                let Some(bytes) = unpacked(&mut decompressor, &packed) else {
                    shared.end(End::Violation("a chunk cannot be decompressed"));
                    return Ok(());
                };
                shared.carried.add(bytes.len(), header.length);
                shared.came(header.number, bytes);
            }
        }
        if shared.over().is_some() {
            return Ok(());
        }
    }
}

/// The content of a compressed chunk; `None`: it is damaged, empty, or longer than a chunk may be.
fn unpacked(decompressor: &mut Option<Decompressor<'static>>, packed: &[u8]) -> Option<Vec<u8>> {
    let decompressor = match decompressor {
        Some(decompressor) => decompressor,
        None => decompressor.insert(Decompressor::new().ok()?),
    };
    let bytes = decompressor.decompress(packed, CHUNK_MAX).ok()?;
    (!bytes.is_empty()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_chunk_is_itself_again_and_what_is_too_long_is_refused() {
        let (mut compressor, mut decompressor) = (None, None);
        let chunk: Vec<u8> = (0..CHUNK_MAX).map(|at| (at / 100 % 7) as u8).collect();
        let short = packed(&mut compressor, &chunk).unwrap().expect("it becomes shorter");
        assert_eq!(unpacked(&mut decompressor, &short), Some(chunk));
        let long = zstd::bulk::compress(&vec![0; CHUNK_MAX + 1], 1).unwrap();
        assert_eq!(unpacked(&mut decompressor, &long), None);
        assert_eq!(unpacked(&mut decompressor, &zstd::bulk::compress(&[], 1).unwrap()), None);
        let noise: Vec<u8> =
            (0..5000u32).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_be_bytes()).collect();
        assert_eq!(packed(&mut compressor, &noise).unwrap(), None);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_bounded(bytes in proptest::collection::vec(any::<u8>(), 1..300)) {
            let mut decompressor = None;
            if let Some(content) = unpacked(&mut decompressor, &bytes) {
                prop_assert!(content.len() <= CHUNK_MAX);
            }
        }
    }
}
