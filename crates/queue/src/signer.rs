//! Public keys that sign offers of jobs, and the files that list them.
use dmover_model::Fatal;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

use crate::secret::{self, Guard};

/// A public key, and the user for whom it signs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signer {
    /// The key in the form that NATS uses for users: `U…`.
    pub key: String,
    /// The user.
    pub uid: u32,
}

/// Reads public keys from files, and from all files `*.pub` in directories. A line has a key, a user id, and an
/// optional comment; empty lines and lines that begin with `#` are ignored.
///
/// # Errors
/// Files that cannot be read or parsed, or that other users may change.
pub(crate) fn read_signers(files: &[PathBuf]) -> Result<Vec<Signer>, Fatal> {
    const WHAT: &str = "--trust";
    let hint = "use a file such as identity.pub, or a directory of such files";
    let fail = |path: &Path, error: &dyn std::fmt::Display| {
        Fatal::refused(format!("{WHAT} '{}': {error}", path.display()), hint)
    };
    let mut signers = Vec::new();
    let mut all = Vec::new();
    for path in files {
        if !std::fs::metadata(path).map_err(|e| fail(path, &e))?.is_dir() {
            all.push(path.clone());
            continue;
        }
        secret::check_directory(path, WHAT)?;
        for entry in std::fs::read_dir(path).map_err(|e| fail(path, &e))? {
            let file = entry.map_err(|e| fail(path, &e))?.path();
            all.extend((file.extension().is_some_and(|end| end == "pub")).then_some(file));
        }
    }
    for path in &all {
        let text = secret::read(path, Guard::Trust, WHAT, hint)?;
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.split_ascii_whitespace();
            let key = words.next().filter(|key| nkeys::KeyPair::from_public_key(key).is_ok());
            let uid = words.next().and_then(|uid| uid.parse().ok());
            let Some((key, uid)) = key.zip(uid) else {
                let words = "a line is not a public key and a user id";
                return Err(fail(path, &words));
            };
            signers.push(Signer { key: key.to_owned(), uid });
        }
    }
    Ok(signers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trusted_keys_are_read_from_files_and_directories() {
        let directory = tempfile::tempdir().unwrap();
        let key = nkeys::KeyPair::new_user().public_key();
        let (good, bad) = (directory.path().join("a.pub"), directory.path().join("b"));
        secret::write(&good, &format!("# root's\n\n{key} 1000 alice@h\n"), 0o644).unwrap();
        secret::write(&bad, &format!("{key}\n"), 0o644).unwrap();
        let expected = [Signer { key, uid: 1000 }];
        assert_eq!(read_signers(std::slice::from_ref(&good)).unwrap(), expected);
        assert_eq!(read_signers(&[directory.path().to_owned()]).unwrap(), expected);
        assert!(read_signers(&[bad]).is_err() && read_signers(&["/nowhere".into()]).is_err());
        secret::write(&good, "", 0o666).unwrap();
        std::fs::set_permissions(&good, std::os::unix::fs::PermissionsExt::from_mode(0o666))
            .unwrap();
        assert!(
            read_signers(&[good]).unwrap_err().to_string().contains("other users may change it")
        );
    }
}
