//! Decides whether a failure is caused by the task or by the mover. A task that fails for a reason that may lie in the
//! host is tried on another host before the failure is believed. A host on which every task fails gets no tasks for a
//! while; it would otherwise receive most tasks, because it fails faster than others work.
use std::collections::HashMap;

use crate::leases::MoverId;

/// A failure is believed after this many movers have failed at the task, if there are that many.
pub const OPINIONS_MAX: usize = 3;
/// After this many consecutive failed tasks, a mover gets no more tasks.
const FAILURES_MAX: u32 = 3;
/// How long it gets none, in milliseconds; the time doubles each time that it fails again at once.
const LEFT_OUT_MS: u64 = 60_000;
const LEFT_OUT_MS_MAX: u64 = 60 * 60_000;

#[derive(Debug, Default)]
struct Record {
    in_a_row: u32,
    /// How often it was excluded without any success since.
    times: u32,
    until_ms: u64,
}

/// Failures that may be caused by a host.
#[derive(Debug, Default)]
pub struct Opinions {
    movers: HashMap<MoverId, Record>,
    /// The holders of leases under which tasks failed that are not done yet.
    failed: HashMap<u32, MoverId>,
}

impl Opinions {
    /// Records that a task failed under a lease, perhaps because of its mover. `lost` are earlier leases of the task,
    /// `all` are all movers. Returns whether another mover should try the task, and, if the mover is newly excluded,
    /// for how many milliseconds it gets no tasks.
    pub fn fail(
        &mut self,
        (mover, number): (MoverId, u32),
        lost: &[u32],
        all: &[MoverId],
        now_ms: u64,
    ) -> (bool, Option<u64>) {
        self.failed.insert(number, mover);
        let before: Vec<MoverId> =
            lost.iter().filter_map(|lease| self.failed.get(lease).copied()).collect();
        let tried = before.len() + 1;
        let somebody =
            all.iter().any(|other| self.is_better(*other, &[lost, &[number]].concat(), now_ms));
        let is_tried_again = tried < OPINIONS_MAX && somebody;
        if !is_tried_again {
            self.end(lost.iter().copied().chain([number]));
        }
        if before.iter().any(|other| *other != mover) {
            // Several have met it: it is not for the sake of one of them.
            for other in &before {
                self.movers.remove(other);
            }
            return (is_tried_again, None);
        }
        let record = self.movers.entry(mover).or_default();
        record.in_a_row += 1;
        // What is the same everywhere says nothing of one host.
        if !somebody || record.in_a_row < FAILURES_MAX || now_ms < record.until_ms {
            return (is_tried_again, None);
        }
        let out_ms = (LEFT_OUT_MS << record.times.min(16)).min(LEFT_OUT_MS_MAX);
        record.times += 1;
        record.until_ms = now_ms + out_ms;
        // One task shows afterwards whether it is well again.
        record.in_a_row = FAILURES_MAX - 1;
        (is_tried_again, Some(out_ms))
    }

    /// Whether there are no recent failures.
    pub fn is_empty(&self) -> bool {
        self.movers.is_empty() && self.failed.is_empty()
    }

    /// Records that a mover has completed a task with success.
    pub fn succeed(&mut self, mover: MoverId) {
        self.movers.remove(&mover);
    }

    /// Forgets the leases of a task that is not retried.
    pub fn end(&mut self, lost: impl Iterator<Item = u32>) {
        lost.for_each(|number| _ = self.failed.remove(&number));
    }

    /// Whether a mover gets no tasks at present, because its tasks fail.
    pub fn is_left_out(&self, mover: MoverId, now_ms: u64) -> bool {
        self.movers.get(&mover).is_some_and(|record| now_ms < record.until_ms)
    }

    /// Whether a mover gets no tasks at present while another mover does.
    pub fn is_left_out_of(&self, mover: MoverId, all: &[MoverId], now_ms: u64) -> bool {
        let is_out = |mover| self.is_left_out(mover, now_ms);
        is_out(mover) && !all.iter().all(|other| is_out(*other))
    }

    /// Whether a mover may have a task that was lost under these leases; `all` are all movers. It may not if another
    /// mover is more likely to succeed.
    pub fn may_have(&self, mover: MoverId, lost: &[u32], all: &[MoverId], now_ms: u64) -> bool {
        self.is_better(mover, lost, now_ms)
            || !all.iter().any(|other| self.is_better(*other, lost, now_ms))
    }

    fn is_better(&self, mover: MoverId, lost: &[u32], now_ms: u64) -> bool {
        let has_failed = lost.iter().any(|number| self.failed.get(number) == Some(&mover));
        !has_failed && !self.is_left_out(mover, now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [MoverId; 4] = [1, 2, 3, 4];

    #[test]
    fn a_task_is_tried_by_others_until_enough_have_failed() {
        let mut opinions = Opinions::default();
        assert_eq!(opinions.fail((1, 10), &[], &ALL, 0), (true, None));
        assert!(!opinions.may_have(1, &[10], &ALL, 0), "it has failed there");
        assert!(opinions.may_have(1, &[], &ALL, 0), "others are no matter of it");
        assert!(opinions.may_have(2, &[10], &ALL, 0));
        assert!(opinions.may_have(1, &[10], &[1], 0), "there is nobody else by now");
        assert_eq!(opinions.fail((2, 11), &[10], &ALL, 0), (true, None));
        assert_eq!(opinions.fail((3, 12), &[10, 11], &ALL, 0), (false, None), "three have seen it");
        assert!(opinions.failed.is_empty(), "nothing is remembered of what has ended");
    }

    #[test]
    fn what_several_have_met_is_held_against_none() {
        let mut opinions = Opinions::default();
        for number in 0..FAILURES_MAX {
            opinions.fail((1, number), &[], &ALL, 0);
        }
        assert!(opinions.is_left_out(1, 0));
        assert_eq!(opinions.fail((2, 10), &[0], &ALL, 0), (true, None));
        assert!(!opinions.is_left_out(1, 0), "the storage has lost something, and not the host");
        for number in 11..20 {
            assert_eq!(opinions.fail((2, number), &[1], &ALL, 0).1, None);
        }
    }

    #[test]
    fn a_lease_that_ran_out_is_no_opinion() {
        let mut opinions = Opinions::default();
        assert_eq!(opinions.fail((1, 10), &[7, 8, 9], &ALL, 0), (true, None));
        assert!(opinions.may_have(2, &[7, 8, 9, 10], &ALL, 0));
    }

    #[test]
    fn nobody_else_is_asked_where_there_is_nobody_else() {
        let mut opinions = Opinions::default();
        for number in 0..9 {
            assert_eq!(opinions.fail((1, number), &[], &[1], 0), (false, None));
        }
        assert!(!opinions.is_left_out(1, 0) && opinions.may_have(1, &[], &[1], 0));
        assert_eq!(
            opinions.fail((1, 20), &[], &[1, 2], 0),
            (true, Some(LEFT_OUT_MS)),
            "now there is"
        );
    }

    #[test]
    fn who_fails_at_everything_is_left_out_for_longer_each_time_until_something_succeeds() {
        let mut opinions = Opinions::default();
        let (mut now, mut out) = (0, Vec::new());
        for number in 0..5 {
            while opinions.is_left_out(1, now) {
                now += 1000;
            }
            out.extend(opinions.fail((1, number), &[], &ALL, now).1);
        }
        assert_eq!(out, [60_000, 120_000, 240_000]);
        assert!(!opinions.may_have(1, &[], &ALL, now) && opinions.may_have(2, &[], &ALL, now));
        assert!(opinions.may_have(1, &[], &[1], now), "nobody else is there");
        assert!(opinions.is_left_out_of(1, &ALL, now) && !opinions.is_left_out_of(1, &[1], now));
        opinions.succeed(1);
        assert!(opinions.may_have(1, &[], &ALL, now));
        assert_eq!(opinions.fail((1, 99), &[], &ALL, now), (true, None));
    }

    #[test]
    fn where_all_fail_alike_the_last_one_is_believed() {
        let mut opinions = Opinions::default();
        let mut number = 0;
        for mover in [1, 2] {
            for _ in 0..FAILURES_MAX {
                number += 1;
                opinions.fail((mover, number), &[], &[1, 2], 0);
            }
        }
        assert!(opinions.is_left_out(1, 0) && !opinions.is_left_out(2, 0));
        assert!(opinions.may_have(2, &[], &[1, 2], 0));
        assert_eq!(
            opinions.fail((2, 99), &[], &[1, 2], 0),
            (false, None),
            "and so is what it says"
        );
    }
}
