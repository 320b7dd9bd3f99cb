//! Tests of all messages together.
mod arbitrary;
mod document;

use bytes::Bytes;
use dmover_model::{
    Answer as CoordinatorAnswer, Budget, CoordinatorRequest, DirectoryRef, ListedName, Metadata,
    NewTask, Notice, Outcome, Parent, RootId, ScanNames, Task, TaskId, TaskKind, TreePath,
};
use dmover_tree::{
    CatalogPart, DescribedEntry, EntryAttributes, Looked, LookedAcl, NextData, Seen,
};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

use super::agent::{
    Answer, Begun, BegunShared, ContentPart, DigestPart, Head, Inspection, ListPart, Measured,
    PIECES_MAX, RelayAnswer, Request, SHORT_MAX, WalkPart, encode_content, encode_content_into,
};
use super::chunks::{ChunkNews, ChunkReport, ChunkRequest};
use super::delegation::{DelegateRequest, DelegateRole, DelegatedJob, ThirdHosts};
use super::encoding::from_plain;
use super::*;
use arbitrary::arbitrary;

/// Calls a generic function for every type of message.
macro_rules! for_each_message {
    ($function:ident $arguments:tt) => {
        for_each_message!(@ $function $arguments Call Reply TaskMessage OutcomeMessage LogMessage
            Broadcast PoolMessage Request Begun Inspection MetadataAnswer Looks AttributesAnswer
            HeadAnswers WalkPart ListPart ContentPart NextDataAnswer DigestPart DelegateRequest DelegatedJob
            ThirdHosts RelayAnswer Measured BegunShared DelegateRole ChunkRequest ChunkReport
            ChunkNews LookedAnswer LookedAcls CatalogNames CatalogEntries)
    };
    (@ $function:ident $arguments:tt $($type:ident)*) => {
        $($function::<$type> $arguments;)*
    };
}

use for_each_message;

/// Answers of agents.
type MetadataAnswer = Answer<Metadata>;
type Looks = Vec<Answer<Seen>>;
type AttributesAnswer = Answer<(Metadata, EntryAttributes)>;
type HeadAnswers = Vec<Answer<Head>>;
type NextDataAnswer = Answer<NextData>;
type LookedAnswer = Vec<Looked>;
type LookedAcls = Vec<LookedAcl>;
type CatalogNames = Vec<CatalogPart<ListedName>>;
type CatalogEntries = Vec<CatalogPart<DescribedEntry>>;

/// A broadcast: its number, and the state.
type Broadcast = (u64, Control);

fn bytes_of(hex: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn outcome(tasks: usize) -> Outcome {
    let kind = |n: usize| {
        let path = TreePath::root().join(format!("{n:0200}").as_bytes());
        TaskKind::Catalog(vec![path])
    };
    let tasks = (0..tasks).map(|n| NewTask { parent: Parent::Inherited, kind: kind(n) });
    Outcome { tasks: tasks.collect(), ..Outcome::default() }
}

#[test]
fn a_message_comes_back_as_it_was_sent() {
    for tasks in [0, 3, 3000] {
        let sent = outcome(tasks);
        let bytes = encode(&sent);
        assert_eq!(decode::<Outcome>(&bytes), Ok(sent));
        assert!(tasks < 3000 || bytes.len() < 100_000, "it is compressed");
    }
    assert!(decode::<Outcome>(b"").is_err() && decode::<Outcome>(b"\x01xx").is_err());
    // A message whose announced size is far beyond what is ever sent, or not that of its block.
    for size in [u32::MAX, 7] {
        let lies = [&b"\x01"[..], &size.to_le_bytes(), &[0x10, b'x']].concat();
        assert!(decode::<Outcome>(&lies).is_err());
    }
}

/// Reads a line of the table again: a type, the bytes of a value, and the value.
fn check<T: Serialize + DeserializeOwned + Debug>(hex: &str, shown: &str) {
    let bytes = bytes_of(hex);
    let value: T = from_plain(&bytes).unwrap_or_else(|error| panic!("{shown}: {error}"));
    assert_eq!(format!("{value:?}"), shown);
    assert_eq!(postcard::to_stdvec(&value).unwrap(), bytes, "{shown}");
}

#[test]
fn messages_keep_their_bytes() {
    // Each variant as protocol 8 has it, and those of agents as protocol 1 of connections has them. A line that has to
    // change needs another protocol number.
    let lines = include_str!("message_bytes.txt").lines();
    assert_eq!(lines.clone().count(), 126);
    for line in lines {
        let mut words = line.splitn(3, ' ');
        let [name, hex, shown] = [(); 3].map(|()| words.next().unwrap());
        match name {
            "CoordinatorRequest" => check::<CoordinatorRequest>(hex, shown),
            "Answer" => check::<CoordinatorAnswer>(hex, shown),
            "Notice" => check::<Notice>(hex, shown),
            "MoverReport" => check::<MoverReport>(hex, shown),
            "Request" => check::<Request>(hex, shown),
            "Begun" => check::<Begun>(hex, shown),
            "Inspection" => check::<Inspection>(hex, shown),
            "Metadata" => check::<MetadataAnswer>(hex, shown),
            "Looks" => check::<Looks>(hex, shown),
            "Attributes" => check::<AttributesAnswer>(hex, shown),
            "Heads" => check::<HeadAnswers>(hex, shown),
            "WalkPart" => check::<WalkPart>(hex, shown),
            "ListPart" => check::<ListPart>(hex, shown),
            "ContentPart" => check::<ContentPart>(hex, shown),
            "NextData" => check::<NextDataAnswer>(hex, shown),
            "DigestPart" => check::<DigestPart>(hex, shown),
            "DelegateRequest" => check::<DelegateRequest>(hex, shown),
            "DelegatedJob" => check::<DelegatedJob>(hex, shown),
            _ => panic!("{name} is no message"),
        }
    }
}

#[test]
fn content_of_files_is_not_compressed() {
    let part = ContentPart::Data(vec![0; 3000]);
    let bytes = encode_content(&part);
    assert_eq!(bytes[..4], [0, 0, 0xb8, 0x17]);
    assert_eq!((bytes.len(), decode(&bytes)), (3004, Ok(part)));
}

#[test]
fn content_of_files_is_borrowed_from_the_end_of_its_message() {
    let content: Vec<u8> = (0..3000u32).map(|at| at as u8).collect();
    let bytes = encode_content_into(&ContentPart::Data(&content[..]), vec![7; 9000]);
    assert_eq!(bytes, encode_content(&ContentPart::Data(content.clone())));
    let part = decode_in_place::<ContentPart<&[u8]>>(&bytes);
    assert_eq!(part, Ok(ContentPart::Data(&bytes[bytes.len() - content.len()..])));
    let mut longer = bytes.clone();
    longer.push(0);
    assert_eq!(decode_in_place::<ContentPart<&[u8]>>(&longer), Err(DecodeError::Rest(1)));
    let shorter = &bytes[..bytes.len() - 1];
    assert_eq!(decode_in_place::<ContentPart<&[u8]>>(shorter), Err(DecodeError::Incomplete));
    let compressed = encode(&ContentPart::Data(vec![0; 3000]));
    assert_eq!(decode_in_place::<ContentPart<&[u8]>>(&compressed), Err(DecodeError::Form));
}

#[test]
fn messages_come_out_of_a_bundle_in_their_order() {
    let all = [encode(&outcome(0)), encode(&outcome(300)), Bytes::new()];
    let bundled = bundle(all.iter());
    assert_eq!(unbundle(&bundled).unwrap(), all);
    assert!(unbundle(&bundled[..bundled.len() - 1]).is_err() && unbundle(b"").is_err());
}

#[test]
fn what_is_too_large_is_cut_and_the_last_piece_alone_ends_the_task() {
    let sent = outcome(5000);
    let whole = OutcomeMessage {
        mover: 7,
        number: 9,
        sequence: 4,
        told: MoverReport::default(),
        outcome: sent.clone(),
        ended: true,
        more: false,
        hosts: false,
    };
    let pieces = cut(whole, 4096);
    assert!(pieces.len() > 1);
    let mut together = Outcome::default();
    for (index, (piece, bytes)) in pieces.iter().enumerate() {
        assert!(bytes.len() <= 4096, "{} bytes", bytes.len());
        assert_eq!(piece.sequence, 4 + index as u32);
        assert_eq!(piece.more, index + 1 < pieces.len());
        together.tasks.extend(piece.outcome.tasks.iter().cloned());
    }
    assert_eq!(together, sent);
}

#[test]
fn a_message_has_no_unknown_variant_and_no_byte_too_many() {
    let refused = |bytes: &[u8]| decode::<Reply>(bytes).unwrap_err().to_string();
    assert!(refused(&[0, 99]).starts_with("it has an invalid value, or one of another version"));
    assert_eq!(refused(&[0, 7, 0]), "it has 1 bytes too many");
    assert_eq!(refused(&[0]), "it is incomplete");
    assert_eq!(refused(&[4, 7]), "its first byte is unknown");
    // A list that announces more than there is.
    assert_eq!(refused(&[0, 2, 0xff, 0xff, 0xff, 0x7f]), "it is incomplete");
    // A path that leaves its tree.
    assert!(decode::<TreePath>(b"\0\x04a/..").is_err());
    assert!(decode::<TreePath>(b"\0\x04a/.b").is_ok());
}

#[test]
fn a_small_message_cannot_take_much_memory() {
    let length = postcard::to_stdvec(&(NUMBERS_MAX + 1)).unwrap();
    // A list of tasks that are gone.
    let list = [&[2][..], &length, &vec![8; NUMBERS_MAX + 1]].concat();
    let packed = [&[1], &lz4_flex::block::compress_prepend_size(&list)[..]].concat();
    assert!(packed.len() < 100_000);
    assert_eq!(decode::<Reply>(&packed).unwrap_err(), DecodeError::Elements);
    // A block that claims more than it can hold.
    let lies = [&b"\x01"[..], &(SIZE_MAX as u32).to_le_bytes(), &[0x10, b'x']].concat();
    assert_eq!(decode::<MoverReport>(&lies).unwrap_err(), DecodeError::Size(SIZE_MAX));
}

#[test]
fn two_sides_speak_the_lower_of_their_numbers_unless_one_of_them_is_too_old() {
    let protocols = |oldest, newest| Protocols { oldest, newest };
    for (one, other, common) in [
        ((8, 9), (8, 9), Some(9)),
        ((8, 9), (8, 8), Some(8)),
        ((9, 10), (8, 9), Some(9)),
        ((9, 10), (8, 8), None),
        ((10, 11), (8, 9), None),
        ((9, 9), (8, 10), Some(9)),
        ((99, 99), (8, 9), None),
        ((0, 0), (8, 9), None),
    ] {
        let (one, other) = (protocols(one.0, one.1), protocols(other.0, other.1));
        assert_eq!(one.common(other), common, "{one:?} {other:?}");
        assert_eq!(other.common(one), common, "{other:?} {one:?}");
    }
    let own = Protocols::OWN;
    assert!(own.include(own.oldest) && own.include(own.newest));
    assert!(!own.include(own.oldest - 1) && !own.include(own.newest + 1));
    // One version back.
    assert_eq!(own.oldest + 1, own.newest);
}

/// An offer as programs of protocol 8 write it.
fn old_record(offer: &str) -> OfferRecord {
    let text = format!(
        r#"{{"protocol":8,"version":"0.1.0","job":"j","run":1,"host":"h","pid":2,"lease_ms":3,
        "offer":{offer},"a_field_of_later_programs":[]}}"#
    );
    serde_json::from_str(&text).unwrap()
}

#[test]
fn an_offer_says_which_protocols_its_coordinator_speaks() {
    let old = old_record(r#""{\"key\":\"j\"}""#).protocols();
    assert_eq!(old, Protocols { oldest: 8, newest: 8 });
    let new = old_record(r#""{\"key\":\"j\",\"newest_protocol\":9}""#).protocols();
    assert_eq!(new, Protocols { oldest: 8, newest: 9 });
    // Whatever is in it, there is an answer.
    for offer in [r#""{\"newest_protocol\":7}""#, r#""{\"newest_protocol\":-1}""#, r#""""#, "{}"] {
        assert_eq!(old_record(offer).protocols(), Protocols { oldest: 8, newest: 8 }, "{offer}");
    }
}

#[test]
fn an_offer_is_signed_as_protocol_8_does() {
    #[derive(Serialize)]
    struct Offer {
        key: &'static str,
        run: u64,
    }
    let text =
        OfferText { offer: &Offer { key: "j", run: u64::MAX }, newest_protocol: 9, streams: None };
    let text = serde_json::to_string(&text).unwrap();
    assert_eq!(text, r#"{"key":"j","run":18446744073709551615,"newest_protocol":9}"#);
    let record = old_record(r#""{}""#);
    assert_eq!(record.signed(), bytes_of("0805302e312e30016a01016802030000027b7d00"));
}

#[test]
fn the_form_of_a_ping_is_that_of_protocol_4() {
    assert_eq!(encode(&Reply::Pong("h".into(), 5)), &[0, 8, 1, b'h', 5][..]);
    assert_eq!(open(PING), Some(Envelope::Plain(PING)));
    assert!(open(b"").is_none() && open(&[3, 1]).is_none());
}

/// Decodes bytes, and encodes what was read again.
fn read<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    if let Ok(value) = decode::<T>(bytes) {
        // A number has several forms, and only one of them is written.
        let written = encode(&value);
        let again = decode::<T>(&written).expect("what was written can be read");
        assert_eq!(encode(&again), written);
    }
}

/// Encodes a message with these choices, and reads it again.
fn keep<T: Serialize + DeserializeOwned + Debug>(seed: u64) {
    let value: T = arbitrary(seed);
    let bytes = encode(&value);
    let again: T = decode(&bytes).unwrap_or_else(|error| panic!("{value:?}: {error}"));
    assert_eq!(format!("{again:?}"), format!("{value:?}"));
    assert_eq!(encode(&again), bytes);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_fault(
        first in 0u8..5,
        rest in prop::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..300)
    ) {
        let bytes = [&[first], &rest[..]].concat();
        for_each_message!(read(&bytes));
        let _ = unbundle(&bytes);
        match open(&bytes) {
            Some(Envelope::Signed(signed)) => {
                let written = signed.to_bytes();
                prop_assert_eq!(open(&written), Some(Envelope::Signed(signed)));
            }
            Some(Envelope::Sealed(sealed)) => {
                let written = sealed.to_bytes();
                prop_assert_eq!(open(&written), Some(Envelope::Sealed(sealed)));
            }
            Some(Envelope::Plain(plain)) => prop_assert_eq!(plain, &bytes[..]),
            None => {}
        }
    }

    #[test]
    fn any_message_comes_back(seed in any::<u64>()) {
        for_each_message!(keep(seed));
    }

    #[test]
    fn a_damaged_message_is_read_without_a_fault(
        seed in any::<u64>(), at in any::<prop::sample::Index>(), bit in 0u8..8, end in 0usize..3
    ) {
        let mut bytes = encode(&arbitrary::<OutcomeMessage>(seed)).to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        bytes.truncate(bytes.len() - end.min(bytes.len()));
        read::<OutcomeMessage>(&bytes);
    }
}

/// Its digest shows the coordinator what does not belong to it.
#[test]
fn a_task_is_read_whatever_follows_it() {
    let directory = DirectoryRef::of_root(RootId(0));
    let kind = TaskKind::Scan { directory, names: ScanNames::Root };
    let task = Task::new(TaskId(7), kind, Budget::USUAL);
    let bytes = encode(&TaskMessage { number: 9, task: task.clone() });
    let longer = [&bytes[..], b"x"].concat();
    assert_eq!(decode::<TaskMessage>(&longer).unwrap_err(), DecodeError::Rest(1));
    let read = TaskMessage::decode(&longer).unwrap();
    assert_eq!((read.number, read.task), (9, task));
    assert!(TaskMessage::decode(&bytes[..bytes.len() - 1]).is_err());
}
