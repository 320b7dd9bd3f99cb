//! The side that connects: opens streams, and others in the place of those that end.
use dmover_host::tcp::{self, Tuning};
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use dmover_wire::streams::RelayedWay;
use rustls::ClientConfig;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use super::handshake::{self, HANDSHAKE_WITHIN};
use super::pool::Pool;
use super::shared::Stream;
use super::through_ssh::{LOGIN_WITHIN, SshLine, ThroughSsh};
use super::ways::{TcpWay, Way, Ways};
use super::{StreamOptions, growth};
use crate::relay;

/// How long an address may take to accept a connection. After an outage the next attempt comes soon.
const CONNECT_WITHIN: Duration = Duration::from_secs(4);
/// How long an attempt on an address counts if another one of that host works.
const ALTERNATIVE_WITHIN: Duration = Duration::from_secs(2);
/// How often it looks whether streams are missing.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often it is tried if it never worked. A firewall does not go away.
const FIRST_ATTEMPTS: u32 = 3;
/// The same where ssh can carry streams instead.
const ATTEMPTS_BEFORE_SSH: u32 = 2;
/// Streams that are opened at the same time.
const DIALS_MAX: usize = 8;
/// The same for connections of ssh, of which a server accepts only a few before they have logged in (`MaxStartups` of sshd).
const LOGINS_MAX: usize = 4;
/// If so many times the number of streams end soon after they were opened, and none lives longer, ssh is better.
const YOUNG_ROUNDS: u32 = 3;

/// If there is no stream for so long, the user gets one message. Most outages are shorter, or end ssh as well.
const ALONE_TOLD_MS: u64 = 20_000;

/// Keeps a pool at its number of streams.
pub(crate) struct Dialer {
    pub(super) pool: Pool,
    pub(super) config: Arc<ClientConfig>,
    /// Names and addresses of the other side.
    pub(super) named: Vec<String>,
    pub(super) port: u16,
    pub(super) host: String,
    /// What carries everything without streams.
    pub(super) spare: &'static str,
    /// How ssh carries streams, if no port can be reached.
    pub(super) through_ssh: Option<Arc<ThroughSsh>>,
    pub(super) options: StreamOptions,
}

/// What has become of an attempt.
enum Step {
    /// Whoever is there has accepted the connection; it is not known yet who that is.
    Accepted,
    Opened,
    /// Another way was faster.
    NotNeeded,
    Failed(io::Error),
}

/// The same, as the thread of the attempt tells it.
enum Told {
    Accepted,
    Ended(io::Result<Option<Arc<Stream>>>),
}

/// An attempt that has not ended.
struct Pending {
    number: u64,
    way: Way,
    since: Instant,
}

/// What is known of attempts.
struct Attempts {
    sender: mpsc::Sender<(u64, Told)>,
    told: mpsc::Receiver<(u64, Told)>,
    last_number: u64,
    pending: Vec<Pending>,
    /// Streams that were opened.
    open: Vec<(Way, Arc<Stream>)>,
}

impl Attempts {
    fn new() -> Self {
        let (sender, told) = mpsc::channel();
        Self { sender, told, last_number: 0, pending: Vec::new(), open: Vec::new() }
    }

    /// Notes an attempt, and answers with its number.
    fn begin(&mut self, way: &Way) -> u64 {
        self.last_number += 1;
        let (number, way, since) = (self.last_number, way.clone(), Instant::now());
        self.pending.push(Pending { number, way, since });
        self.last_number
    }

    /// The next step of an attempt, within this time.
    fn next_within(&mut self, limit: Duration) -> Option<(Way, Step)> {
        let (number, told) = self.told.recv_timeout(limit).ok()?;
        // What comes of an attempt that was given up is too late; a stream that it has opened stays in the pool.
        let at = self.pending.iter().position(|pending| pending.number == number)?;
        let Told::Ended(result) = told else {
            return Some((self.pending[at].way.clone(), Step::Accepted));
        };
        let Pending { way, .. } = self.pending.swap_remove(at);
        let step = match result {
            Ok(Some(stream)) => {
                self.open.push((way.clone(), stream));
                Step::Opened
            }
            Ok(None) => Step::NotNeeded,
            Err(error) => Step::Failed(error),
        };
        Some((way, step))
    }

    /// Forgets streams that have ended. Answers with the ways of those that ended soon after they were opened.
    fn ended_early(&mut self) -> Vec<Way> {
        let ended = self.open.extract_if(.., |(_, stream)| stream.is_over());
        let early = ended.filter(|(_, stream)| stream.has_ended_early());
        early.map(|(way, _)| way).collect()
    }

    /// Gives up attempts on alternatives that are not used: whoever has accepted them may be silent.
    fn give_up_alternatives(&mut self, ways: &Ways) {
        self.pending.retain(|pending| {
            ways.are_using(&pending.way) || pending.since.elapsed() < ALTERNATIVE_WITHIN
        });
    }

    /// How many streams a way has.
    fn used(&self, way: &Way) -> usize {
        let open = self.open.iter().map(|(way, _)| way);
        let pending = self.pending.iter().map(|pending| &pending.way);
        open.chain(pending).filter(|used| *used == way).count()
    }
}

impl Dialer {
    /// Has streams lead through relays.
    pub fn through(&mut self, relayed: Vec<RelayedWay>) {
        self.options.relayed = relayed;
    }

    /// Has ssh carry streams, if no port can be reached.
    pub fn or_through_ssh(&mut self, how: Option<Arc<ThroughSsh>>) {
        self.through_ssh = how;
    }

    /// Starts the thread, which ends with the pool.
    pub fn start(self) -> io::Result<()> {
        let dialer = Arc::new(self);
        thread::Builder::new().name("net-dial".into()).spawn(move || dialer.run())?;
        Ok(())
    }

    fn wanted(&self) -> usize {
        growth::kept(&self.options.settings, self.pool.wanted())
    }

    fn run(self: &Arc<Self>) {
        let (begin, mut attempts) = (Instant::now(), Attempts::new());
        let now_ms = || begin.elapsed().as_millis() as u64;
        // Since when there are no streams any more, and whether the user knows.
        let (mut alone_since, mut is_told) = (None, false);
        let Some(mut ways) = self.first(&mut attempts) else { return };
        while !self.pool.is_over() {
            let young = self.pool.young_losses();
            if self.pool.streams() == 0 && young >= YOUNG_ROUNDS * self.options.settings.count {
                let why = "they end soon after they were opened";
                if ways.are_of_ssh() {
                    return self.without_streams(&format!("connections of ssh: {why}"));
                }
                let why = format!("port {}: {why}", self.port);
                let Some(others) = self.through_ssh(&mut attempts, &why) else { return };
                ways = others;
            }
            alone_since =
                if self.pool.streams() > 0 { None } else { alone_since.or(Some(now_ms())) };
            for way in attempts.ended_early() {
                ways.ended_early(&way, now_ms());
            }
            attempts.give_up_alternatives(&ways);
            let dials_max = if ways.are_of_ssh() { LOGINS_MAX } else { DIALS_MAX };
            while attempts.pending.len() < dials_max
                && let Some(way) =
                    ways.next(|way| attempts.used(way), self.wanted(), now_ms()).cloned()
            {
                self.open(way, &Arc::default(), &mut attempts);
            }
            // Each by itself: one that hangs holds up no other one.
            match attempts.next_within(LOOK_EVERY) {
                None | Some((_, Step::Accepted | Step::NotNeeded)) => {}
                Some((way, Step::Opened)) => ways.worked(&way),
                Some((way, Step::Failed(error))) => {
                    tracing::debug!(%error, host = %self.host, "cannot open a data stream");
                    ways.failed(&way, now_ms());
                    let alone_ms = alone_since.map_or(0, |since| now_ms() - since);
                    if alone_ms >= ALONE_TOLD_MS && !std::mem::replace(&mut is_told, true) {
                        self.without_streams(&format!("all have ended; {error}"));
                    }
                    let has_none = attempts.pending.is_empty() && self.pool.streams() == 0;
                    if has_none && !ways.are_of_ssh() {
                        // The other side may have another address by now, or this one may.
                        self.pool.wait_for_change(LOOK_EVERY);
                        ways = self.race(&mut attempts).unwrap_or(ways);
                    }
                }
            }
        }
    }

    fn without_streams(&self, why: &str) {
        let notice = super::without_streams(&self.host, self.spare, why);
        (self.options.notice.0)(&notice);
    }

    /// The ways of which one has led to the first stream.
    fn first(self: &Arc<Self>, attempts: &mut Attempts) -> Option<Ways> {
        let most = if self.through_ssh.is_some() { ATTEMPTS_BEFORE_SSH } else { FIRST_ATTEMPTS };
        for attempt in 1..=most {
            let begin = Instant::now();
            match self.race(attempts) {
                Ok(ways) => return Some(ways),
                Err(_) if self.pool.is_over() => return None,
                Err(error) if attempt == most => {
                    return self.through_ssh(attempts, &error.to_string());
                }
                Err(_) => self.pool.wait_for_change(CONNECT_WITHIN.saturating_sub(begin.elapsed())),
            }
        }
        None
    }

    /// Opens a stream that ssh carries, and has it carry the others. `why`: no other way can be used.
    fn through_ssh(self: &Arc<Self>, attempts: &mut Attempts, why: &str) -> Option<Ways> {
        if self.through_ssh.is_none() {
            self.without_streams(why);
            return None;
        }
        let mut ways = Ways::new([vec![Way::Ssh]]);
        self.open(Way::Ssh, &Arc::default(), attempts);
        while !self.pool.is_over() {
            match attempts.next_within(LOOK_EVERY) {
                Some((Way::Ssh, Step::Opened)) => {
                    ways.worked(&Way::Ssh);
                    self.pool.forget_young_losses();
                    let (host, count) = (&self.host, self.options.settings.count);
                    (self.options.notice.0)(&format!(
                        "no port of {host} can be used for data streams, so up to {count} connections of ssh carry them: {why}"
                    ));
                    return Some(ways);
                }
                Some((Way::Ssh, Step::Failed(error))) => {
                    self.without_streams(&format!("{why}; a second connection of ssh: {error}"));
                    return None;
                }
                Some(_) | None => {}
            }
        }
        None
    }

    /// Opens a stream on whatever way is open first. Where a connection is accepted, others follow at once: to wait for the proof of the
    /// first one would take two more round trips.
    fn race(self: &Arc<Self>, attempts: &mut Attempts) -> io::Result<Ways> {
        let mut ways = self.ways();
        let mut won: Vec<Arc<OnceLock<TcpWay>>> = Vec::new();
        for alternatives in ways.groups() {
            let first = Arc::default();
            for way in alternatives {
                self.open(way.clone(), &first, attempts);
            }
            won.push(first);
        }
        let mut failed = None;
        while !attempts.pending.is_empty() {
            match attempts.next_within(LOOK_EVERY) {
                Some((way, Step::Opened)) => {
                    ways.worked(&way);
                    return Ok(ways);
                }
                Some((way, Step::Accepted)) => {
                    let Some(group) = ways.accepted(&way) else { continue };
                    let share = self.wanted() / won.len();
                    while attempts.pending.len() < DIALS_MAX && attempts.used(&way) < share {
                        self.open(way.clone(), &won[group], attempts);
                    }
                }
                Some((way, Step::Failed(error))) => {
                    ways.failed(&way, 0);
                    failed = failed.or(Some(error));
                }
                Some((_, Step::NotNeeded)) | None => {}
            }
        }
        Err(failed.unwrap_or_else(|| {
            let names = self.named.join(", ");
            io::Error::other(format!("port {}: no address of {names} can be used", self.port))
        }))
    }

    /// All ways to the other side, by addresses as they are now. Those that the user has named are all used.
    fn ways(&self) -> Ways {
        let StreamOptions { settings, relayed, .. } = &self.options;
        let by_relays = relayed
            .iter()
            .map(|way| (&way.addresses[..], way.port, relay::prefaces(way, self.port)));
        let direct = |named| (named, self.port, Vec::new());
        let wanted: Vec<_> = if !relayed.is_empty() {
            by_relays.collect()
        } else if settings.addresses.is_empty() {
            vec![direct(&self.named[..])]
        } else {
            self.named.chunks(1).map(direct).collect()
        };
        let from: Vec<Option<IpAddr>> = match &settings.from[..] {
            [] => vec![None],
            from => from.iter().copied().map(Some).collect(),
        };
        let each = wanted.into_iter().flat_map(|(names, port, preface)| {
            let found =
                names.iter().filter_map(|name| (name.as_str(), port).to_socket_addrs().ok());
            let found: Vec<SocketAddr> = found.flatten().collect();
            from.iter().map(move |from| alternatives(&found, *from, &preface)).collect::<Vec<_>>()
        });
        Ways::new(each)
    }

    /// Opens a stream on a way, on a thread that says so in the end.
    /// `won`: the alternative on which the first stream was opened; others are not needed then.
    fn open(self: &Arc<Self>, way: Way, won: &Arc<OnceLock<TcpWay>>, attempts: &mut Attempts) {
        let number = attempts.begin(&way);
        let (dialer, won, done) = (Arc::clone(self), Arc::clone(won), attempts.sender.clone());
        let failed = done.clone();
        // ssh ends with the thread that has started it, which is this one.
        let line = match (&way, &self.through_ssh) {
            (Way::Ssh, Some(how)) => Some(how.connect(self.port)),
            _ => None,
        };
        let opens = move || {
            let accepted = || drop(done.send((number, Told::Accepted)));
            let result = match (&way, line) {
                (Way::Tcp(way), _) => dialer.dial(way, &won, accepted),
                (Way::Ssh, Some(line)) => line.and_then(|line| dialer.dial_through(line)),
                (Way::Ssh, None) => Err(io::ErrorKind::Unsupported.into()),
            };
            // Whoever waited for it may have gone.
            let _ = done.send((number, Told::Ended(result)));
        };
        let started = thread::Builder::new().name("net-dial".into()).spawn(opens);
        if let Err(error) = started {
            let _ = failed.send((number, Told::Ended(Err(error))));
        }
    }

    /// `accepted`: called once a connection with the other host is there. That a relay accepts says nothing about it.
    fn dial(
        &self,
        way: &TcpWay,
        won: &OnceLock<TcpWay>,
        accepted: impl FnOnce(),
    ) -> io::Result<Option<Arc<Stream>>> {
        let settings = &self.options.settings;
        let tuning = Tuning {
            congestion: settings.congestion.clone(),
            buffer_bytes: settings.buffer_bytes,
            from: way.from,
        };
        let named = |error: io::Error| {
            let from = way.from.map_or_else(String::new, |from| format!("from {from} "));
            let relay = if way.preface.is_empty() { "" } else { "relay " };
            io::Error::new(error.kind(), format!("{from}to {relay}{}: {error}", way.to))
        };
        let mut socket = tcp::connect(way.to, &tuning, CONNECT_WITHIN).map_err(named)?;
        if won.get().is_some_and(|won| won != way) {
            return Ok(None);
        }
        if way.preface.is_empty() {
            accepted();
        }
        socket.write_all(&way.preface).map_err(named)?;
        let protection = settings.protection;
        let proved = handshake::connect(socket, &self.config, protection, HANDSHAKE_WITHIN);
        let transport = proved.map_err(|error| match error.kind() {
            // That is how a relay ends a connection.
            io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof
                if !way.preface.is_empty() =>
            {
                let why = format!("the relay at {} does not reach {}", way.to, self.host);
                io::Error::new(error.kind(), why)
            }
            _ => named(error),
        })?;
        // Not before: who accepts may be somebody else, and then the next alternative is needed.
        won.get_or_init(|| way.clone());
        self.pool.add(transport).map(Some)
    }

    fn dial_through(&self, line: SshLine) -> io::Result<Option<Arc<Stream>>> {
        let transport = line.prove(|socket| {
            handshake::connect(socket, &self.config, self.options.settings.protection, LOGIN_WITHIN)
        })?;
        self.pool.add(transport).map(Some)
    }
}

/// The ways from one address to any of several.
fn alternatives(to: &[SocketAddr], from: Option<IpAddr>, preface: &[u8]) -> Vec<Way> {
    let mut ways: Vec<Way> = Vec::new();
    for to in to.iter().copied() {
        let fits = from.is_none_or(|from| from.is_ipv4() == to.is_ipv4());
        let way = Way::Tcp(TcpWay { to, from, preface: preface.to_vec() });
        if fits && !ways.contains(&way) {
            ways.push(way);
        }
    }
    ways
}
