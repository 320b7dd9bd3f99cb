//! The files that the rules look at: what git tracks, and what it would track.
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;

use super::rust::RustSource;

/// A text file of the repository.
#[derive(Debug)]
pub struct SourceFile {
    /// The path from the root of the repository.
    pub path: String,
    /// What is in it.
    pub text: String,
    /// The parsed source, or why it cannot be parsed; only for Rust.
    pub rust: Option<Result<RustSource, String>>,
}

impl SourceFile {
    /// A file with that text; Rust is parsed at once.
    pub fn new(path: &str, text: &str) -> Self {
        let extension = Path::new(path).extension();
        let rust = extension.is_some_and(|e| e == "rs").then(|| RustSource::parse(text));
        Self { path: path.to_owned(), text: text.to_owned(), rust }
    }

    /// Whether the whole file is test code, by its name.
    pub fn is_test(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        let stem = name.split('.').next().unwrap_or_default();
        self.path.split('/').any(|part| part == "tests" || part == "benches")
            || stem == "tests"
            || stem.ends_with("_tests")
    }

    /// The parsed source, if it is Rust and parses.
    pub fn rust(&self) -> Option<&RustSource> {
        self.rust.as_ref().and_then(|parsed| parsed.as_ref().ok())
    }
}

/// Every tracked or new file that git does not ignore; binary ones are left out.
pub fn read() -> Result<Vec<SourceFile>> {
    let root = crate::root();
    let listing = Command::new("git")
        .current_dir(&root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("cannot run git")?;
    ensure!(listing.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listing.stderr));
    let names = String::from_utf8(listing.stdout).context("a file name is not UTF-8")?;
    let mut files = Vec::new();
    for name in names.split_terminator('\0') {
        let path = root.join(name);
        // A deleted file is listed until the deletion is staged; a link is judged by its target.
        if !path.is_file() || path.is_symlink() {
            continue;
        }
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read {name}"))?;
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(SourceFile::new(name, &text));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_files_are_known_by_name() {
        for path in ["crates/x/tests/a.rs", "crates/x/src/a/tests.rs", "a/coordinator_tests.rs"] {
            assert!(SourceFile::new(path, "").is_test(), "{path}");
        }
        for path in ["crates/testkit/src/a.rs", "crates/x/src/contests.rs", "docs/testing.md"] {
            assert!(!SourceFile::new(path, "").is_test(), "{path}");
        }
    }
}
