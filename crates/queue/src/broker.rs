//! Starts a `nats-server` with a configuration for dmover.
use dmover_model::Fatal;
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use std::ffi::OsString;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::address::JoinFile;
use crate::identity::Identity;
use crate::secret::{self, Guard};
use crate::tls;

/// The server must answer within this time.
const START_WITHIN: Duration = Duration::from_secs(20);
/// Larger tasks and outcomes are cut into pieces.
const PAYLOAD_MAX: &str = "8MB";

/// Options for the start of a broker.
#[derive(Debug, Clone)]
pub struct BrokerOptions {
    /// The directory for its data and its secret.
    pub state: PathBuf,
    /// The address that others connect to.
    pub listen: IpAddr,
    /// The port; 0 chooses one, preferably the previous one.
    pub port: u16,
    /// The names under which others reach it, if not by the address.
    pub advertise: Vec<String>,
    /// Whether and how connections are encrypted.
    pub tls: Tls,
    /// The path of `nats-server`; otherwise dmover looks beside its own program and in `search`.
    pub program: Option<PathBuf>,
    /// The value of PATH.
    pub search: OsString,
    /// The user who starts it; its movers accept offers of this user.
    pub identity: Arc<Identity>,
}

/// Whether and how connections are encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tls {
    /// Clear text.
    None,
    /// With a certificate that dmover creates once.
    Own,
    /// With a certificate and a key from files.
    Files(PathBuf, PathBuf),
}

/// A running broker.
pub struct Broker {
    child: Child,
    /// The join file.
    pub join_file: PathBuf,
    /// Its address.
    pub url: String,
    /// The path of its log.
    pub log: PathBuf,
}

fn refused(what: String, hint: &str) -> Fatal {
    Fatal::refused(what, hint)
}

impl Broker {
    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    /// There is no `nats-server`, the directory cannot be used, or the server does not start.
    ///
    /// The server ends with the thread that calls this.
    pub fn start(options: &BrokerOptions) -> Result<Self, Fatal> {
        let program = find(options)?;
        let state = &options.state;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state).map_err(|error| {
            let message = format!("cannot create '{}': {error}", state.display());
            refused(message, "choose another directory with --state")
        })?;
        // A user with write access there could replace these files.
        secret::check_directory(state, "--state")?;
        let lock = lock(state)?;
        let port = choose_port(options)?;
        let key = nkey(state)?;
        let address = SocketAddr::new(options.listen, port);
        let own = || match options.listen {
            ip if ip.is_unspecified() => dmover_host::name(),
            IpAddr::V6(ip) => format!("[{ip}]"),
            IpAddr::V4(ip) => ip.to_string(),
        };
        let reached = match &options.advertise[..] {
            [] => vec![own()],
            named => named.to_vec(),
        };
        let tls = certificate(options, &reached)?;
        let scheme = if tls.is_some() { "tls" } else { "nats" };
        let urls = reached.iter().map(|host| format!("{scheme}://{host}:{port}"));
        let url = urls.collect::<Vec<_>>().join(",");
        let config = state.join("nats-server.conf");
        let files = tls.as_ref().map(|tls| (tls.file.as_path(), tls.key.as_path()));
        write(&config, &configuration(options, address, &key.public_key(), files), 0o600)?;
        let seed = key.seed().map_err(|error| {
            refused(error.to_string(), "remove the seed file; the broker creates a new one")
        })?;
        let join = JoinFile {
            url: url.clone(),
            nkey_seed: Some(seed),
            token: None,
            certificates: tls.map(|tls| tls.text),
            signers: vec![options.identity.signer()],
            mover_seed: Some(options.identity.of_movers()?.seed()?),
        };
        let join_file = state.join("join.json");
        let text = serde_json::to_string_pretty(&join).unwrap_or_default();
        write(&join_file, &(text + "\n"), 0o600)?;
        let log = state.join("nats-server.log");
        let mut command = Command::new(&program);
        // A broker that is killed takes its server along.
        dmover_host::process::kill_with_parent(&mut command);
        let child = command
            .arg("--config")
            .arg(&config)
            // The server never reads standard input, so it holds the lock as long as it lives, even after this process
            // has ended.
            .stdin(lock)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| {
                let message = format!("cannot start '{}': {error}", program.display());
                refused(message, "name it with --nats-server")
            })?;
        let mut broker = Self { child, join_file, url, log };
        broker.wait_until_ready(address)?;
        Ok(broker)
    }

    /// Whether the server has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_ready(&mut self, address: SocketAddr) -> Result<(), Fatal> {
        let ip = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => std::net::Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let begun = Instant::now();
        while begun.elapsed() < START_WITHIN {
            if self.has_ended() {
                let message = format!("nats-server ended: {}", self.last_words());
                return Err(Fatal::unavailable(
                    message,
                    "see its log; --port chooses another port",
                ));
            }
            if greets(SocketAddr::new(ip, address.port())) {
                return Ok(());
            }
            // It says nothing when it is ready: poll.
            thread::sleep(Duration::from_millis(20));
        }
        let message = format!("nats-server does not answer: {}", self.last_words());
        Err(Fatal::unavailable(message, "see its log"))
    }

    fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let bad = text.lines().rev().find(|line| line.contains("[FTL]") || line.contains("[ERR]"));
        bad.or_else(|| text.lines().next_back()).unwrap_or("its log is empty").to_owned()
    }

    /// Kills a server that does not respond any more.
    pub fn kill(mut self) {
        // It fails only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks the server to end, and waits for it.
    pub fn stop(&mut self) {
        dmover_host::other_processes::terminate(self.child.id());
        let begun = Instant::now();
        while !self.has_ended() && begun.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(20));
        }
        if !self.has_ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether the server sends a NATS greeting: one line that begins with INFO.
fn greets(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_secs(1)) else {
        return false;
    };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
    let mut word = [0; 4];
    stream.read_exact(&mut word).is_ok() && word == *b"INFO"
}

fn find(options: &BrokerOptions) -> Result<PathBuf, Fatal> {
    const NAME: &str = "nats-server";
    let hint = "install the package 'nats-server' (2.9 or later), put the program beside dmover, or \
                name it with --nats-server";
    // It is a program, and no entry of a tree that somebody could change meanwhile to anybody's harm.
    let is_file = |path: &Path| std::fs::metadata(path).is_ok_and(|found| found.is_file());
    if let Some(path) = options.program.as_deref() {
        return if is_file(path) {
            Ok(path.to_owned())
        } else {
            Err(refused(format!("'{}' is not a file", path.display()), hint))
        };
    }
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(NAME)));
    // Debian puts it where the PATH of a user does not look.
    let places = std::env::split_paths(&options.search)
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    let candidates = beside.into_iter().chain(places.map(|place| place.join(NAME)));
    let mut found = candidates.filter(|candidate| is_file(candidate));
    found.next().ok_or_else(|| refused("cannot find nats-server".into(), hint))
}

/// Locks the store: two servers on one store would destroy it.
fn lock(state: &Path) -> Result<std::fs::File, Fatal> {
    let path = state.join("lock");
    let mut options = std::fs::OpenOptions::new();
    let opened = options.create(true).append(true).mode(0o600).open(&path);
    let taken = opened.map_err(std::fs::TryLockError::Error).and_then(|file| {
        file.try_lock()?;
        // The previous holder of the lock may have removed the file with the directory.
        let (own, named) = (file.metadata(), std::fs::metadata(&path));
        match (own, named) {
            (Ok(own), Ok(named)) if own.ino() == named.ino() => Ok(file),
            _ => Err(std::fs::TryLockError::WouldBlock),
        }
    });
    taken.map_err(|error| match error {
        std::fs::TryLockError::WouldBlock => {
            let pid = std::fs::read_to_string(state.join("nats-server.pid")).unwrap_or_default();
            let who = match pid.trim() {
                "" => String::new(),
                // It outlives a 'dmover broker' that was killed.
                pid => format!(" (its nats-server is process {pid})"),
            };
            let message = format!("another broker uses '{}'{who}", state.display());
            Fatal::unavailable(
                message,
                "use that broker, stop it, or choose another directory with --state",
            )
        }
        std::fs::TryLockError::Error(error) => {
            let message = format!("cannot lock '{}': {error}", path.display());
            refused(message, "choose a directory with --state on a file system that supports locks")
        }
    })
}

/// The requested port, the previous one, or any free one.
fn choose_port(options: &BrokerOptions) -> Result<u16, Fatal> {
    let is_free = |port: u16| TcpListener::bind((options.listen, port)).ok();
    let taken = |port: u16, error: std::io::Error| {
        let message = format!("cannot listen on {}:{port}: {error}", options.listen);
        refused(message, "choose another --port or --listen")
    };
    if options.port != 0 {
        let port = options.port;
        return TcpListener::bind((options.listen, port)).map(|_| port).map_err(|e| taken(port, e));
    }
    let last = std::fs::read_to_string(options.state.join("join.json")).ok();
    let last = last.and_then(|text| serde_json::from_str::<JoinFile>(&text).ok());
    let last = last.and_then(|join| join.url.rsplit_once(':')?.1.parse().ok());
    if let Some(port) = last.filter(|port| is_free(*port).is_some()) {
        return Ok(port);
    }
    let any = TcpListener::bind((options.listen, 0)).and_then(|listener| listener.local_addr());
    any.map(|address| address.port()).map_err(|error| taken(0, error))
}

/// The key for clients: the previous one, or a new one.
fn nkey(state: &Path) -> Result<nkeys::KeyPair, Fatal> {
    let path = state.join("user.nk");
    if std::fs::symlink_metadata(&path).is_ok() {
        let seed = secret::read(
            &path,
            Guard::Secret,
            "the key of the broker",
            "remove the file; the broker creates a new one",
        )?;
        return nkeys::KeyPair::from_seed(seed.trim()).map_err(|error| {
            refused(
                format!("'{}' is not the seed of an nkey: {error}", path.display()),
                "remove the file; the broker creates a new one",
            )
        });
    }
    let key = nkeys::KeyPair::new_user();
    let seed = key.seed().map_err(|error| refused(error.to_string(), "please report this"))?;
    write(&path, &(seed + "\n"), 0o600)?;
    Ok(key)
}

/// A certificate, its key, and the certificates that clients must trust.
struct Certificate {
    file: PathBuf,
    key: PathBuf,
    text: String,
}

/// The certificate to present under these names. A certificate made by dmover is used again, because copies of the join
/// file may hold it.
fn certificate(options: &BrokerOptions, reached: &[String]) -> Result<Option<Certificate>, Fatal> {
    let (certificate, key) = match &options.tls {
        Tls::None => return Ok(None),
        Tls::Files(certificate, key) => (certificate.clone(), key.clone()),
        Tls::Own => {
            let [certificate, key] =
                ["tls-certificate.pem", "tls-key.pem"].map(|name| options.state.join(name));
            if [&certificate, &key].iter().any(|path| std::fs::metadata(path).is_err()) {
                let (text, secret) = tls::make(reached.to_vec())?;
                write(&key, &secret, 0o600)?;
                write(&certificate, &text, 0o644)?;
            }
            // Who could change them would be the broker.
            let hint = "remove both files; the broker creates new ones";
            secret::read(&key, Guard::Secret, "the key of the broker", hint)?;
            secret::read(&certificate, Guard::Trust, "the certificate of the broker", hint)?;
            (certificate, key)
        }
    };
    let fail = |path: &Path, error: &dyn std::fmt::Display| {
        let hint = "use PEM files for both --tls-certificate and --tls-key, or omit both";
        refused(format!("'{}': {error}", path.display()), hint)
    };
    // The server looks for them from where it is started.
    let absolute = |path: PathBuf| std::path::absolute(&path).map_err(|e| fail(&path, &e));
    let (certificate, key) = (absolute(certificate)?, absolute(key)?);
    let text = std::fs::read_to_string(&certificate).map_err(|e| fail(&certificate, &e))?;
    tls::trusting(&text).map_err(|error| fail(&certificate, &error))?;
    std::fs::File::open(&key).map_err(|error| fail(&key, &error))?;
    Ok(Some(Certificate { file: certificate, key, text }))
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), Fatal> {
    secret::write(path, text, mode).map_err(|error| {
        let message = format!("cannot write '{}': {error}", path.display());
        refused(message, "choose another directory with --state")
    })
}

/// The configuration of nats-server. A power cut may lose acknowledged messages: the journal is authoritative, and a
/// coordinator issues again what a broker has lost.
fn configuration(
    options: &BrokerOptions,
    address: SocketAddr,
    public_key: &str,
    tls: Option<(&Path, &Path)>,
) -> String {
    let quoted = |path: &Path| format!("\"{}\"", path.display().to_string().replace('"', "\\\""));
    let tls = tls.map_or(String::new(), |(certificate, key)| {
        let (certificate, key) = (quoted(certificate), quoted(key));
        format!("tls {{ cert_file: {certificate}, key_file: {key} }}\n")
    });
    let state = &options.state;
    format!(
        "# Written by 'dmover broker'; changes are lost at its next start.\n\
         server_name: \"dmover\"\n\
         listen: \"{address}\"\n\
         max_payload: {PAYLOAD_MAX}\n\
         max_pending: 256MB\n\
         write_deadline: \"10s\"\n\
         log_file: {}\n\
         pid_file: {}\n\
         jetstream {{ store_dir: {} }}\n\
         {tls}authorization {{ users: [ {{ nkey: {public_key} }} ] }}\n",
        quoted(&state.join("nats-server.log")),
        quoted(&state.join("nats-server.pid")),
        quoted(&state.join("jetstream")),
    )
}
