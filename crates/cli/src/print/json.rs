//! JSON lines for scripts; `docs/scripting.md` describes every field.
use base64::Engine as _;
use dmover_engine::{Control, HostWork, JobReport, JobState, StopReason};
use dmover_model::{Action, DifferenceKind, Event, ExitCode, Fatal, FileDigest, Limit, PathBytes};
use dmover_observe::{Counter, Monitor};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::connection;
use super::progress::Progress;
use super::time::utc_exact;

/// The version of the lines that this program writes.
pub(crate) const SCHEMA: u32 = 1;

/// Prints events as JSON lines.
pub(crate) struct JsonPrinter {
    control: Arc<Control>,
    progress: Arc<Progress>,
    /// A line could not be written, so the output is incomplete.
    lost: AtomicBool,
    /// A comparison reports differences only.
    without_equal: bool,
}

impl Monitor for JsonPrinter {
    fn event(&self, event: &Event) {
        match event {
            Event::Start { job, targets, dry_run } => {
                let targets: Vec<Value> = targets.iter().map(path_value).collect();
                let fields = json!({"job": job.0, "targets": targets, "dry_run": dry_run});
                self.print("start", None, fields);
            }
            Event::Item(item) if self.without_equal && item.action == Action::Skipped => {}
            Event::Item(item) => {
                let fields = json!({
                    "action": item.action, "kind": item.kind, "bytes": item.bytes,
                    "elapsed_s": item.elapsed_us as f64 / 1e6, "itemized": item.itemized,
                    "target": path_value(&item.target),
                });
                self.print("item", Some(&item.path), fields);
            }
            Event::Error(error) => {
                let fields = json!({
                    "class": error.class, "operation": error.operation, "side": error.side,
                    "errno": error.errno, "attempt": error.attempt, "message": error.to_string(),
                    "advice": error.class.advice(),
                });
                self.print("error", Some(&error.path), fields);
            }
            Event::Loss { path, kind, detail, allowed } => {
                let fields = json!({"kind": kind, "detail": detail, "allowed": allowed});
                self.print("loss", Some(path), fields);
            }
            Event::Digest(digest) => {
                self.print("digest", Some(&digest.path), digest_fields(digest));
            }
            Event::Checked { path, verdict, guessed, .. } => {
                let mut fields = serde_json::to_value(verdict).unwrap_or_default();
                if let (Some(hash), Value::Object(fields)) = (guessed, &mut fields) {
                    fields.insert("hash_type".into(), hash.word().into());
                }
                self.print("checked", Some(path), fields);
            }
            Event::Difference(difference) => {
                let kinds: Vec<_> = difference.kinds.iter().map(DifferenceKind::word).collect();
                let fields = json!({
                    "kind": difference.kind, "kinds": kinds, "ranges": difference.ranges,
                    "detail": difference.words(utc_exact), "repaired": difference.repaired,
                });
                self.print("difference", Some(&difference.path), fields);
            }
            Event::Note { path, note, detail } => {
                self.print("note", Some(path), json!({"note": note, "detail": detail}));
            }
            Event::Limit(limit) => {
                self.progress.note_limit(limit);
                self.print("limit", None, limit_value(limit));
            }
            Event::Withheld { reason, advice, deleted, .. } => {
                let fields = json!({"reason": reason, "advice": advice, "deleted": deleted});
                self.print("withheld", None, fields);
            }
            Event::Unlocked { path, reason } => {
                self.print("unlocked", Some(path), json!({"reason": reason}));
            }
            Event::Movers { words } => self.print("movers", None, json!({"words": words})),
            Event::Paused { reason } => self.print("paused", None, json!({"reason": reason})),
        }
    }

    fn wants_items(&self) -> bool {
        true
    }
}

impl JsonPrinter {
    pub fn new(control: Arc<Control>, progress: Arc<Progress>) -> Self {
        Self { control, progress, lost: AtomicBool::new(false), without_equal: false }
    }

    /// Prints no lines of entries without a difference.
    pub fn without_equal_entries(self) -> Self {
        Self { without_equal: true, ..self }
    }

    /// Whether a line could not be written.
    pub fn has_lost_lines(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    fn print(&self, kind: &str, path: Option<&PathBytes>, fields: Value) {
        let mut text = record(kind, path, fields);
        text.push('\n');
        let mut out = std::io::stdout().lock();
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        if let Err(error) = written {
            self.control.stop(super::output_failed(&error));
            self.lost.store(true, Ordering::Relaxed);
        }
    }

    /// Prints the last line of a job that ran. The verb passes the exit code, because it may depend on more than the report.
    pub fn summary(&self, report: &JobReport, exit_code: ExitCode) {
        let mut fields = Map::new();
        let (state, reason) = match report.state {
            JobState::Finished => ("finished", Value::Null),
            JobState::Stopped(StopReason::Systemic(class)) => ("paused", class.word().into()),
            JobState::Stopped(StopReason::Signal(n)) => ("stopped", format!("signal {n}").into()),
            JobState::Stopped(StopReason::Errors) => ("stopped", "max_errors".into()),
            JobState::Stopped(StopReason::Duration) => ("stopped", "max_duration".into()),
            JobState::Stopped(StopReason::Output) => ("stopped", "output".into()),
            JobState::Stopped(StopReason::Cancelled) => ("cancelled", Value::Null),
            JobState::Stopped(StopReason::Manifest) => ("stopped", "manifest".into()),
        };
        let code = match report.state {
            JobState::Stopped(StopReason::Signal(n)) => 128 + n,
            _ => exit_code.code().into(),
        };
        fields.insert("job".into(), report.job.0.clone().into());
        fields.insert("state".into(), state.into());
        fields.insert("reason".into(), reason);
        fields.insert("exit_code".into(), code.into());
        fields.insert("elapsed_s".into(), report.elapsed.as_secs_f64().into());
        fields.insert("peak_memory_bytes".into(), report.peak_memory_bytes.into());
        fields.insert("spilled".into(), report.spilled.into());
        fields.insert("resumed".into(), report.resumed.into());
        let withheld = report.withheld.as_ref().map(|withheld| withheld.reason.words());
        fields.insert("deletes_withheld_because".into(), withheld.into());
        fields.insert("limit".into(), limit_value(&report.limit));
        let connections =
            report.connections.iter().map(|(source, known)| connection::value(source, known));
        fields.insert("connections".into(), connections.collect());
        let others = report.other_hosts.iter().map(|HostWork { host, chunks, bytes }| {
            json!({ "host": host, "chunks_copied": chunks, "bytes_copied": bytes })
        });
        fields.insert("other_hosts".into(), others.collect());
        for counter in Counter::ALL {
            fields.insert(counter.name().into(), report.counters.get(*counter).into());
        }
        // Its earlier name stays for one version.
        let updated = report.counters.get(Counter::MetadataUpdated);
        fields.insert("entries_dressed".into(), updated.into());
        let by_class = report.errors.iter().map(|(c, n)| (c.word().to_owned(), (*n).into()));
        fields.insert("errors_by_class".into(), Value::Object(by_class.collect()));
        let by_kind = report.losses.iter().map(|(k, n)| (k.word().to_owned(), (*n).into()));
        fields.insert("losses_by_kind".into(), Value::Object(by_kind.collect()));
        let earlier = report.earlier_losses.iter().map(|(k, n)| (k.word().to_owned(), (*n).into()));
        fields.insert("earlier_losses_by_kind".into(), Value::Object(earlier.collect()));
        fields.insert("earlier_failures".into(), report.earlier_failures.all().into());
        let slowest = report.slowest.iter().map(|slow| {
            let mut entry: Map<_, _> = path_fields(&slow.path.to_path()).collect();
            entry.insert("elapsed_s".into(), (slow.elapsed_us as f64 / 1e6).into());
            entry.insert("bytes".into(), slow.bytes.into());
            Value::Object(entry)
        });
        fields.insert("slowest".into(), slowest.collect());
        self.print("summary", None, Value::Object(fields));
    }

    /// Prints the result of reading back a copy: entries and bytes read, and entries that differ.
    pub fn read_back(&self, [entries, bytes, differing]: [u64; 3], code: ExitCode) {
        let fields = json!({
            "entries": entries, "bytes": bytes, "entries_differing": differing,
            "exit_code": code.code(),
        });
        self.print("read_back", None, fields);
    }

    /// Prints the path of the snapshot that was created.
    pub fn snapshot(&self, place: &Path) {
        self.print("snapshot", None, Value::Object(path_fields(place).collect()));
    }

    /// Prints the last line of a job that could not run.
    pub fn fatal(&self, error: &Fatal) {
        self.print("fatal", None, fatal_fields(error));
    }
}

/// The only line of a job that could not be set up.
pub(crate) fn fatal(error: &Fatal) -> String {
    record("fatal", None, fatal_fields(error))
}

fn fatal_fields(error: &Fatal) -> Value {
    let code = error.exit_code().code();
    json!({"message": error.to_string(), "hint": error.hint(), "exit_code": code})
}

fn record(kind: &str, path: Option<&PathBytes>, fields: Value) -> String {
    let mut object = Map::new();
    object.insert("type".into(), kind.into());
    object.insert("schema".into(), SCHEMA.into());
    object.insert("time".into(), jiff::Timestamp::now().to_string().into());
    if let Some(path) = path {
        object.extend(path_fields(&path.to_path()));
    }
    if let Value::Object(fields) = fields {
        object.extend(fields);
    }
    Value::Object(object).to_string()
}

fn digest_fields(digest: &FileDigest) -> Value {
    let FileDigest { shape, range, digest, pieces, elapsed_us, .. } = digest;
    let mut fields = json!({
        "hash_type": shape.hash().word(), "digest": digest, "bytes": shape.length(),
        "elapsed_s": *elapsed_us as f64 / 1e6,
    });
    if let Value::Object(fields) = &mut fields {
        if !shape.is_plain() {
            fields.insert("leaf_bytes".into(), shape.leaf().into());
        }
        if let Some(range) = range {
            fields.insert("range".into(), json!(range));
        }
        if !pieces.is_empty() {
            fields.insert("piece_bytes".into(), shape.piece().into());
            fields.insert("pieces".into(), json!(pieces));
        }
    }
    fields
}

/// A path as text, and also in base64 if it is not UTF-8.
pub(crate) fn path_fields(path: &Path) -> impl Iterator<Item = (String, Value)> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = path.as_os_str().as_bytes();
    let exact = std::str::from_utf8(bytes).is_err().then(|| {
        let text = base64::engine::general_purpose::STANDARD.encode(bytes);
        ("path_b64".to_owned(), Value::from(text))
    });
    let lossy = ("path".to_owned(), Value::from(String::from_utf8_lossy(bytes).into_owned()));
    std::iter::once(lossy).chain(exact)
}

pub(crate) fn limit_value(limit: &Limit) -> Value {
    json!({ "what": limit.what.word(), "evidence": limit.evidence })
}

fn path_value(path: &PathBytes) -> Value {
    Value::Object(path_fields(&path.to_path()).collect())
}
