//! One direction of a line: a thread that reads packets at one end and writes them at the other one when they are due.

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::faultfs::lock;

use super::device::Device;
use super::queue::{Departure, Queue, Rule, Segment};
use super::segments::{FRAME_MAX, Packet};

/// Segments that are read before those that are due are written.
const BATCH: usize = 64;

/// What has come through a line in one direction. The kernel passes many segments of a stream in one packet; each counts as a
/// packet here, as it would on a wire.
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
    /// Bytes that somebody on the way looks for, and whether he has seen them.
    wanted: Mutex<Vec<u8>>,
    is_seen: AtomicBool,
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
            wanted: Mutex::default(),
            is_seen: AtomicBool::new(false),
        }
    }
}

impl Switch {
    pub(super) fn look_for(&self, bytes: &[u8]) {
        *lock(&self.wanted) = bytes.to_vec();
        self.is_seen.store(false, Ordering::SeqCst);
    }

    pub(super) fn has_seen(&self) -> bool {
        self.is_seen.load(Ordering::SeqCst)
    }

    fn look_at(&self, frame: &[u8]) {
        let wanted = lock(&self.wanted);
        if let Some(first) = wanted.first()
            && !self.has_seen()
        {
            let begins = frame.iter().enumerate().filter(|(_, byte)| *byte == first);
            let found = begins.into_iter().any(|(at, _)| frame[at..].starts_with(&wanted));
            self.is_seen.fetch_or(found, Ordering::SeqCst);
        }
    }

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

    /// How many more bytes may come through.
    fn room_bytes(&self) -> u64 {
        let passed = self.passed_bytes.load(Ordering::SeqCst);
        self.silent_from.load(Ordering::SeqCst).saturating_sub(passed)
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
        let slack = rule.slack().as_nanos() as u64;
        rustix::thread::set_current_timer_slack(NonZeroU64::new(slack))?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(self.direction as u64);
        let mut queue = Queue::new(rule);
        let mut buffer = vec![0; FRAME_MAX];
        while self.wait(queue.next_due())? {
            let mut segments = 0;
            while segments < BATCH {
                let Some(length) = self.from.read(&mut buffer)? else { break };
                let packet = Packet::new(buffer[..length].to_vec());
                segments += packet.segments();
                self.take(&mut queue, packet, &mut rng);
            }
            while let Some(departure) = queue.leave(self.begin.elapsed(), self.switch.is_silent()) {
                self.deliver(departure)?;
            }
        }
        Ok(())
    }

    fn take(&self, queue: &mut Queue<Packet>, packet: Packet, rng: &mut ChaCha8Rng) {
        let all = 0..packet.segments();
        let arriving = all.clone().map(|number| Segment {
            bytes: packet.wire_bytes(number..number + 1),
            draw: rng.random(),
        });
        let admission = queue.admit(self.begin.elapsed(), arriving, self.switch.is_silent());
        let counters = &self.switch.counts[self.direction];
        add(&counters.lost, admission.lost);
        add(&counters.overflowed, admission.overflowed);
        add(&counters.silenced, admission.silenced);
        match &admission.spans[..] {
            [span] if span.segments == all => queue.hold(span, packet),
            spans => {
                for span in spans {
                    queue.hold(span, packet.part(span.segments.clone()));
                }
            }
        }
    }

    fn deliver(&self, departure: Departure<Packet>) -> rustix::io::Result<()> {
        let counters = &self.switch.counts[self.direction];
        let (mut packet, passing) = match departure {
            Departure::Delivered(packet) => {
                let passing = packet.segments_of(self.switch.room_bytes());
                (packet, passing)
            }
            Departure::Silenced(packet) => (packet, 0),
        };
        let all = packet.segments();
        add(&counters.silenced, (all - passing) as u64);
        if passing == 0 {
            return Ok(());
        }
        if passing < all {
            packet = packet.part(0..passing);
        }
        let bytes = packet.wire_bytes(0..passing);
        add(&counters.packets, passing as u64);
        add(&counters.bytes, bytes);
        add(&self.switch.passed_bytes, bytes);
        self.switch.look_at(packet.frame());
        self.to.write(packet.frame())
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
