//! Whole jobs in a simulation: engine, coordinator, movers and journal are those that are shipped; the trees lie on disks in
//! memory, and a seed decides which thread runs, what fails, when the process is killed and when the power goes.
//!
//! The journal lies in a directory of the real system: what it has committed survives a power cut. Its own faults are not
//! simulated. One seed is one run.
/// The directory on each disk that is a root of the job.
const TREE: &[u8] = b"tree";

mod compare;
mod grow;
mod plan;
mod run;

pub use plan::{Ending, Fault, Plan, Round};
pub use run::{Run, simulate};
