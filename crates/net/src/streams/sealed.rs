//! A stream whose bytes can be read by others, but not changed, dropped, repeated or put in another order.
//!
//! A record is its length (4 bytes, the least significant first), the bytes, and the BLAKE3 hash of both and of the record's
//! number in the stream (8 bytes), keyed with a key from the TLS handshake.
use std::io::{self, IoSlice, Read, Write};

use crate::vectored;

/// The length of a key.
pub(super) const KEY_BYTES: usize = 32;
/// The bytes of a record.
pub(super) const RECORD_MAX: usize = 256 << 10;
pub(super) const HASH_BYTES: usize = 32;

fn code(key: &[u8; KEY_BYTES], number: u64, record: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&number.to_le_bytes());
    hasher.update(&(record.len() as u32).to_le_bytes());
    hasher.update(record);
    hasher.finalize()
}

/// Writes records.
pub(super) struct Writer<W> {
    output: W,
    key: [u8; KEY_BYTES],
    number: u64,
    record: Vec<u8>,
}

impl<W: Write> Writer<W> {
    pub fn new(output: W, key: [u8; KEY_BYTES]) -> Self {
        Self { output, key, number: 0, record: Vec::new() }
    }

    /// What was written.
    #[cfg(any(test, fuzzing))]
    pub fn into_output(self) -> W {
        self.output
    }
}

impl<W: Write> Write for Writer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = RECORD_MAX - self.record.len();
        if room == 0 {
            self.flush()?;
        }
        let now = bytes.len().min(RECORD_MAX - self.record.len());
        self.record.extend_from_slice(&bytes[..now]);
        Ok(now)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.record.is_empty() {
            return Ok(());
        }
        let length = (self.record.len() as u32).to_le_bytes();
        let code = code(&self.key, self.number, &self.record);
        self.number += 1;
        let mut parts = [&length[..], &self.record, code.as_bytes()].map(IoSlice::new);
        vectored::write_all(&mut self.output, &mut parts)?;
        self.record.clear();
        self.output.flush()
    }
}

/// Reads records. Nothing of a record is given on before its code was checked.
pub(super) struct Reader<R> {
    input: R,
    key: [u8; KEY_BYTES],
    number: u64,
    record: Vec<u8>,
    taken: usize,
    is_broken: bool,
}

impl<R: Read> Reader<R> {
    pub fn new(input: R, key: [u8; KEY_BYTES]) -> Self {
        Self { input, key, number: 0, record: Vec::new(), taken: 0, is_broken: false }
    }

    /// The memory that it has.
    #[cfg(any(test, fuzzing))]
    pub fn memory(&self) -> usize {
        self.record.capacity()
    }

    fn next(&mut self) -> io::Result<()> {
        if self.is_broken {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let read = self.read_record();
        // Whoever reads again after an error gets neither what was not checked, nor what follows it.
        if read.is_err() {
            self.is_broken = true;
            self.record.clear();
        }
        self.taken = 0;
        read
    }

    fn read_record(&mut self) -> io::Result<()> {
        let mut length = [0; 4];
        self.input.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if !(1..=RECORD_MAX).contains(&length) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.record.resize(length, 0);
        self.input.read_exact(&mut self.record)?;
        let mut shown = [0; HASH_BYTES];
        self.input.read_exact(&mut shown)?;
        // Compared in constant time.
        if code(&self.key, self.number, &self.record) != blake3::Hash::from_bytes(shown) {
            let message = "bytes were changed on the way";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        self.number += 1;
        Ok(())
    }
}

impl<R: Read> Read for Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.record.len() {
            self.next()?;
        }
        let rest = &self.record[self.taken..];
        let now = rest.len().min(buffer.len());
        buffer[..now].copy_from_slice(&rest[..now]);
        self.taken += now;
        Ok(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; KEY_BYTES] = [7; KEY_BYTES];

    fn records(parts: &[&[u8]]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), KEY);
        for part in parts {
            writer.write_all(part).expect("memory");
            writer.flush().expect("memory");
        }
        writer.into_output()
    }

    fn read(bytes: &[u8], length: usize) -> io::Result<Vec<u8>> {
        let mut read = vec![0; length];
        Reader::new(bytes, KEY).read_exact(&mut read)?;
        Ok(read)
    }

    #[test]
    fn what_is_written_is_read() {
        let long = vec![3; RECORD_MAX + 5];
        let bytes = records(&[b"one", b"two", &long]);
        let read = read(&bytes, 6 + long.len()).expect("whole");
        assert_eq!(read, [b"onetwo", &long[..]].concat());
    }

    #[test]
    fn a_bit_that_changes_is_noticed_wherever_it_is() {
        let good = records(&[b"one", b"two"]);
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bytes = good.clone();
                bytes[at] ^= 1 << bit;
                assert!(read(&bytes, 6).is_err(), "{at} {bit}");
            }
        }
    }

    #[test]
    fn a_read_after_an_error_gives_nothing() {
        let good = records(&[b"one", b"two"]);
        let (first, second) = good.split_at(good.len() / 2);
        let mut strange = records(&[b"longer"]);
        strange[4] ^= 1;
        // After the one that is refused comes one with a code that is right.
        let bytes = [first, &strange, second].concat();
        let mut reader = Reader::new(&bytes[..], KEY);
        let mut read = [0; 10];
        assert_eq!(reader.read(&mut read).expect("whole"), 3);
        for _ in 0..4 {
            let error = reader.read(&mut read).expect_err("it was changed");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn records_cannot_be_dropped_repeated_or_exchanged() {
        let both = records(&[b"one", b"two"]);
        let (first, second) = both.split_at(both.len() / 2);
        assert!(read(second, 3).is_err());
        assert!(read(&[first, first].concat(), 6).is_err());
        assert!(read(&[second, first].concat(), 6).is_err());
        assert!(read(&[first, second].concat(), 6).is_ok());
    }
}
