//! Trees on mounted file systems, for either end of a job: what their entries are, and how content and attributes get
//! from one to the other.
//!
//! Nothing here knows a task, a lease or a verb. What depends on them comes in as rules ([`AttributeRules`],
//! [`ContentRules`]) and as the traits of `dmover-tree`.
#![forbid(unsafe_code)]

pub mod attributes;
pub mod capability;
pub mod content;
pub mod error;
pub mod flush;
pub mod layout;
pub mod mounts;
pub mod overlaps;
pub mod patient_open;
pub mod privilege;
pub mod root_side;
pub mod stale_temporaries;
pub mod unflushed;
