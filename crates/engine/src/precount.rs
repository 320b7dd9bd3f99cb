//! Counts the source ahead of the job, so that its progress has a total.
//!
//! One thread of the lowest priority reads directories and sizes. Its processor time is limited so that the job slows
//! down by at most about three percent on any file system; if it cannot get ahead of the job then, the total stays
//! unknown. It holds one descriptor and one buffer of names for each level, so its memory grows with the depth of the
//! tree.
use dmover_journal::{JobPhase, JobStatus};
use dmover_local::counted_tree::CountedDirectory;
use dmover_local::error::CallFailed;
use dmover_local::listing::{Listed, ListedKind, NameBuffer};
use dmover_local::mounts::MountTable;
use dmover_local::root::Root;
use dmover_model::{EntryKind, FollowLinks, JobSpec, Metadata};
use dmover_observe::{Amount, Counter, Counters, Total};
use dmover_plan::filter::Filter;
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::context::Engine;
use crate::job_list::JobList;

/// The count starts after this time; a shorter job needs no total.
const AFTER: Duration = Duration::from_secs(3);
/// How often the count of the last run is compared with what was found.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The share of all processors that the count may use.
const SHARE: f64 = 0.03;
/// Entries between two checks of the clock.
const STRIDE: u64 = 64;
/// If stat takes longer than this, it asks a server.
const SLOW_STAT_US: f64 = 50.0;
/// On such file systems, one in this many entries is asked for its size.
const SAMPLE: u64 = 16;
/// The deepest level that is entered. Deeper levels are not counted, and the total is a lower bound.
const DEPTH_MAX: usize = 128;

/// Bytes that are copied, or are equal already.
pub(crate) const SETTLED: [Counter; 5] = [
    Counter::BytesCopied,
    Counter::BytesShared,
    Counter::BytesKept,
    Counter::BytesSkipped,
    Counter::BytesUnchanged,
];

/// A running count; dropping this ends it.
pub(crate) struct Precount(Arc<AtomicBool>);

impl Drop for Precount {
    fn drop(&mut self) {
        // The thread may hang in a system call, so it is not waited for.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Starts the count of the job's entries, unless the total is known or cannot be counted.
pub(crate) fn begin(engine: &Engine, list: &JobList, last: Option<&JobStatus>) -> Option<Precount> {
    let (spec, counters) = (&engine.spec, &engine.reports.counters);
    let outlook = counters.outlook();
    outlook.limit_bytes(spec.limits.bytes_per_s);
    let whole = matches!(list, JobList::None);
    // Names that come from another host are listed once.
    if !whole
        || spec.sources_are_remote
        || spec.selection.follow != FollowLinks::Never
        || engine.facts.is_resumed
    {
        return None;
    }
    let selection = selection_of(spec, list);
    let last = last.filter(|last| last.selection.is_some() && last.selection == selection);
    let expected = last.and_then(found_by);
    if let Some(amount) = expected {
        outlook.expect(Total::About(amount));
    }
    let roots: Vec<Arc<Root>> =
        engine.places.roots.ids().map(|id| engine.root(id).ok()).collect::<Option<_>>()?;
    let stopped = Arc::new(AtomicBool::new(false));
    let mut count = Count {
        filter: Filter::new(&spec.selection).ok()?,
        one_file_system: spec.selection.one_file_system,
        mounts: MountTable::default(),
        counters: Arc::downgrade(counters),
        expected,
        stopped: Arc::clone(&stopped),
        begun: Instant::now(),
        processors: dmover_host::processors::available() as f64,
        found: Amount::default(),
        is_partial: false,
        buffers: Vec::new(),
        depth: 0,
        seen: 0,
        stat_us: 0.0,
    };
    // A thread that cannot be had costs only the total.
    let thread = thread::Builder::new().name("count".into()).spawn(move || count.run(&roots));
    thread.ok().map(|_| Precount(stopped))
}

/// A digest of what a job selects of its source. `None`: it does not scan all of it, as a retry does.
pub(crate) fn selection_of(spec: &JobSpec, list: &JobList) -> Option<String> {
    if !matches!(list, JobList::None) {
        return None;
    }
    let mut selection = spec.selection.clone();
    // Times that are counted back from now move with every run.
    let [newer_ms, older_ms] = selection.ages_ms;
    selection.newer_than = selection.newer_than.filter(|_| newer_ms.is_none());
    selection.older_than = selection.older_than.filter(|_| older_ms.is_none());
    let text = serde_json::to_vec(&selection).ok()?;
    Some(blake3::hash(&text).to_hex().as_str()[..16].to_owned())
}

/// The total of the last run of the job, if it scanned the whole tree.
fn found_by(last: &JobStatus) -> Option<Amount> {
    let get = |counter: Counter| last.counters.get(counter.name()).copied().unwrap_or(0);
    let entries = get(Counter::EntriesFound);
    let amount = Amount { entries, bytes: SETTLED.into_iter().map(get).sum() };
    let saw_all = last.phase == JobPhase::Finished && !last.resumed;
    (saw_all && entries > 0).then_some(amount)
}

/// Why a count ends early.
enum End {
    /// The job has ended.
    Stopped,
    /// A directory cannot be read; the job reports this.
    Unreadable,
}

impl From<CallFailed> for End {
    fn from(_: CallFailed) -> Self {
        Self::Unreadable
    }
}

struct Count {
    filter: Filter,
    one_file_system: bool,
    mounts: MountTable,
    counters: Weak<Counters>,
    /// What the last run found: only if there is more, there is something to count.
    expected: Option<Amount>,
    stopped: Arc<AtomicBool>,
    begun: Instant,
    processors: f64,
    found: Amount,
    /// A directory was too deep to be entered.
    is_partial: bool,
    buffers: Vec<NameBuffer>,
    depth: usize,
    seen: u64,
    /// The recent duration of stat for one entry.
    stat_us: f64,
}

impl Count {
    fn run(&mut self, roots: &[Arc<Root>]) {
        dmover_host::processors::yield_to_others();
        if self.wait(AFTER).is_err() || self.wait_for_more().is_err() {
            return;
        }
        self.begun = Instant::now();
        for root in roots {
            if matches!(self.root(root), Err(End::Stopped)) {
                return;
            }
        }
        if !self.is_partial {
            self.tell(Total::About(self.found));
        }
    }

    fn root(&mut self, root: &Root) -> Result<(), End> {
        let Some(source) = root.source.here() else { return Ok(()) };
        if !root.is_directory
            && let Some(found) = CountedDirectory::single(source, &self.mounts)?
        {
            self.found.entries += 1;
            self.found.bytes += content(&found);
            return Ok(());
        }
        let directory = CountedDirectory::of_root(source)?;
        self.found.entries += 1;
        self.directory(&directory, &mut Vec::new())
    }

    fn directory(&mut self, directory: &CountedDirectory, path: &mut Vec<u8>) -> Result<(), End> {
        let mut buffer = self.buffers.pop().unwrap_or_default();
        self.depth += 1;
        let length = path.len();
        let result = directory.read(&mut buffer, |listed| {
            if length > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(listed.bytes);
            let result = self.entry(directory, listed, path);
            path.truncate(length);
            match result {
                Ok(()) | Err(End::Unreadable) => Ok(true),
                Err(End::Stopped) => Err(End::Stopped),
            }
        });
        self.depth -= 1;
        self.buffers.push(buffer);
        result
    }

    fn entry(
        &mut self,
        parent: &CountedDirectory,
        Listed { bytes: name, kind, .. }: Listed<'_>,
        path: &mut Vec<u8>,
    ) -> Result<(), End> {
        self.turn()?;
        let is_directory = kind == ListedKind::Directory;
        if kind != ListedKind::Unknown && !self.filter.admits_name(path, is_directory) {
            return Ok(());
        }
        if is_directory {
            self.found.entries += 1;
            return self.enter(parent, name, path);
        }
        // A look costs a round trip on a file system of the network: a sample has to do there.
        let every = if self.stat_us > SLOW_STAT_US { SAMPLE } else { 1 };
        let has_bounds = !self.filter.admits_all();
        let is_left_out = every > 1 && !has_bounds && !self.seen.is_multiple_of(every);
        if kind == ListedKind::Other || is_left_out {
            self.found.entries += 1;
            return Ok(());
        }
        let begun = Instant::now();
        let metadata = parent.metadata(&self.mounts, name)?;
        self.stat_us += (begun.elapsed().as_secs_f64() * 1e6 - self.stat_us) / 64.0;
        if !self.filter.admits(path, &metadata) {
            return Ok(());
        }
        self.found.entries += 1;
        if metadata.kind == EntryKind::Directory {
            return self.enter(parent, name, path);
        }
        let weight = if has_bounds { 1 } else { every };
        self.found.bytes += content(&metadata) * weight;
        Ok(())
    }

    fn enter(
        &mut self,
        parent: &CountedDirectory,
        name: &[u8],
        path: &mut Vec<u8>,
    ) -> Result<(), End> {
        if self.depth >= DEPTH_MAX {
            self.is_partial = true;
            return Ok(());
        }
        match parent.enter(name, self.one_file_system)? {
            Some(directory) => self.directory(&directory, path),
            None => Ok(()),
        }
    }

    /// Called for each entry: limits the processor time, and updates the total at intervals.
    fn turn(&mut self) -> Result<(), End> {
        self.seen += 1;
        if !self.seen.is_multiple_of(STRIDE) {
            return Ok(());
        }
        self.tell(Total::AtLeast(self.found));
        let allowed = self.begun.elapsed().as_secs_f64() * self.processors * SHARE;
        let ahead =
            (dmover_host::processors::thread_seconds() - allowed) / (self.processors * SHARE);
        self.wait(Duration::from_secs_f64(ahead.max(0.0)))
    }

    /// Waits until the job has found more than was expected.
    fn wait_for_more(&self) -> Result<(), End> {
        let Some(expected) = self.expected else { return Ok(()) };
        while self.counters.upgrade().ok_or(End::Stopped)?.get(Counter::EntriesFound)
            <= expected.entries
        {
            self.wait(LOOK_EVERY)?;
        }
        Ok(())
    }

    fn wait(&self, time: Duration) -> Result<(), End> {
        let until = Instant::now() + time;
        loop {
            if self.stopped.load(Ordering::Relaxed) {
                return Err(End::Stopped);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(Duration::from_millis(100)));
        }
    }

    fn tell(&self, total: Total) {
        if let Some(counters) = self.counters.upgrade() {
            counters.outlook().expect(total);
        }
    }
}

/// Bytes of content of an entry. A file with several names counts once for each name.
fn content(found: &Metadata) -> u64 {
    let is_file = found.kind == EntryKind::File;
    if is_file { found.size / found.links.max(1) } else { 0 }
}
