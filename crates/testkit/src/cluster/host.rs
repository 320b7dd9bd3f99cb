//! One host: a network namespace and a host name.

use std::ffi::OsString;
use std::fmt;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use super::network::{self, Join, Networks, ROUTER};
use super::tool::{self, run};
use super::{Shared, check_name};

/// Takes a host name for itself, then becomes the program that is asked for.
const BECOME: &str = r#"hostname "$0" && exec "$@""#;

/// A host of a cluster; clones are handles to the same host, and keep the cluster.
#[derive(Clone)]
pub struct Host {
    name: String,
    namespace: String,
    links: Vec<Link>,
    networks: Arc<Networks>,
    pub(super) shared: Arc<Shared>,
}

#[derive(Clone, Debug)]
struct Link {
    network: usize,
    address: Ipv4Addr,
    port: String,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, namespace, links, .. } = self;
        let mut shown = f.debug_struct("Host");
        shown.field("name", name).field("namespace", namespace).field("links", links);
        shown.finish_non_exhaustive()
    }
}

impl Host {
    pub(super) fn create(
        shared: &Arc<Shared>,
        name: &str,
        index: usize,
        networks: Arc<Networks>,
        joined: &[usize],
    ) -> Result<Self> {
        check_name(name)?;
        let number = u8::try_from(index + 1).ok().filter(|number| *number < ROUTER);
        let number = number.context("too many hosts for one cluster")?;
        let namespace = format!("{}-{name}", shared.id());
        Self::joined(shared, (name, &namespace), number, networks, joined)
    }

    /// The router between all networks.
    pub(super) fn create_router(shared: &Arc<Shared>, networks: Arc<Networks>) -> Result<Self> {
        let namespace = format!("{}.router", shared.id());
        let all: Vec<_> = (0..networks.all.len()).collect();
        let router = Self::joined(shared, ("router", &namespace), ROUTER, networks, &all)?;
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        run(router.command("sh").args(["-c", forward]))?;
        Ok(router)
    }

    fn joined(
        shared: &Arc<Shared>,
        (name, namespace): (&str, &str),
        number: u8,
        networks: Arc<Networks>,
        joined: &[usize],
    ) -> Result<Self> {
        network::create_namespace(namespace)?;
        let mut links = Vec::new();
        for (order, &network) in joined.iter().enumerate() {
            let interface = format!("eth{order}");
            let join = Join { namespace, network, interface: &interface, number };
            let port = networks.join(&join)?;
            let address = super::network(&networks, network)?.address(number);
            links.push(Link { network, address, port });
        }
        ensure!(!links.is_empty(), "host {name:?} is on no network");
        Ok(Self {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            links,
            networks,
            shared: Arc::clone(shared),
        })
    }

    /// Sends what is for other networks to the router.
    pub(super) fn route_through(&self, router: &Self) -> Result<()> {
        for (number, network) in self.networks.all.iter().enumerate() {
            if self.links.iter().any(|link| link.network == number) {
                continue;
            }
            let first = &self.links[0];
            let way = router.links.iter().find(|link| link.network == first.network);
            let gateway = way.context("the router is not on this network")?.address;
            let route = format!("route add {} via {gateway}\n", network.subnet());
            network::ip(Some(&self.namespace), &route)?;
        }
        Ok(())
    }

    /// The name of the host; no resolver knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address on the host's first network.
    pub fn address(&self) -> Ipv4Addr {
        self.links[0].address
    }

    /// The addresses on all of the host's networks, in their order.
    pub fn addresses(&self) -> Vec<Ipv4Addr> {
        self.links.iter().map(|link| link.address).collect()
    }

    /// The name of the network namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A program on this host, looked for in the test's `PATH` and where servers are. The process that is started becomes the program, so its id and its
    /// signals are the program's.
    ///
    /// There is no mount namespace, as `ip netns exec` makes one: it would hold on to file systems that
    /// other tests unmount.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        command_in(&self.namespace, &self.name, program.as_ref())
    }

    /// What goes in front of a program and its arguments to have it run on this host, as [`Self::command`] does.
    pub fn words(&self) -> Vec<OsString> {
        words_for(&self.namespace, &self.name)
    }

    /// The processes on this host.
    pub fn pids(&self) -> Result<Vec<u32>> {
        network::pids_in(std::slice::from_ref(&self.namespace))
    }

    /// Kills one process of this host. One that has ended, or that is not on this host, is left in peace.
    pub fn kill(&self, pid: u32) {
        network::kill_if_in(pid, std::slice::from_ref(&self.namespace));
    }

    /// Kills every process on this host and waits until they are gone. Peers see closed connections;
    /// cut the link first for a host that falls silent.
    pub fn kill_all(&self) -> Result<()> {
        network::kill_all_in(std::slice::from_ref(&self.namespace))
    }

    /// Pulls the plug of all networks: packets are lost silently, addresses stay.
    pub fn cut_link(&self) -> Result<()> {
        self.links.iter().try_for_each(|link| self.networks.set_port(&link.port, false))
    }

    /// Undoes [`Self::cut_link`] and [`Self::cut_link_of`].
    pub fn mend_link(&self) -> Result<()> {
        self.links.iter().try_for_each(|link| self.networks.set_port(&link.port, true))
    }

    /// Pulls the plug of one network, counted as in [`Self::addresses`].
    pub fn cut_link_of(&self, order: usize) -> Result<()> {
        let link = self.links.get(order).context("the host has fewer networks")?;
        self.networks.set_port(&link.port, false)
    }

    /// The directory of the cluster.
    pub(super) fn directory(&self) -> &Path {
        self.shared.workplace.path()
    }
}

/// A program in a namespace, with a host name of its own.
pub(super) fn command_in(namespace: &str, name: &str, program: &std::ffi::OsStr) -> Command {
    let found = program.to_str().and_then(tool::find);
    let program = found.as_deref().map_or(program, Path::as_os_str);
    let words = words_for(namespace, name);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg(program);
    command
}

fn words_for(namespace: &str, name: &str) -> Vec<OsString> {
    let mut net = OsString::from("--net=");
    net.push(network::namespace_file(namespace));
    let mut words = vec![OsString::from("nsenter"), net];
    words.extend(["unshare", "--uts", "sh", "-c", BECOME, name].map(OsString::from));
    words
}
