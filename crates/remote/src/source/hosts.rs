//! The hosts that have a tree: each request goes to one of them, and what was lost with one can be asked of another one.
use dmover_model::{ConnectionReport, Fatal, PathBytes, Timestamp};
use dmover_net::Notice;
use dmover_net::connection::Broken;
use dmover_observe::lock;
use dmover_plan::host_share::{Able, Delivery, first_to_deliver};
use dmover_schedule::sync::{Condvar, Mutex};
use dmover_schedule::time::Instant;
use dmover_tree::RemoteRoot;
use dmover_wire::agent::SharedMount;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use super::Line;
use super::sent_there::SentThere;

/// How long a host is not asked that has not answered: the first and the longest time.
const DOUBTED: Duration = Duration::from_secs(30);
const DOUBTED_MAX: Duration = Duration::from_mins(5);
/// How long a request that tries a doubted host may take before the next one does.
const TRIED: Duration = Duration::from_secs(20);
/// What is asked ahead and not read for so many milliseconds has probably arrived, and its host waits.
const FORGOTTEN_MS: u64 = 500;

/// Which host gets a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// The first one that can be reached: all that decides what is copied comes from one host.
    First,
    /// The one that will have answered first.
    Any,
}

/// The root as a host has shown it, and its clock between two times of the clock here.
#[derive(Debug, Clone)]
pub(super) struct Shown {
    pub(super) root: RemoteRoot,
    /// What is mounted below the root.
    pub(super) mounts: Vec<SharedMount>,
    pub(super) clock: Option<Timestamp>,
    pub(super) times: (SystemTime, SystemTime),
}

impl Shown {
    /// Whether both are one tree, so that neither host lacks what the other one has mounted.
    fn is(&self, other: &Self) -> bool {
        let parts = |shown: &Self| {
            (shown.root.metadata.identity, shown.root.missing_mount.clone(), shown.mounts.clone())
        };
        parts(self) == parts(other)
    }
}

/// A host that was chosen.
#[derive(Debug, Clone)]
pub(super) struct Chosen {
    pub(super) line: Arc<dyn Line>,
    place: At,
}

/// A host, and how many connections with it there were before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct At {
    number: usize,
    epoch: u64,
}

/// Why the thread that keeps a connection may stop waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// The connection was lost.
    Lost,
    /// No other one is wanted.
    End,
}

/// What is known of one host.
#[derive(Debug, Default)]
struct Place {
    /// It can be asked.
    line: Option<Arc<dyn Line>>,
    /// It has shown its root, and hosts before it have not yet.
    candidate: Option<(Arc<dyn Line>, Shown)>,
    epoch: u64,
    /// Why the first attempt has failed.
    failed: Option<Fatal>,
    /// It has shown its root, or could not.
    is_decided: bool,
    /// It was used before: what refuses it now may pass, as when it starts and has not mounted everything.
    was_admitted: bool,
    /// It is not wanted any more.
    is_refused: bool,
    /// The user was told that it is not used.
    was_missed: bool,
    /// It does not answer: until when it is not asked, and for how long that is.
    doubted: Option<(Instant, Duration)>,
    debts: Vec<Arc<Debt>>,
    delivery: Delivery,
    sent: Arc<SentThere>,
}

impl Place {
    fn is_doubted(&self) -> bool {
        self.doubted.is_some_and(|(until, _)| Instant::now() < until)
    }

    fn can_be_asked(&self) -> bool {
        self.line.is_some() && !self.is_doubted()
    }

    fn owes(&self, now_ms: u64) -> u64 {
        self.debts.iter().map(|debt| debt.counts(now_ms)).sum()
    }
}

#[derive(Debug)]
struct State {
    places: Vec<Place>,
    /// The root as the first host has shown it.
    shown: Option<Shown>,
    /// How many requests were divided among them.
    turn: u64,
    /// What was last known of the last one, and since when there has been none.
    none: Option<(String, Instant)>,
    is_closed: bool,
    /// All connections have ended.
    is_ended: bool,
}

impl State {
    fn choose(&mut self, choice: Choice, bytes: u64, now_ms: u64) -> Option<Chosen> {
        // If all are doubted, they are asked all the same.
        let some = self.places.iter().any(Place::can_be_asked);
        let may = |place: &Place| if some { place.can_be_asked() } else { place.line.is_some() };
        let number = match choice {
            Choice::First => self.places.iter().position(may),
            Choice::Any => {
                self.turn = self.turn.wrapping_add(1);
                for place in &mut self.places {
                    if let Some(line) = &place.line {
                        place.delivery.received(line.received(), now_ms);
                    }
                }
                let able = self.places.iter().map(|place| {
                    let owes = may(place).then(|| place.owes(now_ms))?;
                    Some(Able { owes, delivery: &place.delivery })
                });
                let hosts: Vec<_> = able.collect();
                first_to_deliver(&hosts, bytes, self.turn)
            }
        }?;
        let Place { line, epoch, doubted, .. } = &mut self.places[number];
        if let Some((until, _)) = doubted {
            // It is tried with one request; the others wait for its answer.
            *until = (*until).max(Instant::now() + TRIED);
        }
        let place = At { number, epoch: *epoch };
        Some(Chosen { line: Arc::clone(line.as_ref()?), place })
    }

    /// Admits hosts that have shown the same root as the first one. Which one that is, is known once all before it have been tried.
    /// Returns those that were admitted and those that were refused, and whether the user has missed them.
    fn settle(&mut self) -> Vec<(usize, Result<bool, Fatal>)> {
        if self.shown.is_none() {
            let undecided = self.places.iter().position(|place| !place.is_decided);
            let able = self.places.iter().position(|place| place.candidate.is_some());
            let Some(first) = able.filter(|able| undecided.is_none_or(|other| *able < other))
            else {
                return Vec::new();
            };
            self.shown = self.places[first].candidate.as_ref().map(|(_, shown)| shown.clone());
        }
        let Some(first) = &self.shown else { return Vec::new() };
        let mut settled = Vec::new();
        for (number, place) in self.places.iter_mut().enumerate() {
            let Some((line, shown)) = place.candidate.take() else { continue };
            if !first.is(&shown) {
                place.is_refused = !place.was_admitted;
                let message = "its tree is not that of the first host, or has other mounts";
                let why = Fatal::refused(message, "name hosts that mount the same file systems");
                settled.push((number, Err(why)));
                continue;
            }
            place.line = Some(line);
            place.was_admitted = true;
            place.delivery = Delivery::default();
            place.doubted = None;
            self.none = None;
            settled.push((number, Ok(std::mem::take(&mut place.was_missed))));
        }
        settled
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
    /// A host is doubted, so that it matters who answers.
    doubts: AtomicBool,
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
            shown: None,
            turn: 0,
            none: None,
            is_closed: false,
            is_ended: false,
        };
        let (state, changed, began) = (Mutex::new(state), Condvar::new(), Instant::now());
        let doubts = AtomicBool::new(false);
        Self { names, state, changed, began, patience, notice, doubts }
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

    fn notice(&self, text: &str) {
        (self.notice.0)(text);
    }

    /// Waits until a host has shown the root, and those before it could not.
    ///
    /// # Errors
    /// None of them could be reached; the error is that of the first one.
    pub(super) fn first_shown(&self) -> Result<Shown, Fatal> {
        let mut state = lock(&self.state);
        loop {
            if let Some(shown) = &state.shown {
                return Ok(shown.clone());
            }
            if state.places.iter().all(|place| place.is_decided) {
                let mut failed = state.places.iter_mut().filter_map(|place| place.failed.take());
                return Err(failed.next().expect("no host has shown its root"));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A host has shown its root, and can be asked from now on if it is that of the first one.
    pub(super) fn join(&self, number: usize, line: Arc<dyn Line>, shown: Shown) {
        let mut state = lock(&self.state);
        if state.is_closed {
            return;
        }
        let place = &mut state.places[number];
        place.candidate = Some((line, shown));
        place.epoch += 1;
        (place.is_decided, place.failed) = (true, None);
        let settled = state.settle();
        drop(state);
        self.tell(settled);
    }

    /// A host cannot be used now.
    pub(super) fn cannot(&self, number: usize, why: Fatal) {
        let text = format!("'{}' is not used now: {why}", self.name(number));
        let is_refused = matches!(why, Fatal::Refused { .. });
        let mut state = lock(&self.state);
        let place = &mut state.places[number];
        let is_new = !std::mem::replace(&mut place.was_missed, true);
        (place.is_decided, place.failed) = (true, Some(why));
        place.is_refused |= is_refused && !place.was_admitted;
        let settled = state.settle();
        // The error of the first one ends a job that none can serve.
        let tells = is_new && !state.is_closed && self.are_some_left(&state);
        drop(state);
        if tells {
            let rest =
                if is_refused { "" } else { "; the job continues without it, and tries again" };
            self.notice(&format!("{text}{rest}"));
        }
        self.tell(settled);
    }

    fn are_some_left(&self, state: &State) -> bool {
        state.places.iter().any(|place| place.line.is_some() || !place.is_decided)
            || state.shown.is_some()
    }

    fn tell(&self, settled: Vec<(usize, Result<bool, Fatal>)>) {
        self.changed.notify_all();
        for (number, admitted) in settled {
            match admitted {
                Ok(true) => self.notice(&format!("'{}' is used from now on", self.name(number))),
                Ok(false) => {}
                Err(why) => self.notice(&format!("'{}' is not used: {why}", self.name(number))),
            }
        }
    }

    /// Chooses the host for a request about so many bytes.
    ///
    /// # Errors
    /// There has been none for too long.
    pub(super) fn choose(&self, choice: Choice, bytes: u64) -> Result<Chosen, Broken> {
        let mut state = lock(&self.state);
        loop {
            if let Some(chosen) = state.choose(choice, bytes, self.now_ms()) {
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

    /// The first host, if there is one now.
    pub(super) fn first_now(&self) -> Option<Chosen> {
        lock(&self.state).choose(Choice::First, 0, self.now_ms())
    }

    /// How long requests still wait for a host; `None`: no longer.
    fn time_left(&self, state: &State) -> Option<Duration> {
        let passed = state.none.as_ref().map_or(Duration::ZERO, |(_, since)| since.elapsed());
        let left = self.patience.checked_sub(passed).filter(|left| !left.is_zero());
        let may_come = !state.is_closed && !state.places.iter().all(|place| place.is_refused);
        left.filter(|_| may_come)
    }

    /// The connection with a host that was chosen is over, and another one is not wanted if it has sent what cannot be right.
    pub(super) fn lose(&self, chosen: &Chosen, why: &Broken) {
        self.lose_at(chosen.place, why);
    }

    fn lose_at(&self, at: At, why: &Broken) {
        let mut state = lock(&self.state);
        let is_closed = state.is_closed;
        let place = &mut state.places[at.number];
        let Some(line) = place.line.take_if(|_| place.epoch == at.epoch && !is_closed) else {
            return;
        };
        place.was_missed = true;
        place.is_refused |= matches!(why, Broken::Violation(_));
        let is_last = state.places.iter().all(|place| place.line.is_none());
        if is_last {
            state.none = Some((why.to_string(), Instant::now()));
        }
        drop(state);
        self.changed.notify_all();
        // What ssh says, and dropping a connection, may take a moment.
        let text = line.fatal(why).to_string();
        drop(line);
        if let Some((known, _)) = &mut lock(&self.state).none {
            known.clone_from(&text);
        }
        let rest = if is_last { "no host is left" } else { "the others continue" };
        self.notice(&format!("{text}; {rest}"));
    }

    /// A host has not answered for long. Whether another one can be asked instead.
    fn doubt(&self, at: At) -> bool {
        let mut state = lock(&self.state);
        let mut others = state.places.iter().enumerate();
        if !others.any(|(number, place)| number != at.number && place.can_be_asked()) {
            return false;
        }
        let place = &mut state.places[at.number];
        let is_current = place.epoch == at.epoch;
        // Requests of one time are one doubt.
        let is_new =
            is_current && place.doubted.is_none_or(|(until, _)| until <= Instant::now() + TRIED);
        let tells = is_current && place.doubted.is_none();
        if is_new {
            let longer = place.doubted.map_or(DOUBTED, |(_, pause)| DOUBTED_MAX.min(2 * pause));
            place.doubted = Some((Instant::now() + longer, longer));
            self.doubts.store(true, SeqCst);
        }
        drop(state);
        if tells {
            let name = self.name(at.number);
            self.notice(&format!("'{name}' does not answer; the others are asked instead"));
        }
        true
    }

    /// A host has answered.
    fn heard(&self, at: At) {
        if !self.doubts.load(SeqCst) {
            return;
        }
        let mut state = lock(&self.state);
        let place = &mut state.places[at.number];
        if place.epoch == at.epoch {
            place.doubted = None;
        }
        self.doubts.store(state.places.iter().any(|place| place.doubted.is_some()), SeqCst);
    }

    /// Notes connections that are over though nobody has asked.
    fn check(&self) {
        let open: Vec<_> = {
            let state = lock(&self.state);
            let places = state.places.iter().enumerate();
            let open = places.filter_map(|(number, place)| {
                let at = At { number, epoch: place.epoch };
                Some((at, Arc::clone(place.line.as_ref()?)))
            });
            open.collect()
        };
        for (at, line) in open {
            if let Some(why) = line.is_over() {
                self.lose_at(at, &why);
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
        let open = lines.filter_map(|(name, place)| {
            Some((name, Arc::clone(place.line.as_ref()?), Arc::clone(&place.sent)))
        });
        let open: Vec<_> = open.collect();
        drop(state);
        let named = |name: &PathBytes| if self.are_several() { name } else { display }.clone();
        let report = |(name, line, sent): (&PathBytes, Arc<dyn Line>, Arc<SentThere>)| {
            let known = line.report()?;
            let there = if known.streams > 0 { sent.now(&*line) } else { None };
            Some((named(name), ConnectionReport { there, ..known }))
        };
        open.into_iter().filter_map(report).collect()
    }

    /// Waits as long as the connection with a host is there. Its thread must not end before the connection.
    pub(super) fn keep(&self, number: usize) -> Kept {
        let mut state = lock(&self.state);
        loop {
            let place = &state.places[number];
            let has_ended = if state.is_closed { state.is_ended } else { place.is_refused };
            if has_ended {
                return Kept::End;
            }
            if !state.is_closed && place.line.is_none() && place.candidate.is_none() {
                return Kept::Lost;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits before another attempt to reach a host.
    pub(super) fn pause(&self, number: usize, pause: Duration) -> Kept {
        let until = Instant::now() + pause;
        let mut state = lock(&self.state);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if state.is_closed || state.places[number].is_refused {
                return Kept::End;
            }
            if left.is_zero() {
                return Kept::Lost;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends all connections.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        let places = state.places.iter_mut();
        let lines: Vec<_> =
            places.map(|place| (place.line.take(), place.candidate.take())).collect();
        drop(state);
        self.changed.notify_all();
        drop(lines);
        lock(&self.state).is_ended = true;
        self.changed.notify_all();
    }
}

/// What a host owes for one request.
#[derive(Debug)]
struct Debt {
    left: AtomicU64,
    /// When something was asked or read last.
    touched_ms: AtomicU64,
    is_awaited: AtomicBool,
}

impl Debt {
    /// The bytes that keep the host busy.
    fn counts(&self, now_ms: u64) -> u64 {
        let is_fresh = now_ms.saturating_sub(self.touched_ms.load(SeqCst)) < FORGOTTEN_MS;
        if is_fresh || self.is_awaited.load(SeqCst) { self.left.load(SeqCst) } else { 0 }
    }
}

/// A request to one of several hosts. Dropping it settles what it owes.
#[derive(Debug)]
pub(super) struct Owed {
    hosts: Arc<Hosts>,
    at: At,
    debt: Arc<Debt>,
}

impl Owed {
    /// A host was asked for about so many bytes.
    pub(super) fn of(hosts: &Arc<Hosts>, chosen: &Chosen, bytes: u64) -> Self {
        let debt = Arc::new(Debt {
            left: AtomicU64::new(bytes),
            touched_ms: AtomicU64::new(hosts.now_ms()),
            is_awaited: AtomicBool::new(false),
        });
        let at = chosen.place;
        lock(&hosts.state).places[at.number].debts.push(Arc::clone(&debt));
        Self { hosts: Arc::clone(hosts), at, debt }
    }

    /// The answer is waited for, or it has come.
    pub(super) fn is_awaited(&self, is_awaited: bool) {
        self.debt.is_awaited.store(is_awaited, SeqCst);
        self.debt.touched_ms.store(self.hosts.now_ms(), SeqCst);
    }

    /// So many bytes have come.
    pub(super) fn delivered(&self, bytes: u64) {
        let left = self.debt.left.load(SeqCst);
        self.debt.left.store(left.saturating_sub(bytes), SeqCst);
        let now_ms = self.hosts.now_ms();
        let mut state = lock(&self.hosts.state);
        let place = &mut state.places[self.at.number];
        if let Some(line) = &place.line {
            place.delivery.received(line.received(), now_ms);
        }
    }

    pub(super) fn heard(&self) {
        self.hosts.heard(self.at);
    }

    /// The bytes of all that has come from this host.
    pub(super) fn received(&self) -> u64 {
        let state = lock(&self.hosts.state);
        let place = &state.places[self.at.number];
        place.line.as_ref().map_or(0, |line| line.received())
    }

    /// It has not answered for long. Whether another one can be asked instead.
    pub(super) fn doubt(&self) -> bool {
        self.hosts.doubt(self.at)
    }

    /// The connection is over.
    pub(super) fn lose(&self, why: &Broken) {
        self.hosts.lose_at(self.at, why);
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        let mut state = lock(&self.hosts.state);
        state.places[self.at.number].debts.retain(|debt| !Arc::ptr_eq(debt, &self.debt));
    }
}
