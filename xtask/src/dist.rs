//! The release archive: one static program with its man pages, completions and licences.
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::manuals;

const TARGET: &str = "x86_64-unknown-linux-musl";
const PACKAGE: &str = "dmover-cli";

/// Builds `dist/dmover-VERSION-x86_64-linux.tar.gz` and its checksum.
pub fn run() -> Result<()> {
    let root = crate::root();
    need_musl_gcc()?;
    need_target()?;
    let binary = build()?;
    check_static(&binary)?;
    let metadata = metadata()?;
    let version = package(&metadata, PACKAGE)?["version"].as_str().context("no version")?;
    let name = format!("dmover-{version}-x86_64-linux");
    let dist = root.join("dist");
    let stage = dist.join(&name);
    if stage.exists() {
        std::fs::remove_dir_all(&stage).context("cannot clear dist/")?;
    }
    std::fs::create_dir_all(&stage).context("cannot create dist/")?;
    copy(&binary, &stage.join("dmover"))?;
    for file in ["README.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&root.join(file), &stage.join(file))?;
    }
    std::fs::write(stage.join("THIRD-PARTY.txt"), third_party(&metadata)?)?;
    manuals::man(&stage.join("man/man1"))?;
    manuals::completions(&stage.join("completions"))?;
    let archive = pack(&dist, &name)?;
    println!("{}", archive.display());
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
        .args(["build", "--release", "--locked", "--target", TARGET, "--package", PACKAGE])
        .args(["--bin", "dmover", "--message-format", "json-render-diagnostics"])
        // The names of functions stay, for backtraces.
        .args(["--config", "profile.release.strip=\"debuginfo\""])
        .env("CC_x86_64_unknown_linux_musl", "musl-gcc")
        .env("RUSTFLAGS", neutral_paths())
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

/// Names, versions and licences of everything that is linked in, then each licence text once.
fn third_party(metadata: &Value) -> Result<String> {
    let mut list = String::from("dmover contains these libraries, under their own licences:\n\n");
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let linked = linked(metadata)?;
    for package in array(metadata, "packages")? {
        // What has no source is ours.
        let foreign = !package["source"].is_null();
        if !foreign || !package["id"].as_str().is_some_and(|id| linked.contains(id)) {
            continue;
        }
        let word = |field: &str| package[field].as_str().unwrap_or("-");
        let name = format!("{} {}", word("name"), word("version"));
        writeln!(list, "{name} ({}), {}", word("license"), word("repository"))?;
        let manifest = Path::new(word("manifest_path"));
        for file in licence_files(manifest.parent().context("a manifest lies nowhere")?)? {
            let bytes =
                std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let text = String::from_utf8_lossy(&bytes).trim().to_owned();
            texts.entry(text).or_default().push(name.clone());
        }
    }
    for (text, packages) in texts {
        let rule = "=".repeat(78);
        writeln!(list, "\n{rule}\n{}\n{rule}\n{text}", packages.join(", "))?;
    }
    Ok(list)
}

/// The ids of all packages that the program is linked from: build tools and tests left out.
fn linked(metadata: &Value) -> Result<BTreeSet<&str>> {
    let nodes = metadata["resolve"]["nodes"].as_array().context("no resolved dependencies")?;
    let nodes: BTreeMap<&str, &Value> =
        nodes.iter().filter_map(|node| Some((node["id"].as_str()?, node))).collect();
    let mut open = vec![package(metadata, PACKAGE)?["id"].as_str().context("no id")?];
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !seen.insert(id) {
            continue;
        }
        let dependencies = nodes.get(id).and_then(|node| node["deps"].as_array());
        for dependency in dependencies.into_iter().flatten() {
            let kinds = dependency["dep_kinds"].as_array();
            if kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null())) {
                open.extend(dependency["pkg"].as_str());
            }
        }
    }
    Ok(seen)
}

fn licence_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default().to_uppercase();
        let wanted = ["LICEN", "COPYING", "NOTICE", "COPYRIGHT", "UNLICENSE"];
        if path.is_file() && wanted.iter().any(|start| name.starts_with(start)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Packs the directory `name`, the same bytes from the same files.
fn pack(dist: &Path, name: &str) -> Result<PathBuf> {
    let archive = dist.join(format!("{name}.tar.gz"));
    let epoch = std::env::var("SOURCE_DATE_EPOCH").unwrap_or_else(|_| "0".to_owned());
    let mut tar = Command::new("tar");
    tar.current_dir(dist).args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.args([
        "--mode=u+rwX,go+rX,go-w",
        &format!("--mtime=@{epoch}"),
        "--use-compress-program=gzip -9n",
    ]);
    run_command(tar.arg("-cf").arg(&archive).arg(name))?;
    let sums = Command::new("sha256sum").current_dir(dist).arg(format!("{name}.tar.gz")).output();
    let sums = sums.context("cannot run sha256sum")?;
    ensure!(sums.status.success(), "sha256sum failed");
    std::fs::write(dist.join(format!("{name}.tar.gz.sha256")), sums.stdout)?;
    Ok(archive)
}

fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(crate::root());
    cargo
}

fn metadata() -> Result<Value> {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET])
        .output()
        .context("cannot run cargo")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")
}

fn array<'a>(metadata: &'a Value, field: &str) -> Result<&'a Vec<Value>> {
    metadata[field].as_array().with_context(|| format!("cargo metadata has no {field}"))
}

fn package<'a>(metadata: &'a Value, name: &str) -> Result<&'a Value> {
    let found = array(metadata, "packages")?.iter().find(|package| package["name"] == name);
    found.with_context(|| format!("no package {name}"))
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
    use serde_json::json;

    #[test]
    fn only_static_programs_pass() {
        assert!(says_static("\tstatically linked\n"));
        assert!(says_static("\tnot a dynamic executable\n"));
        assert!(!says_static("\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n"));
    }

    #[test]
    fn build_tools_and_tests_are_not_linked() {
        let dependency =
            |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [{ "name": PACKAGE, "id": "cli" }],
            "resolve": { "nodes": [
                { "id": "cli", "deps": [
                    dependency("lib", Value::Null),
                    dependency("cc", json!("build")),
                    dependency("kit", json!("dev")),
                ]},
                { "id": "lib", "deps": [dependency("deep", Value::Null)] },
                { "id": "cc", "deps": [] },
            ]},
        });
        assert_eq!(linked(&metadata).unwrap(), BTreeSet::from(["cli", "deep", "lib"]));
    }
}
