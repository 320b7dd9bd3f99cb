//! `dmover copy` as a black box: what a person types, and what they find afterwards.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests stop")]
#![allow(clippy::unnecessary_debug_formatting, reason = "names hold control characters")]

mod arguments;
mod bench;
mod fidelity;
mod output;
mod overwrite;
mod refusals;
mod selection;

use bench::{Bench, snapshot};
