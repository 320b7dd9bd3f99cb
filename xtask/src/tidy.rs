//! The house rules that a machine can check. One module a rule; `docs/style.md` gives the reasons.
mod banned;
mod changelog;
mod circles;
mod layers;
mod leaks;
mod lengths;
mod links;
mod rust;
mod texts;
mod tree;
mod types;
mod words;

use anyhow::{Result, ensure};
use std::fmt;

pub use tree::SourceFile;

/// One breach of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    path: String,
    line: usize,
    what: String,
}

impl Finding {
    fn new(file: &SourceFile, line: usize, what: impl Into<String>) -> Self {
        Self { path: file.path.clone(), line, what: what.into() }
    }

    fn of_tree(path: &str, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line: 1, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// The list of all texts of the program.
pub fn texts() -> Result<String> {
    Ok(texts::list(&tree::read()?))
}

/// Checks the whole tree; prints each finding and fails if there is any.
pub fn run() -> Result<()> {
    let files = tree::read()?;
    let mut findings = layers::check(&layers::metadata()?)?;
    findings.extend(check(&files));
    findings.sort();
    findings.dedup();
    for finding in &findings {
        println!("{finding}");
    }
    ensure!(findings.is_empty(), "tidy: {} findings in {} files", findings.len(), files.len());
    println!("tidy: {} files, nothing found", files.len());
    Ok(())
}

/// All rules that look at files.
fn check(files: &[SourceFile]) -> Vec<Finding> {
    let retired = words::retired(files);
    let mut findings = Vec::new();
    for file in files {
        findings.extend(lengths::check(file));
        findings.extend(banned::check(file));
        findings.extend(changelog::check(file));
        findings.extend(leaks::check(file));
        findings.extend(links::check(file, files));
        findings.extend(words::check(file, &retired));
    }
    findings.extend(circles::check(files));
    findings.extend(types::check(files));
    findings.extend(lengths::check_missing(files));
    findings.extend(words::check_missing(&retired));
    findings
}
