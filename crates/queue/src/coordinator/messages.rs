//! Messages for the user about the movers of a job.
use dmover_engine::Engine;
use dmover_schedule::sync::Mutex;
use dmover_wire::MoverInfo;
use std::collections::HashSet;
use std::sync::Arc;

use super::lock;

/// Reports on movers and the broker to the user.
pub(super) struct UserMessages {
    /// Prints them.
    engine: Arc<Engine>,
    /// Messages that the user has already seen.
    told: Mutex<HashSet<String>>,
}

impl UserMessages {
    /// No message was reported yet.
    pub fn new(engine: &Arc<Engine>) -> Self {
        Self { engine: Arc::clone(engine), told: Mutex::default() }
    }

    /// Reports each time.
    pub fn tell(&self, words: String) {
        self.engine.tell_of_movers(words);
    }

    /// Reports the same text only once.
    pub fn tell_once(&self, words: String) {
        if lock(&self.told).insert(words.clone()) {
            self.tell(words);
        }
    }

    /// Reports once why a host has no movers.
    pub fn tell_unable(&self, info: &MoverInfo, why: &str) {
        self.tell_once(format!("no movers on {}: {why}", info.host));
    }

    /// Reports a forged or replayed message: each time in the log, once on standard error.
    pub fn tell_refused(&self, what: &str) {
        self.tell_once(refuse(what));
    }
}

/// Logs a message that was refused. Returns the text.
pub(super) fn refuse(what: &str) -> String {
    let words = format!("refused {what} that no mover of this job sent: forged or replayed");
    tracing::warn!("{words}");
    words
}
