//! Short commands that must not hang.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// Where a program is, unless it is told by a path; Debian keeps servers out of a plain user's `PATH`.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return None;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let further = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let candidates = std::env::split_paths(&path).chain(further);
    candidates.map(|directory| directory.join(program)).find(|file| file.is_file())
}

/// A command that is ended after 30 seconds, long after it should have answered.
pub(super) fn tool(words: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "30"]).args(words).env("LC_ALL", "C");
    command
}

/// Standard output of a command that has to succeed.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("start {command:?}"))?;
    text_of(command, &output)
}

/// As [`run`], with standard input.
pub(super) fn feed(command: &mut Command, input: &str) -> Result<String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("start {command:?}"))?;
    // Far less than a pipe holds; a command that ended early tells why by its status.
    let _ = child.stdin.take().context("no standard input")?.write_all(input.as_bytes());
    let output = child.wait_with_output()?;
    text_of(command, &output).with_context(|| format!("given {input:?}"))
}

fn text_of(command: &Command, output: &Output) -> Result<String> {
    if !output.status.success() {
        let said = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        bail!("{command:?} ended with {}: {}{}", output.status, said[0].trim(), said[1].trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
