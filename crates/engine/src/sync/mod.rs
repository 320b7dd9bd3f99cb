//! Synchronising: what a pass does beyond a copy. Attributes are set where they alone differ, what only looks equal is
//! compared, what was renamed is renamed, and what the source does not have goes.
mod case;
mod changed;
mod delete;
mod guard;
mod inspect;
mod meant;
mod rename;
mod revisit;
mod trash;

pub(crate) use changed::Following;
pub(crate) use guard::{Asks, Guard, doubt, is_empty, refuse_missing_destination};
pub use guard::{OnTheWay, Withheld, WithheldReason};
pub use inspect::Doubts;
pub(crate) use inspect::{COARSE, Doubtful, SKEW, later};
pub use meant::Unmeant;
pub(crate) use meant::refuse_unmeant;
pub(crate) use revisit::{ONLY_ROOT, object_of};
pub(crate) use trash::{Trash, is_mark_there};
