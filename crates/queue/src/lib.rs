//! Movers elsewhere: tasks and outcomes over NATS JetStream, behind the traits of `dmover-engine`.
//!
//! The *coordinator* ([`Fleet`]) puts tasks into a stream of its run and hears outcomes from another one. A *mover*
//! ([`Mover`]) takes tasks from there, asks the coordinator whether it may have them (a *claim*), says while it works that it is
//! still there, and puts what it has to say into the stream of outcomes. The broker carries messages; who has which
//! task, the coordinator knows alone ([`dmover_plan::leases`]), and its journal is the truth. So a broker that forgets everything costs
//! repeated work and nothing else. tokio stays inside this crate.
#![forbid(unsafe_code)]

mod address;
mod broker;
mod channel;
mod clock;
mod coordinator;
mod heard;
mod identity;
mod impostor;
mod link;
mod members;
mod message;
mod mover;
mod offered;
pub mod placement;
mod remote;
mod seal;
mod secret;
mod streams;
mod tls;
mod watchdog;

pub use address::{Address, JoinFile};
pub use broker::{Broker, BrokerOptions, Tls};
pub use coordinator::{NatsFleets, Terms};
pub use identity::{Identity, Signer, Trust};
pub use message::{Describe, MoverInfo, PROTOCOL};
pub use mover::{Mover, MoverOptions, Sessions, nics};
pub use watchdog::Watchdog;
