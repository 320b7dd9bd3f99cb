//! The machine and the versions of everything, without which no number means anything.
use serde_json::{Value, json};
use std::process::Command;

use super::subjects::Programs;

/// What ran, and where.
pub fn describe(programs: &Programs) -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let processor = read("/proc/cpuinfo");
    let processor = processor.lines().find(|line| line.starts_with("model name"));
    let processor = processor.and_then(|line| line.split_once(": ")).map_or("unknown", |(_, m)| m);
    let memory = read("/proc/meminfo");
    let memory = memory.lines().next().and_then(|line| line.split_whitespace().nth(1));
    let memory_gib = memory.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) >> 20;
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = read("/proc/loadavg");
    json!({
        "processor": processor,
        "cores": cores,
        "memory_gib": memory_gib,
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load_before": load.split(' ').next(),
        "commit": first_line("git", &["describe", "--always", "--dirty"]),
        "versions": programs.versions(),
    })
}

/// The first line that a command prints, or why there is none.
pub fn first_line(program: &str, arguments: &[&str]) -> String {
    let Ok(output) = Command::new(program).args(arguments).output() else {
        return "missing".into();
    };
    let said = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    String::from_utf8_lossy(&said).lines().next().unwrap_or("silent").trim().to_owned()
}
