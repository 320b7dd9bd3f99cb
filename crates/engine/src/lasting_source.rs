//! The queue of a mover that reads from another host: nothing is reported once that host is lost.
use dmover_model::Outcome;
use std::sync::Arc;
use std::time::Duration;

use crate::context::Engine;
use crate::mover_report::take_reports;
use crate::queue::{Class, Lease, Queue};

/// Passes on what the mover says as long as it has its source. Afterwards each of its entries fails, and others, who have theirs, get
/// its tasks.
pub(crate) struct WhileSourceLasts {
    pub queue: Arc<dyn Queue>,
    pub engine: Arc<Engine>,
}

impl WhileSourceLasts {
    fn is_lost(&self) -> bool {
        let is_lost = self.engine.is_source_lost();
        if is_lost {
            drop(take_reports());
        }
        is_lost
    }
}

impl Queue for WhileSourceLasts {
    fn lease(&self, most: usize, wait: Duration) -> Vec<Lease> {
        self.queue.lease(most, wait)
    }

    fn report(&self, lease: &Lease, outcome: Outcome) {
        if !self.is_lost() {
            self.queue.report(lease, outcome);
        }
    }

    fn complete(&self, lease: &Lease, outcome: Outcome) {
        if !self.is_lost() {
            self.queue.complete(lease, outcome);
        }
    }

    fn is_hungry(&self, class: Class) -> bool {
        self.queue.is_hungry(class)
    }

    fn is_slow(&self) -> bool {
        self.queue.is_slow()
    }

    fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }
}
