//! `cargo xtask bench estimate`: how well the progress of a long copy foretells its end.
//!
//! The copies are slow because they are limited, so their length depends on nothing else. What a person would have
//! seen is read from the status lines: the percentage and the middle of the ETA, beside the truth that the end tells.
//! A copy without a limit shows what the count that runs ahead costs: the kernel knows the CPU time of its thread.
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Parts of the time at which the estimate is judged.
const WHEN: [f64; 5] = [0.34, 0.5, 0.67, 0.8, 0.9];
const BYTES_PER_S: u64 = 4 << 20;
const ENTRIES_PER_S: u64 = 100;
/// Files of the copy without a limit.
const FILES: u64 = 400_000;
/// The thread that counts, by its name (`precount.rs` of the engine).
const COUNT: &str = "count";

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
    limit: Option<String>,
    make: fn(&Path, u64) -> Result<()>,
}

/// Runs every case and prints a table.
pub fn run(args: &EstimateArgs) -> Result<()> {
    let bandwidth = || Some(format!("--bwlimit={BYTES_PER_S}B"));
    let cases = [
        Case { name: "sizes mixed, bytes limited", limit: bandwidth(), make: mixed },
        Case { name: "small files first, bytes limited", limit: bandwidth(), make: small_first },
        Case {
            name: "small files, entries limited",
            limit: Some(format!("--ops-limit={ENTRIES_PER_S}")),
            make: small,
        },
        Case { name: "small files, no limit", limit: None, make: many },
    ];
    let header = WHEN.map(|when| format!("at {when}")).join(" | ");
    println!("| copy | seconds | CPU of the count | {header} |");
    println!("|---|---|---|{}", "---|".repeat(WHEN.len()));
    for case in cases {
        let directory = tempfile::tempdir_in(&args.directory)?;
        (case.make)(&directory.path().join("source"), args.seconds)?;
        let (seconds, count_s, lines) = copy(directory.path(), case.limit.as_deref())?;
        let judged = WHEN.map(|when| judge(&lines, seconds, when));
        let share = count_s / (seconds * dmover_host::processors::available() as f64);
        let share = format!("{:.1} %", share * 100.0);
        println!("| {} | {seconds:.0} | {share} | {} |", case.name, judged.join(" | "));
    }
    println!("\nMiddle of the ETA divided by the time that was left, and the percentage shown.");
    println!("CPU of the count: of the time of all processors while the copy ran.");
    Ok(())
}

/// Answers the seconds of a copy, the CPU seconds of the count that ran ahead of it, and its status lines.
fn copy(directory: &Path, limit: Option<&str>) -> Result<(f64, f64, Vec<Value>)> {
    let words = ["copy", "--no-state", "-j2", "--progress=json", "--stats=1s"];
    let said = directory.join("said");
    let mut run = Command::new(crate::soak::program()?)
        .args(words)
        .args(limit)
        .args(["source", "target"])
        .current_dir(directory)
        .stdout(Stdio::null())
        .stderr(fs::File::create(&said)?)
        .spawn()
        .context("dmover")?;
    let mut count_s = 0.0_f64;
    let status = loop {
        if let Some(status) = run.try_wait()? {
            break status;
        }
        count_s = count_s.max(processor_seconds(run.id(), COUNT).unwrap_or(0.0));
        std::thread::sleep(Duration::from_millis(50));
    };
    let said = fs::read_to_string(said)?;
    ensure!(status.success(), "{said}");
    let lines: Vec<Value> =
        said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    // The last line is at most a second older than the end.
    let seconds = lines.last().and_then(|line| line["elapsed_s"].as_f64()).unwrap_or(0.0) + 0.5;
    Ok((seconds, count_s, lines))
}

/// CPU seconds of a thread of a process, by its name (proc_pid_stat(5)).
fn processor_seconds(process: u32, name: &str) -> Option<f64> {
    for task in fs::read_dir(format!("/proc/{process}/task")).ok()?.flatten() {
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        let (head, fields) = stat.rsplit_once(") ")?;
        if head.ends_with(&format!("({name}")) {
            let mut times =
                fields.split(' ').skip(11).take(2).filter_map(|n| n.parse::<f64>().ok());
            let ticks = times.next()? + times.next()?;
            return Some(ticks / rustix::param::clock_ticks_per_second() as f64);
        }
    }
    None
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

fn many(directory: &Path, _seconds: u64) -> Result<()> {
    (0..FILES).try_for_each(|number| write(directory, number, 1 << 10))
}
