//! `cargo xtask fuzz`: what reads bytes from elsewhere, fed with bytes that look for trouble (libFuzzer).
//!
//! The compiler's own coverage is switched on by flags that a stable compiler takes, so nothing has to be installed.
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::Path;
use std::process::Command;

/// Targets, and what they show.
const TARGETS: &[(&str, &str)] = &[
    ("manifest", "manifests, damaged and not"),
    ("lists", "lines of check lists"),
    ("wire", "messages between processes"),
    ("agents", "messages between jobs, agents and hosts of one side"),
    ("greetings", "greetings of other hosts, with offers of data streams"),
    ("chunks", "chunks on data streams, and streams that fail"),
    ("records", "records with codes, changed on the way"),
    ("handshakes", "handshakes of data streams, changed on the way"),
];

const COVERAGE: &[&str] = &[
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Arguments of `fuzz`.
#[derive(Debug, Args)]
pub struct FuzzArgs {
    /// Which target: manifest, lists, wire, agents, greetings, chunks, records or handshakes; all without a name
    name: Option<String>,
    /// How long each runs
    #[arg(long, value_name = "N", default_value_t = 600)]
    seconds: u64,
}

/// Builds and runs the targets; what they found is kept in `target/fuzz`.
pub fn run(args: &FuzzArgs) -> Result<()> {
    let wanted = |target: &&(&str, &str)| args.name.as_ref().is_none_or(|name| name == target.0);
    let targets: Vec<_> = TARGETS.iter().filter(wanted).collect();
    if targets.is_empty() {
        let all: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
        bail!("there are {}", all.join(", "));
    }
    let root = std::env::current_dir()?.join("target/fuzz");
    let host = host()?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target-dir"])
        .arg(&root)
        // With a target named, the flags are not for build scripts.
        .args(["--target", &host])
        .env("RUSTFLAGS", COVERAGE.join(" "))
        .status()
        .context("cannot run cargo")?;
    if !built.success() {
        bail!("the fuzz targets do not build");
    }
    for (name, about) in targets {
        println!("{name}: {about}, {} s", args.seconds);
        fuzz(&root, &root.join(&host).join("release").join(name), args.seconds)?;
    }
    Ok(())
}

/// The machine that this is compiled on, as the compiler names it.
fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().context("cannot run rustc")?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say what it compiles for")?.to_owned())
}

fn fuzz(root: &Path, program: &Path, seconds: u64) -> Result<()> {
    let name = program.file_name().and_then(|name| name.to_str()).context("a program")?;
    let corpus = root.join("corpus").join(name);
    std::fs::create_dir_all(&corpus)?;
    let artifacts = format!("-artifact_prefix={}/{name}-", root.display());
    let ended = Command::new(program)
        .arg(format!("-max_total_time={seconds}"))
        .args(["-max_len=65536", "-rss_limit_mb=2048", "-timeout=10", "-print_final_stats=1"])
        .arg(artifacts)
        .arg(&corpus)
        .status()
        .with_context(|| format!("cannot run {name}"))?;
    if ended.success() {
        Ok(())
    } else {
        bail!("{name} found something; it is kept in target/fuzz")
    }
}
