//! Finds out when a nats-server does not do its work any more: JetStream switches itself off, or hangs, when its disk was full for a moment, and stays so
//! until the server is started again.
use dmover_engine::Fatal;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::address::Address;
use crate::link::Link;
use crate::streams;

/// How often the server is asked.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// A server that has not answered this many questions in a row is given up: it is not just busy.
const FAILURES_MAX: u32 = 3;
/// How soon a watchdog ends.
const TURN: Duration = Duration::from_millis(100);

/// Asks a server regularly, in a thread of its own.
pub struct Watchdog {
    over: Arc<AtomicBool>,
    trouble: Arc<Mutex<Option<String>>>,
}

impl Watchdog {
    /// Begins to ask the server that has written this file.
    ///
    /// # Errors
    /// The file cannot be read, or there are too many threads.
    pub fn start(join_file: &Path) -> Result<Self, Fatal> {
        let address = Address::new(&join_file.to_string_lossy(), None, true)?;
        let (over, trouble) = (Arc::<AtomicBool>::default(), Arc::<Mutex<_>>::default());
        let watchdog = Self { over: Arc::clone(&over), trouble: Arc::clone(&trouble) };
        let watch = move || watch(&address, &over, &trouble);
        std::thread::Builder::new().name("watchdog".into()).spawn(watch).map_err(Fatal::Thread)?;
        Ok(watchdog)
    }

    /// Why the server has to be started again.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
    }
}

fn watch(address: &Address, over: &AtomicBool, trouble: &Mutex<Option<String>>) {
    let (mut link, mut failures) = (None, 0);
    while !over.load(Ordering::SeqCst) {
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
            std::thread::sleep(TURN);
        }
    }
}

/// Asks for a stream: its existence does not matter, an answer does.
fn ask(link: &Link) -> Result<(), Fatal> {
    let name = format!("KV_{}", streams::JOBS);
    match link.runtime.block_on(link.jetstream.get_stream(name)) {
        Ok(_) => Ok(()),
        Err(error) if streams::is_missing(&error) => Ok(()),
        Err(error) => {
            let message = format!("JetStream does not answer: {error}");
            Err(Fatal::unavailable(message, "see its log"))
        }
    }
}
