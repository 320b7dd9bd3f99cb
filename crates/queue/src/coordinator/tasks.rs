//! The tasks that a coordinator has issued and that have not ended.
use bytes::Bytes;
use dmover_engine::queue::{Class, Lease};
use dmover_model::{JobSpec, Outcome, Task, TaskKind, Verb};
use dmover_observe::CLASSES;
use dmover_plan::leases::{self, Leases, MoverId};
use dmover_schedule::sync::{Mutex, MutexGuard};
use dmover_wire::{MoverReport, TaskMessage};
use tokio::sync::mpsc;

use super::lock;
use crate::reorder_buffer::Heard;

/// A task that was issued.
#[derive(Debug, Clone)]
pub(super) struct Issued {
    /// The task.
    pub task: Task,
    /// Messages of its mover, in order.
    pub heard: Heard<Piece>,
    /// Results that count only when the task has ended: after a lost lease, another mover does all of it again.
    pub held: Vec<Piece>,
    /// The digest of the message in which it was published.
    pub digest: Option<[u8; 32]>,
}

/// A report, whether it ends the task, and whether its errors may be the mover's fault.
pub(super) type Piece = (MoverReport, Outcome, bool, bool);

/// Which reports of a task are held back until the task ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holding {
    /// None: a repeated task does not find the work of a lost mover again.
    Nothing,
    /// All reports.
    All,
    /// Reports about entries. Repairs of a lost mover are reported when it is lost.
    Repairs,
}

impl Holding {
    fn of(spec: &JobSpec) -> Self {
        let repairs = spec.policy.verify.as_ref().is_some_and(|verify| verify.repair);
        match spec.verb {
            Verb::Verify if repairs => Self::Repairs,
            Verb::Sum | Verb::Verify => Self::All,
            Verb::Copy | Verb::Sync => Self::Nothing,
        }
    }
}

/// The issued tasks of a run, the mover that holds each, and how the job repeats tasks.
pub(super) struct IssuedTasks {
    /// Which mover has which task.
    leases: Mutex<Leases<Issued>>,
    /// Numbers of tasks to publish. The channel lives as long as the run.
    outgoing: mpsc::UnboundedSender<u32>,
    /// A repeated task finds its earlier work equal, and does not copy it again.
    redoes: bool,
    /// Which reports of a task are held back until it ends.
    holding: Holding,
}

impl IssuedTasks {
    /// `outgoing` receives the number of each task to publish.
    pub fn new(spec: &JobSpec, lease_ms: u64, outgoing: mpsc::UnboundedSender<u32>) -> Self {
        Self {
            leases: Mutex::new(Leases::new(lease_ms + lease_ms / 10)),
            outgoing,
            redoes: spec.verb.fills() && !spec.policy.dry_run,
            holding: Holding::of(spec),
        }
    }

    /// Locks the table of leases, for steps that no other thread may separate.
    pub fn leases(&self) -> MutexGuard<'_, Leases<Issued>> {
        lock(&self.leases)
    }

    /// Which reports of a task are held back until it ends.
    pub fn holding(&self) -> Holding {
        self.holding
    }

    /// Whether the job repeats a task that failed on one mover.
    pub fn repeats(&self, task: &Task) -> bool {
        self.redoes || matches!(task.kind, TaskKind::Hash(_) | TaskKind::Compare(_))
    }

    /// Issues tasks.
    pub fn offer(&self, tasks: Vec<Task>, now_ms: u64) {
        let mut leases = self.leases();
        for task in tasks {
            let class = Class::of(&task);
            let issued = Issued { task, heard: Heard::default(), held: Vec::new(), digest: None };
            let _ = self.outgoing.send(leases.offer(class, issued, now_ms));
        }
    }

    /// The message that publishes a task, and its class. `None`: the task has ended. Only this message counts from now
    /// on.
    pub fn message(&self, number: u32) -> Option<(Class, Bytes)> {
        let task = self.leases().get(number)?.task.clone();
        let class = Class::of(&task);
        let body = dmover_wire::encode(&TaskMessage { number, task });
        if let Some(issued) = self.leases().get_mut(number) {
            issued.digest = Some(*blake3::hash(&body).as_bytes());
        }
        Some((class, body))
    }

    /// Whether any task was offered before this time and is not claimed.
    pub fn has_unclaimed(&self, before_ms: u64) -> bool {
        self.leases().unclaimed(before_ms).next().is_some()
    }

    /// Publishes tasks again that were offered before this time and are not claimed.
    pub fn publish_again(&self, before_ms: u64) {
        let again: Vec<u32> = self.leases().unclaimed(before_ms).collect();
        tracing::info!(tasks = again.len(), "publishing tasks again");
        for number in again {
            let _ = self.outgoing.send(number);
        }
    }

    /// Renews the leases of a mover: numbers, each with the time since its last progress. `hungry`: for each class,
    /// whether movers wait for tasks. Returns the numbers that the mover no longer has, or must drop.
    pub fn renew(
        &self,
        mover: MoverId,
        held: &[(u32, u64)],
        hungry: [bool; CLASSES],
        now_ms: u64,
    ) -> Vec<u32> {
        let mut leases = self.leases();
        let length = leases.length_ms();
        let stands = |(number, still_ms): &&(u32, u64)| {
            let Some(Issued { task, .. }) = leases.get(*number) else { return false };
            // A lost chunk has its file begun again, and lost sums are not tried again: these get all the time there is.
            let dear = task.kind.is_large() || matches!(task.kind, TaskKind::Sums(_));
            let others_wait = hungry[Class::of(task) as usize] && !dear;
            *still_ms > leases::patience_ms(length, task.lost.len(), others_wait)
        };
        // Its mover stops at once, and the table waits until it has to have stopped.
        let (still, moving): (Vec<_>, Vec<_>) = held.iter().partition(stands);
        for (number, still_ms) in &still {
            tracing::warn!(
                number,
                mover,
                still_ms,
                "a task makes no progress; another mover gets it"
            );
        }
        let moving: Vec<u32> = moving.into_iter().map(|(number, _)| number).collect();
        let mut lost = leases.renew(mover, &moving, now_ms);
        lost.extend(still.into_iter().map(|(number, _)| number));
        lost
    }

    /// Takes back tasks whose leases have expired, with the number and the mover of each lease.
    pub fn expired(&self) -> Vec<(u32, MoverId, Issued)> {
        self.leases().expired(Lease::now_ms())
    }

    /// Takes back tasks that no mover has claimed.
    pub fn withdraw(&self) -> Vec<Task> {
        let back = self.leases().withdraw();
        back.into_iter().map(|(_, issued)| issued.task).collect()
    }

    /// For each class, whether there are issued tasks and all of this class are claimed.
    pub fn lacking(&self) -> [bool; CLASSES] {
        let leases = self.leases();
        let is_out = !leases.is_empty();
        Class::ALL.map(|class| is_out && leases.offered_of(class) == 0)
    }

    /// The number of tasks that no mover has claimed.
    pub fn unclaimed(&self) -> usize {
        self.leases().offered()
    }

    /// The number of movers that hold tasks.
    pub fn holders(&self) -> u32 {
        self.leases().holders() as u32
    }

    /// Whether no mover holds a task.
    pub fn is_settled(&self) -> bool {
        let leases = self.leases();
        leases.len() == leases.offered()
    }

    /// How long a lease is valid without renewal.
    pub fn lease_ms(&self) -> u64 {
        self.leases().length_ms()
    }
}
