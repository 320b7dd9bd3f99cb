//! Ends of a job on other hosts: how they are named, reached through ssh, and spoken to.
//!
//! A connection carries channels of messages; what the messages say is for the layers above. Threads and blocking I/O.
#![forbid(unsafe_code)]

pub mod connection;
pub mod endpoint;
pub mod frame;
pub mod hello;
