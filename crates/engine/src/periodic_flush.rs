//! Flushes what a job writes at intervals, and keeps the record of it (`dmover_journal::FlushRecord`).
//!
//! A run that does not flush its writes stores a record before it begins. While it runs, everything is flushed at
//! intervals, and the record is updated. A run that flushes each file itself only keeps the record.
use dmover_journal::{
    FailedFlushes, FlushRecord, SeenWhole, StateDirectory, WrittenPlace, now_ms,
    other_flush_records,
};
use dmover_local::flush::Flusher;
use dmover_local::held_file_systems::{HeldFileSystems, HeldPlace};
use dmover_model::{Fatal, JobId, JobSpec, Overwrite, Verb};
use dmover_observe::{Counter, lock};
use dmover_schedule::sync::Mutex;
use dmover_schedule::sync::mpsc::{RecvTimeoutError, Sender, channel};
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::context::Engine;
use crate::control::Control;
use crate::job_list::JobList;
use crate::trust::Trust;

/// The interval of flushes, and its least ratio to the duration of the last flush.
const FLUSH_EVERY: Duration = Duration::from_secs(30);
const FLUSH_SHARE: u32 = 20;
/// A smaller clock correction may go unnoticed.
const CLOCK_STEP_MS: i64 = 3000;

/// A run that wrote nothing but checked this many files flushes at the end, so that the next run need not check them
/// again.
const ASKED_MIN: u64 = 500;

/// The flushes of a run and their record.
#[derive(Debug)]
pub(crate) struct PeriodicFlush {
    /// Where it is stored; `None`: nowhere.
    directory: Option<PathBuf>,
    begun: Arc<Mutex<FlushRecord>>,
    volumes: Arc<HeldFileSystems>,
    failed: FailedFlushes,
    /// The run flushes everything that it writes.
    flushes: bool,
    /// The previous run was on the same mounts.
    goes_on: bool,
    trust: Trust,
}

/// Flushes everything at intervals until it is dropped. A flush in progress is not waited for then: a disk that hangs
/// must not block a stopped job.
#[derive(Debug)]
pub(crate) struct Flushing {
    _until: Sender<()>,
}

/// Holds the file systems at and below places that are written to; failed flushes are noted.
fn hold(
    targets: &[PathBuf],
    failed: &FailedFlushes,
) -> Result<(Arc<HeldFileSystems>, Vec<WrittenPlace>), Fatal> {
    let failed = failed.clone();
    let note = Box::new(move |devices: &[u64]| failed.note(devices));
    let mut volumes = HeldFileSystems::new(note);
    let written = |HeldPlace { path, device, mount }| WrittenPlace { path, device, mount };
    let held = volumes.hold(targets).map_err(|error| Fatal::Refused {
        message: format!(
            "cannot read which file system '{}' is on: {error}",
            error.path.to_path().display()
        ),
        hint: "run the same command again when the file system answers".into(),
    })?;
    let places = held.into_iter().map(written).collect();
    Ok((Arc::new(volumes), places))
}

impl PeriodicFlush {
    /// Determines what is known about the destination, and records that it is written to.
    pub fn begin(
        spec: &JobSpec,
        state: Option<(&StateDirectory, &JobId)>,
        targets: &[PathBuf],
        control: &Control,
    ) -> Result<Self, Fatal> {
        let now = now_ms();
        let flushes = spec.verb == Verb::Sync || spec.policy.fsync;
        let boot = dmover_host::boot_id();
        let failed = FailedFlushes::of(state.map(|(state, _)| state), &boot);
        let (volumes, places) = hold(if spec.verb.fills() { targets } else { &[] }, &failed)?;
        let failures = failed.all();
        let selection = serde_json::to_string(&spec.selection).unwrap_or_default();
        let directory = state.map(|(state, id)| state.of_job(id));
        let before = directory.as_deref().and_then(FlushRecord::read);
        let is_alive = before.as_ref().is_some_and(|before| before.is_alive(&boot, &places));
        let others = state.map(|(state, id)| other_flush_records(state, id, places.len() == 1));
        let others = others.unwrap_or_default();
        let others = others
            .iter()
            .filter(|one| one.places.iter().any(|p| places.iter().any(|o| o.meets(p))));
        let selects = |whole: &&SeenWhole| {
            [FlushRecord::everything(), selection.clone()].contains(&whole.selection)
        };
        let whole = before.as_ref().and_then(|before| before.whole.as_ref()).filter(selects);
        // Times of a clock that was set back since say nothing of what came first.
        let set_back = before.as_ref().is_some_and(|one| one.updated_ms > now + CLOCK_STEP_MS);
        let whole = whole.filter(|_| !set_back);
        let whole_before_ms = whole.map(|whole| whole.before_ms);
        // What ended before that was looked at.
        let is_over = |one: &FlushRecord| {
            one.has_ended && whole_before_ms.is_some_and(|before| one.updated_ms < before)
        };
        let (mut cut_ms, mut mounted_ms) = (set_back.then_some(0), now);
        for (one, is_alive) in others
            .map(|other| (other, other.is_alive(&boot, &places)))
            .filter(|(other, is_alive)| *is_alive || !is_over(other))
            .chain(before.iter().map(|before| (before, is_alive)))
        {
            cut_ms = [cut_ms, one.cut_since(is_alive, &failures)].into_iter().flatten().min();
            if is_alive && one.knows_mounts_of(&places) {
                mounted_ms = mounted_ms.min(one.mounted_ms);
            }
        }
        let mut begun = FlushRecord {
            run: dmover_host::random_u64(),
            boot,
            places,
            mounted_ms,
            unflushed_ms: (!flushes).then_some(now),
            flushed_ms: None,
            cut_ms,
            cut_selection: before.as_ref().map(FlushRecord::cut_selection).unwrap_or_default(),
            whole: before.as_ref().and_then(|before| before.whole.clone()).filter(|_| !set_back),
            selection,
            updated_ms: now,
            is_flushing: false,
            has_ended: false,
        };
        let may_lose = !begun.places.is_empty() || (spec.verb.fills() && targets.is_empty());
        let kept = directory.filter(|_| !begun.places.is_empty() && !spec.policy.dry_run);
        let fail = |error: std::io::Error| Fatal::Ledger {
            path: kept.clone().unwrap_or_default().join(FlushRecord::FILE),
            reason: error.to_string(),
        };
        if let Some(directory) = kept.as_ref().filter(|_| spec.verb != Verb::Sync) {
            let flush = |before: &FlushRecord| {
                if is_alive && before.unflushed_ms.is_some() {
                    let before = FlushRecord { is_flushing: true, ..before.clone() };
                    before.save(directory, false).map_err(fail)?;
                }
                let flushed = volumes.flush_unless_stopped(&|| control.is_stopping());
                Ok(flushed.map_err(std::io::Error::from))
            };
            begun.settle(before.as_ref(), (is_alive, flushes), flush)?;
        }
        let trust = Trust {
            may_lose,
            whole_before_ms,
            cut_since_ms: begun.cut_ms,
            mounted_since_ms: Some(begun.mounted_ms).filter(|_| !begun.places.is_empty()),
        };
        if let Some(since) = begun.cut_ms {
            tracing::info!(
                since,
                "comparing files written since then, because the last run may not have flushed \
                them"
            );
        }
        if let Some(directory) = kept.as_ref().filter(|_| spec.verb != Verb::Sync) {
            begun.save(directory, true).map_err(fail)?;
        }
        let begun = Arc::new(Mutex::new(begun));
        Ok(Self { directory: kept, begun, volumes, failed, flushes, goes_on: is_alive, trust })
    }

    /// What is known about files of the destination.
    pub fn trust(&self) -> Trust {
        self.trust.clone()
    }

    /// Flushes the writes of the run at intervals. Not needed if they are flushed in any case.
    pub fn flush_now_and_then(&self, engine: &Arc<Engine>) -> Option<Flushing> {
        let directory =
            self.directory.clone().filter(|_| !self.flushes && !engine.facts.is_elsewhere)?;
        let (engine, begun) = (Arc::clone(engine), Arc::clone(&self.begun));
        let volumes = Arc::clone(&self.volumes);
        let (stop, stopped) = channel::<()>();
        let work = move || {
            let mut pause = FLUSH_EVERY;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let (begin, at) = (Instant::now(), now_ms());
                let mut known = lock(&begun).clone();
                known.is_flushing = true;
                if let Err(error) = known.save(&directory, false) {
                    tracing::warn!(%error, "cannot record the start of a flush");
                    continue;
                }
                if let Err(error) = volumes.flush() {
                    // The next run compares what was written since the last flush.
                    if let Err(error) = known.save(&directory, true) {
                        tracing::warn!(%error, "cannot record a failed flush");
                    }
                    engine.error(error.at(engine.spec.destination.clone()));
                    return;
                }
                (known.unflushed_ms, known.flushed_ms, known.updated_ms) = (Some(at), Some(at), at);
                known.is_flushing = false;
                if let Err(error) = known.save(&directory, true) {
                    tracing::warn!(%error, "cannot record a flush");
                } else {
                    *lock(&begun) = known;
                }
                pause = FLUSH_EVERY.max(begin.elapsed() * FLUSH_SHARE);
            }
        };
        let thread = thread::Builder::new().name("flush".into()).spawn(work);
        match thread {
            Ok(_) => Some(Flushing { _until: stop }),
            Err(error) => {
                tracing::warn!(%error, "cannot start the flush thread; nothing is flushed while the job runs");
                None
            }
        }
    }

    /// Flushes the writes of earlier runs and other jobs before a pass is recorded as complete. Records failed flushes
    /// during the job. `is_whole`: nothing has failed so far.
    pub fn flush_last(&self, engine: &Engine, is_whole: bool) {
        let failed = engine.end.flusher.as_ref().map(Flusher::failed).unwrap_or_default();
        let devices = failed.into_iter().filter_map(|mount| engine.end.mounts.device(mount));
        self.failed.note(&devices.collect::<Vec<_>>());
        let is_pass = engine.spec.verb == Verb::Sync && self.directory.is_some();
        if !is_pass || !is_whole || engine.control.is_stopping() {
            return;
        }
        let mut begun = lock(&self.begun);
        let has_written = engine.reports.counters.get(Counter::FilesCopied) > 0;
        if !has_written && self.goes_on && begun.whole.is_some() {
            return;
        }
        let at_ms = now_ms();
        match self.volumes.flush_unless_stopped(&|| engine.control.is_stopping()) {
            Ok(()) => begun.flushed_ms = Some(at_ms),
            Err(error) if error.is_stopped() => {}
            Err(error) => engine.error(error.at(engine.spec.destination.clone())),
        }
    }

    /// Records the end of the run.
    pub fn end(&self, engine: &Engine, list: &JobList, is_complete: bool) {
        let Some(directory) = &self.directory else { return };
        let mut begun = lock(&self.begun).clone();
        let (spec, at_ms) = (&engine.spec, now_ms());
        let looks = matches!(spec.policy.overwrite, Overwrite::Changed | Overwrite::Always);
        let ages = spec.selection.ages_ms != [None; 2];
        let is_complete = is_complete && looks && !ages && matches!(list, JobList::None);
        let put = if spec.verb == Verb::Sync {
            if !is_complete {
                return;
            }
            begun.complete();
            begun.updated_ms = at_ms;
            begun.save(directory, false)
        } else {
            let has_asked = engine.doubts.files_asked.load(Ordering::Relaxed) >= ASKED_MIN;
            let has_written = engine.reports.counters.get(Counter::FilesCopied) > 0;
            if is_complete && has_asked && !has_written && begun.flushed_ms.is_none() {
                let settled = self.settle_asked(&mut begun, &engine.control, (directory, at_ms));
                if let Err(error) = settled {
                    tracing::warn!(%error, "cannot record a flush");
                }
            }
            begun.save_end(directory, is_complete, at_ms)
        };
        if let Err(error) = put {
            tracing::warn!(%error, "cannot record how the run ended");
        }
    }

    /// Flushes the writes of others once, after everything was scanned and nothing was written.
    fn settle_asked(
        &self,
        record: &mut FlushRecord,
        control: &Control,
        (directory, at_ms): (&Path, i64),
    ) -> std::io::Result<()> {
        record.is_flushing = true;
        record.save(directory, false)?;
        match self.volumes.flush_unless_stopped(&|| control.is_stopping()) {
            Ok(()) => {
                record.is_flushing = false;
                (record.flushed_ms, record.updated_ms) = (Some(at_ms), at_ms);
                record.unflushed_ms = record.unflushed_ms.map(|_| at_ms);
            }
            Err(error) => {
                let error = std::io::Error::from(error);
                tracing::warn!(?error, "cannot flush earlier writes");
            }
        }
        record.save(directory, true)
    }
}
