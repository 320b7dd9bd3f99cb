//! Reports a destination that was unmounted while a job wrote to it.
use dmover_local::mounted::Mounted;
use dmover_model::{EntryError, ErrorClass, Operation, Side};

use crate::context::Engine;

/// Reports each directory whose mount is gone.
pub(super) fn tell_what_is_gone(mounted: &Mounted, engine: &Engine) {
    for path in mounted.gone() {
        let words = "its file system was unmounted while the job ran; the written data is not \
            at this path";
        let (side, class) = (Side::Destination, ErrorClass::Stale);
        engine.error(EntryError::plain(side, Operation::Check, class, path.clone(), words));
    }
}
