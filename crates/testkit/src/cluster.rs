//! A cluster on one machine: hosts that are network namespaces, joined by bridges, with real servers
//! on them.
//!
//! Hosts have an address, a host name and processes of their own; files are shared by all of them, as
//! on a parallel file system. Whatever a cluster has made goes when the last handle to it goes, and what
//! a killed test run left is removed by the next cluster.
#![allow(clippy::unnecessary_debug_formatting, reason = "names hold control characters")]

mod cutter;
mod daemon;
mod delay_line;
mod far_host;
mod host;
mod http;
mod nats;
mod network;
mod prometheus;
mod relay;
mod slurm;
mod sshd;
mod tool;
mod workplace;

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail, ensure};

pub use self::cutter::Cutter;
pub use self::delay_line::{DelayLine, LineCounts, LineOptions};
pub use self::far_host::FarHost;
pub use self::host::Host;
pub use self::nats::{NatsClient, NatsServer, nats_request};
pub use self::prometheus::{Prometheus, Scrape};
pub use self::relay::Relay;
pub use self::slurm::Slurm;
pub use self::sshd::Sshd;

use self::daemon::Daemon;
use self::network::{Network, Networks};
use self::workplace::Workplace;
use crate::faultfs::lock;

/// What a test needs of the machine, for [`needs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Namespaces, veths and bridges: what every [`Cluster`] is made of.
    Network,
    /// [`NatsServer`].
    Nats,
    /// [`Sshd`], and a client.
    Sshd,
    /// [`Slurm`].
    Slurm,
    /// [`Prometheus`].
    Prometheus,
    /// [`DelayLine`].
    Tun,
}

impl Piece {
    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Network => &["ip", "nsenter", "unshare", "hostname", "timeout", "sh"],
            Self::Nats => &["nats-server"],
            Self::Sshd => &["sshd", "ssh", "ssh-keygen"],
            Self::Slurm => {
                &["slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo", "munged"]
            }
            Self::Prometheus => &["prometheus"],
            Self::Tun => &["ip", "ss", "nsenter", "unshare", "python3"],
        }
    }
}

/// Tells why these pieces cannot be had here, so that a test can be skipped with that reason.
///
/// What fails after this has said yes is a failure, never a reason to skip.
pub fn needs(pieces: &[Piece]) -> Result<(), String> {
    for piece in pieces {
        let missing = piece.programs().iter().find(|name| tool::find(name).is_none());
        if let Some(program) = missing {
            return Err(format!("no {program} here, which {piece:?} needs"));
        }
    }
    if pieces.contains(&Piece::Network) {
        if !rustix::process::geteuid().is_root() {
            return Err("a cluster of namespaces needs root".to_owned());
        }
        network::probe().map_err(|error| format!("no network namespaces here: {error:#}"))?;
    }
    if pieces.contains(&Piece::Tun) {
        delay_line::probe().map_err(|error| format!("no TUN devices here: {error:#}"))?;
    }
    Ok(())
}

/// Hosts that reach each other and that the test's own process reaches as well.
#[derive(Debug)]
pub struct Cluster {
    shared: Arc<Shared>,
    hosts: Vec<Host>,
    router: Option<Host>,
}

impl Cluster {
    /// One host a name, all on one network.
    pub fn new(names: &[&str]) -> Result<Self> {
        let mut cluster = Self::start(1)?;
        for name in names {
            cluster.add_host(name, &[0])?;
        }
        Ok(cluster)
    }

    /// One host a name, each on two networks, as with a management network beside a fast one.
    pub fn multi_homed(names: &[&str]) -> Result<Self> {
        let mut cluster = Self::start(2)?;
        for name in names {
            cluster.add_host(name, &[0, 1])?;
        }
        Ok(cluster)
    }

    /// Hosts on two networks with a router between them; the test's process is on both.
    pub fn routed(near: &[&str], far: &[&str]) -> Result<Self> {
        let mut cluster = Self::start(2)?;
        for (network, names) in [near, far].into_iter().enumerate() {
            for name in names {
                cluster.add_host(name, &[network])?;
            }
        }
        let networks = cluster.shared.networks()?;
        let router = Host::create_router(&cluster.shared, networks)?;
        for host in &cluster.hosts {
            host.route_through(&router)?;
        }
        cluster.router = Some(router);
        Ok(cluster)
    }

    fn start(networks: usize) -> Result<Self> {
        let workplace = Workplace::create()?;
        // From here on Drop cleans up.
        let shared =
            Arc::new(Shared { networks: Mutex::default(), munge: Mutex::default(), workplace });
        let made = Networks::create(shared.id(), networks)?;
        *lock(&shared.networks) = Some(Arc::new(made));
        Ok(Self { shared, hosts: Vec::new(), router: None })
    }

    fn add_host(&mut self, name: &str, networks: &[usize]) -> Result<()> {
        ensure!(self.get(name).is_none(), "two hosts have the name {name:?}");
        let made = self.shared.networks()?;
        let host = Host::create(&self.shared, name, self.hosts.len(), made, networks)?;
        self.hosts.push(host);
        Ok(())
    }

    /// The host of this name.
    ///
    /// # Panics
    /// The cluster was made without it.
    #[track_caller]
    pub fn host(&self, name: &str) -> &Host {
        self.get(name).unwrap_or_else(|| panic!("no host {name:?} in this cluster"))
    }

    fn get(&self, name: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.name() == name)
    }

    /// All hosts in the order of their names' arguments, without the router.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The router of [`Self::routed`]; cutting its link parts the networks.
    pub fn router(&self) -> Option<&Host> {
        self.router.as_ref()
    }

    /// The address under which hosts reach the test's own process, on the first network.
    pub fn outside_address(&self) -> Ipv4Addr {
        let networks = lock(&self.shared.networks);
        networks.as_ref().map_or(Ipv4Addr::LOCALHOST, |made| made.all[0].outside())
    }

    /// The beginning of the names of everything that the cluster has in the kernel.
    pub fn id(&self) -> &str {
        self.shared.id()
    }

    /// A directory for whatever the test wants; it goes with the cluster.
    pub fn directory(&self) -> &Path {
        self.shared.workplace.path()
    }

    /// Every process on any host of the cluster.
    pub fn pids(&self) -> Result<Vec<u32>> {
        network::pids_of(self.shared.id())
    }
}

/// What all handles of a cluster hold together; the last of them removes it.
#[derive(Debug)]
struct Shared {
    networks: Mutex<Option<Arc<Networks>>>,
    /// Proves to Slurm who is who; a socket in the file system, so one does for all hosts.
    munge: Mutex<Option<Daemon>>,
    workplace: Workplace,
}

impl Shared {
    fn id(&self) -> &str {
        self.workplace.id()
    }

    fn networks(&self) -> Result<Arc<Networks>> {
        lock(&self.networks).clone().context("the cluster has no networks yet")
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        drop(lock(&self.munge).take());
        if let Err(error) = network::remove(self.id()) {
            workplace::complain(&format!("cluster {} is not gone: {error:#}", self.id()));
        }
    }
}

/// Names are parts of names of namespaces and of host names.
fn check_name(name: &str) -> Result<()> {
    let fits =
        |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'-';
    if name.is_empty() || name.len() > 60 || !name.bytes().all(fits) {
        bail!("{name:?} is no name for a host: use a-z, 0-9 and -");
    }
    Ok(())
}

/// The network of this number.
fn network(networks: &Networks, number: usize) -> Result<&Network> {
    networks.all.get(number).with_context(|| format!("there is no network {number}"))
}
