//! What holds for any bytes that the other side of a stream sends. `cargo xtask fuzz` looks for bytes for which it does not;
//! none of this is in the program.
mod changes;
mod chunks;
mod handshakes;
mod records;

pub use chunks::{exchange, receive, receive_composed};
pub use handshakes::{changed_handshake, strange_handshake};
pub use records::{changed_records, strange_records};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn arbitrary_chunks_keep_the_promises(bytes in vec(any::<u8>(), 0..600)) {
            receive(&bytes);
            receive_composed(&bytes);
            exchange(&bytes);
        }

        #[test]
        fn arbitrary_changes_of_records_are_noticed(bytes in vec(any::<u8>(), 0..60)) {
            strange_records(&bytes);
            changed_records(&bytes);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn arbitrary_changes_of_handshakes_are_noticed(bytes in vec(any::<u8>(), 0..24)) {
            strange_handshake(&bytes);
            changed_handshake(&bytes);
        }
    }

    #[test]
    fn unchanged_handshakes_and_records_are_accepted() {
        for way in 0..12 {
            changed_handshake(&[way, 200]);
        }
        changed_records(&[3, 0, 1, 255]);
    }
}
