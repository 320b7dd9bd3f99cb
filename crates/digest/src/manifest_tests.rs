use super::*;
use crate::{Hasher, Pieces};
use dmover_model::{Extended, NamedDigest, Shape};
use proptest::prelude::*;

fn header() -> Header {
    Header {
        program: "dmover 0".into(),
        job: "0123456789ab".into(),
        base: b"/some\xff/where".to_vec(),
        hash: Some(HashType::Blake3),
        begun: Timestamp { seconds: -1, nanoseconds: 999_999_999 },
    }
}

fn file(path: &str, content: &[u8], hash: HashType, piece: u64) -> Record {
    let shape = Shape::plain(hash, content.len() as u64, piece);
    let mut made = Pieces::new(shape, 0);
    made.update(content);
    let pieces = made.finish();
    let digest = crate::Fold::of(&shape, &pieces).unwrap();
    assert_eq!(digest, Hasher::digest(hash, content));
    let pieces = if pieces.len() > 1 { pieces } else { Vec::new() };
    let body = Body {
        kind: EntryKind::File,
        mode: 0o4755,
        uid: 1,
        gid: u32::MAX,
        size: content.len() as u64,
        mtime: Timestamp { seconds: 1 << 40, nanoseconds: 1 },
        link: Some(7),
        symlink: None,
        device: None,
        extended: Extended {
            xattrs: Some(vec![NamedDigest {
                name: serde_bytes::ByteBuf::from(*b"user.a\xff"),
                digest: Hasher::digest(HashType::Blake3, b"value"),
            }]),
            acls: Some(Vec::new()),
            flags: Some(0x40),
            project: Some((7, true)),
        },
        content: Some(Content { shape, digest, pieces }),
    };
    Record { path: TreePath::new(path.as_bytes()).unwrap(), body }
}

fn other(path: &str, kind: EntryKind) -> Record {
    let mut record = file(path, b"", HashType::Crc32, 1);
    record.body.kind = kind;
    record.body.content = None;
    record.body.extended = Extended::default();
    record.body.symlink =
        (kind == EntryKind::Symlink).then(|| serde_bytes::ByteBuf::from(*b"\xfe/.."));
    record.body.device = (kind == EntryKind::CharDevice).then_some((4, 64));
    record
}

fn some_records(count: usize) -> Vec<Record> {
    let mut records = vec![other("", EntryKind::Directory), other("l", EntryKind::Symlink)];
    for number in 0..count {
        let content: Vec<u8> = (0..number * 37 % 5000).map(|at| at as u8).collect();
        let hash = HashType::ALL[number % HashType::ALL.len()];
        records.push(file(&format!("d{}/f{number}", number / 10), &content, hash, 1024));
    }
    records
}

fn written(records: &[Record], complete: bool) -> Vec<u8> {
    let mut writer = Writer::new(&header());
    let mut bytes = Vec::new();
    for record in records {
        writer.push(record);
        bytes.extend(writer.take());
    }
    bytes.extend(writer.finish(complete));
    bytes
}

/// The records before the end or the first error.
fn read(bytes: &[u8]) -> (Vec<Record>, Result<Ending, ManifestError>) {
    let (mut reader, header_read) = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Err(error)),
    };
    assert_eq!(header_read, header());
    let mut records = Vec::new();
    loop {
        match reader.next_record() {
            Ok(Some(record)) => records.push(record),
            Ok(None) => return (records, Ok(reader.ending().unwrap().clone())),
            Err(error) => return (records, Err(error)),
        }
    }
}

#[test]
fn what_is_written_is_read_again() {
    for (count, complete) in [(0, true), (3, false), (5000, true)] {
        let records = some_records(count);
        let (found, ending) = read(&written(&records, complete));
        assert_eq!(found, records);
        let ending = ending.unwrap();
        assert_eq!((ending.records, ending.complete), (records.len() as u64, complete));
    }
}

/// The format must not change by chance: manifests are kept for years.
#[test]
fn the_bytes_are_those_of_version_1() {
    let records = some_records(30);
    let digest = Hasher::digest(HashType::Blake3, &written(&records, true)).to_string();
    assert_eq!(
        digest, "d08838f56b212c3c3fe331637c5bfb563c040023fcc0e663cadc00aec3d620b8",
        "the format has changed: VERSION has to be raised"
    );
}

#[test]
fn a_manifest_that_was_cut_off_is_read_up_to_the_cut() {
    let records = some_records(3000);
    let bytes = written(&records, true);
    let mut most = 0;
    for cut in (0..bytes.len()).step_by(bytes.len() / 97).chain([bytes.len() - 1]) {
        let (found, ending) = read(&bytes[..cut]);
        let error = ending.unwrap_err();
        let told = matches!(error, ManifestError::Truncated { .. } | ManifestError::Foreign);
        assert!(told, "{cut}: {error}");
        assert_eq!(found, records[..found.len()], "{cut}");
        most = most.max(found.len());
    }
    assert_eq!(most, records.len(), "all but the end was there");
}

/// Blocks that are whole but not where they were, or of another manifest, are noticed by the digest at the end.
#[test]
fn blocks_in_another_order_are_noticed() {
    let head = written(&[], true).len() - END_BYTES;
    let blocks = |records: &[Record]| {
        let bytes = written(records, true);
        bytes[head..bytes.len() - END_BYTES].to_vec()
    };
    let (one, other) = ([other("a", EntryKind::Fifo)], [other("b", EntryKind::Fifo)]);
    let both = [one[0].clone(), other[0].clone()];
    let mut writer = Writer::new(&header());
    let mut right = Vec::new();
    for record in &both {
        writer.push(record);
        writer.end_block();
        right.extend(writer.take());
    }
    let end = writer.finish(true);
    assert!(read(&[&right[..], &end].concat()).1.is_ok());
    let swapped = [&right[..head], &blocks(&other), &blocks(&one), &end].concat();
    assert_eq!(swapped.len(), right.len() + end.len());
    let (_, error) = read(&swapped);
    assert!(matches!(error, Err(ManifestError::Damaged { .. })), "{error:?}");
}

/// Head of the block, number of records (below 128), completeness, length of the digest, digest.
const END_BYTES: usize = 9 + 1 + 1 + 1 + 32;

#[test]
fn nothing_foreign_is_taken_for_a_manifest() {
    let (_, error) = read(b"#!/bin/sh\necho a text file of some length\n");
    assert!(matches!(error, Err(ManifestError::Foreign)));
    let mut newer = written(&[], true);
    newer[8] = 9;
    assert!(matches!(read(&newer).1, Err(ManifestError::Version(9))));
    let mut longer = written(&[], true);
    longer.push(0);
    assert!(matches!(read(&longer).1, Err(ManifestError::Damaged { .. })));
}

#[test]
fn names_that_lead_out_are_refused() {
    for path in ["../x", "a/../../x", "/etc/passwd", "a//b", "."] {
        let mut writer = Writer::new(&header());
        let record = other("x", EntryKind::Fifo);
        let written = Written { shared: 0, rest: path.as_bytes(), body: record.body };
        writer.block = encode(&written);
        writer.records = 1;
        let (found, error) = read(&writer.finish(true));
        assert!(found.is_empty() && matches!(error, Err(ManifestError::Escaping { .. })), "{path}");
    }
}

#[test]
fn digests_that_do_not_fit_are_refused() {
    type Change = fn(&mut Content, &mut u64);
    let changes: [Change; 4] = [
        |content, _| content.digest = Digest::new(&[0; 5]).unwrap(),
        |content, _| content.pieces.truncate(3),
        |content, _| content.pieces[0] = content.pieces[1],
        |_, size| *size += 1,
    ];
    for change in changes {
        let mut record = file("f", &[1; 5000], HashType::Blake3, 1024);
        let body = &mut record.body;
        change(body.content.as_mut().unwrap(), &mut body.size);
        let (found, error) = read(&written(&[record], true));
        assert!(found.is_empty() && matches!(error, Err(ManifestError::Damaged { .. })));
    }
}

proptest! {
    #[test]
    fn one_changed_byte_is_noticed(at: prop::sample::Index, flip in 1u8..=255) {
        let records = some_records(40);
        let mut bytes = written(&records, true);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let (found, ending) = match Reader::new(&bytes[..]) {
            // The header has a check like every block.
            Err(_) => return Ok(()),
            Ok(_) => read(&bytes),
        };
        prop_assert!(ending.is_err(), "byte {} ^ {}", at, flip);
        prop_assert_eq!(&found[..], &records[..found.len()]);
    }

    #[test]
    fn no_bytes_are_a_fault(bytes: Vec<u8>, good: bool) {
        let start = if good { written(&some_records(2), true) } else { Vec::new() };
        let all = [&start[..start.len() / 2], &bytes].concat();
        if let Ok((mut reader, _)) = Reader::new(&all[..]) {
            while let Ok(Some(_)) = reader.next_record() {}
        }
    }
}
