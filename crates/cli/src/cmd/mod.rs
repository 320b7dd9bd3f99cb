//! One file a verb.
pub(crate) mod config;
pub(crate) mod copy;
pub(crate) mod doctor;
mod run;
pub(crate) mod sum;
