//! What an end reports about entries, apart from errors.
use dmover_model::{LossKind, Note, PathBytes};
use dmover_observe::Counter;

/// Receives reports about entries that are not errors.
pub trait Reports {
    /// Adds to a counter.
    fn add(&self, counter: Counter, amount: u64);

    /// Something about an entry that its user should know.
    fn note(&self, note: Note, path: &dyn Fn() -> PathBytes);

    /// An entry does not have this attribute of its source.
    fn loss(&self, kind: LossKind, path: PathBytes, detail: String);
}
