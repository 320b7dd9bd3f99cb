//! Whatever happens to records with codes on their way: nothing of one that was changed is given on.
#![no_main]
use dmover_net::streams::fuzzing::{changed_records, strange_records};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    strange_records(bytes);
    changed_records(bytes);
});
