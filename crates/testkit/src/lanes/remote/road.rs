//! What is between a job and its hosts: it counts bytes, and stops them at a seeded one of them.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::hosts::NAMES;
use crate::cluster::{DelayLine, Host, Relay};

/// How often a line is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// A handshake takes less in each direction, so a connection that has carried more carries data.
const HANDSHAKE: u64 = 16 << 10;

/// The way to both hosts.
pub enum Road {
    /// Connections of ssh only, which all stop at an exact byte and can be cut.
    Relay(Relay),
    /// A line to each host, which falls silent. The job runs at the near end, so it can open data streams.
    Lines { near: Host, lines: Vec<DelayLine> },
}

impl Road {
    /// Begins to count, and stops after so many bytes; those to and from one host, if there are lines.
    pub fn arm(&self, host: usize, stop_at: Option<u64>) {
        match (self, stop_at) {
            (Self::Relay(relay), _) => relay.arm(stop_at),
            (Self::Lines { .. }, None) => self.release(),
            (Self::Lines { lines, .. }, Some(bytes)) => lines[host].silence_after(bytes),
        }
    }

    /// How many bytes have passed: since [`Self::arm`], or on each line since it began.
    pub fn passed(&self) -> [u64; NAMES.len()] {
        match self {
            Self::Relay(relay) => [relay.passed(); NAMES.len()],
            Self::Lines { lines, .. } => {
                let of = |line: &DelayLine| line.counts().iter().map(|counts| counts.bytes).sum();
                [of(&lines[0]), of(&lines[1])]
            }
        }
    }

    /// Waits until it is stopped; false if that takes longer.
    pub fn wait_stopped(&self, patience: Duration) -> bool {
        let Self::Lines { lines, .. } = self else {
            let Self::Relay(relay) = self else { return false };
            return relay.wait_stopped(patience);
        };
        let deadline = Instant::now() + patience;
        loop {
            if lines.iter().any(DelayLine::is_silent) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            // A poll: packets pass in other threads.
            std::thread::sleep(LOOK.min(patience));
        }
    }

    /// Has everything flow from now on.
    pub fn release(&self) {
        match self {
            Self::Relay(relay) => relay.release(),
            Self::Lines { lines, .. } => lines.iter().for_each(|line| line.set_silent(false)),
        }
    }

    /// Has the lines of these hosts drop everything.
    pub fn silence(&self, hosts: &[usize]) {
        if let Self::Lines { lines, .. } = self {
            for host in hosts {
                lines[*host].set_silent(true);
            }
        }
    }

    /// Ends the connections of ssh to these hosts: the relay cuts them, or the ssh here is killed. False if there were none.
    pub fn cut(&self, hosts: &[usize]) -> Result<bool> {
        let Self::Lines { near, .. } = self else {
            if let Self::Relay(relay) = self {
                for host in hosts {
                    relay.cut(Some(*host));
                }
            }
            return Ok(true);
        };
        let is_wanted = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            let is_ssh = words.next() == Some(b"ssh");
            is_ssh && words.any(|word| hosts.iter().any(|host| word == NAMES[*host].as_bytes()))
        };
        let clients: Vec<u32> = near.pids()?.into_iter().filter(is_wanted).collect();
        for pid in &clients {
            near.kill(*pid);
        }
        Ok(!clients.is_empty())
    }

    /// Whether data streams to all of these hosts carry data.
    pub fn has_streams(&self, hosts: &[usize]) -> Result<bool> {
        let Self::Lines { lines, .. } = self else { return Ok(false) };
        for host in hosts {
            if lines[*host].carried_beside_ssh()? < 2 * HANDSHAKE {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
