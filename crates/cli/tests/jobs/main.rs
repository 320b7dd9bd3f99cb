//! Jobs as those see them who look after many: errors by the thousand, lists, logs, and what is forgotten.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
#![allow(missing_docs, clippy::unwrap_used, reason = "tests stop")]

#[path = "../bench/mod.rs"]
mod bench;
mod broker;
mod cleanup;
mod errors;
mod list;
mod log_file;
mod logs;

use bench::Bench;
use dmover_testkit::lanes::run::Run;
use serde_json::Value;

impl Bench {
    /// `dmover jobs --json` with further words.
    #[track_caller]
    fn jobs(&self, words: &str) -> Vec<Value> {
        json_lines(&self.dmover(&format!("jobs --json {words}")).expect_code(0).text())
    }

    /// `verb` and `outcome` of the jobs that are listed.
    #[track_caller]
    fn outcomes(&self, words: &str) -> Vec<String> {
        let text = |job: &Value, name: &str| job[name].as_str().unwrap().to_owned();
        let told = self.jobs(words).into_iter();
        told.map(|job| format!("{}: {}", text(&job, "verb"), text(&job, "outcome"))).collect()
    }
}

#[track_caller]
fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Lines of standard error that contain this.
fn count(run: &Run, part: &str) -> usize {
    run.stderr.lines().filter(|line| line.contains(part)).count()
}

/// The command behind these words in the summary.
#[track_caller]
fn command<'a>(run: &'a Run, label: &str) -> &'a str {
    let line = run.stderr.lines().find_map(|line| line.trim().strip_prefix(label));
    line.unwrap_or_else(|| panic!("no '{label}': {}", run.tell())).trim()
}
