//! The permission of a mover to work on its task, for the ends.
use dmover_tree::{Denied, Limit, Permit};

use crate::control::Control;
use crate::limits::RateLimits;
use crate::queue::Lease;

/// The permission to work on a task: its lease, the switch that stops the job, and the rates that its user has limited.
#[derive(Clone, Copy)]
pub(crate) struct MoverPermit<'a> {
    pub control: &'a Control,
    pub limits: &'a RateLimits,
    pub lease: &'a Lease,
}

impl Permit for MoverPermit<'_> {
    fn step(&self) -> Result<(), Denied> {
        if self.control.is_over() {
            return Err(Denied::Dropped);
        }
        self.may_commit()
    }

    fn may_commit(&self) -> Result<(), Denied> {
        if self.lease.holds() { Ok(()) } else { Err(Denied::Fenced) }
    }

    fn progress(&self) {
        self.lease.extend();
    }

    fn is_stopping(&self) -> bool {
        self.control.is_stopping()
    }

    fn bytes(&self, amount: u64) {
        self.limits.bytes(amount, self.control, self.lease);
    }

    fn limits_bytes(&self) -> bool {
        self.limits.has_rate()
    }

    fn block_bytes(&self, block: usize) -> usize {
        self.limits.block_bytes(block)
    }

    fn one_more(&self, what: Limit) {
        match what {
            Limit::Opens => self.limits.open(self.control, self.lease),
            Limit::Creates => self.limits.create(self.control, self.lease),
        }
    }
}
