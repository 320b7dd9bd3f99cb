//! A file system in memory, for tests only: names, links, modes, times, holes, extended attributes, limits, faults,
//! power cuts and simulated time. One seed gives one run.
//!
//! A [`Disk`] is one mounted file system. [`Disk::as_user`] gives the system calls of one user on it; they take open
//! [`Handle`]s and single names, and fail with the [`Errno`] that Linux gives. What reached the storage is in
//! [`stored`], injected faults in [`faults`]. There is no thread, no real clock and no I/O.
#![forbid(unsafe_code)]

mod actor;
mod clock;
mod content;
mod disk;
mod errno;
pub mod faults;
mod inode;
mod profile;
mod state;
pub mod stored;

pub use actor::Actor;
pub use clock::{Clock, SimulatedTime};
pub use disk::{Device, Disk, Handle, Listed, Open, Place, Renaming, SetTime, User, XattrMode};
pub use errno::{Errno, Result};
pub use inode::Attributes;
pub use profile::{AtimeRule, Folding, Profile, Quota};
pub use state::{Cursor, Usage};
