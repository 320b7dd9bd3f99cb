//! `dmover bench`.
use dmover_host::processors::{self, Times};
use dmover_job::quote::quoted;
use dmover_model::{ConnectionReport, ExitCode as Code, Fatal, PathBytes, Protected, units};
use dmover_net::{Endpoint, RemoteAgent, RemoteHost, RootKind};
use dmover_plan::line_limit::{LineFacts, LineLimit, line_limit};
use dmover_remote::bench::{Measure, Moved, measure};
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use super::remote::connect_options;
use super::run::exit;
use crate::args::{BenchArgs, EncryptArg, Relays, RemoteArgs, StreamsArg};
use crate::print::{self, failure, json::SCHEMA, line, one_line};
use crate::state::state_directory;

/// The records of earlier measurements, one JSON object a line.
const HISTORY: &str = "bench.jsonl";
/// How long data streams may take to be open.
const STREAMS_WITHIN: Duration = Duration::from_secs(15);

pub(crate) fn run(args: &BenchArgs) -> ExitCode {
    match bench(args) {
        Ok(()) => exit(Code::Done),
        Err(error) => {
            failure(&one_line(&error.to_string()), &one_line(&error.hint()));
            exit(error.exit_code())
        }
    }
}

fn bench(args: &BenchArgs) -> Result<(), Fatal> {
    let (host, path) = Endpoint::host_of(&args.host, "measure them one by one")?;
    let root = path.clone().unwrap_or_else(|| PathBytes(b".".to_vec()));
    let agent = RemoteAgent::connect(&host, &root, &connect_options(&args.remote))?;
    if let Some(path) = &path {
        check(&agent, path)?;
    }
    wait_for_streams(&agent, args.remote.streams != StreamsArg::Count(0));
    let ms = u32::try_from(args.time).unwrap_or(u32::MAX);
    let mut all = vec![
        ("memory there", "memory here", Measure::Send(ms)),
        ("memory here", "memory there", Measure::Receive),
    ];
    if path.is_some() {
        all.push(("memory here", "storage there", Measure::Write));
        all.push(("storage there", "memory here", Measure::Read(ms)));
    }
    let named = args.host.to_string_lossy().into_owned();
    let history = History::of(args, &named);
    if !args.json {
        line(&format!("{}:", quoted(named.as_bytes())));
    }
    for (from, to, what) in all {
        let before = Before::now(&agent);
        let moved = measure(&agent, what, Duration::from_millis(args.time))?;
        let mut result = before.after(&agent, (from, to), moved, &named);
        result["options"] = options(&args.remote).into();
        let last = history.last(&result);
        if args.json {
            line(&result.to_string());
        } else {
            line(&format!("  {}", words(&result, last.as_ref())));
        }
        history.note(&result);
    }
    if !args.json
        && let Some(known) = agent.report()
    {
        let words = print::connection::words(&PathBytes(named.into_bytes()), &known);
        line(&format!("  connection  {words}"));
    }
    agent.close();
    Ok(())
}

/// Refuses a path at which nothing can be written, before anything is measured.
fn check(agent: &RemoteAgent, path: &PathBytes) -> Result<(), Fatal> {
    let found = agent.inspect()?;
    if found.kind == RootKind::Directory && found.is_writable {
        return Ok(());
    }
    let message = format!(
        "'{}' on {} is no directory in which you may write",
        path.to_path().display(),
        agent.host()
    );
    Err(Fatal::refused(message, "name another directory, or only the host"))
}

/// Streams that are opened during a measurement would falsify it. Without any the connection line says so.
fn wait_for_streams(agent: &RemoteAgent, are_wanted: bool) {
    let end = Instant::now() + STREAMS_WITHIN;
    let has_some = || agent.report().is_some_and(|known| known.streams > 0);
    while are_wanted && !has_some() && agent.is_over().is_none() && Instant::now() < end {
        thread::sleep(Duration::from_millis(50));
    }
}

/// The options that change what is measured, as far as they are not the usual ones.
fn options(args: &RemoteArgs) -> String {
    let mut all = Vec::new();
    if let StreamsArg::Count(count) = args.streams {
        all.push(format!("--streams={count}"));
    }
    match args.encrypt {
        EncryptArg::Full => {}
        EncryptArg::Integrity => all.push("--encrypt=integrity".into()),
        EncryptArg::None => all.push("--encrypt=none".into()),
    }
    all.extend(args.congestion.iter().map(|name| format!("--congestion={name}")));
    all.extend(args.window.iter().map(|bytes| format!("--window={bytes}")));
    all.extend(args.data_address.iter().map(|address| format!("--data-address={address}")));
    all.extend(args.data_from.iter().map(|address| format!("--data-from={address}")));
    for Relays(chain) in &args.relay {
        let names: Vec<_> = chain.iter().map(RemoteHost::shown).collect();
        all.push(format!("--relay={}", names.join(",")));
    }
    all.join(" ")
}

/// What was known before a measurement.
struct Before {
    busy: Option<Times>,
    /// Seconds of processors that this process has used.
    used_s: f64,
    begin: Instant,
    segments: (u64, u64),
}

impl Before {
    fn now(agent: &RemoteAgent) -> Self {
        let report = agent.report();
        let segments = report.map(|known| (known.segments, known.retransmits));
        let (busy, used_s) = (processors::times(), processors::process_seconds());
        Self { busy, used_s, begin: Instant::now(), segments: segments.unwrap_or_default() }
    }

    /// The result as an object.
    fn after(&self, agent: &RemoteAgent, ends: (&str, &str), moved: Moved, named: &str) -> Value {
        let known = agent.report();
        let rate = moved.bytes as f64 / moved.elapsed.as_secs_f64().max(1e-6);
        let used =
            (processors::process_seconds() - self.used_s) / self.begin.elapsed().as_secs_f64();
        let own = used / processors::available() as f64;
        let busy = self.busy.zip(processors::times());
        let busy = busy.and_then(|(before, after)| after.busy_since(&before)).unwrap_or(0.0);
        let sends = ends.0 == "memory here";
        let facts =
            known.as_ref().map(|known| facts(known, self.segments, (rate, (busy, own)), sends));
        let limit = facts.map_or(LineLimit::Unknown, |facts| line_limit(&facts));
        let round_trip = known.as_ref().and_then(|known| known.round_trip_us);
        json!({
            "type": "bench",
            "schema": SCHEMA,
            "time": jiff::Timestamp::now().to_string(),
            "host": named,
            "from": ends.0,
            "to": ends.1,
            "bytes": moved.bytes,
            "elapsed_s": moved.elapsed.as_secs_f64(),
            "bytes_per_s": rate.round(),
            "busy": (busy * 1e3).round() / 1e3,
            "busy_here": (own * 1e3).round() / 1e3,
            "round_trip_us": round_trip,
            "bytes_on_the_way": round_trip.map(|us| (rate * f64::from(us) / 1e6).round()),
            "retransmits": facts.filter(|_| sends).map(|facts| facts.segments.1),
            "streams": known.as_ref().map_or(0, |known| known.streams),
            "protection": known.as_ref().map_or(Protected::Ssh, |known| known.protected).word(),
            "limit": limit.word(),
        })
    }
}

fn facts(
    known: &ConnectionReport,
    before: (u64, u64),
    (rate, busy): (f64, (f64, f64)),
    sends: bool,
) -> LineFacts {
    let seconds = |us: u32| f64::from(us) / 1e6;
    let round_trips = known.round_trip_us.zip(known.least_round_trip_us);
    let buffers = known.buffers.map(|(sending, receiving)| if sends { sending } else { receiving });
    LineFacts {
        rate,
        busy,
        round_trips: round_trips.map(|(usual, least)| (seconds(usual), seconds(least))),
        streams: known.streams,
        buffer: buffers,
        received: (0, 0),
        segments: if sends {
            (known.segments.saturating_sub(before.0), known.retransmits.saturating_sub(before.1))
        } else {
            (0, 0)
        },
        is_encrypted: known.protected == Protected::Tls,
    }
}

/// A result for people.
fn words(result: &Value, last: Option<&Value>) -> String {
    let text = |field: &str| result[field].as_str().unwrap_or_default();
    let number = |value: &Value, field: &str| value[field].as_f64().unwrap_or_default();
    let ends = format!("{} to {}", text("from"), text("to"));
    let rate =
        |value: &Value| format!("{}/s", units::format_iec(number(value, "bytes_per_s") as u64));
    let mut words = vec![
        format!("{ends:<30} {:>12}   limit {}", rate(result), text("limit")),
        format!(
            "processors here {:.0} % busy, {:.0} % with this",
            100.0 * number(result, "busy"),
            100.0 * number(result, "busy_here")
        ),
    ];
    if let Some(on_the_way) = result["bytes_on_the_way"].as_f64() {
        words.push(format!("{} on the way", units::format_iec(on_the_way as u64)));
    }
    if let Some(last) = last {
        let day = last["time"].as_str().unwrap_or_default();
        words.push(format!("{} on {}", rate(last), day.get(..10).unwrap_or(day)));
    }
    words.join("; ")
}

/// Results of earlier measurements, in the state directory.
struct History {
    file: Option<PathBuf>,
    earlier: Vec<Value>,
}

impl History {
    fn of(args: &BenchArgs, named: &str) -> Self {
        let file = state_directory(args.place.state_dir.as_ref()).map(|state| state.join(HISTORY));
        let text = file.as_deref().and_then(|file| std::fs::read_to_string(file).ok());
        let text = text.unwrap_or_default();
        // A line that a full file system has cut is left out.
        let all = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let earlier = all.filter(|result| result["host"] == named).collect();
        Self { file, earlier }
    }

    /// The last one of the same kind.
    fn last(&self, result: &Value) -> Option<Value> {
        let of_kind = ["from", "to", "options", "protection"];
        let is_same = |earlier: &&Value| of_kind.iter().all(|f| earlier[*f] == result[*f]);
        self.earlier.iter().rfind(is_same).cloned()
    }

    fn note(&self, result: &Value) {
        let Some(file) = &self.file else { return };
        if let Err(error) = append(file, &result.to_string()) {
            tracing::warn!(%error, file = %file.display(), "the result is not kept");
        }
    }
}

fn append(file: &Path, line: &str) -> std::io::Result<()> {
    if let Some(directory) = file.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file)?;
    file.write_all(format!("{line}\n").as_bytes())
}
