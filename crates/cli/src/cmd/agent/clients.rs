//! The configuration of an agent that listens: who may connect, and what each client may do.
use dmover_host::user::Account;
use dmover_model::Fatal;
use dmover_net::AGENT_PORT;
use dmover_net::listening::Fingerprint;
use dmover_net::streams::PORTS;
use dmover_queue::secret::{self, Guard};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::cmd::confined::{self, Confinement};

/// Connections of a client at a time unless another number is given.
const CONNECTIONS: usize = 32;

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Configuration {
    /// The file with the key and the certificate of the agent.
    pub identity: PathBuf,
    /// Addresses with ports.
    #[serde(default = "everywhere")]
    pub listen: Vec<String>,
    /// The most connections of each client at a time.
    #[serde(default = "connections")]
    pub connections: usize,
    /// The ports at which processes of clients may listen for data streams.
    #[serde(default = "data_ports")]
    pub data_ports: (u16, u16),
    #[serde(default, rename = "client")]
    pub clients: Vec<Client>,
}

/// A client that may connect.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Client {
    /// For the log.
    pub name: String,
    fingerprint: Fingerprint,
    /// The user to work as.
    user: Option<String>,
    #[serde(default)]
    read: Vec<PathBuf>,
    #[serde(default)]
    write: Vec<PathBuf>,
    #[serde(default)]
    verbs: BTreeSet<Allows>,
    /// The state directory of its jobs.
    state: Option<PathBuf>,
}

/// What a client may have an agent do. Reading needs no verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Allows {
    Copy,
    Sync,
    Verify,
    Repair,
    Bench,
    Relay,
    /// Jobs that stay without their user, and use the identity of the local user.
    Detach,
}

impl Allows {
    fn word(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Sync => "sync",
            Self::Verify => "verify",
            Self::Repair => dmover_engine::REPAIR,
            Self::Bench => "bench",
            Self::Relay => "relay",
            Self::Detach => confined::DETACH,
        }
    }
}

fn everywhere() -> Vec<String> {
    vec![format!("[::]:{AGENT_PORT}")]
}

fn data_ports() -> (u16, u16) {
    PORTS
}

fn connections() -> usize {
    CONNECTIONS
}

const WHAT: &str = "the configuration of the agent";

fn wrong(path: &Path, why: &str) -> Fatal {
    let message = format!("{WHAT} '{}': {why}", path.display());
    Fatal::refused(message, "correct it; docs/agents.md has an example")
}

impl Configuration {
    /// Reads the file, and checks everything in it.
    ///
    /// # Errors
    /// A refusal: others could change it, or something in it is wrong.
    pub fn checked(path: &Path) -> Result<Self, Fatal> {
        let read = Self::read(path)?;
        for client in &read.clients {
            client
                .check()
                .map_err(|why| wrong(path, &format!("client '{}': {why}", client.name)))?;
        }
        Ok(read)
    }

    /// Reads the file. What a client may do is checked when that client is there.
    ///
    /// # Errors
    /// A refusal: others could change it, or it is not such a file.
    pub fn read(path: &Path) -> Result<Self, Fatal> {
        let text = secret::read(path, Guard::Trust, WHAT, "name the file that lists the clients")?;
        let refused = |why: String| wrong(path, &why);
        let read: Self = toml::from_str(&text).map_err(|error| refused(error.to_string()))?;
        let mut seen = BTreeSet::new();
        for client in &read.clients {
            if !seen.insert(client.fingerprint) {
                return Err(refused(format!("two clients have {}", client.fingerprint)));
            }
        }
        if !read.identity.is_absolute() {
            return Err(refused("'identity' is not an absolute path".into()));
        }
        let (first, last) = read.data_ports;
        if first < 1024 || first > last {
            return Err(refused("'data_ports' is no range of ports from 1024".into()));
        }
        if read.listen.is_empty() {
            return Err(refused("'listen' names no address".into()));
        }
        Ok(read)
    }

    /// The certificates that may connect.
    pub fn fingerprints(&self) -> Vec<Fingerprint> {
        self.clients.iter().map(|client| client.fingerprint).collect()
    }

    /// Whose certificate it is.
    pub fn client(&self, fingerprint: Fingerprint) -> Option<&Client> {
        self.clients.iter().find(|client| client.fingerprint == fingerprint)
    }
}

impl Client {
    fn check(&self) -> Result<(), String> {
        for tree in self.read.iter().chain(&self.write) {
            let shown = tree.display();
            if !tree.is_absolute() {
                return Err(format!("'{shown}' is not an absolute path"));
            }
            let real =
                std::fs::canonicalize(tree).map_err(|error| format!("'{shown}': {error}"))?;
            if real != *tree {
                return Err(format!("'{shown}' is '{}': name that", real.display()));
            }
        }
        let has = |verb| self.verbs.contains(&verb);
        if !self.write.is_empty()
            && !has(Allows::Copy)
            && !has(Allows::Sync)
            && !has(Allows::Repair)
        {
            return Err("it has 'write', but no verb that writes: copy, sync or repair".into());
        }
        if self.write.is_empty() && (has(Allows::Copy) || has(Allows::Sync) || has(Allows::Repair))
        {
            return Err("it has a verb that writes, but no tree in 'write'".into());
        }
        self.account().map(drop)
    }

    /// The user to work as.
    ///
    /// # Errors
    /// There is no such user, or this process cannot become it.
    pub fn account(&self) -> Result<Account, String> {
        let lookup = match &self.user {
            Some(name) => Account::named(name),
            None => Account::own(),
        };
        let found = lookup.map_err(|error| format!("cannot look the user up: {error}"))?;
        let account = found.ok_or_else(|| match &self.user {
            Some(name) => format!("there is no user '{name}'"),
            None => "the user of this process has no entry; name one ('user')".into(),
        })?;
        let own = dmover_host::user::effective_uid();
        if account.uid != own && own != 0 {
            return Err(format!("only an agent of root can work as user '{}'", account.name));
        }
        // A root that works as everybody should be meant.
        if own == 0 && self.user.is_none() {
            return Err("it names no user to work as ('user'), and this agent runs as root".into());
        }
        Ok(account)
    }

    /// What the process that serves the client may do.
    pub fn confinement(&self, account: &Account, data_ports: (u16, u16)) -> Confinement {
        let is_own = account.uid == dmover_host::user::effective_uid();
        let user = (!is_own).then(|| (account.uid, account.gid, account.groups.clone()));
        let usual = match account.uid {
            0 => PathBuf::from("/var/lib/dmover"),
            _ => account.home.join(".local/state/dmover"),
        };
        // Jobs of other clients, and those of the user, are not this client's.
        let usual = usual.join("clients").join(self.fingerprint.short());
        Confinement {
            user,
            state: self.state.clone().unwrap_or(usual),
            read: self.read.clone(),
            write: self.write.clone(),
            data_ports,
            verbs: self.verbs.iter().map(|verb| verb.word().to_owned()).collect(),
        }
    }
}
