//! Whatever comes in the handshake of a data stream, and in TLS after it: only the other side of the connection is accepted,
//! and only what it has sent.
#![no_main]
use dmover_net::streams::fuzzing::{changed_handshake, strange_handshake};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    strange_handshake(bytes);
    changed_handshake(bytes);
});
