//! The side of the user in a job that another host runs: it serves the sources, prints, and passes signals on.
use dmover_model::FollowLinks;
use dmover_net::agent::Service;
use dmover_net::connection::{Broken, Channel};
use dmover_net::{Relays, RemoteAgent, StreamSettings};
use dmover_schedule::sync::OnceLock;
use dmover_schedule::thread;
use dmover_wire::agent::{Request, UNKNOWN_REQUEST};
use dmover_wire::delegation::{DelegateRequest, OutputStream, ThirdHost, ThirdHosts};
use dmover_wire::streams::RelayedWay;
use dmover_wire::{decode, encode};
use std::sync::Arc;

pub use hosts::{JobHosts, Places, Rules};

use crate::joined::send;
use crate::serve::TreeService;

mod hosts;

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

/// Serves a host of DEST, which runs a job or copies chunks for it.
pub struct Delegate {
    hosts: Arc<JobHosts>,
    number: usize,
    third: ThirdHosts,
    sources: Vec<DelegatedSource>,
    print: Box<Print>,
    code: OnceLock<u8>,
}

impl Delegate {
    /// One of the hosts of a job, with its sources in the order of its specification. `streams`: which data streams it opens to third
    /// hosts.
    pub fn new(
        (hosts, number): (&Arc<JobHosts>, usize),
        (sources, streams): (Vec<DelegatedSource>, StreamSettings),
        print: Box<Print>,
    ) -> Arc<Self> {
        let (hosts, code) = (Arc::clone(hosts), OnceLock::new());
        let host = |source: &DelegatedSource| match source {
            DelegatedSource::Here(_) => Vec::new(),
            DelegatedSource::There(hosts) => hosts.iter().map(|host| host.named()).collect(),
        };
        let third = ThirdHosts { hosts: sources.iter().map(host).collect(), streams };
        Arc::new(Self { hosts, number, third, sources, print, code })
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

    /// Connects the host that runs the job with another one, as soon as that is there.
    fn accept(&self, other: u32, channel: &Arc<Channel>) -> Result<(), Broken> {
        let (there, _ended) = self.hosts.meet(self.number, other)?;
        channel.send(b"")?;
        let joined = join(channel, &there);
        there.cancel("the host that runs the job has ended the connection");
        // The caller cancels the channel only for a reason that the other side should know.
        joined?.map_err(|why| Broken::Cancelled(format!("the other host was lost: {why}")))
    }

    /// Sends signals until the other side has gone.
    fn send_signals(&self, channel: &Channel) -> Result<(), Broken> {
        for signal in self.hosts.take_signals(self.number)? {
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
            Ok(DelegateRequest::Job) => send(channel, &encode(self.hosts.job(self.number)?)),
            Ok(DelegateRequest::Role) => send(channel, &encode(&self.hosts.role(self.number))),
            Ok(DelegateRequest::Accept { number }) => self.accept(number, channel),
            Ok(DelegateRequest::Coordinator) => {
                self.hosts.wait_for_runner(self.number, channel);
                Ok(())
            }
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
