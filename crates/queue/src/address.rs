//! The address of a broker, and the credentials for it.
use dmover_model::Fatal;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::secret::{self, Guard};
use crate::signer::Signer;

/// The join file that `dmover broker` writes: the address and the secret, readable by its owner alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinFile {
    /// `nats://host:port` or `tls://host:port`.
    pub url: String,
    /// The seed of an nkey.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nkey_seed: Option<String>,
    /// A shared secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Certificates to trust (PEM): the server's own, or those of its issuer. Without them, the certificates that the
    /// host trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates: Option<String>,
    /// Users whose offers movers with this file accept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signers: Vec<Signer>,
    /// The seed of the key by which movers prove that they have this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mover_seed: Option<String>,
}

/// The address of a broker with its credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Servers of one cluster, separated by commas.
    pub(crate) url: String,
    pub(crate) secret: Secret,
    pub(crate) certificates: Option<String>,
    /// Users whose offers movers accept over this connection.
    pub(crate) signers: Vec<Signer>,
    /// The key by which movers prove that they have the join file.
    pub(crate) mover_seed: Option<String>,
    /// The user allows connections in clear text.
    pub(crate) insecure: bool,
}

/// The credentials for a broker.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Secret {
    /// No credentials, or the address contains them.
    None,
    Nkey(String),
    Token(String),
    /// A file with a JWT and its seed, as `nsc` writes it.
    Credentials(PathBuf),
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Logs are read by others.
        f.write_str(match self {
            Self::None => "None",
            Self::Nkey(_) => "Nkey(…)",
            Self::Token(_) => "Token(…)",
            Self::Credentials(_) => "Credentials(…)",
        })
    }
}

fn refused(what: impl Into<String>, hint: &str) -> Fatal {
    Fatal::refused(what, hint)
}

impl JoinFile {
    pub(crate) fn read(path: &Path) -> Result<Self, Fatal> {
        let hint = "use tls://HOST:PORT, or the join file that 'dmover broker' wrote";
        let text = secret::read(path, Guard::Secret, "--broker", hint)?;
        serde_json::from_str(&text).map_err(|error| {
            let hint = "use the join file that 'dmover broker' wrote";
            let shown = path.display();
            refused(format!("--broker '{shown}' is not a join file: {error}"), hint)
        })
    }
}

impl Address {
    /// Parses `--broker`: an address, a join file, or `-` for the content of a join file on standard input.
    /// `credentials`: a file with a token, with the seed of an nkey, or from `nsc`. `insecure`: connections in clear
    /// text are allowed.
    ///
    /// # Errors
    /// A message that says what is wrong.
    pub fn new(broker: &str, credentials: Option<&Path>, insecure: bool) -> Result<Self, Fatal> {
        let is_url = ["nats://", "tls://"].iter().any(|scheme| broker.starts_with(scheme));
        let mut address = if is_url {
            Self::of_join_file(JoinFile { url: broker.to_owned(), ..JoinFile::default() })
        } else if broker == "-" {
            Self::of_stdin(std::io::stdin().lock())?
        } else {
            Self::of_file(Path::new(broker))?
        };
        if let Some(path) = credentials {
            address.secret = read_secret(path)?;
        }
        address.allowed(insecure)
    }

    /// Parses a word that need not be UTF-8, and never reads standard input.
    ///
    /// # Errors
    /// A message that says what is wrong.
    pub(crate) fn of_word(word: &OsStr, insecure: bool) -> Result<Self, Fatal> {
        match word.to_str().filter(|word| word.contains("://")) {
            Some(url) => Self::new(url, None, insecure),
            None => Self::of_file(Path::new(word))?.allowed(insecure),
        }
    }

    fn allowed(mut self, insecure: bool) -> Result<Self, Fatal> {
        self.insecure = insecure;
        if insecure || !self.is_clear_text() {
            return Ok(self);
        }
        let message = format!(
            "the connection to the broker {} would be in clear text, and any program at that \
            address could pose as the broker",
            self.shown()
        );
        let hint = "use the join file of a 'dmover broker' that runs without --insecure, or \
            tls://HOST:PORT; --insecure allows clear text";
        Err(refused(message, hint))
    }

    /// Whether messages are in clear text, so that others on the network can read and change them, and impersonate the
    /// broker.
    pub fn is_clear_text(&self) -> bool {
        let encrypted = |server: &str| server.trim_start().starts_with("tls://");
        self.certificates.is_none() && !self.url.split(',').all(encrypted)
    }

    fn of_file(path: &Path) -> Result<Self, Fatal> {
        JoinFile::read(path).map(Self::of_join_file)
    }

    /// Reads a join file from standard input: every user of a host can see command lines, and a remote host may not
    /// have the file. The rest of standard input is not read.
    fn of_stdin(input: impl std::io::Read) -> Result<Self, Fatal> {
        let read = serde_json::Deserializer::from_reader(input).into_iter::<JoinFile>().next();
        let hint = "pipe the join file that 'dmover broker' wrote to standard input";
        match read {
            Some(Ok(file)) => Ok(Self::of_join_file(file)),
            Some(Err(error)) => {
                let message = "--broker -: standard input is not a join file";
                Err(refused(format!("{message}: {error}"), hint))
            }
            None => Err(refused("--broker -: standard input is empty", hint)),
        }
    }

    fn of_join_file(file: JoinFile) -> Self {
        let secret = match (file.nkey_seed, file.token) {
            (Some(seed), _) => Secret::Nkey(seed),
            (None, Some(token)) => Secret::Token(token),
            (None, None) => Secret::None,
        };
        let JoinFile { url, certificates, signers, mover_seed, .. } = file;
        Self { url, secret, certificates, signers, mover_seed, insecure: false }
    }

    /// The address without its credentials.
    pub fn shown(&self) -> String {
        let servers = self.url.split(',').map(|server| match server.split_once("://") {
            Some((scheme, rest)) => {
                let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
                format!("{scheme}://{host}")
            }
            None => server.to_owned(),
        });
        servers.collect::<Vec<_>>().join(",")
    }
}

fn read_secret(path: &Path) -> Result<Secret, Fatal> {
    let shown = path.display();
    let hint = "use a file with a token, with the seed of an nkey, or written by nsc";
    let text = secret::read(path, Guard::Secret, "--credentials", hint)?;
    let text = text.trim();
    if text.contains("-----BEGIN NATS USER JWT-----") {
        return Ok(Secret::Credentials(path.to_owned()));
    }
    if text.is_empty() || text.contains(char::is_whitespace) {
        return Err(refused(format!("--credentials '{shown}' contains no secret"), hint));
    }
    // Seeds of users begin so (NATS, ADR-1).
    let is_seed = text.starts_with("SU") && nkeys::KeyPair::from_seed(text).is_ok();
    Ok(if is_seed { Secret::Nkey(text.into()) } else { Secret::Token(text.into()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_secret() {
        let address = Address::new("nats://me:secret@a:1,nats://b:2", None, true).unwrap();
        assert_eq!(address.shown(), "nats://a:1,nats://b:2");
        assert!(!format!("{:?}", Secret::Token("secret".into())).contains("secret"));
    }

    #[test]
    fn clear_text_is_used_only_where_it_is_allowed() {
        for (url, is_clear) in
            [("nats://a:1", true), ("tls://a:1", false), ("tls://a:1,nats://b:1", true)]
        {
            let address = Address::new(url, None, false);
            assert_eq!(address.is_err(), is_clear, "{url}");
            assert_eq!(Address::new(url, None, true).unwrap().is_clear_text(), is_clear);
        }
        let error = Address::new("nats://a:1", None, false).unwrap_err();
        assert!(error.hint().contains("--insecure"), "{error}");
    }

    #[test]
    fn a_file_on_standard_input_ends_with_itself() {
        let mut input = &b"{\"url\":\"nats://a:1\",\"token\":\"t\"}\nwhat follows"[..];
        let address = Address::of_stdin(&mut input).unwrap();
        assert_eq!(
            (address.url.as_str(), address.secret),
            ("nats://a:1", Secret::Token("t".into()))
        );
        assert_eq!(input, b"\nwhat follows");
        let error = Address::of_stdin(&b""[..]).unwrap_err();
        assert!(error.to_string().contains("is empty"), "{error}");
        assert!(Address::of_stdin(&b"nats://a:1\n"[..]).is_err());
    }

    #[test]
    fn files_say_which_kind_of_secret_they_hold() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            secret::write(&path, text, 0o600).unwrap();
            path
        };
        let seed = nkeys::KeyPair::new_user().seed().unwrap();
        let file = write("seed", &format!("{seed}\n"));
        let address = Address::new("nats://a", Some(&file), true).unwrap();
        assert_eq!(address.secret, Secret::Nkey(seed.clone()));
        let file = write("token", "s3cret");
        assert_eq!(read_secret(&file).unwrap(), Secret::Token("s3cret".into()));
        assert!(read_secret(&write("empty", " \n")).is_err());
        let join = JoinFile {
            url: "tls://h:4222".into(),
            nkey_seed: Some(seed.clone()),
            ..JoinFile::default()
        };
        let file = write("join.json", &serde_json::to_string(&join).unwrap());
        let address = Address::new(file.to_str().unwrap(), None, false).unwrap();
        assert_eq!((address.url.as_str(), address.secret), ("tls://h:4222", Secret::Nkey(seed)));
        let error = Address::new(write("x", "{").to_str().unwrap(), None, false).unwrap_err();
        assert!(error.to_string().contains("is not a join file"), "{error}");
        assert!(Address::new("nowhere", None, false).unwrap_err().to_string().contains("nowhere"));
    }
}
