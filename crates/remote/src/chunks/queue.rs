//! The queue of a mover that copies chunks for another host.
use dmover_engine::queue::{Class, Gate, Lease, Queue};
use dmover_engine::take_reports;
use dmover_model::{Outcome, TaskKind};
use dmover_net::RemoteAgent;
use dmover_net::connection::{Broken, Channel};
use dmover_observe::{CLASSES, lock};
use dmover_schedule::sync::{Condvar, Mutex, MutexGuard};
use dmover_schedule::time::Instant;
use dmover_wire::chunks::{ChunkNews, ChunkReport, ChunkRequest};
use dmover_wire::{TaskMessage, encode};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::LEASE;
use crate::joined::{receive, send};

#[derive(Default)]
struct State {
    held: HashMap<u32, Lease>,
    /// Requests for a chunk that are open.
    taking: usize,
    allowed: [usize; CLASSES],
}

impl State {
    fn has_room(&self) -> bool {
        self.held.len() + self.taking < self.allowed[Class::Large as usize]
    }
}

/// The chunks of this process.
pub(super) struct ChunkQueue {
    agent: Arc<RemoteAgent>,
    state: Mutex<State>,
    changed: Condvar,
    reports: Mutex<Channel>,
    others_wait: AtomicBool,
    closed: AtomicBool,
}

impl ChunkQueue {
    /// `agent`: the host that runs the job.
    pub fn new(agent: &Arc<RemoteAgent>) -> Result<Arc<Self>, Broken> {
        let reports = Mutex::new(agent.request(&encode(&ChunkRequest::Reports))?);
        let (state, changed) = (Mutex::default(), Condvar::new());
        let (others_wait, closed) = Default::default();
        let agent = Arc::clone(agent);
        Ok(Arc::new(Self { agent, state, changed, reports, others_wait, closed }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Asks the other host to let this one keep its chunks.
    pub fn renew(&self) -> Result<ChunkNews, Broken> {
        let asked_ms = Lease::now_ms();
        let held: Vec<(u32, bool)> = {
            let state = self.state();
            // A lease that has run out stays lost.
            let held = state.held.iter().filter(|(_, lease)| lease.holds());
            held.map(|(number, lease)| (*number, lease.take_progress())).collect()
        };
        let numbers: Vec<u32> = held.iter().map(|(number, _)| *number).collect();
        let channel = self.agent.request(&encode(&ChunkRequest::Renew { held }))?;
        channel.finish()?;
        let news: ChunkNews = receive(&channel)?;
        let state = self.state();
        for number in numbers {
            let Some(lease) = state.held.get(&number) else { continue };
            if news.lost.contains(&number) {
                lease.lose();
                continue;
            }
            lease.hold_until(asked_ms + LEASE.as_millis() as u64);
            if news.wanted_back.contains(&number) {
                lease.want_back();
            }
        }
        drop(state);
        self.others_wait.store(news.others_wait, SeqCst);
        Ok(news)
    }

    /// Takes no more chunks; those in progress are lost.
    pub fn close(&self) {
        self.closed.store(true, SeqCst);
        self.state().held.values().for_each(Lease::lose);
        self.changed.notify_all();
    }

    fn take(&self, wait: Duration) -> Result<Option<Lease>, Broken> {
        let asked_ms = Lease::now_ms();
        let request = ChunkRequest::Take { wait_ms: wait.as_millis() as u32 };
        let channel = self.agent.request(&encode(&request))?;
        channel.finish()?;
        let given: Option<TaskMessage> = receive(&channel)?;
        let until_ms = asked_ms + LEASE.as_millis() as u64;
        let Some(TaskMessage { number, task }) = given else { return Ok(None) };
        if !matches!(task.kind, TaskKind::Chunk(_)) {
            return Err(Broken::Violation("a task is no chunk"));
        }
        Ok(Some(Lease::granted(task, number, until_ms)))
    }

    fn say(&self, lease: &Lease, outcome: Outcome, ended: bool) {
        let told = take_reports();
        if !lease.holds() {
            // Nothing that is said of it from now on may be believed.
            return lease.lose();
        }
        if !outcome.tasks.is_empty() {
            // What was returned is on its way to whoever waits.
            self.others_wait.store(false, SeqCst);
        }
        lease.said();
        let report = ChunkReport { number: lease.number, told, outcome, ended };
        if let Err(why) = send(&lock(&self.reports), &encode(&report)) {
            tracing::info!(%why, "cannot report a chunk");
            // Nothing that is done from now on would count.
            self.close();
        }
    }
}

impl Queue for ChunkQueue {
    fn lease(&self, _most: usize, wait: Duration) -> Vec<Lease> {
        let until = Instant::now() + wait;
        let mut state = self.state();
        let full = |state: &mut State| !state.has_room() && !self.is_closed();
        let waited = self.changed.wait_timeout_while(state, wait, full);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if !state.has_room() || self.is_closed() {
            return Vec::new();
        }
        state.taking += 1;
        drop(state);
        let taken = self.take(wait);
        let mut state = self.state();
        state.taking -= 1;
        match taken {
            Ok(Some(lease)) => {
                state.held.insert(lease.number, lease.clone());
                if self.is_closed() {
                    lease.lose();
                }
                vec![lease]
            }
            Ok(None) => {
                // The job is paused, or stops.
                let left = until.saturating_duration_since(Instant::now());
                let open = |_: &mut State| !self.is_closed();
                drop(self.changed.wait_timeout_while(state, left, open));
                Vec::new()
            }
            Err(why) => {
                drop(state);
                tracing::info!(%why, "cannot ask for chunks");
                self.close();
                Vec::new()
            }
        }
    }

    fn report(&self, lease: &Lease, outcome: Outcome) {
        self.say(lease, outcome, false);
    }

    fn complete(&self, lease: &Lease, outcome: Outcome) {
        self.say(lease, outcome, true);
        self.state().held.remove(&lease.number);
        self.changed.notify_all();
    }

    fn is_hungry(&self, class: Class) -> bool {
        class == Class::Large && self.others_wait.load(SeqCst)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }
}

impl Gate for ChunkQueue {
    fn allow(&self, class: Class, movers: usize) {
        let mut state = self.state();
        state.allowed[class as usize] = movers;
        if class == Class::Large {
            let asked = state.held.values().filter(|lease| lease.is_wanted_back()).count();
            let surplus = state.held.len().saturating_sub(movers).saturating_sub(asked);
            let others = state.held.values().filter(|lease| !lease.is_wanted_back());
            others.take(surplus).for_each(Lease::want_back);
        }
        drop(state);
        self.changed.notify_all();
    }
}
