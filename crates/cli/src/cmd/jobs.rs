//! `dmover jobs`, `status`, `wait`, `errors` and `history`: what is known of jobs.
use dmover_engine::{JobFile, JobPhase, JobStatus, JournalReader, StateDirectory};
use dmover_model::{ErrorClass, ExitCode as Code, Verb, units};
use dmover_observe::MoverView;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use super::ask::can_retry;
use super::choose::{Choice, named_or_last};
use super::run::{exit, state_directory};
use crate::args::{ErrorsArgs, HistoryArgs, JobsArgs, StatusArgs, WaitArgs};
use crate::print::json::path_fields;
use crate::print::time::{local as local_time, utc as rfc3339};
use crate::print::{counted, counted_all, data, failure, grouped, line, of_found};
use crate::quote::quoted;

/// How often a wait looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A job that was found.
pub(super) struct Known {
    pub state: StateDirectory,
    pub file: JobFile,
}

/// Words for what cannot be done, with the code to end with.
pub(super) type Refused = (String, &'static str, Code);

pub(super) fn refuse((message, hint, code): Refused) -> ExitCode {
    failure(&message, hint);
    exit(code)
}

pub(super) fn directory(named: Option<&std::ffi::OsString>) -> Result<StateDirectory, Refused> {
    let found = state_directory(named).map(StateDirectory::new);
    found.ok_or_else(|| {
        let words = "there is no state directory: neither $XDG_STATE_HOME nor $HOME is set";
        (words.into(), "name one by --state-dir", Code::Usage)
    })
}

/// All jobs of a directory, the one that began last first.
pub(super) fn all(state: &StateDirectory) -> Result<Vec<JobFile>, Refused> {
    let jobs = state.jobs().map_err(|error| {
        let message = format!("cannot read {}: {error}", state.path().display());
        (message, "name another --state-dir, or check permissions", Code::Usage)
    })?;
    let mut files: Vec<JobFile> = jobs.iter().filter_map(|job| state.job_file(job)).collect();
    let begun = |file: &JobFile| state.status(&file.job).map_or(file.created_ms, |s| s.begun_ms);
    files.sort_by_cached_key(|file| std::cmp::Reverse(begun(file)));
    Ok(files)
}

/// The job of this id, label or beginning of an id.
pub(super) fn find(named: &str, place: Option<&std::ffi::OsString>) -> Result<Known, Refused> {
    if named.is_empty() {
        return Err(("the name of a job is empty".into(), "'dmover jobs' lists them", Code::Usage));
    }
    let state = directory(place)?;
    let files = all(&state)?;
    let labelled = files.iter().filter(|file| file.label.as_deref() == Some(named));
    let matching: Vec<&JobFile> =
        labelled.chain(files.iter().filter(|file| file.job.starts_with(named))).collect();
    let mut ids: Vec<&str> = matching.iter().map(|file| file.job.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    match (matching.first(), ids.len()) {
        (Some(file), 1) => Ok(Known { file: (*file).clone(), state }),
        (Some(_), _) => {
            let message = format!("'{named}' can mean several jobs: {}", ids.join(", "));
            Err((message, "give more of the id", Code::Usage))
        }
        (None, _) => {
            let place = state.path().display();
            let message = format!("there is no job '{named}' in {place}");
            Err((message, "'dmover jobs' lists those that there are", Code::Usage))
        }
    }
}

pub(crate) fn jobs(args: &JobsArgs) -> ExitCode {
    let listed =
        directory(args.place.state_dir.as_ref()).and_then(|state| Ok((all(&state)?, state)));
    let (files, state) = match listed {
        Ok(listed) => listed,
        Err(refused) => return refuse(refused),
    };
    for file in files {
        let status = state.status(&file.job);
        if args.json {
            line(&as_json(&file, status.as_ref()).to_string());
            continue;
        }
        let status = status.unwrap_or_default();
        let label = file.label.as_deref().map_or(String::new(), |label| format!("  [{label}]"));
        line(&format!(
            "{}  {:<6} {:<9} {}  {}{label}",
            file.job,
            file.verb,
            status.phase.word(),
            local_time(status.begun_ms),
            places(&file),
        ));
    }
    exit(Code::Done)
}

fn names(file: &JobFile) -> String {
    match &file.sources[..] {
        [] => "a list".into(),
        [one] => quoted(&one.0),
        [first, rest @ ..] => format!("{} and {} more", quoted(&first.0), rest.len()),
    }
}

/// What is read and, if there is such a place, what is written or compared.
pub(super) fn places(file: &JobFile) -> String {
    match &file.destination.0[..] {
        [] => names(file),
        destination => format!("{} -> {}", names(file), quoted(destination)),
    }
}

fn as_json(file: &JobFile, status: Option<&JobStatus>) -> Value {
    let path =
        |path: &dmover_model::PathBytes| Value::Object(path_fields(&path.to_path()).collect());
    let mut value = json!({
        "type": "job", "schema": crate::print::json::SCHEMA, "job": file.job, "verb": file.verb,
        "label": file.label, "sources": file.sources.iter().map(path).collect::<Vec<_>>(),
        "destination": path(&file.destination), "created": rfc3339(file.created_ms),
    });
    if let (Value::Object(fields), Some(status)) = (&mut value, status) {
        fields.extend([
            ("state".into(), status.phase.word().into()),
            ("reason".into(), status.reason.clone().into()),
            ("exit_code".into(), status.exit_code.into()),
            ("pid".into(), status.pid.into()),
            ("host".into(), status.host.clone().into()),
            ("begun".into(), rfc3339(status.begun_ms).into()),
            ("updated".into(), rfc3339(status.updated_ms).into()),
            ("resumed".into(), status.resumed.into()),
            ("tasks_left".into(), status.tasks_left.into()),
            ("limit".into(), status.limit.clone().into()),
            ("errors_by_class".into(), json!(status.errors)),
            ("counters".into(), json!(status.counters)),
            ("movers".into(), json!(status.movers)),
        ]);
    }
    value
}

pub(crate) fn status(args: &StatusArgs) -> ExitCode {
    let place = args.place.state_dir.as_ref();
    let known = named_or_last(args.job.as_deref(), place, Choice::Any);
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
            match status.tasks_left {
                0 => "it runs".into(),
                tasks => format!("it runs; {} left", counted(tasks, "known task", "known tasks")),
            },
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
                format!("'dmover resume {id}' runs the same command again")
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

pub(crate) fn wait(args: &WaitArgs) -> ExitCode {
    let place = args.place.state_dir.as_ref();
    let known: Result<Vec<Known>, Refused> = match &args.jobs[..] {
        [] => named_or_last(None, place, Choice::Any).map(|known| vec![known]),
        named => named.iter().map(|named| find(named, place)).collect(),
    };
    let known = match known {
        Ok(known) => known,
        Err(refused) => return refuse(refused),
    };
    let until = args.timeout.map(|ms| Instant::now() + Duration::from_millis(ms));
    let mut worst = 0;
    for Known { state, file } in &known {
        loop {
            let status = state.status(&file.job).unwrap_or_default();
            // Whoever stands by goes on with one that has died.
            let goes_on = status.phase == JobPhase::Died && state.is_stood_by(&file.job);
            if !status.phase.has_process() && !goes_on {
                let died = status.phase == JobPhase::Died;
                let code = status.exit_code.filter(|_| !died);
                worst = worst.max(code.unwrap_or_else(|| Code::Partial.code()));
                break;
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                failure(&format!("job {} is still {}", file.job, status.phase.word()), "");
                return exit(Code::Temporary);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
    ExitCode::from(worst)
}

const UNREADABLE: &str = "if it is damaged, move the journal away: the next run begins a new one, and needs --checksum after an interrupted pass";

fn journal(known: &Known) -> Result<JournalReader, Refused> {
    let opened = JournalReader::open(&known.state.directory(&known.file.job));
    let hint = "if the job is at work on another host, ask there";
    opened.map_err(|message| (message, hint, Code::Temporary))?.ok_or_else(|| {
        let message = format!("job {} keeps no journal: only 'sync' does", known.file.job);
        (message, "its messages and --log-file say what failed", Code::Usage)
    })
}

pub(crate) fn errors(args: &ErrorsArgs) -> ExitCode {
    let place = args.place.state_dir.as_ref();
    let known = named_or_last(args.job.as_deref(), place, Choice::Journal);
    let listed = known.and_then(|known| {
        journal(&known)?.errors().map_err(|message| (message, UNREADABLE, Code::Fatal))
    });
    let errors = match listed {
        Ok(errors) => errors,
        Err(refused) => return refuse(refused),
    };
    let mut out = data();
    for error in errors {
        if args.class.is_some_and(|class| class.word() != error.class) {
            continue;
        }
        let written = if args.print0 {
            std::io::Write::write_all(&mut out, &[&error.path.0[..], b"\0"].concat())
        } else if args.json {
            let mut value = json!({
                "type": "error", "schema": crate::print::json::SCHEMA, "pass": error.pass,
                "time": rfc3339(error.time_ms), "side": error.side, "operation": error.operation,
                "class": error.class, "errno": error.errno, "attempt": error.attempt,
                "message": words(&error),
            });
            if let Value::Object(fields) = &mut value {
                fields.extend(path_fields(&error.path.to_path()));
            }
            std::io::Write::write_all(&mut out, format!("{value}\n").as_bytes())
        } else {
            let path = quoted(&error.path.0);
            let words = words(&error);
            let text = format!("{path}: {}: {words} [{}]\n", error.operation, error.class);
            std::io::Write::write_all(&mut out, text.as_bytes())
        };
        if written.is_err() {
            return exit(Code::Fatal);
        }
    }
    exit(Code::Done)
}

fn words(error: &dmover_engine::RecordedError) -> String {
    match (error.errno, error.detail.as_str()) {
        (0, detail) => detail.to_owned(),
        (errno, "") => std::io::Error::from_raw_os_error(errno).to_string(),
        (errno, detail) => format!("{}; {detail}", std::io::Error::from_raw_os_error(errno)),
    }
}

pub(crate) fn history(args: &HistoryArgs) -> ExitCode {
    let place = args.place.state_dir.as_ref();
    let known = named_or_last(args.job.as_deref(), place, Choice::Journal);
    let listed = known.and_then(|known| {
        let passes = journal(&known)?.passes();
        let runs = known.state.is_running(&known.file.job);
        passes.map(|passes| (passes, runs)).map_err(|message| (message, UNREADABLE, Code::Fatal))
    });
    let (passes, runs) = match listed {
        Ok(listed) => listed,
        Err(refused) => return refuse(refused),
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    for mut pass in passes {
        if pass.state == "running" && !runs {
            pass.state = "died".into();
        }
        let counters: Value = pass
            .counters
            .as_deref()
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        if args.json {
            let value = json!({
                "type": "pass", "schema": crate::print::json::SCHEMA, "pass": pass.number,
                "begun": rfc3339(pass.begun_ms), "ended": pass.ended_ms.map(rfc3339),
                "state": pass.state, "exit_code": pass.exit_code, "counters": counters,
            });
            line(&value.to_string());
            continue;
        }
        let get = |name: &str| counters.get(name).and_then(Value::as_u64).unwrap_or(0);
        let ended = pass.ended_ms.unwrap_or(now.as_millis() as i64);
        let took = units::format_duration((ended - pass.begun_ms).max(0) as u64 / 1000);
        line(&format!(
            "{:>4}  {}  {took:>8}  {:<9} {:>2}  {:>12} found {:>10} {:>10} deleted {:>6} errors",
            pass.number,
            local_time(pass.begun_ms),
            pass.state,
            pass.exit_code.map_or_else(|| "-".into(), |code| code.to_string()),
            grouped(get("entries_found")),
            units::format_iec(get("bytes_copied")),
            grouped(get("entries_deleted")),
            grouped(get("errors")),
        ));
    }
    exit(Code::Done)
}
