//! What was said of one task, in its order.
use std::collections::BTreeMap;

/// Hears pieces of what a mover says of a task. Nothing follows from what has a gap before it: the missing piece may be work that was
/// handed on, and an end that is heard without it would leave a hole.
#[derive(Debug, Clone)]
pub(crate) struct Heard<T> {
    /// The last that was heard; they count from 1.
    last: u32,
    /// Pieces of what is being said.
    pieces: Vec<T>,
    /// Those that came before one that is still missing, with whether more follow.
    early: BTreeMap<u32, (T, bool)>,
}

impl<T> Default for Heard<T> {
    fn default() -> Self {
        Self { last: 0, pieces: Vec::new(), early: BTreeMap::new() }
    }
}

impl<T> Heard<T> {
    /// Hears one piece; `more` say that it is not all of what is being said. Answers the pieces of everything that is complete by now. What has
    /// a gap before it waits; if the gap stays, the lease runs out, and somebody does the task again.
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
