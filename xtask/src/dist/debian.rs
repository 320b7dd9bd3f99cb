//! The Debian package, made from the staged release by dpkg-deb(1).
use anyhow::{Context, Result, ensure};
use std::fmt::Write;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{copy, run_command, source_date_epoch};

/// Where files of the stage go. A directory means all files in it.
const PLACES: &[(&str, &str)] = &[
    ("dmover", "usr/bin/dmover"),
    ("man/man1", "usr/share/man/man1"),
    ("completions/dmover.bash", "usr/share/bash-completion/completions/dmover"),
    ("completions/_dmover", "usr/share/zsh/vendor-completions/_dmover"),
    ("completions/dmover.fish", "usr/share/fish/vendor_completions.d/dmover.fish"),
    ("README.md", "usr/share/doc/dmover/README.md"),
    ("LICENSE-APACHE", "usr/share/doc/dmover/LICENSE-APACHE"),
    ("LICENSE-MIT", "usr/share/doc/dmover/LICENSE-MIT"),
    ("THIRD-PARTY.txt", "usr/share/doc/dmover/THIRD-PARTY.txt"),
    ("systemd", "usr/share/doc/dmover/examples/systemd"),
];
const COPYRIGHT: &str = "\
dmover is licensed under the Apache License 2.0 or the MIT License, at your choice:
LICENSE-APACHE and LICENSE-MIT in this directory. THIRD-PARTY.txt has the libraries
that are linked into the program, and their licences.
";

/// Makes `dmover_VERSION_amd64.deb` in `dist` from the staged release. Needs dpkg-deb(1).
pub fn pack(stage: &Path, version: &str, dist: &Path) -> Result<PathBuf> {
    let scratch = tempfile::tempdir_in(dist).context("cannot create a directory in dist/")?;
    let root = scratch.path().join("root");
    for (from, to) in PLACES {
        let (from, to) = (stage.join(from), root.join(to));
        if from.is_dir() {
            for name in names(&from)? {
                place(&from.join(&name), &to.join(&name))?;
            }
        } else {
            place(&from, &to)?;
        }
    }
    std::fs::write(root.join("usr/share/doc/dmover/copyright"), COPYRIGHT)?;
    // A package has its man pages compressed (Debian Policy 12.1).
    let pages = root.join("usr/share/man/man1");
    run_command(Command::new("gzip").arg("-9n").args(paths(&pages)?))?;
    let bytes = set_modes(&root)?;
    let control = root.join("DEBIAN");
    std::fs::create_dir(&control)?;
    let sums = Command::new("sh")
        .args(["-c", "find usr -type f -print0 | sort -z | xargs -0 md5sum"])
        .current_dir(&root)
        .output()
        .context("cannot run md5sum")?;
    ensure!(sums.status.success(), "md5sum failed: {}", String::from_utf8_lossy(&sums.stderr));
    std::fs::write(control.join("md5sums"), sums.stdout)?;
    std::fs::write(control.join("control"), description(version, bytes)?)?;
    std::fs::set_permissions(&control, Permissions::from_mode(0o755))?;
    let package = dist.join(format!("dmover_{version}_amd64.deb"));
    run_command(
        Command::new("dpkg-deb")
            .args(["--root-owner-group", "-Zxz", "--build"])
            .args([&root, &package])
            .env("SOURCE_DATE_EPOCH", source_date_epoch())
            .stdout(std::process::Stdio::null()),
    )?;
    Ok(package)
}

/// The control file; `bytes` is the size of all files.
fn description(version: &str, bytes: u64) -> Result<String> {
    let mut text = String::new();
    writeln!(text, "Package: dmover")?;
    writeln!(text, "Version: {version}")?;
    writeln!(text, "Architecture: amd64")?;
    writeln!(text, "Maintainer: dmover developers <dmover@example.invalid>")?;
    writeln!(text, "Installed-Size: {}", bytes.div_ceil(1024))?;
    writeln!(text, "Section: utils")?;
    writeln!(text, "Priority: optional")?;
    writeln!(text, "Description: fast, verifying mover of file trees")?;
    writeln!(
        text,
        " Copies, mirrors, compares and checksums file trees on POSIX and parallel file"
    )?;
    writeln!(
        text,
        " systems with many threads and many hosts, resumes after any interruption, and"
    )?;
    writeln!(text, " verifies what it wrote.")?;
    Ok(text)
}

fn place(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().context("a file of the package has no directory")?;
    std::fs::create_dir_all(parent)
        .with_context(|| format!("cannot create {}", parent.display()))?;
    copy(from, to)
}

fn names(directory: &Path) -> Result<Vec<std::ffi::OsString>> {
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("cannot read {}", directory.display()))?;
    let mut names: Vec<_> = entries.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}

fn paths(directory: &Path) -> Result<Vec<PathBuf>> {
    Ok(names(directory)?.into_iter().map(|name| directory.join(name)).collect())
}

/// Modes that do not depend on the umask of whoever builds. Answers the size of all files.
fn set_modes(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for path in paths(directory)? {
        let metadata = path.metadata()?;
        if metadata.is_dir() {
            bytes += set_modes(&path)?;
        } else {
            bytes += metadata.len();
            let is_program = metadata.permissions().mode() & 0o100 != 0;
            let mode = if is_program { 0o755 } else { 0o644 };
            std::fs::set_permissions(&path, Permissions::from_mode(mode))?;
        }
    }
    std::fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dpkg_deb(words: &[&str], package: &Path) -> Option<String> {
        let output = Command::new("dpkg-deb").args(words).arg(package).output().ok()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    #[test]
    fn dpkg_finds_every_file_in_its_place() {
        if Command::new("dpkg-deb").arg("--version").output().is_err() {
            dmover_testkit::skip!("dpkg-deb is missing");
        }
        let dist = tempfile::tempdir().unwrap();
        let stage = dist.path().join("stage");
        std::fs::create_dir(&stage).unwrap();
        std::fs::write(stage.join("dmover"), "#!/bin/sh\necho dmover 1.2.3\n").unwrap();
        std::fs::set_permissions(stage.join("dmover"), Permissions::from_mode(0o700)).unwrap();
        super::super::stage_documents(&stage).unwrap();
        std::fs::write(stage.join("THIRD-PARTY.txt"), "none\n").unwrap();
        let package = pack(&stage, "1.2.3", dist.path()).unwrap();
        assert_eq!(package.file_name().unwrap(), "dmover_1.2.3_amd64.deb");
        let fields = dpkg_deb(&["--field"], &package).unwrap();
        assert!(fields.contains("Version: 1.2.3"), "{fields}");
        let list = dpkg_deb(&["--contents"], &package).unwrap();
        for wanted in [
            "-rwxr-xr-x root/root",
            "./usr/share/man/man1/dmover-sync.1.gz",
            "./usr/share/bash-completion/completions/dmover",
            "./usr/share/doc/dmover/examples/systemd/dmover-mover.service",
            "./usr/share/doc/dmover/copyright",
        ] {
            assert!(list.contains(wanted), "{wanted}: {list}");
        }
        // Unpacked, the checksums of the package hold and the program runs.
        let root = dist.path().join("unpacked");
        assert!(
            Command::new("dpkg-deb").arg("-R").args([&package, &root]).status().unwrap().success()
        );
        let words = ["-c", "md5sum --quiet -c DEBIAN/md5sums && usr/bin/dmover"];
        let output = Command::new("sh").args(words).current_dir(&root).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.stdout, b"dmover 1.2.3\n");
    }
}
