//! One direction of a line: a thread that reads packets at one end and writes them at the other one when they are due.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::device::Device;
use super::queue::{Arrival, Decision, Departure, Queue, Rule};

/// Packets that are read before those that are due are written.
const BATCH: usize = 64;
/// The largest packet of IPv4.
const PACKET_MAX: usize = 65_535;

/// What has come through a line in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// Packets that have arrived.
    pub packets: u64,
    /// Their bytes, headers included.
    pub bytes: u64,
    /// Packets that were lost by chance.
    pub lost: u64,
    /// Packets that found a full queue.
    pub overflowed: u64,
    /// Packets that were dropped because the line was silent.
    pub silenced: u64,
}

/// What both directions of a line and its owner share.
#[derive(Debug)]
pub(super) struct Switch {
    is_off: AtomicBool,
    passed_bytes: AtomicU64,
    /// The value of `passed_bytes` from which the line is silent.
    silent_from: AtomicU64,
    counts: [Counters; 2],
}

#[derive(Debug, Default)]
struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
    overflowed: AtomicU64,
    silenced: AtomicU64,
}

impl Default for Switch {
    fn default() -> Self {
        Self {
            is_off: AtomicBool::new(false),
            passed_bytes: AtomicU64::new(0),
            silent_from: AtomicU64::new(u64::MAX),
            counts: Default::default(),
        }
    }
}

impl Switch {
    pub(super) fn set_silent(&self, silent: bool) {
        self.silent_from.store(u64::MAX, Ordering::SeqCst);
        self.is_off.store(silent, Ordering::SeqCst);
    }

    pub(super) fn silence_after(&self, bytes: u64) {
        let passed = self.passed_bytes.load(Ordering::SeqCst);
        self.silent_from.store(passed.saturating_add(bytes), Ordering::SeqCst);
    }

    pub(super) fn is_silent(&self) -> bool {
        self.is_off.load(Ordering::SeqCst)
            || self.passed_bytes.load(Ordering::SeqCst) >= self.silent_from.load(Ordering::SeqCst)
    }

    pub(super) fn counts(&self, direction: usize) -> LineCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        let Counters { packets, bytes, lost, overflowed, silenced } = &self.counts[direction];
        LineCounts {
            packets: of(packets),
            bytes: of(bytes),
            lost: of(lost),
            overflowed: of(overflowed),
            silenced: of(silenced),
        }
    }
}

fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::SeqCst);
}

/// One direction.
pub(super) struct Pump {
    pub(super) from: Arc<Device>,
    pub(super) to: Arc<Device>,
    /// Hangs up when the line ends.
    pub(super) stopped: Arc<OwnedFd>,
    pub(super) switch: Arc<Switch>,
    pub(super) begin: Instant,
    /// 0: from the near host to the far one.
    pub(super) direction: usize,
}

impl Pump {
    /// Passes packets until the line ends.
    ///
    /// # Errors
    /// A device that does not work any more.
    pub(super) fn run(&self, rule: Rule, seed: u64) -> rustix::io::Result<()> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(self.direction as u64);
        let mut queue = Queue::new(rule);
        let mut buffer = vec![0; PACKET_MAX];
        while self.wait(queue.next_due())? {
            for _ in 0..BATCH {
                let Some(length) = self.from.read(&mut buffer)? else { break };
                let arrival = Arrival {
                    packet: buffer[..length].to_vec(),
                    bytes: length as u64,
                    draw: rng.random(),
                };
                self.take(&mut queue, arrival);
            }
            while let Some(departure) = queue.leave(self.begin.elapsed(), self.switch.is_silent()) {
                self.deliver(departure)?;
            }
        }
        Ok(())
    }

    fn take(&self, queue: &mut Queue<Vec<u8>>, arrival: Arrival<Vec<u8>>) {
        let counters = &self.switch.counts[self.direction];
        match queue.arrive(self.begin.elapsed(), arrival, self.switch.is_silent()) {
            Decision::Held(_) => {}
            Decision::Lost => add(&counters.lost, 1),
            Decision::Overflowed => add(&counters.overflowed, 1),
            Decision::Silenced => add(&counters.silenced, 1),
        }
    }

    fn deliver(&self, departure: Departure<Vec<u8>>) -> rustix::io::Result<()> {
        let counters = &self.switch.counts[self.direction];
        let Departure::Delivered(packet) = departure else {
            add(&counters.silenced, 1);
            return Ok(());
        };
        add(&counters.packets, 1);
        add(&counters.bytes, packet.len() as u64);
        add(&self.switch.passed_bytes, packet.len() as u64);
        self.to.write(&packet)
    }

    /// Waits for a packet or for the time at which one is due; false when the line ends.
    fn wait(&self, due: Option<Duration>) -> rustix::io::Result<bool> {
        let left = due.map(|due| {
            let left = due.saturating_sub(self.begin.elapsed());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        let mut waited = [
            PollFd::new(&*self.from, PollFlags::IN),
            PollFd::new(&*self.stopped, PollFlags::empty()),
        ];
        match poll(&mut waited, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(!waited[1].revents().contains(PollFlags::HUP)),
            Err(error) => Err(error),
        }
    }
}
