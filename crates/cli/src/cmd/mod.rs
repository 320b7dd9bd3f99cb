//! One file a verb.
pub(crate) mod config;
pub(crate) mod copy;
pub(crate) mod doctor;
pub(crate) mod manifest;
mod run;
pub(crate) mod sum;
pub(crate) mod verify;
