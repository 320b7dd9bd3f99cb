//! The kernel's side of a cluster: namespaces, bridges, addresses, and the processes inside.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::tool::{feed, run, tool};

/// Where `ip netns` keeps the names of namespaces.
const NAMESPACES: &str = "/run/netns";
/// How long killed processes may take to go.
const DYING: Duration = Duration::from_secs(20);
/// The host number of the test's own process on every network.
const OUTSIDE: u8 = 254;
/// The host number of the router on every network.
pub(super) const ROUTER: u8 = 253;

/// One /24 with its bridge.
#[derive(Debug)]
pub(super) struct Network {
    prefix: [u8; 3],
    /// Held as long as the prefix is in use: the name of an abstract socket is taken by one process
    /// only, and free again at the moment when that process dies.
    _claim: UnixListener,
}

impl Network {
    /// The address of the host with this number.
    pub(super) fn address(&self, host: u8) -> Ipv4Addr {
        let [a, b, c] = self.prefix;
        Ipv4Addr::new(a, b, c, host)
    }

    /// The address of the test's own process.
    pub(super) fn outside(&self) -> Ipv4Addr {
        self.address(OUTSIDE)
    }

    /// The network, for routes to it.
    pub(super) fn subnet(&self) -> String {
        format!("{}/24", self.address(0))
    }
}

/// The bridges of a cluster. They are in a namespace of their own, since the root namespace may have
/// its bridged packets go through a firewall.
#[derive(Debug)]
pub(super) struct Networks {
    pub(super) all: Vec<Network>,
    id: String,
    switch: String,
}

impl Networks {
    /// Makes so many bridges, each with an end in the root namespace.
    pub(super) fn create(id: &str, number: usize) -> Result<Self> {
        let switch = format!("{id}.switch");
        create_namespace(&switch)?;
        let mut made = Self { all: Vec::new(), id: id.to_owned(), switch };
        for index in 0..number {
            // Without spanning tree a port forwards from its first moment.
            made.in_switch(&format!(
                "link add name br{index} type bridge stp_state 0 mcast_snooping 0\n\
                 link set br{index} up\n"
            ))?;
            let network = claim()?;
            let (link, address) = (made.outside_link(index), network.outside());
            made.all.push(network);
            let peer = format!("peer name r{index} netns {}", made.switch);
            ip(None, &format!("link add name {link} type veth {peer}\n"))?;
            ip(None, &format!("addr add {address}/24 dev {link}\nlink set {link} up\n"))?;
            made.plug(index, &format!("r{index}"))?;
        }
        Ok(made)
    }

    fn outside_link(&self, index: usize) -> String {
        format!("{}r{index}", self.id)
    }

    fn in_switch(&self, lines: &str) -> Result<()> {
        ip(Some(&self.switch), lines)
    }

    /// The namespace of the bridges, for helpers that belong to no host.
    pub(super) fn switch(&self) -> &str {
        &self.switch
    }

    fn plug(&self, network: usize, port: &str) -> Result<()> {
        self.in_switch(&format!("link set {port} master br{network}\nlink set {port} up\n"))
    }

    /// Joins a namespace to a network through a veth; answers the name of the switch's end.
    pub(super) fn join(&self, join: &Join<'_>) -> Result<String> {
        let Join { namespace, network, interface, number } = *join;
        let port = format!("p{network}x{number}");
        let switch = &self.switch;
        let ends = format!("netns {namespace} type veth peer name {port} netns {switch}");
        ip(None, &format!("link add name {interface} {ends}\n"))?;
        let address = super::network(self, network)?.address(number);
        let lines = format!(
            "link set lo up\naddr add {address}/24 dev {interface}\nlink set {interface} up\n"
        );
        ip(Some(namespace), &lines)?;
        self.plug(network, &port)?;
        Ok(port)
    }

    /// Brings the switch's end of a link down or up. The host keeps its address and its routes, as with
    /// a cable that was pulled: what it sends is lost, and nobody tells it.
    pub(super) fn set_port(&self, port: &str, up: bool) -> Result<()> {
        self.in_switch(&format!("link set {port} {}\n", if up { "up" } else { "down" }))
    }
}

/// What [`Networks::join`] joins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Join<'a> {
    pub(super) namespace: &'a str,
    pub(super) network: usize,
    pub(super) interface: &'a str,
    pub(super) number: u8,
}

/// Finds a /24 that no other cluster on this machine has.
fn claim() -> Result<Network> {
    let taken = run(&mut tool(&["ip", "-o", "-4", "addr", "show"]))?;
    for third in 0..=255 {
        let prefix = [10, 213, third];
        // A killed run may have left an interface with its address.
        if taken.contains(&format!(" 10.213.{third}.")) {
            continue;
        }
        let name = SocketAddr::from_abstract_name(format!("dmover-testkit-10.213.{third}"))?;
        if let Ok(claim) = UnixListener::bind_addr(&name) {
            return Ok(Network { prefix, _claim: claim });
        }
    }
    bail!("all of 10.213.0.0/16 is in use by other clusters")
}

/// Makes a namespace with a working loopback device.
pub(super) fn create_namespace(name: &str) -> Result<()> {
    run(&mut tool(&["ip", "netns", "add", name]))?;
    ip(Some(name), "link set lo up\n")
}

/// Runs lines of `ip`, in a namespace or in the root one.
pub(super) fn ip(namespace: Option<&str>, lines: &str) -> Result<()> {
    let mut words = vec!["ip"];
    words.extend(namespace.iter().flat_map(|name| ["-n", name]));
    words.extend(["-batch", "-"]);
    feed(&mut tool(&words), lines)?;
    Ok(())
}

/// Tries what a cluster needs, in a namespace that vanishes with the attempt.
pub(super) fn probe() -> Result<()> {
    let attempt = "ip link add name v0 type veth peer name v1 && ip link add name b0 type bridge";
    run(&mut tool(&["unshare", "--net", "--uts", "sh", "-c", attempt]))?;
    Ok(())
}

/// The file that stands for a namespace.
pub(super) fn namespace_file(name: &str) -> PathBuf {
    Path::new(NAMESPACES).join(name)
}

/// Whether anything in the kernel bears the id already; so it may, after a killed run.
pub(super) fn is_taken(id: &str) -> bool {
    !namespaces_of(id).is_empty() || !links_of(id).is_empty()
}

fn names_in(directory: &str) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Hosts follow the id with `-`, helpers with `.`, which no host's name has.
fn namespaces_of(id: &str) -> Vec<String> {
    let own = |name: &String| {
        name.strip_prefix(id).is_some_and(|rest| rest.starts_with('-') || rest.starts_with('.'))
    };
    names_in(NAMESPACES).into_iter().filter(own).collect()
}

fn links_of(id: &str) -> Vec<String> {
    let own = |name: &String| name.strip_prefix(id).is_some_and(|rest| rest.starts_with('r'));
    names_in("/sys/class/net").into_iter().filter(own).collect()
}

/// The device and inode of a namespace; none if there is no such process or namespace any more.
fn identity(file: &Path) -> Option<(u64, u64)> {
    file.metadata().ok().map(|data| (data.dev(), data.ino()))
}

fn identity_of(process: u32) -> Option<(u64, u64)> {
    identity(&PathBuf::from(format!("/proc/{process}/ns/net")))
}

/// The processes that are in one of these namespaces. A zombie is in none.
pub(super) fn pids_in(namespaces: &[String]) -> Result<Vec<u32>> {
    let wanted: HashSet<_> =
        namespaces.iter().filter_map(|name| identity(&namespace_file(name))).collect();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").context("read /proc")? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        let Ok(process) = name.parse() else { continue };
        if identity_of(process).is_some_and(|identity| wanted.contains(&identity)) {
            found.push(process);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The processes in any namespace of the cluster with this id.
pub(super) fn pids_of(id: &str) -> Result<Vec<u32>> {
    pids_in(&namespaces_of(id))
}

/// Kills whatever is in these namespaces, and what it forks meanwhile, and waits until it is gone.
pub(super) fn kill_all_in(namespaces: &[String]) -> Result<()> {
    let deadline = Instant::now() + DYING;
    loop {
        let left = pids_in(namespaces)?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("processes {left:?} in {namespaces:?} do not die");
        }
        for process in left {
            kill_if_in(process, namespaces);
        }
        // A poll: the kernel tells a parent only when a process is gone, and we are the parent of few.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The id of a process may go to a stranger at any time, but not while a descriptor holds it.
pub(super) fn kill_if_in(process: u32, namespaces: &[String]) {
    let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) else { return };
    let Ok(held) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return };
    let Some(identity_now) = identity_of(process) else { return };
    if namespaces.iter().any(|name| identity(&namespace_file(name)) == Some(identity_now)) {
        // An error means that it has ended by itself.
        let _ = rustix::process::pidfd_send_signal(&held, Signal::KILL);
    }
}

/// Removes everything with this id from the kernel, and all its processes. Nothing is no error.
pub(super) fn remove(id: &str) -> Result<()> {
    let namespaces = namespaces_of(id);
    kill_all_in(&namespaces)?;
    // The kernel takes its time to end a namespace, and with it the other ends of these.
    for link in links_of(id) {
        run(&mut tool(&["ip", "link", "del", &link]))?;
    }
    for name in namespaces {
        run(&mut tool(&["ip", "netns", "del", &name]))?;
    }
    Ok(())
}
