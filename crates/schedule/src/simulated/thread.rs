//! Threads, as in [`std::thread`].
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::core::{Me, ProcessState, me, object_of_thread, set_me};
use super::time::deadline;

/// As [`std::thread::JoinHandle`].
#[derive(Debug)]
pub struct JoinHandle<T> {
    thread: std::thread::JoinHandle<T>,
    simulated: Option<Me>,
}

impl<T> JoinHandle<T> {
    /// Waits for the end of the thread.
    ///
    /// # Errors
    /// The thread has panicked.
    pub fn join(self) -> std::thread::Result<T> {
        wait_for(self.simulated.as_ref());
        self.thread.join()
    }

    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        match &self.simulated {
            Some(it) => it.core.has_ended(it.number),
            None => self.thread.is_finished(),
        }
    }
}

fn wait_for(thread: Option<&Me>) {
    if let (Some(me), Some(it)) = (me(), thread) {
        while !it.core.has_ended(it.number) {
            me.wait_for_lock(object_of_thread(it.number));
        }
    }
}

/// The end of a simulated thread, also if it panics.
struct End(Me);

impl Drop for End {
    fn drop(&mut self) {
        set_me(None);
        self.0.end();
    }
}

fn run<T>(it: &Me, body: impl FnOnce() -> T) -> T {
    it.begin();
    set_me(Some(it.clone()));
    let _end = End(it.clone());
    // It may have been killed before it began.
    it.step();
    body()
}

/// A thread of a process; its number is returned too.
pub(crate) fn spawn_in<T: Send + 'static>(
    by: &Me,
    process: &Arc<ProcessState>,
    name: String,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<(JoinHandle<T>, usize)> {
    let it = by.core.add(name, process);
    let (number, own) = (it.number, it.clone());
    let thread = std::thread::Builder::new().spawn(move || run(&it, body))?;
    Ok((JoinHandle { thread, simulated: Some(own) }, number))
}

/// As [`std::thread::Builder`].
#[derive(Debug, Default)]
pub struct Builder {
    name: String,
}

impl Builder {
    /// A thread without a name.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives it a name.
    #[must_use]
    pub fn name(mut self, name: String) -> Self {
        self.name = name;
        self
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn spawn<T: Send + 'static>(
        self,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        match me() {
            Some(me) => {
                me.step();
                spawn_in(&me, &me.process, self.name, body).map(|(thread, _)| thread)
            }
            None => {
                let thread = std::thread::Builder::new().name(self.name).spawn(body)?;
                Ok(JoinHandle { thread, simulated: None })
            }
        }
    }
}

/// As [`std::thread::spawn`].
///
/// # Panics
/// If the system has no thread to give.
pub fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().spawn(body).expect("a thread")
}

/// As [`std::thread::sleep`].
pub fn sleep(time: Duration) {
    match me() {
        Some(me) => {
            me.wait(0, deadline(&me, time));
        }
        None => std::thread::sleep(time),
    }
}

/// As [`std::thread::Scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env> {
    scope: &'scope std::thread::Scope<'scope, 'env>,
    threads: Mutex<Vec<Me>>,
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread in the scope.
    pub fn spawn<T: Send + 'scope>(
        &self,
        body: impl FnOnce() -> T + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        let Some(me) = me() else {
            return ScopedJoinHandle { thread: self.scope.spawn(body), simulated: None };
        };
        let it = me.core.add("scoped".into(), &me.process);
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(it.clone());
        let own = it.clone();
        let thread = self.scope.spawn(move || run(&it, body));
        ScopedJoinHandle { thread, simulated: Some(own) }
    }
}

/// As [`std::thread::ScopedJoinHandle`].
#[derive(Debug)]
pub struct ScopedJoinHandle<'scope, T> {
    thread: std::thread::ScopedJoinHandle<'scope, T>,
    simulated: Option<Me>,
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits for the end of the thread.
    ///
    /// # Errors
    /// The thread has panicked.
    pub fn join(self) -> std::thread::Result<T> {
        wait_for(self.simulated.as_ref());
        self.thread.join()
    }
}

/// The threads end before the scope does, also if it unwinds: the system would wait for them out of turn.
struct Wait<'a, 'scope, 'env>(&'a Scope<'scope, 'env>);

impl Drop for Wait<'_, '_, '_> {
    fn drop(&mut self) {
        let threads =
            std::mem::take(&mut *self.0.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for it in &threads {
            wait_for(Some(it));
        }
    }
}

/// As [`std::thread::scope`].
pub fn scope<'env, T>(body: impl for<'scope> FnOnce(&Scope<'scope, 'env>) -> T) -> T {
    std::thread::scope(|scope| {
        let scope = Scope { scope, threads: Mutex::default() };
        let _wait = Wait(&scope);
        body(&scope)
    })
}
