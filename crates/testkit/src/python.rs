//! The interpreter of the scripts in `python/`.

use std::path::Path;
use std::process::Command;

/// The system's interpreter rather than whatever slow wrapper is first in the path.
pub(crate) fn python() -> Command {
    let system = Path::new("/usr/bin/python3");
    Command::new(if system.exists() { system } else { Path::new("python3") })
}
