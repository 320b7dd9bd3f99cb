//! The hosts that have a tree: each request goes to one of them, and what was lost with one can be asked of another one.
use dmover_model::{ConnectionReport, Fatal, PathBytes, Timestamp};
use dmover_net::Notice;
use dmover_net::connection::Broken;
use dmover_observe::lock;
use dmover_plan::host_share::{HostShare, first_to_deliver};
use dmover_schedule::sync::{Condvar, Mutex};
use dmover_schedule::time::Instant;
use dmover_tree::RemoteRoot;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use super::Line;

/// Which host gets a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// The first one that can be reached: all that decides what is copied comes from one host.
    First,
    /// The one that will have answered first.
    Any,
}

/// The root as the first host has shown it, and its clock between two times of the clock here.
#[derive(Debug, Clone)]
pub(super) struct Shown {
    pub(super) root: RemoteRoot,
    pub(super) clock: Option<Timestamp>,
    pub(super) times: (SystemTime, SystemTime),
}

/// A host that was chosen.
#[derive(Debug, Clone)]
pub(super) struct Chosen {
    pub(super) line: Arc<dyn Line>,
    number: usize,
    /// How many connections with it there were before.
    epoch: u64,
}

#[derive(Debug, Default)]
struct Place {
    line: Option<Arc<dyn Line>>,
    epoch: u64,
    /// Why it could not be reached, or cannot be used.
    failed: Option<Fatal>,
    /// The user was told that it is not used.
    was_missed: bool,
}

#[derive(Debug)]
struct State {
    places: Vec<Place>,
    shares: Vec<HostShare>,
    shown: Option<Shown>,
    /// What was last known of the last one, and since when there has been none.
    none: Option<(String, Instant)>,
    is_closed: bool,
}

impl State {
    fn choose(&self, choice: Choice, bytes: u64) -> Option<Chosen> {
        let may: Vec<bool> = self.places.iter().map(|place| place.line.is_some()).collect();
        let number = match choice {
            Choice::First => may.iter().position(|may| *may),
            Choice::Any => first_to_deliver(&self.shares, &may, bytes),
        }?;
        let Place { line, epoch, .. } = &self.places[number];
        Some(Chosen { line: Arc::clone(line.as_ref()?), number, epoch: *epoch })
    }
}

/// One host, or several that share a file system.
#[derive(Debug)]
pub(super) struct Hosts {
    /// The root at each of them, for messages.
    names: Vec<PathBytes>,
    state: Mutex<State>,
    changed: Condvar,
    began: Instant,
    /// How long a request waits for a host while there is none.
    patience: Duration,
    notice: Notice,
}

impl Hosts {
    /// One host, with which there is a connection.
    pub(super) fn one(line: Arc<dyn Line>) -> Self {
        let hosts = Self::new(vec![PathBytes::default()], Duration::ZERO, Notice::nobody());
        lock(&hosts.state).places[0].line = Some(line);
        hosts
    }

    /// Hosts with which there are no connections yet.
    pub(super) fn new(names: Vec<PathBytes>, patience: Duration, notice: Notice) -> Self {
        let state = State {
            places: names.iter().map(|_| Place::default()).collect(),
            shares: vec![HostShare::default(); names.len()],
            shown: None,
            none: None,
            is_closed: false,
        };
        let (state, changed, began) = (Mutex::new(state), Condvar::new(), Instant::now());
        Self { names, state, changed, began, patience, notice }
    }

    pub(super) fn are_several(&self) -> bool {
        self.count() > 1
    }

    pub(super) fn count(&self) -> usize {
        self.names.len()
    }

    fn name(&self, number: usize) -> String {
        self.names[number].to_path().display().to_string()
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Waits until a host has shown the root.
    ///
    /// # Errors
    /// None of them could be reached; the error is that of the first one.
    pub(super) fn first_shown(&self) -> Result<Shown, Fatal> {
        let mut state = lock(&self.state);
        loop {
            if let Some(shown) = &state.shown {
                return Ok(shown.clone());
            }
            if state.places.iter().all(|place| place.failed.is_some()) {
                let mut failed = state.places.iter_mut().filter_map(|place| place.failed.take());
                return Err(failed.next().expect("there is a host"));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A host can be asked from now on.
    ///
    /// # Errors
    /// It shows another tree than the first one.
    pub(super) fn join(
        &self,
        number: usize,
        line: Arc<dyn Line>,
        shown: Shown,
    ) -> Result<(), Fatal> {
        let mut state = lock(&self.state);
        let identity = shown.root.metadata.identity;
        let first = state.shown.get_or_insert(shown);
        if first.root.metadata.identity != identity {
            let message = "it is not the file or directory that the first host has";
            return Err(Fatal::refused(message, "name hosts that mount the same file system"));
        }
        state.none = None;
        let place = &mut state.places[number];
        place.line = Some(line);
        place.epoch += 1;
        place.failed = None;
        let is_back = std::mem::take(&mut place.was_missed);
        state.shares[number].forget();
        drop(state);
        self.changed.notify_all();
        if is_back {
            self.notice(&format!("'{}' is used from now on", self.name(number)));
        }
        Ok(())
    }

    /// A host cannot be used now.
    pub(super) fn cannot(&self, number: usize, why: Fatal) {
        let text = format!("'{}' is not used now: {why}", self.name(number));
        tracing::debug!(text);
        let mut state = lock(&self.state);
        // The error of the last one ends the job.
        let is_new = !state.places[number].was_missed;
        let tells = is_new && state.places.iter().any(|place| place.line.is_some());
        let place = &mut state.places[number];
        place.was_missed |= tells;
        place.failed = Some(why);
        drop(state);
        self.changed.notify_all();
        if tells {
            self.notice(&format!("{text}; the job continues without it, and tries again"));
        }
    }

    fn notice(&self, text: &str) {
        (self.notice.0)(text);
    }

    /// Chooses the host for a request about so many bytes.
    ///
    /// # Errors
    /// There has been none for too long.
    pub(super) fn choose(&self, choice: Choice, bytes: u64) -> Result<Chosen, Broken> {
        let mut state = lock(&self.state);
        loop {
            if let Some(chosen) = state.choose(choice, bytes) {
                return Ok(chosen);
            }
            let Some(left) = self.time_left(&state) else {
                let why = state.none.as_ref().map(|(why, _)| why.clone());
                return Err(Broken::Io(why.unwrap_or_default()));
            };
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The same, if there is a host now.
    pub(super) fn choose_now(&self, choice: Choice, bytes: u64) -> Option<Chosen> {
        lock(&self.state).choose(choice, bytes)
    }

    /// How long requests still wait for a host; `None`: no longer.
    fn time_left(&self, state: &State) -> Option<Duration> {
        let passed = state.none.as_ref().map_or(Duration::ZERO, |(_, since)| since.elapsed());
        let left = self.patience.checked_sub(passed).filter(|left| !left.is_zero());
        left.filter(|_| !state.is_closed)
    }

    /// The connection with a host that was chosen is over. Only several hosts can do without one.
    pub(super) fn lose(&self, chosen: &Chosen, why: &Broken) {
        self.lose_number(chosen.number, chosen.epoch, &chosen.line.fatal(why).to_string());
    }

    fn lose_number(&self, number: usize, epoch: u64, why: &str) {
        let mut state = lock(&self.state);
        let is_closed = state.is_closed;
        let place = &mut state.places[number];
        if place.epoch != epoch || place.line.is_none() || is_closed {
            return;
        }
        let line = place.line.take();
        place.was_missed = true;
        state.shares[number].forget();
        let is_last = state.places.iter().all(|place| place.line.is_none());
        if is_last {
            state.none = Some((why.to_owned(), Instant::now()));
        }
        drop(state);
        self.changed.notify_all();
        // Dropping a connection may wait for a write.
        drop(line);
        let rest = if is_last { "no host is left; trying again" } else { "the others continue" };
        self.notice(&format!("{why}; {rest}"));
    }

    /// Notes connections that are over though nobody has asked.
    fn check(&self) {
        let lines: Vec<_> = {
            let state = lock(&self.state);
            let places = state.places.iter().enumerate();
            let open = places.filter_map(|(number, place)| {
                Some((number, place.epoch, Arc::clone(place.line.as_ref()?)))
            });
            open.collect()
        };
        for (number, epoch, line) in lines {
            if let Some(why) = line.is_over() {
                self.lose_number(number, epoch, &line.fatal(&why).to_string());
            }
        }
    }

    /// Why nobody can be asked any more; `None`: somebody can, or is waited for.
    pub(super) fn is_over(&self) -> Option<Broken> {
        if !self.are_several() {
            let line = lock(&self.state).places[0].line.clone();
            return line.and_then(|line| line.is_over());
        }
        self.check();
        let state = lock(&self.state);
        let (why, _) = state.none.as_ref()?;
        self.time_left(&state).is_none().then(|| Broken::Io(why.clone()))
    }

    /// The error of a job that needs a host.
    pub(super) fn fatal(&self, why: &Broken) -> Fatal {
        let one = lock(&self.state).places[0].line.clone().filter(|_| !self.are_several());
        one.map_or_else(
            || {
                let message = format!("no host of the source can be reached any more: {why}");
                Fatal::unavailable(message, "check the hosts, then run the same command again")
            },
            |line| line.fatal(why),
        )
    }

    /// What is known of the connections. `display`: the name of the root if there is one host.
    pub(super) fn reports(&self, display: &PathBytes) -> Vec<(PathBytes, ConnectionReport)> {
        let state = lock(&self.state);
        let lines = self.names.iter().zip(&state.places);
        let open = lines.filter_map(|(name, place)| Some((name, Arc::clone(place.line.as_ref()?))));
        let open: Vec<_> = open.collect();
        drop(state);
        let named = |name: &PathBytes| if self.are_several() { name } else { display }.clone();
        open.into_iter().filter_map(|(name, line)| Some((named(name), line.report()?))).collect()
    }

    /// Waits until the connection with a host was lost; `false`: all are closed.
    pub(super) fn wait_until_lost(&self, number: usize) -> bool {
        let mut state = lock(&self.state);
        while !state.is_closed && state.places[number].line.is_some() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.is_closed
    }

    /// Waits before another attempt; `false`: all are closed.
    pub(super) fn pause(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        let mut state = lock(&self.state);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if state.is_closed || left.is_zero() {
                return !state.is_closed;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends all connections.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        let lines: Vec<_> = state.places.iter_mut().map(|place| place.line.take()).collect();
        drop(state);
        self.changed.notify_all();
        drop(lines);
    }
}

/// What a host owes for one request. Dropping it settles the rest.
#[derive(Debug)]
pub(super) struct Owed {
    hosts: Arc<Hosts>,
    chosen: Chosen,
    left: Mutex<u64>,
}

impl Owed {
    /// A host was asked for about so many bytes.
    pub(super) fn of(hosts: &Arc<Hosts>, chosen: Chosen, bytes: u64) -> Self {
        let now = hosts.now_ms();
        lock(&hosts.state).shares[chosen.number].asked(bytes, now);
        Self { hosts: Arc::clone(hosts), chosen, left: Mutex::new(bytes) }
    }

    pub(super) fn chosen(&self) -> &Chosen {
        &self.chosen
    }

    fn with_share(&self, change: impl FnOnce(&mut HostShare)) {
        let mut state = lock(&self.hosts.state);
        let number = self.chosen.number;
        if state.places[number].epoch == self.chosen.epoch {
            change(&mut state.shares[number]);
        }
    }

    /// So many bytes have come.
    pub(super) fn delivered(&self, bytes: u64) {
        let mut left = lock(&self.left);
        let settled = bytes.min(*left);
        *left -= settled;
        let now = self.hosts.now_ms();
        self.with_share(|share| {
            share.delivered(bytes, now);
            share.settled(settled);
        });
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        let left = *lock(&self.left);
        self.with_share(|share| share.settled(left));
    }
}
