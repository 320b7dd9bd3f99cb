//! A host at the other end of a [`DelayLine`], with a server for ssh and the program under test.

use std::fmt::Write;
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
    _more_servers: Vec<Sshd>,
    /// The line to it.
    pub line: DelayLine,
    /// The lines to more hosts.
    pub more_lines: Vec<DelayLine>,
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
        Self::start_several(program, std::slice::from_ref(options))
    }

    /// Starts several hosts, each behind a line of its own: `far`, `far2`, `far3` and so on.
    pub fn start_several(program: &Path, lines: &[LineOptions]) -> Result<Self> {
        let names: Vec<String> = (1..=lines.len())
            .map(|number| if number == 1 { FAR.to_owned() } else { format!("{FAR}{number}") })
            .collect();
        let all: Vec<&str> =
            std::iter::once(NEAR).chain(names.iter().map(String::as_str)).collect();
        let cluster = Cluster::new(&all)?;
        let program = std::fs::canonicalize(program).context("find the program")?;
        let (mut servers, mut far_lines, mut text) = (Vec::new(), Vec::new(), String::new());
        for (name, options) in names.iter().zip(lines) {
            let line = DelayLine::between(cluster.host(NEAR), cluster.host(name), options)?;
            let address = line.far_address();
            let server = Sshd::start_with(
                cluster.host(name),
                &format!(
                    "ListenAddress {address}:22\n\
                     ForceCommand cd \"$HOME\"; exec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"\n"
                ),
            )?;
            // The first value counts. The key is known under the name of the host.
            let _ = writeln!(text, "Host {name}\n  HostName {address}\n  HostKeyAlias {name}");
            let place = server.client_config_path().with_file_name(name).join(".local/bin");
            std::fs::create_dir_all(&place)?;
            std::os::unix::fs::symlink(&program, place.join("dmover"))?;
            servers.push(server);
            far_lines.push(line);
        }
        let (server, line) = (servers.remove(0), far_lines.remove(0));
        let config = cluster.directory().join("over_the_line");
        let usual = server.client_config_path();
        std::fs::write(&config, format!("{text}Match all\nInclude {}\n", usual.display()))?;
        let namespace = super::network::namespace_file(line.near().namespace());
        let (namespace, config) = (namespace.display(), config.display());
        let ssh_command = format!("nsenter --net={namespace} ssh -F {config}");
        let more_lines = far_lines;
        Ok(Self { server, _more_servers: servers, line, more_lines, cluster, ssh_command })
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
