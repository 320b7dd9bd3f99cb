//! The side that runs a job for a user at another host: it asks for the job, for signals and for the sources, and sends what
//! the job prints.
use bytes::Bytes;
use dmover_model::{AttributeSet, ConnectionReport, Fatal, FollowLinks, PathBytes};
use dmover_net::connection::{Broken, Channel, Connection};
use dmover_net::frame::PAYLOAD_MAX;
use dmover_net::hello::Hello;
use dmover_net::{ConnectOptions, RemoteAgent};
use dmover_schedule::thread;
use dmover_schedule::thread::JoinHandle;
use dmover_tree::{RemoteTree, RemoteTrees};
use dmover_wire::agent::{UNKNOWN_REQUEST, WithHead};
use dmover_wire::delegation::{
    DelegateRequest, DelegateRole, DelegatedJob, OutputStream, ThirdHost, ThirdHosts,
};
use dmover_wire::{decode, encode};
use std::io::Read;
use std::sync::Arc;

use crate::chunks::OtherHosts;
use crate::joined::receive;
use crate::source::{Connect, Line, Opening, RemoteSource};
use crate::sources::SharedOptions;

/// SIGHUP.
const HANGUP: i32 = 1;
/// The signals that a job gets: SIGHUP, SIGINT, SIGUSR1 and SIGTERM (signal(7)).
const PASSED_ON: [i32; 4] = [HANGUP, 2, 10, 15];
/// How much output is sent in one message.
const OUTPUT_BYTES: usize = 64 << 10;

/// A job for a user at another host.
#[derive(Debug, Clone)]
pub struct Delegated {
    connection: Arc<Connection>,
}

impl Delegated {
    /// The job that comes on a connection on which this side asks.
    pub fn new(connection: Connection) -> Self {
        Self { connection: Arc::new(connection) }
    }

    /// What this host does, and what it runs if it runs the job.
    ///
    /// # Errors
    /// The connection is over.
    pub fn part(&self) -> Result<(DelegateRole, Option<DelegatedJob>), Fatal> {
        // Both are asked for at once: an older program at the other side knows only one of them.
        let asked = [DelegateRequest::Role, DelegateRequest::Job].map(|request| {
            let channel = self.connection.request(&encode(&request))?;
            channel.finish()?;
            Ok(channel)
        });
        let [role, job] = asked;
        let role = role.and_then(|channel| match receive(&channel) {
            Err(Broken::Cancelled(why)) if why == UNKNOWN_REQUEST => {
                Ok(DelegateRole::Runs { others: Vec::new() })
            }
            role => role,
        });
        let role = role.map_err(|why| lost(&why))?;
        let job = match role {
            DelegateRole::Runs { .. } => Some(job.and_then(|channel| receive(&channel))),
            DelegateRole::CopiesChunks { .. } => None,
        };
        Ok((role, job.transpose().map_err(|why| lost(&why))?))
    }

    /// Accepts other hosts that share DEST, which copy chunks of large files. `others`: their names.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn accept(&self, others: Vec<String>, version: &str) -> Result<Arc<OtherHosts>, Fatal> {
        let own = Hello::of_this_program(version);
        Ok(Arc::new(OtherHosts::accept(&self.connection, others, &own)?))
    }

    /// Whether the connection with the host of the command is over.
    pub fn is_over(&self) -> bool {
        self.connection.is_over().is_some()
    }

    /// The host that runs the job, for one that copies chunks.
    ///
    /// # Errors
    /// The connection is over, or that host cannot be used.
    pub fn coordinator(&self, options: &ConnectOptions) -> Result<RemoteAgent, Fatal> {
        let asked = self.connection.request(&encode(&DelegateRequest::Coordinator));
        let channel = asked.map_err(|why| lost(&why))?;
        RemoteAgent::through(channel, "the host of the job", &PathBytes::default(), options)
    }

    /// The sources of the job. `named`: as its specification has them; `typed`: as the user has typed them; `options`: how third hosts are reached, but for the
    /// settings of data streams, which are those of the user.
    ///
    /// # Errors
    /// The connection is over.
    pub fn sources(
        &self,
        named: &[PathBytes],
        typed: &[PathBytes],
        (preserve, with_head): (AttributeSet, WithHead),
        mut options: ConnectOptions,
    ) -> Result<DelegatedSources, Fatal> {
        let asked = self.connection.request(&encode(&DelegateRequest::ThirdHosts));
        let third: Result<ThirdHosts, _> = asked.and_then(|channel| {
            channel.finish()?;
            receive(&channel)
        });
        let third = third.map_err(|why| lost(&why))?;
        options.streams.settings = third.streams;
        let mut number = 0;
        let known = named.iter().zip(typed).zip(&third.hosts);
        let sources = known.map(|((named, typed), hosts)| {
            let third = (number..).zip(hosts.iter().cloned()).collect();
            number += hosts.len() as u32;
            Named { in_job: named.clone(), typed: typed.clone(), third }
        });
        let connection = Arc::clone(&self.connection);
        let sources = sources.collect();
        Ok(DelegatedSources { connection, sources, preserve, with_head, options })
    }

    /// Calls `each` with every signal that the process of the user gets, on a thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn on_signals(&self, each: impl Fn(i32) + Send + 'static) -> std::io::Result<()> {
        let connection = Arc::clone(&self.connection);
        thread::Builder::new().name("user-signals".into()).spawn(move || {
            let Ok(channel) = connection.request(&encode(&DelegateRequest::Signals)) else {
                return;
            };
            loop {
                match channel.receive() {
                    Ok(Some(message)) => {
                        // Others would stop or end this process in another way.
                        match decode(&message) {
                            Ok(signal) if PASSED_ON.contains(&signal) => each(signal),
                            _ => tracing::warn!("a signal that is not passed on"),
                        }
                    }
                    Ok(None) => return,
                    // As when a terminal goes: nobody is there any more, and the command may be run again soon.
                    Err(_) => return each(HANGUP),
                }
            }
        })?;
        Ok(())
    }

    /// Sends what comes from a pipe to the user, on a thread that ends with the pipe. Without the user the output is dropped,
    /// so that the job can end.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn forward(
        &self,
        stream: OutputStream,
        mut pipe: impl Read + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>> {
        let connection = Arc::clone(&self.connection);
        thread::Builder::new().name("user-output".into()).spawn(move || {
            let mut channel = connection.request(&encode(&DelegateRequest::Output(stream))).ok();
            let mut buffer = vec![0; OUTPUT_BYTES];
            while let Ok(read @ 1..) = pipe.read(&mut buffer) {
                let sent = channel.as_ref().map(|channel| channel.send(&buffer[..read]));
                if matches!(sent, Some(Err(_))) {
                    channel = None;
                }
            }
            if let Some(channel) = channel {
                // The job ends when all of it was printed.
                let _ = channel.finish().and_then(|()| channel.receive());
            }
        })
    }

    /// Tells how the job has ended.
    pub fn end(self, code: u8) {
        let told = self.connection.request(&encode(&DelegateRequest::Ended(code)));
        // Who has gone cannot be told.
        let _ = told.and_then(|channel| {
            channel.finish()?;
            channel.receive()
        });
        self.connection.close();
    }
}

fn lost(why: &Broken) -> Fatal {
    Fatal::unavailable(
        format!("the connection to the host of the command was lost: {why}"),
        "check the network, then run the same command again",
    )
}

/// A source.
#[derive(Debug)]
struct Named {
    /// As the job names it.
    in_job: PathBytes,
    /// As the user has typed it.
    typed: PathBytes,
    /// The third hosts that have it, with their numbers; none: the host of the command has it.
    third: Vec<(u32, ThirdHost)>,
}

/// A connection of this host with the agent at a third one, which the host of the command has made possible.
fn connect_to(
    connection: &Connection,
    (number, host): &(u32, ThirdHost),
    options: &ConnectOptions,
) -> Result<RemoteAgent, Fatal> {
    let request = encode(&DelegateRequest::Connect { number: *number });
    let channel = connection.request(&request).map_err(|why| lost(&why))?;
    // The agent serves one root, whatever is asked for.
    let mut options = options.clone();
    options.streams.relayed.clone_from(&host.ways);
    RemoteAgent::through(channel, &host.name, &PathBytes::default(), &options)
}

/// Opens the sources of a job for a user at another host.
#[derive(Debug)]
pub struct DelegatedSources {
    connection: Arc<Connection>,
    sources: Vec<Named>,
    preserve: AttributeSet,
    with_head: WithHead,
    options: ConnectOptions,
}

impl DelegatedSources {
    /// Opens a tree that several third hosts have.
    fn open_shared(
        &self,
        several: &[(u32, ThirdHost)],
        opening: Opening,
    ) -> Result<RemoteSource, Fatal> {
        let shared = SharedOptions::of(&self.options, several.len() as u32)?;
        let hosts = several.iter().cloned().map(|host| {
            let named = PathBytes(host.1.name.clone().into_bytes());
            let (connection, options) = (Arc::clone(&self.connection), shared.each.clone());
            let connect: Connect =
                Box::new(move || Ok(Arc::new(connect_to(&connection, &host, &options)?)));
            (named, connect)
        });
        RemoteSource::of_several(hosts.collect(), opening, shared.source)
    }
}

impl RemoteTrees for DelegatedSources {
    fn open(&self, named: &PathBytes, follow: FollowLinks) -> Result<Arc<dyn RemoteTree>, Fatal> {
        let source = (0..).zip(&self.sources).find(|(_, source)| source.in_job == *named);
        let Some((number, Named { typed, third, .. })) = source else {
            let message = format!("'{}' is no source of this job", named.to_path().display());
            return Err(Fatal::refused(message, "use one version of dmover on both hosts"));
        };
        let (preserve, with_head) = (self.preserve, self.with_head.clone());
        let opening = Opening { display: typed.clone(), follow, preserve, with_head };
        let line: Arc<dyn Line> = match &third[..] {
            [] => Arc::new(SourceLine { connection: Arc::clone(&self.connection), number }),
            [host] => Arc::new(connect_to(&self.connection, host, &self.options)?),
            several => return Ok(Arc::new(self.open_shared(several, opening)?)),
        };
        Ok(Arc::new(RemoteSource::open(line, opening)?))
    }

    fn names(&self, path: &PathBytes) -> bool {
        self.sources.iter().any(|source| source.in_job == *path)
    }
}

/// Carries the requests about one source.
#[derive(Debug)]
struct SourceLine {
    connection: Arc<Connection>,
    number: u32,
}

impl SourceLine {
    fn wrapped(&self, message: &[u8]) -> Result<Bytes, Broken> {
        let request = message.to_vec();
        let message = encode(&DelegateRequest::Source { number: self.number, request });
        if message.len() > PAYLOAD_MAX {
            return Err(Broken::Cancelled("the request is too long for a message".into()));
        }
        Ok(message)
    }
}

impl Line for SourceLine {
    fn request(&self, message: &[u8]) -> Result<Channel, Broken> {
        self.connection.request(&self.wrapped(message)?)
    }

    fn request_ahead(&self, message: &[u8]) -> Result<Option<Channel>, Broken> {
        self.connection.request_ahead(&self.wrapped(message)?)
    }

    fn is_over(&self) -> Option<Broken> {
        self.connection.is_over()
    }

    fn report(&self) -> Option<ConnectionReport> {
        self.connection.report()
    }

    fn fatal(&self, why: &Broken) -> Fatal {
        match why {
            Broken::Cancelled(reason) => Fatal::refused(
                format!("the host of the command refuses: {reason}"),
                "use one version of dmover on both hosts",
            ),
            why => lost(why),
        }
    }
}
