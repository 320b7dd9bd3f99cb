//! `cargo xtask bench far`: copies and passes from another host over a long line, beside rsync over the same ssh.
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
const SHAPE: Shape = Shape { count: 20_000, size_bytes: 10 << 10, per_directory: 100 };

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
    let source = scratch.path().join("s");
    std::fs::create_dir(&source)?;
    let shape = generate(&source, SHAPE, args.duel.scale, 1)?;
    println!(
        "{} files of {} bytes, {} in each directory, in memory; packets of at most {} bytes; 'tool' is rsync -a\n\
         over the same ssh; {}. Processor time is that of this side.\n",
        shape.count,
        shape.size_bytes,
        shape.per_directory,
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
        for case in CASES {
            let name = format!("{}, round trip {round_trip} ms", case.name);
            if name.contains(&args.duel.only) {
                let goal_s = case.goal_s.filter(|_| *round_trip == GOAL_MS);
                let rounds =
                    play(args, case, &far, (&dmover, scratch.path())).context(name.clone())?;
                println!("{}", rounds.row_within(&name, goal_s));
            }
        }
    }
    Ok(())
}

fn play(
    args: &FarArgs,
    case: &Case,
    far: &FarHost,
    (dmover, at): (&Path, &Path),
) -> Result<Rounds> {
    let (at, ssh) = (word(at), far.ssh_command());
    let script = |line: &str| format!("cd {at}; export DMOVER_STATE_DIR={at}/state; {line}");
    let own = script(&format!("{} {} --ssh-command '{ssh}' far:{at}/s d", word(dmover), case.own));
    let tool = script(&format!("rsync -a -e '{ssh}' far:{at}/s/ d/"));
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
    shell(&script("diff -rq --no-dereference s d"))?;
    Ok(rounds)
}
