//! `dmover status`.
use dmover_engine::{JobFile, JobPhase, JobStatus};
use dmover_model::{ErrorClass, ExitCode as Code, Verb, units};
use dmover_observe::MoverView;
use std::process::ExitCode;

use super::shown::{as_json, local_time, places};
use super::{Known, all, directory, find, refuse};
use crate::args::StatusArgs;
use crate::cmd::ask::can_retry;
use crate::cmd::run::exit;
use crate::print::{counted, grouped, line, of_found};

pub(crate) fn status(args: &StatusArgs) -> ExitCode {
    let place = args.place.state_dir.as_ref();
    let known = match &args.job {
        Some(named) => find(named, place),
        None => directory(place).and_then(|state| {
            // The one that began last, of those that run if any does.
            let mut files = all(&state)?.into_iter().peekable();
            let last = files.peek().cloned();
            let runs = |file: &JobFile| {
                state.status(&file.job).is_some_and(|status| status.phase.has_process())
            };
            let file = files.find(runs).or(last);
            let none = "no job is remembered here";
            let file = file.ok_or((none.into(), "name another --state-dir", Code::Usage))?;
            Ok(Known { state, file })
        }),
    };
    let Known { state, file } = match known {
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

/// As zpool-status(8) has it: the state, what it means, what to do, numbers, errors last.
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
        "    run: begun {}, {} {}{}, process {} on {}",
        local_time(status.begun_ms),
        units::format_duration(seconds),
        if status.phase.has_process() { "so far" } else { "until its end" },
        if status.resumed { ", going on with an earlier run" } else { "" },
        status.pid,
        status.host,
    ));
    lines.extend(done_lines(&file.verb, &get));
    lines.extend(status.limit.as_ref().map(|limit| format!("  limit: {limit}")));
    lines.extend(status.movers.iter().flatten().map(mover_line));
    if status.errors.is_empty() {
        lines.push(" errors: none known".into());
    }
    for (word, count) in &status.errors {
        let class = ErrorClass::ALL.iter().find(|class| class.word() == word);
        let advice = class.map_or("", |class| class.advice());
        lines.push(format!(" errors: {word} {}: {advice}", grouped(*count)));
    }
    lines
}

/// What a verb has done so far.
fn done_lines(verb: &str, get: &dyn Fn(&str) -> u64) -> Vec<String> {
    if verb == Verb::Sum.word() {
        let bytes = units::format_iec(get("bytes_hashed"));
        return vec![format!("  files: {} hashed, {bytes}", grouped(get("files_hashed")))];
    }
    if verb == Verb::Verify.word() {
        return vec![format!(
            "entries: {} found, {} compared, {} differ, {} repaired; content of {} files compared",
            grouped(get("entries_found")),
            grouped(get("entries_compared")),
            grouped(get("entries_differing")),
            grouped(get("entries_repaired")),
            grouped(get("files_compared")),
        )];
    }
    let mut lines = Vec::new();
    let copied = ["files_copied", "directories_created", "symlinks_copied", "specials_copied"];
    let copied: u64 = copied.into_iter().map(get).sum::<u64>() + get("hard_links_created");
    lines.push(format!(
        "entries: {} found, {} brought over, {} left alone, {} deleted",
        grouped(get("entries_found")),
        grouped(copied),
        grouped(get("entries_skipped")),
        grouped(get("entries_deleted")),
    ));
    // An interrupted pass, or one with --checksum, may read for long before it writes anything.
    let compared = get("files_compared");
    lines.extend(
        (compared > 0).then(|| format!("  files: {} compared by content", grouped(compared))),
    );
    let copied = get("bytes_copied") + get("bytes_shared");
    let of = of_found(copied, get("bytes_found"), units::format_iec);
    lines.push(format!("  bytes: {} copied{of}", units::format_iec(copied)));
    lines
}

fn mover_line(mover: &MoverView) -> String {
    let remarks = mover.remarks().into_iter();
    let remarks = remarks.fold(String::new(), |all, remark| all + "; " + &remark);
    format!(
        "  mover: {}: {} in hand, {}/s, {:.0} entries/s, heard of {:.0} s ago{remarks}",
        mover.name(),
        counted(mover.tasks, "task", "tasks"),
        units::format_iec(mover.bytes_per_s as u64),
        mover.entries_per_s,
        mover.silent_s,
    )
}

fn meaning(file: &JobFile, status: &JobStatus) -> (String, String) {
    let id = &file.job;
    let because = status.reason.as_deref().map_or(String::new(), |reason| format!(": {reason}"));
    match (status.phase, status.exit_code) {
        (JobPhase::Running, _) => (
            format!("it is at work, {} tasks are waiting or in hand", grouped(status.tasks_left)),
            String::new(),
        ),
        (JobPhase::Watching, _) => (
            "it waits for changes of the source, and brings them over".into(),
            format!("'dmover cancel {id}' ends it"),
        ),
        (JobPhase::Paused, _) => {
            let tasks = status.movers.iter().flatten().map(|mover| mover.tasks).sum();
            let in_hand = match tasks {
                0 => String::new(),
                tasks => {
                    format!("; {} in hand come to their end first", counted(tasks, "task", "tasks"))
                }
            };
            let meaning = format!("it takes nothing new, as it was asked to{in_hand}");
            (meaning, format!("'dmover resume {id}' has it go on"))
        }
        (JobPhase::Finished, Some(0)) => ("everything is done".into(), String::new()),
        (JobPhase::Finished, code) => (
            format!("it has ended with exit code {}{because}", code.unwrap_or_default()),
            if can_retry(file) {
                format!(
                    "'dmover errors {id}' lists what failed, 'dmover retry {id}' tries just that, the same command everything"
                )
            } else {
                format!(
                    "'dmover errors {id}' lists what failed, 'dmover resume {id}' runs the same command again"
                )
            },
        ),
        (JobPhase::Stopped, _) => {
            (format!("it was stopped{because}"), format!("'dmover resume {id}' goes on"))
        }
        (JobPhase::Cancelled, _) => (
            "it was given up".into(),
            format!(
                "'dmover cleanup {id}' removes what it has left, 'dmover resume {id}' begins anew"
            ),
        ),
        (JobPhase::Died, _) => (
            "its process is gone without a word".into(),
            format!("'dmover resume {id}' goes on; what was done stays done"),
        ),
    }
}
