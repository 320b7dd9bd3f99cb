//! A queue between threads, as in [`std::sync::mpsc`].
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError};

use super::sync::{Condvar, Mutex, MutexGuard};
use super::time::Instant;

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    news: Condvar,
}

#[derive(Debug)]
struct State<T> {
    waiting: VecDeque<T>,
    senders: usize,
    has_receiver: bool,
}

impl<T> Shared<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As [`std::sync::mpsc::Sender`].
#[derive(Debug)]
pub struct Sender<T>(Arc<Shared<T>>);

/// As [`std::sync::mpsc::Receiver`].
#[derive(Debug)]
pub struct Receiver<T>(Arc<Shared<T>>);

/// As [`std::sync::mpsc::channel`].
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = State { waiting: VecDeque::new(), senders: 1, has_receiver: true };
    let shared = Arc::new(Shared { state: Mutex::new(state), news: Condvar::new() });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> Sender<T> {
    /// Adds a value.
    ///
    /// # Errors
    /// There is no receiver any more.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        let mut state = self.0.state();
        if !state.has_receiver {
            return Err(SendError(value));
        }
        state.waiting.push_back(value);
        self.0.news.notify_one();
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.state().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.state().senders -= 1;
        self.0.news.notify_all();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.state().has_receiver = false;
    }
}

impl<T> Receiver<T> {
    /// Takes a value if there is one.
    ///
    /// # Errors
    /// There is none, or there are no senders either.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = self.0.state();
        match state.waiting.pop_front() {
            Some(value) => Ok(value),
            None if state.senders == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }

    /// Waits for a value.
    ///
    /// # Errors
    /// There are no senders any more.
    pub fn recv(&self) -> Result<T, RecvError> {
        let mut state = self.0.state();
        loop {
            match state.waiting.pop_front() {
                Some(value) => return Ok(value),
                None if state.senders == 0 => return Err(RecvError),
                None => state = self.0.news.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Waits for a value, for at most so long.
    ///
    /// # Errors
    /// None came, or there are no senders any more.
    pub fn recv_timeout(&self, most: Duration) -> Result<T, RecvTimeoutError> {
        let begun = Instant::now();
        let mut state = self.0.state();
        loop {
            match state.waiting.pop_front() {
                Some(value) => return Ok(value),
                None if state.senders == 0 => return Err(RecvTimeoutError::Disconnected),
                None => {}
            }
            let left = most.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(RecvTimeoutError::Timeout);
            }
            let waited = self.0.news.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
