//! The hosts of DEST: the first one that can be reached runs the job, and the others copy chunks of large files.
use dmover_model::{Fatal, FollowLinks, PathBytes};
use dmover_net::{ConnectOptions, RemoteHost, RemoteJob, RemotePath, StreamSettings};
use dmover_remote::{
    Delegate, DelegatedJob, DelegatedPart, DelegatedSource, Meetings, OutputStream, Print,
    ThirdSource, TreeService,
};
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use signal_hook::consts::SIGTERM;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use crate::print::{self, one_line, say};

/// The pause before one of several hosts of DEST is connected again, the first and the longest one.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LAST_PAUSE: Duration = Duration::from_mins(1);
/// After a connection that has lasted so long, the host is connected again soon.
const LASTED: Duration = Duration::from_mins(1);

/// A source of the job, for each host that reads it.
pub(super) enum Source {
    Here(PathBytes, FollowLinks),
    There(Vec<Arc<ThirdSource>>),
}

impl Source {
    fn serve(&self) -> DelegatedSource {
        match self {
            Self::Here(path, follow) => {
                let service = TreeService::following(path.clone(), *follow);
                DelegatedSource::Here(Box::new(service))
            }
            Self::There(hosts) => DelegatedSource::There(hosts.clone()),
        }
    }
}

/// How the hosts of DEST are reached, and what is served to them.
pub(super) struct DestinationHosts {
    pub served: Vec<Source>,
    /// Which data streams they open to third hosts.
    pub streams: StreamSettings,
    /// Receives a signal if nothing can be printed any more.
    pub signals: Sender<i32>,
    /// There may be large files to copy.
    pub has_chunks: bool,
    pub options: ConnectOptions,
}

impl DestinationHosts {
    fn delegate(
        &self,
        part: (DelegatedPart, &Arc<Meetings>),
        signals: Option<Receiver<i32>>,
    ) -> Arc<Delegate> {
        let sources = self.served.iter().map(Source::serve).collect();
        Delegate::new(part, (sources, self.streams.clone()), printer(self.signals.clone()), signals)
    }

    /// Has the first host that can be reached run the job. The others copy chunks of large files if there may be any.
    ///
    /// # Errors
    /// None can be reached; the error is that of the first one.
    pub fn start(
        self,
        destination: &RemotePath,
        job: &DelegatedJob,
        signals: Receiver<i32>,
    ) -> Result<(RemoteJob, Arc<Delegate>), Fatal> {
        let hosts: Vec<RemoteHost> = destination.hosts().cloned().collect();
        let names = |without: usize| {
            let others = hosts.iter().enumerate().filter(|(number, _)| *number != without);
            others.map(|(_, host)| host.clone()).collect::<Vec<_>>()
        };
        let meetings = Arc::default();
        let mut signals = Some(signals);
        let mut failed: Vec<(String, Fatal)> = Vec::new();
        let delegate_for = |others: &[RemoteHost], signals| {
            let names = others.iter().map(RemoteHost::shown).collect();
            let part = DelegatedPart::Runs(Box::new(job.clone()), names);
            self.delegate((part, &meetings), signals)
        };
        for (number, host) in hosts.iter().enumerate() {
            let others = if self.has_chunks { names(number) } else { Vec::new() };
            let delegate = delegate_for(&others, signals.take());
            match RemoteJob::start(host, delegate.clone(), &self.options) {
                Ok(running) => {
                    for (host, why) in failed {
                        tell_unused(&host, &why);
                    }
                    self.keep_others(others, &job.typed, &meetings)?;
                    return Ok((running, delegate));
                }
                Err(why) => {
                    signals = delegate.take_signals();
                    failed.push((host.shown(), why));
                }
            }
        }
        Err(failed.swap_remove(0).1)
    }

    /// Connects with each of the other hosts on a thread of its own, and again after a connection was lost.
    fn keep_others(
        self,
        others: Vec<RemoteHost>,
        typed: &[PathBytes],
        meetings: &Arc<Meetings>,
    ) -> Result<(), Fatal> {
        let hosts = Arc::new(self);
        for (number, host) in others.into_iter().enumerate() {
            let (hosts, typed, meetings) =
                (Arc::clone(&hosts), typed.to_vec(), Arc::clone(meetings));
            let keep = move || hosts.keep(&host, (number, &typed), &meetings);
            thread::Builder::new().name("dest-host".into()).spawn(keep).map_err(Fatal::Thread)?;
        }
        Ok(())
    }

    fn keep(
        &self,
        host: &RemoteHost,
        (number, typed): (usize, &[PathBytes]),
        meetings: &Arc<Meetings>,
    ) {
        let (mut pause, mut was_told) = (FIRST_PAUSE, false);
        loop {
            let began = Instant::now();
            let part = DelegatedPart::CopiesChunks(number, typed.to_vec());
            let delegate = self.delegate((part, meetings), None);
            let ended = RemoteJob::start(host, delegate.clone(), &self.options);
            let why = ended.map(|running| (running.wait(), running));
            let why = match why {
                // The job is over.
                Ok(_) if delegate.code().is_some() => return,
                Ok((why, running)) => running.fatal(&why),
                Err(why) => why,
            };
            if !std::mem::replace(&mut was_told, true) {
                tell_unused(&host.shown(), &why);
            }
            if matches!(why, Fatal::Refused { .. }) {
                return;
            }
            if began.elapsed() > LASTED {
                (pause, was_told) = (FIRST_PAUSE, false);
            }
            thread::sleep(pause);
            pause = LAST_PAUSE.min(pause * 2);
        }
    }
}

/// Tells the user that one of several hosts is not used.
pub(super) fn tell_unused(host: &str, why: &Fatal) {
    let rest = if matches!(why, Fatal::Refused { .. }) {
        ""
    } else {
        "; the job continues without it, and tries again"
    };
    say(&format!("dmover: '{host}' is not used now: {}{rest}", one_line(&why.to_string())));
}

/// Prints what the job prints. If that is not possible any more, the job stops.
fn printer(signals: Sender<i32>) -> Box<Print> {
    let signals = dmover_schedule::sync::Mutex::new(signals);
    Box::new(move |stream, bytes| {
        let printed = print::passed_on(stream, bytes);
        if printed.is_err() && stream == OutputStream::Standard {
            let signals = signals.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            // A job that has ended needs none.
            let _ = signals.send(SIGTERM);
        }
        // Messages that nobody can read are dropped, as those of a job of this host.
        if stream == OutputStream::Error { Ok(()) } else { printed }
    })
}
