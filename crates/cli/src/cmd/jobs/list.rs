//! `dmover jobs`.
use dmover_job::description::{destination, sources, verb};
use dmover_job::{Filter, Refusal};
use dmover_journal::{JobFile, JobStatus};
use dmover_model::ExitCode as Code;
use dmover_schedule::time::since_1970;
use std::process::ExitCode;

use super::shown::{ago, as_json, outcome};
use super::{directory, refuse};
use crate::args::JobsArgs;
use crate::cmd::run::exit;
use crate::print::{columns, line, say, width};

/// The least width of the paths, and the greatest width of the state, in columns of a terminal.
const PLACES_MIN: usize = 20;
const OUTCOME_MAX: usize = 32;
const GAP: usize = 2;

pub(crate) fn jobs(args: &JobsArgs) -> ExitCode {
    list(args).map_or_else(refuse, |()| exit(Code::Done))
}

fn list(args: &JobsArgs) -> Result<(), Refusal> {
    let state = directory(args.place.state_dir.as_ref())?;
    let now = since_1970();
    let now_ms = now.as_millis() as i64;
    let filter = Filter {
        phases: args.states.clone(),
        label: args.label.clone(),
        verb: args.verb.clone(),
        since_ms: args.since.map(|ms| now_ms - i64::try_from(ms).unwrap_or(i64::MAX)),
    };
    let wanted = dmover_job::list(&state, &filter)?;
    if args.json {
        for (file, status) in &wanted {
            line(&as_json(file, status.as_ref()).to_string());
        }
        return Ok(());
    }
    if wanted.is_empty() {
        let filtered = args.has_filter();
        let which = if filtered { "no matching job" } else { "no job" };
        say(&format!("dmover: {which} in {}", state.path().display()));
        return Ok(());
    }
    let table = Table::new(&wanted, now_ms);
    table.lines(columns()).iter().for_each(|text| line(text));
    Ok(())
}

/// A line for each job, in columns.
struct Table {
    /// All columns but the paths.
    rows: Vec<Vec<String>>,
    places: Vec<(String, Option<String>)>,
}

impl Table {
    fn new(jobs: &[(JobFile, Option<JobStatus>)], now_ms: i64) -> Self {
        let labelled = jobs.iter().any(|(file, _)| file.label.is_some());
        let head = ["JOB", "VERB", "STATE", "BEGUN", "LABEL"].map(str::to_owned).to_vec();
        let mut rows = vec![head];
        let mut places = vec![("SOURCE".to_owned(), Some("DEST".to_owned()))];
        for (file, status) in jobs {
            let status = status.clone().unwrap_or_default();
            rows.push(vec![
                file.job.clone(),
                verb(file).to_owned(),
                outcome(file, &status),
                ago(now_ms - status.begun_ms),
                file.label.clone().unwrap_or_else(|| "-".into()),
            ]);
            places.push((sources(file), destination(file)));
        }
        if !labelled {
            for row in &mut rows {
                row.truncate(4);
            }
        }
        Self { rows, places }
    }

    /// The lines of the table, each at most this wide.
    fn lines(&self, columns: Option<usize>) -> Vec<String> {
        let most = |column: usize| if column == 2 { OUTCOME_MAX } else { usize::MAX };
        let cut = |column: usize, text: &str| match columns {
            Some(_) => beginning_of(text, most(column)),
            None => text.to_owned(),
        };
        let cells: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| row.iter().enumerate().map(|(column, text)| cut(column, text)).collect())
            .collect();
        let widths: Vec<usize> = (0..cells[0].len())
            .map(|column| cells.iter().map(|row| width(&row[column])).max().unwrap_or(0))
            .collect();
        let taken: usize = widths.iter().map(|width| width + GAP).sum();
        let room = columns.map(|columns| columns.saturating_sub(taken).max(PLACES_MIN));
        let lines = cells.iter().zip(&self.places).map(|(row, (source, destination))| {
            let mut text = String::new();
            for (cell, wanted) in row.iter().zip(&widths) {
                text += cell;
                text.extend(std::iter::repeat_n(' ', wanted - width(cell) + GAP));
            }
            text += &in_room(source, destination.as_deref(), room);
            columns.map_or(text.clone(), |columns| beginning_of(&text, columns))
        });
        lines.collect()
    }
}

/// Two paths in this many columns. A short path leaves its room to the other.
fn in_room(source: &str, destination: Option<&str>, room: Option<usize>) -> String {
    const ARROW: &str = " -> ";
    match (destination, room) {
        (None, None) => source.to_owned(),
        (None, Some(room)) => end_of(source, room),
        (Some(destination), None) => format!("{source}{ARROW}{destination}"),
        (Some(destination), Some(room)) => {
            let room = room - ARROW.len();
            let half = room / 2;
            let first = half.max(room.saturating_sub(width(destination)));
            let source = end_of(source, first);
            let destination = end_of(destination, room - width(&source));
            format!("{source}{ARROW}{destination}")
        }
    }
}

/// The end of a text that is too wide. The end of a path is more telling than its beginning.
fn end_of(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let starts = text.char_indices().map(|(at, _)| &text[at..]);
    let fits = |rest: &&str| width(rest) < room;
    format!("…{}", starts.into_iter().find(fits).unwrap_or_default())
}

/// The beginning of a text that is too wide.
fn beginning_of(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let ends = text.char_indices().rev().map(|(at, _)| &text[..at]);
    let fits = |rest: &&str| width(rest) < room;
    format!("{}…", ends.into_iter().find(fits).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cut_at_their_beginning_and_no_line_is_too_wide() {
        assert_eq!(in_room("/a/b", Some("/c"), Some(20)), "/a/b -> /c");
        assert_eq!(in_room("/long/way/source", Some("/c"), Some(20)), "…ng/way/source -> /c");
        let wide = "/数据/很长的名字/很长的名字";
        for room in 20..60 {
            let shown = in_room(wide, Some(wide), Some(room));
            assert!(width(&shown) <= room, "{shown}");
        }
        let rows =
            vec![vec!["0123456789ab".to_owned(), "copy".into(), "x".repeat(60), "1 s ago".into()]];
        let places = vec![(wide.to_owned(), Some(wide.to_owned()))];
        let table = Table { rows, places };
        for columns in [10, 30, 80, 120] {
            assert!(table.lines(Some(columns)).iter().all(|text| width(text) <= columns));
        }
        assert!(table.lines(None)[0].ends_with(wide));
    }
}
