//! The movers of a job, and whether failures are caused by them.
use dmover_observe::MoverView;
use dmover_plan::failure_attribution::Opinions;
use dmover_plan::leases::MoverId;
use dmover_schedule::sync::{Mutex, MutexGuard};

use super::lock;
use crate::members::Members;

/// The movers that have joined a job, and the failures that they may have caused.
pub(super) struct Movers {
    /// The movers and their load.
    members: Mutex<Members>,
    /// Failures of tasks; locked before `members` where both are.
    opinions: Mutex<Opinions>,
}

/// What a mover learns about itself when it renews its leases.
pub(super) struct Assessment {
    /// It is much slower than the others.
    pub is_slow: bool,
    /// It gets no tasks for now, because its tasks fail and those of other movers do not.
    pub is_left_out: bool,
}

impl Movers {
    /// For a job with or without limits on its rates.
    pub fn of_job(has_rates: bool) -> Self {
        Self { members: Mutex::new(Members::of_job(has_rates)), opinions: Mutex::default() }
    }

    /// Locks the list of movers.
    pub fn members(&self) -> MutexGuard<'_, Members> {
        lock(&self.members)
    }

    /// Calls `with` with the failures so far and the ids of all movers. There are no ids if nothing has failed, which
    /// is the usual case.
    pub fn judge<R>(&self, with: impl FnOnce(&Opinions, &[MoverId]) -> R) -> R {
        let opinions = lock(&self.opinions);
        let all = if opinions.is_empty() { Vec::new() } else { self.members().ids() };
        with(&opinions, &all)
    }

    /// How a mover compares with the others.
    pub fn assess(&self, mover: MoverId, now_ms: u64) -> Assessment {
        let is_slow = self.members().is_slow(mover);
        let all = self.members().ids();
        let is_left_out = lock(&self.opinions).is_left_out_of(mover, &all, now_ms);
        Assessment { is_slow, is_left_out }
    }

    /// Records that a mover has completed a task with success.
    pub fn succeed(&self, mover: MoverId) {
        lock(&self.opinions).succeed(mover);
    }

    /// Forgets the leases of a task that has ended.
    pub fn forget(&self, leases: impl Iterator<Item = u32>) {
        lock(&self.opinions).end(leases);
    }

    /// Records that a task failed under a lease; `lost` are earlier leases of the task. Returns whether another mover
    /// should try the task, which is so only if it `can_repeat`, and, if the mover is newly excluded, for how many
    /// milliseconds it gets no tasks.
    pub fn fail(
        &self,
        lease: (MoverId, u32),
        lost: &[u32],
        can_repeat: bool,
        now_ms: u64,
    ) -> (bool, Option<u64>) {
        let all = self.members().ids();
        let mut opinions = lock(&self.opinions);
        let (again, left_out) = opinions.fail(lease, lost, &all, now_ms);
        if again && !can_repeat {
            opinions.end(lost.iter().copied().chain([lease.1]));
        }
        (again && can_repeat, left_out)
    }

    /// All movers for displays. `held`: the number of tasks of a mover.
    pub fn views(&self, now_ms: u64, held: impl Fn(MoverId) -> u64) -> Vec<MoverView> {
        let opinions = lock(&self.opinions);
        let is_left_out = |mover| opinions.is_left_out(mover, now_ms);
        self.members().views(now_ms, held, is_left_out)
    }
}
