//! The facts that the tasks of a run depend on, as a mover learns them.
use dmover_engine::Notice;
use dmover_schedule::sync::Mutex;
use std::sync::Arc;

use super::lock;

/// Receives facts.
pub(super) type Learner = Arc<dyn Fn(Notice) + Send + Sync>;

/// The facts that this process has learnt, in the order of the coordinator.
#[derive(Default)]
pub(super) struct LearntFacts {
    /// The number of known facts; locked while facts are learnt.
    known: Mutex<u32>,
    /// `None`: the run has not begun.
    learner: Mutex<Option<Learner>>,
}

impl LearntFacts {
    /// Sets what receives the facts.
    pub fn begin(&self, learner: Learner) {
        *lock(&self.learner) = Some(learner);
    }

    /// The number of known facts.
    pub fn known(&self) -> u32 {
        *lock(&self.known)
    }

    /// Learns facts, beginning with number `first`. Another thread may have learnt some of them meanwhile.
    pub fn learn(&self, first: u32, news: Vec<Notice>) {
        let mut known = lock(&self.known);
        let learner = lock(&self.learner).clone();
        let new = news.into_iter().skip((*known).saturating_sub(first) as usize);
        for fact in new {
            if let Some(learn) = &learner {
                learn(fact);
            }
            *known += 1;
        }
    }
}
