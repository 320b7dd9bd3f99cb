//! A real nats-server with JetStream.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::daemon::{Daemon, STARTING};
use super::workplace::{Workplace, pid_file};
use super::{Host, http};

/// Where servers of a cluster meet.
const CLUSTER_PORT: u16 = 6222;

/// A nats-server with its store; dropping it kills it.
#[derive(Debug)]
pub struct NatsServer {
    // Dropped before the directory and the namespace.
    daemon: Option<Daemon>,
    place: Place,
    directory: PathBuf,
    ports: Ports,
}

#[derive(Debug)]
enum Place {
    Host(Host),
    Here(Workplace),
}

impl Place {
    fn address(&self) -> Ipv4Addr {
        match self {
            Self::Host(host) => host.address(),
            Self::Here(_) => Ipv4Addr::LOCALHOST,
        }
    }

    fn command(&self, program: &str) -> Command {
        match self {
            Self::Host(host) => host.command(program),
            Self::Here(_) => Command::new(super::tool::find(program).unwrap_or(program.into())),
        }
    }
}

/// For clients and for monitoring; the server is asked to choose where it shares an address.
#[derive(Clone, Copy, Debug)]
struct Ports {
    client: u16,
    monitor: u16,
}

impl NatsServer {
    /// Starts a server on a host, on port 4222, and waits until its JetStream answers.
    ///
    /// `config` is in the server's own language and may be empty. Addresses, ports and the place of the
    /// store are arguments, which count for more than the configuration.
    pub fn start(host: &Host, config: &str) -> Result<Self> {
        // Two servers on a host would share a directory, but they would also share a port.
        let directory = host.directory().join(format!("nats-{}", host.name()));
        let ports = Some(Ports { client: 4222, monitor: 8222 });
        Self::start_in(Place::Host(host.clone()), directory, config, ports)
    }

    /// Starts a server for this machine alone, without any namespace, and so without privilege; the
    /// ports are free ones that stay the same over a restart.
    pub fn start_local(config: &str) -> Result<Self> {
        let workplace = Workplace::create()?;
        let directory = workplace.path().join("nats");
        Self::start_in(Place::Here(workplace), directory, config, None)
    }

    /// Starts one server on each of these hosts, which form a cluster, and waits until all of them are healthy. `furnish` gets the empty
    /// directory of each store before its server starts.
    pub fn start_cluster(
        hosts: &[&Host],
        mut furnish: impl FnMut(&Path) -> Result<()>,
    ) -> Result<Vec<Self>> {
        let route = |host: &&Host| format!("nats://{}:{CLUSTER_PORT}", host.address());
        let routes: Vec<String> = hosts.iter().map(route).collect();
        let mut start = |host: &&Host| {
            let (name, address) = (host.name(), host.address());
            let routes = routes.join(", ");
            let config = format!(
                "server_name: {name}\n\
                 cluster {{ name: test, listen: \"{address}:{CLUSTER_PORT}\", routes: [{routes}] }}\n"
            );
            let directory = host.directory().join(format!("nats-{name}"));
            let ports = Ports { client: 4222, monitor: 8222 };
            let mut server =
                Self::prepare(Place::Host((*host).clone()), directory, &config, ports)?;
            std::fs::create_dir(server.store())?;
            furnish(&server.store())?;
            // None of them is healthy before most of them are there.
            server.spawn()?;
            Ok(server)
        };
        let servers = hosts.iter().map(&mut start).collect::<Result<Vec<_>>>()?;
        servers.iter().try_for_each(Self::wait_until_healthy)?;
        Ok(servers)
    }

    fn start_in(
        place: Place,
        directory: PathBuf,
        config: &str,
        ports: Option<Ports>,
    ) -> Result<Self> {
        let unknown = Ports { client: 0, monitor: 0 };
        let mut server = Self::prepare(place, directory, config, ports.unwrap_or(unknown))?;
        server.launch()?;
        Ok(server)
    }

    fn prepare(place: Place, directory: PathBuf, config: &str, ports: Ports) -> Result<Self> {
        match std::fs::create_dir(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("create {directory:?}"));
            }
            _ => {}
        }
        std::fs::write(directory.join("config"), config)?;
        Ok(Self { daemon: None, place, directory, ports })
    }

    fn launch(&mut self) -> Result<()> {
        self.spawn()?;
        self.wait_until_healthy()
    }

    /// Starts the process.
    fn spawn(&mut self) -> Result<()> {
        // The server takes a free port for -1.
        let port = |number: u16| if number == 0 { "-1".to_owned() } else { number.to_string() };
        let mut command = self.place.command("nats-server");
        command.arg("-c").arg(self.directory.join("config"));
        command.arg("-a").arg(self.place.address().to_string());
        command.args(["-p", &port(self.ports.client), "-m", &port(self.ports.monitor)]);
        command.arg("-js").arg("-sd").arg(self.store());
        command.arg("--ports_file_dir").arg(&self.directory);
        let daemon = Daemon::start("nats-server", &self.log(), &mut command)?;
        let daemon = self.daemon.insert(daemon);
        if let Place::Here(workplace) = &self.place {
            std::fs::write(pid_file(workplace.path()), daemon.pid().to_string())?;
        }
        if self.ports.client == 0 {
            let file = self.directory.join(format!("nats-server_{}.ports", daemon.pid()));
            let found = &mut self.ports;
            daemon.wait_until("listening", STARTING, || {
                let Some(ports) = Ports::read(&file) else { return Ok(false) };
                *found = ports;
                Ok(true)
            })?;
        }
        Ok(())
    }

    fn wait_until_healthy(&self) -> Result<()> {
        let daemon = self.daemon.as_ref().context("the server was killed")?;
        daemon.wait_until("healthy", STARTING, || Ok(self.is_healthy()))
    }

    /// Whether its JetStream works.
    pub fn is_healthy(&self) -> bool {
        http::answers(self.monitor_address(), "/healthz")
    }

    fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// Where it keeps its streams.
    pub fn store(&self) -> PathBuf {
        self.directory.join("store")
    }

    /// Where clients connect; it stays the same over a restart.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address())
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(self.place.address()), self.ports.client)
    }

    /// The address of its monitoring, which speaks HTTP.
    pub fn monitor_address(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(self.place.address()), self.ports.monitor)
    }

    /// The process; none after [`Self::kill`].
    pub fn pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::pid)
    }

    /// Kills the server with SIGKILL; its store stays as it is at that moment.
    pub fn kill(&mut self) {
        // Dropping waits for the end.
        self.daemon = None;
    }

    /// Kills the server if it runs, and starts it over its store.
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        self.launch()
    }

    /// Kills the server and removes its store; it stays down.
    pub fn wipe(&mut self) -> Result<()> {
        self.kill();
        let store = self.store();
        std::fs::remove_dir_all(&store).with_context(|| format!("remove {store:?}"))
    }

    /// Gives the server another configuration, for its next start.
    pub fn configure(&self, config: &str) -> Result<()> {
        Ok(std::fs::write(self.directory.join("config"), config)?)
    }

    /// Everything that the server has said.
    pub fn said(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(self.log())?).into_owned())
    }
}

impl Ports {
    /// Reads the file that the server writes once it listens; it may be there in part.
    fn read(file: &Path) -> Option<Self> {
        #[derive(Deserialize)]
        struct Listed {
            nats: Vec<String>,
            monitoring: Vec<String>,
        }
        let listed: Listed = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
        let port = |urls: &[String]| urls.first()?.rsplit(':').next()?.parse().ok();
        Some(Self { client: port(&listed.nats)?, monitor: port(&listed.monitoring)? })
    }
}

/// A client that speaks NATS's own protocol in clear text and knows nothing of dmover: enough for a test of the servers
/// themselves, and for somebody who attacks a fleet.
#[derive(Debug)]
pub struct NatsClient {
    reader: BufReader<TcpStream>,
    subscriptions: u32,
}

impl NatsClient {
    /// Connects, perhaps with a user and a password.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn connect(address: SocketAddr, user: Option<(&str, &str)>) -> Result<Self> {
        let patience = Duration::from_secs(5);
        let mut stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_read_timeout(Some(patience))?;
        let user = user.map(|(user, pass)| format!(",\"user\":\"{user}\",\"pass\":\"{pass}\""));
        let user = user.unwrap_or_default();
        write!(
            stream,
            "CONNECT {{\"verbose\":false,\"headers\":true,\"no_responders\":true{user}}}\r\n"
        )?;
        Ok(Self { reader: BufReader::new(stream), subscriptions: 0 })
    }

    /// Hears what is said under a subject from now on.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn subscribe(&mut self, subject: &str) -> Result<()> {
        self.subscriptions += 1;
        let number = self.subscriptions;
        Ok(write!(self.reader.get_mut(), "SUB {subject} {number}\r\n")?)
    }

    /// Says something under a subject; an answer goes to `reply`.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn publish(&mut self, subject: &str, reply: &str, payload: &[u8]) -> Result<()> {
        let stream = self.reader.get_mut();
        write!(stream, "PUB {subject} {reply} {}\r\n", payload.len())?;
        stream.write_all(payload)?;
        Ok(stream.write_all(b"\r\n")?)
    }

    /// The next message that was heard: its subject, and what it says.
    ///
    /// # Errors
    /// None within five seconds, or an error of the server.
    pub fn next_message(&mut self) -> Result<(String, Vec<u8>)> {
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line)?;
            ensure!(!line.is_empty() && !line.starts_with("-ERR"), "{line:?}");
            let words: Vec<_> = line.split_ascii_whitespace().collect();
            match words.first() {
                Some(&("MSG" | "HMSG")) => {
                    let length = words.last().and_then(|word| word.parse().ok());
                    let mut body = vec![0; length.context("a message without a length")?];
                    self.reader.read_exact(&mut body)?;
                    return Ok((words[1].to_owned(), body));
                }
                Some(&"PING") => self.reader.get_mut().write_all(b"PONG\r\n")?,
                _ => {}
            }
        }
    }

    /// Asks something.
    ///
    /// # Errors
    /// No reply within five seconds, or an error of the server.
    pub fn request(&mut self, subject: &str, payload: &[u8]) -> Result<Vec<u8>> {
        let inbox = format!("reply.here{}", self.subscriptions);
        self.subscribe(&inbox)?;
        self.publish(subject, &inbox, payload)?;
        loop {
            let (heard, body) =
                self.next_message().with_context(|| format!("reply to {subject}"))?;
            if heard == inbox {
                return Ok(body);
            }
        }
    }
}

/// One request without a user, with its reply.
///
/// # Errors
/// No reply within five seconds, or an error of the server.
pub fn nats_request(address: SocketAddr, subject: &str, payload: &str) -> Result<String> {
    let reply = NatsClient::connect(address, None)?.request(subject, payload.as_bytes())?;
    Ok(String::from_utf8_lossy(&reply).into_owned())
}
