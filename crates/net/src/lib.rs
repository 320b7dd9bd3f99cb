//! Ends of a job on other hosts: how they are named, reached through ssh, and spoken to.
//!
//! [`client`] starts ssh, which starts an agent at the other host; both greet each other ([`hello`]), and then a
//! [`connection`] carries channels of messages. What the messages say is for the layers above. Threads and blocking I/O.
#![forbid(unsafe_code)]

pub mod agent;
pub mod client;
pub mod connection;
mod ending;
pub mod endpoint;
mod failure;
pub mod frame;
pub mod hello;
pub mod install;
pub mod listening;
mod ports;
mod reach;
pub mod relay;
mod remote_command;
mod ssh;
pub mod streams;
mod tls;
mod vectored;

pub use client::{ConnectOptions, Relays, RemoteAgent, RemoteJob, start_relays};
pub use dmover_wire::agent::{Inspection, RootKind};
pub use dmover_wire::streams::{Compression, Protection, StreamSettings};
pub use endpoint::{AGENT_PORT, Endpoint, RemoteHost, RemotePath};
pub use listening::Credentials;
pub use ssh::SshOptions;
pub use streams::{Notice, StreamOptions};
