//! Checks of files with secrets: who may own them, and who may read them.
use dmover_model::Fatal;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// What a trusted file must not allow to other users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// It holds a secret: no other user may read it.
    Secret,
    /// It names the keys to trust: only its owner may write it. Its owner may also be root.
    Trust,
}

/// Reads a file, and refuses one that belongs to another user, or that others may read or change. `what`: the option
/// that names the file, such as `--broker`; `hint`: the advice if the file cannot be read.
///
/// # Errors
/// The file cannot be read, or must not be trusted.
pub fn read(path: &Path, guard: Guard, what: &str, hint: &str) -> Result<String, Fatal> {
    let shown = path.display();
    let fail = |error: std::io::Error| Fatal::refused(format!("{what} '{shown}': {error}"), hint);
    let mut file = std::fs::File::open(path).map_err(fail)?;
    // Check the open file, whatever the name refers to now.
    let found = file.metadata().map_err(fail)?;
    let own = dmover_host::user::effective_uid();
    let owner = found.uid();
    if owner != own && !(guard == Guard::Trust && owner == 0) {
        let message =
            format!("{what} '{shown}' belongs to user {owner}, but dmover runs as user {own}");
        let hint = "use a file that you own";
        return Err(Fatal::refused(message, hint));
    }
    // An access control list shows in the bits of the group.
    let mode = found.mode() & 0o7777;
    let (others, words, advice) = match guard {
        Guard::Secret => (0o077, "contains a secret, but other users have access to it", "600"),
        Guard::Trust => (0o022, "lists trusted keys, but other users may change it", "644"),
    };
    if mode & others != 0 {
        let message = format!("{what} '{shown}' {words} (mode {mode:o})");
        let hint = format!(
            "run 'chmod {advice} FILE'; if other users have read a secret, also replace the secret"
        );
        return Err(Fatal::refused(message, hint));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(fail)?;
    Ok(text)
}

/// Refuses a directory that other users could put files into.
pub(crate) fn check_directory(path: &Path, what: &str) -> Result<(), Fatal> {
    let shown = path.display();
    let hint = "use a directory that you own and that only you may write to ('chmod 700 DIR')";
    let found = std::fs::metadata(path)
        .map_err(|error| Fatal::refused(format!("{what} '{shown}': {error}"), hint))?;
    let own = dmover_host::user::effective_uid();
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    if owner != own && owner != 0 {
        let message =
            format!("{what} '{shown}' belongs to user {owner}, but dmover runs as user {own}");
        return Err(Fatal::refused(message, hint));
    }
    if mode & 0o022 != 0 {
        let message = format!("{what} '{shown}': other users may write to it (mode {mode:o})");
        return Err(Fatal::refused(message, hint));
    }
    Ok(())
}

/// Writes a file atomically; it never has wider permissions than `mode`.
pub fn write(path: &Path, text: &str, mode: u32) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let _ = std::fs::remove_file(&new);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(&new)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all())?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_others_may_open_or_change_is_refused_with_its_mode() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        write(&path, "s3cret", 0o600).unwrap();
        let read = |guard| read(&path, guard, "--broker", "hint").map_err(|e| e.to_string());
        assert_eq!(read(Guard::Secret).unwrap(), "s3cret");
        for (mode, is_secret, is_trusted) in
            [(0o400, true, true), (0o640, false, true), (0o644, false, true), (0o620, false, false)]
        {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(read(Guard::Secret).is_ok(), is_secret, "{mode:o}");
            assert_eq!(read(Guard::Trust).is_ok(), is_trusted, "{mode:o}");
        }
        let error = read(Guard::Secret).unwrap_err();
        assert!(error.contains("other users have access to it (mode 620)"), "{error}");
    }
}
