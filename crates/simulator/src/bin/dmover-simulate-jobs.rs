//! Runs whole jobs in a simulation, one for each seed: `dmover-simulate-jobs FIRST COUNT [WORDS]`. With a COUNT of 1 it tells
//! what happened, and the calls about paths with these words in them. Ends with 1 if a promise is broken, and with 2 if it is not called that way.
use dmover_simulator::jobs::{Checked, Plan, check, simulate};
use std::io::{self, Write as _};
use std::process::ExitCode;

fn main() -> io::Result<ExitCode> {
    let numbers: Vec<u64> =
        std::env::args().skip(1).take(2).filter_map(|word| word.parse().ok()).collect();
    let [first, count] = numbers[..] else {
        writeln!(io::stderr(), "usage: dmover-simulate-jobs FIRST COUNT [WORDS]")?;
        return Ok(ExitCode::from(2));
    };
    let mut out = io::stdout().lock();
    if count == 1 {
        let plan = Plan { watched: std::env::args().nth(3), ..Plan::of(first) };
        let run = simulate(&plan);
        writeln!(out, "{plan:#?}\n{}\n{:?}", run.story.join("\n"), run.trace)?;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let Checked { seeds, steps, broken } = check(first, count, threads);
    for (seed, what) in &broken {
        writeln!(out, "seed {seed}:\n  {}", what.join("\n  "))?;
    }
    writeln!(out, "seeds {seeds}, steps {steps}, failures {}", broken.len())?;
    Ok(ExitCode::from(u8::from(!broken.is_empty())))
}
