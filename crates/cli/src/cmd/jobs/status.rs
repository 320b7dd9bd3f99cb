//! `dmover status`.
use dmover_job::description::places;
use dmover_job::{Choice, KnownJob, can_retry};
use dmover_journal::{JobFile, JobPhase, JobStatus};
use dmover_model::{ErrorClass, ExitCode as Code, Verb, units};
use dmover_observe::MoverView;
use std::process::ExitCode;

use super::shown::as_json;
use super::{named_or_last, refuse};
use crate::args::StatusArgs;
use crate::cmd::run::exit;
use crate::print::connection;
use crate::print::time::local as local_time;
use crate::print::{counted, counted_all, grouped, line, of_found};

pub(crate) fn status(args: &StatusArgs) -> ExitCode {
    let place = args.place.state_dir.as_ref();
    let known = named_or_last(args.job.as_deref(), place, Choice::Any);
    let KnownJob { state, file } = match known {
        Ok(known) => known,
        Err(refused) => return refuse(refused),
    };
    let status = state.status(&file.job);
    if args.json {
        line(&as_json(&file, status.as_ref()).to_string());
        return exit(Code::Done);
    }
    for words in status_lines(&file, &status.unwrap_or_default()) {
        line(&words);
    }
    exit(Code::Done)
}

/// In the order of zpool-status(8): the state, its meaning, what to do, numbers, errors.
fn status_lines(file: &JobFile, status: &JobStatus) -> Vec<String> {
    let (meaning, action) = meaning(file, status);
    let label = file.label.as_deref().map_or(String::new(), |label| format!(" [{label}]"));
    let get = |name: &str| status.counters.get(name).copied().unwrap_or(0);
    let seconds = (status.updated_ms - status.begun_ms).max(0) as u64 / 1000;
    let mut lines = vec![
        format!("    job: {}{label}", file.job),
        format!("   verb: {} {}", file.verb, places(file)),
        format!("  state: {}", status.phase.word()),
        format!(" status: {meaning}"),
    ];
    lines.extend((!action.is_empty()).then(|| format!(" action: {action}")));
    lines.push(format!(
        "    run: started {}, {} {}{}, process {} on {}",
        local_time(status.begun_ms),
        units::format_duration(seconds),
        if status.phase.has_process() { "so far" } else { "in total" },
        if status.resumed { ", resuming an earlier run" } else { "" },
        status.pid,
        status.host,
    ));
    lines.extend(done_lines(&file.verb, &get));
    lines.extend(status.limit.as_ref().map(|limit| format!("  limit: {limit}")));
    lines.extend(
        status
            .connections
            .iter()
            .map(|(source, known)| format!("   line: {}", connection::words(source, known))),
    );
    lines.extend(status.movers.iter().flatten().map(mover_line));
    if status.errors.is_empty() {
        lines.push(" errors: none".into());
    }
    for (word, count) in &status.errors {
        let class = ErrorClass::ALL.iter().find(|class| class.word() == word);
        let advice = class.map_or("", |class| class.advice());
        lines.push(format!(" errors: {word} {}: {advice}", grouped(*count)));
    }
    lines
}

/// The progress of a job, by its counters.
fn done_lines(verb: &str, get: &dyn Fn(&str) -> u64) -> Vec<String> {
    if verb == Verb::Sum.word() {
        let bytes = units::format_iec(get("bytes_hashed"));
        let files = get("files_hashed");
        let line = format!("  files: {} hashed, {bytes}", grouped(files));
        return if files > 0 { vec![line] } else { Vec::new() };
    }
    let mut lines = Vec::new();
    let mut entries = |counts: &[(&str, u64)]| {
        let counts: Vec<_> = counts.iter().map(|(word, count)| (*count, *word, *word)).collect();
        let words = counted_all(&counts);
        lines.extend((!words.is_empty()).then(|| format!("entries: {words}")));
    };
    if verb == Verb::Verify.word() {
        entries(&[
            ("found", get("entries_found")),
            ("compared", get("entries_compared")),
            ("compared by content", get("files_compared")),
            ("differ", get("entries_differing")),
            ("repaired", get("entries_repaired")),
        ]);
        return lines;
    }
    let copied = ["files_copied", "directories_created", "symlinks_copied", "specials_copied"];
    let copied: u64 = copied.into_iter().map(get).sum::<u64>() + get("hard_links_created");
    entries(&[
        ("found", get("entries_found")),
        ("copied", copied),
        ("skipped", get("entries_skipped")),
        ("deleted", get("entries_deleted")),
    ]);
    // An interrupted pass, or one with --checksum, may read for long before it writes anything.
    let compared = get("files_compared");
    lines.extend(
        (compared > 0).then(|| format!("  files: {} compared by content", grouped(compared))),
    );
    let copied = get("bytes_copied") + get("bytes_shared");
    let of = of_found(copied, get("bytes_found"), units::format_iec);
    let line = format!("  bytes: {} copied{of}", units::format_iec(copied));
    lines.extend((copied + get("bytes_found") > 0).then_some(line));
    lines
}

fn mover_line(mover: &MoverView) -> String {
    let remarks = mover.remarks().into_iter();
    let remarks = remarks.fold(String::new(), |all, remark| all + "; " + &remark);
    format!(
        "  mover: {}: {} in progress, {}/s, {:.0} entries/s, last message {:.0} s ago{remarks}",
        mover.name(),
        counted(mover.tasks, "task", "tasks"),
        units::format_iec(mover.bytes_per_s as u64),
        mover.entries_per_s,
        mover.silent_s,
    )
}

fn meaning(file: &JobFile, status: &JobStatus) -> (String, String) {
    let id = &file.job;
    let because = match status.reason.as_deref() {
        Some(reason) if reason.starts_with("by ") => format!(" {reason}"),
        Some(reason) => format!(": {reason}"),
        None => String::new(),
    };
    match (status.phase, status.exit_code) {
        (JobPhase::Running, _) => (
            match status.tasks_left {
                0 => "the job is running".into(),
                tasks => {
                    let tasks = counted(tasks, "known task", "known tasks");
                    format!("the job is running; {tasks} left")
                }
            },
            String::new(),
        ),
        (JobPhase::Watching, _) => (
            "the job waits for changes in SOURCE and copies them".into(),
            format!("'dmover cancel {id}' ends it"),
        ),
        (JobPhase::Paused, _) => {
            let tasks = status.movers.iter().flatten().map(|mover| mover.tasks).sum();
            let in_progress = match tasks {
                0 => String::new(),
                tasks => {
                    format!("; {} in progress finish first", counted(tasks, "task", "tasks"))
                }
            };
            let meaning = format!("the job starts no new tasks{in_progress}");
            (meaning, format!("'dmover resume {id}' continues it"))
        }
        (JobPhase::Finished, Some(0)) => ("the job is complete".into(), String::new()),
        (JobPhase::Finished, code) => (
            format!("the job ended with exit code {}{because}", code.unwrap_or_default()),
            if can_retry(file) {
                format!(
                    "'dmover errors {id}' lists the failed entries, 'dmover retry {id}' retries \
                     only those, 'dmover resume {id}' runs the whole job again"
                )
            } else {
                format!(
                    "'dmover errors {id}' lists the failed entries, 'dmover resume {id}' runs \
                     the same command again"
                )
            },
        ),
        (JobPhase::Stopped, _) => {
            (format!("the job was stopped{because}"), format!("'dmover resume {id}' continues it"))
        }
        (JobPhase::Cancelled, _) => (
            "the job was cancelled".into(),
            format!(
                "'dmover cleanup {id}' removes its temporaries, 'dmover resume {id}' starts over"
            ),
        ),
        (JobPhase::Died, _) => (
            "the process of the job died".into(),
            format!("'dmover resume {id}' continues it; completed work is kept"),
        ),
    }
}
