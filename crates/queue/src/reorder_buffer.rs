//! Puts the messages about one task into order.
use std::collections::BTreeMap;

/// Collects the pieces of a mover's messages about a task. Messages after a gap wait: the missing one may return work,
/// and a task that ended without it would leave a hole.
#[derive(Debug, Clone)]
pub(crate) struct Heard<T> {
    /// The number of the last complete piece; they count from 1.
    last: u32,
    /// Pieces of a message that is not complete.
    pieces: Vec<T>,
    /// Pieces that arrived before a missing one, with whether more follow.
    early: BTreeMap<u32, (T, bool)>,
}

impl<T> Default for Heard<T> {
    fn default() -> Self {
        Self { last: 0, pieces: Vec::new(), early: BTreeMap::new() }
    }
}

impl<T> Heard<T> {
    /// Adds one piece; `more` says that the message continues. Returns the pieces of all messages that are now
    /// complete. Pieces after a gap wait; if the gap stays, the lease expires and another mover repeats the task.
    pub fn hear(&mut self, sequence: u32, piece: T, more: bool) -> Vec<T> {
        if sequence > self.last {
            self.early.entry(sequence).or_insert((piece, more));
        }
        let mut complete = Vec::new();
        while let Some((piece, more)) = self.early.remove(&(self.last + 1)) {
            self.last += 1;
            self.pieces.push(piece);
            if !more {
                complete.append(&mut self.pieces);
            }
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_overtakes_what_was_handed_on_waits_for_it() {
        let mut heard = Heard::default();
        assert!(heard.hear(2, "end", false).is_empty());
        assert_eq!(heard.hear(1, "handed on", false), ["handed on", "end"]);
        assert!(heard.hear(1, "handed on", false).is_empty(), "delivered twice");
        assert!(heard.hear(2, "end", false).is_empty(), "delivered twice");
        assert!(heard.hear(4, "later", false).is_empty());
    }

    #[test]
    fn pieces_are_heard_together_and_never_across_a_gap() {
        let mut heard = Heard::default();
        assert!(heard.hear(1, "a", true).is_empty());
        assert!(heard.hear(3, "c", false).is_empty(), "the second is missing");
        assert!(heard.hear(3, "c", false).is_empty());
        assert_eq!(heard.hear(2, "b", true), ["a", "b", "c"]);
        assert!(heard.hear(4, "d", true).is_empty(), "it goes on");
    }
}
