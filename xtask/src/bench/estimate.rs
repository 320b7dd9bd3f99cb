//! `cargo xtask bench estimate`: how well the progress of a long copy foretells its end.
//!
//! The copies are slow because they are limited, so their length depends on nothing else. What a person would have
//! seen is read from the status lines: the percentage and the middle of the ETA, beside the truth that the end tells.
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Parts of the time at which the estimate is judged.
const WHEN: [f64; 5] = [0.34, 0.5, 0.67, 0.8, 0.9];
const BYTES_PER_S: u64 = 4 << 20;
const ENTRIES_PER_S: u64 = 100;

/// Arguments of `bench estimate`.
#[derive(Debug, Args)]
pub struct EstimateArgs {
    /// How long each copy takes
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    seconds: u64,
    /// Where the trees are made
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    directory: PathBuf,
}

/// A tree, and the limit under which it is copied.
struct Case {
    name: &'static str,
    limit: String,
    make: fn(&Path, u64) -> Result<()>,
}

/// Runs every case and prints a table.
pub fn run(args: &EstimateArgs) -> Result<()> {
    let bandwidth = || format!("--bwlimit={BYTES_PER_S}B");
    let cases = [
        Case { name: "sizes mixed, bytes limited", limit: bandwidth(), make: mixed },
        Case { name: "small files first, bytes limited", limit: bandwidth(), make: small_first },
        Case {
            name: "small files, entries limited",
            limit: format!("--ops-limit={ENTRIES_PER_S}"),
            make: small,
        },
    ];
    println!("| copy | seconds | {} |", WHEN.map(|when| format!("at {when}")).join(" | "));
    println!("|---|---|{}", "---|".repeat(WHEN.len()));
    for case in cases {
        let directory = tempfile::tempdir_in(&args.directory)?;
        (case.make)(&directory.path().join("source"), args.seconds)?;
        let (seconds, lines) = copy(directory.path(), &case.limit)?;
        let judged = WHEN.map(|when| judge(&lines, seconds, when));
        println!("| {} | {seconds:.0} | {} |", case.name, judged.join(" | "));
    }
    println!("\nMiddle of the ETA divided by the time that was left, and the percentage shown.");
    Ok(())
}

fn copy(directory: &Path, limit: &str) -> Result<(f64, Vec<Value>)> {
    let words = ["copy", "--no-state", "-j2", "--progress=json", "--stats=1s", limit];
    let run = Command::new(crate::soak::program()?)
        .args(words)
        .args(["source", "target"])
        .current_dir(directory)
        .output()
        .context("dmover")?;
    let said = String::from_utf8_lossy(&run.stderr);
    ensure!(run.status.success(), "{said}");
    let lines: Vec<Value> =
        said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    // The last line is at most a second older than the end.
    let seconds = lines.last().and_then(|line| line["elapsed_s"].as_f64()).unwrap_or(0.0) + 0.5;
    Ok((seconds, lines))
}

fn judge(lines: &[Value], seconds: f64, when: f64) -> String {
    let at = |line: &&Value| line["elapsed_s"].as_f64().unwrap_or(0.0) >= seconds * when;
    let Some(line) = lines.iter().find(at) else { return "-".into() };
    let left = seconds - line["elapsed_s"].as_f64().unwrap_or(0.0);
    let range = [&line["eta_s"][0], &line["eta_s"][1]].map(Value::as_f64);
    match (range, line["percent"].as_f64()) {
        ([Some(low), Some(high)], Some(percent)) => {
            format!("{:.2}, {percent:.0} %", f64::midpoint(low, high) / left)
        }
        _ => "none".into(),
    }
}

/// Numbers that mean nothing, the same ones each time.
fn mix(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33
}

fn write(directory: &Path, number: u64, size: u64) -> Result<()> {
    let directory = directory.join(format!("{:03}", number / 200));
    fs::create_dir_all(&directory)?;
    Ok(fs::write(directory.join(number.to_string()), vec![number as u8 | 1; size as usize])?)
}

fn mixed(directory: &Path, seconds: u64) -> Result<()> {
    let mut left = seconds * BYTES_PER_S;
    for number in 0.. {
        // From 2 KiB to 8 MiB, every power of two as often.
        let size = (2 << 10) << (mix(number) % 13);
        if left == 0 {
            break;
        }
        write(directory, number, size.min(left))?;
        left -= size.min(left);
    }
    Ok(())
}

fn small_first(directory: &Path, seconds: u64) -> Result<()> {
    let half = seconds * BYTES_PER_S / 2;
    for number in 0..half / (16 << 10) {
        write(&directory.join("a"), number, 16 << 10)?;
    }
    for number in 0..half / (4 << 20) {
        write(&directory.join("b"), number, 4 << 20)?;
    }
    Ok(())
}

fn small(directory: &Path, seconds: u64) -> Result<()> {
    (0..seconds * ENTRIES_PER_S).try_for_each(|number| write(directory, number, 1 << 10))
}
