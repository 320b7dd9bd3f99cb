//! The messages between processes of dmover, and how they become bytes. `docs/wire.md` describes every byte.
//!
//! Coordinators and movers exchange [`Call`] and [`Reply`], tasks, outcomes, log lines and broadcasts; each message is
//! made by [`encode`] and is in an [`Envelope`] that authenticates it. Keys, codes and signatures are not in this crate,
//! nor is anything that sends or receives. [`agent`] has the messages between a job and its agents,
//! [`delegation`] those of a job that runs where its destination is, and [`chunks`] those of other hosts that write there; they
//! need no envelope.
#![forbid(unsafe_code)]

pub mod agent;
pub mod chunks;
pub mod delegation;
mod encoding;
mod envelope;
mod message;
mod offer;
mod protocol;
mod report;
pub mod streams;

pub use encoding::{
    DecodeError, NUMBERS_MAX, SIZE_MAX, bundle, decode, decode_in_place, decode_within, encode,
    unbundle,
};
pub use envelope::{Envelope, Meeting, PING, PublicKey, Sealed, Signed, open, signed_in_run};
pub use message::{
    Call, Control, Load, LogMessage, MoverInfo, OutcomeMessage, PoolMessage, Reply, TaskMessage,
    cut,
};
pub use offer::{OfferRecord, OfferText};
pub use protocol::{OLDEST, PROTOCOL, Protocols};
pub use report::{Found, MoverReport, ReportItem};

#[cfg(test)]
mod tests;
