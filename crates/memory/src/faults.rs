//! Faults by rule: which call, where, when, and what happens instead; and a record of all calls.
//!
//! Rules are tried in the order in which they were added; the first that applies decides. Chances come from the seed of
//! the disk, one number for each call that a rule with a chance matches, so that a run can be repeated.
use std::collections::VecDeque;
use std::fmt;

use dmover_model::Timestamp;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::errno::{Errno, Result};

macro_rules! calls {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A call of a user.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Call {
            $($(#[doc = $doc])+ $name,)+
        }
    };
}

calls! {
    /// Opening an entry, also one that is created by it.
    Open,
    /// Closing a handle. Faults are reported, and the handle is closed.
    Close,
    /// Looking at an entry.
    Stat,
    /// Listing a part of a directory.
    List,
    /// Reading a symbolic link.
    ReadLink,
    /// Reading from a file.
    Read,
    /// Writing to a file.
    Write,
    /// Setting the size of a file.
    Truncate,
    /// Reserving blocks.
    Allocate,
    /// Punching a hole.
    Punch,
    /// Looking for data or a hole.
    Seek,
    /// Sharing blocks.
    Clone,
    /// Making a directory.
    MakeDirectory,
    /// Making a symbolic link.
    Symlink,
    /// Making a FIFO, socket or device.
    MakeNode,
    /// Giving an inode a further name.
    Link,
    /// Renaming.
    Rename,
    /// Removing a name.
    Unlink,
    /// Removing a directory.
    RemoveDirectory,
    /// Setting the mode.
    SetMode,
    /// Setting owner and group.
    SetOwner,
    /// Setting times.
    SetTimes,
    /// Setting the flags.
    SetFlags,
    /// Reading or listing extended attributes.
    GetXattr,
    /// Setting or removing an extended attribute.
    SetXattr,
    /// `fdatasync`.
    SyncData,
    /// `fsync`.
    Sync,
    /// `syncfs`.
    SyncAll,
}

/// Where a rule applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Where {
    /// Everywhere.
    Anywhere,
    /// At this inode.
    Inode(u64),
    /// At a path from the root, without a leading slash. `*` stands for any bytes, also `/`; `?` for one byte. A rename
    /// or link has two paths; one of them is enough.
    Path(Vec<u8>),
}

/// When a rule applies, among the calls that match it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum When {
    /// At each.
    Always,
    /// Only at this one; the first is 1.
    Nth(u64),
    /// At this one and all later ones; the first is 1.
    From(u64),
    /// With this probability, from 0 to 1.
    Chance(f64),
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails and does nothing.
    Error(Errno),
    /// The call does its work and fails: its reply was lost.
    ErrorAfter(Errno),
    /// A read or write moves at most so many bytes; other calls are not changed.
    Partial(usize),
    /// One byte that a read returns, or that a write leaves, is another; the call succeeds.
    Altered,
    /// So many nanoseconds pass before the call.
    Delay(u64),
    /// The call does not return: it fails with [`Errno::HANGS`], and its scheduler suspends the caller.
    Hang,
    /// A flush fails with this error, and the data that it should have stored is never written; the next flush succeeds.
    LosesData(Errno),
}

/// A rule for faults.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// The call; `None` for all.
    pub call: Option<Call>,
    /// Where it applies.
    pub at: Where,
    /// When it applies.
    pub when: When,
    /// What happens then.
    pub fault: Fault,
}

/// A call as it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traced {
    /// Counts the calls of the disk, from 1.
    pub number: u64,
    /// What the clock of the disk showed.
    pub at: Timestamp,
    /// The call.
    pub call: Call,
    /// Paths of its entries, by which they were opened; two of a rename or link.
    pub paths: Vec<Vec<u8>>,
    /// The fault that was injected.
    pub fault: Option<Fault>,
    /// How it ended.
    pub result: Result<()>,
}

impl fmt::Display for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Timestamp { seconds, nanoseconds } = self.at;
        write!(f, "{} {seconds}.{nanoseconds:09} {:?}", self.number, self.call)?;
        for path in &self.paths {
            write!(f, " {:?}", String::from_utf8_lossy(path))?;
        }
        match self.result {
            Ok(()) => write!(f, " ok")?,
            Err(errno) => write!(f, " {errno}")?,
        }
        self.fault.map_or(Ok(()), |fault| write!(f, " ({fault:?})"))
    }
}

/// What a call is about.
#[derive(Debug, Clone, Default)]
pub(crate) struct Subject {
    pub inodes: Vec<u64>,
    pub paths: Vec<Vec<u8>>,
}

/// The rules of a disk, and the record of its calls.
#[derive(Debug, Clone)]
pub struct Faults {
    rules: Vec<(Rule, u64)>,
    random: ChaCha8Rng,
    trace: VecDeque<Traced>,
    trace_max: usize,
    calls: u64,
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rules: Vec::new(),
            random: ChaCha8Rng::seed_from_u64(seed),
            trace: VecDeque::new(),
            trace_max: 0,
            calls: 0,
        }
    }

    /// Adds a rule behind the others.
    pub fn add(&mut self, rule: Rule) {
        self.rules.push((rule, 0));
    }

    /// Removes all rules.
    pub fn clear(&mut self) {
        self.rules.clear();
    }

    /// Keeps a record of the last so many calls; 0, as in the beginning, of none.
    pub fn trace_last(&mut self, calls: usize) {
        self.trace_max = calls;
        self.trace.drain(..self.trace.len().saturating_sub(calls));
    }

    /// The recorded calls, the oldest first.
    pub fn trace(&self) -> impl Iterator<Item = &Traced> {
        self.trace.iter()
    }

    /// Number of calls so far.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Whether anything needs the paths of a call.
    pub(crate) fn needs_paths(&self) -> bool {
        self.trace_max > 0 || self.rules.iter().any(|(rule, _)| matches!(rule.at, Where::Path(_)))
    }

    /// The next call begins: what goes wrong with it.
    pub(crate) fn begin(&mut self, call: Call, subject: &Subject) -> Option<Fault> {
        self.calls += 1;
        let mut fault = None;
        for (rule, seen) in &mut self.rules {
            if rule.call.is_some_and(|wanted| wanted != call) || !rule.at.is_at(subject) {
                continue;
            }
            *seen += 1;
            let applies = match rule.when {
                When::Always => true,
                When::Nth(number) => *seen == number,
                When::From(number) => *seen >= number,
                When::Chance(chance) => self.random.random_bool(chance.clamp(0.0, 1.0)),
            };
            if applies && fault.is_none() {
                fault = Some(rule.fault);
            }
        }
        fault
    }

    /// A number for a byte that is altered.
    pub(crate) fn random_number(&mut self) -> u64 {
        self.random.random()
    }

    /// The call is over.
    pub(crate) fn end(
        &mut self,
        (call, at): (Call, Timestamp),
        subject: Subject,
        fault: Option<Fault>,
        result: Result<()>,
    ) {
        if self.trace_max == 0 {
            return;
        }
        if self.trace.len() == self.trace_max {
            self.trace.pop_front();
        }
        let (number, paths) = (self.calls, subject.paths);
        self.trace.push_back(Traced { number, at, call, paths, fault, result });
    }
}

impl Where {
    fn is_at(&self, subject: &Subject) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Inode(inode) => subject.inodes.contains(inode),
            Self::Path(pattern) => subject.paths.iter().any(|path| matches(pattern, path)),
        }
    }
}

/// Whether a pattern of `*` and `?` describes all of `bytes`.
fn matches(pattern: &[u8], bytes: &[u8]) -> bool {
    match pattern {
        [] => bytes.is_empty(),
        [b'*', rest @ ..] => (0..=bytes.len()).any(|at| matches(rest, &bytes[at..])),
        [b'?', rest @ ..] => bytes.split_first().is_some_and(|(_, after)| matches(rest, after)),
        [byte, rest @ ..] => {
            bytes.split_first().is_some_and(|(first, after)| first == byte && matches(rest, after))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_describe_whole_paths() {
        for (pattern, path, expected) in [
            ("*", "", true),
            ("*/b", "a/x/b", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a", "ab", false),
            ("*.tmp", "d/x.tmp", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), path.as_bytes()), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn the_first_rule_that_applies_decides_and_all_count() {
        let mut faults = Faults::new(1);
        let rule = |when, fault| Rule { call: Some(Call::Read), at: Where::Anywhere, when, fault };
        faults.add(rule(When::Nth(2), Fault::Error(Errno::IO)));
        faults.add(rule(When::From(2), Fault::Partial(1)));
        let mut begin = |call| faults.begin(call, &Subject::default());
        assert_eq!(begin(Call::Read), None);
        assert_eq!(begin(Call::Write), None);
        assert_eq!(begin(Call::Read), Some(Fault::Error(Errno::IO)));
        assert_eq!(begin(Call::Read), Some(Fault::Partial(1)));
    }
}
