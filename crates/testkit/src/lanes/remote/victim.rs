//! What happens to a job at a point.

use std::time::{Duration, Instant};

use anyhow::Result;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rustix::process::Signal;

use super::LOOK;
use super::hosts::Hosts;
use crate::lanes::LaneReport;
use crate::lanes::run::Running;

/// Outages: one that TCP bridges, and one after which streams are opened again.
const SHORT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(15);

/// What a point does.
#[derive(Clone, Copy, Debug)]
pub enum Victim {
    Near,
    Agent(usize),
    /// The connections of ssh to one host, or to all: cut, or ssh killed if there are data streams.
    Ssh(Option<usize>),
    /// The line to one host, or to all, is silent for a while.
    Outage(Option<usize>, Duration),
}

/// What has happened to a job.
#[derive(Clone, Copy, Debug)]
pub struct Blow {
    pub victim: Victim,
    /// The victim was there, and data streams to all hosts carried data.
    pub is_live: bool,
}

impl Blow {
    /// Whether the job has to complete. Without streams it needs ssh, whose login does not wait long for the host.
    pub fn must_be_survived(self) -> bool {
        match self.victim {
            Victim::Near | Victim::Agent(_) => false,
            Victim::Ssh(_) => self.is_live,
            Victim::Outage(_, time) => self.is_live || time == SHORT,
        }
    }
}

impl Victim {
    pub fn draw(rng: &mut ChaCha8Rng, hosts: &[usize], has_streams: bool) -> Self {
        let host = hosts[rng.random_range(0..hosts.len())];
        if !has_streams {
            return match rng.random_range(0..6) {
                0..2 => Self::Near,
                2..4 => Self::Agent(host),
                4 => Self::Ssh(Some(host)),
                _ => Self::Ssh(None),
            };
        }
        let one_or_all = if rng.random_bool(0.5) { Some(host) } else { None };
        match rng.random_range(0..100) {
            0..28 => Self::Near,
            28..56 => Self::Agent(host),
            56..82 => Self::Ssh(one_or_all),
            82..94 => Self::Outage(one_or_all, SHORT),
            _ => Self::Outage(one_or_all, LONG),
        }
    }

    /// The name of its count.
    pub fn count(self) -> &'static str {
        match self {
            Self::Near => "kills_here",
            Self::Agent(_) => "kills_of_agents",
            Self::Ssh(_) => "cuts_of_ssh",
            Self::Outage(_, SHORT) => "outages_of_1_s",
            Self::Outage(..) => "outages_of_15_s",
        }
    }

    /// Does it to a job that runs; false if the victim was not there.
    pub fn strike(
        self,
        running: &mut Running,
        hosts: &Hosts,
        report: &mut LaneReport,
    ) -> Result<bool> {
        match self {
            Self::Near => running.signal(Signal::KILL),
            Self::Agent(host) => {
                if !hosts.kill_agents(host)? {
                    // It is not there yet, or it has ended.
                    report.add("kills_without_agent", 1);
                    hosts.road.cut(&[host])?;
                    return Ok(false);
                }
            }
            Self::Ssh(host) => return hosts.road.cut(&among(host)),
            Self::Outage(host, time) => {
                hosts.road.silence(&among(host));
                let begin = Instant::now();
                while begin.elapsed() < time && !running.has_ended()? {
                    // A poll: the job may end during the outage.
                    std::thread::sleep(LOOK);
                }
                hosts.road.release();
            }
        }
        Ok(true)
    }
}

/// One host, or all.
fn among(host: Option<usize>) -> Vec<usize> {
    host.map_or_else(|| vec![0, 1], |host| vec![host])
}
