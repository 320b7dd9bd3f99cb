//! Pure decisions: no I/O, no clock, no threads. Time and randomness are arguments.
#![forbid(unsafe_code)]

pub mod acl;
pub mod bottleneck;
pub mod breaker;
pub mod chunk;
pub mod concurrency;
pub mod coordinator;
pub mod debounce;
pub mod decide;
pub mod engine;
pub mod equality;
pub mod eta;
pub mod failure_attribution;
pub mod filter;
pub mod history;
pub mod host_share;
pub mod idmap;
pub mod itemize;
pub mod leases;
pub mod line_limit;
pub mod overlap;
pub mod overlay;
pub mod rate;
pub mod retention;
pub mod retry;
pub mod scaling;
pub mod settable;
pub mod stragglers;
pub mod temporary;
pub mod verify;
mod wild;
