//! Gives new tasks their numbers and budgets.
use dmover_model::{Budget, Task, TaskId, TaskKind};

/// The aimed number of tasks that end per second, whatever the number of movers.
const TASKS_PER_S: u64 = 2000;
/// The longest time budget of a task.
const TIME_MS_MAX: u64 = 30_000;

/// Makes the tasks of a job.
#[derive(Debug)]
pub(super) struct TaskMaker {
    /// The budget of one task with few movers.
    base: Budget,
    /// The budget of one task with the present number of movers.
    budget: Budget,
    /// The number of the next task.
    next: u64,
}

impl TaskMaker {
    /// Numbers start at 0.
    pub fn new(budget: Budget) -> Self {
        Self { base: budget, budget, next: 0 }
    }

    /// Adapts the budget to this many tasks in progress at a time. A larger fleet gets larger tasks, so that the
    /// coordinator keeps up with their ends.
    pub fn widen(&mut self, places: usize) {
        let time_ms = (places as u64 * 1000 / TASKS_PER_S).clamp(self.base.time_ms, TIME_MS_MAX);
        let entries = self.base.entries * time_ms / self.base.time_ms.max(1);
        self.budget = Budget { time_ms, entries, ..self.base };
    }

    /// Uses no number below this one: an earlier run has used them.
    pub fn skip_to(&mut self, next: TaskId) {
        self.next = self.next.max(next.0);
    }

    /// Makes the next task.
    pub fn make(&mut self, kind: TaskKind) -> Task {
        let id = TaskId(self.next);
        self.next += 1;
        Task::new(id, kind, self.budget)
    }
}
