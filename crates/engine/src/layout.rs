//! The place where a file's layout is chosen: after it was created and before its first byte.
use dmover_model::Metadata;
use dmover_sys::{BorrowedFd, Errno};

/// Chooses how the bytes of a new file will lie on storage targets (Lustre stripes, pools, tiers).
pub trait LayoutHook: Send + Sync {
    /// Called with the new, empty file and what is known of its source.
    ///
    /// # Errors
    /// The file system refused the layout; the entry fails with it.
    fn place(&self, file: BorrowedFd<'_>, source: &Metadata) -> Result<(), Errno>;
}

/// Leaves the choice to the destination directory's default.
#[derive(Debug, Default)]
pub struct DefaultLayout;

impl LayoutHook for DefaultLayout {
    fn place(&self, _file: BorrowedFd<'_>, _source: &Metadata) -> Result<(), Errno> {
        Ok(())
    }
}
