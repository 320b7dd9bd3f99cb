//! How an agent at another host is reached: by ssh, which starts it, where it listens, or through a connection of a third host to it.
use dmover_model::{Fatal, Protected};
use dmover_wire::agent::{NOT_ACCEPTED, UNKNOWN_REQUEST};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::connection::{Broken, Channel, HangUp, bytes};
use crate::endpoint::RemoteHost;
use crate::failure::Ended;
use crate::listening::{self, Credentials};
use crate::remote_command;
use crate::ssh::{Ssh, SshOptions};
use crate::streams::{Carrier, ThroughSsh};

/// How long ssh may take to say why it ended.
const REASON_WITHIN: Duration = Duration::from_secs(5);
const ONE_VERSION: &str =
    "use one version of dmover on both hosts; a shell there must not print text";
const AGAIN: &str = "check the host and the network, then run the same command again";

/// The way to an agent, before both sides have greeted.
pub(crate) struct Way {
    /// What the agent sends.
    pub input: Box<dyn Read + Send>,
    /// What the agent receives.
    pub output: Box<dyn Write + Send>,
    /// What is known of it.
    pub reach: Reach,
}

/// A host that was reached.
#[derive(Debug)]
pub(crate) struct Reach {
    by: By,
    /// The host as the user has named it.
    pub host: String,
    /// The name or address in it.
    pub name: String,
}

/// What carries the greetings, and everything else without data streams.
#[derive(Debug, Clone)]
enum By {
    /// ssh, and how it was started.
    Ssh(Arc<Ssh>, Arc<ThroughSsh>),
    /// A connection to an agent that listens.
    Agent(Arc<TcpStream>),
    /// A connection of the host of the command to that host.
    Command(Arc<Channel>),
}

impl Way {
    /// The way to a host, as it was named.
    ///
    /// # Errors
    /// ssh cannot be started, or the agent cannot be reached.
    pub fn to(
        host: &RemoteHost,
        (ssh, credentials): (&SshOptions, &Credentials),
    ) -> Result<Self, Fatal> {
        match host.port {
            None => Self::by_ssh(host, ssh),
            Some(port) => Self::to_agent(host, port, credentials),
        }
    }

    /// Starts an agent by ssh.
    fn by_ssh(host: &RemoteHost, options: &SshOptions) -> Result<Self, Fatal> {
        let agent = options.agent.as_ref();
        if agent.is_some_and(|agent| agent.0.is_empty() || agent.0.starts_with(b"-")) {
            return Err(Fatal::refused(
                "--agent names no program",
                "name the path of dmover there",
            ));
        }
        let command = remote_command::agent(agent.map(|path| &path.0[..]));
        let (ssh, output, input) = Ssh::start(host, options, &command)?;
        let how = ThroughSsh { host: host.clone(), options: options.clone() };
        let by = By::Ssh(Arc::new(ssh), Arc::new(how));
        let reach = Reach { by, host: host.shown(), name: host.name.clone() };
        Ok(Self { input: Box::new(input), output: Box::new(output), reach })
    }

    /// Connects to an agent that listens.
    fn to_agent(host: &RemoteHost, port: u16, credentials: &Credentials) -> Result<Self, Fatal> {
        let line = listening::connect(host, port, &(credentials.0)()?)?;
        let by = By::Agent(Arc::new(line.socket));
        let reach = Reach { by, host: host.shown(), name: host.name.clone() };
        Ok(Self { input: Box::new(line.input), output: Box::new(line.output), reach })
    }

    /// Through a channel of the host of the command, which names the host like this.
    pub fn through(channel: Channel, host: &str) -> Self {
        let channel = Arc::new(channel);
        let (input, output) = bytes::of(&channel);
        let (by, host) = (By::Command(channel), host.to_owned());
        let reach = Reach { by, name: host.clone(), host };
        Self { input: Box::new(input), output: Box::new(output), reach }
    }
}

impl Reach {
    /// Ends what carries the connection.
    pub fn hang_up(&self) -> HangUp {
        let by = self.by.clone();
        Box::new(move |patience| match by {
            By::Ssh(ssh, _) => drop(ssh.end(patience)),
            By::Agent(socket) => {
                // What was sent last arrives, and the agent ends the connection.
                let _ = socket.shutdown(Shutdown::Write);
                dmover_host::tcp::wait_for_end(&socket, patience);
                let _ = socket.shutdown(Shutdown::Both);
            }
            By::Command(channel) => channel.cancel("the job has ended"),
        })
    }

    /// What has carried the greetings.
    pub fn carrier(&self, input: Box<dyn Read + Send>, output: Box<dyn Write + Send>) -> Carrier {
        let protected = match self.by {
            By::Ssh(..) => Protected::Ssh,
            By::Agent(_) => Protected::Agent,
            By::Command(_) => Protected::Command,
        };
        Carrier { input, output, hang_up: self.hang_up(), protected }
    }

    /// How further connections with the host are opened; `None`: they are not.
    pub fn further(&self) -> Option<Arc<ThroughSsh>> {
        match &self.by {
            By::Ssh(_, how) => Some(Arc::clone(how)),
            By::Agent(_) | By::Command(_) => None,
        }
    }

    /// What carries everything if there are no data streams.
    pub fn spare(&self) -> &'static str {
        match self.by {
            By::Ssh(..) => "ssh",
            By::Agent(_) => "the connection to the agent",
            By::Command(_) => "the host of the command",
        }
    }

    /// The error for an agent that has ended without a greeting.
    pub fn without_hello(&self) -> Fatal {
        let host = &self.host;
        match &self.by {
            By::Ssh(ssh, how) => {
                let status = ssh.end(REASON_WITHIN);
                let (errors, agent) = (ssh.errors(), how.options.agent.as_ref());
                Ended { host, status, errors: &errors, agent }.without_hello()
            }
            By::Agent(_) => self.fatal(&Broken::Ended),
            By::Command(channel) => match channel.receive() {
                Err(why @ Broken::Cancelled(_)) => self.fatal(&why),
                _ => self.fatal(&Broken::Ended),
            },
        }
    }

    /// The error for an operation of the connection that failed.
    pub fn fatal(&self, why: &Broken) -> Fatal {
        let host = &self.host;
        match why {
            Broken::Cancelled(reason) if reason == UNKNOWN_REQUEST => {
                Fatal::refused(format!("the host '{host}' refuses: {reason}"), ONE_VERSION)
            }
            Broken::Cancelled(reason) if reason.starts_with(NOT_ACCEPTED) => {
                let reason = reason.trim_start_matches(NOT_ACCEPTED);
                let message = format!("the host '{host}' refuses: {reason}");
                Fatal::refused(message, "ask the administrator of the agent there")
            }
            Broken::Cancelled(reason) => {
                Fatal::unavailable(format!("the host '{host}' refuses: {reason}"), AGAIN)
            }
            Broken::Violation(what) => Fatal::refused(
                format!("the agent at the host '{host}' sent invalid data: {what}"),
                ONE_VERSION,
            ),
            Broken::Ended | Broken::Io(_) => {
                let last = self.last_line();
                let why = last.unwrap_or_else(|| why.to_string());
                self.lost(&why)
            }
            Broken::Silent(_) | Broken::Closed => self.lost(&why.to_string()),
        }
    }

    fn lost(&self, why: &str) -> Fatal {
        let message = format!("the connection to the host '{}' was lost: {why}", self.host);
        Fatal::unavailable(message, AGAIN)
    }

    /// What ssh said last, which says most.
    fn last_line(&self) -> Option<String> {
        let By::Ssh(ssh, _) = &self.by else { return None };
        let (host, status) = (&self.host, ssh.end(Duration::ZERO));
        let errors = ssh.errors();
        Ended { host, status, errors: &errors, agent: None }.last_line().map(str::to_owned)
    }
}
