//! Every command of README.md and of the documents for users is run as it stands there, and prints what the document shows.
#![allow(clippy::disallowed_methods)]
#![allow(missing_docs, clippy::unwrap_used, reason = "tests stop")]

#[path = "../bench/mod.rs"]
mod bench;
mod page;
mod shown;

use std::path::{Path, PathBuf};
use std::{fs, process};

use bench::{Bench, PROGRAM, eventually, is_root};
use dmover_testkit::compare::{CompareOptions, assert_same_trees};
use dmover_testkit::lanes::run::Dmover;
use dmover_testkit::skip;
use page::{Command, HOME, Step, not_run, steps};
use rustix::process::Signal;
use shown::{Change, is_shown, is_update, replaced, updated};

/// Absolute paths of the documents; here they lie in the scratch directory.
const ROOTS: [&str; 6] = ["/scratch", "/archive", "/old", "/new", "/shared", "/home"];

/// The characters before an absolute path in a command.
const BEFORE: [&str; 5] = [" ", "=", "'", "\"", "("];

/// Where jobs of root are recorded; here that is in the scratch directory, too.
const STATE: &str = "/var/lib/dmover";

/// A reader with two places to try things in: one for dmover, one for the tool that the reader comes from.
struct Reader {
    bench: Bench,
    here: PathBuf,
    there: PathBuf,
}

impl Reader {
    fn new() -> Self {
        let bench = Bench::new();
        bench.sh(&format!("mkdir here bin; ln -s {PROGRAM} bin/dmover"));
        let (here, there) = (bench.at("here"), bench.at("there"));
        Self { bench, here, there }
    }

    /// Where a shell finds the program as 'dmover'.
    fn path(&self) -> String {
        format!("{}:{}", self.bench.at("bin").display(), std::env::var("PATH").unwrap())
    }

    /// A command as it is typed, with the absolute paths of the document below `place`.
    fn localised(place: &Path, text: &str) -> String {
        let mut text = text.to_owned();
        for root in ROOTS {
            for before in BEFORE {
                let below = format!("{before}{}{root}", place.display());
                text = text.replace(&format!("{before}{root}"), &below);
            }
        }
        text
    }

    /// Runs a line of a shell; its exit code, and what it printed on both streams.
    fn shell(&self, place: &Path, text: &str) -> (Option<i32>, String) {
        let script = format!("exec 2>&1\n{}", Self::localised(place, text));
        let output = process::Command::new("bash")
            .args(["-uo", "pipefail", "-c", &script])
            .current_dir(place)
            .env("PATH", self.path())
            .env("DMOVER_STATE_DIR", self.bench.dmover.state_directory())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    }

    /// What a command printed, with the paths and the name of the host that the document has.
    fn as_in_document(&self, text: &str, said: &str) -> String {
        let here = self.here.display().to_string();
        let state = self.bench.dmover.state_directory().display().to_string();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let is_named =
            |root: &str| BEFORE.iter().any(|before| text.contains(&format!("{before}{root}")));
        let mut said = said.replace(&state, STATE);
        for root in ROOTS.into_iter().filter(|root| is_named(root)) {
            said = said.replace(&format!("{here}{root}"), root);
        }
        said.replace(&here, HOME).replace(&format!(" on {host}\n"), " on vm\n")
    }

    #[track_caller]
    fn hidden(&self, script: &str) {
        let both = [&self.here, &self.there];
        for place in both.into_iter().filter(|place| place.exists()) {
            let (code, said) = self.shell(place, &format!("set -e; {script}"));
            assert_eq!(code, Some(0), "{script}\n{said}");
        }
    }

    /// Runs a command that is slow enough to be interrupted, and interrupts it.
    fn interrupted(&self, text: &str) -> (Option<i32>, String) {
        let text = Self::localised(&self.here, text);
        let mut words = text.split_whitespace();
        assert_eq!(words.next(), Some("dmover"));
        let destination = PathBuf::from(text.split_whitespace().last().unwrap());
        let dmover = Dmover::new("dmover").unwrap().in_directory(&self.here);
        let dmover = dmover.with_state(self.bench.dmover.state_directory());
        let path = format!("PATH={}", self.path());
        let running = dmover.wrapped(["env", &path, "DMOVER_OPS_LIMIT=10"]).start(words).unwrap();
        let look = format!("find '{}' -type f 2> /dev/null | wc -l", destination.display());
        eventually("some files", || {
            self.shell(&self.here, &look).1.trim().parse().is_ok_and(|n: u64| n > 30)
        });
        running.signal(Signal::INT);
        let run = running.finish().unwrap();
        // A shell tells the signal that ended a command so.
        let code = run.code().or(run.signal().map(|signal| 128 + signal));
        (code, run.text() + &run.stderr)
    }

    /// Runs a command, and returns what the document has to show instead of what it shows.
    #[track_caller]
    fn command(&self, command: &Command) -> Option<Change> {
        let Command { text, peer, output, output_at, code, interrupted } = command;
        if let Some(peer) = peer {
            if !self.there.exists() {
                self.bench.sh("cp -a here there");
            }
            let (code, said) = self.shell(&self.there, peer);
            assert_eq!(code, Some(0), "{peer}\n{said}");
        }
        let (ended, said) =
            if *interrupted { self.interrupted(text) } else { self.shell(&self.here, text) };
        assert_eq!(ended, Some(*code), "{text}\n{said}");
        let mut change = None;
        if let Some(shown) = output {
            let said = self.as_in_document(text, &said);
            if !is_shown(shown, &said) {
                let lines = updated(shown, &said);
                change = Some(Change { at: *output_at, count: shown.len(), lines });
                let shown = shown.join("\n");
                let what = format!("the document shows\n{shown}\nthe program prints\n{said}");
                assert!(is_update(), "$ {text}\n{what}");
            }
        }
        if peer.is_some() {
            let options = CompareOptions::default().ignoring("mtime@top");
            assert_same_trees(&self.there.join("scratch"), &self.here.join("scratch"), &options);
        }
        change
    }

    /// Does what the document at a path in the repository says, and returns how many commands that were.
    #[track_caller]
    fn follow(&self, path: &str) -> usize {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
        let document = fs::read_to_string(&path).unwrap();
        assert_eq!(not_run(&document), Vec::<String>::new(), "no test runs these");
        let steps = steps(&document);
        let mut changes = Vec::new();
        for step in &steps {
            match step {
                Step::Hidden(script) => self.hidden(script),
                Step::Command(command) => changes.extend(self.command(command)),
            }
        }
        if !changes.is_empty() {
            fs::write(path, replaced(&document, &changes)).unwrap();
        }
        steps.iter().filter(|step| matches!(step, Step::Command(_))).count()
    }
}

/// Names of tests that a document promises exist.
#[test]
fn the_page_on_safety_names_tests_that_there_are() {
    let page = include_str!("../../../../docs/is-it-safe.md");
    let rows = page.lines().filter(|line| line.starts_with("| ")).skip(1);
    let sources = tests_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"));
    let mut named = 0;
    for row in rows {
        let tests = row.split('|').nth(2).unwrap().split('`').skip(1).step_by(2);
        let tests: Vec<&str> = tests.filter(|name| name.contains('_')).collect();
        assert!(!tests.is_empty(), "a promise without a test: {row}");
        for test in tests {
            named += 1;
            let is_there = sources.iter().any(|source| source.contains(&format!("fn {test}()")));
            assert!(is_there, "there is no test {test}");
        }
    }
    assert!(named >= 20, "{named}");
}

#[test]
fn the_index_names_every_document() {
    let index = include_str!("../../../../docs/README.md");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for entry in fs::read_dir(docs).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_named = name == "README.md"
            || index.contains(&format!("]({name})"))
            || index.contains(&format!("]({name}/README.md)"));
        assert!(is_named, "docs/README.md does not name {name}");
    }
}

/// What the files of tests in a directory and below it contain.
fn tests_below(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let (directories, files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|p| p.is_dir());
    let below = directories.iter().flat_map(|directory| tests_below(directory));
    files.iter().map(|file| fs::read_to_string(file).unwrap()).chain(below).collect()
}

macro_rules! document {
    ($name:ident, $path:literal, $commands:literal) => {
        #[test]
        fn $name() {
            if !is_root() {
                skip!("owners and devices are kept for root only");
            }
            let done = Reader::new().follow($path);
            assert!(done >= $commands, "only {done} commands");
        }
    };
}

document!(the_commands_of_the_readme_do_what_it_shows, "README.md", 5);
document!(the_quick_start_does_what_it_shows, "docs/quick-start.md", 15);
document!(what_users_of_cp_type_works, "docs/coming-from-cp.md", 10);
document!(what_users_of_rclone_type_works, "docs/coming-from-rclone.md", 10);
document!(what_users_of_fpsync_type_works, "docs/coming-from-fpsync.md", 6);
document!(what_users_of_mcp_and_msum_type_works, "docs/coming-from-mcp-msum.md", 8);
document!(what_users_of_globus_type_works, "docs/coming-from-globus.md", 12);
document!(the_messages_are_what_the_program_prints, "docs/messages.md", 60);
