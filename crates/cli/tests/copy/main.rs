//! `dmover copy` as a black box: what a person types, and what they find afterwards.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
#![allow(missing_docs, clippy::unwrap_used, reason = "tests stop")]
#![allow(clippy::unnecessary_debug_formatting, reason = "names hold control characters")]

mod arguments;
mod bench;
mod faults;
mod fidelity;
mod limits;
mod output;
mod overwrite;
mod privilege;
mod refusals;
mod selection;
mod signals;

use bench::{Bench, snapshot};
