//! The side of the user in a job that another host runs: it serves the sources, prints, and passes signals on.
use dmover_model::{FollowLinks, PathBytes};
use dmover_net::agent::Service;
use dmover_net::connection::{Broken, Channel};
use dmover_net::{Relays, RemoteAgent, StreamSettings};
use dmover_observe::lock;
use dmover_schedule::sync::{Condvar, Mutex, OnceLock};
use dmover_schedule::thread;
use dmover_wire::agent::{Request, UNKNOWN_REQUEST};
use dmover_wire::delegation::{
    DelegateRequest, DelegateRole, DelegatedJob, OutputStream, ThirdHost, ThirdHosts,
};
use dmover_wire::streams::RelayedWay;
use dmover_wire::{decode, encode};
use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, PoisonError};

use crate::joined::send;
use crate::serve::TreeService;

/// Receives what a job prints. An error: nothing more can be printed there.
pub type Print = dyn Fn(OutputStream, &[u8]) -> std::io::Result<()> + Send + Sync;

/// A source of the job.
pub enum DelegatedSource {
    /// A tree of this host.
    Here(Box<TreeService>),
    /// A tree of third hosts, with which the other side makes connections.
    There(Vec<Arc<ThirdSource>>),
}

/// A tree at a third host.
pub struct ThirdSource {
    /// The agent there.
    pub agent: RemoteAgent,
    /// The symbolic links that the job follows.
    pub follow: FollowLinks,
    /// The relays on the ways of data streams to it.
    pub relays: Vec<(Relays, RelayedWay)>,
}

impl ThirdSource {
    fn named(&self) -> ThirdHost {
        let ways = self.relays.iter().map(|(_, way)| way.clone()).collect();
        ThirdHost { name: self.agent.name().to_owned(), ways }
    }
}

/// What another host does for a job.
pub enum DelegatedPart {
    /// It runs the job. The other hosts that share DEST, with their names.
    Runs(Box<DelegatedJob>, Vec<String>),
    /// It copies chunks, as the other host of this number.
    CopiesChunks(usize, Vec<PathBytes>),
}

/// Serves a host that runs a job, or copies chunks for it.
pub struct Delegate {
    part: DelegatedPart,
    meetings: Arc<Meetings>,
    third: ThirdHosts,
    sources: Vec<DelegatedSource>,
    print: Box<Print>,
    signals: Mutex<Option<Receiver<i32>>>,
    code: OnceLock<u8>,
}

impl Delegate {
    /// A host with the sources of the job in the order of its specification. `streams`: which data streams it opens to third
    /// hosts; `meetings`: where hosts that share DEST meet; `signals`: those that the process of the user gets.
    pub fn new(
        (part, meetings): (DelegatedPart, &Arc<Meetings>),
        (sources, streams): (Vec<DelegatedSource>, StreamSettings),
        print: Box<Print>,
        signals: Option<Receiver<i32>>,
    ) -> Arc<Self> {
        let (signals, code) = (Mutex::new(signals), OnceLock::new());
        let meetings = Arc::clone(meetings);
        let host = |source: &DelegatedSource| match source {
            DelegatedSource::Here(_) => Vec::new(),
            DelegatedSource::There(hosts) => hosts.iter().map(|host| host.named()).collect(),
        };
        let third = ThirdHosts { hosts: sources.iter().map(host).collect(), streams };
        Arc::new(Self { part, meetings, third, sources, print, signals, code })
    }

    /// The signals, if nobody has asked for them.
    pub fn take_signals(&self) -> Option<Receiver<i32>> {
        lock(&self.signals).take()
    }

    /// The exit code of the job; `None`: it has not ended in order.
    pub fn code(&self) -> Option<u8> {
        self.code.get().copied()
    }

    fn serve_source(
        &self,
        number: u32,
        request: &[u8],
        channel: &Arc<Channel>,
    ) -> Result<(), Broken> {
        match self.sources.get(number as usize) {
            Some(DelegatedSource::Here(tree)) => tree.serve(request, channel),
            _ => Err(Broken::Cancelled("this host has no source of this number".into())),
        }
    }

    fn connect(&self, number: u32, channel: &Arc<Channel>) -> Result<(), Broken> {
        let mut hosts = self.sources.iter().flat_map(|source| match source {
            DelegatedSource::Here(_) => &[][..],
            DelegatedSource::There(hosts) => hosts,
        });
        let Some(third) = hosts.nth(number as usize) else {
            return Err(Broken::Cancelled("no third host has this number".into()));
        };
        let ThirdSource { agent, follow, .. } = &**third;
        let lost = |why: &Broken| Broken::Cancelled(agent.fatal(why).to_string());
        let request = encode(&Request::Connect { follow: *follow });
        let there = Arc::new(agent.request(&request).map_err(|why| lost(&why))?);
        // What has become of the third host is known here, and not at the other side.
        join(channel, &there)?.map_err(|why| lost(&why))
    }

    fn role(&self) -> DelegateRole {
        match &self.part {
            DelegatedPart::Runs(_, others) => DelegateRole::Runs { others: others.clone() },
            DelegatedPart::CopiesChunks(_, typed) => {
                DelegateRole::CopiesChunks { typed: typed.clone() }
            }
        }
    }

    /// The job, for the host that runs it.
    fn job(&self) -> Result<(&DelegatedJob, &[String]), Broken> {
        match &self.part {
            DelegatedPart::Runs(job, others) => Ok((job, others)),
            DelegatedPart::CopiesChunks(..) => {
                Err(Broken::Cancelled("another host runs the job".into()))
            }
        }
    }

    /// Connects the host that runs the job with another one, as soon as that is there.
    fn accept(&self, number: u32, channel: &Arc<Channel>) -> Result<(), Broken> {
        let (_, others) = self.job()?;
        if number as usize >= others.len() {
            return Err(Broken::Cancelled("no other host has this number".into()));
        }
        let (there, _ended) = self.meetings.wait(number as usize);
        channel.send(b"")?;
        let joined = join(channel, &there);
        there.cancel("the other host has ended the connection");
        joined?
    }

    fn coordinator(&self, channel: &Arc<Channel>) -> Result<(), Broken> {
        let DelegatedPart::CopiesChunks(number, _) = self.part else {
            return Err(Broken::Cancelled("this host runs the job".into()));
        };
        self.meetings.meet(number, channel);
        Ok(())
    }

    /// Sends signals until the other side has gone.
    fn send_signals(&self, channel: &Channel) -> Result<(), Broken> {
        let Some(signals) = lock(&self.signals).take() else {
            return Err(Broken::Cancelled("signals are sent once".into()));
        };
        for signal in signals {
            channel.send(&encode(&signal))?;
        }
        Ok(())
    }

    fn print(&self, stream: OutputStream, channel: &Channel) -> Result<(), Broken> {
        while let Some(bytes) = channel.receive()? {
            (self.print)(stream, &bytes)
                .map_err(|error| Broken::Cancelled(format!("cannot print: {error}")))?;
        }
        Ok(())
    }
}

/// The channel of a host, and what ends its request when it is dropped.
type Waiting = (Arc<Channel>, Sender<()>);

/// Where hosts that share DEST meet the one that runs the job: both are connected with this host only.
#[derive(Default)]
pub struct Meetings {
    waiting: Mutex<HashMap<usize, Waiting>>,
    changed: Condvar,
}

impl Meetings {
    /// The channel of another host, which lasts as long as what comes with it. Waits for it.
    fn wait(&self, number: usize) -> Waiting {
        let mut waiting = lock(&self.waiting);
        loop {
            match waiting.remove(&number) {
                Some(there) => return there,
                None => {
                    waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Offers the channel of another host, and waits for its end.
    fn meet(&self, number: usize, channel: &Arc<Channel>) {
        let (sender, ended) = mpsc::channel();
        lock(&self.waiting).insert(number, (Arc::clone(channel), sender));
        self.changed.notify_all();
        // Nothing is ever sent: the other end is dropped.
        let _ = ended.recv();
    }
}

/// Passes the messages of two channels on in both directions, until there are no more from the second one. The caller ends the
/// first one.
fn join(here: &Arc<Channel>, there: &Arc<Channel>) -> Result<Result<(), Broken>, Broken> {
    let asks = [here, there].map(Arc::clone);
    let named = thread::Builder::new().name("third-host".into());
    let asking = named.spawn(move || {
        let [here, there] = asks;
        if let Err(why) = pass_on(&here, &there) {
            there.cancel(&why.to_string());
        }
    });
    asking.map_err(|error| {
        Broken::Cancelled(format!("cannot start a thread for a connection: {error}"))
    })?;
    Ok(pass_on(there, here))
}

/// Passes messages on until there are no more.
fn pass_on(from: &Channel, to: &Channel) -> Result<(), Broken> {
    while let Some(message) = from.receive()? {
        to.send(&message)?;
    }
    to.finish()
}

impl Service for Delegate {
    fn serve(&self, request: &[u8], channel: &Arc<Channel>) -> Result<(), Broken> {
        match decode(request) {
            Ok(DelegateRequest::Job) => send(channel, &encode(self.job()?.0)),
            Ok(DelegateRequest::Role) => send(channel, &encode(&self.role())),
            Ok(DelegateRequest::Accept { number }) => self.accept(number, channel),
            Ok(DelegateRequest::Coordinator) => self.coordinator(channel),
            Ok(DelegateRequest::ThirdHosts) => send(channel, &encode(&self.third)),
            Ok(DelegateRequest::Source { number, request }) => {
                self.serve_source(number, &request, channel)
            }
            Ok(DelegateRequest::Connect { number }) => self.connect(number, channel),
            Ok(DelegateRequest::Signals) => self.send_signals(channel),
            Ok(DelegateRequest::Output(stream)) => self.print(stream, channel),
            Ok(DelegateRequest::Ended(code)) => {
                let _ = self.code.set(code);
                Ok(())
            }
            Err(_) => Err(Broken::Cancelled(UNKNOWN_REQUEST.into())),
        }
    }
}
