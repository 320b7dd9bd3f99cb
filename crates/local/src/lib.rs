//! Trees on mounted file systems, for either end of a job: what their entries are, and how content and attributes get
//! from one to the other.
//!
//! Nothing here knows the verbs of a job or its tasks. What depends on them comes in as rules ([`end::Rules`]) and as the
//! traits of `dmover-tree`.
#![forbid(unsafe_code)]

pub mod allowed_trees;
pub mod attributes;
pub mod base;
pub mod capability;
mod case;
mod checked;
pub mod comparison;
pub mod content;
pub mod counted_tree;
pub mod destination_lock;
pub mod digest;
pub mod digest_tap;
pub mod directory;
pub mod end;
pub mod entry_attributes;
pub mod error;
pub mod extra_directory;
pub mod fanotify_feed;
pub mod file;
pub mod finish;
pub mod flush;
mod handle;
pub mod held_file_systems;
pub mod large_file;
pub mod layout;
pub mod links;
pub mod listing;
mod locks;
pub mod look;
pub mod make_directory;
pub mod mend;
mod missing_mounts;
pub mod mounted;
pub mod mounts;
pub mod named_directory;
mod named_object;
pub mod narrow;
pub mod object;
mod overlaps;
pub mod pair;
mod patient_open;
pub mod privilege;
pub mod project;
pub mod put_in_place;
mod random_access;
mod reading;
mod removal;
pub mod rename;
pub mod rights;
pub mod root;
pub mod root_content;
pub mod root_side;
pub mod scratch;
pub mod seen_names;
pub mod session;
pub mod source;
pub mod source_root;
mod special_files;
pub mod stale_temporaries;
mod stored_size;
pub mod subject;
pub mod submounts;
pub mod trash;
pub mod unflushed;
pub mod unwritten;
pub mod volume;
