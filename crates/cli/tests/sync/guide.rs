//! The commands of `docs/migration.md`, as they stand there.
use super::Bench;
use super::bench::is_root;
use dmover_testkit::skip;

const GUIDE: &str = include_str!("../../../../docs/migration.md");

/// What the guide has a reader type, and what happens between: what is in a comment is the users' doing.
fn steps() -> Vec<String> {
    let mut steps = Vec::new();
    let mut inside = false;
    for line in GUIDE.lines() {
        if line.starts_with("```") {
            inside = line == "```sh";
        } else if inside {
            steps.push(line.to_owned());
        } else if let Some(script) = line.strip_prefix("<!-- test: ") {
            steps.push(script.strip_suffix(" -->").expect("a comment on one line").to_owned());
        }
    }
    steps
}

#[test]
fn the_migration_guide_works_as_it_is_written() {
    if !is_root() {
        skip!("the guide is for root");
    }
    let bench = Bench::new();
    bench.sh("mkdir old new");
    let program = bench.dmover.program().display().to_string();
    let state = bench.dmover.state_directory().display().to_string();
    let head = format!(
        "dmover() {{ command {program} \"$@\"; }}; export OLD=$PWD/old NEW=$PWD/new DMOVER_STATE_DIR={state};"
    );
    let steps = steps();
    assert!(steps.len() > 15, "{steps:?}");
    let mut said = Vec::new();
    for step in &steps {
        said.push(bench.sh(&format!("{head} {step}")));
    }
    let of = |part: &str| {
        let at = steps.iter().position(|step| step.contains(part)).unwrap();
        said[at].as_str()
    };
    assert!(of("--itemize --delete").matches("*deleting").count() == 10, "{}", of("--itemize"));
    assert!(of("history move").lines().count() >= 2, "{}", of("history"));
    // Everything is there, and what was deleted lies in the trash.
    assert_eq!(bench.sh("rsync -nrlptgoDHAXic --delete --exclude /.trash old/ new/"), "");
    assert_eq!(bench.sh("find new/.trash -type f -name '2?' | wc -l"), "10\n");
}
