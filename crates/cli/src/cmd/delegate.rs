//! Jobs whose DEST is on another host: dmover there runs them, and this process serves the sources and prints.
use clap::{ArgMatches, FromArgMatches};
use dmover_model::{Fatal, FollowLinks, JobSpec, PathBytes, TargetMode, Verb};
use dmover_net::streams::share_among;
use dmover_net::{
    ConnectOptions, Endpoint, Notice, RemoteAgent, RemoteHost, RemotePath, start_relays,
};
use dmover_remote::{DelegatedJob, Places, Rules, ThirdSource};
use dmover_schedule::thread;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use super::destination_hosts::{DestinationHosts, Source};
use super::remote::{
    LOGIN_WITHIN, connect_options, options_beside_movers, refuse_for_movers, stream_settings,
};
use super::run::failed;
use crate::args::{FleetArgs, JobArgs, OutputArgs, RemoteArgs};
use crate::config::{parse_alone, words_as_typed};
use crate::print::{one_line, say, screen};
use crate::signals;

/// The signals that stop a job.
const STOPPING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// After so many signals this process ends, whatever the other host does.
const STOPS_MAX: u32 = 3;

/// Options of a job that work only if DEST is on this host.
pub(super) struct Limits<'a> {
    pub output: &'a OutputArgs,
    pub job: Option<&'a JobArgs>,
    pub fleet: &'a FleetArgs,
    /// Others, by name, and whether they are given.
    pub others: &'a [(&'a str, bool)],
}

/// Has the host of DEST run the job, and returns its exit code. `None`: DEST is on this host.
pub(super) fn run(spec: &JobSpec, remote: &RemoteArgs, limits: &Limits<'_>) -> Option<ExitCode> {
    if limits.output.print_job {
        return None;
    }
    let destination = match Endpoint::parse(OsStr::from_bytes(&spec.destination.0)) {
        Ok(Endpoint::Remote(destination)) => destination,
        Ok(Endpoint::Local(_)) => return None,
        Err(error) => return Some(failed(&error)),
    };
    let ended = limits.refuse(spec, remote, &destination).and_then(|()| {
        let options = if limits.is_shared() {
            options_beside_movers(remote)
        } else {
            connect_options(remote)
        };
        delegate(spec, &destination, &options, limits)
    });
    Some(ended.unwrap_or_else(|error| failed(&error)))
}

impl Limits<'_> {
    /// Whether movers of a broker do the work.
    fn is_shared(&self) -> bool {
        self.fleet.broker.is_some()
    }

    fn is_detached(&self) -> bool {
        self.job.is_some_and(|job| job.detach)
    }

    fn refuse(
        &self,
        spec: &JobSpec,
        remote: &RemoteArgs,
        destination: &RemotePath,
    ) -> Result<(), Fatal> {
        self.refuse_of_this_host(spec)?;
        let is_shared = self.is_shared();
        if !destination.others.is_empty() {
            refuse_several(spec, remote, is_shared)?;
        }
        if is_shared {
            let host = dmover_host::name();
            if !spec.sources_are_remote && host.split('.').next() == Some("localhost") {
                let message =
                    format!("movers would look for SOURCE at '{host}', which is any host");
                return Err(Fatal::refused(message, "name it as HOST:PATH, as movers reach it"));
            }
            refuse_untyped(self.fleet, remote)?;
            refuse_for_movers(spec, remote, !are_at(&destination.host, spec)?)?;
        }
        Ok(())
    }

    /// Refuses options about things of this host, where the job does not run.
    fn refuse_of_this_host(&self, spec: &JobSpec) -> Result<(), Fatal> {
        let Self { output, job, fleet, others } = self;
        if self.is_detached() && !spec.sources_are_remote {
            let message =
                "--detach needs a SOURCE on another host, too: this host would have to stay";
            return Err(Fatal::refused(message, "omit it, and use '&' in the shell"));
        }
        let own = [
            ("--log-file", output.log_file.is_some()),
            ("--errors-to", output.errors_to.is_some()),
            ("--notify", job.is_some_and(|job| job.notify.is_some())),
            ("--metrics", fleet.metrics.is_some()),
        ];
        let given = own.iter().chain(*others).find(|(_, is_given)| *is_given);
        let Some((option, _)) = given else { return Ok(()) };
        let message = format!("{option} does not work with a DEST on another host");
        Err(Fatal::refused(message, "omit it, or run dmover on the host of DEST"))
    }
}

/// Refuses options of movers that the host of DEST would not know of: it gets the command line, not the files and variables of this host.
fn refuse_untyped(fleet: &FleetArgs, remote: &RemoteArgs) -> Result<(), Fatal> {
    let typed = parse_alone(&words_as_typed()).ok();
    let typed = typed.as_ref().and_then(|typed| Some(typed.subcommand()?.1));
    let is_typed = |options: &ArgMatches| {
        FleetArgs::from_arg_matches(options).is_ok_and(|typed| typed == *fleet)
            && RemoteArgs::from_arg_matches(options)
                .is_ok_and(|typed| stream_settings(&typed) == stream_settings(remote))
    };
    if typed.is_some_and(is_typed) {
        return Ok(());
    }
    let message = "with a DEST on another host, --broker and all options of movers and data streams must be on \
                   the command line";
    let hint = "type them, with the broker as the host of DEST reaches it: that host does not read \
                the configuration and the variables of this one, and 'submit' cannot be used";
    Err(Fatal::refused(message, hint))
}

/// Refuses what does not work with several hosts that share DEST.
fn refuse_several(spec: &JobSpec, remote: &RemoteArgs, is_shared: bool) -> Result<(), Fatal> {
    if is_shared {
        let message = "--broker does not work with a DEST on several hosts";
        let hint = "name the host that is to run the job; its movers may be on all of them";
        return Err(Fatal::refused(message, hint));
    }
    let given = [
        ("--inplace", spec.policy.inplace),
        ("--data-address", !remote.data_address.is_empty()),
        ("--relay", !remote.relay.is_empty()),
    ];
    let Some((option, _)) = given.iter().find(|(_, is_given)| *is_given) else { return Ok(()) };
    let message = format!("{option} does not work with a DEST on several hosts");
    Err(Fatal::refused(message, "omit it, or name one host"))
}

/// The sources of a job, as the host of DEST names them, and what serves them.
#[derive(Default)]
struct Sources {
    named: Vec<PathBytes>,
    served: Vec<Source>,
}

impl Sources {
    /// The same for a job that reads them without this host.
    fn without_this_host(spec: &JobSpec, destination: &RemotePath) -> Result<Option<Self>, Fatal> {
        if !destination.others.is_empty() {
            let message = "--detach does not work with a DEST on several hosts";
            return Err(Fatal::refused(message, "omit it, or name one host"));
        }
        if are_at(&destination.host, spec)? {
            return Ok(None);
        }
        let remote: Vec<RemotePath> = spec.sources.iter().map(there).collect::<Result<_, _>>()?;
        let named = remote.into_iter().map(|source| source.typed).collect();
        Ok(Some(Self { named, served: Vec::new() }))
    }

    /// `None`: all of them are on the host of DEST, which needs nothing from here.
    fn of(
        spec: &JobSpec,
        destination: &RemoteHost,
        options: &ConnectOptions,
    ) -> Result<Option<Self>, Fatal> {
        if !spec.sources_are_remote {
            return spec
                .sources
                .iter()
                .map(|source| here(source, spec.selection.follow))
                .collect::<Result<_, Fatal>>()
                .map(Some);
        }
        if are_at(destination, spec)? {
            return Ok(None);
        }
        let remote: Vec<RemotePath> = spec.sources.iter().map(there).collect::<Result<_, _>>()?;
        let follow = spec.selection.follow;
        let connect = |source: &RemotePath| {
            Ok((source.typed.clone(), Source::There(third(source, follow, options)?)))
        };
        remote.iter().map(connect).collect::<Result<_, Fatal>>().map(Some)
    }
}

/// Connects with each host of a source.
///
/// # Errors
/// None of them can be reached; the error is that of the first one.
fn third(
    source: &RemotePath,
    follow: FollowLinks,
    options: &ConnectOptions,
) -> Result<Vec<Arc<ThirdSource>>, Fatal> {
    let connect = |host: &RemoteHost| {
        let mut own = of_this_host(options);
        if !source.others.is_empty() {
            own.hello_within = Some(LOGIN_WITHIN);
        }
        let agent = RemoteAgent::connect(host, &source.path, &own)?;
        let named = agent.named(&options.streams.settings);
        let relays = start_relays(&named, options)?;
        Ok(Arc::new(ThirdSource { agent, follow, relays }))
    };
    let (mut reached, mut failed) = (Vec::new(), Vec::new());
    for host in source.hosts() {
        match connect(host) {
            Ok(host) => reached.push(host),
            Err(why) => failed.push((host.shown(), why)),
        }
    }
    if reached.is_empty() {
        return Err(failed.swap_remove(0).1);
    }
    for (host, why) in failed {
        say(&format!("dmover: '{host}' is not used: {}", one_line(&why.to_string())));
    }
    Ok(reached)
}

/// How this host reaches two others that exchange content. What the user has chosen is for the streams between the two; those of
/// this host are used only if there are none.
fn of_this_host(options: &ConnectOptions) -> ConnectOptions {
    let mut own = options.clone();
    own.streams.settings.addresses.clear();
    own.streams.settings.from.clear();
    own.streams.notice = Notice(Arc::new(|text| tracing::info!(text)));
    own.relays.clear();
    own.silence = options.streams.silence();
    own
}

impl FromIterator<(PathBytes, Source)> for Sources {
    fn from_iter<T: IntoIterator<Item = (PathBytes, Source)>>(sources: T) -> Self {
        let (named, served) = sources.into_iter().unzip();
        Self { named, served }
    }
}

/// A source of this host. The job is the same if the command is run again from elsewhere.
fn here(source: &PathBytes, follow: FollowLinks) -> Result<(PathBytes, Source), Fatal> {
    let absolute = std::path::absolute(source.to_path());
    let absolute = absolute.map_err(|error| {
        let message = format!("cannot use '{}': {error}", source.to_path().display());
        Fatal::refused(message, "check the path")
    })?;
    let host = dmover_host::name();
    let path = absolute.as_os_str().as_bytes();
    let named = PathBytes([host.as_bytes(), b":", path].concat());
    Ok((named, Source::Here(source.clone(), follow)))
}

/// Whether all sources are on the host of DEST.
fn are_at(destination: &RemoteHost, spec: &JobSpec) -> Result<bool, Fatal> {
    if !spec.sources_are_remote {
        return Ok(false);
    }
    let remote: Vec<RemotePath> = spec.sources.iter().map(there).collect::<Result<_, _>>()?;
    Ok(remote.iter().all(|source| source.hosts().eq([destination])))
}

fn there(source: &PathBytes) -> Result<RemotePath, Fatal> {
    match Endpoint::parse(OsStr::from_bytes(&source.0))? {
        Endpoint::Remote(remote) => Ok(remote),
        Endpoint::Local(_) => Err(Fatal::refused(
            format!("'{}' is on this host", source.to_path().display()),
            "run one command for the sources here, and one for those on other hosts",
        )),
    }
}

/// What the user has put before the path.
fn shown_host(typed: &RemotePath) -> PathBytes {
    let PathBytes(all) = &typed.typed;
    PathBytes(all.strip_suffix(&typed.path.0[..]).unwrap_or(all).to_vec())
}

fn delegate(
    spec: &JobSpec,
    destination: &RemotePath,
    options: &ConnectOptions,
    limits: &Limits<'_>,
) -> Result<ExitCode, Fatal> {
    let (stays, is_shared) = (!limits.is_detached(), limits.is_shared());
    let sources = if stays {
        Sources::of(spec, &destination.host, options)?
    } else {
        Sources::without_this_host(spec, destination)?
    };
    let mut there = spec.clone();
    there.destination = destination.path.clone();
    there.host = Some(shown_host(destination));
    match &sources {
        Some(sources) => {
            there.sources.clone_from(&sources.named);
            there.sources_are_remote = true;
        }
        None => {
            let paths = spec.sources.iter().map(|source| Ok(self::there(source)?.path));
            there.sources = paths.collect::<Result<_, Fatal>>()?;
            there.sources_are_remote = false;
        }
    }
    let job = DelegatedJob {
        words: words_as_typed().iter().map(|word| PathBytes::from(word.as_os_str())).collect(),
        spec: serde_json::to_string(&there).expect("a job has a form in JSON"),
        // Movers open the sources by the names of the job, and what they find there has to be the same.
        typed: if is_shared { there.sources.clone() } else { spec.sources.clone() },
        // What stays draws on no terminal.
        columns: (stays && screen::is_there())
            .then(|| u16::try_from(screen::columns()).unwrap_or(80)),
    };
    let third_party = there.sources_are_remote && spec.sources_are_remote;
    let mut streams = options.streams.settings.clone();
    let mut options = if third_party { of_this_host(options) } else { options.clone() };
    if !destination.others.is_empty() {
        let hosts = destination.hosts().count() as u32;
        share_among(&mut streams, hosts);
        share_among(&mut options.streams.settings, hosts);
        options.hello_within = Some(LOGIN_WITHIN);
    }
    let (sender, received) = mpsc::channel();
    let served = sources.unwrap_or_default().served;
    let why_the_first = why_the_first(spec, &there);
    let rules = Rules {
        all_take_part: spec.verb.fills() && !spec.policy.dry_run,
        first_runs: why_the_first.is_some(),
    };
    let places = Places { sources: there.sources.clone(), destination: there.destination.clone() };
    let hosts = DestinationHosts {
        served,
        streams,
        signals: sender.clone(),
        rules,
        why_the_first,
        options,
    };
    let ended = hosts.start(destination, (job, places), received)?;
    pass_on_signals(sender)?;
    let code =
        ended.recv().map_err(|_| Fatal::Thread(std::io::Error::other("a thread panicked")))?;
    match code? {
        // It stopped by a signal that this process has got.
        code if STOPPING.iter().any(|signal| signals::code_of(*signal) == code) => {
            Ok(signals::raise_again(i32::from(code) - 128))
        }
        code => Ok(ExitCode::from(code)),
    }
}

/// Why only the first host of DEST may run a job; `None`: another one may, too.
fn why_the_first(spec: &JobSpec, there: &JobSpec) -> Option<&'static str> {
    if !there.sources_are_remote {
        return Some("SOURCE is on that host: check it, or name another host first");
    }
    // Whether DEST was there before the first run is in the state of the host that ran it.
    let may_go_into =
        spec.verb == Verb::Copy && spec.target_mode == TargetMode::Auto && spec.sources.len() == 1;
    may_go_into.then_some(
        "another host cannot know whether a copy into DEST/NAME was meant; with -T the next host \
         runs the job",
    )
}

/// Passes the signals of this process on to the job until the process ends.
fn pass_on_signals(sender: Sender<i32>) -> Result<(), Fatal> {
    let stopping = STOPPING.into_iter().filter(|signal| !dmover_host::signals::is_ignored(*signal));
    let mut heard = Signals::new(stopping.chain([SIGUSR1])).map_err(Fatal::Thread)?;
    let listen = move || {
        let mut stops = 0;
        for signal in &mut heard {
            stops += u32::from(signal != SIGUSR1);
            if sender.send(signal).is_err() || stops >= STOPS_MAX {
                // The other host does not react.
                signals::raise_again(signal);
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(listen).map_err(Fatal::Thread)?;
    Ok(())
}
