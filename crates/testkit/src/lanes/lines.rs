//! The lines of JSON that the program writes, as a script would read them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use base64::Engine;
use serde_json::Value;

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct Line(pub Value);

/// Parses the lines; what stands after the last newline was cut off and is left out.
pub fn parse_lines(text: &[u8]) -> Result<Vec<Line>> {
    let complete = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    text[..complete]
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| {
            let shown = || format!("line {:?}", String::from_utf8_lossy(line));
            let value: Value = serde_json::from_slice(line).with_context(shown)?;
            value.get("type").and_then(Value::as_str).with_context(shown)?;
            Ok(Line(value))
        })
        .collect()
}

impl Line {
    /// The type of the line, such as `item` or `summary`.
    pub fn is(&self, kind: &str) -> bool {
        self.text("type") == kind
    }

    /// A field that is a string; empty if it is missing.
    pub fn text(&self, field: &str) -> &str {
        self.0.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    /// A field that is a number, also if it is nested below `counters`.
    pub fn number(&self, field: &str) -> Option<u64> {
        let nested = || self.0.get("counters").and_then(|counters| counters.get(field));
        self.0.get(field).or_else(nested).and_then(Value::as_u64)
    }

    /// A field that is a truth value; false if it is missing.
    pub fn flag(&self, field: &str) -> bool {
        self.0.get(field).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The path that the line is about, with all its bytes.
    pub fn path(&self) -> PathBuf {
        let encoded = self.text("path_b64");
        match base64::engine::general_purpose::STANDARD.decode(encoded) {
            Ok(bytes) if !bytes.is_empty() => PathBuf::from(OsString::from_vec(bytes)),
            _ => PathBuf::from(self.text("path")),
        }
    }
}

/// What a run said, sorted by type.
#[derive(Debug, Clone, Default)]
pub struct ReportItem {
    /// Entries that were dealt with.
    pub items: Vec<Line>,
    /// Entries that failed.
    pub errors: Vec<Line>,
    /// Attributes that were lost.
    pub losses: Vec<Line>,
    /// Things worth saying.
    pub notes: Vec<Line>,
    /// Why the job paused.
    pub paused: Vec<Line>,
    /// The last line, if it is the summary.
    pub summary: Option<Line>,
}

impl ReportItem {
    /// The first of everything that went wrong, in short, for messages.
    pub fn tell(&self) -> String {
        const MOST: usize = 12;
        let wrong = self.errors.iter().chain(&self.losses).chain(&self.paused);
        let short = |line: &Line| {
            let words = ["type", "class", "kind", "operation", "side", "message", "reason"];
            let words = words.map(|field| line.text(field)).join(" ");
            format!("{words} {}", line.path().display())
        };
        wrong.take(MOST).map(short).collect::<Vec<_>>().join("; ")
    }
}

impl super::run::Run {
    /// Sorts the lines of JSON.
    pub fn said(&self) -> Result<ReportItem> {
        let mut said = ReportItem::default();
        let lines = self.lines()?;
        said.summary = lines.last().filter(|line| line.is("summary")).cloned();
        for line in lines {
            let list = match line.text("type") {
                "item" => &mut said.items,
                "error" => &mut said.errors,
                "loss" => &mut said.losses,
                "note" => &mut said.notes,
                "paused" => &mut said.paused,
                _ => continue,
            };
            list.push(line);
        }
        Ok(said)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn odd_names_come_back_whole_and_a_torn_line_is_left_out() {
        let text =
            b"{\"type\":\"item\",\"path\":\"a\\ufffd\",\"path_b64\":\"Yf8=\"}\n{\"type\":\"sum";
        let lines = parse_lines(text).unwrap();
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].path().as_os_str().as_encoded_bytes(), b"a\xff");
        assert!(parse_lines(b"not json\n").is_err());
        assert!(parse_lines(b"{}\n").is_err());
    }
}
