//! A host at the other end of a [`DelayLine`], with a server for ssh and the program under test.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{Cluster, DelayLine, LineOptions, Piece, Sshd, needs};

/// The name of the host in paths such as `far:/data`.
const FAR: &str = "far";
/// The host at this end, in whose namespace ssh runs.
const NEAR: &str = "near";
/// Longer than an agent takes that does not hear from its peer any more.
const ENDING: Duration = Duration::from_secs(100);

/// A host that is reached over a line as `far:PATH`, by [`Self::ssh_command`]. Files are the same as here.
#[derive(Debug)]
pub struct FarHost {
    // Dropped in this order: processes there have connections over the line.
    server: Sshd,
    /// The line to it.
    pub line: DelayLine,
    cluster: Cluster,
    ssh_command: String,
}

impl FarHost {
    /// Why there can be none here, so that a test is skipped with that reason.
    pub fn missing() -> Option<String> {
        needs(&[Piece::Network, Piece::Sshd, Piece::Tun]).err()
    }

    /// Starts the host, with `program` where an installation would put it.
    pub fn start(program: &Path, options: &LineOptions) -> Result<Self> {
        let cluster = Cluster::new(&[NEAR, FAR])?;
        let line = DelayLine::between(cluster.host(NEAR), cluster.host(FAR), options)?;
        let address = line.far_address();
        let server = Sshd::start_with(
            cluster.host(FAR),
            &format!(
                "ListenAddress {address}:22\n\
                 ForceCommand cd \"$HOME\"; exec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"\n"
            ),
        )?;
        let usual = server.client_config_path();
        let config = cluster.directory().join("over_the_line");
        // The first value counts. The key is known under the name of the host.
        let text = format!(
            "Host {FAR}\n  HostName {address}\n  HostKeyAlias {FAR}\n\
             Match all\nInclude {}\n",
            usual.display()
        );
        std::fs::write(&config, text)?;
        let namespace = super::network::namespace_file(line.near().namespace());
        let (namespace, config) = (namespace.display(), config.display());
        let ssh_command = format!("nsenter --net={namespace} ssh -F {config}");
        let host = Self { server, line, cluster, ssh_command };
        let place = host.home().join(".local/bin");
        std::fs::create_dir_all(&place)?;
        let program = std::fs::canonicalize(program).context("find the program")?;
        std::os::unix::fs::symlink(program, place.join("dmover"))?;
        Ok(host)
    }

    /// The value of `--ssh-command`, and of rsync's `-e`: ssh over the line.
    pub fn ssh_command(&self) -> &str {
        &self.ssh_command
    }

    /// The host at the far end.
    pub fn host(&self) -> &super::Host {
        self.cluster.host(FAR)
    }

    /// The home directory of the user there.
    pub fn home(&self) -> PathBuf {
        self.server.client_config_path().with_file_name(FAR)
    }

    /// A state directory for jobs that the host runs.
    pub fn state(&self) -> PathBuf {
        self.home().join("state")
    }

    /// The agents that run there.
    pub fn agents(&self) -> Result<Vec<u32>> {
        let pids = self.cluster.host(FAR).pids()?;
        let is_agent = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.ends_with(b"\0agent\0--stdio\0")
        };
        Ok(pids.into_iter().filter(is_agent).collect())
    }

    /// Waits until no agent runs there any more.
    pub fn wait_quiet(&self) -> Result<()> {
        let deadline = Instant::now() + ENDING;
        loop {
            let running = self.agents()?;
            if running.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "agents {running:?} do not end");
            // A poll: they are children of others.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
