//! Whatever a job, an agent or another host of one side sends: it is read without a fault and within bounds, and what is read well is
//! written and read again as it was.
#![no_main]
use dmover_model::ListedName;
use dmover_tree::{CatalogPart, DescribedEntry, Looked, LookedAcl};
use dmover_wire::agent::{
    Begun, BegunShared, ChangedPart, ContentPart, DigestPart, Head, Inspection, ListPart, Measured,
    RelayAnswer, Request, WalkPart,
};
use dmover_wire::chunks::{ChunkNews, ChunkReport, ChunkRequest};
use dmover_wire::delegation::{DelegateRequest, DelegateRole, DelegatedJob, ThirdHosts};
use dmover_wire::{decode, decode_in_place, encode};
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

fuzz_target!(|bytes: &[u8]| {
    // The first byte chooses the type, so that each of them is found.
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 22 {
        0 | 1 => read::<Request>(bytes),
        2 => read::<Begun>(bytes),
        3 => read::<BegunShared>(bytes),
        4 => read::<Inspection>(bytes),
        5 => read::<ListPart>(bytes),
        6 => read::<WalkPart>(bytes),
        7 => read::<Vec<Result<Head, dmover_model::EntryError>>>(bytes),
        8 => read::<ContentPart>(bytes),
        9 => read::<ChangedPart>(bytes),
        10 => read::<DigestPart>(bytes),
        11 => read::<RelayAnswer>(bytes),
        12 => read::<Measured>(bytes),
        13 => {
            read::<Vec<Looked>>(bytes);
            read::<Vec<LookedAcl>>(bytes);
        }
        14 => read::<Vec<CatalogPart<ListedName>>>(bytes),
        15 => read::<Vec<CatalogPart<DescribedEntry>>>(bytes),
        16 => read::<DelegateRequest>(bytes),
        17 => read::<DelegatedJob>(bytes),
        18 => read::<DelegateRole>(bytes),
        19 => read::<ThirdHosts>(bytes),
        20 => {
            read::<ChunkRequest>(bytes);
            read::<ChunkReport>(bytes);
            read::<ChunkNews>(bytes);
        }
        _ => {
            // Content is read where it is.
            let _ = decode_in_place::<ContentPart<&[u8]>>(bytes);
            let _ = decode_in_place::<ChangedPart<&[u8]>>(bytes);
        }
    }
});
