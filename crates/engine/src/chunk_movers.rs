//! Movers at other hosts that share DEST: they copy chunks of large files. The movers of this process do everything else, and
//! what another host has failed to do.
use dmover_journal::MoversElsewhere;
use dmover_model::{
    Answer, ByteRange, ChunkTask, CoordinatorRequest, EntryError, ErrorClass, Fatal, LargeFile,
    LargeNews, NewTask, Outcome, Task, TaskKind,
};
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::context::Engine;
use crate::fleet::JobOffer;
use crate::mover_report::MoverReport;
use crate::queue::{Class, Lease, LocalQueue, Queue};
use crate::report::HostWork;

/// The hosts whose movers copy chunks.
pub trait ChunkMovers: Send + Sync {
    /// How long a mover may continue without contact.
    fn lease(&self) -> Duration;

    /// Processes of an interrupted run, as [`ChunkDesk::name`] has named them, may still write.
    fn doubt(&self, processes: Vec<String>);

    /// Whether all of these are known to be gone.
    fn are_gone(&self) -> bool;

    /// Lets the movers take chunks of a pass.
    fn begin(&self, desk: Arc<ChunkDesk>);

    /// The pass has ended.
    fn end(&self);
}

/// Gives chunks of one pass to movers at other hosts, and takes their reports.
pub struct ChunkDesk {
    engine: Arc<Engine>,
    queue: Arc<LocalQueue>,
    offer: JobOffer,
    /// Where processes are named that may outlive this run; `None`: nothing is kept.
    note: Option<MoversElsewhere>,
    is_held: AtomicBool,
    /// The chunks that each host has.
    given: Mutex<HashMap<String, Vec<Lease>>>,
    /// What each host has copied, in the order of their first chunks.
    work: Mutex<Vec<HostWork>>,
}

impl ChunkDesk {
    pub(crate) fn new(
        (engine, queue): (Arc<Engine>, Arc<LocalQueue>),
        offer: JobOffer,
        note: Option<MoversElsewhere>,
    ) -> Self {
        let (given, work) = Default::default();
        Self { engine, queue, offer, note, is_held: AtomicBool::new(false), given, work }
    }

    /// What a mover must know.
    pub fn offer(&self) -> &JobOffer {
        &self.offer
    }

    /// Records a process before it gets chunks, so that the next run can find out whether it is gone. `process`: words without a
    /// line break.
    ///
    /// # Errors
    /// It cannot be recorded, and must get no chunks.
    pub fn name(&self, process: &str) -> Result<(), Fatal> {
        self.note.as_ref().map_or(Ok(()), |note| note.name(process))
    }

    /// Answers a question of a mover.
    pub fn answer(&self, question: CoordinatorRequest) -> Answer {
        self.engine.answer(question)
    }

    /// Gives a chunk to a host, waiting for one. `lease`: how long the chunk stays with a host that says nothing.
    pub fn take(
        self: &Arc<Self>,
        host: &str,
        (wait, lease): (Duration, Duration),
    ) -> Option<GivenChunk> {
        if self.is_held.load(Ordering::Relaxed) || self.engine.control.is_stopping() {
            // Whoever asks pauses before it asks again.
            return None;
        }
        let lease = self.queue.lease_chunk(wait, lease)?;
        lock(&self.given).entry(host.to_owned()).or_default().push(lease.clone());
        self.share_limits();
        let range = match &lease.task.kind {
            TaskKind::Chunk(chunk) => Some(chunk.range),
            _ => None,
        };
        let (desk, range) = (Arc::clone(self), Mutex::new(range));
        Some(GivenChunk { lease, host: host.to_owned(), desk, range, is_left: false })
    }

    /// Whether movers wait for chunks and none is left, so that a part of each should be returned.
    pub fn others_wait(&self) -> bool {
        self.queue.is_hungry(Class::Large)
    }

    /// How many processes share the limits of the job: this one, and those that have chunks.
    pub fn sharers(&self) -> u32 {
        let has_some = |leases: &&Vec<Lease>| leases.iter().any(Lease::holds);
        1 + lock(&self.given).values().filter(has_some).count() as u32
    }

    /// Whether the pass has ended, or was stopped so hard that nothing is waited for.
    pub fn is_over(&self) -> bool {
        self.queue.is_closed() || self.engine.control.is_over()
    }

    /// What each host has copied.
    pub(crate) fn work(&self) -> Vec<HostWork> {
        lock(&self.work).clone()
    }

    fn note_work(&self, host: &str, covered: ByteRange) {
        let mut all = lock(&self.work);
        let place = all.iter().position(|work| work.host == host).unwrap_or_else(|| {
            all.push(HostWork { host: host.to_owned(), ..HostWork::default() });
            all.len() - 1
        });
        all[place].chunks += 1;
        all[place].bytes += covered.len();
    }

    /// Whether the job is about to end.
    pub fn is_stopping(&self) -> bool {
        self.engine.control.is_stopping()
    }

    /// Whether no other host has a chunk, so that none can write any more.
    pub(crate) fn is_settled(&self) -> bool {
        lock(&self.given).is_empty()
    }

    /// `held`: a user has paused the job.
    pub(crate) fn hold(&self, held: bool) {
        self.is_held.store(held, Ordering::Relaxed);
    }

    fn share_limits(&self) {
        self.engine.resources.limits.share(self.sharers());
    }

    /// Shows a message about a host to the user.
    pub fn tell(&self, words: String) {
        self.engine.tell_of_movers(words);
    }
}

/// A chunk that a mover at another host has. Dropping it without its end says that the mover cannot write any more.
pub struct GivenChunk {
    lease: Lease,
    host: String,
    desk: Arc<ChunkDesk>,
    /// What other movers have not got of it yet.
    range: Mutex<Option<ByteRange>>,
    /// The mover may still have it at the end of the run.
    is_left: bool,
}

impl GivenChunk {
    /// The task.
    pub fn task(&self) -> &Task {
        &self.lease.task
    }

    /// The number of its lease.
    pub fn number(&self) -> u32 {
        self.lease.number
    }

    /// The mover still has it, and continues.
    pub fn renew(&self) {
        self.lease.extend();
    }

    /// Whether the mover still has it.
    pub fn holds(&self) -> bool {
        self.lease.holds()
    }

    /// Whether the mover should end early and return the rest.
    pub fn is_wanted_back(&self) -> bool {
        let control = &self.desk.engine.control;
        control.is_stopping() || self.desk.is_held.load(Ordering::Relaxed)
    }

    /// Whether a report can be about this chunk: another host may say nothing of other files.
    pub fn admits(&self, outcome: &Outcome) -> bool {
        matches!(&self.lease.task.kind, TaskKind::Chunk(own) if is_about(own, outcome))
    }

    /// Takes a report while the mover continues.
    pub fn report(&self, told: MoverReport, outcome: Outcome) {
        if let Some(range) = &mut *lock(&self.range) {
            *range = shortened(*range, &outcome.tasks);
        }
        self.desk.queue.report_of(&self.lease, told, outcome);
    }

    /// The run has ended, and the mover may still have it: the next run has to know that.
    pub fn leave(mut self) {
        self.is_left = true;
    }

    /// The mover has never heard of it: whoever is free gets it.
    pub fn put_back(self) {
        self.desk.queue.put_back(&self.lease);
    }

    /// The mover cannot write to it any more: a mover of this process copies all that others have not got of it.
    pub fn refuse(self) {
        let mut left = self.lease.task.kind.clone();
        if let (TaskKind::Chunk(chunk), Some(range)) = (&mut left, *lock(&self.range)) {
            chunk.range = range;
        }
        let left = Some(left);
        self.desk.queue.end_of(&self.lease, MoverReport::default(), (Outcome::default(), left));
    }

    /// The mover has ended it. A chunk that may have failed only there is given to a mover of this process.
    pub fn end(self, told: MoverReport, mut outcome: Outcome) {
        let is_stop = |error: &EntryError| error.class == ErrorClass::Cancelled;
        if outcome.chunk_failure.as_deref().is_some_and(is_stop) && !self.is_wanted_back() {
            // Only that host has stopped.
            return self.refuse();
        }
        let is_left = |task: &NewTask| matches!(task.kind, TaskKind::Chunk(_));
        let has_left = outcome.chunk_failure.is_some() && outcome.tasks.last().is_some_and(is_left);
        let left = has_left.then(|| outcome.tasks.pop()).flatten().map(|left| left.kind);
        if left.is_some() {
            let failure = outcome.chunk_failure.take();
            tracing::warn!(?failure, "another host failed to copy a chunk; it is copied here");
        }
        if let Some(covered) = outcome.covered {
            self.desk.note_work(&self.host, covered);
        }
        self.desk.queue.end_of(&self.lease, told, (outcome, left));
    }
}

/// Whether an outcome is about this chunk and nothing else.
fn is_about(own: &ChunkTask, outcome: &Outcome) -> bool {
    let is_within = |range: ByteRange| {
        range.start >= own.range.start && range.start <= range.end && range.end <= own.range.end
    };
    let is_part = |task: &NewTask| match &task.kind {
        TaskKind::Chunk(part) => {
            let patched = own.large.patched;
            LargeFile { patched, ..part.large.clone() } == own.large && is_within(part.range)
        }
        _ => false,
    };
    let is_own = |news: &LargeNews| match news {
        LargeNews::Flushed { temporary, done, .. } => {
            *temporary == own.large.temporary && done.ranges.iter().all(|range| is_within(*range))
        }
        LargeNews::Ended { .. } => false,
    };
    let Outcome { nodes, tasks, links, dirty, extra, survey, large, covered, .. } = outcome;
    nodes.is_empty()
        && links.is_empty()
        && dirty.is_empty()
        && extra.is_empty()
        && survey.is_empty()
        && tasks.iter().all(is_part)
        && large.iter().all(is_own)
        && covered.is_none_or(is_within)
}

/// What is left of a chunk when these tasks get a part of it.
fn shortened(mut range: ByteRange, tasks: &[NewTask]) -> ByteRange {
    for task in tasks {
        if let TaskKind::Chunk(given) = &task.kind
            && given.range.end == range.end
        {
            range.end = given.range.start;
        }
    }
    range
}

impl Drop for GivenChunk {
    fn drop(&mut self) {
        // After its end this has no effect. Without one the chunk is lost, and its file begins again.
        self.lease.lose();
        if self.is_left {
            return;
        }
        let mut given = lock(&self.desk.given);
        if let Some(leases) = given.get_mut(&self.host) {
            leases.retain(|lease| lease.number != self.lease.number);
            if leases.is_empty() {
                given.remove(&self.host);
            }
        }
        drop(given);
        self.desk.share_limits();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::tests::chunk;
    use dmover_model::{Name, Parent};

    #[test]
    fn a_report_about_anything_else_is_not_taken() {
        let range = ByteRange { start: 10, end: 90 };
        let TaskKind::Chunk(own) = chunk(1, range).kind else { unreachable!() };
        let of = |kind: TaskKind| {
            let task = NewTask { parent: Parent::Inherited, kind };
            Outcome { tasks: vec![task], ..Outcome::default() }
        };
        let part = |start, end| chunk(1, ByteRange { start, end }).kind;
        assert!(is_about(&own, &Outcome::default()) && is_about(&own, &of(part(50, 90))));
        assert!(!is_about(&own, &of(part(50, 91))) && !is_about(&own, &of(part(9, 20))));
        assert!(!is_about(&own, &of(TaskKind::Delete(Vec::new()))));
        let TaskKind::Chunk(mut other) = part(50, 90) else { unreachable!() };
        other.large.temporary = Name::new(*b"passwd").unwrap();
        assert!(!is_about(&own, &of(TaskKind::Chunk(other))));
        let ended = LargeNews::Ended { temporary: own.large.temporary.clone() };
        assert!(!is_about(&own, &Outcome { large: vec![ended], ..Outcome::default() }));
    }

    #[test]
    fn what_was_returned_of_a_chunk_is_not_copied_again() {
        let returned = |start, end| {
            let kind = chunk(1, ByteRange { start, end }).kind;
            NewTask { parent: Parent::Inherited, kind }
        };
        let whole = ByteRange { start: 10, end: 90 };
        assert_eq!(shortened(whole, &[]), whole);
        let left = shortened(whole, &[returned(50, 90)]);
        assert_eq!(left, ByteRange { start: 10, end: 50 });
        assert_eq!(shortened(left, &[returned(30, 50)]).end, 30);
        assert_eq!(shortened(left, &[returned(60, 70)]), left, "of another chunk");
    }
}
