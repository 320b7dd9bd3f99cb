//! dmover beside one tool, in turn: the rows of a table.
use anyhow::Result;
use clap::Args;
use std::path::Path;

use super::measure::{self, Sample};
use super::statistics::{interval, median};

/// Which duels are fought, and how often.
#[derive(Debug, Args)]
pub struct DuelArgs {
    /// Rounds, each of which runs every program once
    #[arg(long, value_name = "N", default_value_t = 15)]
    pub rounds: usize,
    /// Files and bytes relative to the full case
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub scale: f64,
    /// Only cases whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub only: String,
}

/// Two ways to do the same work, in a shell's words.
pub struct Duel<'a> {
    /// What is done before each run, and not measured.
    pub before: &'a str,
    pub own: &'a str,
    pub tool: &'a str,
    pub rounds: usize,
    /// A directory for what is measured.
    pub scratch: &'a Path,
}

/// The rounds of a duel.
pub struct Rounds(Vec<(Sample, Sample)>);

impl Duel<'_> {
    /// Runs both in every round.
    pub fn run(&self) -> Result<Rounds> {
        let shell = |script: &str| {
            let words = |script: &str| ["bash".into(), "-euc".into(), script.into()];
            if !self.before.is_empty() {
                measure::run(&words(self.before), self.scratch)?;
            }
            measure::run(&words(script), self.scratch)
        };
        let mut samples = Vec::new();
        for round in 0..self.rounds {
            // In changing order, so that nobody always follows the other.
            let pair = if round % 2 == 0 {
                let first = shell(self.own)?;
                (first, shell(self.tool)?)
            } else {
                let first = shell(self.tool)?;
                (shell(self.own)?, first)
            };
            samples.push(pair);
        }
        Ok(Rounds(samples))
    }
}

impl Rounds {
    /// The head of the table.
    pub const HEADING: &'static str = "| case | dmover s | tool s | dmover / tool | processor time | memory MiB | bar |\n\
         |---|---|---|---|---|---|---|";

    /// A row; `most`: wall clock at most so many times the tool's.
    pub fn row(&self, name: &str, most: f64) -> String {
        let ratio = median(&self.of(&|(own, tool)| own.wall_s / tool.wall_s));
        let met = if ratio <= most { "met" } else { "MISSED" };
        self.row_with(name, &format!("{most:.2} {met}"))
    }

    /// A row; `most_s`: wall clock at most so many seconds.
    pub fn row_within(&self, name: &str, most_s: Option<f64>) -> String {
        let wall_s = median(&self.of(&|(own, _)| own.wall_s));
        let bar = most_s.map_or(String::new(), |most_s| {
            format!("{most_s} s {}", if wall_s <= most_s { "met" } else { "MISSED" })
        });
        self.row_with(name, &bar)
    }

    fn of(&self, value: &dyn Fn(&(Sample, Sample)) -> f64) -> Vec<f64> {
        self.0.iter().map(value).collect()
    }

    fn row_with(&self, name: &str, bar: &str) -> String {
        let ratios = self.of(&|(own, tool)| own.wall_s / tool.wall_s);
        let (low, high) = interval(&ratios);
        let ratio = median(&ratios);
        let peak = self.0.iter().map(|(own, _)| own.peak_kib).max().unwrap_or_default();
        format!(
            "| {name} | {:.2} | {:.2} | {ratio:.2} [{low:.2} to {high:.2}] | {:.2} | {} | {bar} |",
            median(&self.of(&|(own, _)| own.wall_s)),
            median(&self.of(&|(_, tool)| tool.wall_s)),
            median(&self.of(&|(own, tool)| own.cpu_s / tool.cpu_s)),
            peak >> 10,
        )
    }
}
