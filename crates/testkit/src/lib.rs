//! What the tests stand on: hard-case trees, an independent comparer, file-system images, a file system
//! that fails on demand, power cuts, swap attacks, clusters of hosts with real servers, and the lanes that
//! put dmover through them.
//!
//! Nothing here is shipped, and nothing here asks dmover's own code whether dmover was right.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
pub mod clock;
pub mod cluster;
pub mod compare;
pub mod failing_disk;
pub mod faultfs;
pub mod image;
pub mod lanes;
pub mod powercut;
mod python;
pub mod recorder;
pub mod seccomp;
pub mod shapes;
pub mod skip;
pub mod swap;
pub mod tree;
