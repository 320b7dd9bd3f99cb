//! Synchronising: what a pass does beyond a copy. It sets attributes where only they differ, compares entries that only
//! look equal, repeats renames, and deletes entries that the source does not have.
mod case;
mod changed;
mod delete;
mod guard;
mod inspect;
mod meant;
mod rename;
mod revisit;
mod trash;

pub use guard::Withheld;
pub(crate) use guard::{Asks, Guard, doubt, is_empty, refuse_missing_destination};
pub(crate) use meant::refuse_unmeant;
pub(crate) use revisit::object_of;
pub(crate) use trash::Trash;
