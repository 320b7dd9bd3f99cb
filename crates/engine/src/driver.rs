//! Runs one job: starts the movers, feeds the coordinator, and carries out its commands.
use dmover_journal::{
    ErrorList, LastPass, Ledger, Left, LookedInto, PartialFiles, SpillLedger, Starts, Survey,
};
use dmover_local::mounted::Mounted;
use dmover_local::mounts::MountTable;
use dmover_local::root::Resolved;
use dmover_local::volume::on_storage;
use dmover_model::{
    Budget, DeleteWhen, DirectoryRef, Event, ExtraNames, Failed, Fatal, JobId, Notice, Outcome,
    Placement, RecheckSet, ScanNames, Surveyed, TargetMode, Task, TaskKind, Verb,
};
use dmover_observe::{Counter, Stage};
use dmover_plan::coordinator::{Command, Coordinator, Input, Phase};
use dmover_plan::temporary::TemporaryNames;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::concurrency_driver::{self, Allowance};
use crate::context::{Engine, memory_bytes};
use crate::control::StopReason;
use crate::delete_guard::Guard;
use crate::engine_builder::{Capacity, Parts};
use crate::extra::{self, refuse_missing_destination};
use crate::fleet::JobOffer;
use crate::job_identity::{job_id, volume_of};
use crate::job_list::{JobList, RecordSupply};
use crate::mover_report::MoverReport;
use crate::periodic_flush::PeriodicFlush;
use crate::precount;
use crate::queue::{Dispatch, Reported};
use crate::report::{JobReport, JobState};
use crate::run_facts::RunFacts;
use crate::same_copy::writing;
use crate::trust::Trust;
use control_files::Outside;
use hands::Executor;
use job_status::{Shown, Standing};
use mounted::tell_what_is_gone;
use offer::offer;
use outliving::Outliving;
use parts::{places, receivers};
use pulse::Pulse;
use record::{Recording, doubtful, last_pass, refuse_what_was_emptied};
use start::{
    begin_error_list, error_list, first_tasks, guard, header, refuse_what_cannot_be_held, remember,
    resolve, settle_losses, sharing,
};
use survey::survey;

mod abandoned;
mod control_files;
mod hands;
mod job_status;
mod large_files;
mod mounted;
mod offer;
mod outliving;
mod parts;
mod pulse;
mod record;
mod start;
mod supply;
mod survey;

pub use control_files::Then;
pub use parts::{Job, JobFiles, Observers, ProcessFacts};

/// Names of linked inodes in one task. There may be four tasks for every possible mover, so this bounds the memory of
/// the link phase.
const LINK_NAMES: usize = 128;
/// Directories in one finishing task.
const DIRTY_DIRECTORIES: usize = 512;
/// Names to delete in one task.
const EXTRA_NAMES: usize = 1024;

/// Runs a job until it ends or is stopped.
///
/// # Errors
/// The job could not start (nothing was changed) or could not continue.
pub fn run_job(job: &Job) -> Result<JobReport, Fatal> {
    let id = job_id(&job.spec, &job.list, job.files.state.as_ref())?;
    let dry_run = job.spec.policy.dry_run;
    let locked = job.files.state.as_ref().filter(|_| !dry_run);
    let held = job.files.lock.clone().filter(|_| !dry_run);
    let lock = match held {
        Some(lock) => Some(lock),
        None => locked.map(|state| state.lock(&id).map(Arc::new)).transpose()?,
    };
    let destination = job.spec.destination.to_path();
    let remembered = job.files.state.as_ref().and_then(|s| s.placement(&id, &destination));
    let last_run = job.files.state.as_ref().and_then(|state| state.status(&id.0));
    let mut record = Recording::open(&job.spec, locked, &id)?;
    let mounts = record.as_ref().map_or_else(|| Ok(MountTable::default()), Recording::mounts)?;
    let resolved = resolve(job, &mounts, remembered)?;
    let placement = resolved.placement;
    if let Some(writing) = writing((&job.spec, &job.list), &resolved) {
        job.destination.take(&writing, &resolved, &*job.observers.monitor)?;
    }
    if let (Some(state), Some(lock)) = (locked, &lock) {
        let on_storage: Vec<_> = resolved.targets.iter().filter_map(|at| on_storage(at)).collect();
        state.claim(lock, job.spec.verb, (&resolved.targets, &on_storage))?;
        state.volumes().note(&id, &job.spec.destination, || volume_of(&job.spec))?;
    }
    refuse_what_cannot_be_held(&job.spec, &resolved.roots)?;
    if matches!(job.spec.verb, Verb::Copy | Verb::Sync) {
        resolved.roots.iter().try_for_each(refuse_missing_destination)?;
    }
    let last = last_pass(job, &id, record.as_ref())?;
    refuse_what_was_emptied(&job.spec, &resolved.roots, last.as_ref())?;
    let guard = guard(job, &id, (&resolved, &mounts), last.as_ref(), record.as_ref())?;
    let mounted = Mounted::of(&resolved.roots);
    if let Some(record) = &mut record {
        record.begin(job, &resolved.roots, &mounts)?;
        guard.go_on(record.failed.unseen, record.had);
    }
    if let Some(state) = locked {
        // The first record says nothing about the destination's identity: it may be made by this run.
        remember(state, &id, placement, &destination);
    }
    let targets = resolved.roots.iter().map(|r| r.written().clone()).collect();
    job.observers.monitor.event(&Event::Start { job: id.clone(), targets, dry_run });
    tracing::info!(job = %id, dry_run, movers_asked = job.spec.limits.threads, "job started");
    if let Some(manifest) = &job.manifest {
        manifest.begin(&header(job, &id, &resolved));
    }
    let is_resumed = record.as_ref().is_some_and(|record| record.is_resumed);
    let (survey, doubts) = survey(job, &id, &resolved, is_resumed)?;
    let outliving = Outliving::begin(job, &id)?;
    let jobs_state = job.files.state.as_ref().map(|state| (state, &id));
    let written = PeriodicFlush::begin(&job.spec, jobs_state, &resolved.targets, &job.control)?;
    let trust = written.trust();
    let waiting = &outliving;
    let begin = Begin { waiting, mounts, resolved, guard, record, survey, doubts, last, trust };
    // A run that could not begin has issued no tasks. Movers of an earlier run may still be running.
    let unless_fenced = || (!outliving.before).then(|| outliving.end());
    let mut run = Run::new(job, &id, begin).inspect_err(|_| _ = unless_fenced())?;
    let flushing = written.flush_now_and_then(&run.engine);
    let counting = precount::begin(&run.engine, &job.list, last_run.as_ref());
    let result = run.run(&job.list);
    drop((flushing, counting));
    if run.hands.has_left_any_here() {
        tracing::warn!(
            "a system call hangs; the job stays locked until the kernel ends this process"
        );
        std::mem::forget((lock.clone(), job.destination.clone()));
    }
    if !dry_run {
        tell_what_is_gone(&mounted, &run.engine);
    }
    run.end_for_others(&outliving, result.is_ok(), &job.list);
    if let Some(state) = locked {
        remember(state, &id, placement, &destination);
    }
    // Also if the job cannot go on.
    job.observers.counters.outlook().enter(Stage::Flush);
    written.flush_last(&run.engine, result.is_ok() && run.has_failed_at_nothing());
    if result.is_err()
        && run.has_flushed_all()
        && let Some(record) = &run.kept.record
    {
        record.note_flushed();
    }
    result?;
    let mut report = run.report(id);
    report.error_list = error_list(job, &run.engine);
    let one = job.spec.sources.len() == 1 && matches!(job.list, JobList::None);
    report.meant_as_name =
        one && placement == Placement::As && job.spec.target_mode == TargetMode::Auto;
    if let Some(state) = &job.files.state {
        settle_losses(job, state, &mut report, &destination);
    }
    let is_complete = report.state == JobState::Finished && run.has_failed_at_nothing();
    written.end(&run.engine, &job.list, is_complete);
    run.conclude(job, report)
}

/// The state at the start of a run.
struct Begin<'a> {
    /// Whether movers of the previous run may still be running.
    waiting: &'a Outliving,
    mounts: MountTable,
    resolved: Resolved,
    guard: Guard,
    record: Option<Recording>,
    survey: Option<Survey>,
    doubts: RecheckSet,
    last: Option<LastPass>,
    trust: Trust,
}

struct Run {
    engine: Arc<Engine>,
    queue: Arc<dyn Dispatch>,
    hands: Executor,
    coordinator: Coordinator,
    kept: Kept,
    told: Told,
    /// Tasks that are published once their causes are recorded.
    outgoing: Vec<Task>,
    ledger: SpillLedger,
    /// Both sides were scanned again for names that only the destination has.
    looked_for_extra: bool,
    /// The number of tasks requested from a list that had none yet.
    awaited: Option<usize>,
    /// The job was stopped before it had movers: nothing is started.
    begins: bool,
    course: Course,
    /// How long earlier runs of the same command took.
    before: Duration,
}

/// How far a run has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    Running,
    /// All its tasks have ended.
    Ended,
    /// It was stopped, and does not wait for tasks that have not ended.
    GivenUp,
}

/// What another run of the job finds.
struct Kept {
    /// The journal, if there is one.
    record: Option<Recording>,
    /// Parts of large files for another run to resume.
    large_files: PartialFiles,
    starts: Starts,
    /// The catalog, if there is one.
    survey: Option<Survey>,
}

/// What others see of the job while it runs.
struct Told {
    /// The control files for other processes.
    outside: Option<Outside>,
    pulse: Pulse,
    shown: Option<Shown>,
}

impl Run {
    fn new(job: &Job, id: &JobId, begin: Begin<'_>) -> Result<Self, Fatal> {
        let Begin { waiting, mounts, resolved, guard, record, survey, doubts, last, trust } = begin;
        let fenced = waiting.before;
        let spec = &job.spec;
        let allowance = Allowance::new(spec.limits.threads).reading(&resolved.roots);
        let mut spared = record.as_ref().map_or(Ok(Vec::new()), Recording::temporaries)?;
        let (large_files, starts) = large_files::open(job, id, fenced)?;
        spared.extend(large_files.temporaries());
        let history = record::history(spec, record.as_ref(), last.as_ref());
        let facts = RunFacts {
            is_resumed: record.as_ref().is_some_and(|record| record.is_resumed),
            is_durable: spec.verb == Verb::Sync && !spec.policy.dry_run,
            keeps_journal: record.is_some(),
            keeps_parts: large_files.are_kept(),
            is_elsewhere: job.fleets.is_some(),
            shares_chunks: job.chunk_movers.is_some(),
            flushes_chunks: false,
            keeps_catalog: survey.is_some(),
            tells_entered: survey.as_ref().is_some_and(Survey::records_all),
            follows: matches!(job.list, JobList::Changed(_)),
            // A list may name one directory several times.
            directories_apart: resolved.meetings.is_empty() && matches!(job.list, JobList::None),
            history,
            trust,
            umask: job.process.umask,
        };
        let run = dmover_host::random_u64();
        let open_files = start::open_files(job, id);
        let failures = start::failures(job, id, record.is_some());
        let open = open_files.as_ref().map(|files| files.before().clone());
        let doubts = RecheckSet { content: &doubts.content | &open.unwrap_or_default(), ..doubts };
        let has_others = job.fleets.is_some() || job.chunk_movers.is_some();
        let offer = (has_others && !waiting.is_stopped).then(|| {
            let parts = (&resolved, &guard);
            offer(job, (id, run), parts, facts.clone(), spared.clone())
        });
        let offer = offer.transpose()?.flatten();
        let offer = offer.map(|offer| JobOffer { has_waited: fenced, ..offer });
        let engine = Arc::new(Engine::assemble(Parts {
            spec,
            facts,
            capacity: Capacity {
                allowance,
                open_files_max: job
                    .process
                    .open_files_max
                    .saturating_sub(resolved.descriptors() + job.destination.descriptors()),
                own_bytes_per_s: None,
                spill_directory: &job.process.spill_directory,
            },
            places: places(job, resolved.roots, resolved.meetings),
            mounts,
            temporaries: TemporaryNames::new(id, run).sparing(spared),
            guard,
            sharing: sharing(spec)?,
            doubtful: doubtful(record.as_ref(), doubts)?,
            open_files,
            recorder: job.manifest.clone(),
            receivers: receivers(job, failures),
            layout: Arc::clone(&job.layout),
        })?);
        let (hands, queue) =
            Executor::of(job, offer, &engine, (allowance, record.is_some()), waiting.note())?;
        let has_fleet = matches!(hands, Executor::Elsewhere(_));
        let begins = !waiting.is_stopped && has_fleet == job.fleets.is_some();
        let outside = Outside::of(job, id, run, &engine);
        // After the status: who reads both sees that this is another run. Nothing has been started before.
        begin_error_list(job, id, &engine);
        let coordinator = Coordinator::new(allowance.most * 4, Budget::USUAL)
            .when(survey.is_some(), Coordinator::surveying)
            .when(record.is_some(), Coordinator::journalled)
            .when(fenced, Coordinator::fenced)
            .when(has_fleet, Coordinator::remembering);
        Ok(Self {
            engine,
            queue,
            hands,
            coordinator,
            kept: Kept { record, large_files, starts, survey },
            told: Told {
                outside,
                pulse: Pulse::new(job.observers.log_every),
                shown: Shown::new(job, id),
            },
            outgoing: Vec::new(),
            ledger: SpillLedger::new(&job.process.spill_directory, memory_bytes(spec) / 4),
            looked_for_extra: false,
            awaited: None,
            begins,
            course: Course::Running,
            before: job.before + waiting.waited,
        })
    }

    /// Records how the job has ended.
    fn conclude(&mut self, job: &Job, report: JobReport) -> Result<JobReport, Fatal> {
        let settled = self.engine.doubts.earlier.take_settled();
        if let Some(open_files) = &self.engine.doubts.open_files {
            open_files.end(&settled);
        }
        let saw_all = self.saw_all(&job.list);
        let looked_into =
            if saw_all { LookedInto::Everything } else { LookedInto::These(&settled) };
        let is_flushed = self.has_flushed_all();
        if let Some(record) = &mut self.kept.record {
            record.end(&report, &mut self.coordinator, (looked_into, is_flushed))?;
        }
        if let Some(survey) =
            self.kept.survey.as_mut().filter(|_| report.state == JobState::Finished)
        {
            survey.trust(&settled)?;
        }
        if let Some(outside) = &self.told.outside {
            outside.end(&self.engine, &report, report.process_code(report.exit_code()));
        }
        tracing::info!(job = %report.job, state = ?report.state, elapsed = ?report.elapsed,
            errors = report.counters.get(Counter::Errors), "job ended");
        Ok(report)
    }

    /// Whether everything that this run has written is on storage: every mover flushes what a task has written before
    /// it reports the end of the task, also of one that a stop has cut short.
    fn has_flushed_all(&self) -> bool {
        let reports = &self.engine.reports;
        let is_lost = reports.counters.get(Counter::LeasesExpired) > 0;
        self.course == Course::Ended && !is_lost && !reports.has_failed_to_flush()
    }

    fn run(&mut self, list: &JobList) -> Result<(), Fatal> {
        if !self.begins {
            self.course = Course::Ended;
            self.queue.close();
            return Ok(());
        }
        if let Executor::Here(crew, _) = &mut self.hands {
            crew.begin()?;
        }
        let result = self.begin(list).and_then(|()| {
            while self.course == Course::Running {
                self.turn(list)?;
            }
            self.tell_unlinked()
        });
        let result = result.and_then(|()| self.engine.lost_source().map_or(Ok(()), Err));
        if let (Err(error), Some(outside)) = (&result, &self.told.outside) {
            outside.failed(&self.engine, error.to_string(), error.exit_code().code());
        }
        if let Some(shown) = &self.told.shown {
            shown.show(&self.engine, &Standing { hands: &self.hands, tasks_left: 0 }, false);
        }
        self.queue.close();
        if let Executor::Here(crew, _) = &mut self.hands {
            crew.end();
        }
        result
    }

    /// Publishes the first tasks, or those that an earlier run left.
    fn begin(&mut self, list: &JobList) -> Result<(), Fatal> {
        let resumed = self.kept.record.as_ref().filter(|record| record.is_resumed);
        if let Some(record) = resumed {
            let first = record.first_input(&mut self.ledger)?;
            self.feed(first, list)?;
            self.take_what_is_left(list)?;
        } else if let Some(survey) = &mut self.kept.survey {
            let tasks = survey.next(false)?;
            self.feed(Input::Survey(tasks), list)?;
        } else {
            self.feed(self.start(list), list)?;
        }
        self.settle()
    }

    fn start(&self, list: &JobList) -> Input {
        let tasks = first_tasks(list, &self.engine);
        if let JobList::Failed(paths) = list {
            paths.rewind();
        }
        let more = matches!(list, JobList::Sums(_) | JobList::Records(_) | JobList::Failed(_));
        Input::Start { tasks, more }
    }

    fn take_what_is_left(&mut self, list: &JobList) -> Result<(), Fatal> {
        let mut left = Left::default();
        while let Some(record) = &self.kept.record {
            let next = record.next_input(&mut left, Budget::USUAL)?;
            let ends = matches!(&next, Input::Left { more: false, .. });
            self.feed(next, list)?;
            if ends {
                break;
            }
        }
        Ok(())
    }

    /// Commits what has happened; only then may other steps depend on it.
    fn settle(&mut self) -> Result<(), Fatal> {
        if let Some(record) = &mut self.kept.record {
            record.settle(&self.engine)?;
        }
        self.settle_large_files();
        if !self.outgoing.is_empty() {
            self.queue.publish(std::mem::take(&mut self.outgoing));
        }
        self.queue.acknowledge();
        Ok(())
    }

    /// Handles requests of other processes: a paused job has no movers.
    fn listen(&mut self) -> Result<(), Fatal> {
        self.engine.reports.counters.outlook().enter(stage(self.coordinator.phase()));
        let tasks_left = self.coordinator.pending();
        self.told.pulse.turn(&self.engine, tasks_left);
        let standing = Standing { hands: &self.hands, tasks_left };
        let outside = self.told.outside.as_mut();
        let held = outside.is_some_and(|outside| outside.turn(&self.engine, &standing));
        if let Some(shown) = &mut self.told.shown {
            shown.turn(&self.engine, &standing, held);
        }
        match &mut self.hands {
            Executor::Here(crew, chunks) => {
                if let Some(chunks) = chunks {
                    chunks.hold(held);
                }
                crew.turn(held)
            }
            Executor::Elsewhere(fleet) => {
                fleet.hold(held);
                self.coordinator.widen(fleet.places());
                if self.engine.control.is_stopping() {
                    fleet.stop(self.engine.control.is_over());
                }
                fleet.failure().map_or(Ok(()), Err)
            }
        }
    }

    /// Handles a message of a remote mover besides outcomes.
    fn hear(&self, told: MoverReport) {
        let facts = self.engine.hear(told);
        if let Executor::Elsewhere(fleet) = &self.hands {
            for fact in facts {
                fleet.know(fact);
            }
        }
    }

    /// One turn of the main loop: handle messages of movers, timers and switches.
    fn turn(&mut self, list: &JobList) -> Result<(), Fatal> {
        // Before the reports: what was said of a lease that has run out was said before that.
        let expired = self.queue.expired();
        let reports = self.queue.reports(concurrency_driver::SAMPLE);
        self.listen()?;
        if self.kept.record.is_some() && self.engine.control.is_stopping() {
            // Tasks that heard of the stop before this have not done everything.
            self.feed(Input::Stop, list)?;
        }
        for report in reports {
            let input = match report {
                Reported::MoverReport(told) => {
                    self.hear(*told);
                    continue;
                }
                Reported::Lost(task) => {
                    self.tell_lost(&task);
                    Input::GivenUp(*task)
                }
                Reported::Returned(task) => {
                    self.engine.reports.count(Counter::Retries);
                    Input::Returned(*task)
                }
                Reported::Partial(task, outcome) => Input::Report(task, outcome),
                Reported::Done(task, outcome) => Input::Done(task, outcome),
            };
            self.feed(input, list)?;
        }
        for task in expired {
            self.engine.reports.count(Counter::LeasesExpired);
            self.feed(Input::Expired(task), list)?;
        }
        let control = Arc::clone(&self.engine.control);
        if let Some(most) = self.awaited.take() {
            let input = if control.is_stopping() {
                Some(Input::Start { tasks: Vec::new(), more: true })
            } else {
                list.supply(most, &self.engine)?
            };
            match input {
                Some(input) => self.feed(input, list)?,
                None => self.awaited = Some(most),
            }
        }
        if let Some(most) = self.engine.spec.limits.duration_max_ms
            && (self.before + self.engine.reports.started.elapsed()).as_millis() as u64 >= most
        {
            control.stop(StopReason::Duration);
        }
        if control.is_stopping() {
            self.feed(Input::Stop, list)?;
            if control.is_given_up() {
                self.course = Course::GivenUp;
            }
        }
        self.settle()
    }

    /// Gives an input to the coordinator and carries out its commands.
    fn feed(&mut self, input: Input, list: &JobList) -> Result<(), Fatal> {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            if let Input::Report(_, outcome) | Input::Done(_, outcome) = &input {
                self.kept.large_files.hear(outcome, &*self.engine);
            }
            let commands = self.coordinator.handle(input);
            if let Some(record) = &mut self.kept.record {
                record.changes(self.coordinator.take_changes());
            }
            for command in commands {
                match command {
                    Command::Publish(task) if self.ends_interrupted(&task) => {
                        inputs.push_back(Input::Done(task.id, Outcome::default()));
                    }
                    Command::Publish(mut task) => {
                        self.kept.large_files.fill(&mut task, &*self.engine);
                        self.outgoing.push(task);
                    }
                    Command::Supply(most) => match list.supply(most, &self.engine)? {
                        Some(input) => inputs.push_back(input),
                        None => self.awaited = Some(most),
                    },
                    Command::Shelve(tasks) => self.ledger.shelve(tasks)?,
                    Command::Unshelve(most) => {
                        inputs.push_back(Input::Unshelved(self.ledger.unshelve(most)?));
                    }
                    Command::RecordLinks(names) => {
                        if let Some(record) = &mut self.kept.record {
                            record.links(&names);
                        }
                        self.ledger.record_links(names)?;
                    }
                    Command::RecordDirty(dirty) => {
                        if let Some(record) = &mut self.kept.record {
                            record.dirty(&dirty);
                        }
                        self.ledger.record_dirty(dirty)?;
                    }
                    Command::FetchLinks => {
                        inputs.push_back(Input::Links(self.ledger.take_links(LINK_NAMES)?));
                    }
                    Command::FetchDirty => {
                        let dirty = self.ledger.take_dirty(DIRTY_DIRECTORIES)?;
                        if let Some(record) = &mut self.kept.record {
                            record.taken(&dirty);
                        }
                        inputs.push_back(Input::Dirty(dirty));
                    }
                    Command::RecordExtra(names) => self.ledger.record_extra(names)?,
                    Command::FetchExtra => inputs.push_back(Input::Extra(self.next_extra()?)),
                    Command::Begin => {
                        let doubts = self.kept.survey.as_mut().map(Survey::doubts).transpose()?;
                        self.engine.doubts.earlier.add(doubts.unwrap_or_default());
                        if let Executor::Elsewhere(fleet) = &self.hands {
                            fleet.know(Notice::RecheckSet(self.engine.doubts.earlier.all()));
                        }
                        inputs.push_back(self.start(list));
                    }
                    Command::TakeSurvey(found) => {
                        // What was carried to another name is on record before the rename is.
                        let moved = found.iter().any(|found| matches!(found, Surveyed::Moved(..)));
                        if let Some(record) = self.kept.record.as_mut().filter(|_| moved) {
                            record.settle(&self.engine)?;
                        }
                        let tasks = self.kept.survey.as_mut().map(|survey| survey.take(found));
                        inputs.push_back(Input::Surveyed(tasks.transpose()?.unwrap_or_default()));
                    }
                    Command::FetchSurvey => {
                        let saw_all = self.saw_all(list);
                        let tasks =
                            self.kept.survey.as_mut().map(|s| s.next(saw_all)).transpose()?;
                        inputs.push_back(Input::Survey(tasks.unwrap_or_default()));
                    }
                    Command::Withdraw => {
                        // What was about to go out has not been leased either.
                        let outgoing = std::mem::take(&mut self.outgoing);
                        let back = self.queue.withdraw().into_iter().chain(outgoing);
                        inputs.extend(back.map(Input::Withdrawn));
                    }
                    Command::Abandon(kind) => self.tell_abandoned(&kind),
                    Command::Finished => self.course = Course::Ended,
                }
            }
        }
        Ok(())
    }

    /// Whether every entry of the tree was scanned without failure.
    fn saw_all(&self, list: &JobList) -> bool {
        let whole = matches!(list, JobList::None) && self.engine.filter.admits_all();
        whole && self.has_failed_at_nothing()
    }

    fn has_failed_at_nothing(&self) -> bool {
        let failed = self.kept.record.as_ref().map_or(0, |record| record.failed.all());
        self.engine.reports.counters.get(Counter::Errors) + failed == 0
    }

    /// The next tasks of the phase that deletes extra names.
    fn next_extra(&mut self) -> Result<Vec<TaskKind>, Fatal> {
        let engine = Arc::clone(&self.engine);
        let Some(policy) = engine.spec.delete_policy() else { return Ok(Vec::new()) };
        let looks_again = policy.when == DeleteWhen::After
            || (engine.facts.is_resumed
                && (policy.when == DeleteWhen::Delay || engine.pass.guard.asks_for_half()));
        if looks_again && !self.looked_for_extra {
            self.looked_for_extra = true;
            let look = |root| TaskKind::Scan {
                directory: DirectoryRef::of_root(root),
                names: ScanNames::Extra,
            };
            return Ok(engine.places.roots.ids().map(look).collect());
        }
        if let Some(mut reason) = engine.pass.guard.withholds_all(&engine) {
            loop {
                let names = self.ledger.take_extra(EXTRA_NAMES)?;
                extra::guard::name_example(&engine, &mut reason, &names);
                if names.is_empty() {
                    return Ok(Vec::new());
                }
                extra::guard::withhold(&engine, &names, &reason);
            }
        }
        let mut tasks: Vec<Vec<ExtraNames>> = Vec::new();
        let mut room = 0;
        for mut extra in
            self.ledger.take_extra(EXTRA_NAMES * self.engine.resources.movers_max * 4)?
        {
            extra::delete::leave_out_held(&engine, &mut extra);
            let names = extra.names.len();
            match tasks.last_mut() {
                Some(task) if names <= room => task.push(extra),
                _ => {
                    tasks.push(vec![extra]);
                    room = EXTRA_NAMES;
                }
            }
            room = room.saturating_sub(names);
        }
        Ok(tasks.into_iter().map(TaskKind::Delete).collect())
    }

    fn report(&mut self, job: JobId) -> JobReport {
        let limit = self.hands.limit();
        let engine = &self.engine;
        extra::guard::foretell_withheld(engine);
        let tally = engine.reports.tally();
        JobReport {
            job,
            state: engine.control.reason().map_or(JobState::Finished, JobState::Stopped),
            dry_run: engine.spec.policy.dry_run,
            meant_as_name: false,
            counters: engine.reports.counters.snapshot(),
            errors: tally.errors,
            error_list: ErrorList::Nowhere,
            losses: tally.losses,
            allowed_losses: engine.spec.policy.allow_loss,
            earlier_losses: BTreeMap::new(),
            earlier_failures: self.kept.record.as_ref().map_or_else(Failed::default, |r| r.failed),
            slowest: engine.reports.slowest.list(),
            withheld: engine.pass.guard.withheld(),
            resumed: engine.facts.is_resumed,
            limit,
            connections: engine.connections(),
            other_hosts: self.hands.other_hosts(),
            elapsed: self.before + engine.reports.started.elapsed(),
            needs_all: engine.pass.needs_all(),
            peak_memory_bytes: dmover_host::memory::peak_bytes(),
            spilled: self.ledger.has_spilled(),
        }
    }
}

impl Engine {
    /// The last task of a comparison with a manifest: a scan for entries that it does not have.
    fn last_tasks(&self, supply: &dyn RecordSupply) -> Vec<TaskKind> {
        let policy = self.spec.policy.verify.as_ref();
        let wanted = policy.is_some_and(|policy| policy.extra) && supply.is_whole();
        let root = self.places.roots.ids().next().filter(|_| wanted);
        let scan = |root| TaskKind::Scan {
            directory: DirectoryRef::of_root(root),
            names: ScanNames::Root,
        };
        root.map(scan).into_iter().collect()
    }
}

fn stage(phase: Phase) -> Stage {
    match phase {
        Phase::Renames => Stage::Rename,
        Phase::Tree => Stage::Transfer,
        Phase::Links => Stage::Link,
        Phase::Extra => Stage::Delete,
        Phase::Dirty => Stage::Seal,
        Phase::Catalog | Phase::Finished => Stage::Record,
    }
}
