//! A tree that an agent serves and a job reads, in one process: what the job sees is compared with what `std::fs` and the
//! programs of the system see.
#![allow(clippy::unwrap_used)]

mod attributes;
mod broken;
mod changes;
mod content;
mod hosts;
mod links;
mod near;
mod reading;
mod requests;
mod third;
mod walks;
