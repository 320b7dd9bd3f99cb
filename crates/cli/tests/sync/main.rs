//! `dmover sync` as a black box: trees are made and changed by a shell, and what is right in the end is judged by rsync,
//! stat and find.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
#![allow(missing_docs, clippy::unwrap_used, reason = "tests stop")]

mod attributes;
#[path = "../bench/mod.rs"]
mod bench;
mod case;
mod cuts;
mod deletes;
mod disks;
mod first_lines;
mod guide;
mod habits;
mod jobs;
mod last;
mod manuals;
mod meanwhile;
mod narrow;
mod odd;
mod one_at_a_time;
mod passes;
mod renames;
mod rights;
mod stateless;
mod trash;
mod unseen;
mod verbs;
mod watch;

use bench::Bench;
use dmover_testkit::lanes::lines::Line;
use dmover_testkit::lanes::run::Run;

impl Bench {
    /// Runs `sync --json`, which has to end with this code. Deletes are said to be meant.
    #[track_caller]
    fn sync(&self, line: &str, code: i32) -> Pass {
        Pass(self.dmover(&format!("sync --json --yes {line}")).expect_code(code))
    }

    /// What rsync would still do, with content compared, to make both sides equal.
    #[track_caller]
    fn rsync(&self, source: &str, destination: &str) -> String {
        self.sh(&format!("rsync -nrlptgoDHAXic --delete {source}/ {destination}/"))
    }
}

/// A pass that has ended.
struct Pass(Run);

impl Pass {
    #[track_caller]
    fn summary(&self) -> Line {
        self.0.said().unwrap().summary.unwrap()
    }

    #[track_caller]
    fn number(&self, counter: &str) -> u64 {
        self.summary().number(counter).unwrap_or_else(|| panic!("no {counter}"))
    }

    /// `action path` of all entries with which something was done, sorted.
    #[track_caller]
    fn done(&self) -> Vec<String> {
        let lines = self.0.lines().unwrap();
        let items = lines.iter().filter(|line| line.is("item"));
        let mut done: Vec<String> = items
            .filter(|line| line.0["action"] != "skipped")
            .map(|line| {
                let text = |name: &str| line.0[name].as_str().unwrap().to_owned();
                format!("{} {}", text("action"), text("path"))
            })
            .collect();
        done.sort();
        done
    }

    /// The reason that was told why nothing is deleted.
    #[track_caller]
    fn withheld(&self) -> Option<String> {
        let lines = self.0.lines().unwrap();
        let told = lines.iter().find(|line| line.is("withheld"))?;
        Some(told.0["reason"].as_str().unwrap().to_owned())
    }
}
