//! One run of one program: wall clock, processor time, peak memory.
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// What one run cost, with everything that the program started and waited for.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub wall_s: f64,
    pub cpu_s: f64,
    /// Of the largest process.
    pub peak_kib: u64,
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wall_s, cpu_s, peak_kib } = self;
        write!(f, "{wall_s:.2} s, {cpu_s:.2} s on processors, {} MiB", peak_kib >> 10)
    }
}

impl Sample {
    pub fn json(&self) -> Value {
        json!({ "wall_s": self.wall_s, "cpu_s": self.cpu_s, "peak_kib": self.peak_kib })
    }
}

/// Runs a command under GNU time; `scratch` is a directory for its answer.
pub fn run(words: &[String], scratch: &Path) -> Result<Sample> {
    let answer = scratch.join("time");
    let errors = scratch.join("errors");
    let mut command = Command::new("time");
    command.args(["-f", "%U %S %M", "-o"]).arg(&answer).args(words);
    command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(std::fs::File::create(&errors)?);
    let started = Instant::now();
    let status = command.status().context("cannot run GNU time")?;
    let wall_s = started.elapsed().as_secs_f64();
    if !status.success() {
        let text = String::from_utf8_lossy(&std::fs::read(&errors)?).into_owned();
        let text: Vec<&str> = text.lines().take(5).collect();
        bail!("{words:?} ended with {status}: {}", text.join("; "));
    }
    let text = std::fs::read_to_string(&answer)?;
    let numbers: Vec<f64> = text
        .lines()
        .last()
        .unwrap_or_default()
        .split(' ')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .with_context(|| format!("what GNU time said: {text:?}"))?;
    let [user, system, peak] = numbers[..] else { bail!("what GNU time said: {text:?}") };
    Ok(Sample { wall_s, cpu_s: user + system, peak_kib: peak as u64 })
}
