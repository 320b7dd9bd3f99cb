//! Records with codes: nothing of one that was changed, moved or made up is given on.
use std::io::{Read, Write};

use super::changes::Changes;
use crate::streams::sealed::{HASH_BYTES, KEY_BYTES, RECORD_MAX, Reader, Writer};

const KEY: [u8; KEY_BYTES] = [7; KEY_BYTES];

/// Bytes of somebody who does not have the key.
///
/// # Panics
/// Some are accepted.
pub fn strange_records(bytes: &[u8]) {
    assert_eq!(read(bytes, 50), b"", "accepted without the key");
}

/// Records that were changed on the way: their number, the length of each, and changes.
///
/// # Panics
/// Other bytes are accepted than those that come before the first change.
pub fn changed_records(bytes: &[u8]) {
    let Some((count, rest)) = bytes.split_first() else { return };
    let Some((lengths, changes)) = rest.split_at_checked(usize::from(count % 8)) else { return };
    let mut sent = Vec::new();
    let mut writer = Writer::new(Vec::new(), KEY);
    let mut ends = vec![(0, 0)];
    for length in lengths {
        let begin = sent.len();
        sent.extend((0..=usize::from(*length) * 9).map(|at| ((begin + at) / 3) as u8));
        writer.write_all(&sent[begin..]).expect("memory");
        writer.flush().expect("memory");
        let (end, _) = ends[ends.len() - 1];
        ends.push((end + 4 + (sent.len() - begin) + HASH_BYTES, sent.len()));
    }
    let whole = writer.into_output();
    let changed = Changes(changes).apply(0, &whole);
    let equal = whole.iter().zip(&changed).take_while(|(one, other)| one == other).count();
    let before = ends.iter().rev().find(|(end, _)| *end <= equal);
    let (_, length) = before.expect("the first end is zero");
    let step = usize::from(*count) * 20 + 1;
    assert!(read(&changed, step) == sent[..*length], "not what was sent before the change");
}

/// Everything that is accepted, read in steps of this many bytes. A failed read does not keep the reader from trying again.
fn read(bytes: &[u8], step: usize) -> Vec<u8> {
    let mut reader = Reader::new(bytes, KEY);
    let (mut read, mut failures) = (Vec::new(), 0);
    let mut buffer = vec![0; step];
    while failures < 3 {
        match reader.read(&mut buffer) {
            Ok(0) | Err(_) => failures += 1,
            Ok(count) => read.extend(&buffer[..count]),
        }
        assert!(reader.memory() <= 2 * RECORD_MAX, "{} bytes", reader.memory());
    }
    read
}
