//! The commands of `docs/migration-100tb.md`, as written there.
use std::process::{Child, Command, Stdio};

use super::Bench;
use super::bench::guide::{Place, Step, steps};
use super::bench::is_root;
use dmover_testkit::cluster::{Piece, needs};
use dmover_testkit::skip;

const GUIDE: &str = include_str!("../../../../docs/migration-100tb.md");

/// Someone who follows the guide.
struct Reader {
    bench: Bench,
    head: String,
    background: Vec<Child>,
}

impl Reader {
    fn new() -> Self {
        let bench = Bench::new();
        let program = bench.dmover.program().display().to_string();
        bench.sh(&format!("mkdir old new evidence state shared bin; ln -s {program} bin/dmover"));
        let root = bench.root().display();
        let head = format!(
            "export PATH={root}/bin:$PATH OLD={root}/old NEW={root}/new EVIDENCE={root}/evidence \
             SHARED={root}/shared DMOVER_STATE_DIR={root}/state BROKER={root}/state/broker/join.json;"
        );
        Self { bench, head, background: Vec::new() }
    }

    /// Types a command and returns what it printed.
    #[track_caller]
    fn follow(&mut self, step: &Step) -> String {
        // Other tests may have these ports.
        let script = step.script.replace("--port 4222", "--port 0").replace("9187", "0");
        let head = &self.head;
        match step.place {
            Place::Shell => {
                let code = step.code;
                let run = format!("{head} code=0; {{ {script}\n}} 2>&1 || code=$?; ");
                let check =
                    format!("test $code = {code} || {{ echo exit code $code >&2; exit 1; }}");
                let output = self.bench.sh(&format!("{run} {check}"));
                let missing = step.missing_in(&output);
                assert!(missing.is_empty(), "{script}\n{output}\nhas none of {missing:#?}");
                output
            }
            Place::Background => {
                let mut shell = Command::new("bash");
                shell.args(["-c", &format!("{head} exec {script}")]);
                shell.current_dir(self.bench.root()).stdout(Stdio::null()).stderr(Stdio::null());
                let child = shell.spawn().unwrap();
                self.background.push(child);
                String::new()
            }
            // In crates/cli/tests/submit/slurm.rs.
            Place::Slurm => String::new(),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        for child in self.background.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn the_migration_guide_works_as_it_is_written() {
    if !is_root() {
        skip!("the guide is for root");
    }
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let mut reader = Reader::new();
    let steps = steps(GUIDE);
    assert!(steps.len() > 40, "{steps:?}");
    let printed: Vec<_> = steps.iter().map(|step| reader.follow(step)).collect();
    let of = |part: &str| {
        let at = steps.iter().position(|step| step.script.contains(part)).unwrap();
        printed[at].as_str()
    };
    assert_eq!(of("--itemize --delete").matches("*deleting").count(), 10);
    assert_eq!(of("history move").lines().count(), 2, "{}", of("history move"));
    assert_eq!(of("uniq -c"), "      1 \"class\":\"type_conflict\"\n");
    assert_eq!(of("-newercc"), "");
    // Both trees are equal. The last command has removed the trash, so the time of its directory is another.
    let bench = &reader.bench;
    assert_eq!(bench.sh("rsync -nrlptgoDHAXic --delete old/ new/ | sed '/ [.][/]$/d'"), "");
    assert!(bench.exists("old/people/ben/after-cutover") && bench.exists("old/data/run-of-may/25"));
}
