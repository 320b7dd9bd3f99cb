//! The near side: reaches a host, greets the agent there, and asks it.
mod relays;

use dmover_model::{ConnectionReport, Fatal, PathBytes};
use dmover_schedule::thread;
use dmover_wire::agent::{Inspection, Request};
use dmover_wire::streams::RelayedWay;
use dmover_wire::{decode, encode};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

pub use self::relays::{Relays, start_any as start_relays};
use crate::agent::{Service, Serving};
use crate::connection::{Broken, Channel, Connection, Link, SILENCE, Terms};
use crate::endpoint::RemoteHost;
use crate::failure;
use crate::hello::{Hello, NoHello};
use crate::listening::Credentials;
use crate::reach::{Reach, Way};
use crate::ssh::SshOptions;
use crate::streams::{Offering, Peer, StreamOptions, StreamSettings};

/// How long the agent may take to say what is at its root.
const ANSWER_WITHIN: Duration = Duration::from_mins(1);

/// How a host is reached.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// The program.
    pub ssh: SshOptions,
    /// What is shown to agents that listen.
    pub credentials: Credentials,
    /// The version of this program, for the greeting.
    pub version: String,
    /// The limit for silence.
    pub silence: Duration,
    /// The data streams beside ssh.
    pub streams: StreamOptions,
    /// The relays that data streams lead through: alternatives, each of which is a chain from the first to the last.
    pub relays: Vec<Vec<RemoteHost>>,
    /// The limit for the login and the greeting; `None` where a user may be asked for a password.
    pub hello_within: Option<Duration>,
}

impl ConnectOptions {
    /// The usual limits, without one for the login.
    pub fn new(ssh: SshOptions, version: &str) -> Self {
        let streams = StreamOptions::none();
        Self {
            ssh,
            credentials: Credentials::none(),
            version: version.to_owned(),
            silence: SILENCE,
            streams,
            relays: Vec::new(),
            hello_within: None,
        }
    }
}

/// An agent at another host, connected. Dropping it ends the agent.
#[derive(Debug)]
pub struct RemoteAgent {
    // Dropped first, which ends what carries it.
    connection: Connection,
    _relays: Vec<Relays>,
    first_relays: Vec<String>,
    reach: Reach,
    root: PathBytes,
    hello: Hello,
}

impl RemoteAgent {
    /// Starts an agent for one root. Call it from a thread that lives as long as the connection: ssh is killed with it.
    ///
    /// # Errors
    /// The host cannot be reached, or has no agent that can be used.
    pub fn connect(
        host: &RemoteHost,
        root: &PathBytes,
        options: &ConnectOptions,
    ) -> Result<Self, Fatal> {
        Self::greet(Way::to(host, (&options.ssh, &options.credentials))?, root, options)
    }

    /// The agent that answers on a channel to a third host. `host`: the name by which the third host reaches it.
    ///
    /// # Errors
    /// It does not answer, or cannot be used.
    pub fn through(
        channel: Channel,
        host: &str,
        root: &PathBytes,
        options: &ConnectOptions,
    ) -> Result<Self, Fatal> {
        Self::greet(Way::through(channel, host), root, options)
    }

    fn greet(way: Way, root: &PathBytes, options: &ConnectOptions) -> Result<Self, Fatal> {
        let mut own = Hello::of_this_program(&options.version);
        own.root = root.clone();
        let Greeted { link, relays, first_relays, reach, hello, terms } =
            Greeted::on(way, own, options)?;
        let connection = Connection::asking(link, terms).map_err(Fatal::Thread)?;
        let root = root.clone();
        Ok(Self { connection, _relays: relays, first_relays, reach, root, hello })
    }

    /// What the agent said of itself.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// The host, as it was named.
    pub fn host(&self) -> &str {
        &self.reach.host
    }

    /// The name or address of the host, without a user.
    pub fn name(&self) -> &str {
        &self.reach.name
    }

    /// The names and addresses to which relays pass data streams on.
    pub fn named(&self, settings: &StreamSettings) -> Vec<String> {
        relays::targets(&self.reach.name, &self.hello, settings)
    }

    /// Sends a request; the answers come on the channel.
    ///
    /// # Errors
    /// The connection is over.
    pub fn request(&self, message: &[u8]) -> Result<Channel, Broken> {
        self.connection.request(message)
    }

    /// Sends a request that can do without, unless channels are scarce.
    ///
    /// # Errors
    /// The connection is over.
    pub fn request_ahead(&self, message: &[u8]) -> Result<Option<Channel>, Broken> {
        self.connection.request_ahead(message)
    }

    /// The bytes of all messages that have come.
    pub fn received(&self) -> u64 {
        self.connection.received()
    }

    /// What is known of what carries the connection.
    pub fn report(&self) -> Option<ConnectionReport> {
        let report = self.connection.report()?;
        Some(ConnectionReport { relays: self.first_relays.clone(), ..report })
    }

    /// Why the connection is over; `None`: it is not.
    pub fn is_over(&self) -> Option<Broken> {
        self.connection.is_over()
    }

    /// What is at the root.
    ///
    /// # Errors
    /// The connection is over, the agent does not know this request, or it does not answer, as on a file system whose
    /// server is down.
    pub fn inspect(&self) -> Result<Inspection, Fatal> {
        let answer = self.request(&encode(&Request::Inspect)).and_then(|channel| {
            channel.finish()?;
            channel.receive_within(ANSWER_WITHIN).transpose()
        });
        let Some(answer) = answer.map_err(|why| self.fatal(&why))? else {
            let root = String::from_utf8_lossy(&self.root.0);
            let message = format!(
                "'{root}' on {} did not answer for {} s",
                self.reach.host,
                ANSWER_WITHIN.as_secs()
            );
            return Err(Fatal::unavailable(
                message,
                "check the file system there, then run the same command again",
            ));
        };
        let answer = answer.as_deref().and_then(|answer| decode(answer).ok());
        answer.ok_or_else(|| self.fatal(&Broken::Violation("an answer cannot be read")))
    }

    /// The error for an operation of the connection that failed.
    pub fn fatal(&self, why: &Broken) -> Fatal {
        self.reach.fatal(why)
    }

    /// Ends the agent in order.
    pub fn close(self) {
        self.connection.close();
    }
}

/// A job at another host, whose source this process serves. Dropping it ends the connection.
pub struct RemoteJob {
    // Dropped first, which ends ssh.
    serving: Serving,
    _relays: Vec<Relays>,
    reach: Reach,
}

impl RemoteJob {
    /// Starts an agent that runs a job, and answers its requests. Call it from a thread that lives as long as the
    /// connection: ssh is killed with it.
    ///
    /// # Errors
    /// The host cannot be reached, or has no agent that can be used.
    pub fn start(
        host: &RemoteHost,
        service: Arc<dyn Service>,
        options: &ConnectOptions,
    ) -> Result<Self, Fatal> {
        let own = Hello { serves: true, ..Hello::of_this_program(&options.version) };
        let way = Way::to(host, (&options.ssh, &options.credentials))?;
        let Greeted { link, relays, reach, hello, terms, .. } =
            Greeted::on(way, own.clone(), options)?;
        if !hello.serves {
            return Err(failure::other_version(&reach.host, &own, &hello));
        }
        let serving = Serving::begin(link, terms, service).map_err(Fatal::Thread)?;
        Ok(Self { serving, _relays: relays, reach })
    }

    /// Waits until the connection ends, and returns the reason.
    pub fn wait(&self) -> Broken {
        self.serving.wait()
    }

    /// The error for a connection that has ended too early.
    pub fn fatal(&self, why: &Broken) -> Fatal {
        self.reach.fatal(why)
    }
}

/// An agent that was started and has greeted.
struct Greeted {
    link: Link,
    relays: Vec<Relays>,
    first_relays: Vec<String>,
    reach: Reach,
    hello: Hello,
    terms: Terms,
}

impl Greeted {
    fn on(way: Way, mut own: Hello, options: &ConnectOptions) -> Result<Self, Fatal> {
        let Way { mut input, mut output, reach } = way;
        let shown = &reach.host;
        own.silence_ms = options.silence.as_millis() as u32;
        if !options.relays.is_empty() {
            relays::check(&options.streams.settings)?;
        }
        let offering = match options.streams.settings.count {
            0 => None,
            _ => Some(Offering::new(&options.streams.settings).map_err(Fatal::Thread)?),
        };
        own.offer = offering.as_ref().map(|offering| offering.offer.clone());
        let peer = match greet(&own, &reach, (&mut input, &mut output), options.hello_within) {
            Ok(peer) => peer,
            Err(Ungreeted::Late(seconds)) => return Err(failure::silent(shown, seconds)),
            Err(Ungreeted::Otherwise(NoHello::Text(text))) => {
                return Err(failure::text(shown, &text));
            }
            Err(Ungreeted::Otherwise(why)) => {
                drop(output);
                let ended = reach.without_hello();
                let is_damaged = matches!(why, NoHello::Damaged);
                return Err(if is_damaged { failure::damaged(shown) } else { ended });
            }
        };
        if own.protocols.common(peer.protocols).is_none() {
            return Err(failure::other_version(shown, &own, &peer));
        }
        if let Some(refusal) = &peer.refusal {
            let message = format!("the host '{shown}' refuses: {}", refusal.message);
            return Err(Fatal::refused(message, refusal.hint.clone()));
        }
        let carrier = reach.carrier(input, output);
        let (mut terms, mut relays) = (own.terms_with(&peer), Vec::new());
        let mut streams = options.streams.clone();
        let link = match offering {
            None => carrier.alone(),
            Some(offering) => {
                let is_here = peer.host == own.host;
                let to = Peer { name: &reach.name, is_here, spare: reach.spare() };
                let targets = relays::targets(&reach.name, &peer, &streams.settings);
                let answered =
                    offering.answered(peer.answer.clone(), carrier, (to, &streams), &mut terms);
                let (link, dialer) = answered.map_err(Fatal::Thread)?;
                if let Some(mut dialer) = dialer {
                    // Both sides hear each other meanwhile.
                    let started = relays::start_any(&targets, options)?;
                    let ways: Vec<RelayedWay>;
                    (relays, ways) = started.into_iter().unzip();
                    streams.relayed.extend(ways);
                    dialer.through(streams.relayed.clone());
                    dialer.or_through_ssh(reach.further());
                    dialer.start().map_err(Fatal::Thread)?;
                }
                link
            }
        };
        let first = |way: &RelayedWay| way.addresses.last().cloned();
        let first_relays = streams.relayed.iter().filter_map(first).collect();
        Ok(Self { link, relays, first_relays, terms, reach, hello: peer })
    }
}

enum Ungreeted {
    Late(u64),
    Otherwise(NoHello),
}

/// Sends the greeting and waits for that of the other side.
fn greet(
    own: &Hello,
    reach: &Reach,
    (input, output): (&mut dyn Read, &mut dyn Write),
    within: Option<Duration>,
) -> Result<Hello, Ungreeted> {
    let (greeted, waiting) = mpsc::channel::<()>();
    let is_late = Arc::new(AtomicBool::new(false));
    if let Some(limit) = within {
        let (hang_up, is_late) = (reach.hang_up(), Arc::clone(&is_late));
        let timer = thread::Builder::new().name("net-login".into());
        let started = timer.spawn(move || {
            if waiting.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                is_late.store(true, SeqCst);
                hang_up(Duration::ZERO);
            }
        });
        if let Err(error) = started {
            return Err(Ungreeted::Otherwise(NoHello::Io(error)));
        }
    }
    // If nobody reads it, the next line says why.
    let _ = own.write(output).and_then(|()| output.flush());
    let peer = Hello::read(input);
    drop(greeted);
    match peer {
        Ok(peer) => Ok(peer),
        Err(_) if is_late.load(SeqCst) => {
            Err(Ungreeted::Late(within.unwrap_or_default().as_secs()))
        }
        Err(why) => Err(Ungreeted::Otherwise(why)),
    }
}
