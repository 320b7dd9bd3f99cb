//! A file without a name, for measurements. Nothing of it is left, however this process ends.
use dmover_sys::{OwnedFd, cache, file, path};
use std::io;
use std::path::Path;

/// The file.
#[derive(Debug)]
pub struct ScratchFile {
    file: OwnedFd,
    length: u64,
}

impl ScratchFile {
    /// In this directory.
    ///
    /// # Errors
    /// It is no directory, this user may not write there, or its file system has no files without names (`O_TMPFILE`,
    /// open(2)).
    pub fn create(directory: &Path) -> io::Result<Self> {
        let directory = path::open_as_named(directory)?;
        Ok(Self { file: file::create_unnamed(&directory, 0o600)?, length: 0 })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// Those of pwrite(2).
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        file::write_all_at(&self.file, bytes, self.length)?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Flushes it, and drops it from the page cache.
    ///
    /// # Errors
    /// Those of fdatasync(2).
    pub fn flush(&self) -> io::Result<()> {
        file::sync_data(&self.file)?;
        cache::forget(&self.file, 0, self.length);
        Ok(())
    }

    /// Reads what is at an offset; zero: the end.
    ///
    /// # Errors
    /// Those of pread(2).
    pub fn read(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        Ok(file::read_at(&self.file, buffer, at)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_what_was_written_and_no_name() {
        let place = tempfile::tempdir().unwrap();
        let mut scratch = ScratchFile::create(place.path()).unwrap();
        scratch.append(b"some").unwrap();
        scratch.append(b" words").unwrap();
        scratch.flush().unwrap();
        let mut words = [0; 20];
        assert_eq!(scratch.read(&mut words, 0).unwrap(), 10);
        assert_eq!(&words[..10], b"some words");
        assert_eq!(scratch.read(&mut words, 10).unwrap(), 0);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        assert!(ScratchFile::create(&place.path().join("none")).is_err());
    }
}
