//! The verbs, one file each.
pub(crate) mod ask;
mod choose;
pub(crate) mod config;
pub(crate) mod copy;
mod detach;
pub(crate) mod doctor;
pub(crate) mod fleet;
pub(crate) mod jobs;
pub(crate) mod manifest;
pub(crate) mod manuals;
mod read_back;
mod run;
pub(crate) mod snapshot;
pub(crate) mod standby;
pub(crate) mod submit;
pub(crate) mod sum;
pub(crate) mod sync;
pub(crate) mod top;
mod transfer;
pub(crate) mod verify;
mod watch;

pub(crate) use run::on_job;
