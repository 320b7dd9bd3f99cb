//! `cargo xtask bench far`: copies and passes from another host over a long line, with data streams, beside rsync over ssh.
use anyhow::{Context, Result, bail};
use clap::Args;
use dmover_testkit::cluster::{FarHost, LineOptions};
use dmover_testkit::shapes::{Shape, generate};
use std::path::Path;
use std::time::Duration;

use super::duel::{Duel, DuelArgs, Rounds};
use super::machine::{describe, first_line};
use super::report::Report;
use super::{subjects, word};

/// Where both trees are kept: in memory, so that the line is what is measured.
const MEMORY: &str = "/dev/shm";
/// The round trip for which there is a goal.
const GOAL_MS: u64 = 50;
/// Seconds for the first copy at that distance.
const GOAL_S: f64 = 8.0;
/// A tree at the far host.
struct Tree {
    name: &'static str,
    shape: Shape,
    has_goal: bool,
}

const TREES: [Tree; 2] = [
    Tree {
        name: "20,000 x 10 KiB",
        shape: Shape { count: 20_000, size_bytes: 10 << 10, per_directory: 100 },
        has_goal: true,
    },
    Tree {
        name: "2,000 directories",
        shape: Shape { count: 2_000, size_bytes: 1 << 10, per_directory: 1 },
        has_goal: false,
    },
];

/// Which lines are measured.
#[derive(Debug, Args)]
pub struct FarArgs {
    #[command(flatten)]
    duel: DuelArgs,
    /// Round trips of the lines, in milliseconds
    #[arg(long, value_name = "MS", value_delimiter = ',', default_values_t = [GOAL_MS, 2 * GOAL_MS])]
    round_trips: Vec<u64>,
    /// The largest packet of the lines
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u32,
}

/// A piece of work. `FAR` is the tree as it is named at this end, `d` its copy.
struct Case {
    name: &'static str,
    /// There is no copy yet.
    is_first: bool,
    own: &'static str,
    goal_s: Option<f64>,
}

const CASES: &[Case] = &[
    Case { name: "copy", is_first: true, own: "copy -q -T", goal_s: Some(GOAL_S) },
    Case { name: "copy again, no change", is_first: false, own: "copy -q -T", goal_s: None },
    Case { name: "sync, no change", is_first: false, own: "sync -q", goal_s: None },
];

/// Runs the cases on each line and prints a table.
pub fn run(args: &FarArgs) -> Result<()> {
    if let Some(why) = FarHost::missing() {
        bail!("nothing can be measured here: {why}");
    }
    let dmover = crate::soak::program()?;
    let programs = subjects::Programs::find(Path::new("target/peers"))?;
    print!("{}", Report { machine: describe(&programs) }.heading());
    let scratch = tempfile::tempdir_in(MEMORY)?;
    for (number, Tree { name, shape, .. }) in TREES.iter().enumerate() {
        let source = scratch.path().join(source_name(number));
        std::fs::create_dir(&source)?;
        let shape = generate(&source, *shape, args.duel.scale, 1)?;
        println!(
            "{name}: {} files of {} bytes, {} in each directory.",
            shape.count, shape.size_bytes, shape.per_directory,
        );
    }
    println!(
        "In memory; packets of at most {} bytes; 'tool' is rsync -a over ssh, both at the near end;\n\
         {}. Processor time is that of this side.\n",
        args.mtu,
        first_line("ssh", &["-V"]),
    );
    println!("{}", Rounds::HEADING);
    for round_trip in &args.round_trips {
        let line = LineOptions {
            mtu_bytes: args.mtu,
            ..LineOptions::round_trip(Duration::from_millis(*round_trip))
        };
        let far = FarHost::start(&dmover, &line)?;
        for (number, tree) in TREES.iter().enumerate() {
            for case in CASES {
                let name = format!("{}: {}, round trip {round_trip} ms", tree.name, case.name);
                if name.contains(&args.duel.only) {
                    let is_goal = tree.has_goal && *round_trip == GOAL_MS;
                    let goal_s = case.goal_s.filter(|_| is_goal);
                    let places = Places { dmover: &dmover, at: scratch.path(), tree: number };
                    let rounds = play(args, case, &far, &places).context(name.clone())?;
                    println!("{}", rounds.row_within(&name, goal_s));
                }
            }
        }
    }
    Ok(())
}

/// The directory of a tree.
fn source_name(tree: usize) -> String {
    format!("s{tree}")
}

/// Where the program and the trees are.
struct Places<'a> {
    dmover: &'a Path,
    at: &'a Path,
    /// The number of the tree.
    tree: usize,
}

fn play(args: &FarArgs, case: &Case, far: &FarHost, places: &Places<'_>) -> Result<Rounds> {
    let Places { dmover, at, tree } = *places;
    let (at, ssh, s) = (word(at), far.ssh_command(), source_name(tree));
    // Only there dmover reaches the ports of data streams.
    let words = far.line.near().words();
    let words: Vec<_> = words.iter().map(|word| format!("'{}'", word.display())).collect();
    let near = words.join(" ");
    let script = |line: &str| format!("cd {at}; export DMOVER_STATE_DIR={at}/state; {line}");
    let (program, line) = (word(dmover), case.own);
    let own = script(&format!("{near} {program} {line} --ssh-command '{ssh}' far:{at}/{s} d"));
    let tool = script(&format!("{near} rsync -a -e '{ssh}' far:{at}/{s}/ d/"));
    let clear = script("rm -rf d state");
    let before = if case.is_first { clear.clone() } else { String::new() };
    let answers = tempfile::tempdir()?;
    let duel = |rounds: usize| Duel {
        before: &before,
        own: &own,
        tool: &tool,
        rounds,
        scratch: answers.path(),
    };
    let shell = |script: &str| {
        super::measure::run(&["bash".into(), "-euc".into(), script.into()], answers.path())
    };
    // Not counted: it fills caches, makes the copy for passes, and shows whether both programs work.
    shell(&clear)?;
    duel(1).run()?;
    let rounds = duel(args.duel.rounds).run()?;
    // By another program, so that nothing that omits something is measured.
    shell(&script(&format!("diff -rq --no-dereference {s} d")))?;
    Ok(rounds)
}
