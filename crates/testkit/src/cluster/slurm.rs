//! A real Slurm: a controller, nodes, and munge between them.

use std::ffi::OsStr;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::daemon::{Daemon, STARTING, tails, wait_until};
use super::host::command_in;
use super::tool::run;
use super::{Cluster, Host, Shared};
use crate::faultfs::lock;

/// The processors that each node claims to have; nobody checks, nobody is bound to one.
const CPUS: u32 = 4;
/// Where slurmd listens; each has an address of its own.
const NODE_PORT: u16 = 6818;
/// States from which a job goes nowhere.
const FINAL: [&str; 6] =
    ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY"];

/// A Slurm with partitions `main`, the default, and `urgent`, whose jobs have jobs of `main` requeued.
///
/// Everything runs as root. Dropping it kills its servers; what jobs have left goes with the cluster.
#[derive(Debug)]
pub struct Slurm {
    controller: Controller,
    nodes: Vec<Node>,
    directory: PathBuf,
}

#[derive(Debug)]
struct Controller {
    daemon: Option<Daemon>,
    host: Host,
}

#[derive(Debug)]
struct Node {
    daemon: Option<Daemon>,
    host: Host,
}

impl Slurm {
    /// Starts everything and waits until all nodes are idle. A node has the name of its host.
    pub fn start(cluster: &Cluster, controller: &Host, nodes: &[&Host]) -> Result<Self> {
        Self::start_with(cluster, controller, nodes, "")
    }

    /// As [`Self::start`], with further lines at the end of slurm.conf.
    pub fn start_with(
        cluster: &Cluster,
        controller: &Host,
        nodes: &[&Host],
        config: &str,
    ) -> Result<Self> {
        ensure!(!nodes.is_empty(), "a Slurm without nodes runs nothing");
        let directory = cluster.directory().join("slurm");
        std::fs::create_dir(&directory).with_context(|| format!("create {directory:?}"))?;
        let munge = start_munge(&cluster.shared)?;
        std::fs::create_dir(directory.join("state"))?;
        for node in nodes {
            // slurmd does not make it for itself.
            std::fs::create_dir_all(directory.join("spool").join(node.name()))?;
        }
        let text = configuration(&directory, &munge, controller, nodes) + config + "\n";
        std::fs::write(config_in(&directory), text)?;
        let node = |host: &&Host| Node { daemon: None, host: (*host).clone() };
        let mut slurm = Self {
            controller: Controller { daemon: None, host: controller.clone() },
            nodes: nodes.iter().map(node).collect(),
            directory,
        };
        slurm.launch_controller()?;
        for number in 0..slurm.nodes.len() {
            slurm.launch_node(number)?;
        }
        let names: Vec<_> = nodes.iter().map(|host| host.name()).collect();
        slurm.wait_for_nodes(&names, &["idle"])?;
        Ok(slurm)
    }

    fn launch_controller(&mut self) -> Result<()> {
        let mut command = self.command("slurmctld");
        // Out of the test's working directory, which may be on a file system that is to be unmounted.
        command.args(["-D", "-f"]).arg(self.config_path()).current_dir(&self.directory);
        let daemon = Daemon::start("slurmctld", &self.errors("slurmctld"), &mut command)?;
        self.controller.daemon = Some(daemon);
        Ok(())
    }

    fn launch_node(&mut self, number: usize) -> Result<()> {
        let host = &self.nodes[number].host;
        let mut command = self.command_on(host, "slurmd");
        command.args(["-D", "-N", host.name(), "-f"]).arg(self.config_path());
        command.current_dir(&self.directory);
        let daemon = Daemon::start("slurmd", &self.errors(host.name()), &mut command)?;
        self.nodes[number].daemon = Some(daemon);
        Ok(())
    }

    /// The slurm.conf, for `SLURM_CONF`.
    pub fn config_path(&self) -> PathBuf {
        config_in(&self.directory)
    }

    /// Where a server says what is wrong before it has read where to log.
    fn errors(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.stderr"))
    }

    /// The last lines of all logs, for messages.
    pub fn logs(&self) -> String {
        tails(&self.all_logs())
    }

    fn all_logs(&self) -> Vec<PathBuf> {
        let nodes = self.nodes.iter().map(|node| node.host.name());
        let log = |name| {
            // It has times of day, which standard error has not.
            let log = self.directory.join(format!("{name}.log"));
            if log.exists() { log } else { self.errors(name) }
        };
        std::iter::once("slurmctld").chain(nodes).map(log).collect()
    }

    /// A program on the controller's host that finds this Slurm, such as `sbatch`.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.command_on(&self.controller.host, program)
    }

    /// A program on any host of the cluster that finds this Slurm, and no other.
    pub fn command_on(&self, host: &Host, program: impl AsRef<OsStr>) -> Command {
        let mut command = host.command(program);
        for (name, _) in std::env::vars_os() {
            // The test itself may run as a job.
            let bytes = name.as_encoded_bytes();
            if [&b"SLURM_"[..], b"SBATCH_", b"SRUN_"].iter().any(|own| bytes.starts_with(own)) {
                command.env_remove(&name);
            }
        }
        command.env("SLURM_CONF", self.config_path()).env("LC_ALL", "C.UTF-8");
        command
    }

    /// Standard output of a short command on the controller's host, which has to succeed.
    pub fn ask<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Result<String> {
        run(self.command("timeout").args(["-k", "5", "30"]).args(words))
            .with_context(|| self.logs())
    }

    /// Submits a job with these arguments of sbatch; answers its number. Its output goes where `-o`
    /// says: give one, or it goes to the test's own directory.
    pub fn submit<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<u32> {
        let arguments = arguments.into_iter().map(|word| word.as_ref().to_owned());
        let words = ["sbatch", "--parsable"].into_iter().map(Into::into).chain(arguments);
        let said = self.ask(words)?;
        said.trim().parse().with_context(|| format!("sbatch said {said:?}"))
    }

    /// A field of `scontrol show job`, such as `JobState`, `NodeList` or `Restarts`.
    pub fn job_field(&self, job: u32, field: &str) -> Result<String> {
        let shown = self.ask(["scontrol", "--oneliner", "show", "job", &job.to_string()])?;
        let mut fields = shown.split_ascii_whitespace().filter_map(|word| word.split_once('='));
        let found = fields.find(|(name, _)| *name == field).map(|(_, value)| value.to_owned());
        found.with_context(|| format!("no {field} in {shown}"))
    }

    /// Waits until a job is in a state such as `RUNNING` or `COMPLETED`; a job that has ended
    /// otherwise is an error at once.
    pub fn wait_for(&self, job: u32, state: &str, limit: Duration) -> Result<()> {
        self.wait_until(&format!("job {job} to be {state}"), limit, || {
            let now = self.job_field(job, "JobState")?;
            if now != state && FINAL.contains(&now.as_str()) {
                bail!("job {job} is {now}");
            }
            Ok(now == state)
        })
    }

    /// Asks until it is so; the error has the ends of all logs.
    pub fn wait_until(
        &self,
        what: &str,
        limit: Duration,
        done: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        wait_until(what, limit, || self.logs(), done)
    }

    /// The state of a node as `sinfo` tells it, such as `idle`, `mixed` or `down*`.
    pub fn node_state(&self, name: &str) -> Result<String> {
        let shown = self.ask(["sinfo", "-h", "-p", "main", "-n", name, "-o", "%T"])?;
        Ok(shown.trim().to_owned())
    }

    fn wait_for_nodes(&self, names: &[&str], states: &[&str]) -> Result<()> {
        self.wait_until(&format!("nodes {names:?} to be {states:?}"), STARTING, || {
            self.check()?;
            // The controller does not answer from its first moment.
            Ok(names
                .iter()
                .all(|name| self.node_state(name).is_ok_and(|now| states.contains(&now.as_str()))))
        })
    }

    /// Fails if a server has ended that was not killed.
    fn check(&self) -> Result<()> {
        let nodes = self.nodes.iter().map(|node| &node.daemon);
        let all = std::iter::once(&self.controller.daemon).chain(nodes);
        all.flatten().try_for_each(Daemon::check)
    }

    fn number_of(&self, name: &str) -> Result<usize> {
        let found = self.nodes.iter().position(|node| node.host.name() == name);
        found.with_context(|| format!("no node {name:?}"))
    }

    /// Kills a node: slurmd, its steps, the jobs, and whatever else runs on its host.
    ///
    /// The controller notices after some 15 seconds, and a requeued job starts some 7 seconds later. For
    /// a test that cannot wait: `ask(["scontrol", "update", "NodeName=…", "State=DOWN", "Reason=…"])`.
    pub fn kill_node(&mut self, name: &str) -> Result<()> {
        let number = self.number_of(name)?;
        self.nodes[number].daemon = None;
        self.nodes[number].host.kill_all()
    }

    /// Starts a killed node, as a boot does, and waits until it takes jobs.
    pub fn restart_node(&mut self, name: &str) -> Result<()> {
        let number = self.number_of(name)?;
        self.launch_node(number)?;
        let address = SocketAddr::new(self.nodes[number].host.address().into(), NODE_PORT);
        self.wait_until(&format!("node {name} to listen"), STARTING, || {
            Ok(TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok())
        })?;
        // A node that does not answer has an asterisk behind its state.
        self.wait_for_nodes(&[name], &["idle", "mixed", "allocated", "completing"])
    }

    /// Kills the controller alone; jobs go on.
    pub fn kill_controller(&mut self) {
        self.controller.daemon = None;
    }

    /// Starts the controller over its saved state, and waits until it answers.
    pub fn restart_controller(&mut self) -> Result<()> {
        self.kill_controller();
        self.launch_controller()?;
        self.wait_until("slurmctld to answer", STARTING, || {
            self.check()?;
            Ok(self.ask(["scontrol", "ping"]).is_ok_and(|said| said.contains(" is UP")))
        })
    }
}

fn config_in(directory: &Path) -> PathBuf {
    directory.join("slurm.conf")
}

/// Starts munged unless the cluster has one; answers its socket.
fn start_munge(shared: &Shared) -> Result<PathBuf> {
    let directory = shared.workplace.path().join("munge");
    let socket = directory.join("socket");
    let mut running = lock(&shared.munge);
    if running.is_some() {
        return Ok(socket);
    }
    std::fs::DirBuilder::new().mode(0o700).create(&directory)?;
    let key = directory.join("key");
    let secret: [u8; 128] = rand::random();
    std::fs::write(&key, secret)?;
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    // In the switch's namespace, so that the death of no host takes it along.
    let networks = shared.networks()?;
    let mut command = command_in(networks.switch(), "switch", "munged".as_ref());
    // Forced, since others may write to the directory of all temporary directories.
    command.args(["--foreground", "--force", "--num-threads=4", "--origin=127.0.0.1"]);
    for (option, name) in [("key", "key"), ("pid", "pid"), ("log", "unused"), ("seed", "seed")] {
        command.arg(format!("--{option}-file={}", directory.join(name).display()));
    }
    command.arg(format!("--socket={}", socket.display()));
    let daemon = Daemon::start("munged", &directory.join("log"), &mut command)?;
    running.insert(daemon).wait_until("listening", STARTING, || Ok(socket.exists()))?;
    Ok(socket)
}

/// Timeouts are short, for tests of what fails. A dead node is noticed after two rounds of pings, each
/// of which tries for the message timeout, and a requeued job waits until its credential has expired:
/// 15 and 7 seconds. With less, a node on a busy machine would count as dead.
fn configuration(directory: &Path, munge: &Path, controller: &Host, nodes: &[&Host]) -> String {
    let directory = directory.display();
    let munge = munge.display();
    let (name, address) = (controller.name(), controller.address());
    let mut text = format!(
        "ClusterName=testkit\n\
         SlurmctldHost={name}({address})\n\
         SlurmdPort={NODE_PORT}\n\
         SlurmUser=root\n\
         SlurmdUser=root\n\
         AuthType=auth/munge\n\
         AuthInfo=socket={munge},cred_expire=5\n\
         CredType=cred/munge\n\
         StateSaveLocation={directory}/state\n\
         SlurmdSpoolDir={directory}/spool/%n\n\
         SlurmctldPidFile={directory}/slurmctld.pid\n\
         SlurmdPidFile={directory}/slurmd-%n.pid\n\
         ProctrackType=proctrack/linuxproc\n\
         TaskPlugin=task/none\n\
         JobAcctGatherType=jobacct_gather/none\n\
         SelectType=select/cons_tres\n\
         SelectTypeParameters=CR_CPU\n\
         SlurmdParameters=config_overrides\n\
         PropagateResourceLimits=NONE\n\
         MpiDefault=none\n\
         ReturnToService=2\n\
         SlurmdTimeout=5\n\
         MessageTimeout=5\n\
         KillWait=2\n\
         JobRequeue=1\n\
         SlurmctldLogFile={directory}/slurmctld.log\n\
         SlurmdLogFile={directory}/%n.log\n\
         SlurmctldDebug=info\n\
         SlurmdDebug=info\n\
         SchedulerParameters=sched_interval=2,batch_sched_delay=1\n\
         PreemptType=preempt/partition_prio\n\
         PreemptMode=REQUEUE\n"
    );
    for node in nodes {
        let (name, address) = (node.name(), node.address());
        let line = format!("NodeName={name} NodeHostname={name} NodeAddr={address} CPUs={CPUS}\n");
        text.push_str(&line);
    }
    let names: Vec<_> = nodes.iter().map(|node| node.name()).collect();
    let names = names.join(",");
    for (partition, further) in [
        ("main", "Default=YES PriorityTier=1 PreemptMode=REQUEUE"),
        ("urgent", "PriorityTier=10 PreemptMode=OFF"),
    ] {
        let line = format!("PartitionName={partition} Nodes={names} State=UP {further}\n");
        text.push_str(&line);
    }
    text
}
