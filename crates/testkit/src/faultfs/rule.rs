//! Rules that decide which requests fail, and how.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use globset::{Glob, GlobMatcher};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::errno::named;
use super::lock;
use super::op::Op;

/// What happens to a request that a rule hits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The request fails with this error and changes nothing.
    Errno(#[serde(with = "named")] i32),
    /// The request is carried out and then reported as failed, as when a server's answer is lost.
    ErrnoAfter(#[serde(with = "named")] i32),
    /// A read returns at most so many bytes; 0 looks like the end of the file.
    ShortRead(u32),
    /// A write or server-side copy takes at most so many bytes.
    ShortWrite(u32),
    /// One bit of the bytes that are read, written or copied is inverted.
    BitFlip {
        /// Byte in the buffer, modulo its length.
        offset_in_buffer: u64,
    },
    /// The request waits so many milliseconds, or until hangs are released, and then proceeds.
    Hang {
        /// Longest wait in milliseconds.
        duration_ms: u64,
    },
}

impl Action {
    /// Whether this action means anything for an operation.
    fn applies_to(self, op: Op) -> bool {
        match self {
            Action::Errno(_) | Action::ErrnoAfter(_) | Action::Hang { .. } => true,
            Action::ShortRead(_) => op == Op::Read,
            Action::ShortWrite(_) => matches!(op, Op::Write | Op::CopyFileRange),
            Action::BitFlip { .. } => matches!(op, Op::Read | Op::Write | Op::CopyFileRange),
        }
    }
}

/// Which of the calls that match a rule are hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// Every matching call.
    #[default]
    Always,
    /// The n-th matching call (from 1) and those after it, as long as `count` lasts.
    Nth(u64),
    /// Each k-th matching call.
    Every(u64),
    /// Each matching call with this probability, drawn from the seed, the operation, the name, the
    /// offset and how often exactly that was asked before; the order in which threads arrive does not matter.
    Probability(f64),
}

/// One fault: which requests, when, how often, and what is done to them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Operation that is hit; none means any to which the action applies.
    #[serde(default)]
    pub operation: Option<Op>,
    /// Glob on the last component of the name; none means any.
    #[serde(default)]
    pub name: Option<String>,
    /// Only requests that reach to or beyond this byte of the file (reads, writes, copies).
    #[serde(default)]
    pub from_offset: u64,
    /// Which of the matching calls are hit.
    #[serde(default)]
    pub when: When,
    /// How many times the rule fires at most; 0 means without limit.
    #[serde(default = "once")]
    pub count: u64,
    /// What is done.
    pub action: Action,
}

fn once() -> u64 {
    1
}

impl Rule {
    /// A rule that hits the first matching call of an operation, once.
    pub fn new(operation: impl Into<Option<Op>>, action: Action) -> Self {
        Self {
            operation: operation.into(),
            name: None,
            from_offset: 0,
            when: When::Always,
            count: 1,
            action,
        }
    }

    /// Restricts the rule to names that match a glob.
    #[must_use]
    pub fn name(mut self, glob: impl Into<String>) -> Self {
        self.name = Some(glob.into());
        self
    }

    /// Restricts the rule to requests that reach to or beyond this byte.
    #[must_use]
    pub fn from_offset(mut self, offset: u64) -> Self {
        self.from_offset = offset;
        self
    }

    /// Chooses among the matching calls.
    #[must_use]
    pub fn when(mut self, when: When) -> Self {
        self.when = when;
        self
    }

    /// Sets how many times the rule fires at most; 0 means without limit.
    #[must_use]
    pub fn count(mut self, count: u64) -> Self {
        self.count = count;
        self
    }
}

/// The request that rules are asked about.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) op: Op,
    pub(crate) name: &'a OsStr,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// A rule that fired.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit {
    pub(crate) rule: usize,
    pub(crate) action: Action,
}

struct ArmedRule {
    rule: Rule,
    glob: Option<GlobMatcher>,
    seed: u64,
    matched: AtomicU64,
    fired: AtomicU64,
    asked: Mutex<HashMap<u64, u64>>,
}

/// Rules with their state: what matched and fired so far.
pub(crate) struct RuleSet {
    rules: Vec<ArmedRule>,
}

impl RuleSet {
    /// Compiles rules; their counts start at zero.
    pub(crate) fn new(rules: &[Rule], seed: u64) -> Result<Self> {
        let rules = rules
            .iter()
            .enumerate()
            .map(|(position, rule)| {
                let glob = rule.name.as_deref().map(Glob::new).transpose();
                let glob = glob.with_context(|| format!("name of rule {position}"))?;
                Ok(ArmedRule {
                    rule: rule.clone(),
                    glob: glob.map(|glob| glob.compile_matcher()),
                    seed: fnv(fnv(FNV_BASIS, &seed.to_le_bytes()), &position.to_le_bytes()),
                    matched: AtomicU64::new(0),
                    fired: AtomicU64::new(0),
                    asked: Mutex::default(),
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self { rules })
    }

    /// The first rule that hits this request; the rules before it have counted it too.
    pub(crate) fn hit(&self, request: &Request<'_>) -> Option<Hit> {
        self.rules.iter().enumerate().find_map(|(position, armed)| {
            armed.fires(request).then_some(Hit { rule: position, action: armed.rule.action })
        })
    }

    /// How often each rule fired, in the order of the rules.
    pub(crate) fn fired(&self) -> Vec<u64> {
        let count = |armed: &ArmedRule| armed.fired.load(Ordering::SeqCst);
        self.rules.iter().map(count).collect()
    }
}

impl ArmedRule {
    fn fires(&self, request: &Request<'_>) -> bool {
        if !self.matches(request) {
            return false;
        }
        let call = self.matched.fetch_add(1, Ordering::SeqCst) + 1;
        let due = match self.rule.when {
            When::Always => true,
            When::Nth(first) => call >= first,
            When::Every(period) => period > 0 && call.is_multiple_of(period),
            When::Probability(probability) => self.drawn(request, probability),
        };
        let unlimited = self.rule.count == 0;
        due && self
            .fired
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |fired| {
                (unlimited || fired < self.rule.count).then_some(fired + 1)
            })
            .is_ok()
    }

    fn matches(&self, request: &Request<'_>) -> bool {
        let end = request.offset.saturating_add(request.size);
        self.rule.operation.is_none_or(|op| op == request.op)
            && self.rule.action.applies_to(request.op)
            && (self.rule.from_offset == 0 || end > self.rule.from_offset)
            && self.glob.as_ref().is_none_or(|glob| glob.is_match(request.name))
    }

    fn drawn(&self, request: &Request<'_>, probability: f64) -> bool {
        let key =
            [&[request.op.index() as u8], request.name.as_bytes(), &request.offset.to_le_bytes()]
                .iter()
                .fold(self.seed, |hash, part| fnv(hash, part));
        let attempt = {
            let mut asked = lock(&self.asked);
            let attempt = asked.entry(key).or_insert(0);
            *attempt += 1;
            *attempt
        };
        let seed = fnv(key, &attempt.to_le_bytes());
        ChaCha8Rng::seed_from_u64(seed).random_bool(probability.clamp(0.0, 1.0))
    }
}

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a: the standard hasher is not promised to stay the same, and seeds must.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn hits(rule: Rule, seed: u64, calls: u64) -> Vec<u64> {
        let set = RuleSet::new(&[rule], seed).unwrap();
        let hit = |call: &u64| {
            let request = Request {
                op: Op::Read,
                name: OsStr::new("data.bin"),
                offset: call * 4096,
                size: 4096,
            };
            set.hit(&request).is_some()
        };
        (1..=calls).filter(hit).collect()
    }

    #[test]
    fn nth_every_count_and_name() {
        let rule = Rule::new(Op::Read, Action::Errno(libc::EIO));
        assert_eq!(hits(rule.clone(), 0, 5), [1]);
        assert_eq!(hits(rule.clone().when(When::Nth(3)).count(2), 0, 9), [3, 4]);
        assert_eq!(hits(rule.clone().when(When::Every(3)).count(0), 0, 9), [3, 6, 9]);
        assert_eq!(hits(rule.clone().name("*.bin"), 0, 2), [1]);
        assert_eq!(hits(rule.clone().name("*.txt"), 0, 2), [0_u64; 0]);
        assert_eq!(hits(rule.from_offset(4 * 4096), 0, 9), [4]);
        assert_eq!(hits(Rule::new(None, Action::ShortWrite(1)), 0, 3), [0_u64; 0]);
    }

    #[test]
    fn probability_depends_on_seed_and_not_on_order() {
        let rule =
            Rule::new(Op::Read, Action::Errno(libc::EIO)).when(When::Probability(0.25)).count(0);
        let first = hits(rule.clone(), 7, 400);
        assert_eq!(first, hits(rule.clone(), 7, 400));
        assert_ne!(first, hits(rule.clone(), 8, 400));
        assert!((60..140).contains(&first.len()), "{}", first.len());

        let set = RuleSet::new(&[rule], 7).unwrap();
        let backwards = (1..=400_u64).rev().filter(|call| {
            let name = OsStr::new("data.bin");
            let offset = call * 4096;
            set.hit(&Request { op: Op::Read, name, offset, size: 4096 }).is_some()
        });
        let mut backwards: Vec<_> = backwards.collect();
        backwards.sort_unstable();
        assert_eq!(first, backwards);
    }

    #[test]
    fn rules_have_a_readable_json_form() {
        let text = r#"[{"operation":"write","name":"*.dat","when":{"nth":2},"count":3,"action":{"errno":"ENOSPC"}},
            {"action":{"bit_flip":{"offset_in_buffer":17}}}, {"operation":"read","action":{"short_read":5}}]"#;
        let rules: Vec<Rule> = serde_json::from_str(text).unwrap();
        let first = Rule::new(Op::Write, Action::Errno(libc::ENOSPC)).name("*.dat");
        assert_eq!(rules[0], first.when(When::Nth(2)).count(3));
        assert_eq!(rules[1], Rule::new(None, Action::BitFlip { offset_in_buffer: 17 }));
        let again: Vec<Rule> =
            serde_json::from_str(&serde_json::to_string(&rules).unwrap()).unwrap();
        assert_eq!(rules, again);
        assert!(serde_json::from_str::<Rule>(r#"{"action":{"errno":"EWHAT"}}"#).is_err());
    }
}
