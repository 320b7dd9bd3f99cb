//! `dmover copy` as a black box: what a person types, and what they find afterwards.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
// Tables of cases and short waits read best written out.
#![allow(clippy::type_complexity, clippy::duration_suboptimal_units, clippy::naive_bytecount)]
#![allow(missing_docs, clippy::unwrap_used, reason = "tests stop")]
#![allow(clippy::unnecessary_debug_formatting, reason = "names hold control characters")]

mod acls;
mod arguments;
#[path = "../bench/mod.rs"]
mod bench;
mod calls;
mod cuts;
mod engines;
mod environment;
mod faults;
mod fidelity;
mod flushes;
mod limits;
mod output;
mod overwrite;
mod privilege;
mod progress;
mod refusals;
mod regressions;
mod resumed;
mod selection;
mod servers;
mod signals;
mod writers;

use bench::{Bench, snapshot};
