//! Fleets that are too large to have: the coordinator and the table of leases as they are, in simulated time, with movers and a broker
//! that do nothing but take time and fail. Seeded, so that each run can be repeated.
#![forbid(unsafe_code)]

mod fleet;
mod tree;

pub use fleet::{Result, Scenario, simulate};
pub use tree::TreeSize;
