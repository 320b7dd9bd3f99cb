//! What a source has under names that are to be deleted at the destination.
use dmover_host::boot_clock_ms;
use dmover_local::end::LocalEnd;
use dmover_local::root::Root;
use dmover_model::{DirectoryRef, EntryError, ErrorClass, ExtraNames, Metadata, Operation, Side};
use std::collections::{HashMap, HashSet};

use crate::directory_pair::SourceDirectory;

/// How many names a source on another host is asked for at once.
pub(super) const ASKED_MAX: usize = 64;
/// How many names are looked through for these: most of them may be below one name.
const LOOKED_THROUGH_MAX: usize = 16 * ASKED_MAX;
/// How long an opened directory and its answers count.
const MOMENT_MS: u64 = 1000;
/// The same for an answer that was waited for: a round trip may take longer than a moment, but not as long as an outage.
const WAITED_MS: u64 = 10_000;

/// An answer, for each name that was asked for.
pub(super) type Found = Result<Option<Metadata>, EntryError>;

/// A directory of the source, opened again by its path: another one may be there by now, and names may be back, which are not extra
/// any more.
pub(super) struct Presence {
    directory: DirectoryRef,
    source: SourceDirectory,
    /// When it was opened, by a clock that goes on while the host is suspended.
    opened_ms: u64,
    /// What another host has answered since then.
    found: HashMap<Vec<u8>, Found>,
}

impl Presence {
    /// Opens the directory that both sides have.
    ///
    /// # Errors
    /// It cannot be opened, or is another one by now.
    pub fn of(
        end: &LocalEnd,
        root: &Root,
        extra: &ExtraNames,
        follows: bool,
    ) -> Result<Self, EntryError> {
        let at = &extra.directory;
        let opened_ms = boot_clock_ms();
        let source = end.open_source_anew(&root.source, &at.path, follows)?;
        if source.metadata.identity != at.source {
            let words = "another directory has replaced this one";
            let (side, class) = (Side::Source, ErrorClass::Changed);
            let path = root.source_path(&at.path, b"");
            return Err(EntryError::plain(side, Operation::Open, class, path, words));
        }
        Ok(Self { directory: at.clone(), source, opened_ms, found: HashMap::new() })
    }

    /// Whether it has to be opened again.
    pub fn is_old(&self) -> bool {
        self.age_ms() > MOMENT_MS
    }

    /// Whether an answer that has just come is of no use any more.
    pub fn is_outdated(&self) -> bool {
        self.age_ms() > WAITED_MS
    }

    fn age_ms(&self) -> u64 {
        boot_clock_ms().saturating_sub(self.opened_ms)
    }

    /// Whether it is of use for other names. One of this host is opened again, which costs little.
    pub fn serves(&self, extra: &ExtraNames) -> bool {
        self.source.is_remote() && self.directory == extra.directory && !self.is_old()
    }

    /// What the source has under a name. `next`: this name, and those that will be asked for after it.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn find<'n>(
        &mut self,
        end: &LocalEnd,
        name: &[u8],
        next: impl Iterator<Item = &'n [u8]>,
    ) -> Found {
        if !self.source.is_remote() {
            return end.present(&self.source, name);
        }
        if let Some(found) = self.found.get(name) {
            return found.clone();
        }
        let mut known = HashSet::new();
        let next = next.take(LOOKED_THROUGH_MAX).filter(|name| known.insert(*name));
        let names: Vec<&[u8]> = next.take(ASKED_MAX).collect();
        let found = end.all_present(&self.source, &names)?;
        self.found.extend(names.iter().map(|name| name.to_vec()).zip(found));
        match self.found.get(name) {
            Some(found) => found.clone(),
            None => end.present(&self.source, name),
        }
    }
}
