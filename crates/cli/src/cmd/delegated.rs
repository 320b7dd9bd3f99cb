//! Runs a job for a user at another host, where its sources are.
use clap::{ArgMatches, FromArgMatches};
use dmover_engine::{ChunkMovers, RemoteTrees};
use dmover_model::{ExitCode as Code, Fatal, JobSpec, PathBytes};
use dmover_net::connection::Connection;
use dmover_net::{ConnectOptions, SshOptions};
use dmover_remote::{
    ChunkBounds, ChunkMover, ChunkMoverPlace, DelegateRole, Delegated, DelegatedJob, OutputStream,
};
use dmover_schedule::thread;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::detach::Left;
use super::elsewhere::about_jobs;
use super::remote::{LOGIN_WITHIN, VERSION, told, with_head};
use super::run::{exit, failed};
use super::{confined, copy, detach, remote, sync, verify};
use crate::args::{Cli, FleetArgs, OutputArgs, RemoteArgs, StateArgs, Verb};
use crate::config;
use crate::print::{self, failure, say, screen};
use crate::spec;

/// This process runs a job of another host.
static IS_THIS: AtomicBool = AtomicBool::new(false);

/// The job has ended; the end of the connection is no signal for it any more.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Whether this process runs a job for a user at another host, which is told how it ends.
pub(super) fn is_this() -> bool {
    IS_THIS.load(Ordering::Relaxed)
}

/// A job of another host, ready to run.
pub(super) struct Received {
    pub spec: JobSpec,
    /// `None`: the sources are of this host.
    pub remote: Option<Arc<dyn RemoteTrees>>,
    /// Other hosts that share DEST; `None`: there are none.
    pub chunk_movers: Option<Arc<dyn ChunkMovers>>,
}

impl Received {
    /// A job that no other host takes part in.
    pub fn alone(spec: JobSpec, remote: Option<Arc<dyn RemoteTrees>>) -> Self {
        Self { spec, remote, chunk_movers: None }
    }
}

/// Runs the job that comes on a connection, and tells its end.
pub(super) fn run(connection: Connection) {
    IS_THIS.store(true, Ordering::Relaxed);
    let delegated = Delegated::new(connection);
    // Nobody can be told but through standard error, which ssh passes on.
    let cannot = |error: Fatal| tracing::error!(%error, "cannot run the job of another host");
    let (job, others) = match delegated.part() {
        Ok((DelegateRole::Runs { others }, Some(job))) => (job, others),
        Ok((DelegateRole::CopiesChunks { typed, sources, destination }, _)) => {
            return copy_chunks(&delegated, &typed, ChunkBounds { sources, destination });
        }
        Ok((DelegateRole::Runs { .. }, None)) => return,
        Err(error) => return cannot(error),
    };
    let forwarding = match forward(&delegated) {
        Ok(forwarding) => forwarding,
        Err(error) => return cannot(error),
    };
    let left = match Sent::of(&job) {
        Ok(sent) => sent.start(&delegated, &job.typed, others),
        Err(error) => {
            tracing::warn!("refused a job: {error}");
            Left { code: failed(&error), job: None }
        }
    };
    print::flush();
    // Everything that was printed has to arrive before the end is told.
    if left.job.is_some() || dmover_host::process::release_output().is_ok() {
        for thread in forwarding {
            let _ = thread.join();
        }
    }
    IS_OVER.store(true, Ordering::Relaxed);
    delegated.end(code_of(left.code));
    if let Some(job) = left.job {
        // The user has gone, and this process stays for the job.
        let _ = job.join();
    }
}

/// Copies chunks of large files for another host, until the connection with the host of the command is over.
fn copy_chunks(delegated: &Delegated, typed: &[PathBytes], bounds: ChunkBounds) {
    /// The pause before the host that runs the job is asked again.
    const PAUSE: Duration = Duration::from_secs(1);
    dmover_host::process::clear_umask();
    let open_files_max = dmover_host::process::raise_open_files();
    let (own, typed) = (delegated.clone(), typed.to_vec());
    let mover = ChunkMover::new(ChunkMoverPlace {
        open_files_max,
        spill_directory: std::env::temp_dir(),
        sources: Box::new(move |spec| remote_sources(&own, &typed, spec)),
        bounds,
        accepted: confined::bounds(),
    });
    while !delegated.is_over() {
        match delegated.coordinator(&third_hosts()) {
            Ok(agent) => mover.run(agent),
            Err(error) => tracing::info!(%error, "cannot reach the host that runs the job"),
        }
        thread::sleep(PAUSE);
    }
}

/// How third hosts are reached: ssh of the host of the command reaches them.
fn third_hosts() -> ConnectOptions {
    let mut options = ConnectOptions::new(SshOptions::default(), VERSION);
    options.hello_within = Some(LOGIN_WITHIN);
    options.streams.notice = told();
    options
}

/// Sends what this process prints to the user.
fn forward(delegated: &Delegated) -> Result<[thread::JoinHandle<()>; 2], Fatal> {
    let [output, errors] = dmover_host::process::capture_output().map_err(Fatal::Thread)?;
    let output = delegated.forward(OutputStream::Standard, output).map_err(Fatal::Thread)?;
    let errors = delegated.forward(OutputStream::Error, errors).map_err(Fatal::Thread)?;
    Ok([output, errors])
}

/// What opens the sources; `None`: they are of this host.
fn remote_sources(
    delegated: &Delegated,
    typed: &[PathBytes],
    spec: &JobSpec,
) -> Result<Option<Arc<dyn RemoteTrees>>, Fatal> {
    if !spec.sources_are_remote {
        return Ok(None);
    }
    let reads = (spec.policy.preserve, with_head(spec));
    let sources = delegated.sources(&spec.sources, typed, reads, third_hosts())?;
    Ok(Some(Arc::new(sources)))
}

/// What the user calls the host of a path, of what is put before that path.
fn host_name(before: &[u8]) -> &[u8] {
    if before.starts_with(b"dmover://") {
        return before.strip_suffix(b"/~/").or(before.strip_suffix(b"/")).unwrap_or(before);
    }
    &before[..before.iter().rposition(|byte| *byte == b':').unwrap_or(before.len())]
}

/// The number of an exit code, which the standard library does not tell.
fn code_of(code: ExitCode) -> u8 {
    (0..=u8::MAX).find(|number| ExitCode::from(*number) == code).unwrap_or(Code::Fatal.code())
}

/// What a verb does to trees, of those that run for another host.
fn verb_of(verb: &Verb) -> Option<dmover_model::Verb> {
    match verb {
        Verb::Copy(_) => Some(dmover_model::Verb::Copy),
        Verb::Sync(_) => Some(dmover_model::Verb::Sync),
        Verb::Verify(_) => Some(dmover_model::Verb::Verify),
        _ => None,
    }
}

/// What a user at another host has sent.
enum Sent {
    Job(Box<Read>),
    /// A verb about jobs of this host.
    AboutJobs(Box<Verb>),
}

/// A job of another host, as it was sent.
struct Read {
    spec: JobSpec,
    verb: Verb,
    matches: ArgMatches,
}

impl Sent {
    fn of(job: &DelegatedJob) -> Result<Self, Fatal> {
        let other_version =
            |message: String| Fatal::refused(message, "use one version of dmover on both hosts");
        let words: Vec<OsString> = job
            .words
            .iter()
            .map(|word: &PathBytes| OsStr::from_bytes(&word.0).to_owned())
            .collect();
        let parsed = config::parse_alone(&words).ok();
        let parsed =
            parsed.and_then(|matches| Some((Cli::from_arg_matches(&matches).ok()?, matches)));
        let (Cli { verb, .. }, matches) = parsed.ok_or_else(|| {
            other_version("cannot read the command line of the other host".to_owned())
        })?;
        if let Some((_, options)) = matches.subcommand() {
            confined::check_options(options)?;
        }
        if job.spec.is_empty() {
            confined::check_about_jobs()?;
            return Ok(Self::AboutJobs(Box::new(verb)));
        }
        let spec = serde_json::from_str::<JobSpec>(&job.spec)
            .map_err(|error| other_version(format!("cannot read the job: {error}")))?;
        confined::check_job(&spec)?;
        if verb_of(&verb) != Some(spec.verb) {
            return Err(other_version("the job is not that of the command line".to_owned()));
        }
        let host = spec.host.as_ref().map_or_else(Default::default, |host| &host.0[..]);
        let host = String::from_utf8_lossy(host_name(host)).into_owned();
        config::typed_elsewhere(words, host);
        let read = Read { spec, verb, matches };
        // What stays draws nothing.
        if let (Some(columns), None) = (job.columns, read.left()) {
            screen::is_elsewhere(columns);
        }
        Ok(Self::Job(Box::new(read)))
    }

    fn start(self, delegated: &Delegated, typed: &[PathBytes], others: Vec<String>) -> Left {
        match self {
            Self::Job(read) => read.start(delegated, typed, others),
            Self::AboutJobs(verb) => {
                let code = pass_signals(delegated).map(|()| about_jobs(&verb));
                let ran = code.and_then(|code| {
                    code.ok_or_else(|| {
                        let message = "this verb does not run for another host";
                        Fatal::refused(message, "use one version of dmover on both hosts")
                    })
                });
                Left { code: ran.unwrap_or_else(|error| failed(&error)), job: None }
            }
        }
    }
}

fn user() -> String {
    let named = dmover_host::user::Account::own().ok().flatten().map(|account| account.name);
    named.unwrap_or_else(|| dmover_host::user::effective_uid().to_string())
}

/// Has this process get the signals of the process of the user, and SIGHUP if that is gone.
fn pass_signals(delegated: &Delegated) -> Result<(), Fatal> {
    let passed_on = delegated.on_signals(|signal| {
        // `on_signals` reports the end of the connection as SIGHUP.
        if !IS_OVER.load(Ordering::Relaxed) {
            let _ = signal_hook::low_level::raise(signal);
        }
    });
    passed_on.map_err(Fatal::Thread)
}

impl Read {
    /// The options of a job that stays without the user; `None`: it ends with the user.
    fn left(&self) -> Option<(&StateArgs, &RemoteArgs, &FleetArgs, &OutputArgs)> {
        match &self.verb {
            Verb::Copy(args) if args.job.detach => {
                Some((&args.state, &args.remote, &args.fleet, &args.output))
            }
            Verb::Sync(args) if args.job.detach => {
                Some((&args.state, &args.remote, &args.fleet, &args.output))
            }
            _ => None,
        }
    }

    fn start(self, delegated: &Delegated, typed: &[PathBytes], others: Vec<String>) -> Left {
        let is_left = self.left().is_some();
        let ended = match self.left() {
            Some((state, remote, fleet, output)) => {
                let (spec, state, quiet) = (self.spec.clone(), state.clone(), output.quiet > 0);
                // Nobody stays to connect this host with those of SOURCE.
                let sources = remote::sources(&spec, remote, fleet);
                sources.and_then(|remote| {
                    let run = move || code_of(self.run(remote, None));
                    detach::leave((&state, quiet), &spec, run)
                })
            }
            None => self.attend(delegated, typed, others).map(|code| Left { code, job: None }),
        };
        ended.unwrap_or_else(|error| {
            // What is missing has to be set up at this host, not at the host of the command.
            if let Some(host) = config::host_as_typed().filter(|_| is_left) {
                say(&format!("dmover: at {host}, as user {}:", user()));
            }
            Left { code: failed(&error), job: None }
        })
    }

    /// Runs the job as long as the user stays.
    fn attend(
        self,
        delegated: &Delegated,
        typed: &[PathBytes],
        others: Vec<String>,
    ) -> Result<ExitCode, Fatal> {
        pass_signals(delegated)?;
        let chunk_movers =
            (!others.is_empty()).then(|| delegated.accept(others, VERSION)).transpose()?;
        let chunk_movers = chunk_movers.map(|movers| movers as Arc<dyn ChunkMovers>);
        let remote = remote_sources(delegated, typed, &self.spec)?;
        Ok(self.run(remote, chunk_movers))
    }

    fn run(
        self,
        remote: Option<Arc<dyn RemoteTrees>>,
        chunk_movers: Option<Arc<dyn ChunkMovers>>,
    ) -> ExitCode {
        let mut received = Received { spec: self.spec, remote, chunk_movers };
        match self.verb {
            Verb::Copy(args) => copy::run_received(&args, received),
            Verb::Sync(args) => {
                let delete =
                    received.spec.policy.sync.as_mut().and_then(|sync| sync.delete.as_mut());
                if let (Some(delete), Some(matches)) =
                    (delete, self.matches.subcommand_matches("sync"))
                {
                    // This belongs to one command, not to the job, so it is not in its specification.
                    delete.confirmed = spec::confirmed(&args, matches);
                }
                sync::run_received(&args, received)
            }
            Verb::Verify(args) => verify::run_received(&args, received),
            _ => {
                let hint = "use one version of dmover on both hosts";
                failure("only copy, sync and verify run for another host", hint);
                exit(Code::Usage)
            }
        }
    }
}
