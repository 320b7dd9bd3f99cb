//! Real ssh servers, and a configuration for clients that knows them.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::Host;
use super::daemon::{Daemon, STARTING};
use super::tool::{run, tool};

/// Where sshd goes without privilege; the path is compiled in, and an init script would make it.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";

/// An sshd on port 22 of a host's first address; dropping it kills it. Sessions end with the host.
#[derive(Debug)]
pub struct Sshd {
    daemon: Option<Daemon>,
    host: Host,
    directory: PathBuf,
}

impl Sshd {
    /// Starts a server that lets root in with the cluster's one key.
    pub fn start(host: &Host) -> Result<Self> {
        Self::start_with(host, "")
    }

    /// As [`Self::start`]; lines in front of the server's configuration win over the usual ones.
    pub fn start_with(host: &Host, config: &str) -> Result<Self> {
        let shared = host.directory().join("ssh");
        let mut private = std::fs::DirBuilder::new();
        private.mode(0o700).recursive(true);
        private.create(&shared).with_context(|| format!("create {shared:?}"))?;
        std::fs::DirBuilder::new().mode(0o755).recursive(true).create(PRIVILEGE_SEPARATION)?;
        let directory = shared.join(host.name());
        private.create(&directory)?;
        prepare_client(&shared)?;
        let known = directory.join("host_key");
        if !known.exists() {
            make_key(&known)?;
            introduce(&shared, host, &known)?;
        }
        let text = format!(
            "{config}\n\
             ListenAddress {address}:22\nHostKey {key}\nAuthorizedKeysFile {user}.pub\n\
             PidFile none\nUsePAM no\nUseDNS no\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nStrictModes no\n\
             PrintMotd no\nMaxStartups 200\nMaxSessions 200\nSubsystem sftp internal-sftp\n\
             SetEnv HOME={home}\n",
            address = host.address(),
            key = known.display(),
            user = user_key(&shared).display(),
            // A shell below sshd reads ~/.bashrc, and what this machine's user wrote there may wait
            // for a lock that a killed session has left.
            home = directory.display(),
        );
        std::fs::write(directory.join("config"), text)?;
        let mut server = Self { daemon: None, host: host.clone(), directory };
        server.restart()?;
        Ok(server)
    }

    /// Kills the server, and starts it with the same keys.
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        let mut command = self.host.command("sshd");
        command.args(["-D", "-e", "-f"]).arg(self.directory.join("config"));
        let daemon = Daemon::start("sshd", &self.directory.join("log"), &mut command)?;
        let address = SocketAddr::new(self.host.address().into(), 22);
        let patience = Duration::from_secs(1);
        self.daemon.insert(daemon).wait_until("listening", STARTING, || {
            Ok(TcpStream::connect_timeout(&address, patience).is_ok())
        })
    }

    /// Kills the listening server; sessions go on.
    pub fn kill(&mut self) {
        self.daemon = None;
    }

    /// The configuration for `ssh -F`, the same for all servers of a cluster. It knows hosts by name
    /// and by address, checks their keys, and never asks.
    pub fn client_config_path(&self) -> PathBuf {
        client_config(&self.host.directory().join("ssh"))
    }

    /// The file with the keys of the cluster's hosts, for tests in which one is not as it was.
    pub fn known_hosts_path(&self) -> PathBuf {
        known_hosts(&self.host.directory().join("ssh"))
    }
}

fn user_key(shared: &Path) -> PathBuf {
    shared.join("user_key")
}

fn client_config(shared: &Path) -> PathBuf {
    shared.join("config")
}

fn known_hosts(shared: &Path) -> PathBuf {
    shared.join("known_hosts")
}

fn make_key(file: &Path) -> Result<()> {
    run(tool(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "testkit", "-f"]).arg(file))?;
    Ok(())
}

/// Makes the user's key and the beginning of the client's configuration, once in a cluster.
fn prepare_client(shared: &Path) -> Result<()> {
    let config = client_config(shared);
    if config.exists() {
        return Ok(());
    }
    let key = user_key(shared);
    make_key(&key)?;
    let mut text = String::new();
    // The first value counts, so these hold for all hosts.
    for (name, value) in [
        ("IdentityFile", key.display().to_string()),
        ("UserKnownHostsFile", known_hosts(shared).display().to_string()),
        ("GlobalKnownHostsFile", "/dev/null".to_owned()),
        ("IdentitiesOnly", "yes".to_owned()),
        ("IdentityAgent", "none".to_owned()),
        ("StrictHostKeyChecking", "yes".to_owned()),
        ("UpdateHostKeys", "no".to_owned()),
        ("BatchMode", "yes".to_owned()),
        ("User", "root".to_owned()),
        ("ConnectTimeout", "10".to_owned()),
    ] {
        writeln!(text, "{name} {value}")?;
    }
    Ok(std::fs::write(config, text)?)
}

/// Makes a host known to clients, as an administrator would.
fn introduce(shared: &Path, host: &Host, key: &Path) -> Result<()> {
    let (name, address) = (host.name(), host.address());
    let public = std::fs::read_to_string(key.with_extension("pub"))?;
    append(&known_hosts(shared), &format!("{name},{address} {public}"))?;
    append(&client_config(shared), &format!("Host {name}\n  HostName {address}\n"))
}

fn append(file: &Path, text: &str) -> Result<()> {
    let mut file = std::fs::File::options().create(true).append(true).open(file)?;
    Ok(file.write_all(text.as_bytes())?)
}
