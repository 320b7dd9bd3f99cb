//! `cargo xtask bench`: dmover beside its peers, in turn, on the same data, in one run.
//!
//! A number alone says little on a shared machine. So every round runs every program once, in an order that
//! changes, and what is reported is the ratio within a round: its median, and an interval that holds the true
//! median with at least 95 % certainty.
mod cases;
mod duel;
mod estimate;
mod far;
mod fleet;
mod machine;
mod measure;
mod passes;
mod proofs;
mod report;
mod stage;
mod statistics;
mod storage;
mod subjects;
mod sums;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};

use cases::{CASES, Case, Place};
use measure::Sample;
use report::{CaseResult, Report};
use stage::Stage;
use subjects::Subject;

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// `dmover copy` against cp, rsync, tar, fpsync, rclone, xcp, cpz and a bare loop of system calls
    Copy(CopyArgs),
    /// `dmover sum` beside b3sum, sha256sum and md5sum
    Sum(duel::DuelArgs),
    /// `dmover verify` and digests while copying, beside rsync, cp and b3sum
    Proof(duel::DuelArgs),
    /// `dmover sync` and `dmover snapshot` beside rsync, fpsync, rclone and a bare loop of looks
    Pass(duel::DuelArgs),
    /// Movers behind a broker beside one process, and four hosts beside one
    Fleet(fleet::FleetArgs),
    /// Copies and passes from another host over a long line, beside rsync over ssh
    Far(far::FarArgs),
    /// How well the progress of a long copy foretells its end
    Estimate(estimate::EstimateArgs),
    /// What storage takes from a number of threads, reading, writing or both, beside fio
    Storage(storage::StorageArgs),
}

/// Arguments of `bench copy`.
#[derive(Debug, Args)]
struct CopyArgs {
    /// Only these cases (see --list); all of them without a name
    #[arg(value_name = "CASE")]
    cases: Vec<String>,
    /// Show the cases and the bars
    #[arg(long)]
    list: bool,
    /// Only on these: ext4, xfs, btrfs, latency
    #[arg(long, value_name = "PLACE", value_delimiter = ',')]
    on: Vec<String>,
    /// Only these programs beside dmover, by name
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    with: Vec<String>,
    /// Rounds, each of which runs every program once
    #[arg(long, value_name = "N", default_value_t = 15)]
    rounds: usize,
    /// Rounds for programs that no bar of the case needs
    #[arg(long, value_name = "N", default_value_t = 5)]
    other_rounds: usize,
    /// Entries and bytes relative to the full case
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    scale: f64,
    /// Further arguments for dmover, such as '-j 4'
    #[arg(long, value_name = "ARGUMENTS", default_value = "", allow_hyphen_values = true)]
    dmover_args: String,
    /// An older dmover to measure beside this one, as 'dmover before'
    #[arg(long, value_name = "PROGRAM")]
    before: Option<PathBuf>,
    /// Append the samples as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where programs from the package registry lie or are put
    #[arg(long, value_name = "DIR", default_value = "target/peers")]
    peers: PathBuf,
    /// Install the missing ones there first (cargo install)
    #[arg(long)]
    install_peers: bool,
    /// A line for each run
    #[arg(short, long)]
    verbose: bool,
}

/// Runs what was asked for and prints its tables.
pub fn run(args: &BenchArgs) -> Result<()> {
    match &args.verb {
        Verb::Copy(args) => compare(args),
        Verb::Sum(args) => sums::run(args),
        Verb::Proof(args) => proofs::run(args),
        Verb::Pass(args) => passes::run(args),
        Verb::Fleet(args) => fleet::run(args),
        Verb::Far(args) => far::run(args),
        Verb::Estimate(args) => estimate::run(args),
        Verb::Storage(args) => storage::run(args),
    }
}

fn compare(args: &CopyArgs) -> Result<()> {
    if args.list {
        print!("{}", cases::list());
        return Ok(());
    }
    let chosen = chosen(args)?;
    if args.install_peers {
        subjects::install(&args.peers)?;
    }
    let programs = subjects::Programs::find(&args.peers)?;
    let report = Report { machine: machine::describe(&programs) };
    print!("{}", report.heading());
    let mut missed = 0;
    for (case, place) in chosen {
        let result = run_case(args, case, place, &programs)
            .with_context(|| format!("case {} on {}", case.name, place.name()))?;
        print!("{}", report.table(&result));
        missed += result.missed();
        if let Some(path) = &args.json {
            report.append_json(path, &result)?;
        }
    }
    println!("{missed} bars missed");
    Ok(())
}

fn chosen(args: &CopyArgs) -> Result<Vec<(&'static Case, Place)>> {
    let places = args.on.iter().map(|name| Place::parse(name)).collect::<Result<Vec<_>>>()?;
    if let Some(unknown) = args.cases.iter().find(|name| CASES.iter().all(|c| c.name != **name)) {
        bail!("no case is named '{unknown}'; 'cargo xtask bench copy --list' shows them");
    }
    let wanted = |case: &&Case| args.cases.is_empty() || args.cases.iter().any(|n| n == case.name);
    let mut chosen = Vec::new();
    for case in CASES.iter().filter(wanted) {
        let here = case.places.iter().filter(|p| places.is_empty() || places.contains(p));
        chosen.extend(here.map(|place| (case, *place)));
    }
    Ok(chosen)
}

fn run_case(
    args: &CopyArgs,
    case: &'static Case,
    place: Place,
    programs: &subjects::Programs,
) -> Result<CaseResult> {
    let stage = Stage::set(case, place, args.scale)?;
    let subjects = subjects::of(case, place, programs, args)?;
    let mut result = CaseResult::new(case, place, &stage, &subjects);
    // The first run of each warms caches and shows whether it copies everything.
    for (index, subject) in subjects.iter().enumerate() {
        if let Err(error) = one_run(args, &stage, subject, usize::MAX) {
            result.fail(index, &error);
        }
    }
    result.count_calls(&stage, &subjects)?;
    let mut needed = vec![true; subjects.len()];
    for round in 0..args.rounds {
        if round == args.other_rounds {
            needed = result.choose_needed();
        }
        for step in 0..subjects.len() {
            // Backwards every other time, so that nobody always follows the same one.
            let step = if round % 2 == 0 { step } else { subjects.len() - 1 - step };
            let index = (round / 2 + step) % subjects.len();
            if result.has_failed(index) || !needed[index] {
                continue;
            }
            match one_run(args, &stage, &subjects[index], round) {
                Ok(sample) => result.add(index, sample),
                Err(error) => result.fail(index, &error),
            }
        }
    }
    Ok(result)
}

fn one_run(args: &CopyArgs, stage: &Stage, subject: &Subject, round: usize) -> Result<Sample> {
    stage.clear()?;
    let sample = measure::run(&subject.command(stage), stage.scratch())
        .with_context(|| subject.name.clone())?;
    // Outside of what is measured.
    stage.check_destination()?;
    if args.verbose {
        let round = if round == usize::MAX { "warm-up".into() } else { format!("round {round}") };
        eprintln!("{round}: {} {sample}", subject.name);
    }
    Ok(sample)
}

/// A path for a command line.
fn word(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
