//! `dmover agent`.
use dmover_job::quote::quoted;
use dmover_model::{ExitCode as Code, Fatal, PathBytes, units};
use dmover_net::agent::{AgentEnd, Role};
use dmover_net::connection::Broken;
use dmover_net::hello::{Hello, NoHello, Refusal};
use dmover_net::install::{Installed, Limits, install, this_machine};
use dmover_net::{
    ConnectOptions, Endpoint, Inspection, RemoteAgent, RemoteHost, RootKind, SshOptions,
};
use dmover_remote::{Introduction, TreeService};
use dmover_schedule::time::Instant;
use std::ffi::OsStr;
use std::fs::File;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::remote::{VERSION, login_limit, ssh_options};
use super::run::{Log, exit, log_to_agent, open_log};
use super::{confined, delegated, identity};
use crate::args::{AgentArgs, IdentityArgs, LogFormatArg};
use crate::config::environment;
use crate::print::{failure, json, line, one_line, say};

mod clients;
mod listen;

/// How often the round trip is measured; the fastest one counts.
const ROUND_TRIPS: u32 = 5;

pub(crate) fn run(args: &AgentArgs) -> ExitCode {
    let log = Log { file: None, format: LogFormatArg::Text, verbose: 1 };
    let logs = args.verbose || args.listen.is_some();
    let opened = if args.confined.is_some() { log_to_agent() } else { open_log(&log, logs) };
    if let Err(message) = opened {
        failure(&message, "correct $DMOVER_LOG");
        return exit(Code::Usage);
    }
    match act(args) {
        Ok(()) => exit(Code::Done),
        Err(error) => {
            failure(&one_line(&error.to_string()), &one_line(&error.hint()));
            exit(error.exit_code())
        }
    }
}

fn act(args: &AgentArgs) -> Result<(), Fatal> {
    let AgentArgs { install, check, listen, identity: options, .. } = args;
    let IdentityArgs { trust, identity: file, .. } = options;
    if let Some(host) = install {
        install_at(host, args)
    } else if let Some(place) = check {
        self::check(place, args)
    } else if let Some(file) = listen {
        listen::listen(file)
    } else if let Some(host) = trust {
        identity::trust(host, options.fingerprint)
    } else if options.make_identity {
        identity::make(file.as_deref(), Duration::from_millis(options.valid_for))
    } else if options.show_identity {
        identity::show(file.as_deref())
    } else if let Some(port) = args.stream_to {
        stream_to(port)
    } else {
        serve(args.confined.as_deref())
    }
}

/// `--stream-to`: the other end of a connection of ssh that carries a data stream.
fn stream_to(port: u16) -> Result<(), Fatal> {
    let passed = standard_streams()
        .and_then(|(input, output)| dmover_net::streams::stream_to(port, input, output));
    passed.map_err(|error| {
        let message = format!("cannot pass a data stream on to port {port}: {error}");
        Fatal::unavailable(message, "run the same command again")
    })
}

/// Standard input and output, which nothing else uses from now on.
fn standard_streams() -> std::io::Result<(File, File)> {
    Ok((dmover_host::process::take_stdin()?, dmover_host::process::take_stdout()?))
}

fn ssh(args: &AgentArgs) -> SshOptions {
    ssh_options(&args.ssh_command, args.agent.as_deref())
}

/// `--install`.
fn install_at(host: &OsStr, args: &AgentArgs) -> Result<(), Fatal> {
    let host = RemoteHost::parse(host)?;
    if host.port.is_some() {
        let message = format!("'{}' is an agent that runs already", host.shown());
        return Err(Fatal::refused(message, "name the host as ssh reaches it"));
    }
    let unreadable = |error: std::io::Error| {
        Fatal::refused(format!("cannot read this program: {error}"), "install it here again")
    };
    let program = std::fs::read("/proc/self/exe").map_err(unreadable)?;
    let limits = Limits::new(login_limit());
    let done = install(&host, &ssh(args), &program, &this_machine(), args.force, limits)?;
    let host = host.shown();
    match done {
        Installed::Same => say(&format!(
            "dmover: the host '{host}' already has this program at ~/.local/bin/dmover"
        )),
        Installed::Done { path, is_verified, replaced } => {
            let size = units::format_iec(program.len() as u64);
            let proof = if is_verified { "SHA-256 is equal" } else { "size is equal" };
            let over = match replaced {
                Some(old) if old.is_empty() => ", instead of another program".to_owned(),
                Some(old) => format!(", instead of {}", one_line(&old)),
                None => String::new(),
            };
            say(&format!(
                "dmover: dmover {VERSION} is at {} on '{host}'{over} ({size}, {proof})",
                quoted(path.as_bytes())
            ));
        }
    }
    Ok(())
}

/// `--check`.
fn check(place: &OsStr, args: &AgentArgs) -> Result<(), Fatal> {
    // A host alone is no endpoint of a job, but it is enough here. The home directory stands for it.
    let (host, path) = Endpoint::host_of(place, "check them one by one")?;
    let root = path.clone().unwrap_or_else(|| PathBytes(b".".to_vec()));
    let mut options = ConnectOptions::new(ssh(args), VERSION);
    options.hello_within = login_limit();
    options.credentials = identity::credentials();
    let agent = RemoteAgent::connect(&host, &root, &options)?;
    let mut found = agent.inspect()?;
    let mut fastest = Duration::MAX;
    for _ in 0..ROUND_TRIPS {
        let begin = Instant::now();
        found = agent.inspect()?;
        fastest = fastest.min(begin.elapsed());
    }
    let checked =
        Checked { hello: agent.hello().clone(), host: host.shown(), path: root, found, fastest };
    agent.close();
    if args.json {
        line(&checked.json());
    } else {
        checked.text();
    }
    match (checked.found.kind, path) {
        (RootKind::Missing, Some(_)) => {
            let message = format!("'{}' does not exist", place.to_string_lossy());
            Err(Fatal::refused(message, "check the path"))
        }
        (RootKind::Unknown(why), Some(_)) => {
            let message = format!("cannot open '{}': {why}", place.to_string_lossy());
            Err(Fatal::refused(message, "name a file or directory that this user may read there"))
        }
        _ => Ok(()),
    }
}

struct Checked {
    hello: Hello,
    host: String,
    path: PathBytes,
    found: Inspection,
    fastest: Duration,
}

impl Checked {
    fn protocol(&self) -> u16 {
        dmover_net::hello::PROTOCOLS.common(self.hello.protocols).unwrap_or_default()
    }

    fn text(&self) {
        let row = |label: &str, words: &str| line(&format!("  {label:<22} {words}"));
        let program = quoted(&self.hello.program.0);
        line(&format!("{}:", quoted(self.host.as_bytes())));
        row("host", &quoted(self.hello.host.as_bytes()));
        row("user", &quoted(self.hello.user.as_bytes()));
        row("program", &format!("dmover {} at {program}", one_line(&self.hello.version)));
        row("protocol", &self.protocol().to_string());
        row("round trip", &format!("{:.1} ms", self.fastest.as_secs_f64() * 1e3));
        let kind = match &self.found.kind {
            RootKind::Missing => "nothing",
            RootKind::Directory => "a directory",
            RootKind::File => "a file",
            RootKind::Other => "neither a file nor a directory",
            RootKind::Unknown(_) => "cannot be opened",
        };
        row(&quoted(&self.path.0), kind);
        if matches!(self.found.kind, RootKind::Missing | RootKind::Unknown(_)) {
            return;
        }
        row("writable", if self.found.is_writable { "yes" } else { "no" });
        if let Some(free) = self.found.free_bytes {
            row("free", &units::format_iec(free));
        }
    }

    fn json(&self) -> String {
        let kind = match &self.found.kind {
            RootKind::Missing => "missing",
            RootKind::Directory => "directory",
            RootKind::File => "file",
            RootKind::Other => "other",
            RootKind::Unknown(_) => "unknown",
        };
        let fields = serde_json::json!({
            "type": "agent",
            "schema": json::SCHEMA,
            "time": jiff::Timestamp::now().to_string(),
            "named": self.host,
            "host": self.hello.host,
            "user": self.hello.user,
            "version": self.hello.version,
            "program": String::from_utf8_lossy(&self.hello.program.0),
            "protocol": self.protocol(),
            "round_trip_us": self.fastest.as_micros() as u64,
            "kind": kind,
            "writable": self.found.is_writable,
            "free_bytes": self.found.free_bytes,
        });
        let path = self.path.to_path();
        let mut object: serde_json::Map<_, _> = json::path_fields(&path).collect();
        if let serde_json::Value::Object(fields) = fields {
            object.extend(fields);
        }
        serde_json::Value::Object(object).to_string()
    }
}

/// The address by which ssh has reached this host, as sshd(8) says.
fn addresses() -> Vec<String> {
    let connection = environment("SSH_CONNECTION").unwrap_or_default();
    let connection = connection.to_string_lossy();
    connection.split(' ').nth(2).map(str::to_owned).into_iter().collect()
}

/// The same, and the others of this host: third hosts may be in another network.
fn for_third_hosts() -> Vec<String> {
    let mut all = addresses();
    let others = dmover_host::network::addresses().into_iter().map(|address| address.to_string());
    all.extend(others.filter(|address| !addresses().contains(address)));
    all
}

fn refusal(why: &Fatal) -> Refusal {
    Refusal { message: why.to_string(), hint: why.hint() }
}

/// `--stdio`.
fn serve(confined: Option<&str>) -> Result<(), Fatal> {
    if std::io::stdin().is_terminal() {
        let message = "'dmover agent --stdio' is run by dmover on another host";
        return Err(Fatal::refused(message, "to try it, run 'dmover agent --check HOST' there"));
    }
    // Before anything is opened for the client, and before there is another thread.
    let confinement = confined.map(confined::become_user).transpose()?;
    let entered = confinement.map_or(Ok(()), confined::enter);
    if let Err(error) = &entered {
        tracing::warn!("{error}");
    }
    let (input, output) = standard_streams().map_err(|error| {
        let message = format!("cannot use standard input and output: {error}");
        Fatal::refused(message, "dmover on another host runs this")
    })?;
    let mut own = Hello::of_this_program(VERSION);
    if let Some(user) = environment("USER") {
        own.user = user.to_string_lossy().into_owned();
    }
    if let Ok(program) = std::env::current_exe() {
        own.program = PathBytes::from(program.as_os_str());
    }
    // Directories and files stay open between requests.
    dmover_host::process::raise_open_files();
    let introduction = Introduction { hello: own.clone(), addresses: for_third_hosts() };
    let end = dmover_net::agent::run(input, output, (own, addresses()), |peer| {
        let ports =
            peer.offer.as_ref().map_or(Ok(()), |offer| confined::bounds().check_ports(offer.ports));
        entered.and(ports).map_err(|why| refusal(&why))?;
        Ok(if peer.serves {
            Role::Asks(Box::new(delegated::run))
        } else {
            let service = TreeService::new(peer.root.clone()).introduced(introduction);
            Role::Serves(Arc::new(service.within(confined::bounds())))
        })
    });
    tracing::debug!(?end, "the agent ends");
    let lost = |message: String| Err(Fatal::unavailable(message, "the other host says more"));
    match end {
        AgentEnd::Over(Broken::Closed) | AgentEnd::Refused(_) => Ok(()),
        // Nobody waits for the reason.
        AgentEnd::Over(Broken::Ended) | AgentEnd::NoHello(NoHello::Nothing)
            if confined.is_some() =>
        {
            Ok(())
        }
        AgentEnd::NoHello(NoHello::Text(_) | NoHello::Nothing | NoHello::Damaged) => {
            let message = "standard input does not come from dmover on another host";
            Err(Fatal::refused(message, "to try it, run 'dmover agent --check HOST' there"))
        }
        AgentEnd::Over(why) => lost(format!("the connection was lost: {why}")),
        AgentEnd::NoHello(NoHello::Io(why)) | AgentEnd::Io(why) => {
            lost(format!("the connection was lost: {why}"))
        }
    }
}
