//! Threads, locks and time of a job.
//!
//! They are those of the standard library. With the feature `simulated`, which tests use and nothing that is shipped
//! has, a thread of a [`simulation`] runs only while all others of it wait: at each lock, wait, sleep and system call, a
//! seed decides which one goes on, and time passes only as far as somebody waits for it. One seed gives one run.
#![forbid(unsafe_code)]

#[cfg(not(feature = "simulated"))]
mod real;
#[cfg(feature = "simulated")]
mod simulated;

#[cfg(not(feature = "simulated"))]
pub use real::{sync, thread, time};
#[cfg(feature = "simulated")]
pub use simulated::{simulation, sync, thread, time};
