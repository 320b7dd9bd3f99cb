//! Writes of several parts at a time.
use std::io::{self, IoSlice, Write};

/// Writes all parts, one after the other, without a copy.
///
/// # Errors
/// Those of the stream.
pub(crate) fn write_all(
    output: &mut (impl Write + ?Sized),
    mut parts: &mut [IoSlice<'_>],
) -> io::Result<()> {
    // Empty parts at the beginning would look like the end of the stream.
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match output.write_vectored(parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut parts, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
