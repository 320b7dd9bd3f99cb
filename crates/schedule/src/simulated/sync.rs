//! Locks and conditions, as in [`std::sync`].
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};
use std::time::Duration;

use super::core::{me, object};
use super::time::deadline;

pub use super::channel as mpsc;

/// As [`std::sync::Mutex`].
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

/// As [`std::sync::MutexGuard`].
#[derive(Debug)]
pub struct MutexGuard<'a, T: ?Sized> {
    guard: Option<std::sync::MutexGuard<'a, T>>,
    of: &'a Mutex<T>,
}

impl<T> Mutex<T> {
    /// An open lock.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// What it protected.
    ///
    /// # Errors
    /// A thread panicked while it held the lock.
    pub fn into_inner(self) -> LockResult<T> {
        self.0.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    ///
    /// # Errors
    /// A thread panicked while it held the lock.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let Some(me) = me() else {
            return self.guarded(self.0.lock());
        };
        me.step();
        loop {
            match self.0.try_lock() {
                Ok(guard) => return self.guarded(Ok(guard)),
                Err(TryLockError::Poisoned(error)) => return self.guarded(Err(error)),
                Err(TryLockError::WouldBlock) => me.wait_for_lock(object(self)),
            }
        }
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// It is not, or a thread panicked while it held it.
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        if let Some(me) = me() {
            me.step();
        }
        match self.0.try_lock() {
            Ok(guard) => Ok(MutexGuard { guard: Some(guard), of: self }),
            Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
            Err(TryLockError::Poisoned(error)) => {
                let guard = MutexGuard { guard: Some(error.into_inner()), of: self };
                Err(TryLockError::Poisoned(PoisonError::new(guard)))
            }
        }
    }

    /// What it protects; nobody else has it.
    ///
    /// # Errors
    /// A thread panicked while it held the lock.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.0.get_mut()
    }

    fn guarded<'a>(
        &'a self,
        guard: LockResult<std::sync::MutexGuard<'a, T>>,
    ) -> LockResult<MutexGuard<'a, T>> {
        match guard {
            Ok(guard) => Ok(MutexGuard { guard: Some(guard), of: self }),
            Err(error) => {
                let guard = Some(error.into_inner());
                Err(PoisonError::new(MutexGuard { guard, of: self }))
            }
        }
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("held until the end")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("held until the end")
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        if self.guard.take().is_some() {
            wake_all(self.of);
        }
    }
}

fn wake_all<T: ?Sized>(of: &T) {
    if let Some(me) = me() {
        me.wake(object(of), true);
    }
}

/// As [`std::sync::WaitTimeoutResult`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the time was over.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

/// As [`std::sync::Condvar`].
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// Nobody waits for it yet.
    pub const fn new() -> Self {
        Self(std::sync::Condvar::new())
    }

    /// Waits for a notification.
    ///
    /// # Errors
    /// A thread panicked while it held the lock.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.wait_until(guard, None)
            .map(|(guard, _)| guard)
            .map_err(|error| PoisonError::new(error.into_inner().0))
    }

    /// The same, for at most so long.
    ///
    /// # Errors
    /// A thread panicked while it held the lock.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        most: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        self.wait_until(guard, Some(most))
    }

    /// Waits while a condition holds.
    ///
    /// # Errors
    /// A thread panicked while it held the lock.
    pub fn wait_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<MutexGuard<'a, T>> {
        while condition(&mut guard) {
            guard = self.wait(guard)?;
        }
        Ok(guard)
    }

    /// The same, for at most so long.
    ///
    /// # Errors
    /// A thread panicked while it held the lock.
    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        most: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let begun = super::time::Instant::now();
        loop {
            if !condition(&mut guard) {
                return Ok((guard, WaitTimeoutResult(false)));
            }
            let left = most.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok((guard, WaitTimeoutResult(true)));
            }
            guard = self.wait_timeout(guard, left)?.0;
        }
    }

    /// One of those who wait goes on.
    pub fn notify_one(&self) {
        match me() {
            Some(me) => me.wake(object(self), false),
            None => self.0.notify_one(),
        }
    }

    /// All who wait go on.
    pub fn notify_all(&self) {
        match me() {
            Some(me) => me.wake(object(self), true),
            None => self.0.notify_all(),
        }
    }

    fn wait_until<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        most: Option<Duration>,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let mutex = guard.of;
        let Some(me) = me() else {
            let inner = guard.guard.take().expect("held until the end");
            let (inner, is_over) = match most {
                None => (self.0.wait(inner), false),
                Some(most) => match self.0.wait_timeout(inner, most) {
                    Ok((guard, is_over)) => (Ok(guard), is_over.timed_out()),
                    Err(error) => {
                        let (guard, is_over) = error.into_inner();
                        (Err(PoisonError::new(guard)), is_over.timed_out())
                    }
                },
            };
            return with(mutex.guarded(inner), WaitTimeoutResult(is_over));
        };
        // Nobody else runs before this thread waits.
        drop(guard);
        let is_over = me.wait(object(self), most.and_then(|most| deadline(&me, most)));
        with(mutex.lock(), WaitTimeoutResult(is_over))
    }
}

fn with<T>(
    guard: LockResult<MutexGuard<'_, T>>,
    result: WaitTimeoutResult,
) -> LockResult<(MutexGuard<'_, T>, WaitTimeoutResult)> {
    match guard {
        Ok(guard) => Ok((guard, result)),
        Err(error) => Err(PoisonError::new((error.into_inner(), result))),
    }
}

/// As [`std::sync::RwLock`].
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(std::sync::RwLock<T>);

macro_rules! guards {
    ($guard:ident, $lock:ident, $try_lock:ident, $doc:literal) => {
        #[doc = $doc]
        #[derive(Debug)]
        pub struct $guard<'a, T: ?Sized> {
            guard: Option<std::sync::$guard<'a, T>>,
            of: &'a RwLock<T>,
        }

        impl<T: ?Sized> RwLock<T> {
            /// Waits for the lock.
            ///
            /// # Errors
            /// A thread panicked while it wrote.
            pub fn $lock(&self) -> LockResult<$guard<'_, T>> {
                let guarded = |guard| $guard { guard: Some(guard), of: self };
                let poisoned =
                    |error: PoisonError<_>| PoisonError::new(guarded(error.into_inner()));
                let Some(me) = me() else {
                    return self.0.$lock().map(guarded).map_err(poisoned);
                };
                me.step();
                loop {
                    match self.0.$try_lock() {
                        Ok(guard) => return Ok(guarded(guard)),
                        Err(TryLockError::Poisoned(error)) => return Err(poisoned(error)),
                        Err(TryLockError::WouldBlock) => me.wait_for_lock(object(self)),
                    }
                }
            }
        }

        impl<T: ?Sized> Deref for $guard<'_, T> {
            type Target = T;

            fn deref(&self) -> &T {
                self.guard.as_ref().expect("held until the end")
            }
        }

        impl<T: ?Sized> Drop for $guard<'_, T> {
            fn drop(&mut self) {
                self.guard = None;
                wake_all(self.of);
            }
        }
    };
}

guards!(RwLockReadGuard, read, try_read, "As [`std::sync::RwLockReadGuard`].");
guards!(RwLockWriteGuard, write, try_write, "As [`std::sync::RwLockWriteGuard`].");

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("held until the end")
    }
}

impl<T> RwLock<T> {
    /// An open lock.
    pub const fn new(value: T) -> Self {
        Self(std::sync::RwLock::new(value))
    }
}

/// As [`std::sync::OnceLock`].
#[derive(Debug)]
pub struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    turn: Mutex<()>,
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Clone> Clone for OnceLock<T> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), turn: Mutex::default() }
    }
}

impl<T> OnceLock<T> {
    /// Without a value.
    pub const fn new() -> Self {
        Self { value: std::sync::OnceLock::new(), turn: Mutex::new(()) }
    }

    /// The value, if it is set.
    pub fn get(&self) -> Option<&T> {
        self.value.get()
    }

    /// Sets the value.
    ///
    /// # Errors
    /// It is set already.
    pub fn set(&self, value: T) -> Result<(), T> {
        self.value.set(value)
    }

    /// The value; whoever comes first makes it.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.value.get_or_init(make)
    }
}
