//! The release: one static program with its man pages, completions and licences, as an archive and a Debian package.
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::manuals;

mod debian;
mod licences;

const TARGET: &str = "x86_64-unknown-linux-musl";
const PACKAGE: &str = "dmover-cli";
/// The program may not be larger.
const BYTES_MAX: u64 = 15_000_000;

/// Builds `dist/dmover-VERSION-x86_64-linux.tar.gz`, its checksum, and `dist/dmover_VERSION_amd64.deb`.
pub fn run() -> Result<()> {
    need_musl_gcc()?;
    need_target()?;
    let binary = build()?;
    check_static(&binary)?;
    check_size(&binary)?;
    let metadata = licences::metadata()?;
    let version = licences::package(&metadata, PACKAGE)?["version"].as_str();
    let version = version.context("the package has no version")?;
    let name = format!("dmover-{version}-x86_64-linux");
    let dist = crate::root().join("dist");
    let stage = dist.join(&name);
    if stage.exists() {
        std::fs::remove_dir_all(&stage).context("cannot clear dist/")?;
    }
    std::fs::create_dir_all(&stage).context("cannot create dist/")?;
    copy(&binary, &stage.join("dmover"))?;
    stage_documents(&stage)?;
    std::fs::write(stage.join("THIRD-PARTY.txt"), licences::third_party(&metadata)?)?;
    println!("{}", pack(&dist, &name)?.display());
    if Command::new("dpkg-deb").arg("--version").output().is_ok() {
        println!("{}", debian::pack(&stage, version, &dist)?.display());
    } else {
        println!("no Debian package: dpkg-deb is missing (apt-get install dpkg)");
    }
    Ok(())
}

/// Puts into the stage what needs no build.
fn stage_documents(stage: &Path) -> Result<()> {
    let root = crate::root();
    for file in ["README.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&root.join(file), &stage.join(file))?;
    }
    let units = "systemd";
    std::fs::create_dir_all(stage.join(units))?;
    for unit in std::fs::read_dir(root.join("contrib").join(units))? {
        let unit = unit?;
        copy(&unit.path(), &stage.join(units).join(unit.file_name()))?;
    }
    manuals::man(&stage.join("man/man1"))?;
    manuals::completions(&stage.join("completions"))
}

fn check_size(binary: &Path) -> Result<()> {
    let bytes = binary.metadata()?.len();
    ensure!(
        bytes <= BYTES_MAX,
        "the program has {bytes} bytes, the limit is {BYTES_MAX}: see which dependency grew \
         ('cargo bloat --profile dist --crates')"
    );
    Ok(())
}

fn need_musl_gcc() -> Result<()> {
    let found =
        Command::new("musl-gcc").arg("--version").output().is_ok_and(|o| o.status.success());
    ensure!(
        found,
        "musl-gcc is missing: it compiles the C parts against musl\n\
         hint: apt-get install musl-tools, or scripts/install-test-deps"
    );
    Ok(())
}

/// Adds the Rust target if rustup does not have it yet.
fn need_target() -> Result<()> {
    let mut rustup = Command::new("rustup");
    let Ok(installed) = rustup.args(["target", "list", "--installed"]).output() else {
        // Without rustup the toolchain has the target or the build says what is missing.
        return Ok(());
    };
    if String::from_utf8_lossy(&installed.stdout).lines().any(|line| line == TARGET) {
        return Ok(());
    }
    run_command(Command::new("rustup").args(["target", "add", TARGET]))
}

/// Builds the program and answers where it is.
fn build() -> Result<PathBuf> {
    let output = cargo()
        .args(["build", "--profile", "dist", "--locked", "--target", TARGET, "--package", PACKAGE])
        .args(["--bin", "dmover", "--message-format", "json-render-diagnostics"])
        .env("CC_x86_64_unknown_linux_musl", "musl-gcc")
        // Not in the profile: cargo ignores `strip` there for a package that has other settings of its own.
        .env("RUSTFLAGS", format!("{} -Cstrip=symbols", neutral_paths()))
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(output.status.success(), "the build failed");
    let text = String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")?;
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut executables = messages.filter_map(|m| m["executable"].as_str().map(PathBuf::from));
    executables.next_back().context("cargo built no program")
}

/// Flags that keep the directories of this machine out of the program.
fn neutral_paths() -> String {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cargo_home =
        std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    format!("{} {}", remap(&cargo_home, "cargo"), remap(&crate::root(), "dmover"))
}

/// Asks the loader's own tool, and starts the program once.
fn check_static(binary: &Path) -> Result<()> {
    let output = Command::new("ldd").arg(binary).output().context("cannot run ldd")?;
    let mut answer = String::from_utf8_lossy(&output.stdout).into_owned();
    answer.push_str(&String::from_utf8_lossy(&output.stderr));
    ensure!(says_static(&answer), "{} is not static:\n{answer}", binary.display());
    run_command(Command::new(binary).arg("--version"))
}

/// What ldd says of programs that need no loader, with and without a fixed address.
fn says_static(answer: &str) -> bool {
    answer.contains("statically linked") || answer.contains("not a dynamic executable")
}

/// Packs the directory `name`, the same bytes from the same files.
fn pack(dist: &Path, name: &str) -> Result<PathBuf> {
    let archive = dist.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.current_dir(dist).args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.args([
        "--mode=u+rwX,go+rX,go-w",
        &format!("--mtime=@{}", source_date_epoch()),
        "--use-compress-program=gzip -9n",
    ]);
    run_command(tar.arg("-cf").arg(&archive).arg(name))?;
    let sums = Command::new("sha256sum").current_dir(dist).arg(format!("{name}.tar.gz")).output();
    let sums = sums.context("cannot run sha256sum")?;
    ensure!(sums.status.success(), "sha256sum failed");
    std::fs::write(dist.join(format!("{name}.tar.gz.sha256")), sums.stdout)?;
    Ok(archive)
}

/// The time of all packed files, so that the same files give the same archives.
fn source_date_epoch() -> String {
    std::env::var("SOURCE_DATE_EPOCH").unwrap_or_else(|_| "0".to_owned())
}

fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(crate::root());
    cargo
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

fn run_command(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_static_programs_pass() {
        assert!(says_static("\tstatically linked\n"));
        assert!(says_static("\tnot a dynamic executable\n"));
        assert!(!says_static("\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n"));
    }
}
