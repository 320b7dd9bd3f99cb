//! Opens files that a file server may have leased.
use dmover_sys::{AsFd, Errno, OwnedFd, path};

use crate::context::Engine;
use dmover_local::patient_open::past_leases;

impl Engine {
    /// Opens a file for reading, and waits for leases on it unless the job is stopped.
    pub(crate) fn open_to_read(
        &self,
        directory: impl AsFd,
        name: &[u8],
        follows: bool,
    ) -> Result<OwnedFd, Errno> {
        let open = || path::open_file_at(&directory, name, follows);
        past_leases(open, &|| self.control.is_stopping())
    }
}
