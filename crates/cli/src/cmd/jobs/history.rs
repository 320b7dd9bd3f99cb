//! `dmover history`.
use dmover_job::Choice;
use dmover_model::{ExitCode as Code, units};
use dmover_schedule::time::since_1970;
use serde_json::{Value, json};
use std::process::ExitCode;

use super::{named_or_last, refuse};
use crate::args::HistoryArgs;
use crate::cmd::run::exit;
use crate::print::time::{local as local_time, utc as rfc3339};
use crate::print::{grouped, line};

pub(crate) fn history(args: &HistoryArgs) -> ExitCode {
    let place = args.place.state_dir.as_ref();
    let known = named_or_last(args.job.as_deref(), place, Choice::Journal);
    let passes = match known.and_then(|known| known.passes()) {
        Ok(passes) => passes,
        Err(refused) => return refuse(refused),
    };
    let now = since_1970();
    for pass in passes {
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
