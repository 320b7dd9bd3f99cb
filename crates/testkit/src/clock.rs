//! Programs whose clock is wrong: libfaketime changes the time of day that the C library tells them.
//!
//! Only programs that are linked dynamically are deceived. Clocks that measure (`CLOCK_MONOTONIC`) and times of files
//! stay as they are.

use std::ffi::OsString;
use std::path::PathBuf;

/// Debian's place; the name of the architecture is between.
const PLACE: (&str, &str) = ("/usr/lib", "faketime/libfaketimeMT.so.1");

/// A clock that is wrong by some seconds.
#[derive(Clone, Debug)]
pub struct WrongClock {
    library: PathBuf,
    time: String,
}

impl WrongClock {
    /// One that is ahead of the right one; negative: behind it.
    ///
    /// # Errors
    /// Why there is none on this machine.
    pub fn new(ahead_s: i64) -> Result<Self, String> {
        Self::showing(format!("{ahead_s:+}s"))
    }

    /// One that is right when a program starts, and runs so many times too fast.
    ///
    /// # Errors
    /// Why there is none on this machine.
    pub fn racing(times: u32) -> Result<Self, String> {
        Self::showing(format!("+0 x{times}"))
    }

    fn showing(time: String) -> Result<Self, String> {
        let (above, below) = PLACE;
        let entries = std::fs::read_dir(above).map_err(|error| format!("{above}: {error}"))?;
        let found = entries.flatten().map(|entry| entry.path().join(below)).find(|at| at.exists());
        let library = found.ok_or_else(|| format!("no {above}/*/{below} here"))?;
        Ok(Self { library, time })
    }

    /// What goes in front of a program and its arguments. The process becomes the program.
    pub fn words(&self) -> Vec<OsString> {
        let mut preload = OsString::from("LD_PRELOAD=");
        preload.push(&self.library);
        let time = format!("FAKETIME={}", self.time);
        let mut words: Vec<OsString> = vec!["env".into(), preload, time.into()];
        words.extend(["FAKETIME_DONT_FAKE_MONOTONIC=1".into(), "NO_FAKE_STAT=1".into()]);
        words
    }
}

/// Removes what the library leaves in shared memory when its process is killed.
pub fn clear_after(pid: u32) {
    for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
        // Most end well, and nothing is there.
        let _ = std::fs::remove_file(PathBuf::from("/dev/shm").join(name));
    }
}
