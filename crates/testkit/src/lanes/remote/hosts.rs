//! Two hosts that are reached by a real ssh or by a login without one, both through a relay that counts and stops; or by the
//! real ssh over lines, with data streams beside it.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::road::Road;
use crate::cluster::{Cluster, DelayLine, LineOptions, Relay, Sshd};

/// A login without ssh, which takes a tenth of the time.
const LOGIN: &str = include_str!("../../../python/login.py");
/// The hosts; a number of a host is its place here, and that of its line at the relay.
pub const NAMES: [&str; 2] = ["far", "other"];
/// The host on which the job is started, if there are lines.
const NEAR: &str = "near";
/// The round trip of lines: packets are on their way at each moment, and a job does not take much longer.
const ROUND_TRIP: Duration = Duration::from_millis(4);
const FORCE: &str = "ForceCommand cd \"$HOME\"; exec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"\n";
/// Longer than an agent takes that does not hear from its peer any more.
const ENDING: Duration = Duration::from_secs(90);

/// How a job reaches its hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The real ssh and sshd.
    Ssh,
    /// A shell at the other end of a socket.
    Plain,
    /// The real ssh and sshd, with data streams beside them.
    Streams,
}

/// The hosts, and what stands between them and the job.
pub struct Hosts {
    // Dropped in this order: servers and lines before the cluster.
    servers: Vec<Sshd>,
    pub road: Road,
    cluster: Cluster,
    client_config: PathBuf,
    login: PathBuf,
    login_config: PathBuf,
}

impl Hosts {
    /// Hosts behind a relay.
    pub fn relayed(program: &Path) -> Result<Self> {
        let cluster = Cluster::new(&NAMES)?;
        let relay = Relay::default();
        let (mut servers, mut client, mut plain) = (Vec::new(), String::new(), json!({}));
        for (line, name) in NAMES.into_iter().enumerate() {
            let host = cluster.host(name);
            servers.push(Sshd::start_with(host, FORCE)?);
            let port = relay.to((host.address(), 22).into(), line)?;
            writeln!(client, "Host {name}\n  HostName 127.0.0.1\n  Port {port}")?;
            writeln!(client, "  HostKeyAlias {name}")?;
            let words: Vec<_> = host.words().into_iter().map(OsString::into_string).collect();
            let words = words.into_iter().collect::<Result<Vec<_>, _>>();
            let words = words.ok().context("names of namespaces are text")?;
            let home = home(&servers[0], name);
            plain[name] = json!({
                "port": relay.meeting(line)?, "home": home, "words": words,
            });
        }
        let hosts = Self::new(cluster, servers, Road::Relay(relay), program, client)?;
        std::fs::write(&hosts.login, LOGIN)?;
        std::fs::write(&hosts.login_config, plain.to_string())?;
        Ok(hosts)
    }

    /// Hosts at the far ends of lines.
    pub fn over_lines(program: &Path) -> Result<Self> {
        let cluster = Cluster::new(&[NEAR, NAMES[0], NAMES[1]])?;
        let near = cluster.host(NEAR).clone();
        let (mut servers, mut lines, mut client) = (Vec::new(), Vec::new(), String::new());
        for name in NAMES {
            let host = cluster.host(name);
            let line = DelayLine::between(&near, host, &LineOptions::round_trip(ROUND_TRIP))?;
            let address = line.far_address();
            lines.push(line);
            let config = format!("ListenAddress {address}:22\n{FORCE}");
            servers.push(Sshd::start_with(host, &config)?);
            writeln!(client, "Host {name}\n  HostName {address}\n  HostKeyAlias {name}")?;
        }
        Self::new(cluster, servers, Road::Lines { near, lines }, program, client)
    }

    fn new(
        cluster: Cluster,
        servers: Vec<Sshd>,
        road: Road,
        program: &Path,
        mut client: String,
    ) -> Result<Self> {
        let usual = servers[0].client_config_path();
        // Whatever comes first counts; a condition holds until the next one.
        writeln!(client, "Match all\nInclude {}", usual.display())?;
        let at = |name: &str| cluster.directory().join(name);
        let hosts = Self {
            client_config: at("on_the_way"),
            login: at("login.py"),
            login_config: at("hosts.json"),
            servers,
            road,
            cluster,
        };
        std::fs::write(&hosts.client_config, client)?;
        for name in NAMES {
            let place = hosts.home(name).join(".local/bin");
            std::fs::create_dir_all(&place)?;
            std::os::unix::fs::symlink(std::fs::canonicalize(program)?, place.join("dmover"))?;
        }
        Ok(hosts)
    }

    /// What goes in front of the job's program.
    pub fn words(&self) -> Vec<OsString> {
        match &self.road {
            Road::Relay(_) => Vec::new(),
            Road::Lines { near, .. } => near.words(),
        }
    }

    fn home(&self, name: &str) -> PathBuf {
        home(&self.servers[0], name)
    }

    /// A state directory for jobs that a host runs.
    pub fn state(&self, host: usize) -> PathBuf {
        self.home(NAMES[host]).join("state")
    }

    /// The value of `--ssh-command`.
    pub fn ssh_command(&self, route: Route) -> String {
        match route {
            Route::Ssh | Route::Streams => format!("ssh -F {}", self.client_config.display()),
            Route::Plain => {
                let (login, hosts) = (self.login.display(), self.login_config.display());
                format!("python3 -I -S {login} {hosts}")
            }
        }
    }

    /// The agents that run on a host.
    pub fn agents(&self, host: usize) -> Result<Vec<u32>> {
        let pids = self.cluster.host(NAMES[host]).pids()?;
        let is_agent = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.ends_with(b"\0agent\0--stdio\0")
        };
        Ok(pids.into_iter().filter(is_agent).collect())
    }

    /// Kills the agents of a host; answers whether there were any.
    pub fn kill_agents(&self, host: usize) -> Result<bool> {
        let agents = self.agents(host)?;
        for pid in &agents {
            self.cluster.host(NAMES[host]).kill(*pid);
        }
        Ok(!agents.is_empty())
    }

    /// Waits until no agent runs any more.
    pub fn wait_quiet(&self) -> Result<()> {
        let deadline = Instant::now() + ENDING;
        loop {
            let mut running = self.agents(0)?;
            running.extend(self.agents(1)?);
            if running.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "agents {running:?} do not end");
            // A poll: they are children of others.
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Forgets what jobs have left in the state directories.
    pub fn forget(&self) -> Result<()> {
        for host in 0..NAMES.len() {
            let state = self.state(host);
            if state.exists() {
                std::fs::remove_dir_all(state)?;
            }
        }
        Ok(())
    }
}

fn home(server: &Sshd, name: &str) -> PathBuf {
    server.client_config_path().with_file_name(name)
}
