//! The side of the user in a job that another host runs: it serves the sources, prints, and passes signals on.
use dmover_model::FollowLinks;
use dmover_net::agent::Service;
use dmover_net::connection::{Broken, Channel};
use dmover_net::{Relays, RemoteAgent, StreamSettings};
use dmover_observe::lock;
use dmover_schedule::sync::{Mutex, OnceLock};
use dmover_schedule::thread;
use dmover_wire::agent::{Request, UNKNOWN_REQUEST};
use dmover_wire::delegation::{DelegateRequest, DelegatedJob, OutputStream, ThirdHost, ThirdHosts};
use dmover_wire::streams::RelayedWay;
use dmover_wire::{decode, encode};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use crate::joined::send;
use crate::serve::TreeService;

/// Receives what a job prints. An error: nothing more can be printed there.
pub type Print = dyn Fn(OutputStream, &[u8]) -> std::io::Result<()> + Send + Sync;

/// A source of the job.
pub enum DelegatedSource {
    /// A tree of this host.
    Here(Box<TreeService>),
    /// A tree of third hosts, with which the other side makes connections.
    There(Vec<ThirdSource>),
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

/// Serves a job that another host runs.
pub struct Delegate {
    job: DelegatedJob,
    third: ThirdHosts,
    sources: Vec<DelegatedSource>,
    print: Box<Print>,
    signals: Mutex<Option<Receiver<i32>>>,
    code: OnceLock<u8>,
}

impl Delegate {
    /// A job with its sources in the order of its specification. `streams`: which data streams the job opens to third hosts;
    /// `signals`: those that the process of the user gets.
    pub fn new(
        job: DelegatedJob,
        (sources, streams): (Vec<DelegatedSource>, StreamSettings),
        print: Box<Print>,
        signals: Receiver<i32>,
    ) -> Arc<Self> {
        let (signals, code) = (Mutex::new(Some(signals)), OnceLock::new());
        let host = |source: &DelegatedSource| match source {
            DelegatedSource::Here(_) => Vec::new(),
            DelegatedSource::There(hosts) => hosts.iter().map(ThirdSource::named).collect(),
        };
        let third = ThirdHosts { hosts: sources.iter().map(host).collect(), streams };
        Arc::new(Self { job, third, sources, print, signals, code })
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
        let Some(ThirdSource { agent, follow, .. }) = hosts.nth(number as usize) else {
            return Err(Broken::Cancelled("no third host has this number".into()));
        };
        let lost = |why: &Broken| Broken::Cancelled(agent.fatal(why).to_string());
        let request = encode(&Request::Connect { follow: *follow });
        let there = Arc::new(agent.request(&request).map_err(|why| lost(&why))?);
        let asks = [channel, &there].map(Arc::clone);
        let named = thread::Builder::new().name("third-host".into());
        let asking = named.spawn(move || {
            let [channel, there] = asks;
            if let Err(why) = pass_on(&channel, &there) {
                there.cancel(&why.to_string());
            }
        });
        asking.map_err(|error| {
            Broken::Cancelled(format!("cannot start a thread for a connection: {error}"))
        })?;
        // What has become of the third host is known here, and not at the other side. The caller ends its channel, and so the thread.
        pass_on(&there, channel).map_err(|why| lost(&why))
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
            Ok(DelegateRequest::Job) => send(channel, &encode(&self.job)),
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
