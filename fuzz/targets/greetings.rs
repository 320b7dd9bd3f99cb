//! Whatever another host greets with: it is read without a fault and nothing after it, and a greeting is the same when it is
//! written and read again.
#![no_main]
use dmover_net::hello::Hello;
use dmover_wire::streams::StreamAnswer;
use libfuzzer_sys::fuzz_target;
use std::io::Read;

/// The longest greeting, and more than is kept of other text.
const GREETING_MAX: usize = 16 + (64 << 10);
/// Longer fields are cut when they are written. Bytes that are no text become three each.
const WHOLE_MAX: usize = 2048;
const FIXED: &[u8] = b"\x89dmover\n\x01\0\x01\0";
/// The fields with an offer of data streams, and with the answer.
const OFFER: u16 = 12;
const ANSWER: u16 = 13;

/// Counts what is read.
struct Counted<'a> {
    rest: &'a [u8],
    count: usize,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.rest.read(buffer)?;
        self.count += read;
        Ok(read)
    }
}

fn read(bytes: &[u8]) -> Option<Hello> {
    let mut input = Counted { rest: bytes, count: 0 };
    let hello = Hello::read(&mut input).ok();
    assert!(input.count <= GREETING_MAX);
    let hello = hello?;
    if let Some(StreamAnswer::Listens { addresses, .. }) = &hello.answer {
        // Each has at least a byte for its length.
        assert!(addresses.len() < GREETING_MAX, "{} addresses", addresses.len());
    }
    if bytes.len() <= WHOLE_MAX {
        let mut written = Vec::new();
        hello.write(&mut written).expect("memory");
        let length = written.len();
        written.extend(b"frames");
        let mut input = Counted { rest: &written, count: 0 };
        assert_eq!(Hello::read(&mut input).expect("what was written can be read"), hello);
        assert_eq!(input.count, length, "it reads what follows");
    }
    Some(hello)
}

/// A greeting with one field. Few bytes are the beginning of one.
fn with_field(number: u16, value: &[u8]) -> Vec<u8> {
    let number = number.to_le_bytes();
    let length = (value.len() as u32).to_le_bytes();
    let field = [&number[..], &length, value].concat();
    [FIXED, &(field.len() as u32).to_le_bytes(), &field].concat()
}

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    read(&[FIXED, &(bytes.len() as u32).to_le_bytes(), bytes].concat());
    for number in [OFFER, ANSWER] {
        read(&with_field(number, bytes));
        // Few bytes are a message behind a first byte that has to be right.
        read(&with_field(number, &[&[0], bytes].concat()));
    }
});
