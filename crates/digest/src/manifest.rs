//! Manifests: what entries a tree has, with their metadata and digests. `docs/manifest.md` describes every byte.
//!
//! A manifest is a stream of *blocks*, each with a check of its own, so that what was cut off by a crash can be
//! read up to its last complete block. The last block says that nothing is missing, and has a digest of all.
use dmover_model::{
    Body, Content, Digest, EntryKind, HashType, NameError, Record, Timestamp, TreePath,
};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read};

/// The first bytes: no text file has them, and a transfer that changes line ends shows.
pub const MAGIC: [u8; 8] = *b"\x89DMM\r\n\x1a\n";
/// The version that this program writes.
pub const VERSION: u16 = 1;
/// A block is ended when it has so many bytes.
const BLOCK_BYTES: usize = 64 << 10;
/// No block has more: a record with a million pieces of 64 bytes.
const BLOCK_MAX: u32 = 128 << 20;

/// What a manifest is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The program that wrote it, with its version.
    pub program: String,
    /// The job that it was written by.
    pub job: String,
    /// The directory that paths are below, absolute.
    #[serde(with = "serde_bytes")]
    pub base: Vec<u8>,
    /// The function that made the digests.
    pub hash: Option<HashType>,
    /// When it was begun.
    pub begun: Timestamp,
}

/// A record as it is written: bytes that its path has in common with the one before it in its block, and the rest.
#[derive(Serialize, Deserialize)]
struct Written<'a> {
    shared: u32,
    #[serde(with = "serde_bytes")]
    rest: &'a [u8],
    body: Body,
}

/// The last block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Number of records.
    pub records: u64,
    /// The job that wrote it ended well, so that every entry is in it.
    pub complete: bool,
    /// BLAKE3 of every byte before this block.
    pub digest: Digest,
}

/// Why a manifest cannot be read, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Something else.
    #[error("not a dmover manifest")]
    Foreign,
    /// A newer one.
    #[error("a manifest of version {0}; this dmover reads version {VERSION}")]
    Version(u16),
    /// It ends in the middle.
    #[error("truncated after {records} records, at byte {offset}")]
    Truncated {
        /// Records before the cut.
        records: u64,
        /// The first byte that belongs to nothing complete.
        offset: u64,
    },
    /// It was changed.
    #[error("damaged at byte {offset} (after {records} records): {what}")]
    Damaged {
        /// Records before the damage.
        records: u64,
        /// Where the block begins.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// A path that leads out of the tree.
    #[error("record {record} names '{path}': {error}")]
    Escaping {
        /// Its number, from 1.
        record: u64,
        /// The path.
        path: String,
        /// What is wrong with it.
        error: NameError,
    },
    /// It could not be read.
    #[error("read error: {0}")]
    Read(#[from] std::io::Error),
}

/// Kinds of blocks.
const HEADER: u8 = b'H';
const RECORDS: u8 = b'R';
const END: u8 = b'E';

/// Makes the bytes of a manifest.
#[derive(Debug)]
pub struct Writer {
    /// Blocks that are complete.
    out: Vec<u8>,
    all: blake3::Hasher,
    block: Vec<u8>,
    last: Vec<u8>,
    records: u64,
}

impl Writer {
    /// A manifest without records yet.
    pub fn new(header: &Header) -> Self {
        let mut writer = Self {
            out: Vec::new(),
            all: blake3::Hasher::new(),
            block: Vec::new(),
            last: Vec::new(),
            records: 0,
        };
        let start = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        writer.put(&start);
        writer.put_block(HEADER, &encode(header));
        writer
    }

    /// Adds an entry.
    pub fn push(&mut self, record: &Record) {
        let path = record.path.as_bytes();
        let shared = path.iter().zip(&self.last).take_while(|(a, b)| a == b).count();
        let written =
            Written { shared: shared as u32, rest: &path[shared..], body: record.body.clone() };
        self.block.extend_from_slice(&encode(&written));
        self.last.clear();
        self.last.extend_from_slice(path);
        self.records += 1;
        if self.block.len() >= BLOCK_BYTES {
            self.end_block();
        }
    }

    fn end_block(&mut self) {
        if !self.block.is_empty() {
            let block = std::mem::take(&mut self.block);
            self.put_block(RECORDS, &block);
        }
        self.last.clear();
    }

    fn put_block(&mut self, kind: u8, payload: &[u8]) {
        let length = (payload.len() as u32).to_le_bytes();
        let check = check_of(kind, length, payload);
        let head = [&[kind][..], &length, &check.to_le_bytes()].concat();
        self.put(&head);
        self.put(payload);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.all.update(bytes);
        self.out.extend_from_slice(bytes);
    }

    /// Blocks that were completed since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// The rest, of what has no end that could be told: it is read as cut off.
    pub fn break_off(mut self) -> Vec<u8> {
        self.end_block();
        self.out
    }

    /// The rest. `complete`: every entry of the tree is in it.
    pub fn finish(mut self, complete: bool) -> Vec<u8> {
        self.end_block();
        let digest = crate::value::digest_of(self.all.finalize().as_bytes());
        let ending = Ending { records: self.records, complete, digest };
        self.put_block(END, &encode(&ending));
        self.out
    }
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain values can be encoded")
}

fn check_of(kind: u8, length: [u8; 4], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&[kind]), &length), payload)
}

/// Reads a manifest record by record.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    all: blake3::Hasher,
    offset: u64,
    block: Vec<u8>,
    /// Where the present block begins, and how much of it was used.
    began: u64,
    used: usize,
    last: Vec<u8>,
    records: u64,
    ending: Option<Ending>,
}

impl<R: Read> Reader<R> {
    /// Reads up to the first record.
    pub fn new(input: R) -> Result<(Self, Header), ManifestError> {
        let mut reader = Self {
            input,
            all: blake3::Hasher::new(),
            offset: 0,
            block: Vec::new(),
            began: 0,
            used: 0,
            last: Vec::new(),
            records: 0,
            ending: None,
        };
        let mut start = [0; MAGIC.len() + 2];
        match reader.fill(&mut start) {
            Err(ManifestError::Truncated { .. }) => return Err(ManifestError::Foreign),
            other => other?,
        }
        if start[..MAGIC.len()] != MAGIC {
            return Err(ManifestError::Foreign);
        }
        let version = u16::from_le_bytes([start[MAGIC.len()], start[MAGIC.len() + 1]]);
        if version != VERSION {
            return Err(ManifestError::Version(version));
        }
        reader.all.update(&start);
        let kind = reader.next_block()?;
        if kind != HEADER {
            return Err(reader.damaged("the first block is not a header"));
        }
        let header = postcard::from_bytes(&reader.block)
            .map_err(|error| reader.damaged(format!("invalid header: {error}")))?;
        reader.block.clear();
        reader.used = 0;
        Ok((reader, header))
    }

    /// The next record; `None` once the manifest has ended as it should.
    pub fn next_record(&mut self) -> Result<Option<Record>, ManifestError> {
        while self.used == self.block.len() {
            if self.ending.is_some() {
                return Ok(None);
            }
            let before = self.all.clone();
            match self.next_block()? {
                RECORDS if !self.block.is_empty() => self.last.clear(),
                END => {
                    self.end(&before)?;
                    return Ok(None);
                }
                kind => {
                    return Err(
                        self.damaged(format!("unknown block type '{}'", kind.escape_ascii()))
                    );
                }
            }
        }
        let block = &self.block[self.used..];
        let (written, rest) = postcard::take_from_bytes::<Written<'_>>(block)
            .map_err(|error| self.damaged(format!("invalid record: {error}")))?;
        let shared = written.shared as usize;
        if shared > self.last.len() {
            return Err(
                self.damaged("a path shares more bytes with the previous path than that path has")
            );
        }
        let path = [&self.last[..shared], written.rest].concat();
        let body = written.body;
        self.used = self.block.len() - rest.len();
        self.records += 1;
        check_content(&body).map_err(|what| self.damaged(what))?;
        self.last.clone_from(&path);
        let path = TreePath::new(path.clone()).map_err(|error| ManifestError::Escaping {
            record: self.records,
            path: path.escape_ascii().to_string(),
            error,
        })?;
        Ok(Some(Record { path, body }))
    }

    /// How the manifest ended, once its end was reached.
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    fn end(&mut self, before: &blake3::Hasher) -> Result<(), ManifestError> {
        let ending: Ending = postcard::from_bytes(&self.block)
            .map_err(|error| self.damaged(format!("invalid end block: {error}")))?;
        self.block.clear();
        self.used = 0;
        if ending.records != self.records {
            return Err(self.damaged(format!("the end block counts {} records", ending.records)));
        }
        if ending.digest.as_bytes() != before.finalize().as_bytes() {
            return Err(self.damaged("the digest in the end block does not match the manifest"));
        }
        let mut more = [0];
        if self.read_some(&mut more)? > 0 {
            return Err(self.damaged("data follows the end block"));
        }
        self.ending = Some(ending);
        Ok(())
    }

    /// Reads the next block and answers its kind.
    fn next_block(&mut self) -> Result<u8, ManifestError> {
        self.began = self.offset;
        self.used = 0;
        let mut head = [0; 9];
        self.fill(&mut head)?;
        let kind = head[0];
        let length: [u8; 4] = [head[1], head[2], head[3], head[4]];
        let check = u32::from_le_bytes([head[5], head[6], head[7], head[8]]);
        let bytes = u32::from_le_bytes(length);
        if bytes > BLOCK_MAX {
            return Err(self.damaged("a block is larger than the format allows"));
        }
        // Damage must not make us ask for memory that nothing fills.
        self.block.clear();
        let read = self.input.by_ref().take(bytes.into()).read_to_end(&mut self.block)?;
        self.offset += read as u64;
        if read < bytes as usize {
            return Err(self.truncated());
        }
        if check_of(kind, length, &self.block) != check {
            return Err(self.damaged("the checksum of a block does not match"));
        }
        self.all.update(&head).update(&self.block);
        Ok(kind)
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), ManifestError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read_some(&mut buffer[filled..])? {
                0 => return Err(self.truncated()),
                read => filled += read,
            }
        }
        Ok(())
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize, ManifestError> {
        loop {
            match self.input.read(buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
                Ok(read) => {
                    self.offset += read as u64;
                    return Ok(read);
                }
            }
        }
    }

    fn truncated(&self) -> ManifestError {
        ManifestError::Truncated { records: self.records, offset: self.began }
    }

    fn damaged(&self, what: impl Into<String>) -> ManifestError {
        ManifestError::Damaged { records: self.records, offset: self.began, what: what.into() }
    }
}

/// What a digest says of itself has to fit together.
fn check_content(body: &Body) -> Result<(), &'static str> {
    let Some(Content { shape, digest, pieces }) = &body.content else { return Ok(()) };
    let bytes = shape.hash().digest_bytes();
    if body.kind != EntryKind::File || shape.length() != body.size {
        return Err("a digest is for another file size");
    }
    if std::iter::once(digest).chain(pieces).any(|digest| digest.as_bytes().len() != bytes) {
        return Err("a digest has the wrong length");
    }
    if !pieces.is_empty() && crate::Fold::of(shape, pieces).as_ref() != Some(digest) {
        return Err("the digests of the pieces do not produce the digest of the file");
    }
    Ok(())
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
