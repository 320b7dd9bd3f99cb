//! `dmover agent --listen`: serves clients without ssh.
//!
//! This process accepts connections, finds out whose they are, and starts a process for each that works as the user of the
//! client and is confined to its trees. It passes bytes between the connection and that process, which never has the key.
use dmover_host::user::Account;
use dmover_model::Fatal;
use dmover_net::hello::{Hello, Refusal};
use dmover_net::listening::{Accepted, Fingerprint, Identity, accept};
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use super::clients::{Client, Configuration};
use crate::cmd::identity;
use crate::cmd::remote::VERSION;
use crate::config::environment;
use crate::print::{one_line, say};

/// Connections that may prove at a time who they are.
const PROVING_MAX: usize = 64;
/// What is passed on at a time.
const BYTES: usize = 256 << 10;
/// The pause after an error of accept(2), such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);
/// A client that takes nothing for so long has gone.
const TAKES_NOTHING: Duration = Duration::from_mins(10);
/// The longest line of a process that is logged as one.
const LINE_MAX: u64 = 2000;
/// Where the process of a client looks for programs.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Listens until the process is ended.
pub(super) fn listen(file: &Path) -> Result<(), Fatal> {
    let configuration = Configuration::checked(file)?;
    let own = identity::read(&configuration.identity)?;
    usable(&own)?;
    let listeners = configuration.listen.iter().map(|address| bind(address));
    let listeners: Vec<TcpListener> = listeners.collect::<Result<_, _>>()?;
    for client in &configuration.clients {
        tracing::info!(client = client.name, "may connect");
    }
    let fingerprint = own.fingerprint();
    let door = Arc::new(Door {
        file: file.to_owned(),
        read: Mutex::new(Arc::new(configuration)),
        proving: AtomicUsize::new(0),
        connected: Mutex::default(),
    });
    let threads = listeners.into_iter().map(|listener| {
        let address = listener.local_addr().map_err(Fatal::Thread)?;
        say(&format!("dmover: the agent listens at {address}, its certificate is {fingerprint}"));
        let door = Arc::clone(&door);
        let named = thread::Builder::new().name("agent-listen".into());
        named.spawn(move || door.accept_all(&listener)).map_err(Fatal::Thread)
    });
    let threads: Vec<_> = threads.collect::<Result<_, _>>()?;
    for thread in threads {
        let _ = thread.join();
    }
    Ok(())
}

fn usable(own: &Identity) -> Result<(), Fatal> {
    let refused = |why| {
        let hint = "make another identity; each client has to accept its fingerprint";
        Fatal::refused(format!("the certificate of the agent cannot be used: {why}"), hint)
    };
    own.why_invalid().map_or(Ok(()), |why| Err(refused(why)))
}

fn bind(address: &str) -> Result<TcpListener, Fatal> {
    let bound = TcpListener::bind(address).or_else(|error| {
        // A host without IPv6.
        let every = address.strip_prefix("[::]:").filter(|_| error.kind() != ErrorKind::AddrInUse);
        every.map_or(Err(error), |port| TcpListener::bind(format!("0.0.0.0:{port}")))
    });
    bound.map_err(|error| {
        let message = format!("cannot listen at '{address}': {error}");
        Fatal::refused(message, "name an address of this host and a free port, such as [::]:2812")
    })
}

/// Accepts clients.
struct Door {
    file: PathBuf,
    /// The last configuration that could be read.
    read: Mutex<Arc<Configuration>>,
    proving: AtomicUsize,
    /// How many connections each client has.
    connected: Mutex<HashMap<Fingerprint, Arc<AtomicUsize>>>,
}

/// Counts a connection until it is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    /// `None`: there are as many as there may be.
    fn one(count: &'a AtomicUsize, most: usize) -> Option<Self> {
        let increased = |now: usize| (now < most).then_some(now + 1);
        count.fetch_update(SeqCst, SeqCst, increased).ok().map(|_| Self(count))
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Door {
    fn accept_all(self: Arc<Self>, listener: &TcpListener) {
        loop {
            let (socket, from) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    thread::sleep(PAUSE);
                    continue;
                }
            };
            let door = Arc::clone(&self);
            let work = move || {
                if let Err(why) = door.serve(socket, from) {
                    tracing::warn!(%from, "refused a connection: {why}");
                }
            };
            if let Err(error) = thread::Builder::new().name("agent-client".into()).spawn(work) {
                tracing::warn!(%from, %error, "refused a connection: no thread can be started");
            }
        }
    }

    /// The configuration. What was changed since the last connection holds from now on; a file that cannot be used changes nothing.
    fn configuration(&self) -> Arc<Configuration> {
        let mut last = lock(&self.read);
        match Configuration::read(&self.file) {
            Ok(read) => *last = Arc::new(read),
            Err(error) => {
                let why = one_line(&error.to_string());
                tracing::error!("the last configuration that could be read stays valid: {why}");
            }
        }
        Arc::clone(&last)
    }

    /// Serves one connection until its end.
    fn serve(&self, socket: TcpStream, from: SocketAddr) -> Result<(), String> {
        let proving = Counted::one(&self.proving, PROVING_MAX)
            .ok_or_else(|| format!("{PROVING_MAX} others have not shown a certificate yet"))?;
        let read = self.configuration();
        let own = identity::read(&read.identity).map_err(|error| error.to_string())?;
        let at = socket.local_addr().map_err(|error| error.to_string())?;
        let closes = socket.try_clone().map_err(|error| error.to_string())?;
        let mut accepted = accept(socket, own, read.fingerprints()).map_err(|refused| {
            let shown = refused.shown.map(|shown| format!(" ({shown})")).unwrap_or_default();
            format!("{}{shown}", refused.why)
        })?;
        drop(proving);
        let client = read.client(accepted.client).ok_or("its certificate is not known here")?;
        closes.set_write_timeout(Some(TAKES_NOTHING)).map_err(|error| error.to_string())?;
        dmover_host::tcp::keep_alive(&closes).map_err(|error| error.to_string())?;
        let count = Arc::clone(lock(&self.connected).entry(accepted.client).or_default());
        let (name, most) = (&client.name, read.connections);
        let Some(_connected) = Counted::one(&count, most) else {
            let why = format!("'{name}' has {most} connections, as many as it may");
            return Err(refuse(
                (&mut accepted, &closes),
                why,
                "end other jobs, or run the command again later",
            ));
        };
        let account = client.account();
        let child = account.and_then(|account| {
            let child = start(client, (&account, read.data_ports), (from, at));
            Ok((child.map_err(|error| format!("cannot start a process: {error}"))?, account))
        });
        let (child, account) = child.map_err(|why| {
            refuse((&mut accepted, &closes), why, "ask the administrator of the agent")
        })?;
        let (user, pid) = (&account.name, child.id());
        tracing::info!(%from, client = name, user, pid, "a client has connected");
        let begun = Instant::now();
        let ended = pass_on((accepted, name), &closes, child);
        let seconds = begun.elapsed().as_secs();
        let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
        tracing::info!(%from, client = name, pid, seconds, "its process has ended: {how}");
        Ok(())
    }
}

/// Tells a client why it is not served, in the place of a greeting.
fn refuse((accepted, socket): (&mut Accepted, &TcpStream), why: String, hint: &str) -> String {
    let refusal = Refusal { message: why.clone(), hint: hint.to_owned() };
    let greeting = Hello { refusal: Some(refusal), ..Hello::of_this_program(VERSION) };
    // The log has it, too.
    let _ = greeting.write(&mut accepted.output);
    // What the client has sent is read, or the kernel would drop the words with the connection.
    let _ = socket.shutdown(Shutdown::Write);
    let _ = socket.set_read_timeout(Some(PAUSE));
    let _ = std::io::copy(&mut accepted.input.by_ref().take(BYTES as u64), &mut std::io::sink());
    why
}

/// Starts the process that serves a client.
fn start(
    client: &Client,
    (account, data_ports): (&Account, (u16, u16)),
    (from, at): (SocketAddr, SocketAddr),
) -> std::io::Result<Child> {
    let confinement = client.confinement(account, data_ports);
    let text = serde_json::to_string(&confinement).map_err(std::io::Error::other)?;
    let plain = |address: SocketAddr| address.ip().to_canonical();
    // As sshd(8) says it.
    let connection = format!("{} {} {} {}", plain(from), from.port(), plain(at), at.port());
    let has_home = std::fs::metadata(&account.home).is_ok_and(|home| home.is_dir());
    let home = if has_home { account.home.as_path() } else { Path::new("/") };
    // The program that runs, also if another one has taken its name since.
    let mut child = Command::new("/proc/self/exe");
    child
        .args(["agent", "--stdio", "--confined", &text])
        .env_clear()
        .env("HOME", &account.home)
        .env("USER", &account.name)
        .env("LOGNAME", &account.name)
        .env("PATH", PATH)
        .env("SSH_CONNECTION", connection)
        .env("TMPDIR", &confinement.state)
        .env("DMOVER_LOG", environment("DMOVER_LOG").unwrap_or_else(|| "warn".into()))
        .current_dir(home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // However this process was started: the signals are those of the client's terminal.
    dmover_host::process::with_usual_signals(&mut child);
    child.spawn()
}

/// Passes bytes on between a connection and a process until both are over.
fn pass_on(
    (accepted, name): (Accepted, &str),
    socket: &TcpStream,
    mut child: Child,
) -> std::io::Result<std::process::ExitStatus> {
    let Accepted { mut input, mut output, .. } = accepted;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut to_child), Some(mut from_child), Some(errors)) = pipes else {
        unreachable!("three pipes were asked for")
    };
    dmover_host::process::enlarge_pipe(&to_child);
    dmover_host::process::enlarge_pipe(&from_child);
    let reads = move || {
        // The process ends when its input does.
        let _ = copy(&mut input, &mut to_child);
    };
    let (name, pid) = (name.to_owned(), child.id());
    let logs = move || log_lines(errors, &name, pid);
    let started = thread::Builder::new().name("agent-errors".into()).spawn(logs);
    let started =
        started.and_then(|_| thread::Builder::new().name("agent-input".into()).spawn(reads));
    let reading = match started {
        Ok(reading) => reading,
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
    };
    // An error: the client takes nothing any more. The process sees that its output has no reader.
    let _ = copy(&mut from_child, &mut output);
    drop(from_child);
    // A job that stays has ended its part of the connection, and the client may go.
    let _ = socket.shutdown(Shutdown::Both);
    let _ = reading.join();
    child.wait()
}

/// Writes what a process says into the log of the agent, a line at a time.
fn log_lines(errors: impl Read, client: &str, pid: u32) {
    let mut lines = BufReader::new(errors);
    loop {
        let mut line = Vec::new();
        match lines.by_ref().take(LINE_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(line.trim_ascii()).into_owned();
        tracing::info!(client, pid, "it says: {}", one_line(&line));
    }
}

fn copy(from: &mut impl Read, to: &mut impl Write) -> std::io::Result<()> {
    let mut buffer = vec![0; BYTES];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            read => {
                to.write_all(&buffer[..read])?;
                to.flush()?;
            }
        }
    }
}
