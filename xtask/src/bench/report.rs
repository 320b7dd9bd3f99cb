//! Tables for people, JSON for everything else.
use anyhow::Result;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use super::cases::{Against, Bar, Case, Metric, Place};
use super::measure::{self, Sample};
use super::stage::Stage;
use super::statistics::{interval, median};
use super::subjects::{Subject, total_calls};

/// What is the same for all cases of a run.
pub struct Report {
    pub machine: Value,
}

/// One program in one case.
struct Column {
    name: String,
    faithful: bool,
    samples: Vec<Sample>,
    /// System calls for each file.
    calls: Option<f64>,
    failure: Option<String>,
}

/// What became of a bar.
struct Reached {
    words: String,
    /// The median with its interval; `None` where there is nothing to compare with.
    middle: Option<(f64, f64, f64)>,
    most: f64,
}

/// One case on one file system.
pub struct CaseResult {
    case: &'static Case,
    place: Place,
    files: u64,
    bytes: u64,
    columns: Vec<Column>,
    /// The fastest of the faithful, once it was chosen.
    best: Option<usize>,
}

impl CaseResult {
    pub fn new(case: &'static Case, place: Place, stage: &Stage, subjects: &[Subject]) -> Self {
        let column = |subject: &Subject| Column {
            name: subject.name.clone(),
            faithful: subject.faithful,
            samples: Vec::new(),
            calls: None,
            failure: None,
        };
        let columns = subjects.iter().map(column).collect();
        Self { case, place, files: stage.files, bytes: stage.bytes, columns, best: None }
    }

    pub fn add(&mut self, index: usize, sample: Sample) {
        self.columns[index].samples.push(sample);
    }

    pub fn fail(&mut self, index: usize, error: &anyhow::Error) {
        self.columns[index].failure = Some(format!("{error:#}"));
    }

    pub fn has_failed(&self, index: usize) -> bool {
        self.columns[index].failure.is_some()
    }

    /// Counts system calls, where files are small enough for them to matter.
    pub fn count_calls(&mut self, stage: &Stage, subjects: &[Subject]) -> Result<()> {
        let Some((source, files)) = &stage.sample else { return Ok(()) };
        for (index, subject) in subjects.iter().enumerate() {
            if !subject.is_counted() || self.has_failed(index) {
                continue;
            }
            stage.clear()?;
            let into = stage.scratch().join("calls");
            measure::run(&subject.counting(stage, source, &into), stage.scratch())?;
            let total = total_calls(&std::fs::read_to_string(&into)?)?;
            self.columns[index].calls = Some(total as f64 / *files as f64);
        }
        Ok(())
    }

    /// Ratios of dmover to another program, round by round.
    fn ratios(&self, index: usize, metric: Metric) -> Vec<f64> {
        let of = |sample: &Sample| match metric {
            Metric::Wall => sample.wall_s,
            Metric::Processor => sample.cpu_s,
        };
        let (own, other) = (&self.columns[0].samples, &self.columns[index].samples);
        own.iter().zip(other).map(|(a, b)| of(a) / of(b)).collect()
    }

    /// Whether a bar speaks of each program. The best of the faithful is chosen now and stays it.
    pub fn choose_needed(&mut self) -> Vec<bool> {
        self.best = self.best_faithful();
        let rivals: Vec<_> = self.case.bars.iter().filter_map(|bar| self.rival(bar)).collect();
        let own = |column: &Column| column.name.starts_with("dmover");
        let columns = self.columns.iter().enumerate();
        columns.map(|(index, column)| own(column) || rivals.contains(&index)).collect()
    }

    fn best_faithful(&self) -> Option<usize> {
        let rivals = (1..self.columns.len()).filter(|i| {
            let column = &self.columns[*i];
            column.faithful && !column.name.starts_with("dmover") && column.is_usable()
        });
        rivals.min_by(|a, b| self.columns[*a].wall().total_cmp(&self.columns[*b].wall()))
    }

    /// The program that a bar speaks of.
    fn rival(&self, bar: &Bar) -> Option<usize> {
        if !self.columns[0].is_usable() {
            return None;
        }
        match bar.against {
            Against::Program(name) => {
                self.columns.iter().position(|c| c.name == name && c.is_usable())
            }
            Against::BestFaithful => self.best.or_else(|| self.best_faithful()),
        }
    }

    /// Each bar with the ratio that was reached; `None` where the rival is missing.
    fn bars(&self) -> Vec<Reached> {
        let mut bars = Vec::new();
        for bar in self.case.bars {
            let rival = self.rival(bar);
            let name = rival.map_or("missing", |index| &self.columns[index].name);
            let reached = rival.map(|index| {
                let ratios = self.ratios(index, bar.metric);
                let (low, high) = interval(&ratios);
                (median(&ratios), low, high)
            });
            let words = format!("{} ({name})", bar.words());
            bars.push(Reached { words, middle: reached, most: bar.most });
        }
        if let Some((movers, seconds)) = self.case.fixed {
            let name = format!("dmover -j {movers}");
            let column = self.columns.iter().find(|c| c.name == name && c.is_usable());
            let reached = column.map(|column| {
                let walls: Vec<f64> = column.samples.iter().map(|s| s.wall_s).collect();
                let (low, high) = interval(&walls);
                (median(&walls), low, high)
            });
            let words = format!("seconds with {name}, at most {seconds}");
            bars.push(Reached { words, middle: reached, most: seconds });
        }
        bars
    }

    /// How many bars were not met, missing rivals included.
    pub fn missed(&self) -> usize {
        let missed = |bar: &&Reached| !bar.middle.is_some_and(|(middle, ..)| middle <= bar.most);
        self.bars().iter().filter(missed).count()
    }

    fn json(&self) -> Value {
        let columns: Vec<Value> = self
            .columns
            .iter()
            .map(|column| {
                json!({
                    "name": column.name,
                    "faithful": column.faithful,
                    "samples": column.samples.iter().map(Sample::json).collect::<Vec<_>>(),
                    "calls_per_file": column.calls,
                    "failure": column.failure,
                })
            })
            .collect();
        let bars: Vec<Value> = self
            .bars()
            .into_iter()
            .map(|Reached { words, middle, most }| {
                let (middle, low, high) = middle.unwrap_or((f64::NAN, f64::NAN, f64::NAN));
                json!({ "bar": words, "reached": middle, "low": low, "high": high, "most": most })
            })
            .collect();
        json!({
            "case": self.case.name,
            "place": self.place.name(),
            "files": self.files,
            "bytes": self.bytes,
            "programs": columns,
            "bars": bars,
        })
    }
}

impl Column {
    fn is_usable(&self) -> bool {
        self.failure.is_none() && !self.samples.is_empty()
    }

    fn wall(&self) -> f64 {
        median(&self.samples.iter().map(|s| s.wall_s).collect::<Vec<_>>())
    }
}

impl Report {
    /// The machine, in words.
    pub fn heading(&self) -> String {
        let machine = &self.machine;
        let text = |key: &str| match &machine[key] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let mut heading = format!(
            "{} cores ({}), {} GiB, Linux {}, load {} before, dmover {}\n\n",
            text("cores"),
            text("processor"),
            text("memory_gib"),
            text("kernel"),
            text("load_before"),
            text("commit"),
        );
        if let Some(versions) = machine["versions"].as_object() {
            let versions: Vec<String> = versions
                .iter()
                .map(|(k, v)| format!("{k}: {}", v.as_str().unwrap_or("")))
                .collect();
            heading.push_str(&versions.join("; "));
            heading.push('\n');
        }
        heading
    }

    /// A case as Markdown.
    pub fn table(&self, result: &CaseResult) -> String {
        let mut text = format!(
            "\n### {} on {}: {} ({} files, {} MiB)\n\n",
            result.case.name,
            result.place.name(),
            result.case.about,
            result.files,
            result.bytes >> 20,
        );
        text.push_str(
            "| program | rounds | wall s | processor s | peak MiB | calls a file | dmover takes |\n",
        );
        text.push_str("|---|---|---|---|---|---|---|\n");
        for (index, column) in result.columns.iter().enumerate() {
            text.push_str(&row(result, index, column));
        }
        text.push('\n');
        for Reached { words, middle, most } in result.bars() {
            // Writing into a string cannot fail.
            let _ = match middle {
                None => writeln!(text, "- {words}: NOT MEASURED"),
                Some((middle, low, high)) => {
                    let verdict = if middle <= most { "met" } else { "MISSED" };
                    writeln!(text, "- {words}: {middle:.2} [{low:.2} to {high:.2}], {verdict}")
                }
            };
        }
        text
    }

    /// Adds a line to a file of JSON lines.
    pub fn append_json(&self, path: &Path, result: &CaseResult) -> Result<()> {
        let mut line = result.json();
        line["machine"] = self.machine.clone();
        let mut file = std::fs::File::options().create(true).append(true).open(path)?;
        writeln!(file, "{line}")?;
        Ok(())
    }
}

fn row(result: &CaseResult, index: usize, column: &Column) -> String {
    let mark = if column.faithful { "" } else { " ¹" };
    let name = format!("{}{mark}", column.name);
    if let Some(failure) = &column.failure {
        return format!("| {name} | | failed: {failure} | | | | |\n");
    }
    let of = |value: fn(&Sample) -> f64| column.samples.iter().map(value).collect::<Vec<_>>();
    let (walls, cpus) = (of(|s| s.wall_s), of(|s| s.cpu_s));
    let peak = column.samples.iter().map(|s| s.peak_kib).max().unwrap_or(0) >> 10;
    let (low, high) = interval(&walls);
    let calls = column.calls.map_or(String::new(), |calls| format!("{calls:.1}"));
    let ratio = if index == 0 {
        String::new()
    } else {
        let ratios = result.ratios(index, Metric::Wall);
        let (low, high) = interval(&ratios);
        format!("{:.2} × [{low:.2} to {high:.2}]", median(&ratios))
    };
    format!(
        "| {name} | {} | {:.2} [{low:.2} to {high:.2}] | {:.2} | {peak} | {calls} | {ratio} |\n",
        walls.len(),
        median(&walls),
        median(&cpus),
    )
}
