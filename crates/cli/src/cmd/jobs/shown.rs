//! How several verbs show a job.
use dmover_host::signals;
use dmover_journal::{JobFile, JobPhase, JobStatus};
use dmover_model::{PathBytes, Verb};
use dmover_observe::{Counter, Stage};
use dmover_plan::eta::{Done, Estimator};
use serde_json::{Value, json};

use crate::print::connection;
use crate::print::json::path_fields;
use crate::print::progress::{Part, done};
use crate::print::time::utc as rfc3339;
use crate::print::{counted, grouped};

/// A time span as `5 min ago`.
pub(super) fn ago(ms: i64) -> String {
    let seconds = ms.max(0) / 1000;
    let (number, unit) = match seconds {
        0..60 => (seconds, "s"),
        60..3600 => (seconds / 60, "min"),
        3600..172_800 => (seconds / 3600, "h"),
        _ => (seconds / 86_400, "days"),
    };
    format!("{number} {unit} ago")
}

fn connections(status: &JobStatus) -> Value {
    status.connections.iter().map(|(source, known)| connection::value(source, known)).collect()
}

/// The share of a running job that is done, in percent, if its total is known.
fn percent(file: &JobFile, status: &JobStatus) -> Option<u64> {
    let (entries, bytes) = status.total.filter(|_| status.stage == Stage::Transfer.word())?;
    let verbs = [Verb::Copy, Verb::Sync, Verb::Sum, Verb::Verify];
    let verb = verbs.into_iter().find(|verb| verb.word() == file.verb)?;
    let get = |counter: Counter| status.counters.get(counter.name()).copied().unwrap_or(0);
    let done = done(Part::Job(verb), &get);
    let at_s = (status.updated_ms - status.begun_ms).max(1) as f64 / 1000.0;
    let mut estimator = Estimator::default();
    estimator.sample(Done { at_s, ..done });
    // A total of an older dmover may be that of another run.
    if get(Counter::EntriesFound) > entries {
        return None;
    }
    let (entries, bytes) = (entries.max(done.entries), bytes.max(done.bytes));
    let fraction = estimator.estimate(entries, bytes, 0.0).fraction;
    Some(((fraction * 100.0) as u64).min(99))
}

/// The state or the result of a job, in a few words.
pub(super) fn outcome(file: &JobFile, status: &JobStatus) -> String {
    let count = |name: &str| status.counters.get(name).copied().unwrap_or(0);
    let word = status.phase.word();
    let what = match (status.phase, status.exit_code) {
        (JobPhase::Finished, Some(0)) => String::new(),
        (JobPhase::Finished, _) if count("errors") > 0 => {
            format!(", {} failed", grouped(count("errors")))
        }
        (JobPhase::Finished, _) if count("losses") > 0 => {
            format!(", {} lost", counted(count("losses"), "attribute", "attributes"))
        }
        (JobPhase::Finished, _) if count("deletes_withheld") > 0 => ", deletes withheld".into(),
        (JobPhase::Finished, Some(code)) => format!(", exit code {code}"),
        (JobPhase::Stopped, Some(code @ 129..)) => {
            format!(" by {}", signals::name(i32::from(code) - 128))
        }
        (JobPhase::Stopped, _) => match status.reason.as_deref() {
            Some(reason) if reason.starts_with("by ") => format!(" {reason}"),
            Some(reason) => format!(": {reason}"),
            None => String::new(),
        },
        (JobPhase::Running | JobPhase::Paused, _) => {
            let failed = count("errors");
            let percent = percent(file, status).map(|percent| format!(", {percent} %"));
            let failed = (failed > 0).then(|| format!(", {} failed so far", grouped(failed)));
            percent.into_iter().chain(failed).collect()
        }
        _ => String::new(),
    };
    format!("{word}{what}")
}

pub(super) fn as_json(file: &JobFile, status: Option<&JobStatus>) -> Value {
    let path = |path: &PathBytes| Value::Object(path_fields(&path.to_path()).collect());
    let mut value = json!({
        "type": "job", "schema": crate::print::json::SCHEMA, "job": file.job, "verb": file.verb,
        "label": file.label, "sources": file.sources.iter().map(path).collect::<Vec<_>>(),
        "destination": path(&file.destination), "created": rfc3339(file.created_ms),
    });
    if let (Value::Object(fields), Some(status)) = (&mut value, status) {
        fields.extend([
            ("state".into(), status.phase.word().into()),
            ("outcome".into(), outcome(file, status).into()),
            ("reason".into(), status.reason.clone().into()),
            ("exit_code".into(), status.exit_code.into()),
            ("pid".into(), status.pid.into()),
            ("host".into(), status.host.clone().into()),
            ("begun".into(), rfc3339(status.begun_ms).into()),
            ("updated".into(), rfc3339(status.updated_ms).into()),
            ("resumed".into(), status.resumed.into()),
            ("stage".into(), status.stage.clone().into()),
            ("entries_total".into(), status.total.map(|(entries, _)| entries).into()),
            ("bytes_total".into(), status.total.map(|(_, bytes)| bytes).into()),
            ("tasks_left".into(), status.tasks_left.into()),
            ("limit".into(), status.limit.clone().into()),
            ("errors_by_class".into(), json!(status.errors)),
            ("counters".into(), json!(status.counters)),
            ("connections".into(), connections(status)),
            ("movers".into(), json!(status.movers)),
        ]);
    }
    value
}
