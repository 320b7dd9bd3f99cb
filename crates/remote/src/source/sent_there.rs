//! What another host has sent over data streams, which only its own kernel knows.
use dmover_model::SentSegments;
use dmover_net::connection::Channel;
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use dmover_schedule::time::Instant;
use dmover_wire::agent::Request;
use dmover_wire::encode;
use std::time::Duration;

use super::Line;
use crate::joined::receive_within;

/// How often it is asked.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// What was last said of one host, which is asked again while nobody waits for the answer.
#[derive(Debug, Default)]
pub(super) struct SentThere(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    known: Option<SentSegments>,
    asked: Option<Channel>,
    asked_at: Option<Instant>,
}

impl SentThere {
    /// What it had said, as of about a second ago.
    pub fn now(&self, line: &dyn Line) -> Option<SentSegments> {
        let mut state = lock(&self.0);
        if let Some(channel) = &state.asked {
            match receive_within::<Option<SentSegments>>(channel, Duration::ZERO) {
                None => return state.known,
                Some(answer) => {
                    state.asked = None;
                    // An older version does not know the question, and says so again a second later.
                    if let Ok(Some(known)) = answer {
                        state.known = Some(known);
                    }
                }
            }
        }
        if state.asked_at.is_none_or(|at| at.elapsed() >= ASK_EVERY) {
            state.asked_at = Some(Instant::now());
            let asked = line.request_ahead(&encode(&Request::Sent)).ok().flatten();
            state.asked = asked.filter(|channel| channel.finish().is_ok());
        }
        state.known
    }
}
