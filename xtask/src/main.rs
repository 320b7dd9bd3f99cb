//! Developer commands: `cargo xtask --help`.
#![forbid(unsafe_code)]
// These are programs for developers: they print, and the house rules on printing are for dmover.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod dist;
mod docs;
mod fuzz;
mod manuals;
mod page;
mod reference;
mod simulate;
mod soak;
mod tidy;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Developer commands of dmover.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Xtask {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check the house rules: layers, lengths, banned calls, changelog, links
    Tidy,
    /// Write the man pages into DIR
    Man {
        /// Made if it is not there
        dir: PathBuf,
    },
    /// Write the completions of bash, fish and zsh into DIR
    Completions {
        /// Made if it is not there
        dir: PathBuf,
    },
    /// Write the reference pages in docs/ that are made from code
    Docs {
        /// Change nothing; fail if a committed page differs
        #[arg(long)]
        check: bool,
    },
    /// Run a test with many seeds, and print the result as a row of docs/testing.md
    Soak(soak::SoakArgs),
    /// Simulate fleets that are too large to have, with the coordinator as it is
    Simulate(simulate::SimulateArgs),
    /// Feed parsers with bytes that look for trouble (libFuzzer)
    Fuzz(fuzz::FuzzArgs),
    /// Measure dmover beside its peers
    Bench(bench::BenchArgs),
    /// Build the static release archive into dist/
    Dist,
}

fn main() -> ExitCode {
    match run(Xtask::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Tidy => tidy::run(),
        Command::Man { dir } => manuals::man(&dir),
        Command::Completions { dir } => manuals::completions(&dir),
        Command::Docs { check } => docs::run(check),
        Command::Soak(args) => soak::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Dist => dist::run(),
    }
}

/// The root of the repository, from the package that cargo runs or else the current directory.
fn root() -> PathBuf {
    let start = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let start = start.or_else(|| std::env::current_dir().ok()).unwrap_or_default();
    let root = start.ancestors().find(|directory| directory.join("xtask/Cargo.toml").is_file());
    root.unwrap_or(&start).to_owned()
}
