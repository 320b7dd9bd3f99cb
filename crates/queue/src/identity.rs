//! The keys that sign offers of jobs, and the keys that movers trust.
//!
//! Each user has one key pair (Ed25519) in the state directory. The coordinator signs its offers with it. A mover
//! accepts offers that are signed by its own user's key, by a key in its join file, or by a key of `--trust`.
use dmover_model::Fatal;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::address::Address;
use crate::secret::{self, Guard};
use crate::signer::{Signer, read_signers};

/// The file with the seed of a user's key pair, and the file with the public key.
const SEED: &str = "identity.key";
const PUBLIC: &str = "identity.pub";
const HINT: &str =
    "if you remove the file, dmover creates a new key, which movers then have to trust";

/// The key pair of a user or of a user's movers.
pub struct Identity {
    pair: nkeys::KeyPair,
    public: String,
}

/// The key of this process, and the keys that it trusts.
pub struct Trust {
    pub(crate) identity: Identity,
    /// Keys whose offers are accepted.
    pub(crate) offers: Vec<Signer>,
    /// The public keys of movers that may join.
    pub(crate) movers: Vec<String>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({})", self.public)
    }
}

fn broken(error: &dyn std::fmt::Display) -> Fatal {
    Fatal::refused(format!("cannot use a key: {error}"), HINT)
}

/// The bytes to sign, with a context so that a signature is valid for one purpose only.
fn in_context(context: &str, bytes: &[u8]) -> Vec<u8> {
    [b"dmover ", context.as_bytes(), b"\0", bytes].concat()
}

/// Whether a signature of these bytes in this context was made with a key.
pub(crate) fn is_signed_by(key: &str, context: &str, bytes: &[u8], signature: &[u8]) -> bool {
    let pair = nkeys::KeyPair::from_public_key(key);
    pair.is_ok_and(|pair| pair.verify(&in_context(context, bytes), signature).is_ok())
}

impl Identity {
    fn of_pair(pair: nkeys::KeyPair) -> Self {
        let public = pair.public_key();
        Self { pair, public }
    }

    fn of_seed(seed: &str) -> Result<Self, Fatal> {
        nkeys::KeyPair::from_seed(seed.trim()).map(Self::of_pair).map_err(|e| broken(&e))
    }

    /// The key pair of the user who runs this process: the first one in these directories, or a new one in the first
    /// directory.
    ///
    /// # Errors
    /// The key cannot be stored, or other users may read it.
    pub fn of_user(directories: &[PathBuf]) -> Result<Self, Fatal> {
        if let Some(known) = Self::all_of(directories)?.into_iter().next() {
            return Ok(known);
        }
        let Some(directory) = directories.first() else {
            let hint = "set $DMOVER_STATE_DIR to a directory";
            return Err(Fatal::refused("there is no directory for the key that signs jobs", hint));
        };
        Self::make(directory).map_err(|error| {
            let message = format!(
                "cannot store the key that signs jobs in '{}': {error}",
                directory.display()
            );
            Fatal::refused(message, "set $DMOVER_STATE_DIR to another directory")
        })?;
        // Another process may have created one at the same time.
        Self::of_file(&directory.join(SEED))
    }

    /// The key pairs that exist.
    fn all_of(directories: &[PathBuf]) -> Result<Vec<Self>, Fatal> {
        let files = directories.iter().map(|directory| directory.join(SEED));
        let files = files.filter(|file| std::fs::symlink_metadata(file).is_ok());
        files.map(|file| Self::of_file(&file)).collect()
    }

    fn of_file(path: &Path) -> Result<Self, Fatal> {
        let seed = secret::read(path, Guard::Secret, "the key that signs jobs", HINT)?;
        Self::of_seed(&seed)
    }

    fn make(directory: &Path) -> std::io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let pair = nkeys::KeyPair::new_user();
        let seed = pair.seed().map_err(std::io::Error::other)?;
        let name = format!("identity-{:016x}.key", dmover_host::random_u64());
        let new = directory.join(name);
        secret::write(&new, &(seed + "\n"), 0o600)?;
        // Two that begin at once have one key.
        let linked = std::fs::hard_link(&new, directory.join(SEED));
        let made = match linked {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
            Ok(()) => Ok(true),
            // A file system without hard links.
            Err(_) => std::fs::rename(&new, directory.join(SEED)).map(|()| true),
        };
        let _ = std::fs::remove_file(&new);
        if made? {
            let host = dmover_host::name();
            let uid = dmover_host::user::effective_uid();
            let line = format!("{} {uid} {host}\n", pair.public_key());
            secret::write(&directory.join(PUBLIC), &line, 0o644)?;
        }
        Ok(())
    }

    /// The key pair for this user's movers, which may run without the user's own key.
    pub(crate) fn of_movers(&self) -> Result<Self, Fatal> {
        let seed = self.pair.seed().map_err(|e| broken(&e))?;
        let bytes = blake3::derive_key("dmover 1 key of the movers of a user", seed.as_bytes());
        let pair = nkeys::KeyPair::new_from_raw(nkeys::KeyPairType::User, bytes);
        pair.map(Self::of_pair).map_err(|e| broken(&e))
    }

    /// The public key.
    pub(crate) fn public(&self) -> &str {
        &self.public
    }

    /// The public key with the user for whom it signs.
    pub(crate) fn signer(&self) -> Signer {
        Signer { key: self.public.clone(), uid: dmover_host::user::effective_uid() }
    }

    pub(crate) fn seed(&self) -> Result<String, Fatal> {
        self.pair.seed().map_err(|e| broken(&e))
    }

    pub(crate) fn sign(&self, context: &str, bytes: &[u8]) -> Vec<u8> {
        // It fails for a pair without its secret half, and there is none.
        self.pair.sign(&in_context(context, bytes)).unwrap_or_default()
    }
}

impl Trust {
    /// The trust of a job's coordinator. `files`: further keys, see [`read_signers`].
    ///
    /// # Errors
    /// Keys that cannot be read, created or trusted.
    pub fn of_coordinator(
        directories: &[PathBuf],
        address: &Address,
        files: &[PathBuf],
    ) -> Result<Self, Fatal> {
        let further = read_signers(files)?;
        let own = Identity::all_of(directories)?;
        // Where there are several, movers of this broker know one of them.
        let is_known = |own: &Identity| address.signers.iter().any(|known| known.key == own.public);
        let identity = match own.into_iter().find(is_known) {
            Some(known) => known,
            None => Identity::of_user(directories)?,
        };
        let mut movers = vec![identity.public.clone(), identity.of_movers()?.public];
        if let Some(seed) = &address.mover_seed {
            movers.push(Identity::of_seed(seed)?.public);
        }
        movers.extend(further.iter().map(|signer| signer.key.clone()));
        let offers = [vec![identity.signer()], address.signers.clone(), further].concat();
        Ok(Self { identity, offers, movers })
    }

    /// The trust of a mover.
    ///
    /// # Errors
    /// Keys that cannot be read, created or trusted.
    pub fn of_mover(
        directories: &[PathBuf],
        address: &Address,
        files: &[PathBuf],
    ) -> Result<Self, Fatal> {
        let (own, identity) = match &address.mover_seed {
            Some(seed) => (Identity::all_of(directories)?, Identity::of_seed(seed)?),
            None => {
                let user = Identity::of_user(directories)?;
                (Identity::all_of(directories)?, user)
            }
        };
        let own = own.iter().map(Identity::signer).collect();
        let offers = [own, address.signers.clone(), read_signers(files)?].concat();
        Ok(Self { identity, offers, movers: Vec::new() })
    }

    /// The users for whom a key signs.
    pub(crate) fn users_of(&self, key: &str) -> Vec<u32> {
        self.offers.iter().filter(|known| known.key == key).map(|known| known.uid).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_one_key_and_its_movers_another() {
        let directory = tempfile::tempdir().unwrap();
        let state = vec![directory.path().join("new/state"), directory.path().join("usual")];
        let first = Identity::of_user(&state).unwrap();
        assert_eq!(Identity::of_user(&state).unwrap().public, first.public);
        // The usual place is looked at if the first one has none.
        let swapped = vec![directory.path().join("empty"), state[0].clone()];
        assert_eq!(Identity::of_user(&swapped).unwrap().public, first.public);
        assert_eq!(std::fs::read_dir(&state[0]).unwrap().count(), 2);
        let movers = first.of_movers().unwrap();
        assert_ne!(movers.public, first.public);
        let again = Identity::of_seed(&first.seed().unwrap()).unwrap().of_movers().unwrap();
        assert_eq!(again.public, movers.public);
    }

    #[test]
    fn a_signature_holds_for_its_key_its_bytes_and_its_context() {
        let pair = || Identity::of_pair(nkeys::KeyPair::new_user());
        let (one, other) = (pair(), pair());
        let signature = one.sign("offer", b"bytes");
        assert!(is_signed_by(&one.public, "offer", b"bytes", &signature));
        assert!(!is_signed_by(&other.public, "offer", b"bytes", &signature));
        assert!(!is_signed_by(&one.public, "hello", b"bytes", &signature));
        assert!(!is_signed_by(&one.public, "offer", b"other", &signature));
        assert!(!is_signed_by("U", "offer", b"bytes", b""));
    }
}
