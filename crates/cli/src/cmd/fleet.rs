//! `dmover broker`, `dmover mover`, and jobs that run on the movers of a broker.
use dmover_engine::{Bounds, Fleets};
use dmover_host::signals;
use dmover_model::{ExitCode as Code, Fatal, TaskClass};
use dmover_net::{Endpoint, StreamSettings};
use dmover_observe::{Board, JobView, SessionView, exposition};
use dmover_queue::{
    Address, Broker, BrokerOptions, FarSources, FleetOptions, Identity, Mover, MoverOptions,
    NatsFleets, Tls, Trust, Watchdog, nics,
};
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::remote::{self, ssh_options};
use super::run::{Log, exit, open_log};
use crate::args::{BrokerArgs, ClassArg, FleetArgs, MoverArgs};
use crate::config::{environment, host_as_typed};
use crate::endpoint;
use crate::print::{failure, line, say};
use crate::state::{NO_STATE_DIRECTORY, state_directory};

/// Time between two checks of the broker.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Time between two attempts to restart the server, which fails for example on a full disk.
const START_AGAIN: Duration = Duration::from_secs(2);
/// Below the first of these the broker accepts no tasks; from the second on it accepts them again.
const SPACE_MIN: u64 = 1 << 20;
const SPACE_AGAIN: u64 = 2 << 20;

/// The movers of a job and its metrics.
#[derive(Default)]
pub(super) struct Around {
    /// The movers of a broker. `None`: the movers are threads of this process.
    pub fleets: Option<Arc<dyn Fleets>>,
    /// What the metrics endpoint shows, if there is one.
    pub board: Option<Arc<Board<Option<JobView>>>>,
}

/// Starts the metrics endpoint of a job and connects to its broker, as its options say.
/// `streams`: those of its movers to the hosts of SOURCE, if there are any.
pub(super) fn around(
    args: &FleetArgs,
    streams: Option<StreamSettings>,
) -> Result<Around, ExitCode> {
    let board = endpoint::of_job(args.metrics.as_deref()).map_err(|error| fail(&error))?;
    Ok(Around { fleets: connect(args, streams)?, board })
}

/// Connects to the broker of a job, if it has one.
fn connect(
    args: &FleetArgs,
    streams: Option<StreamSettings>,
) -> Result<Option<Arc<dyn Fleets>>, ExitCode> {
    let Some(broker) = &args.broker else { return Ok(None) };
    let credentials = args.credentials.as_deref().map(Path::new);
    let lease = Duration::from_millis(args.lease);
    let patience = Duration::from_millis(args.mover_wait);
    let (only, pool) = (args.only_movers.clone(), args.limit_pool.clone());
    let terms = FleetOptions { lease, patience, only, pool, streams };
    let fleets = address(broker, credentials, args.insecure).and_then(|address| {
        let trust = Trust::of_coordinator(&key_directories(), &address, &paths(&args.trust))?;
        NatsFleets::connect(&address, terms.clone(), trust)
    });
    fleets.map(|fleets| Some(Arc::new(fleets) as Arc<dyn Fleets>)).map_err(|error| fail(&error))
}

/// The address of the broker. Prints a warning if its connections are in clear text.
fn address(broker: &str, credentials: Option<&Path>, insecure: bool) -> Result<Address, Fatal> {
    let address = Address::new(broker, credentials, insecure)?;
    if address.is_clear_text() {
        let shown = address.shown();
        say(&format!(
            "dmover: warning: connections to the broker {shown} are in clear text (--insecure): \
             other hosts can read and change them, and can impersonate the broker"
        ));
    }
    Ok(address)
}

/// The directories that may hold the key of this user: the same for all jobs of a user, wherever they keep their state.
fn key_directories() -> Vec<PathBuf> {
    key_directories_of(environment("DMOVER_STATE_DIR").map(PathBuf::from))
}

/// The same for a process with this value of $DMOVER_STATE_DIR.
pub(super) fn key_directories_of(named: Option<PathBuf>) -> Vec<PathBuf> {
    let all = [named, state_directory(None)];
    let all = all.into_iter().flatten().map(|path| std::path::absolute(&path).unwrap_or(path));
    all.collect()
}

fn paths(words: &[OsString]) -> Vec<PathBuf> {
    words.iter().map(PathBuf::from).collect()
}

fn fail(error: &Fatal) -> ExitCode {
    // Files and addresses are those of this host, not of that of the command.
    if let Some(host) = host_as_typed() {
        say(&format!("dmover: at {host}:"));
    }
    failure(&error.to_string(), &error.hint());
    exit(error.exit_code())
}

/// `dmover broker`.
pub(crate) fn broker(args: &BrokerArgs) -> ExitCode {
    let named = environment("DMOVER_STATE_DIR");
    let state = match (&args.state, state_directory(named.as_ref())) {
        (Some(named), _) => PathBuf::from(named),
        (None, Some(usual)) => usual.join("broker"),
        (None, None) => {
            failure(NO_STATE_DIRECTORY, "choose a directory with --state");
            return exit(Code::Usage);
        }
    };
    let identity = match Identity::of_user(&key_directories()) {
        Ok(identity) => Arc::new(identity),
        Err(error) => return fail(&error),
    };
    let path = |word: &OsString| PathBuf::from(word);
    let options = BrokerOptions {
        state,
        listen: args.listen,
        port: args.port,
        advertise: args.advertise.clone(),
        tls: match (&args.tls_certificate, &args.tls_key) {
            (Some(certificate), Some(key)) => Tls::Files(path(certificate), path(key)),
            _ if args.insecure => Tls::None,
            _ => Tls::Own,
        },
        program: args.nats_server.as_ref().map(path),
        search: environment("PATH").unwrap_or_default(),
        identity,
    };
    let signals = match Signals::new([SIGINT, SIGTERM, SIGHUP]) {
        Ok(signals) => signals,
        Err(error) => {
            failure(
                &format!("cannot install signal handlers: {error}"),
                "check the process limits",
            );
            return exit(Code::Fatal);
        }
    };
    let eof = Arc::new(AtomicBool::new(false));
    let watched = if args.until_eof { watch_stdin(&eof) } else { Ok(()) };
    if let Err(error) = watched {
        return fail(&Fatal::Thread(error));
    }
    match Broker::start(&options) {
        Ok(broker) => stay(broker, &options, signals, &eof),
        Err(error) => fail(&error),
    }
}

/// Sets a flag at the end of standard input.
fn watch_stdin(ended: &Arc<AtomicBool>) -> std::io::Result<()> {
    let ended = Arc::clone(ended);
    let watch = move || {
        // A read error counts as the end.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        ended.store(true, Ordering::SeqCst);
    };
    thread::Builder::new().name("stdin".into()).spawn(watch).map(|_| ())
}

/// Watches the broker until a signal, or until nats-server ends. Restarts a server that no longer works.
fn stay(
    broker: Broker,
    options: &BrokerOptions,
    mut signals: Signals,
    eof: &AtomicBool,
) -> ExitCode {
    say(&format!("dmover: the broker listens at {} (process {})", broker.url, broker.pid()));
    if broker.url.starts_with("nats://") {
        say("dmover: warning: connections are in clear text (--insecure): other hosts can read \
             and change them");
    }
    say("  hint: pass the join file below to 'dmover mover' and to jobs with --broker");
    line(&broker.join_file.display().to_string());
    let watch = |broker: &Broker| {
        let begun = Watchdog::start(&broker.join_file);
        begun
            .inspect_err(|error| say(&format!("dmover: note: cannot monitor nats-server: {error}")))
            .ok()
    };
    let mut watchdog = watch(&broker);
    let (mut broker, mut again) = (Some(broker), Instant::now());
    let (mut told, mut is_full) = (String::new(), false);
    loop {
        let signal = signals.pending().next();
        if signal.is_some() || eof.load(Ordering::SeqCst) {
            drop(broker);
            if let Some(signal) = signal {
                say(&format!("dmover: broker stopped by {}", signals::name(signal)));
            }
            return exit(Code::Done);
        }
        if let Some(broker) = &mut broker
            && broker.has_ended()
        {
            let log = broker.log.display();
            failure("nats-server has ended", &format!("see its log: {log}"));
            return exit(Code::Fatal);
        }
        if let Some(free) = watchdog.as_ref().and_then(Watchdog::free_bytes) {
            tell_space(&options.state, free, &mut is_full);
        }
        if let Some(trouble) = watchdog.as_ref().and_then(Watchdog::trouble) {
            let space = free_space(&options.state);
            say(&format!("dmover: note: restarting nats-server: {trouble}{space}"));
            if let Some(broker) = broker.take() {
                broker.kill();
            }
            (watchdog, again) = (None, Instant::now());
        }
        if broker.is_none() && Instant::now() >= again {
            // The restarted server has the same port and key: both are in its directory.
            match Broker::start(options) {
                Ok(started) => {
                    say(&format!("dmover: the broker listens again (process {})", started.pid()));
                    watchdog = watch(&started);
                    broker = Some(started);
                    told.clear();
                }
                Err(error) => {
                    let words = format!("{error}{}", free_space(&options.state));
                    if told != words {
                        say(&format!("dmover: note: cannot restart the broker; retrying: {words}"));
                        told = words;
                    }
                    again = Instant::now() + START_AGAIN;
                }
            }
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Reports once when the file system of the broker is full, and once when it has space again.
fn tell_space(state: &Path, free: u64, is_full: &mut bool) {
    let (shown, place) = (dmover_model::units::format_iec(free), state.display());
    if !*is_full && free < SPACE_MIN {
        *is_full = true;
        say(&format!(
            "dmover: note: no space left at '{place}' ({shown} free): the broker accepts no tasks \
             until there is space"
        ));
    } else if *is_full && free >= SPACE_AGAIN {
        *is_full = false;
        say(&format!("dmover: note: '{place}' has space again ({shown} free)"));
    }
}

/// The free space on the file system of the broker, as a remark.
fn free_space(state: &Path) -> String {
    let free = dmover_host::free_bytes(state);
    free.map_or(String::new(), |free| {
        let (free, place) = (dmover_model::units::format_iec(free), state.display());
        format!(" ({free} free at '{place}')")
    })
}

/// `dmover mover`.
pub(crate) fn mover(args: &MoverArgs) -> ExitCode {
    // A mover always logs, so its first -v has the effect that the second one has for a job.
    let verbose = args.verbose.saturating_add(1);
    let log = Log { file: args.log_file.as_ref(), format: args.log_format, verbose };
    if let Err(message) = open_log(&log, true) {
        failure(&message, "choose another --log-file, or correct $DMOVER_LOG");
        return exit(Code::Usage);
    }
    dmover_host::process::clear_umask();
    let bounds = match Bounds::of_mover(&paths(&args.allow_root), args.allow_verb.clone()) {
        Ok(bounds) => bounds,
        Err(error) => return fail(&error),
    };
    let options = MoverOptions {
        threads: args.threads,
        memory_bytes: args.memory,
        open_files_max: dmover_host::process::raise_open_files(),
        spill_directory: args.spill_dir.as_ref().map_or_else(std::env::temp_dir, PathBuf::from),
        class: match args.class {
            ClassArg::Any => None,
            ClassArg::Small => Some(TaskClass::Small),
            ClassArg::Large => Some(TaskClass::Large),
        },
        labels: args.label.clone(),
        jobs: args.job.clone(),
        broker_wait: Duration::from_millis(args.broker_wait),
        idle_exit: args.idle_exit.map(Duration::from_millis),
        bytes_per_s: args.bwlimit,
        bounds,
        sources: far_sources(args),
    };
    let credentials = args.credentials.as_deref().map(Path::new);
    let mover = address(&args.broker, credentials, args.insecure).and_then(|address| {
        let trust = Trust::of_mover(&key_directories(), &address, &paths(&args.trust))?;
        Mover::connect(&address, options, trust)
    });
    let mover = match mover {
        Ok(mover) => mover,
        Err(error) => return fail(&error),
    };
    let watched = if args.until_eof { watch_stdin(&mover.leaving()) } else { Ok(()) };
    if let Err(error) = watched.and_then(|()| leave_on_signals(&mover)) {
        failure(&format!("cannot install signal handlers: {error}"), "check the process limits");
        return exit(Code::Fatal);
    }
    if let Some(address) = &args.metrics {
        let sessions = mover.sessions();
        let text = move || {
            let all: Vec<SessionView> = sessions.get().into_values().collect();
            exposition::of_mover(&endpoint::this_process(), &nics(), &all)
        };
        if let Err(error) = endpoint::serve(address, text) {
            return fail(&error);
        }
    }
    say(&format!("dmover: waiting for jobs at {}", mover.broker()));
    match mover.run() {
        Ok(_) => exit(Code::Done),
        Err(error) => fail(&error),
    }
}

/// What opens sources on other hosts for a mover.
fn far_sources(args: &MoverArgs) -> FarSources {
    let mut ssh = ssh_options(&args.ssh_command, args.agent.as_deref());
    // Nobody is there to answer.
    ssh.program.push("-oBatchMode=yes".into());
    let is_bounded = !args.allow_root.is_empty();
    let allowed = args.allow_host.clone();
    FarSources(Arc::new(move |spec, streams| {
        for source in &spec.sources {
            let Endpoint::Remote(source) = Endpoint::parse(OsStr::from_bytes(&source.0))? else {
                continue;
            };
            let refused = source.hosts().find(|host| is_bounded && !allowed.contains(host));
            if let Some(host) = refused {
                let host = host.shown();
                let message = format!(
                    "this mover does not read from the host '{host}' (--allow-host): it accepts \
                     hosts as the job names them"
                );
                let hint = format!("start it with --allow-host {host}, too");
                return Err(Fatal::refused(message, hint));
            }
        }
        Ok(remote::sources_of_mover(spec, ssh.clone(), streams))
    }))
}

/// Handles the signals by which a mover leaves. Batch systems send USR2, TERM or USR1 as a warning before they kill.
fn leave_on_signals(mover: &Mover) -> std::io::Result<()> {
    let leaving = mover.leaving();
    // A signal that is ignored at the start, as under nohup(1), stays ignored.
    let all = [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];
    let mut signals = Signals::new(all.into_iter().filter(|signal| !signals::is_ignored(*signal)))?;
    let listen = move || {
        for signal in &mut signals {
            if leaving.swap(true, Ordering::SeqCst) && signal == SIGINT {
                crate::signals::raise_again(signal);
            }
            let name = signals::name(signal);
            say(&format!("dmover: {name}: finishing or returning tasks, then exiting"));
        }
    };
    thread::Builder::new().name("signals".into()).spawn(listen)?;
    Ok(())
}
