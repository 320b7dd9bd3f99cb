//! Runs a job for a user at another host, where its sources are.
use clap::FromArgMatches;
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

use super::remote::{LOGIN_WITHIN, VERSION, told, with_head};
use super::run::{exit, failed};
use super::{copy, sync, verify};
use crate::args::{Cli, Verb};
use crate::config;
use crate::print::{self, failure, screen};
use crate::spec;

/// This process runs a job of another host.
static IS_THIS: AtomicBool = AtomicBool::new(false);

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
    let code = code_of(start(&delegated, &job, others));
    print::flush();
    // Everything that was printed has to arrive before the end is told.
    if dmover_host::process::release_output().is_ok() {
        for thread in forwarding {
            let _ = thread.join();
        }
    }
    delegated.end(code);
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

/// What the user has put before a path, without the colon and what follows it.
fn host_name(before: &[u8]) -> &[u8] {
    &before[..before.iter().rposition(|byte| *byte == b':').unwrap_or(before.len())]
}

/// The number of an exit code, which the standard library does not tell.
fn code_of(code: ExitCode) -> u8 {
    (0..=u8::MAX).find(|number| ExitCode::from(*number) == code).unwrap_or(Code::Fatal.code())
}

fn start(delegated: &Delegated, job: &DelegatedJob, others: Vec<String>) -> ExitCode {
    if let Some(columns) = job.columns {
        screen::is_elsewhere(columns);
    }
    let passed_on = delegated.on_signals(|signal| {
        // As if this process had got it.
        let _ = signal_hook::low_level::raise(signal);
    });
    if let Err(error) = passed_on {
        failure(&format!("cannot start a thread: {error}"), "check the process limits there");
        return exit(Code::Fatal);
    }
    let other_version = "use one version of dmover on both hosts";
    let spec = match serde_json::from_str::<JobSpec>(&job.spec) {
        Ok(spec) => spec,
        Err(error) => {
            failure(&format!("cannot read the job: {error}"), other_version);
            return exit(Code::Usage);
        }
    };
    let words: Vec<OsString> =
        job.words.iter().map(|word: &PathBytes| OsStr::from_bytes(&word.0).to_owned()).collect();
    let host = spec.host.as_ref().map_or_else(Default::default, |host| &host.0[..]);
    config::typed_elsewhere(words.clone(), String::from_utf8_lossy(host_name(host)).into_owned());
    let parsed = config::parse_alone(&words).ok();
    let parsed = parsed.and_then(|matches| Some((Cli::from_arg_matches(&matches).ok()?, matches)));
    let Some((cli, matches)) = parsed else {
        failure("cannot read the command line of the other host", other_version);
        return exit(Code::Usage);
    };
    let chunk_movers = (!others.is_empty()).then(|| delegated.accept(others, VERSION)).transpose();
    let opened = chunk_movers.and_then(|chunk_movers| {
        let chunk_movers = chunk_movers.map(|movers| movers as Arc<dyn ChunkMovers>);
        Ok((remote_sources(delegated, &job.typed, &spec)?, chunk_movers))
    });
    let (remote, chunk_movers) = match opened {
        Ok(opened) => opened,
        Err(error) => return failed(&error),
    };
    let mut received = Received { spec, remote, chunk_movers };
    match cli.verb {
        Verb::Copy(args) => copy::run_received(&args, received),
        Verb::Sync(args) => {
            let delete = received.spec.policy.sync.as_mut().and_then(|sync| sync.delete.as_mut());
            if let (Some(delete), Some(matches)) = (delete, matches.subcommand_matches("sync")) {
                // This belongs to one command, not to the job, so it is not in its specification.
                delete.confirmed = spec::confirmed(&args, matches);
            }
            sync::run_received(&args, received)
        }
        Verb::Verify(args) => verify::run_received(&args, received),
        _ => {
            failure("only copy, sync and verify run for another host", other_version);
            exit(Code::Usage)
        }
    }
}
