//! The side of the user in a job that another host runs: it serves the sources, prints, and passes signals on.
use dmover_net::RemoteAgent;
use dmover_net::agent::Service;
use dmover_net::connection::{Broken, Channel};
use dmover_observe::lock;
use dmover_schedule::sync::{Mutex, OnceLock};
use dmover_wire::agent::UNKNOWN_REQUEST;
use dmover_wire::delegation::{DelegateRequest, DelegatedJob, OutputStream, SOURCE_LOST};
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
    /// A tree of a third host, whose answers pass through here.
    There(Box<RemoteAgent>),
}

/// Serves a job that another host runs.
pub struct Delegate {
    job: DelegatedJob,
    sources: Vec<DelegatedSource>,
    print: Box<Print>,
    signals: Mutex<Option<Receiver<i32>>>,
    code: OnceLock<u8>,
}

impl Delegate {
    /// A job with its sources in the order of its specification. `signals`: those that the process of the user gets.
    pub fn new(
        job: DelegatedJob,
        sources: Vec<DelegatedSource>,
        print: Box<Print>,
        signals: Receiver<i32>,
    ) -> Arc<Self> {
        let (signals, code) = (Mutex::new(Some(signals)), OnceLock::new());
        Arc::new(Self { job, sources, print, signals, code })
    }

    /// The exit code of the job; `None`: it has not ended in order.
    pub fn code(&self) -> Option<u8> {
        self.code.get().copied()
    }

    fn serve_source(&self, number: u32, request: &[u8], channel: &Channel) -> Result<(), Broken> {
        match self.sources.get(number as usize) {
            Some(DelegatedSource::Here(tree)) => tree.serve(request, channel),
            Some(DelegatedSource::There(agent)) => relay(agent, request, channel),
            None => Err(Broken::Cancelled("the job has no source of this number".into())),
        }
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

/// Passes a request on to the agent of a third host, and its answers back.
fn relay(agent: &RemoteAgent, request: &[u8], channel: &Channel) -> Result<(), Broken> {
    let gone = |why: Broken| match why {
        Broken::Cancelled(words) => Broken::Cancelled(words),
        why => Broken::Cancelled(format!("{SOURCE_LOST}{}", agent.fatal(&why))),
    };
    let there = agent.request(request).map_err(gone)?;
    there.finish().map_err(gone)?;
    while let Some(answer) = there.receive().map_err(gone)? {
        channel.send(&answer)?;
    }
    Ok(())
}

impl Service for Delegate {
    fn serve(&self, request: &[u8], channel: &Channel) -> Result<(), Broken> {
        match decode(request) {
            Ok(DelegateRequest::Job) => send(channel, &encode(&self.job)),
            Ok(DelegateRequest::Source { number, request }) => {
                self.serve_source(number, &request, channel)
            }
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
