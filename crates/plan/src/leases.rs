//! The coordinator's table of which mover has which task. Time is an argument.
//!
//! An issued task gets a *number*, which identifies this one lease and is never used again. It is *offered* until a
//! mover claims it, and then *held* as long as the mover renews it in time. The mover measures from the time of its
//! request and the table from the time of receipt, so the mover stops first. A number is granted only once, even if a
//! broker delivers it twice.
use dmover_model::TaskClass;
use std::collections::{BTreeMap, HashMap};

/// Identifies a mover process for its lifetime.
pub type MoverId = u64;

/// The result of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The mover has the task.
    Granted,
    /// Another mover has the task, or it has ended.
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The time of the offer.
    Offered(u64),
    Held {
        by: MoverId,
        until_ms: u64,
    },
}

/// A mover loses a task without progress after this time: its thread hangs.
const STALL_MS: u64 = 30 * 60 * 1000;

/// How long a task may make no progress. While other movers wait for work the time is shorter; it doubles with each
/// mover that has lost the task, so that a slow operation, such as flushing a large file, gets enough time in the end.
pub fn patience_ms(length_ms: u64, lost: usize, others_wait: bool) -> u64 {
    let soon = length_ms.saturating_mul(2 << lost.min(16));
    if others_wait { soon.min(STALL_MS) } else { STALL_MS }
}

#[derive(Debug)]
struct Entry<T> {
    state: State,
    class: TaskClass,
    what: T,
}

/// The table of leases. `T` is the payload of a number.
#[derive(Debug)]
pub struct Leases<T> {
    length_ms: u64,
    next: u32,
    all: BTreeMap<u32, Entry<T>>,
    held: HashMap<MoverId, Vec<u32>>,
    /// The number of offers for each class.
    offered: [usize; TaskClass::ALL.len()],
}

impl<T> Leases<T> {
    /// A table of leases that expire this long after the last renewal.
    pub fn new(length_ms: u64) -> Self {
        Self { length_ms, next: 1, all: BTreeMap::new(), held: HashMap::new(), offered: [0; 2] }
    }

    /// How long a lease is valid without renewal.
    pub fn length_ms(&self) -> u64 {
        self.length_ms
    }

    /// Offers a task of a class; returns its number.
    pub fn offer(&mut self, class: TaskClass, what: T, now_ms: u64) -> u32 {
        let number = self.next;
        self.next += 1;
        self.all.insert(number, Entry { state: State::Offered(now_ms), class, what });
        self.offered[class as usize] += 1;
        number
    }

    /// The payload of a number.
    pub fn get(&self, number: u32) -> Option<&T> {
        self.all.get(&number).map(|entry| &entry.what)
    }

    /// The payload of a number, mutable.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.all.get_mut(&number).map(|entry| &mut entry.what)
    }

    /// Claims a number for a mover. A mover that repeats its claim, because the answer was lost, gets the number again.
    pub fn claim(&mut self, number: u32, by: MoverId, now_ms: u64) -> Claim {
        let until_ms = now_ms + self.length_ms;
        let Some(entry) = self.all.get_mut(&number) else { return Claim::Gone };
        match &mut entry.state {
            State::Offered(_) => {
                entry.state = State::Held { by, until_ms };
                self.held.entry(by).or_default().push(number);
                self.offered[entry.class as usize] -= 1;
                Claim::Granted
            }
            State::Held { by: holder, until_ms: until } if *holder == by => {
                *until = until_ms;
                Claim::Granted
            }
            State::Held { .. } => Claim::Gone,
        }
    }

    /// Renews the leases of a mover; returns the numbers that are no longer its own.
    pub fn renew(&mut self, by: MoverId, numbers: &[u32], now_ms: u64) -> Vec<u32> {
        let until_ms = now_ms + self.length_ms;
        let lost = numbers.iter().filter(|number| {
            match self.all.get_mut(number).map(|entry| &mut entry.state) {
                Some(State::Held { by: holder, until_ms: until })
                    if *holder == by && now_ms <= *until =>
                {
                    *until = until_ms;
                    false
                }
                _ => true,
            }
        });
        lost.copied().collect()
    }

    /// Whether a mover holds a number.
    pub fn holds(&self, number: u32, by: MoverId) -> bool {
        let state = self.all.get(&number).map(|entry| entry.state);
        matches!(state, Some(State::Held { by: holder, .. }) if holder == by)
    }

    /// Ends a number, whichever mover holds it. Returns its payload.
    pub fn end(&mut self, number: u32) -> Option<T> {
        let Entry { state, class, what } = self.all.remove(&number)?;
        match state {
            State::Offered(_) => self.offered[class as usize] -= 1,
            State::Held { by, .. } => {
                if let Some(numbers) = self.held.get_mut(&by) {
                    numbers.retain(|held| *held != number);
                    if numbers.is_empty() {
                        self.held.remove(&by);
                    }
                }
            }
        }
        Some(what)
    }

    /// Takes back expired leases.
    pub fn expired(&mut self, now_ms: u64) -> Vec<(u32, MoverId, T)> {
        let over = self.all.iter().filter_map(|(number, entry)| match entry.state {
            State::Held { by, until_ms } if until_ms < now_ms => Some((*number, by)),
            _ => None,
        });
        let over: Vec<(u32, MoverId)> = over.collect();
        over.into_iter().filter_map(|(n, by)| Some((n, by, self.end(n)?))).collect()
    }

    /// Takes back offers that no mover has claimed.
    pub fn withdraw(&mut self) -> Vec<(u32, T)> {
        let numbers: Vec<u32> = self.unclaimed(u64::MAX).collect();
        numbers.into_iter().filter_map(|number| Some((number, self.end(number)?))).collect()
    }

    /// Numbers that were offered before this time and are not claimed.
    pub fn unclaimed(&self, before_ms: u64) -> impl Iterator<Item = u32> {
        self.all.iter().filter_map(move |(number, entry)| {
            matches!(entry.state, State::Offered(since) if since < before_ms).then_some(*number)
        })
    }

    /// When a number that is not claimed was offered.
    pub fn offered_ms(&self, number: u32) -> Option<u64> {
        match self.all.get(&number)?.state {
            State::Offered(since) => Some(since),
            State::Held { .. } => None,
        }
    }

    /// The number of movers that hold leases.
    pub fn holders(&self) -> usize {
        self.held.len()
    }

    /// The number of offers that are not claimed.
    pub fn offered(&self) -> usize {
        self.offered.iter().sum()
    }

    /// The number of offers of a class that are not claimed.
    pub fn offered_of(&self, class: TaskClass) -> usize {
        self.offered[class as usize]
    }

    /// The number of leases and offers.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are no leases and no offers.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The numbers that a mover holds.
    pub fn held_by(&self, mover: MoverId) -> &[u32] {
        self.held.get(&mover).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_granted_once_however_often_it_is_delivered() {
        let mut leases = Leases::new(100);
        let number = leases.offer(TaskClass::Small, "task", 0);
        assert_eq!(leases.claim(number, 1, 10), Claim::Granted);
        assert_eq!(leases.claim(number, 2, 11), Claim::Gone);
        assert_eq!(leases.claim(number, 1, 12), Claim::Granted, "the answer was lost");
        assert!(leases.holds(number, 1) && !leases.holds(number, 2));
        assert_eq!(leases.end(number), Some("task"));
        assert_eq!(leases.claim(number, 1, 13), Claim::Gone);
        assert!(leases.is_empty() && leases.held_by(1).is_empty());
    }

    #[test]
    fn a_lease_runs_out_after_its_length_without_a_word_and_not_before() {
        let mut leases = Leases::new(100);
        let (one, other) =
            (leases.offer(TaskClass::Small, 1, 0), leases.offer(TaskClass::Small, 2, 0));
        leases.claim(one, 7, 0);
        leases.claim(other, 7, 0);
        assert!(leases.renew(7, &[one], 90).is_empty());
        assert!(leases.expired(100).is_empty());
        assert_eq!(leases.renew(7, &[other], 101), [other], "what is overdue stays lost");
        assert_eq!(leases.expired(101), [(other, 7, 2)]);
        assert_eq!(leases.renew(7, &[one, other], 102), [other], "it was taken back");
        assert_eq!(leases.expired(203), [(one, 7, 1)]);
        assert!(leases.is_empty());
    }

    #[test]
    fn patience_ends_sooner_while_others_wait_and_grows_with_each_loss() {
        let waits = |lost| patience_ms(30_000, lost, true);
        assert_eq!([waits(0), waits(1), waits(4), waits(60)], [60_000, 120_000, 960_000, STALL_MS]);
        assert_eq!(patience_ms(30_000, 0, false), STALL_MS);
    }

    #[test]
    fn what_nobody_claimed_can_be_taken_back_and_offered_again() {
        let mut leases = Leases::new(100);
        let (one, other) =
            (leases.offer(TaskClass::Small, 1, 5), leases.offer(TaskClass::Small, 2, 50));
        assert_eq!(leases.unclaimed(6).collect::<Vec<_>>(), [one]);
        leases.claim(other, 1, 60);
        assert_eq!((leases.offered(), leases.len()), (1, 2));
        assert_eq!(TaskClass::ALL.map(|class| leases.offered_of(class)), [1, 0]);
        assert_eq!(leases.withdraw(), [(one, 1)]);
        assert_eq!(leases.claim(one, 1, 61), Claim::Gone);
        assert!(leases.expired(150).is_empty(), "nobody has lost what is held");
        assert_ne!(leases.offer(TaskClass::Small, 1, 70), one, "a number is never given again");
    }
}
