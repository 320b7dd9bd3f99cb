//! The names of a source directory, remembered while it is read to find names that only the destination has.
use std::cell::OnceCell;
use std::collections::HashSet;

use crate::directory::{SourceDirectory, fold};
use crate::error::CallFailed;
use crate::listing::NameBuffer;

/// The most bytes for names of one directory; beyond that the source is asked about each name.
const NAMES_BYTES_MAX: usize = 4 << 20;

/// Names that a source directory has.
#[derive(Debug, Default)]
pub struct SeenNames {
    names: HashSet<Box<[u8]>>,
    bytes: usize,
    too_many: bool,
    /// The names without case, computed on demand.
    folded: OnceCell<HashSet<String>>,
}

impl SeenNames {
    /// Adds a name.
    pub fn insert(&mut self, name: &[u8]) {
        self.bytes += name.len() + 40;
        if self.bytes > NAMES_BYTES_MAX {
            self.too_many = true;
            self.names = HashSet::new();
        }
        if !self.too_many {
            self.names.insert(name.into());
        }
    }

    /// Whether the source directory has this destination name. `folds`: in whatever case.
    ///
    /// # Errors
    /// The source directory had to be asked, and did not answer.
    pub fn has_alike(
        &self,
        source: &SourceDirectory,
        folds: bool,
        name: &[u8],
    ) -> Result<bool, CallFailed> {
        let has = self.has(source, name)?;
        if has || !folds {
            return Ok(has);
        }
        if self.folded.get().is_none() {
            let mut folded: HashSet<String> = self.names.iter().map(|name| fold(name)).collect();
            if self.too_many {
                source.listing()?.read(&mut NameBuffer::default(), |listed| {
                    folded.insert(fold(listed.bytes));
                    Ok(true)
                })?;
            }
            let _ = self.folded.set(folded);
        }
        Ok(self.folded.get().is_some_and(|folded| folded.contains(&fold(name))))
    }

    /// Whether the source need not be asked about any name.
    pub fn knows_all(&self) -> bool {
        !self.too_many
    }

    /// Whether the source directory has this name.
    ///
    /// # Errors
    /// The source directory had to be asked, and did not answer.
    pub fn has(&self, source: &SourceDirectory, name: &[u8]) -> Result<bool, CallFailed> {
        if self.too_many {
            return source.handle.has(name);
        }
        Ok(self.names.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_in_case_alone_are_alike() {
        for (one, other) in [("Foo", "foo"), ("straße", "STRASSE"), ("ÉTÉ", "été"), ("ſ", "s")]
        {
            assert_eq!(fold(one.as_bytes()), fold(other.as_bytes()), "{one}");
        }
        assert_ne!(fold(b"foo"), fold(b"foo "));
    }
}
