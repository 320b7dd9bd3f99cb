//! A line between two hosts with delay, rate, loss and outages: two TUN devices, and threads that pass packets between them.
//!
//! It does what netem does, on kernels without netem. The hosts stay on the network of their cluster as well; only packets to
//! [`DelayLine::far_address`] and back take the line.

mod device;
mod pump;
mod queue;
mod segments;

use std::fmt;
use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

pub(super) use self::device::probe;
pub use self::pump::LineCounts;

use self::device::Device;
use self::pump::{Pump, Switch};
use self::queue::Rule;
use super::{Host, tool, workplace};

/// The host numbers at both ends.
const ENDS: [u8; 2] = [1, 2];

/// What a line does to packets, in each direction.
#[derive(Clone, Debug)]
pub struct LineOptions {
    /// How long a packet is on its way; a round trip takes twice as long. Segments of a stream that the kernel passes together may
    /// wait for each other for up to a millisecond.
    pub delay: Duration,
    /// How fast packets leave the queue in front of the line; no limit without it.
    pub rate_bytes_per_s: Option<NonZeroU64>,
    /// The share of packets that are lost on the way, from 0 to 1.
    pub loss: f64,
    /// Decides which packets are lost.
    pub seed: u64,
    /// Packets that find more than this many bytes waiting are dropped. Without a rate nothing waits.
    pub queue_bytes: u64,
    /// The largest packet.
    pub mtu_bytes: u32,
    /// When the line drops everything, counted from its start.
    pub outages: Vec<Range<Duration>>,
}

impl Default for LineOptions {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            rate_bytes_per_s: None,
            loss: 0.0,
            seed: 1,
            queue_bytes: 1 << 20,
            mtu_bytes: 1500,
            outages: Vec::new(),
        }
    }
}

impl LineOptions {
    /// A line without loss or a rate, whose round trip takes this long.
    pub fn round_trip(round_trip: Duration) -> Self {
        Self { delay: round_trip / 2, ..Self::default() }
    }

    /// A line of a wide area: a round trip, a rate, and a queue that keeps the line busy when a single stream halves its window,
    /// which is what the line passes in one round trip.
    pub fn wan(round_trip: Duration, rate_bytes_per_s: NonZeroU64) -> Self {
        let product = u128::from(rate_bytes_per_s.get()) * round_trip.as_nanos() / 1_000_000_000;
        Self {
            rate_bytes_per_s: Some(rate_bytes_per_s),
            queue_bytes: u64::try_from(product).unwrap_or(u64::MAX),
            ..Self::round_trip(round_trip)
        }
    }
}

impl fmt::Display for LineOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} one way", self.delay)?;
        if let Some(rate) = self.rate_bytes_per_s {
            write!(f, ", {rate} bytes/s, queue {} bytes", self.queue_bytes)?;
        }
        if self.loss > 0.0 {
            write!(f, ", {} of packets lost (seed {})", self.loss, self.seed)?;
        }
        if !self.outages.is_empty() {
            write!(f, ", outages {:?}", self.outages)?;
        }
        Ok(())
    }
}

/// A line; dropping it removes its devices, and whatever was on its way is lost.
#[derive(Debug)]
pub struct DelayLine {
    switch: Arc<Switch>,
    /// Closing it ends the threads.
    stop: Option<OwnedFd>,
    pumps: Vec<JoinHandle<()>>,
    network: u8,
    near: Host,
    far: Host,
}

impl DelayLine {
    /// Lays a line between two hosts, and prints what it is like.
    ///
    /// # Errors
    /// What the machine does not permit: [`needs`](super::needs) with [`Piece::Tun`](super::Piece::Tun) says so first.
    #[allow(clippy::print_stderr, reason = "a failing test shows the seed")]
    pub fn between(near: &Host, far: &Host, options: &LineOptions) -> Result<Self> {
        static NEXT: AtomicU8 = AtomicU8::new(0);
        eprintln!("line between {} and {}: {options}", near.name(), far.name());
        // Only the two namespaces see it, so other processes may use the same one.
        let network = NEXT.fetch_add(1, Ordering::Relaxed);
        let open = |host: &Host, end: usize| {
            let addresses = [address(network, end), address(network, 1 - end)];
            Device::create(host.namespace(), &format!("tun{network}"), addresses, options.mtu_bytes)
        };
        let devices = [Arc::new(open(near, 0)?), Arc::new(open(far, 1)?)];
        let (stopped, stop) = rustix::pipe::pipe().context("create a pipe")?;
        let (stopped, switch) = (Arc::new(stopped), Arc::new(Switch::default()));
        let mut line = Self {
            switch,
            stop: Some(stop),
            pumps: Vec::new(),
            network,
            near: near.clone(),
            far: far.clone(),
        };
        let begin = Instant::now();
        for direction in 0..devices.len() {
            let pump = Pump {
                from: Arc::clone(&devices[direction]),
                to: Arc::clone(&devices[1 - direction]),
                stopped: Arc::clone(&stopped),
                switch: Arc::clone(&line.switch),
                begin,
                direction,
            };
            let rule = Rule::of(options);
            let seed = options.seed;
            let body = move || {
                if let Err(error) = pump.run(rule, seed) {
                    workplace::complain(&format!("a line has ended: {error}"));
                }
            };
            let thread = std::thread::Builder::new().name(format!("line {network}.{direction}"));
            line.pumps.push(thread.spawn(body).context("start a thread for a line")?);
        }
        Ok(line)
    }

    /// The address under which the near host reaches the far one over the line.
    pub fn far_address(&self) -> Ipv4Addr {
        address(self.network, 1)
    }

    /// The address of the near host on the line.
    pub fn near_address(&self) -> Ipv4Addr {
        address(self.network, 0)
    }

    /// The name of the device at both hosts.
    pub fn device(&self) -> String {
        format!("tun{}", self.network)
    }

    /// The host at the near end.
    pub fn near(&self) -> &Host {
        &self.near
    }

    /// The host at the far end.
    pub fn far(&self) -> &Host {
        &self.far
    }

    /// Has the line drop everything, also what is on its way, until it is switched on again. Nobody is notified, as with a router
    /// that has lost its route.
    pub fn set_silent(&self, silent: bool) {
        self.switch.set_silent(silent);
    }

    /// Has the line fall silent once this many more bytes have come through it, in both directions together, headers included.
    pub fn silence_after(&self, bytes: u64) {
        self.switch.silence_after(bytes);
    }

    /// Whether the line has been switched off, or has fallen silent after a number of bytes.
    pub fn is_silent(&self) -> bool {
        self.switch.is_silent()
    }

    /// Looks for these bytes in each packet that comes through, as somebody on the way could.
    pub fn look_for(&self, bytes: &[u8]) {
        self.switch.look_for(bytes);
    }

    /// Whether they came by, since it was asked to look for them.
    pub fn has_seen(&self) -> bool {
        self.switch.has_seen()
    }

    /// The most bytes that one TCP connection over the line carries at the near host, in both directions, as the kernel there says;
    /// connections to ssh's port excepted, and those that have ended.
    ///
    /// # Errors
    /// `ss` of iproute2 does not work.
    pub fn carried_beside_ssh(&self) -> Result<u64> {
        let peer = format!("{}:", self.far_address());
        let mut command = self.near.command("ss");
        command.args(["-H", "-t", "-i", "-n", "-O", "state", "established"]);
        let listed = tool::run(&mut command)?;
        let to_there = listed.lines().filter(|line| {
            let mut words = line.split_whitespace().filter_map(|word| word.strip_prefix(&peer));
            words.next().is_some_and(|port| port != "22")
        });
        let carried = to_there.map(|line| {
            let of = |name: &str| {
                let mut words = line.split_whitespace();
                words.find_map(|word| word.strip_prefix(name)?.parse::<u64>().ok()).unwrap_or(0)
            };
            of("bytes_acked:") + of("bytes_received:")
        });
        Ok(carried.max().unwrap_or(0))
    }

    /// What has come through from the near host to the far one, and back.
    pub fn counts(&self) -> [LineCounts; 2] {
        [0, 1].map(|direction| self.switch.counts(direction))
    }
}

impl Drop for DelayLine {
    fn drop(&mut self) {
        drop(self.stop.take());
        for pump in self.pumps.drain(..) {
            // A panic of it was printed there.
            let _ = pump.join();
        }
    }
}

/// The address of an end in a network that no cluster uses.
fn address(network: u8, end: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 214, network, ENDS[end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_of_a_wide_area_holds_a_round_trip() {
        let rate = NonZeroU64::new(125_000_000).unwrap();
        let options = LineOptions::wan(Duration::from_millis(50), rate);
        assert_eq!(options.delay, Duration::from_millis(25));
        assert_eq!(options.rate_bytes_per_s, Some(rate));
        assert_eq!(options.queue_bytes, 6_250_000);
    }
}
