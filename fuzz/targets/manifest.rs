//! Whatever a manifest contains: it is read without a fault, and what is read well is written and read again as it was.
#![no_main]
use dmover_digest::manifest::{Reader, Writer};
use libfuzzer_sys::fuzz_target;

/// Blocks have checks that no fuzzer guesses, so the input may come with the right ones.
fn with_checks(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(b"\x89DMM\r\n\x1a\n\x01\x00");
    let mut rest = bytes;
    while let Some((head, tail)) = rest.split_at_checked(3) {
        let length = usize::from(u16::from_le_bytes([head[1], head[2]])).min(tail.len());
        let (payload, tail) = tail.split_at(length);
        let size = (length as u32).to_le_bytes();
        let mut check = crc(0xffff_ffff, &head[..1]);
        check = crc(check, &size);
        check = crc(check, payload) ^ 0xffff_ffff;
        out.push(head[0]);
        out.extend_from_slice(&size);
        out.extend_from_slice(&check.to_le_bytes());
        out.extend_from_slice(payload);
        rest = tail;
    }
    out
}

/// CRC-32C, bit by bit.
fn crc(mut register: u32, bytes: &[u8]) -> u32 {
    for byte in bytes {
        register ^= u32::from(*byte);
        for _ in 0..8 {
            register = (register >> 1) ^ (0x82f6_3b78 & (register & 1).wrapping_neg());
        }
    }
    register
}

fn read(bytes: &[u8]) {
    let Ok((mut reader, header)) = Reader::new(bytes) else { return };
    let mut writer = Writer::new(&header);
    let mut records = Vec::new();
    while let Ok(Some(record)) = reader.next_record() {
        writer.push(&record);
        records.push(record);
    }
    let written = [writer.take(), writer.finish(true)].concat();
    let (mut again, same) = Reader::new(&written[..]).expect("what was written can be read");
    assert_eq!(same, header);
    for record in records {
        assert_eq!(again.next_record().expect("every record"), Some(record));
    }
    assert_eq!(again.next_record().expect("the end"), None);
}

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    read(&with_checks(bytes));
});
