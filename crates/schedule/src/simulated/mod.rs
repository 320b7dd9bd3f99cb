//! Threads, locks and time of a simulation. Threads outside of one have those of the standard library.
pub mod channel;
mod core;
pub mod simulation;
pub mod sync;
pub mod thread;
pub mod time;
