//! What was said of one task, in its order.

/// Hears pieces of what a mover says of a task. Nothing follows from what has a gap before it: the missing piece may be work that was
/// handed on, and an end that is heard without it would leave a hole.
#[derive(Debug, Clone)]
pub(crate) struct Heard<T> {
    /// The last that was heard; they count from 1.
    last: u32,
    /// Pieces of what is being said.
    pieces: Vec<T>,
}

impl<T> Default for Heard<T> {
    fn default() -> Self {
        Self { last: 0, pieces: Vec::new() }
    }
}

impl<T> Heard<T> {
    /// Hears one piece; `more` follow. Answers all of what was said, once it is complete. What was heard already, and what does
    /// not come next, is not heard: if the gap stays, the lease runs out, and somebody does the task again.
    pub fn hear(&mut self, sequence: u32, piece: T, more: bool) -> Option<Vec<T>> {
        if sequence != self.last + 1 {
            tracing::debug!(sequence, last = self.last, "not what comes next");
            return None;
        }
        self.last = sequence;
        self.pieces.push(piece);
        (!more).then(|| std::mem::take(&mut self.pieces))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_overtakes_what_was_handed_on_is_not_heard() {
        let mut heard = Heard::default();
        assert_eq!(heard.hear(2, "end", false), None);
        assert_eq!(heard.hear(1, "handed on", false), Some(vec!["handed on"]));
        assert_eq!(heard.hear(1, "handed on", false), None, "delivered twice");
        assert_eq!(heard.hear(3, "later", false), None);
        assert_eq!(heard.hear(2, "end", false), Some(vec!["end"]));
    }

    #[test]
    fn pieces_are_heard_together_and_never_across_a_gap() {
        let mut heard = Heard::default();
        assert_eq!(heard.hear(1, "a", true), None);
        assert_eq!(heard.hear(3, "c", false), None, "the second is missing");
        assert_eq!(heard.hear(2, "b", true), None);
        assert_eq!(heard.hear(2, "b", true), None);
        assert_eq!(heard.hear(3, "c", false), Some(vec!["a", "b", "c"]));
    }
}
