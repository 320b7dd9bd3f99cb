//! A note that the movers of a job are remote, so that a run that resumes the job knows that they may still be running.
use dmover_journal::{Ask, EarlierMovers, MoversElsewhere, StateDirectory};
use dmover_model::{Event, Fatal, JobId};
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use std::time::Duration;

use super::Job;
use crate::control::StopReason;

/// How often a waiting run checks whether it must stop.
const LOOK: Duration = Duration::from_millis(10);
/// After this long, a message says that the run waits for movers on other hosts.
const ASKED: Duration = Duration::from_secs(5);
/// How often it checks for requests.
const LISTEN_EVERY: Duration = Duration::from_millis(200);

/// Records in the state of a job that its movers are remote: they may outlive it.
#[derive(Default)]
pub(super) struct Outliving {
    note: Option<MoversElsewhere>,
    /// The previous run had such movers and was interrupted.
    pub before: bool,
    /// How long this run waited for them.
    pub waited: Duration,
    /// The job was stopped meanwhile: this run starts nothing, and the note stays for the next run.
    pub is_stopped: bool,
}

impl Outliving {
    /// Reads and writes the note, and waits until the movers of an interrupted run have stopped.
    pub fn begin(job: &Job, id: &JobId) -> Result<Self, Fatal> {
        let state = job.files.state.as_ref().filter(|_| !job.spec.policy.dry_run);
        let Some(state) = state else { return Ok(Self::default()) };
        let note = MoversElsewhere::of(state, id);
        let known = note.read()?;
        let mut outliving = Self { before: known.is_some(), ..Self::default() };
        if let Some(EarlierMovers { lease_ms, processes }) = known {
            let asks =
                job.files.part_of.as_ref().map_or((state, id), |(state, whole)| (state, whole));
            let wait = Duration::from_millis(lease_ms + lease_ms / 5);
            // Those of this run know whether the processes of the earlier one are gone.
            let movers = job.chunk_movers.as_deref().zip(processes).map(|(movers, processes)| {
                movers.doubt(processes);
                movers
            });
            let are_gone = movers.map(|movers| move || movers.are_gone());
            let ask = are_gone.as_ref().map(|are_gone| are_gone as &dyn Fn() -> bool);
            (outliving.waited, outliving.is_stopped) = await_end(job, asks, wait, ask);
            outliving.before = outliving.is_stopped || !ask.is_some_and(|are_gone| are_gone());
        }
        let lease = job.fleets.as_ref().map(|fleets| fleets.lease());
        let lease = lease.or_else(|| job.chunk_movers.as_ref().map(|movers| movers.lease()));
        if let Some(lease) = lease.filter(|_| !outliving.is_stopped) {
            note.put(lease.as_millis() as u64, job.fleets.is_none())?;
        }
        Ok(Self { note: Some(note), ..outliving })
    }

    /// The note, for movers that are named in it.
    pub fn note(&self) -> Option<MoversElsewhere> {
        self.note.clone()
    }

    /// Removes the note: the run has ended, and its movers know it.
    pub fn end(&self) {
        if let Some(note) = &self.note {
            note.remove();
        }
    }
}

/// Waits, unless the job is stopped. Returns how long it waited, and whether the job was stopped.
fn await_end(
    job: &Job,
    (state, asked): (&StateDirectory, &JobId),
    wait: Duration,
    are_gone: Option<&dyn Fn() -> bool>,
) -> (Duration, bool) {
    let begun = Instant::now();
    // Those that can be asked need a moment to be there.
    let tell_after = if are_gone.is_some() { ASKED } else { Duration::ZERO };
    let mut has_told = false;
    let (mut listened, mut later) = (None::<Instant>, None);
    let is_over = || job.control.is_stopping() || are_gone.is_some_and(|are_gone| are_gone());
    while begun.elapsed() < wait && !is_over() {
        if begun.elapsed() >= tell_after && !std::mem::replace(&mut has_told, true) {
            let seconds = wait.saturating_sub(tell_after).as_secs();
            let words =
                format!("waiting {seconds} s for the movers of the interrupted run to stop");
            job.observers.monitor.event(&Event::Movers { words });
        }
        if listened.is_none_or(|then| then.elapsed() >= LISTEN_EVERY) {
            listened = Some(Instant::now());
            match state.asked(asked) {
                Some(Ask::Cancel) => _ = job.control.stop(StopReason::Cancelled),
                Some(other) => later = Some(other),
                None => {}
            }
        }
        let most = job.spec.limits.duration_max_ms;
        if most.is_some_and(|most| (job.before + begun.elapsed()).as_millis() as u64 >= most) {
            job.control.stop(StopReason::Duration);
        }
        thread::sleep(LOOK.min(wait.saturating_sub(begun.elapsed())));
    }
    // Other requests, such as a pause, are kept until the run has begun.
    if let Some(Err(error)) = later.map(|ask| state.ask(&asked.0, ask)) {
        tracing::warn!(%error, "a request to the job is lost");
    }
    (begun.elapsed(), job.control.is_stopping())
}
