//! Runs a job with movers that are started for it.
use dmover_host::signals;
use dmover_model::Fatal;
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use crate::Identity;

use super::launcher::{BrokerPost, Post, see_off};
use super::owner::{Owner, sweep};
use super::site::{BrokerPlace, Given, Site};

/// How often all processes are checked.
const TURN: Duration = Duration::from_millis(50);
/// The job starts when movers are there, or after this long.
const MOVERS_WITHIN: Duration = Duration::from_mins(1);
/// A temporary failure is retried after this long.
const AGAIN: Duration = Duration::from_secs(5);
/// A job that ran for this long did not fail because of its initial conditions.
const AT_WORK: Duration = Duration::from_mins(1);
/// A broker that has ended is started again after this long.
const BROKER_AGAIN: Duration = Duration::from_secs(2);
/// After the first signal everything ends within the first time; movers and the broker get at least the following times
/// to leave.
const GONE_WITHIN: Duration = Duration::from_secs(12);
const MOVERS_LEAST: Duration = Duration::from_millis(1500);
const BROKER_LEAST: Duration = Duration::from_millis(500);
/// How often a refused start is retried.
const REFUSALS: u32 = 3;
/// The exit code for temporary failures.
const TEMPORARY: i32 = 6;

/// The option that allows connections in clear text.
const INSECURE: &str = "--insecure";

/// A job and its movers.
#[derive(Debug, Clone)]
pub struct Conduct {
    /// The path of dmover on this host.
    pub program: PathBuf,
    /// The verb and its arguments. `None`: only movers, until a signal arrives.
    pub job: Option<Vec<OsString>>,
    /// The broker to use.
    pub broker: BrokerPlace,
    /// The place where movers run.
    pub site: Site,
    /// The path of dmover where movers run.
    pub mover: PathBuf,
    /// Options for movers besides the broker.
    pub mover_options: Vec<OsString>,
    /// The directory for logs and the data of the broker; created if it does not exist, and removed when the job is
    /// done.
    pub directory: PathBuf,
    /// Additional environment variables of the job.
    pub environment: Vec<(OsString, OsString)>,
    /// How long to retry after temporary failures.
    pub retry_for: Duration,
    /// Connections in clear text are allowed.
    pub insecure: bool,
    /// The user who owns the job.
    pub identity: Arc<Identity>,
    /// Signals that warn that the time limit is near. USR1 asks the job for its status; all other signals end the job.
    pub warnings: Vec<i32>,
}

/// How the job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// The exit code, or the signal that ended the job.
    pub how: Result<u8, i32>,
    /// The time limit was near, and there is work left.
    pub wants_more_time: bool,
}

/// The source of signals, and the receiver of messages.
struct Outside<'a> {
    next: &'a dyn Fn() -> Option<i32>,
    tell: &'a dyn Fn(&str),
    warnings: &'a [i32],
    /// The first signal that ends the job, and when it arrived.
    stopped: Option<i32>,
    stopped_at: Option<Instant>,
    warned: bool,
    /// A further signal asks for a quick end.
    hurry: bool,
}

/// The numbers of SIGUSR1 and SIGTERM on Linux.
const USR1: i32 = 10;
const TERM: i32 = 15;

impl Outside<'_> {
    /// Takes one signal. Returns the signal to send to the job.
    fn hear(&mut self) -> Option<i32> {
        let signal = (self.next)()?;
        if self.warnings.contains(&signal) {
            if std::mem::replace(&mut self.warned, true) || self.stopped.is_some() {
                return None;
            }
            (self.tell)("the time limit is near: stopping the job so that it can resume");
            self.stopped_at = Some(Instant::now());
            self.stopped = Some(TERM);
            return Some(TERM);
        }
        if signal == USR1 {
            return Some(USR1);
        }
        self.hurry |= self.stopped.is_some();
        self.stopped_at.get_or_insert_with(Instant::now);
        self.stopped.get_or_insert(signal);
        Some(signal)
    }

    /// How much time is left after a signal.
    fn time_left(&self) -> Option<Duration> {
        self.stopped_at.map(|then| GONE_WITHIN.saturating_sub(then.elapsed()))
    }

    /// Waits. Returns whether the job must end.
    fn pause(&mut self, length: Duration) -> bool {
        let until = Instant::now() + length;
        while self.stopped.is_none() && Instant::now() < until {
            self.hear();
            thread::sleep(TURN);
        }
        self.stopped.is_some()
    }
}

/// Runs a job from start to end. `next`: returns the next signal; `tell`: shows a message to the user.
///
/// # Errors
/// It could not start.
pub fn conduct(
    conduct: &Conduct,
    next: &dyn Fn() -> Option<i32>,
    tell: &dyn Fn(&str),
) -> Result<Ended, Fatal> {
    let directory = &conduct.directory;
    make(directory)?;
    let owner = Owner::take(directory);
    sweep(directory);
    let warnings = &conduct.warnings[..];
    let mut outside = Outside {
        next,
        tell,
        warnings,
        stopped: None,
        stopped_at: None,
        warned: false,
        hurry: false,
    };
    let mut stage =
        Stage { conduct, broker: None, given: None, posts: Vec::new(), broker_again: None };
    let result = stage.attempts(&mut outside);
    let impatient = outside.hurry;
    // Movers without a job of this submit may have work of others to hand back.
    let is_bound = conduct.job.is_some();
    let left = || outside.time_left().filter(|_| is_bound);
    let movers = left().map(|left| left.saturating_sub(BROKER_LEAST).max(MOVERS_LEAST));
    see_off(&mut stage.posts, movers, || impatient || (next)().is_some());
    if let (Some(broker), Some(left)) = (stage.broker.take(), left()) {
        broker.end(left.max(BROKER_LEAST));
    }
    let is_finished = matches!(result, Ok(Ok(0 | 1 | 3 | 4)));
    if is_finished {
        remove(directory);
    } else if let Some(owner) = owner {
        owner.leave();
    }
    let how = result?;
    if let (Err(signal), false) = (how, outside.warned) {
        let who = if outside.stopped.is_some() { "stopped" } else { "the job died" };
        let name = signals::name(signal);
        tell(&format!("{who} by {name}; run the same command again to resume"));
    }
    let wants_more_time = outside.warned && (how.is_err() || conduct.job.is_none());
    Ok(Ended { how, wants_more_time })
}

/// Whether a process holds the lock of a broker.
fn is_locked(path: &Path) -> bool {
    std::fs::File::open(path).is_ok_and(|lock| lock.try_lock().is_err())
}

fn make(directory: &Path) -> Result<(), Fatal> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|error| {
        let message = format!("cannot create '{}': {error}", directory.display());
        Fatal::refused(message, "choose another directory with --state-dir")
    })
}

/// Removes the directory after the job, unless another copy of the same job has begun to use it.
fn remove(directory: &Path) {
    if is_locked(&directory.join("broker/lock")) {
        return;
    }
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::warn!(%error, "cannot remove the directory of a broker");
        }
        _ => {}
    }
}

struct Stage<'a> {
    conduct: &'a Conduct,
    broker: Option<BrokerPost>,
    given: Option<Given>,
    posts: Vec<Post>,
    broker_again: Option<Instant>,
}

impl Stage<'_> {
    /// Repeats the job until it ends other than by a temporary failure.
    fn attempts(&mut self, outside: &mut Outside<'_>) -> Result<Result<u8, i32>, Fatal> {
        let mut until = Instant::now() + self.conduct.retry_for;
        let (mut refusals, mut told) = (0, String::new());
        loop {
            let begun = Instant::now();
            let result = self.attempt(outside);
            if begun.elapsed() > AT_WORK {
                until = Instant::now() + self.conduct.retry_for;
            }
            let why = match &result {
                Ok(Ok(code)) if i32::from(*code) == TEMPORARY => {
                    "the job cannot continue now".to_owned()
                }
                Err(error) if i32::from(error.exit_code().code()) == TEMPORARY => error.to_string(),
                // An earlier copy may just be tidying up.
                Err(error) if refusals < REFUSALS => {
                    refusals += 1;
                    error.to_string()
                }
                _ => return result,
            };
            if outside.stopped.is_some() || Instant::now() + AGAIN > until {
                return result;
            }
            let seconds = AGAIN.as_secs();
            // It may be the same for hours.
            if told != why {
                (outside.tell)(&format!("{why}; retrying every {seconds} s"));
                told = why;
            }
            if outside.pause(AGAIN) {
                return Ok(stopped(outside));
            }
        }
    }

    fn attempt(&mut self, outside: &mut Outside<'_>) -> Result<Result<u8, i32>, Fatal> {
        self.begin()?;
        if let Some(ended) = self.wait_for_movers(outside)? {
            return Ok(ended);
        }
        let Some(job) = &self.conduct.job else { return Ok(Ok(self.stay(outside))) };
        let mut child = self.start_job(job)?;
        loop {
            match child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => return Ok(how(status)),
                Err(error) => {
                    let message = format!("cannot wait for the job: {error}");
                    return Err(Fatal::unavailable(message, "run the same command again"));
                }
            }
            if let Some(signal) = outside.hear() {
                dmover_host::other_processes::signal(child.id(), signal);
            }
            self.look(outside.tell);
            thread::sleep(TURN);
        }
    }

    /// Starts the parts that are not running yet.
    fn begin(&mut self) -> Result<(), Fatal> {
        let directory = &self.conduct.directory;
        make(directory)?;
        if self.given.is_none() {
            self.given = Some(match &self.conduct.broker {
                BrokerPlace::Given(given) => given.clone(),
                BrokerPlace::Own { .. } => self.start_broker()?,
            });
        }
        if let (true, Some(given)) = (self.posts.is_empty(), &self.given) {
            let Conduct { mover, mover_options, .. } = self.conduct;
            self.posts = self.conduct.site.posts(mover, mover_options, given, directory);
            if self.conduct.job.is_none() {
                self.posts.iter_mut().for_each(Post::may_leave);
            }
        }
        Ok(())
    }

    fn start_broker(&mut self) -> Result<Given, Fatal> {
        let BrokerPlace::Own { state, listen } = &self.conduct.broker else {
            return Err(Fatal::unavailable("the broker ended", "check that it runs"));
        };
        let listen = listen.to_string();
        let own = [self.conduct.program.as_os_str(), OsStr::new("broker")];
        let words =
            own.into_iter().chain(["--until-eof", "--listen", &listen, "--state"].map(OsStr::new));
        let insecure = self.conduct.insecure.then_some(OsStr::new(INSECURE));
        let words = words.chain([state.as_os_str()]).chain(insecure);
        let words: Vec<OsString> = words.map(OsStr::to_owned).collect();
        let environment = &self.conduct.environment;
        let started = BrokerPost::start(&words, environment, &self.conduct.directory);
        let broker = started.map_err(|error| {
            if !is_locked(&state.join("lock")) {
                return error;
            }
            let message =
                format!("this job is already running: its broker uses '{}'", state.display());
            Fatal::unavailable(message, "wait for that run to end, or stop it first")
        })?;
        let given = self.given(broker.join_file.as_os_str());
        self.broker = Some(broker);
        given
    }

    fn given(&self, word: &OsStr) -> Result<Given, Fatal> {
        Given::new(word, self.conduct.insecure, &self.conduct.identity)
    }

    /// Waits for the first mover. Returns how the job ended meanwhile.
    fn wait_for_movers(
        &mut self,
        outside: &mut Outside<'_>,
    ) -> Result<Option<Result<u8, i32>>, Fatal> {
        let until = Instant::now() + MOVERS_WITHIN;
        while Instant::now() < until {
            outside.hear();
            if outside.stopped.is_some() {
                return Ok(Some(stopped(outside)));
            }
            self.look(outside.tell);
            if self.posts.is_empty() || self.posts.iter().any(Post::is_up) {
                return Ok(None);
            }
            if self.posts.iter().all(Post::is_over) {
                let hint =
                    "the notes above say why; check that the hosts are reachable and have dmover";
                return Err(Fatal::unavailable("no mover could be started on any host", hint));
            }
            thread::sleep(TURN);
        }
        Ok(None)
    }

    /// Keeps movers running until a signal arrives, or all have left in order.
    fn stay(&mut self, outside: &mut Outside<'_>) -> u8 {
        while outside.stopped.is_none() && !self.posts.iter().all(Post::is_over) {
            outside.hear();
            self.look(outside.tell);
            thread::sleep(TURN);
        }
        if self.posts.iter().any(Post::has_failed) { TEMPORARY as u8 } else { 0 }
    }

    fn start_job(&self, job: &[OsString]) -> Result<Child, Fatal> {
        let mut command = Command::new(&self.conduct.program);
        // After the verb, before any '--'.
        let (verb, further) = job.split_at(job.len().min(1));
        command.args(verb);
        if let Some(given) = &self.given {
            command.arg("--broker").arg(&given.word);
            command.args(self.conduct.insecure.then_some(INSECURE));
        }
        command.args(further);
        let variables = self.conduct.environment.iter().map(|(name, value)| (name, value));
        command.envs(variables);
        // It gets every signal once, from here.
        command.process_group(0);
        let program = self.conduct.program.display();
        command.spawn().map_err(|error| {
            let message = format!("cannot start '{program}': {error}");
            Fatal::unavailable(
                message,
                "check that the program exists, and the limits of processes",
            )
        })
    }

    fn look(&mut self, tell: &dyn Fn(&str)) {
        for post in &mut self.posts {
            if let Some(news) = post.look() {
                tell(&news);
            }
        }
        if self.broker.as_mut().is_some_and(BrokerPost::has_ended) {
            tell("the broker ended; restarting it");
            self.broker = None;
            self.broker_again = Some(Instant::now() + BROKER_AGAIN);
        }
        if self.broker_again.is_some_and(|then| Instant::now() >= then) {
            // At the same port, with the same key.
            self.broker_again = match self.start_broker() {
                Ok(_) => None,
                Err(error) => {
                    tell(&error.to_string());
                    Some(Instant::now() + 10 * BROKER_AGAIN)
                }
            };
        }
    }
}

fn how(status: ExitStatus) -> Result<u8, i32> {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ok(code as u8),
        (None, signal) => Err(signal.unwrap_or(TERM)),
    }
}

fn stopped(outside: &Outside<'_>) -> Result<u8, i32> {
    Err(outside.stopped.unwrap_or(TERM))
}
