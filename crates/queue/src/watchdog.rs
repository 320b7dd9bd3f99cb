//! Detects a nats-server that does not work any more: after its disk was full for a moment, JetStream may switch itself
//! off or hang until the server is restarted.
use dmover_model::Fatal;
use dmover_schedule::sync::Mutex;
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use futures_util::TryStreamExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::address::Address;
use crate::link::Link;
use crate::streams;

/// How often the server is asked.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// How many streams to ask about at a time.
const AT_ONCE: usize = 8;
/// A server that fails to answer this many consecutive rounds of questions is restarted. A busy server answers sooner.
const FAILURES_MAX: u32 = 3;
/// How soon a watchdog ends.
const TURN: Duration = Duration::from_millis(100);

/// Asks a server at intervals, in a separate thread.
pub struct Watchdog {
    over: Arc<AtomicBool>,
    trouble: Arc<Mutex<Option<String>>>,
    free: Arc<AtomicU64>,
}

/// The free space is not known.
const UNKNOWN: u64 = u64::MAX;

impl Watchdog {
    /// Starts to ask the server that has written this join file.
    ///
    /// # Errors
    /// The file cannot be read, or there are too many threads.
    pub fn start(join_file: &Path) -> Result<Self, Fatal> {
        let address = Address::new(&join_file.to_string_lossy(), None, true)?;
        let (over, trouble) = (Arc::<AtomicBool>::default(), Arc::<Mutex<_>>::default());
        let free = Arc::new(AtomicU64::new(UNKNOWN));
        let watchdog = Self {
            over: Arc::clone(&over),
            trouble: Arc::clone(&trouble),
            free: Arc::clone(&free),
        };
        let state = join_file.parent().map_or_else(PathBuf::new, Path::to_path_buf);
        let watch = move || watch(&address, (&state, &free), &over, &trouble);
        thread::Builder::new().name("watchdog".into()).spawn(watch).map_err(Fatal::Thread)?;
        Ok(watchdog)
    }

    /// The free bytes in the server's data directory, if known.
    pub fn free_bytes(&self) -> Option<u64> {
        Some(self.free.load(Ordering::Relaxed)).filter(|free| *free != UNKNOWN)
    }

    /// Why the server must be restarted.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
    }
}

fn watch(
    address: &Address,
    (state, free): (&Path, &AtomicU64),
    over: &AtomicBool,
    trouble: &Mutex<Option<String>>,
) {
    let (mut link, mut failures) = (None, 0);
    while !over.load(Ordering::SeqCst) {
        let found = dmover_host::free_bytes(state).unwrap_or(UNKNOWN);
        free.store(found, Ordering::Relaxed);
        let asked = match &link {
            None => Link::new(address, "watchdog").map(|new| link = Some(new)),
            Some(link) => ask(link),
        };
        failures = if asked.is_ok() { 0 } else { failures + 1 };
        if let Err(error) = asked.inspect_err(|error| tracing::debug!(%error, "nats-server"))
            && failures >= FAILURES_MAX
        {
            *trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            return;
        }
        let until = Instant::now() + ASK_EVERY;
        while Instant::now() < until && !over.load(Ordering::SeqCst) {
            thread::sleep(TURN);
        }
    }
}

/// Asks about every stream. After a full disk, one stream and its job may hang while all others answer. Any answer is
/// enough.
fn ask(link: &Link) -> Result<(), Fatal> {
    let fail = |what: &str, error: &dyn std::fmt::Display| {
        let message = format!("JetStream does not answer{what}: {error}");
        Fatal::unavailable(message, "see its log")
    };
    let asked = async {
        let names = link.jetstream.stream_names().map_err(|error| fail("", &error));
        let of_one = async |name: String| match link.jetstream.get_stream(&name).await {
            Ok(_) => Ok(()),
            Err(error) if streams::is_missing(&error) => Ok(()),
            Err(error) => Err(fail(&format!(" for stream {name}"), &error)),
        };
        names.try_for_each_concurrent(AT_ONCE, of_one).await
    };
    link.runtime.block_on(asked)
}
