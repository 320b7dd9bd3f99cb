//! Remote movers: tasks and outcomes over NATS JetStream, behind the traits of `dmover-engine`.
//!
//! The *coordinator* ([`Fleet`]) puts tasks into a stream of its run and reads outcomes from another stream. A *mover*
//! ([`Mover`]) fetches tasks, asks the coordinator for each one (a *claim*), renews its leases while it works, and puts
//! its reports into the stream of outcomes. The broker only carries messages: the coordinator alone knows which mover
//! has which task ([`dmover_plan::leases`]), and its journal is authoritative. So a broker that loses everything costs
//! repeated work and nothing else. tokio stays inside this crate.
#![forbid(unsafe_code)]

mod address;
mod broker;
mod channel;
mod clock;
mod coordinator;
mod identity;
mod impostor;
mod job_registry;
mod link;
mod members;
mod mover;
mod nics;
mod offer;
pub mod placement;
mod remote;
mod reorder_buffer;
mod seal;
pub mod secret;
mod signer;
mod streams;
mod tls;
mod watchdog;

pub use address::{Address, JoinFile};
pub use broker::{Broker, BrokerOptions, Tls};
pub use coordinator::{FleetOptions, NatsFleets};
pub use identity::{Identity, Trust};
pub use mover::{FarSources, Mover, MoverOptions, OpenFarSources, Sessions};
pub use nics::nics;
pub use signer::Signer;
pub use watchdog::Watchdog;
