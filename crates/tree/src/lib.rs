//! The seam between a job and its two ends: what an end may ask while it works, and what it reports.
//!
//! An end is a place where trees are. It knows neither tasks nor leases nor verbs: what it needs of them it asks through
//! the traits here, which the engine implements. There is no I/O in this crate.
#![forbid(unsafe_code)]

mod permit;
mod remote;
mod remote_catalog;
mod reports;
mod target_names;
mod volume_numbers;

pub use permit::{Denied, Limit, Permit};
pub use remote::{
    EntryAttributes, KnownBlocks, ListedKind, NamedObject, Needs, NextData, Owner, RemoteDirectory,
    RemoteFile, RemoteRoot, RemoteTree, RemoteTrees, Seen, TakeBlocks,
};
pub use remote_catalog::{CatalogPart, DescribedEntry, Looked, LookedAcl, RemoteCatalog};
pub use reports::Reports;
pub use target_names::TargetNames;
pub use volume_numbers::VolumeNumbers;
