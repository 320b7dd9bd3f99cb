//! One file a verb.
pub(crate) mod config;
pub(crate) mod copy;
pub(crate) mod doctor;
pub(crate) mod manifest;
mod read_back;
mod run;
pub(crate) mod sum;
pub(crate) mod sync;
mod transfer;
pub(crate) mod verify;
