//! The gate that every request passes: latency, faults, log.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::lock;
use super::op::OpClass;
use super::record::{Record, Recorder};
use super::rule::{Action, Hit, Request, Rule, RuleSet};

/// How long requests take beyond what the backing file system needs.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Latency {
    /// Microseconds for every operation whose class is not named in `by_class_us`.
    pub base_us: u64,
    /// Microseconds by class of operation.
    pub by_class_us: BTreeMap<OpClass, u64>,
}

impl Latency {
    /// The same latency for every operation.
    pub fn of_us(base_us: u64) -> Self {
        Self { base_us, by_class_us: BTreeMap::new() }
    }

    fn wait(&self, class: OpClass) {
        let us = self.by_class_us.get(&class).copied().unwrap_or(self.base_us);
        if us > 0 {
            thread::sleep(Duration::from_micros(us));
        }
    }
}

/// What an operation has to do to its data because a rule says so.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Effect {
    None,
    Short(u32),
    Flip(u64),
}

impl Effect {
    /// The number of bytes to transfer of those that were asked for.
    pub(crate) fn clip(self, size: u64) -> u64 {
        match self {
            Effect::Short(most) => size.min(u64::from(most)),
            Effect::None | Effect::Flip(_) => size,
        }
    }

    /// Inverts the chosen bit of a buffer.
    pub(crate) fn damage(self, buffer: &mut [u8]) {
        if let Some(position) = self.damaged_byte(buffer.len() as u64) {
            buffer[position as usize] ^= 1;
        }
    }

    /// The byte that is to be damaged among so many.
    pub(crate) fn damaged_byte(self, length: u64) -> Option<u64> {
        match self {
            Effect::Flip(offset) if length > 0 => Some(offset % length),
            _ => None,
        }
    }
}

/// Latency, rules and log of a mount, changeable while it runs.
pub(crate) struct Gate {
    seed: u64,
    settings: Mutex<Settings>,
    /// Counts releases; hanging requests wait for it to change.
    releases: Mutex<u64>,
    released: Condvar,
    pub(crate) recorder: Recorder,
}

struct Settings {
    latency: Arc<Latency>,
    rules: Arc<RuleSet>,
}

impl Gate {
    pub(crate) fn new(
        latency: Latency,
        rules: &[Rule],
        seed: u64,
        recorder: Recorder,
    ) -> Result<Self> {
        let settings =
            Settings { latency: Arc::new(latency), rules: Arc::new(RuleSet::new(rules, seed)?) };
        Ok(Self {
            seed,
            settings: Mutex::new(settings),
            releases: Mutex::default(),
            released: Condvar::new(),
            recorder,
        })
    }

    pub(crate) fn set_rules(&self, rules: &[Rule]) -> Result<()> {
        lock(&self.settings).rules = Arc::new(RuleSet::new(rules, self.seed)?);
        Ok(())
    }

    pub(crate) fn set_latency(&self, latency: Latency) {
        lock(&self.settings).latency = Arc::new(latency);
    }

    pub(crate) fn rules_fired(&self) -> Vec<u64> {
        lock(&self.settings).rules.fired()
    }

    /// Lets every request go on that hangs now.
    pub(crate) fn release_hangs(&self) {
        *lock(&self.releases) += 1;
        self.released.notify_all();
    }

    /// Serves a request that moves no data.
    pub(crate) fn pass<T>(
        &self,
        request: Request<'_>,
        serve: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.pass_data(request, |_| serve().map(|done| (done, 0)))
    }

    /// Serves a request that returns its result and the number of bytes it moved.
    pub(crate) fn pass_data<T>(
        &self,
        request: Request<'_>,
        serve: impl FnOnce(Effect) -> Result<(T, u64), Errno>,
    ) -> Result<T, Errno> {
        let begun = self.recorder.begin(request.op);
        let (latency, rules) = {
            let settings = lock(&self.settings);
            (Arc::clone(&settings.latency), Arc::clone(&settings.rules))
        };
        let hit = rules.hit(&request);
        latency.wait(request.op.class());
        let result = self.act(hit.map(|hit| hit.action), serve);
        let record = Record {
            begin: begun.begin,
            end: 0,
            op: request.op,
            name: String::new(),
            offset: request.offset,
            size: request.size,
            bytes: result.as_ref().map_or(0, |(_, bytes)| *bytes),
            in_flight: begun.in_flight,
            errno: result.as_ref().err().map_or(0, |error| error.raw_os_error()),
            rule: hit.map(|Hit { rule, .. }| rule),
        };
        self.recorder.end(record, request.name);
        result.map(|(done, _)| done)
    }

    fn act<T>(
        &self,
        action: Option<Action>,
        serve: impl FnOnce(Effect) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match action {
            None => serve(Effect::None),
            Some(Action::Errno(errno)) => Err(Errno::from_raw_os_error(errno)),
            Some(Action::ErrnoAfter(errno)) => {
                serve(Effect::None).and(Err(Errno::from_raw_os_error(errno)))
            }
            Some(Action::ShortRead(most) | Action::ShortWrite(most)) => serve(Effect::Short(most)),
            Some(Action::BitFlip { offset_in_buffer }) => serve(Effect::Flip(offset_in_buffer)),
            Some(Action::Hang { duration_ms }) => {
                self.hang(Duration::from_millis(duration_ms));
                serve(Effect::None)
            }
        }
    }

    fn hang(&self, duration: Duration) {
        let deadline = Instant::now() + duration;
        let mut releases = lock(&self.releases);
        let before = *releases;
        while *releases == before {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.released.wait_timeout(releases, left);
            releases = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }
}
