//! Whatever chunks come on data streams: they are given on in order and once, in no more memory than they may take.
#![no_main]
use dmover_net::streams::fuzzing::{exchange, receive, receive_composed};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    receive(bytes);
    receive_composed(bytes);
    exchange(bytes);
});
