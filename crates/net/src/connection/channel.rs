//! One channel of a connection.
use dmover_model::ConnectionReport;
use dmover_observe::lock;
use dmover_schedule::sync::{Condvar, Mutex};
use dmover_schedule::time::Instant;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::{Broken, GROWN_MAX, MESSAGE_OVERHEAD, Shared, Terms, wait};
use crate::frame::{Kind, PAYLOAD_MAX, REASON_MAX};

/// A channel: messages in both directions, in order. Two threads may use it, one to send and one to receive.
///
/// Dropping it before [`Self::finish`] cancels it at the other side.
#[derive(Debug)]
pub struct Channel {
    number: u64,
    shared: Arc<Shared>,
    state: Arc<State>,
}

/// What the reader and the owner of a channel share.
#[derive(Debug)]
pub(super) struct State {
    inner: Mutex<Inner>,
    changed: Condvar,
    windows: Windows,
}

/// How the window for what comes may grow.
#[derive(Debug)]
struct Windows {
    first: u64,
    most: u64,
    /// By how much all windows of the connection have grown.
    grown: Arc<AtomicU64>,
}

impl Windows {
    /// Takes bytes for a window out of those that are left for all.
    fn take(&self, bytes: u64) -> bool {
        let more = |grown: u64| Some(grown + bytes).filter(|grown| *grown <= GROWN_MAX);
        self.grown.fetch_update(SeqCst, SeqCst, more).is_ok()
    }
}

#[derive(Debug)]
struct Inner {
    /// Bytes that this side may still send.
    credit: u64,
    /// Bytes that the other side may still send.
    granted: u64,
    /// Bytes that were taken from the inbox, and that the other side does not know of yet.
    owed: u64,
    /// How far the other side may be ahead.
    window: u64,
    /// The owner had to wait for a message since the other side was told of the last ones.
    has_waited: bool,
    inbox: VecDeque<Vec<u8>>,
    /// This side sends no more.
    has_ended: bool,
    /// The place of this channel is not needed for a last frame of this side any more.
    has_left: bool,
    /// This side does not receive any more either.
    is_dropped: bool,
    /// The other side sends no more.
    peer_ended: bool,
    /// It has sent all that it had to send.
    is_complete: bool,
    /// Why the other side wants no more.
    cancelled: Option<String>,
}

impl Inner {
    fn is_over(&self) -> bool {
        self.has_left && self.peer_ended
    }
}

/// The other side would end the connection.
#[track_caller]
pub(super) fn assert_length(message: &[u8]) {
    assert!(message.len() <= PAYLOAD_MAX, "a message of {} bytes", message.len());
}

/// What a message takes of a window.
pub(super) fn cost(length: usize) -> u64 {
    length as u64 + MESSAGE_OVERHEAD
}

impl Channel {
    /// What is known of what carries the connection.
    pub fn report(&self) -> Option<ConnectionReport> {
        self.shared.report()
    }

    pub(super) fn new(number: u64, shared: Arc<Shared>, state: Arc<State>) -> Self {
        Self { number, shared, state }
    }

    /// Sends a message of at most [`PAYLOAD_MAX`] bytes, as soon as the other side has room for it.
    ///
    /// # Errors
    /// The channel or the connection is over; the other side may have seen the message or not.
    pub fn send(&self, message: &[u8]) -> Result<(), Broken> {
        assert_length(message);
        let cost = cost(message.len());
        let mut inner = lock(&self.state.inner);
        assert!(!inner.has_ended || inner.is_dropped, "a message after the end");
        loop {
            if inner.is_dropped {
                return Err(Broken::Closed);
            }
            if let Some(reason) = &inner.cancelled {
                return Err(Broken::Cancelled(reason.clone()));
            }
            if let Some(why) = self.shared.over() {
                return Err(why);
            }
            if inner.credit >= cost {
                break;
            }
            inner = wait(&self.state.changed, inner);
        }
        inner.credit -= cost;
        drop(inner);
        self.shared.write(Kind::Message, self.number, message)
    }

    /// Says that much will come on this channel: its window is at once as large as one had to become on this connection.
    ///
    /// # Errors
    /// The connection is over.
    pub fn expect_much(&self) -> Result<(), Broken> {
        let mut inner = lock(&self.state.inner);
        let wanted = self.shared.largest_window.load(SeqCst).min(self.state.windows.most);
        let more = wanted.saturating_sub(inner.window);
        if more == 0 || inner.peer_ended || !self.state.windows.take(more) {
            return Ok(());
        }
        inner.window += more;
        inner.granted += more;
        drop(inner);
        let more = u32::try_from(more).expect("a window has 32 bits");
        self.shared.write(Kind::Credit, self.number, &more.to_le_bytes())
    }

    /// The next message; `None`: the other side has sent all.
    ///
    /// # Errors
    /// The channel or the connection is over. Messages that came before are received first.
    pub fn receive(&self) -> Result<Option<Vec<u8>>, Broken> {
        self.receive_until(None).expect("there is no limit")
    }

    /// The same, if it comes within this time; `None`: it does not.
    pub fn receive_within(&self, limit: Duration) -> Option<Result<Option<Vec<u8>>, Broken>> {
        self.receive_until(Some(Instant::now() + limit))
    }

    fn receive_until(&self, end: Option<Instant>) -> Option<Result<Option<Vec<u8>>, Broken>> {
        let mut inner = lock(&self.state.inner);
        loop {
            if let Some(message) = inner.inbox.pop_front() {
                inner.owed += cost(message.len());
                // Few and large: a credit is a message, too.
                if inner.owed >= inner.window / 2 && !inner.peer_ended {
                    let more = std::mem::take(&mut inner.owed) + self.state.grow(&mut inner);
                    inner.granted += more;
                    self.shared.largest_window.fetch_max(inner.window, SeqCst);
                    drop(inner);
                    let more = u32::try_from(more).expect("a window has 32 bits");
                    // If it cannot be sent, the next call says so.
                    let _ = self.shared.write(Kind::Credit, self.number, &more.to_le_bytes());
                }
                return Some(Ok(Some(message)));
            }
            if inner.is_complete {
                return Some(Ok(None));
            }
            if inner.is_dropped {
                return Some(Err(Broken::Closed));
            }
            if let Some(reason) = &inner.cancelled {
                return Some(Err(Broken::Cancelled(reason.clone())));
            }
            if let Some(why) = self.shared.over() {
                return Some(Err(why));
            }
            inner.has_waited = true;
            inner = match end.map(|end| end.saturating_duration_since(Instant::now())) {
                None => wait(&self.state.changed, inner),
                Some(Duration::ZERO) => return None,
                Some(left) => {
                    let waited = self.state.changed.wait_timeout(inner, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Says that this side sends no more messages. It can still receive.
    ///
    /// # Errors
    /// The connection is over.
    pub fn finish(&self) -> Result<(), Broken> {
        self.leave(false, Kind::End, &[])
    }

    /// Ends the channel in both directions, for a reason that the other side learns. Other threads that wait at it go on.
    pub fn cancel(&self, reason: &str) {
        let reason = &reason[..reason.floor_char_boundary(REASON_MAX)];
        let _ = self.leave(true, Kind::Cancel, reason.as_bytes());
    }

    /// Sends the last frame of this side, unless it was sent.
    fn leave(&self, drops: bool, kind: Kind, payload: &[u8]) -> Result<(), Broken> {
        let mut inner = lock(&self.state.inner);
        let had_ended = std::mem::replace(&mut inner.has_ended, true);
        let wants_more = drops && !inner.is_dropped && !inner.peer_ended;
        inner.is_dropped |= drops;
        if inner.is_dropped {
            inner.inbox.clear();
            self.state.changed.notify_all();
        }
        drop(inner);
        // The side that asks takes the place again with its next request, which has to come after the last frame. The
        // side that answers has to have the place before that.
        let asks = self.shared.asks;
        if !asks {
            self.free_place();
        }
        let written = if had_ended && !wants_more {
            Ok(())
        } else {
            self.shared.write(kind, self.number, payload)
        };
        if asks {
            self.free_place();
        }
        written
    }

    /// Frees the place of the channel if the other side has ended it too; otherwise its end frees it.
    fn free_place(&self) {
        let mut inner = lock(&self.state.inner);
        inner.has_left = true;
        let is_over = inner.is_over();
        drop(inner);
        if is_over {
            self.shared.close_channel(self.number);
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.shared.over().is_none() {
            let why: &[u8] = if std::thread::panicking() {
                b"the other side failed at this request; please report this"
            } else {
                b"the other side does not want the rest"
            };
            let _ = self.leave(true, Kind::Cancel, why);
        }
    }
}

impl State {
    /// `grown`: by how much the windows of the connection have grown.
    pub(super) fn new(terms: &Terms, grown: &Arc<AtomicU64>) -> Self {
        let inner = Inner {
            credit: terms.peer_window.into(),
            granted: terms.own_window.into(),
            owed: 0,
            window: terms.own_window.into(),
            has_waited: false,
            inbox: VecDeque::new(),
            has_ended: false,
            has_left: false,
            is_dropped: false,
            peer_ended: false,
            is_complete: false,
            cancelled: None,
        };
        let windows = Windows {
            first: terms.own_window.into(),
            most: terms.own_window_max.into(),
            grown: Arc::clone(grown),
        };
        Self { inner: Mutex::new(inner), changed: Condvar::new(), windows }
    }

    /// Grows the window if bytes are read faster than they come; answers by how much.
    fn grow(&self, inner: &mut Inner) -> u64 {
        let more = inner.window.min(self.windows.most.saturating_sub(inner.window));
        if !std::mem::take(&mut inner.has_waited) || more == 0 || !self.windows.take(more) {
            return 0;
        }
        inner.window += more;
        more
    }

    /// Counts a message that is sent at once.
    pub(super) fn charge(&self, length: usize) {
        lock(&self.inner).credit -= cost(length);
    }

    /// Has its owner look again whether the connection is over.
    pub(super) fn wake(&self) {
        drop(lock(&self.inner));
        self.changed.notify_all();
    }

    /// Whether the other side may send a message of this length now; if so, it has been counted.
    pub(super) fn admits(&self, length: usize) -> bool {
        let mut inner = lock(&self.inner);
        match inner.granted.checked_sub(cost(length)) {
            Some(rest) if !inner.peer_ended => {
                inner.granted = rest;
                true
            }
            _ => false,
        }
    }

    /// A message has come.
    pub(super) fn deliver(&self, message: Vec<u8>) {
        let mut inner = lock(&self.inner);
        if !inner.is_dropped {
            inner.inbox.push_back(message);
        }
        drop(inner);
        self.changed.notify_all();
    }

    /// The first message, which the owner gets with the channel, counts as taken.
    pub(super) fn taken(&self, length: usize) {
        lock(&self.inner).owed += cost(length);
    }

    /// The other side has room for more. `false`: for more than it has said first.
    pub(super) fn add_credit(&self, more: u32, window: u32) -> bool {
        let mut inner = lock(&self.inner);
        inner.credit += u64::from(more);
        let is_right = inner.credit <= u64::from(window);
        drop(inner);
        self.changed.notify_all();
        is_right
    }

    /// The other side sends no more, for this reason if it has one. Answers whether the channel is over; `None`: the
    /// other side had ended it before.
    pub(super) fn peer_ended(&self, reason: Option<String>) -> Option<bool> {
        let mut inner = lock(&self.inner);
        let had_ended = std::mem::replace(&mut inner.peer_ended, true);
        if had_ended && reason.is_none() {
            return None;
        }
        inner.is_complete |= reason.is_none();
        inner.cancelled = inner.cancelled.take().or(reason);
        let is_over = inner.is_over();
        drop(inner);
        self.changed.notify_all();
        Some(is_over)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let grown = lock(&self.inner).window - self.windows.first;
        self.windows.grown.fetch_sub(grown, SeqCst);
    }
}
