//! Decides which mover gets which task, and handles failed tasks.
use dmover_engine::queue::{Lease, Reported};
use dmover_model::{Outcome, Task, TaskKind};
use dmover_plan::failure_attribution::Opinions;
use dmover_plan::leases::{Claim, Leases, MoverId};
use std::sync::Arc;
use std::time::Duration;

use super::{Holding, Issued, PLENTY, Piece, Shared, lock};
use dmover_wire::{MoverReport, OutcomeMessage, Reply};

/// The answer to a mover that claims tasks.
#[derive(Debug, Default, PartialEq, Eq)]
struct Granted {
    /// Numbers that are not granted: other movers have them, or they have ended.
    gone: Vec<u32>,
    /// Numbers that are not granted now: other movers should try them first.
    others: Vec<u32>,
    /// Numbers under which another client has published forged tasks.
    forged: Vec<u32>,
    /// Whether the loss of this mover would end any of the granted tasks for good.
    lost_with_mover: bool,
}

/// Grants the claimed numbers that a mover may have. `closed`: grant nothing.
fn grant(
    leases: &mut Leases<Issued>,
    opinions: &Opinions,
    (mover, tasks): (MoverId, Vec<(u32, [u8; 32])>),
    all: &[MoverId],
    closed: bool,
) -> Granted {
    let (mut granted, now) = (Granted::default(), Lease::now_ms());
    for (number, digest) in tasks {
        // The delivered task must be the one that was published, because tasks say what to write and delete.
        if leases.get(number).is_some_and(|issued| issued.digest != Some(digest)) {
            granted.forged.push(number);
            continue;
        }
        let task = leases.get(number).map(|issued| &issued.task);
        let lost = task.map_or(&[][..], |task| &task.lost);
        // Those who are to do better may be at something else for long, or hang.
        let waits = now < leases.offered_ms(number).unwrap_or(0) + 2 * leases.length_ms();
        if task.is_some() && waits && !opinions.may_have(mover, lost, all, now) {
            granted.others.push(number);
            continue;
        }
        // Sums that were never started would be lost with their mover as well.
        let is_sums = task.is_some_and(|task| matches!(task.kind, TaskKind::Sums(_)));
        if closed || leases.claim(number, mover, now) == Claim::Gone {
            granted.gone.push(number);
        } else {
            granted.lost_with_mover |= is_sums;
        }
    }
    granted
}

/// Holds reports of a task back until it has ended: a lost lease discards them, so that each line is reported once.
/// Parts of files report no lines, and their progress counts at once. For repairs, only reports about entries are held
/// back: changed directories get their times back even if the mover is lost.
fn held_back(issued: &mut Issued, mut pieces: Vec<Piece>, holding: Holding) -> Vec<Piece> {
    let is_part = matches!(issued.task.kind, TaskKind::Hash(_) | TaskKind::Compare(_));
    if is_part || holding == Holding::Nothing {
        return pieces;
    }
    let mut heard = Vec::new();
    if holding == Holding::Repairs {
        for (told, outcome, ..) in &mut pieces {
            let dirty = std::mem::take(&mut outcome.dirty);
            let urgent = (told.take_urgent(), Outcome { dirty, ..Outcome::default() });
            if !urgent.0.is_empty() || !urgent.1.dirty.is_empty() {
                heard.push((urgent.0, urgent.1, false, false));
            }
        }
    }
    issued.held.extend(pieces);
    if issued.held.iter().any(|(_, _, ends, _)| *ends) {
        heard.append(&mut issued.held);
    }
    heard
}

/// The last reports about a task, and what follows from them.
struct Heard {
    said: Vec<Reported>,
    entries: usize,
    /// The task failed there, perhaps because of the mover.
    hosts: Option<(MoverReport, Outcome)>,
    /// The task failed there, but it cannot be repeated.
    has_failed: bool,
    has_ended: bool,
}

impl Heard {
    fn of(task: &Task, pieces: Vec<Piece>) -> Self {
        let mut heard =
            Self { said: Vec::new(), entries: 0, hosts: None, has_failed: false, has_ended: false };
        for (told, outcome, ends, hosts) in pieces {
            heard.entries += outcome.weight() + told.len();
            heard.has_ended |= ends;
            if hosts {
                // The report may come in pieces; the last one has the fields that end the task.
                let (known, end) = heard.hosts.get_or_insert_default();
                known.append(told);
                let tasks = std::mem::take(&mut end.tasks).into_iter().chain(outcome.tasks);
                *end = Outcome { tasks: tasks.collect(), ..outcome };
                continue;
            }
            heard.has_failed |= told.has_hosts_errors();
            heard.tell(told);
            heard.said.push(if ends {
                Reported::Done(task.id, outcome)
            } else {
                Reported::Partial(task.id, outcome)
            });
        }
        heard
    }

    fn tell(&mut self, told: MoverReport) {
        if !told.is_empty() {
            self.said.push(Reported::MoverReport(Box::new(told)));
        }
    }
}

impl Shared {
    /// Answers a claim of these numbers by a mover that knows this many facts.
    pub(super) fn claim(
        self: &Arc<Self>,
        mover: MoverId,
        tasks: Vec<(u32, [u8; 32])>,
        facts: u32,
    ) -> Reply {
        if !self.movers.members().has(mover) {
            return Reply::Stranger;
        }
        if self.broadcast.control().held {
            return Reply::Later;
        }
        let (granted, holders) = {
            let mut leases = self.tasks.leases();
            // Closing the run checks the leases afterwards: none is added after that.
            let closed = self.is_closed();
            let granted = self
                .movers
                .judge(|opinions, all| grant(&mut leases, opinions, (mover, tasks), all, closed));
            (granted, leases.holders() as u32)
        };
        // An increase of the number of sharers is broadcast at once, a decrease later.
        self.broadcast.steer(|control| control.movers = control.movers.max(holders));
        self.steer_work();
        let spare = if granted.lost_with_mover { 0 } else { self.spare() };
        let known = lock(&self.facts);
        let facts = known.get(facts as usize..).unwrap_or_default().to_vec();
        let Granted { gone, others, forged, .. } = granted;
        if !forged.is_empty() {
            self.messages.tell_refused("a task");
        }
        Reply::Granted { gone, others, facts, spare, forged }
    }

    /// How many tasks a mover may prefetch beyond its threads: its share, unless the other movers will take all of them
    /// soon.
    fn spare(&self) -> u32 {
        let offered = self.tasks.unclaimed();
        let others = self.movers.members().len().saturating_sub(1);
        match others {
            0 => u32::MAX,
            others if offered > PLENTY * others => (offered / (others + 1)).max(1) as u32,
            _ => 0,
        }
    }

    /// Receives one message of a mover. A message in several pieces is applied when all of them have arrived.
    pub(super) fn hear(&self, said: OutcomeMessage) {
        let OutcomeMessage { mover, number, sequence, told, outcome, ended, more, hosts } = said;
        let mut leases = self.tasks.leases();
        if !leases.holds(number, mover) {
            tracing::debug!(
                number,
                mover,
                "ignored a message about a task that its sender no longer holds"
            );
            return;
        }
        let Some(issued) = leases.get_mut(number) else { return };
        let ends = ended && !more;
        let pieces = issued.heard.hear(sequence, (told, outcome, ends, hosts), more);
        let pieces = held_back(issued, pieces, self.tasks.holding());
        let mut heard = Heard::of(&issued.task, pieces);
        if heard.has_ended
            && let Some(Issued { mut task, .. }) = leases.end(number)
        {
            match heard.hosts.take() {
                Some((told, mut end)) => {
                    // What is left of a part of a file; others have the rest already.
                    let left = std::mem::take(&mut end.tasks).pop();
                    if self.try_elsewhere((mover, number), &task) {
                        // Its results count, but its failures do not.
                        task.kind = left.map_or(task.kind, |left| left.kind);
                        task.lost.push(number);
                        heard.said.push(Reported::Returned(Box::new(task)));
                    } else {
                        heard.tell(told);
                        heard.said.push(Reported::Done(task.id, end));
                    }
                }
                None => {
                    if heard.has_failed {
                        self.try_elsewhere((mover, number), &task);
                    } else {
                        self.movers.succeed(mover);
                    }
                    self.movers.forget(task.lost.iter().copied().chain([number]));
                }
            }
        }
        // An expired task that is taken back after this finds these reports before it.
        self.inbox.put(heard.said, heard.entries);
    }

    /// Whether another mover should try a task that failed under a lease. Reports a mover on which every task fails.
    fn try_elsewhere(&self, lease: (MoverId, u32), task: &Task) -> bool {
        let can_repeat = self.tasks.repeats(task) && !self.broadcast.control().stopping;
        let (again, left_out) = self.movers.fail(lease, &task.lost, can_repeat, Lease::now_ms());
        if let Some(out_ms) = left_out {
            let name = self.movers.members().describe(lease.0).unwrap_or_default();
            let seconds = Duration::from_millis(out_ms).as_secs();
            self.messages.tell(format!(
                "{name} gets no tasks for {seconds} s, because its tasks fail and may succeed on \
                other movers; check its mounts and its log"
            ));
            tracing::warn!(
                mover = name,
                seconds,
                "the tasks of a mover fail; it gets no tasks for now"
            );
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reorder_buffer;
    use dmover_engine::queue::Class;
    use dmover_model::{Budget, DirectoryRef, ErrorClass, NewTask, Parent, TaskId, TreePath};

    const ALL: [MoverId; 2] = [1, 2];
    const DIGEST: [u8; 32] = [7; 32];

    fn issued(kind: TaskKind, lost: &[u32]) -> Issued {
        let budget = Budget { entries: 1, bytes: 1, time_ms: 1 };
        let task = Task { lost: lost.to_vec(), ..Task::new(TaskId(1), kind, budget) };
        Issued {
            task,
            heard: reorder_buffer::Heard::default(),
            held: Vec::new(),
            digest: Some(DIGEST),
        }
    }

    fn catalog() -> TaskKind {
        TaskKind::Catalog(vec![TreePath::root()])
    }

    #[test]
    fn a_claim_is_answered_for_each_number() {
        let mut leases = Leases::new(1000);
        let mut opinions = Opinions::default();
        opinions.fail((1, 77), &[], &ALL, Lease::now_ms());
        let now = Lease::now_ms();
        let free = leases.offer(Class::Small, issued(catalog(), &[]), now);
        let held = leases.offer(Class::Small, issued(catalog(), &[]), now);
        let failed = leases.offer(Class::Small, issued(catalog(), &[77]), now);
        let sums = leases.offer(Class::Small, issued(TaskKind::Sums(Vec::new()), &[]), now);
        leases.claim(held, 2, now);
        let all = vec![free, held, failed, 99];
        let claimed = |numbers: &[u32]| numbers.iter().map(|n| (*n, DIGEST)).collect::<Vec<_>>();
        let granted = grant(&mut leases, &opinions, (1, claimed(&all)), &ALL, false);
        let expected = Granted { gone: vec![held, 99], others: vec![failed], ..Granted::default() };
        assert_eq!(granted, expected);
        assert!(leases.holds(free, 1) && !leases.holds(failed, 1));
        // The answer was lost: who asks again has it.
        assert_eq!(grant(&mut leases, &opinions, (1, claimed(&all)), &ALL, false), expected);
        let granted = grant(&mut leases, &opinions, (1, claimed(&[failed])), &[1], false);
        assert_eq!(granted, Granted::default(), "nobody else is there by now");
        let granted = grant(&mut leases, &opinions, (2, claimed(&[sums])), &ALL, false);
        assert!(granted.lost_with_mover && granted.gone.is_empty());
        let last = leases.offer(Class::Small, issued(catalog(), &[]), now);
        let granted = grant(&mut leases, &opinions, (2, claimed(&[last])), &ALL, true);
        assert_eq!(granted.gone, [last], "the run has ended");
        // Somebody else has published something under its number.
        let granted = grant(&mut leases, &opinions, (2, vec![(last, [8; 32])]), &ALL, false);
        assert_eq!((granted.forged, granted.gone), (vec![last], vec![]));
        assert!(!leases.holds(last, 2));
    }

    #[test]
    fn what_is_told_by_entry_counts_when_its_task_has_ended() {
        let piece = |ends| (MoverReport::default(), Outcome::default(), ends, false);
        let mut sums = issued(TaskKind::Sums(Vec::new()), &[]);
        let all = Holding::All;
        assert!(held_back(&mut sums, vec![piece(false), piece(false)], all).is_empty());
        assert!(held_back(&mut sums, Vec::new(), all).is_empty());
        assert_eq!(held_back(&mut sums, vec![piece(false), piece(true)], all).len(), 4);
        assert!(sums.held.is_empty());
        // A directory that was changed is known at once.
        let at = DirectoryRef {
            root: dmover_model::RootId(0),
            path: TreePath::root(),
            source: dmover_model::Identity::default(),
            destination: dmover_model::Identity::default(),
            made: false,
            ancestors: Vec::new(),
        };
        let dirty = || {
            (
                MoverReport::default(),
                Outcome { dirty: vec![at.clone()], ..Outcome::default() },
                false,
                false,
            )
        };
        let heard = held_back(&mut sums, vec![dirty(), piece(false)], Holding::Repairs);
        assert!(heard.len() == 1 && heard[0].1.dirty.len() == 1 && !heard[0].2);
        let heard = held_back(&mut sums, vec![piece(true)], Holding::Repairs);
        assert!(heard.len() == 3 && heard.iter().all(|piece| piece.1.dirty.is_empty()));
    }

    #[test]
    fn what_may_be_the_movers_fault_waits_for_the_end_and_the_rest_is_heard() {
        let task = issued(catalog(), &[]).task;
        let next = |name: &str| Outcome {
            tasks: vec![NewTask {
                parent: Parent::Inherited,
                kind: TaskKind::Catalog(vec![TreePath::root().join(name.as_bytes())]),
            }],
            ..Outcome::default()
        };
        let failure = dmover_model::EntryError::plain(
            dmover_model::Side::Source,
            dmover_model::Operation::Read,
            ErrorClass::Io,
            dmover_model::PathBytes::default(),
            "",
        );
        let end = Outcome { chunk_failure: Some(Box::new(failure)), ..Outcome::default() };
        let pieces = vec![
            (MoverReport::default(), next("a"), false, false),
            (MoverReport::default(), next("b"), false, true),
            (MoverReport::default(), end, true, true),
        ];
        let heard = Heard::of(&task, pieces);
        assert!(heard.has_ended);
        assert!(
            matches!(&heard.said[..], [Reported::Partial(_, outcome)] if *outcome == next("a"))
        );
        let (_, end) = heard.hosts.unwrap();
        assert!(end.chunk_failure.is_some() && end.tasks == next("b").tasks);
    }
}
