//! Describes this host and this process: names, processors, memory, users, privileges, other processes, network interfaces.
//!
//! Nothing here touches the trees of a job.
#![forbid(unsafe_code)]

pub mod confinement;
mod kernel;
pub mod memory;
pub mod network;
pub mod other_processes;
pub mod process;
pub mod processors;
mod random;
pub mod signals;
mod space;
pub mod tcp;
pub mod user;

pub use kernel::{boot_clock_ms, boot_id, name, name_bytes};
pub use random::{random_bytes, random_u64};
pub use space::{free_bytes, may_write};
