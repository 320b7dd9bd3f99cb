//! One of the other hosts: it takes part in each pass of the job, and copies chunks.
use dmover_engine::{
    Answer, Bounds, Control, CoordinatorClient, CoordinatorRequest, JobOffer, Joined, Joining,
    MoverPlace, RemoteTrees, StopReason,
};
use dmover_host::other_processes;
use dmover_model::{Fatal, JobSpec, PathBytes};
use dmover_net::RemoteAgent;
use dmover_net::connection::Broken;
use dmover_observe::Counters;
use dmover_schedule::thread;
use dmover_wire::chunks::{ChunkRequest, Process};
use dmover_wire::encode;
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, atomic::AtomicBool};
use std::time::Duration;

use super::queue::ChunkQueue;
use crate::joined::receive;

/// How often movers are checked.
const TURN: Duration = Duration::from_millis(5);
/// How often leases are renewed, which also tells whether others wait for chunks.
const RENEW_EVERY: Duration = Duration::from_millis(200);
/// A pass that this host could not join is tried again after this long, in case something is mounted late.
const JOIN_AGAIN: Duration = Duration::from_secs(20);

/// Opens the sources of a job.
pub type OpenSources =
    dyn Fn(&JobSpec) -> Result<Option<Arc<dyn RemoteTrees>>, Fatal> + Send + Sync;

/// What this process provides.
pub struct ChunkMoverPlace {
    /// The most files that the process may have open.
    pub open_files_max: u64,
    /// The directory for data that does not fit into memory.
    pub spill_directory: PathBuf,
    /// Opens the sources of a job, on connections of this host.
    pub sources: Box<OpenSources>,
    /// What the host of the command has said of the job.
    pub bounds: ChunkBounds,
    /// The trees that this process may read and write.
    pub accepted: Bounds,
}

/// What an offer has to be about: the host that runs the job may not have this one do anything else.
#[derive(Debug, Clone)]
pub struct ChunkBounds {
    /// The sources.
    pub sources: Vec<PathBytes>,
    /// The destination.
    pub destination: PathBytes,
}

impl ChunkBounds {
    fn check(&self, spec: &JobSpec) -> Result<(), Fatal> {
        let Self { sources, destination } = self;
        if spec.verb.fills() && spec.sources == *sources && spec.destination == *destination {
            return Ok(());
        }
        let message = "the host that runs the job offers another one than that of the command";
        Err(Fatal::refused(message, "use one version of dmover on all hosts"))
    }
}

/// A host that copies chunks for the one that runs the job.
pub struct ChunkMover {
    place: ChunkMoverPlace,
    /// A thread of an earlier pass hangs, and may still write.
    hangs: AtomicBool,
}

impl ChunkMover {
    /// A host that is not connected yet.
    pub fn new(place: ChunkMoverPlace) -> Self {
        Self { place, hangs: AtomicBool::new(false) }
    }

    /// Copies chunks until the connection is over. `agent`: the host that runs the job.
    pub fn run(&self, agent: RemoteAgent) {
        let why = Visit { agent: Arc::new(agent), mover: self }.until_over();
        tracing::info!(%why, "the connection with the host that runs the job is over");
    }
}

/// A connection with the host that runs the job.
struct Visit<'a> {
    agent: Arc<RemoteAgent>,
    mover: &'a ChunkMover,
}

impl Visit<'_> {
    /// Says who this is, and which earlier ones of this host cannot write any more.
    fn begin(&self) -> Result<(), Broken> {
        let doubtful: Vec<Process> = ask(&self.agent, &ChunkRequest::Begin(this_process()))?;
        let own = this_process().filter(|_| !self.mover.hangs.load(SeqCst));
        let has_ended = |process: &Process| own.as_ref() == Some(process) || is_gone(process);
        let gone: Vec<Process> = doubtful.into_iter().filter(has_ended).collect();
        if !gone.is_empty() {
            self.say(&ChunkRequest::Gone(gone))?;
        }
        Ok(())
    }

    fn until_over(&self) -> Broken {
        loop {
            if let Err(why) = self.begin() {
                return why;
            }
            let offer = match ask::<Option<String>>(&self.agent, &ChunkRequest::Offer) {
                Ok(Some(offer)) => offer,
                Ok(None) => continue,
                Err(why) => return why,
            };
            let Err(error) = self.take_part(&offer) else { continue };
            tracing::warn!(%error, "cannot copy chunks for the job");
            if let Err(why) = self.say(&ChunkRequest::Unable(error.to_string())) {
                return why;
            }
            thread::sleep(JOIN_AGAIN);
        }
    }

    /// Sends a request that has no answer.
    fn say(&self, request: &ChunkRequest) -> Result<(), Broken> {
        self.agent.request(&encode(request))?.finish()
    }

    fn take_part(&self, offer: &str) -> Result<(), Fatal> {
        let hint = "use one version of dmover on all hosts";
        let offer: JobOffer = serde_json::from_str(offer)
            .map_err(|error| Fatal::refused(format!("cannot read the job: {error}"), hint))?;
        self.mover.place.bounds.check(&offer.spec)?;
        let (switch, over) = (Arc::new(Control::default()), Arc::new(AtomicBool::new(false)));
        let place = MoverPlace {
            threads: offer.spec.limits.threads,
            memory_bytes: offer.spec.limits.memory_bytes,
            bytes_per_s: None,
            open_files_max: self.mover.place.open_files_max,
            spill_directory: self.mover.place.spill_directory.clone(),
            coordinator: Arc::new(Coordinator { agent: Arc::clone(&self.agent) }),
            counters: Arc::new(Counters::default()),
            control: Arc::clone(&switch),
            bounds: self.mover.place.accepted.clone(),
            remote: (self.mover.place.sources)(&offer.spec)?,
        };
        let joining = Joining::new(&offer, place)?;
        let lost = |why: Broken| self.agent.fatal(&why);
        let queue = ChunkQueue::new(&self.agent).map_err(lost)?;
        let sharers = Arc::new(AtomicU32::new(1));
        let renewing = {
            let (queue, over, sharers) =
                (Arc::clone(&queue), Arc::clone(&over), Arc::clone(&sharers));
            let named = thread::Builder::new().name("chunk-leases".into());
            named.spawn(move || {
                while !over.load(SeqCst) {
                    match queue.renew() {
                        Ok(news) if !news.is_over => sharers.store(news.sharers, SeqCst),
                        _ => break,
                    }
                    thread::sleep(RENEW_EVERY);
                }
                over.store(true, SeqCst);
            })
        };
        let renewing = renewing.map_err(Fatal::Thread)?;
        let worked = joining.begin(Arc::clone(&queue) as _, Arc::clone(&queue) as _);
        let worked = worked.and_then(|mut joined| {
            let worked = work(&mut joined, &over, &sharers);
            // In this order: what the stop makes fail is not reported any more.
            queue.close();
            switch.stop_now(StopReason::Cancelled);
            if !joined.end() {
                self.mover.hangs.store(true, SeqCst);
            }
            if !self.mover.hangs.load(SeqCst) {
                // What was not reported may be copied by others at once. Without a connection, the next one tells.
                let _ = self.say(&ChunkRequest::Leave);
            }
            worked
        });
        over.store(true, SeqCst);
        queue.close();
        let _ = renewing.join();
        worked
    }
}

/// This process, unless proc(5) hides it.
fn this_process() -> Option<Process> {
    let pid = std::process::id();
    let started = other_processes::started(pid)?;
    let namespace = other_processes::namespace()?;
    Some(Process { boot: dmover_host::boot_id(), namespace, pid, started })
}

/// Whether a process cannot do anything any more. Nothing is known of one that another kernel runs, or another container.
fn is_gone(process: &Process) -> bool {
    let Some(own) = this_process() else { return false };
    let is_here = own.boot == process.boot && own.namespace == process.namespace;
    is_here && other_processes::is_gone(process.pid, process.started)
}

/// Looks after the movers until the pass is over.
fn work(joined: &mut Joined, over: &AtomicBool, sharers: &AtomicU32) -> Result<(), Fatal> {
    while !over.load(SeqCst) {
        joined.share(sharers.load(SeqCst));
        joined.turn(false)?;
        thread::sleep(TURN);
    }
    Ok(())
}

/// Sends a request, and receives its answer.
fn ask<T: DeserializeOwned>(agent: &RemoteAgent, request: &ChunkRequest) -> Result<T, Broken> {
    let channel = agent.request(&encode(request))?;
    channel.finish()?;
    receive(&channel)
}

/// Asks the host that runs the job.
struct Coordinator {
    agent: Arc<RemoteAgent>,
}

impl CoordinatorClient for Coordinator {
    fn ask(&self, question: CoordinatorRequest) -> Option<Answer> {
        ask(&self.agent, &ChunkRequest::Ask(question)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_not_gone_and_nothing_is_known_of_another_kernels() {
        let own = this_process().unwrap();
        assert!(!is_gone(&own));
        let before = Process { started: own.started - 1, ..own.clone() };
        assert!(is_gone(&before), "its number is this process's by now");
        assert!(!is_gone(&Process { boot: "another".into(), ..before.clone() }));
        assert!(!is_gone(&Process { namespace: own.namespace + 1, ..before }));
    }
}
