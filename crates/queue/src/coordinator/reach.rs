//! Reports once that the broker does not answer or accepts no tasks, and once that it does again.
use dmover_engine::queue::Lease;
use dmover_schedule::sync::Mutex;
use std::sync::Arc;
use std::time::Duration;

use super::loops::LOOK_EVERY;
use super::{Shared, lock};
use crate::streams;

/// A shorter problem is not reported.
const LASTING: Duration = Duration::from_secs(4);
/// How often the broker is asked for the stream of outcomes.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// Whether the broker can be reached, and since when.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reach {
    /// Since when there is no connection.
    away_ms: Option<u64>,
    /// When the connection came back.
    back_ms: u64,
}

impl Reach {
    fn set(&mut self, is_connected: bool, now_ms: u64) {
        if is_connected && self.away_ms.take().is_some() {
            self.back_ms = now_ms;
        } else if !is_connected {
            self.away_ms.get_or_insert(now_ms);
        }
    }

    /// Whether the connection has lasted for this long, so that a mover without messages is really silent.
    pub fn has_lasted(&self, now_ms: u64, length_ms: u64) -> bool {
        self.away_ms.is_none() && (self.back_ms == 0 || now_ms >= self.back_ms + length_ms)
    }

    /// How long there has been no connection.
    pub fn away(&self, now_ms: u64) -> Option<Duration> {
        self.away_ms.map(|since| Duration::from_millis(now_ms.saturating_sub(since)))
    }
}

/// Whether the broker can be reached, and whether it accepts messages.
#[derive(Default)]
pub(super) struct BrokerHealth {
    /// Since when it can be reached, or cannot.
    reach: Mutex<Reach>,
    /// Why it does not accept messages, and since when. `None`: it does.
    trouble: Mutex<Option<(u64, String)>>,
}

impl BrokerHealth {
    /// Whether the broker can be reached.
    pub fn reach(&self) -> Reach {
        *lock(&self.reach)
    }

    /// Records whether the broker accepts messages. `None`: it does.
    pub fn note_trouble(&self, why: Option<String>) {
        let mut trouble = lock(&self.trouble);
        match (why, &mut *trouble) {
            (None, _) => *trouble = None,
            (Some(why), Some((_, known))) => *known = why,
            (Some(why), none) => *none = Some((Lease::now_ms(), why)),
        }
    }

    /// Why the broker does not accept messages.
    fn trouble(&self) -> Option<String> {
        lock(&self.trouble).as_ref().map(|(_, why)| why.clone())
    }

    /// Why the broker has not accepted messages for this long.
    pub fn lasting_trouble(&self, now_ms: u64, lasting: Duration) -> Option<String> {
        let lasts = |since: u64| now_ms > since + lasting.as_millis() as u64;
        let trouble = lock(&self.trouble).clone();
        trouble.filter(|(since, _)| lasts(*since)).map(|(_, why)| why)
    }
}

/// A problem of the broker, its start, and whether it was reported.
struct Wrong {
    since_ms: u64,
    is_told: bool,
}

/// Watches the broker until the end of the run.
pub(super) async fn watch_broker(shared: Arc<Shared>) {
    let (mut wrong, mut asked_ms, mut no_answer) = (None::<Wrong>, 0, None);
    while !shared.is_closed() {
        tokio::time::sleep(LOOK_EVERY).await;
        let is_connected = shared.link.is_connected();
        let now = Lease::now_ms();
        lock(&shared.health.reach).set(is_connected, now);
        if is_connected && now >= asked_ms + ASK_EVERY.as_millis() as u64 {
            no_answer = ask(&shared).await;
            asked_ms = Lease::now_ms();
        }
        let shown = &shared.link.shown;
        let words = if is_connected {
            let own = shared.health.trouble();
            let trouble = own.or_else(|| shared.lasting_trouble(now, LASTING));
            let why = no_answer.clone().or(trouble);
            why.map(|why| format!("the broker {shown} accepts no tasks: {why}; waiting for it"))
        } else {
            Some(format!("the broker {shown} does not answer; waiting for it"))
        };
        let Some(words) = words else {
            if wrong.take().is_some_and(|wrong| wrong.is_told) {
                shared.messages.tell(format!("the broker {shown} answers again"));
            }
            continue;
        };
        let wrong = wrong.get_or_insert(Wrong { since_ms: now, is_told: false });
        let lasts = Lease::now_ms() >= wrong.since_ms + LASTING.as_millis() as u64;
        if lasts && !std::mem::replace(&mut wrong.is_told, true) && !shared.is_closed() {
            shared.messages.tell(words);
        }
    }
}

/// Asks for the stream of outcomes. Returns why there was no answer. Another loop creates a missing stream again.
async fn ask(shared: &Shared) -> Option<String> {
    let found = shared.link.jetstream.get_stream(shared.names.outcomes()).await;
    found.err().filter(|error| !streams::is_missing(error)).map(|error| error.to_string())
}
