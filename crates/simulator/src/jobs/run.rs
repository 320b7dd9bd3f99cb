//! One run: the job of a seed, disturbed, repeated, and compared.
use dmover_engine::{
    Control, Job, JobFiles, JobReport, JobState, Observers, ProcessFacts, RemoteTrees, StopReason,
};
use dmover_job::{Client, Outcome, Published, ReadBack, Request};
use dmover_journal::StateDirectory;
use dmover_memory::faults::{Call, Fault as DiskFault, Rule, When, Where};
use dmover_memory::{Actor, Clock, Disk, Errno, Profile, SimulatedTime};
use dmover_model::{
    CopyPolicy, Event, ExitCode, Fatal, JobSpec, Limits, PathBytes, Selection, TargetMode, Verb,
};
use dmover_observe::{Monitor, lock};
use dmover_schedule::simulation::{self, Failed, Process, Settings, Trace};
use dmover_schedule::sync::Mutex;
use dmover_sys::simulated::{Judge, Machine, Verdict, Volume};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::TREE;
use super::after;
use super::compare::{Tree, differences, false_files, tree};
use super::far::{FarTrees, PREFIX};
use super::grow::Grower;
use super::line::Line;
use super::plan::{Ending, Fault, Plan, Round};
use super::seed_directory::SeedDirectory;
use super::vary::meddle;

mod far;

/// Steps of a simulation that does not end.
const STEPS_MAX: u64 = 3_000_000;
/// When simulations begin.
const BEGINS_S: i64 = 1_700_000_000;
/// Time that a call takes.
const CALL_NS: u64 = 10_000;
pub(super) const SOURCE: &str = "/simulated/source";
pub(super) const DESTINATION: &str = "/simulated/destination";
/// Undisturbed runs of the command until it ends with 0: one may say that it is to be repeated.
const LAST_RUNS: u32 = 3;

/// What a run was like.
#[derive(Debug, Clone)]
pub struct Run {
    /// What was promised and is not so.
    pub broken: Vec<String>,
    /// What happened, one line each.
    pub story: Vec<String>,
    /// The choices of the scheduler.
    pub trace: Trace,
}

/// Runs the job of a plan.
///
/// # Panics
/// If the simulation itself fails.
pub fn simulate(plan: &Plan) -> Run {
    let settings = Settings { seed: plan.seed, steps_max: STEPS_MAX, begins_s: BEGINS_S };
    let state = SeedDirectory::of(plan.seed);
    let ((broken, story), trace) = simulation::simulate(settings, || {
        let mut scene = Scene::new(plan, state.path());
        let mut broken = scene.play();
        broken.sort();
        (broken, scene.story)
    });
    Run { broken, story, trace }
}

pub(super) struct Nobody;

impl Client for Nobody {
    fn say(&self, _: &str) {}

    fn confirms(&self, _: &Result<JobReport, Fatal>) -> bool {
        true
    }

    fn begins_again(&self, _: &Arc<dmover_observe::Counters>) {}

    fn reads_back(&self, _: &Arc<dmover_observe::Counters>) {}

    fn publish(&self, _: &JobReport, _: ExitCode) -> Result<Published, Fatal> {
        Ok(Published::Done)
    }
}

/// Keeps what a user would be told: trouble in words, and findings as they are.
pub(super) struct Told(Mutex<Vec<String>>, Mutex<Vec<Event>>, /* Wants every entry: */ bool);

impl Told {
    /// For somebody who wants to see every entry, or not.
    pub(super) fn new(lists_entries: bool) -> Self {
        Self(Mutex::default(), Mutex::default(), lists_entries)
    }

    /// The findings: digests, verdicts, differences.
    pub(super) fn findings(&self) -> Vec<Event> {
        lock(&self.1).clone()
    }
}

impl Monitor for Told {
    fn event(&self, event: &Event) {
        if matches!(event, Event::Digest(_) | Event::Checked { .. } | Event::Difference(_)) {
            lock(&self.1).push(event.clone());
        }
        let line = match event {
            Event::Error(error) => {
                format!("{:?} {:?} {:?}: {error}", error.side, error.operation, error.path)
            }
            Event::Loss { path, kind, detail, .. } => format!("lost: {path:?} {kind:?} {detail}"),
            Event::Withheld { reason, .. } => format!("withheld: {reason}"),
            _ => return,
        };
        lock(&self.0).push(line);
    }

    fn wants_items(&self) -> bool {
        self.2
    }
}

/// How a run of the command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    Code(ExitCode, JobState),
    Failed(ExitCode, String),
    Killed,
    Panicked(String),
}

impl Ended {
    /// Whether it was killed or stopped before it was complete.
    pub(super) fn is_interrupted(&self) -> bool {
        matches!(self, Self::Killed | Self::Code(_, JobState::Stopped(_)))
    }
}

/// What a process has beside its disks.
pub(super) struct Seat {
    /// Hears the job.
    pub told: Arc<Told>,
    /// The disk of the source, for those who change it meanwhile.
    pub source: Arc<Volume>,
    /// Stops the job.
    pub control: Arc<Control>,
    /// The connection to a source at another host, whose disk is not mounted then.
    pub line: Option<Arc<Line>>,
}

/// What a process does.
pub(super) type Work = Arc<dyn Fn(&Seat) -> Ended + Send + Sync>;

/// A command that runs.
struct Running {
    process: Process<Ended>,
    machine: Arc<Machine>,
    told: Arc<Told>,
    line: Option<Arc<Line>>,
}

/// Whether a run gave way to another one.
fn is_refusal(ended: &Ended) -> bool {
    matches!(ended, Ended::Failed(_, words) if words.contains("already"))
}

pub(super) struct Scene<'p> {
    pub(super) plan: &'p Plan,
    pub(super) state: &'p Path,
    pub(super) source: Disk,
    pub(super) destination: Disk,
    boots: u32,
    grower: Arc<std::sync::Mutex<Grower>>,
    /// What goes wrong with the connection of the next run.
    bad: Option<far::Bad>,
    /// The runs before the last ones.
    is_disturbed: bool,
    story: Vec<String>,
    pub(super) broken: Vec<String>,
}

impl<'p> Scene<'p> {
    fn new(plan: &'p Plan, state: &'p Path) -> Self {
        let time = SimulatedTime::sharing(simulation::clock().expect("a simulation"));
        let disk = |profile: Profile, number: u64, ahead_ns: i64| {
            let clock = Clock::new(time.clone(), CALL_NS).with_offset_ns(ahead_ns);
            Disk::new(profile, clock, plan.seed ^ number)
        };
        let source = disk(far::profile(plan), 1, plan.far.as_ref().map_or(0, |far| far.clock_ns));
        let destination = disk(plan.destination.clone(), 2, 0);
        let random = ChaCha8Rng::seed_from_u64(plan.seed ^ 0x7472_6565);
        let grower = Arc::new(std::sync::Mutex::new(Grower::new(random)));
        let (story, broken) = (Vec::new(), Vec::new());
        Self {
            plan,
            state,
            source,
            destination,
            boots: 1,
            is_disturbed: false,
            grower,
            bad: None,
            story,
            broken,
        }
    }

    fn play(&mut self) -> Vec<String> {
        let plan = self.plan;
        self.grow(|grower, disk| grower.grow(disk, plan.entries));
        if plan.has_older {
            self.source.settle();
            self.run(None, "an earlier run");
            self.grow(|grower, disk| grower.change(disk, plan.entries / 3));
            let other = ChaCha8Rng::seed_from_u64(plan.seed ^ 0x6f74_6865);
            Grower::new(other).grow(&mut self.destination, plan.entries / 8);
        }
        self.source.settle();
        self.destination.settle();
        self.disturb();
        self.far_runs();
        self.is_disturbed = true;
        for round in &plan.rounds {
            if plan.changes {
                self.grow(|grower, disk| grower.change(disk, 3));
            }
            self.round(*round);
        }
        self.is_disturbed = false;
        self.clear_faults();
        self.destination.profile_mut().capacity_bytes = plan.destination.capacity_bytes;
        self.annotate();
        self.conclude();
        if self.broken.is_empty() {
            after::play(self);
        }
        std::mem::take(&mut self.broken)
    }

    /// Changes the source.
    fn grow(&mut self, change: impl FnOnce(&mut Grower, &mut Disk)) {
        let mut grower = self.grower.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut grower, &mut self.source);
    }

    /// Adds the calls of a run that somebody wants to see.
    fn watch(&mut self, volumes: &[Arc<Volume>]) {
        let Some(words) = &self.plan.watched else { return };
        for volume in volumes {
            let mut disk = volume.disk();
            let shown = disk.faults().trace().map(|call| format!("    {call}"));
            self.story.extend(shown.filter(|line| line.contains(words.as_str())));
            disk.faults_mut().trace_last(0);
        }
    }

    /// What goes wrong during the disturbed runs.
    fn disturb(&mut self) {
        let rule = |call, fault, chance| Rule {
            call,
            at: Where::Anywhere,
            when: When::Chance(chance),
            fault,
        };
        let source_errors = self.plan.varied.source_errors;
        if source_errors > 0.0 {
            let fault = DiskFault::Error(Errno::IO);
            self.source.faults_mut().add(rule(None, fault, source_errors));
        }
        match self.plan.fault {
            Fault::None => {}
            Fault::Errors(errno, chance) => {
                self.destination.faults_mut().add(rule(None, DiskFault::Error(errno), chance));
            }
            Fault::Full(bytes) => {
                let profile = self.destination.profile_mut();
                profile.capacity_bytes = bytes;
            }
            Fault::Partial(bytes) => {
                for call in [Call::Read, Call::Write] {
                    let fault = DiskFault::Partial(bytes);
                    self.destination.faults_mut().add(rule(Some(call), fault, 0.3));
                    self.source.faults_mut().add(rule(Some(call), fault, 0.3));
                }
            }
        }
    }

    pub(super) fn clear_faults(&mut self) {
        self.source.faults_mut().clear();
        self.destination.faults_mut().clear();
    }

    /// Some calls at either disk fail.
    pub(super) fn fail_some(&mut self, chance: f64) {
        let (call, at, when) = (None, Where::Anywhere, When::Chance(chance));
        let rule = Rule { call, at, when, fault: DiskFault::Error(Errno::IO) };
        self.source.faults_mut().add(rule.clone());
        self.destination.faults_mut().add(rule);
    }

    fn round(&mut self, round: Round) {
        if round.ending == Ending::FailedFlush {
            let flushes = [Call::SyncData, Call::Sync, Call::SyncAll];
            for call in flushes {
                let when = When::Nth(1 + round.at_call % 4);
                let fault = DiskFault::LosesData(Errno::IO);
                self.destination.faults_mut().add(Rule {
                    call: Some(call),
                    at: Where::Anywhere,
                    when,
                    fault,
                });
            }
            let stop_at = self.plan.varied.stops.then_some(round.at_call);
            self.run(stop_at, "a run with failing flushes");
            self.destination.faults_mut().clear();
            self.disturb();
            return;
        }
        let has_rival = self.plan.has_rival && round.ending == Ending::Kill;
        let ended = self.run_beside(Some(round.at_call), "a disturbed run", has_rival);
        if round.ending == Ending::Kill {
            if ended != Ended::Killed {
                return;
            }
            let (source, destination) = (look(&mut self.source), look(&mut self.destination));
            // A power cut or a lost write before may have left such files, which the last run has to find.
            if self.boots == 1
                && !self.plan.rounds.iter().any(|it| it.ending == Ending::FailedFlush)
            {
                self.broken.extend(false_files(&source, &destination));
            }
            return;
        }
        self.boots += 1;
        self.destination = self.destination.cut(self.plan.seed ^ u64::from(self.boots));
        self.story.push("the power is cut".into());
        self.disturb();
    }

    /// The last runs, and what must be true then.
    fn conclude(&mut self) {
        let before = look(&mut self.source);
        let mut ended = Ended::Killed;
        for _ in 0..LAST_RUNS {
            ended = self.run(None, "the last run");
            if ended == Ended::Code(ExitCode::Done, JobState::Finished) {
                break;
            }
        }
        if ended != Ended::Code(ExitCode::Done, JobState::Finished) {
            self.broken.push(format!("the last run ended with {ended:?}"));
        }
        let source = look(&mut self.source);
        if source != before {
            self.broken.push("the source was changed".into());
        }
        let destination = look(&mut self.destination);
        let deletes = self.plan.policy.sync.as_ref().is_some_and(|sync| sync.delete.is_some());
        self.broken.extend(differences(&source, &destination, deletes));
        self.check_stored(&source);
    }

    /// What a pass has done survives a power cut; what `copy --fsync` has done at least does not look complete if it is not.
    fn check_stored(&mut self, source: &Tree) {
        let later = look(&mut self.destination.cut(self.plan.seed));
        let lost = match self.plan.verb {
            Verb::Sync => differences(source, &later, false),
            _ if self.plan.policy.fsync => false_files(source, &later),
            _ => Vec::new(),
        };
        self.broken.extend(lost.iter().map(|it| format!("after a power cut at the end: {it}")));
    }

    /// What happens at the calls of a process.
    fn judge(&self, at: Option<u64>, source: &Arc<Volume>, control: &Arc<Control>) -> Judge {
        let stops = self.plan.varied.stops;
        let changes =
            if self.is_disturbed { self.plan.varied.source_changes.clone() } else { Vec::new() };
        let is_pass = self.plan.verb == Verb::Sync;
        let (source, control) = (Arc::clone(source), Arc::clone(control));
        Box::new(move |calls| {
            if changes.contains(&calls) {
                meddle(&mut source.disk(), is_pass, calls);
            }
            match at {
                Some(at) if calls < at => Verdict::Proceed,
                Some(at) if stops => {
                    if calls == at {
                        control.stop(StopReason::Signal(15));
                    }
                    Verdict::Proceed
                }
                Some(_) => Verdict::Kill,
                None => Verdict::Proceed,
            }
        })
    }

    /// Starts a process.
    fn start(&mut self, volumes: &[Arc<Volume>], kill_at: Option<u64>, work: &Work) -> Running {
        let control = Arc::new(Control::default());
        let judge = self.judge(kill_at, &volumes[0], &control);
        let boot = format!("boot-{}", self.boots);
        let line = self.line(&volumes[0]);
        let mounted = if line.is_some() { &volumes[1..] } else { volumes };
        // The program clears its umask before a job begins.
        let actor = Actor { umask: 0, ..Actor::root() };
        let machine = Machine::new(mounted.to_vec(), actor, boot, judge);
        let told = Arc::new(Told::new(self.plan.varied.lists_entries));
        let source = Arc::clone(&volumes[0]);
        let seat = Seat { told: Arc::clone(&told), source, control, line: line.clone() };
        let work = Arc::clone(work);
        let process = Process::start("dmover", machine.clone(), move || work(&seat));
        Running { process, machine, told, line }
    }

    /// Waits for its end.
    fn join(&mut self, running: Running, what: &str) -> Ended {
        let Running { process, machine, told, line } = running;
        let ended = match process.join() {
            Ok(ended) => ended,
            Err(Failed::Killed) => Ended::Killed,
            Err(Failed::Panicked(words)) => {
                self.broken.push(format!("a panic: {words}"));
                Ended::Panicked(words)
            }
        };
        simulation::settle();
        machine.end();
        self.story.push(format!("{what}: {} calls, {ended:?}", machine.calls()));
        self.story.append(&mut lock(&told.0));
        self.check_line(line.as_deref(), &ended);
        ended
    }

    /// Runs the command, and kills it at a call.
    fn run(&mut self, kill_at: Option<u64>, what: &str) -> Ended {
        self.run_beside(kill_at, what, false)
    }

    /// The same, perhaps while another user gives the same command.
    fn run_beside(&mut self, kill_at: Option<u64>, what: &str, has_rival: bool) -> Ended {
        let (plan, state) = (self.plan.clone(), self.state.to_owned());
        let work: Work = Arc::new(move |seat| command(&plan, &state, seat));
        self.run_work(&work, (kill_at, has_rival), what)
    }

    /// Runs a process, kills it at a call, perhaps while another one does the same.
    pub(super) fn run_work(
        &mut self,
        work: &Work,
        (kill_at, has_rival): (Option<u64>, bool),
        what: &str,
    ) -> Ended {
        let disk = |disk: &mut Disk| {
            let clock = disk.clock().clone();
            std::mem::replace(disk, Disk::new(Profile::default(), clock, 0))
        };
        let source = Volume::new(SOURCE, 1, disk(&mut self.source));
        let destination = Volume::new(DESTINATION, 2, disk(&mut self.destination));
        let volumes = vec![Arc::clone(&source), Arc::clone(&destination)];
        if self.plan.watched.is_some() {
            for volume in &volumes {
                volume.disk().faults_mut().trace_last(1 << 20);
            }
        }
        let first = self.start(&volumes, kill_at, work);
        let rival = has_rival.then(|| self.start(&volumes, None, work));
        let ended = self.join(first, what);
        let others = rival.map(|rival| self.join(rival, "another user's run"));
        if let Some(Ended::Failed(_, words)) = others.as_ref().filter(|_| !is_refusal(&ended))
            && self.plan.fault == Fault::None
            && self.plan.varied.source_errors == 0.0
            && !words.contains("already")
        {
            self.broken.push(format!("another user's run failed: {words}"));
        }
        self.watch(&volumes);
        let take = |volume: &Volume, disk: &mut Disk| {
            let clock = disk.clock().clone();
            *disk = std::mem::replace(&mut volume.disk(), Disk::new(Profile::default(), clock, 0));
        };
        take(&source, &mut self.source);
        take(&destination, &mut self.destination);
        ended
    }
}

/// The path of the tree on a disk.
pub(super) fn below(disk: &str) -> Vec<u8> {
    [disk.as_bytes(), b"/", TREE].concat()
}

/// The tree of a disk, read without faults.
pub(super) fn look(disk: &mut Disk) -> Tree {
    let faults = disk.faults().clone();
    disk.faults_mut().clear();
    let tree = tree(disk);
    *disk.faults_mut() = faults;
    tree
}

/// The job of the plan, in a process.
fn command(plan: &Plan, state: &Path, seat: &Seat) -> Ended {
    let limits = Limits { threads: plan.threads as usize, ..plan.varied.limits.clone() };
    let mut spec = JobSpec { limits, ..spec(plan.verb, plan.policy.clone()) };
    if seat.line.is_some() {
        spec.sources = vec![PathBytes([PREFIX, TREE].concat())];
        spec.sources_are_remote = true;
    }
    ended(dmover_job::run(request(job(spec, state, seat)), &Nobody))
}

/// A job that makes the tree of the destination from that of the source.
pub(super) fn spec(verb: Verb, policy: CopyPolicy) -> JobSpec {
    JobSpec {
        schema: JobSpec::SCHEMA,
        verb,
        sources: vec![PathBytes(below(SOURCE))],
        sources_are_remote: false,
        host: None,
        destination: PathBytes(below(DESTINATION)),
        target_mode: TargetMode::As,
        selection: Selection::default(),
        policy,
        limits: Limits { threads: 2, ..Limits::default() },
    }
}

/// A job with its state in a directory.
pub(super) fn job(spec: JobSpec, state: &Path, seat: &Seat) -> Job {
    let far = seat.line.clone().map(|line| Arc::new(FarTrees(line)) as Arc<dyn RemoteTrees>);
    Job {
        remote: far,
        files: JobFiles { state: Some(StateDirectory::new(state)), ..JobFiles::default() },
        observers: Observers {
            monitor: Arc::clone(&seat.told) as Arc<dyn Monitor>,
            board: Some(Arc::default()),
            log_every: Duration::from_secs(1),
            ..Observers::default()
        },
        control: Arc::clone(&seat.control),
        ..Job::new(
            spec,
            ProcessFacts { spill_directory: state.to_owned(), ..ProcessFacts::new(0o022, 1024) },
        )
    }
}

/// A job without a manifest.
pub(super) fn request(job: Job) -> Request {
    Request { job, manifest: None, read_back: ReadBack::None }
}

/// How a job ended, which is recorded.
pub(super) fn ended(outcome: Outcome) -> Ended {
    match &outcome.result {
        Err(error) => {
            let words = error.to_string();
            let code = error.exit_code();
            let _ = outcome.end();
            Ended::Failed(code, words)
        }
        Ok(report) => {
            let state = report.state;
            match outcome.end() {
                Ok((_, code)) => Ended::Code(code, state),
                Err(failed) => Ended::Failed(failed.code, String::new()),
            }
        }
    }
}
