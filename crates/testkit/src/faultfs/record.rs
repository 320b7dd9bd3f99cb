//! What the fault file system remembers of the requests it served.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::lock;
use super::op::Op;

/// One request: a line of the log.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Number of the event "request begins"; begins and ends share one sequence.
    pub begin: u64,
    /// Number of the event "request is about to be answered".
    pub end: u64,
    /// The operation.
    pub op: Op,
    /// Last component of the name; bytes that are not UTF-8 are replaced.
    pub name: String,
    /// First byte, for reads, writes and the like; else 0.
    pub offset: u64,
    /// Number of bytes that were asked for.
    pub size: u64,
    /// Number of bytes that were read, written or copied.
    pub bytes: u64,
    /// Requests being served when this one began, itself included.
    pub in_flight: u64,
    /// Error that was returned; 0 for none.
    pub errno: i32,
    /// Position of the rule that hit the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<usize>,
}

/// Totals of one operation.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct OpCounter {
    /// Requests answered.
    pub calls: u64,
    /// Of these, with an error, injected or real.
    pub errors: u64,
    /// Of these, hit by a rule.
    pub faults: u64,
    /// Bytes read, written or copied.
    pub bytes: u64,
    /// Most requests of this operation that were served at one time.
    pub max_in_flight: u64,
}

/// Totals of a mount.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// By operation; operations that never came are left out.
    pub ops: BTreeMap<Op, OpCounter>,
    /// Most requests that were served at one time.
    pub max_in_flight: u64,
    /// How often each rule fired, in the order of the rules now set.
    pub rules_fired: Vec<u64>,
}

impl Counters {
    /// Totals of one operation, zeros if it never came.
    pub fn of(&self, op: Op) -> OpCounter {
        self.ops.get(&op).copied().unwrap_or_default()
    }

    /// Number of requests of all operations.
    pub fn calls(&self) -> u64 {
        self.ops.values().map(|counter| counter.calls).sum()
    }
}

#[derive(Default)]
struct Live {
    calls: AtomicU64,
    errors: AtomicU64,
    faults: AtomicU64,
    bytes: AtomicU64,
    in_flight: AtomicU64,
    max_in_flight: AtomicU64,
}

/// A request that has begun.
pub(crate) struct Begun {
    pub(crate) begin: u64,
    pub(crate) in_flight: u64,
}

/// Counters and log of a mount; used by all its threads.
pub(crate) struct Recorder {
    sequence: AtomicU64,
    in_flight: AtomicU64,
    max_in_flight: AtomicU64,
    ops: Vec<Live>,
    log: Option<Mutex<BufWriter<File>>>,
    kept: Option<Mutex<Vec<Record>>>,
}

impl Recorder {
    pub(crate) fn new(log: Option<&Path>, keep: bool) -> Result<Self> {
        let log = log.map(|path| {
            let file = File::create(path).with_context(|| format!("request log {path:?}"))?;
            Ok::<_, anyhow::Error>(Mutex::new(BufWriter::new(file)))
        });
        Ok(Self {
            sequence: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            max_in_flight: AtomicU64::new(0),
            ops: Op::ALL.iter().map(|_| Live::default()).collect(),
            log: log.transpose()?,
            kept: keep.then(Mutex::default),
        })
    }

    pub(crate) fn begin(&self, op: Op) -> Begun {
        let live = &self.ops[op.index()];
        let of_op = live.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        live.max_in_flight.fetch_max(of_op, Ordering::SeqCst);
        let in_flight = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.max_in_flight.fetch_max(in_flight, Ordering::SeqCst);
        Begun { begin: self.sequence.fetch_add(1, Ordering::SeqCst), in_flight }
    }

    pub(crate) fn end(&self, mut record: Record, name: &OsStr) {
        let live = &self.ops[record.op.index()];
        live.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        live.calls.fetch_add(1, Ordering::SeqCst);
        live.errors.fetch_add(u64::from(record.errno != 0), Ordering::SeqCst);
        live.faults.fetch_add(u64::from(record.rule.is_some()), Ordering::SeqCst);
        live.bytes.fetch_add(record.bytes, Ordering::SeqCst);
        record.end = self.sequence.fetch_add(1, Ordering::SeqCst);
        if self.log.is_none() && self.kept.is_none() {
            return;
        }
        record.name = name.to_string_lossy().into_owned();
        if let Some(log) = &self.log
            && let Ok(line) = serde_json::to_string(&record)
        {
            // A full disk under the log must not change what the mount does.
            writeln!(lock(log), "{line}").ok();
        }
        if let Some(kept) = &self.kept {
            lock(kept).push(record);
        }
    }

    /// Hands buffered log lines to the kernel.
    pub(crate) fn flush(&self) {
        if let Some(log) = &self.log {
            lock(log).flush().ok();
        }
    }

    pub(crate) fn kept(&self) -> Vec<Record> {
        self.kept.as_ref().map_or_else(Vec::new, |kept| lock(kept).clone())
    }

    pub(crate) fn clear(&self) {
        if let Some(kept) = &self.kept {
            lock(kept).clear();
        }
        for live in &self.ops {
            for counter in [&live.calls, &live.errors, &live.faults, &live.bytes] {
                counter.store(0, Ordering::SeqCst);
            }
            live.max_in_flight.store(0, Ordering::SeqCst);
        }
        self.max_in_flight.store(0, Ordering::SeqCst);
    }

    pub(crate) fn counters(&self, rules_fired: Vec<u64>) -> Counters {
        let get = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        let ops = Op::ALL.iter().zip(&self.ops).filter(|(_, live)| get(&live.calls) > 0);
        let ops = ops.map(|(op, live)| {
            let counter = OpCounter {
                calls: get(&live.calls),
                errors: get(&live.errors),
                faults: get(&live.faults),
                bytes: get(&live.bytes),
                max_in_flight: get(&live.max_in_flight),
            };
            (*op, counter)
        });
        Counters { ops: ops.collect(), max_in_flight: get(&self.max_in_flight), rules_fired }
    }
}
