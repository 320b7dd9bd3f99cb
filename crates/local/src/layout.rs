//! The point at which the layout of a file is chosen: after its creation and before its first byte.
use dmover_model::Metadata;
use dmover_sys::{BorrowedFd, Errno};

/// Chooses how the bytes of a new file are placed on storage targets (Lustre stripes, pools, tiers).
pub trait LayoutHook: Send + Sync {
    /// Called with the new, empty file and the metadata of its source.
    ///
    /// # Errors
    /// The file system refused the layout; the entry fails.
    fn place(&self, file: BorrowedFd<'_>, source: &Metadata) -> Result<(), Errno>;
}

/// Uses the default of the destination directory.
#[derive(Debug, Default)]
pub struct DefaultLayout;

impl LayoutHook for DefaultLayout {
    fn place(&self, _file: BorrowedFd<'_>, _source: &Metadata) -> Result<(), Errno> {
        Ok(())
    }
}
