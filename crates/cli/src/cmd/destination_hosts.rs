//! The hosts of DEST: the first one that can be reached runs the job, and the others copy chunks of large files.
use dmover_model::{Fatal, FollowLinks, PathBytes};
use dmover_net::connection::Broken;
use dmover_net::{ConnectOptions, RemoteHost, RemoteJob, RemotePath, StreamSettings};
use dmover_observe::lock;
use dmover_remote::{
    Delegate, DelegatedJob, DelegatedSource, JobHosts, OutputStream, Places, Print, Rules,
    ThirdSource, TreeService,
};
use dmover_schedule::sync::Mutex;
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use signal_hook::consts::SIGTERM;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
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
    pub rules: Rules,
    /// Why no other host than the first one may run the job.
    pub why_the_first: Option<&'static str>,
    pub options: ConnectOptions,
}

/// How a job has ended: its exit code, or why the connection to its host has.
pub(super) type Ended = Result<u8, Fatal>;

impl DestinationHosts {
    /// Has the first host that can be reached run the job. The others copy chunks of large files if there may be any; they log in
    /// at the same time. Returns what receives the end of the job.
    ///
    /// # Errors
    /// None can be reached; the error is that of the first one.
    pub fn start(
        self,
        destination: &RemotePath,
        (job, places): (DelegatedJob, Places),
        signals: Receiver<i32>,
    ) -> Result<Receiver<Ended>, Fatal> {
        let hosts: Vec<RemoteHost> = destination.hosts().cloned().collect();
        let names = hosts.iter().map(RemoteHost::shown).collect();
        let all = JobHosts::new((job, places), (names, self.rules), signals);
        let failed = Arc::new(Mutex::new(hosts.iter().map(|_| None).collect::<Vec<_>>()));
        let (sender, ended) = mpsc::channel();
        let own = Arc::new(self);
        for (number, host) in hosts.into_iter().enumerate() {
            let one = OneHost {
                host,
                number,
                all: Arc::clone(&all),
                own: Arc::clone(&own),
                failed: Arc::clone(&failed),
            };
            let sender = sender.clone();
            let named = thread::Builder::new().name("dest-host".into());
            let keep = move || {
                let end = one.keep();
                // First what belongs to the connections, so that ssh ends in order.
                drop(one);
                if let Some(end) = end {
                    let _ = sender.send(end);
                }
            };
            named.spawn(keep).map_err(Fatal::Thread)?;
            if !own.rules.all_take_part && (all.can_be_reached(number) || own.rules.first_runs) {
                // The others have nothing to do.
                break;
            }
        }
        if all.runner().is_some() {
            return Ok(ended);
        }
        let first = lock(&failed).iter_mut().find_map(Option::take);
        let first = first.expect("every host has failed");
        let several = destination.hosts().count() > 1;
        if own.rules.first_runs && several && !matches!(first, Fatal::Refused { .. }) {
            return Err(Fatal::unavailable(
                first.to_string(),
                own.why_the_first.unwrap_or_default(),
            ));
        }
        Err(first)
    }
}

/// One of the hosts of DEST.
struct OneHost {
    host: RemoteHost,
    number: usize,
    all: Arc<JobHosts>,
    own: Arc<DestinationHosts>,
    /// Why hosts could not be reached at the begin.
    failed: Arc<Mutex<Vec<Option<Fatal>>>>,
}

impl OneHost {
    /// Connects with the host, and again after a connection was lost if it does not run the job. Returns the end of the job if this host
    /// has run it.
    fn keep(&self) -> Option<Ended> {
        let (mut pause, mut was_told) = (FIRST_PAUSE, false);
        loop {
            let sources = self.own.served.iter().map(Source::serve).collect();
            let reads = (sources, self.own.streams.clone());
            let print = printer(self.own.signals.clone());
            let delegate = Delegate::new((&self.all, self.number), reads, print);
            let why = match RemoteJob::start(&self.host, delegate.clone(), &self.own.options) {
                Ok(running) => {
                    self.all.reach(self.number, true);
                    let began = Instant::now();
                    let why = running.wait();
                    let code = delegate.code();
                    if self.all.runner() == Some(self.number) {
                        // It has said goodbye without a result.
                        let why = if why == Broken::Closed { Broken::Ended } else { why };
                        return Some(code.ok_or_else(|| running.fatal(&why)));
                    }
                    if began.elapsed() > LASTED {
                        (pause, was_told) = (FIRST_PAUSE, false);
                    }
                    running.fatal(&why)
                }
                Err(why) => {
                    lock(&self.failed)[self.number] = Some(why);
                    self.all.reach(self.number, false);
                    // If there is none, the caller has the error.
                    self.all.runner()?;
                    lock(&self.failed)[self.number].take()?
                }
            };
            if !std::mem::replace(&mut was_told, true) {
                tell_unused(&self.host.shown(), &why, self.own.rules.all_take_part);
            }
            if matches!(why, Fatal::Refused { .. }) || !self.own.rules.all_take_part {
                return None;
            }
            thread::sleep(pause);
            pause = LAST_PAUSE.min(pause * 2);
        }
    }
}

/// Tells the user that one of several hosts is not used.
fn tell_unused(host: &str, why: &Fatal, is_tried_again: bool) {
    let rest = if matches!(why, Fatal::Refused { .. }) || !is_tried_again {
        ""
    } else {
        "; the job continues without it, and tries again"
    };
    say(&format!("dmover: '{host}' is not used now: {}{rest}", one_line(&why.to_string())));
}

/// Prints what the job prints. If that is not possible any more, the job stops.
fn printer(signals: Sender<i32>) -> Box<Print> {
    let signals = Mutex::new(signals);
    Box::new(move |stream, bytes| {
        let printed = print::passed_on(stream, bytes);
        if printed.is_err() && stream == OutputStream::Standard {
            // A job that has ended needs none.
            let _ = lock(&signals).send(SIGTERM);
        }
        // Messages that nobody can read are dropped, as those of a job of this host.
        if stream == OutputStream::Error { Ok(()) } else { printed }
    })
}
