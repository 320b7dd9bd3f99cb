//! Changed paths that were not scanned yet: each path once, and only when no more changes arrive.
use dmover_model::{ChangedPlace, Happened, TreePath};
use std::collections::BTreeMap;

/// How long a path waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// It waits until it has been unchanged for this long, in milliseconds.
    pub rest_ms: u64,
    /// The same time for a file that is being written and was not closed.
    pub written_ms: u64,
    /// It never waits longer than this, however often it changes.
    pub most_ms: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    what: Happened,
    first_ms: u64,
    last_ms: u64,
}

impl Waiting {
    fn due_ms(&self, patience: &Patience) -> u64 {
        let rest = if self.what.written { patience.written_ms } else { patience.rest_ms };
        (self.last_ms + rest).min(self.first_ms + patience.most_ms)
    }
}

/// Paths that wait to be scanned.
#[derive(Debug, Default)]
pub struct Pending {
    places: BTreeMap<TreePath, Waiting>,
}

impl Pending {
    /// Adds a change at `now_ms`.
    pub fn add(&mut self, place: ChangedPlace, now_ms: u64) {
        let ChangedPlace { path, what } = place;
        self.places
            .entry(path)
            .and_modify(|waiting| {
                waiting.what = waiting.what.and(what);
                waiting.last_ms = now_ms;
            })
            .or_insert(Waiting { what, first_ms: now_ms, last_ms: now_ms });
    }

    /// The number of paths.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are no paths.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// When the oldest path began to wait.
    pub fn since_ms(&self) -> Option<u64> {
        self.places.values().map(|waiting| waiting.first_ms).min()
    }

    /// When the next path is due.
    pub fn next_ms(&self, patience: &Patience) -> Option<u64> {
        self.places.values().map(|waiting| waiting.due_ms(patience)).min()
    }

    /// Takes the paths that are due, in order. If any is due, all paths that are not being written are taken: one end
    /// of a rename without the other looks like a removal and a new entry, and so does a new directory without the
    /// entries moved into it.
    pub fn take_due(&mut self, now_ms: u64, patience: &Patience) -> Vec<ChangedPlace> {
        let is_due = |waiting: &Waiting| waiting.due_ms(patience) <= now_ms;
        let any = self.places.values().any(is_due);
        self.take(|waiting| any && (is_due(waiting) || !waiting.what.written))
    }

    /// Takes all paths, because everything will be scanned.
    pub fn take_all(&mut self) -> Vec<ChangedPlace> {
        self.take(|_| true)
    }

    fn take(&mut self, goes: impl Fn(&Waiting) -> bool) -> Vec<ChangedPlace> {
        let gone = self.places.extract_if(.., |_, waiting| goes(waiting));
        gone.map(|(path, waiting)| ChangedPlace { path, what: waiting.what }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience { rest_ms: 100, written_ms: 1000, most_ms: 5000 };

    fn place(path: &str, what: Happened) -> ChangedPlace {
        ChangedPlace { path: TreePath::new(path).unwrap(), what }
    }

    fn paths(places: &[ChangedPlace]) -> Vec<&[u8]> {
        places.iter().map(|place| place.path.as_bytes()).collect()
    }

    #[test]
    fn a_place_waits_until_it_rests_but_not_for_ever() {
        let mut pending = Pending::default();
        for now in (0..10_000).step_by(50) {
            pending.add(place("a", Happened::default()), now);
            let due = pending.take_due(now, &PATIENCE);
            assert_eq!(due.is_empty(), now < 5000, "{now}");
            if !due.is_empty() {
                break;
            }
        }
        pending.add(place("b", Happened::default()), 20_000);
        assert_eq!(pending.next_ms(&PATIENCE), Some(20_100));
        assert!(pending.take_due(20_099, &PATIENCE).is_empty());
        assert_eq!(paths(&pending.take_due(20_100, &PATIENCE)), [b"b"]);
        assert!(pending.is_empty());
    }

    #[test]
    fn what_is_being_written_waits_longer_until_it_is_closed() {
        let written = Happened { written: true, ..Happened::default() };
        let mut pending = Pending::default();
        pending.add(place("a", written), 0);
        assert!(pending.take_due(999, &PATIENCE).is_empty());
        pending.add(place("a", Happened::default()), 999);
        assert_eq!(paths(&pending.take_due(1099, &PATIENCE)), [b"a"]);
    }

    #[test]
    fn what_belongs_together_goes_together() {
        let moved = Happened { moved: true, ..Happened::default() };
        let arrived = Happened { arrived: true, ..Happened::default() };
        let written = Happened { written: true, ..Happened::default() };
        let mut pending = Pending::default();
        pending.add(place("new", arrived), 0);
        pending.add(place("from", moved), 50);
        pending.add(place("new/to", moved), 50);
        pending.add(place("open", written), 50);
        assert!(pending.take_due(99, &PATIENCE).is_empty());
        assert_eq!(paths(&pending.take_due(100, &PATIENCE)), [&b"from"[..], b"new", b"new/to"]);
        assert_eq!(pending.len(), 1);
    }
}
