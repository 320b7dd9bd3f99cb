//! Whatever another process sends: it is read without a fault, and what is read well is written and read again as it was.
#![no_main]
use dmover_wire::{
    Call, Control, Envelope, LogMessage, OfferRecord, OutcomeMessage, PoolMessage, Reply,
    TaskMessage, bundle, decode, encode, open, unbundle,
};
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A message of one type.
fn read<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    let Ok(value) = decode::<T>(bytes) else { return };
    let written = encode(&value);
    let again = decode::<T>(&written).expect("what was written can be read");
    assert_eq!(encode(&again), written);
}

/// A message of any type.
fn read_all(bytes: &[u8]) {
    read::<Call>(bytes);
    read::<Reply>(bytes);
    read::<TaskMessage>(bytes);
    read::<OutcomeMessage>(bytes);
    read::<LogMessage>(bytes);
    read::<PoolMessage>(bytes);
    read::<(u64, Control)>(bytes);
}

fn read_envelope(bytes: &[u8]) {
    let body = match open(bytes) {
        Some(Envelope::Plain(plain)) => plain,
        Some(Envelope::Signed(signed)) => {
            let written = signed.to_bytes();
            assert_eq!(open(&written), Some(Envelope::Signed(signed)));
            signed.body
        }
        Some(Envelope::Sealed(sealed)) => {
            let written = sealed.to_bytes();
            assert_eq!(open(&written), Some(Envelope::Sealed(sealed)));
            sealed.body
        }
        None => return,
    };
    read_all(body);
    if let Ok(messages) = unbundle(body) {
        let copies: Vec<_> = messages.iter().map(|message| message.to_vec().into()).collect();
        assert_eq!(unbundle(&bundle(copies.iter())).expect("a bundle"), messages);
        messages.into_iter().for_each(read::<OutcomeMessage>);
    }
}

fn read_offer(bytes: &[u8]) {
    let Ok(record) = serde_json::from_slice::<OfferRecord>(bytes) else { return };
    let (protocols, signed) = (record.protocols(), record.signed());
    let written = serde_json::to_vec(&record).expect("a record can be written");
    let again: OfferRecord = serde_json::from_slice(&written).expect("it can be read");
    assert_eq!((again.protocols(), again.signed()), (protocols, signed));
}

fuzz_target!(|bytes: &[u8]| {
    read_all(bytes);
    // Few bytes are a message behind a first byte that has to be right.
    read_all(&[&[0], bytes].concat());
    read_envelope(bytes);
    read_offer(bytes);
});
