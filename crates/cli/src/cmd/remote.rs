//! Sources on other hosts.
use dmover_engine::RemoteTrees;
use dmover_model::{Fatal, JobSpec, PathBytes, Verb};
use dmover_net::streams::{STREAMS, share_among};
use dmover_net::{
    Compression, ConnectOptions, Notice, Protection, SshOptions, StreamOptions, StreamSettings,
};
use dmover_remote::{Sources, WithHead};
use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::Duration;

use super::identity::credentials;
use crate::args::{CompressArg, EncryptArg, FleetArgs, RemoteArgs, StreamsArg};
use crate::print::{is_conversation, one_line, say};

/// How the hosts of a job are reached.
pub(super) fn connect_options(args: &RemoteArgs) -> ConnectOptions {
    let mut options =
        ConnectOptions::new(ssh_options(&args.ssh_command, args.agent.as_deref()), VERSION);
    options.hello_within = login_limit();
    options.credentials = credentials();
    options.streams =
        StreamOptions { settings: stream_settings(args), relayed: Vec::new(), notice: told() };
    options.relays = args.relay.iter().map(|chain| chain.0.clone()).collect();
    options
}

/// Prints what the user should know of data streams.
pub(super) fn told() -> Notice {
    Notice(Arc::new(|text| say(&format!("dmover: {}", one_line(text)))))
}

/// Which data streams are used beside ssh.
pub(super) fn stream_settings(args: &RemoteArgs) -> StreamSettings {
    let (count, grows) = match args.streams {
        StreamsArg::Auto => (STREAMS, true),
        StreamsArg::Count(count) => (count, false),
    };
    StreamSettings {
        count,
        grows,
        protection: match args.encrypt {
            EncryptArg::Full => Protection::Full,
            EncryptArg::Integrity => Protection::Integrity,
            EncryptArg::None => Protection::None,
        },
        ports: args.data_ports,
        addresses: args.data_address.clone(),
        from: args.data_from.clone(),
        congestion: args.congestion.clone(),
        buffer_bytes: args.window,
        compression: match args.compress {
            CompressArg::Auto => Compression::Auto,
            CompressArg::Always => Compression::Always,
            CompressArg::Never => Compression::Never,
        },
        patience_ms: u32::try_from(args.reconnect_for).unwrap_or(u32::MAX),
    }
}

pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The limit for a login without a user who could be asked for a password.
pub(super) const LOGIN_WITHIN: Duration = Duration::from_mins(1);

/// How ssh and the agent are started: `--ssh-command` and `--agent`.
pub(super) fn ssh_options(command: &str, agent: Option<&OsStr>) -> SshOptions {
    let program = command.split_whitespace().map(OsString::from).collect();
    SshOptions { program, agent: agent.map(PathBytes::from) }
}

/// `None`: a user can be asked for a password, and takes any time.
pub(super) fn login_limit() -> Option<Duration> {
    (!is_conversation()).then_some(LOGIN_WITHIN)
}

/// What a job needs of a short file as soon as it opens it.
pub(super) fn with_head(spec: &JobSpec) -> WithHead {
    match (spec.verb, &spec.policy.digest) {
        (Verb::Verify, _) => WithHead::digests(&dmover_engine::compared_by()),
        (Verb::Sum, Some(policy)) => WithHead::digests(policy),
        _ => WithHead::Content,
    }
}

/// The data streams of movers to the hosts of SOURCE; `None`: SOURCE is on this host.
pub(super) fn movers_streams(spec: &JobSpec, args: &RemoteArgs) -> Option<StreamSettings> {
    spec.sources_are_remote.then(|| stream_settings(args))
}

/// Why names of owners are not taken by movers.
const ONE_NUMBER: &str = "use tables of numbers, --usermap @FILE and --groupmap @FILE: hosts of movers may have different accounts";

/// Refuses what movers of a broker cannot do. `are_remote`: they read the sources from another host.
pub(super) fn refuse_for_movers(
    spec: &JobSpec,
    args: &RemoteArgs,
    are_remote: bool,
) -> Result<(), Fatal> {
    if !spec.policy.names.is_empty() {
        let message = "names in --usermap and --groupmap do not work with --broker";
        return Err(Fatal::refused(message, ONE_NUMBER));
    }
    let of_one_host = [
        (
            "--relay",
            !args.relay.is_empty(),
            "omit it: movers connect with the host of SOURCE directly",
        ),
        ("--data-from", !args.data_from.is_empty(), "omit it: each mover has addresses of its own"),
        ("--owners-by-name", spec.policy.owners_by_name, ONE_NUMBER),
    ];
    let given = of_one_host.iter().find(|(_, is_given, _)| are_remote && *is_given);
    let Some((option, _, hint)) = given else { return Ok(()) };
    let message = format!("{option} does not work with a SOURCE on another host and --broker");
    Err(Fatal::refused(message, *hint))
}

/// How the hosts of a job are reached if movers of a broker have connections of their own, which content passes.
pub(super) fn options_beside_movers(args: &RemoteArgs) -> ConnectOptions {
    let mut options = connect_options(args);
    let settings = &mut options.streams.settings;
    (settings.count, settings.grows) = (settings.count.min(1), false);
    options
}

/// What opens the sources of a job; `None`: they are of this host.
///
/// # Errors
/// A refusal: the job cannot have sources on other hosts.
pub(super) fn sources(
    spec: &JobSpec,
    args: &RemoteArgs,
    fleet: &FleetArgs,
) -> Result<Option<Arc<dyn RemoteTrees>>, Fatal> {
    let is_shared = fleet.broker.is_some();
    if is_shared {
        refuse_for_movers(spec, args, spec.sources_are_remote)?;
    }
    if !spec.sources_are_remote {
        return Ok(None);
    }
    let options = if is_shared { options_beside_movers(args) } else { connect_options(args) };
    Ok(Some(opened_with(options, spec)))
}

/// What opens the sources of a job for a mover of a broker. `streams`: those that the user of the job wants.
pub(super) fn sources_of_mover(
    spec: &JobSpec,
    ssh: SshOptions,
    mut streams: StreamSettings,
) -> Arc<dyn RemoteTrees> {
    /// Usually at least so many movers share the line.
    const MOVERS: u32 = 2;
    share_among(&mut streams, MOVERS);
    let mut options = ConnectOptions::new(ssh, VERSION);
    // No user is there to type a password.
    options.hello_within = Some(LOGIN_WITHIN);
    options.credentials = credentials();
    options.streams = StreamOptions { settings: streams, relayed: Vec::new(), notice: told() };
    opened_with(options, spec)
}

fn opened_with(options: ConnectOptions, spec: &JobSpec) -> Arc<dyn RemoteTrees> {
    Arc::new(Sources::new(options, spec.policy.preserve, with_head(spec)))
}
