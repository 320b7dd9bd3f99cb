//! What a source has under names that are to be deleted at the destination.
use dmover_local::end::LocalEnd;
use dmover_local::root::Root;
use dmover_model::{DirectoryRef, EntryError, ErrorClass, ExtraNames, Metadata, Operation, Side};
use dmover_schedule::time::Instant;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::directory_pair::SourceDirectory;

/// How many names a source on another host is asked for at once.
pub(super) const ASKED_MAX: usize = 64;
/// How long its answers count. One that is asked for each name right before it is deleted is as old as a round trip.
const MOMENT: Duration = Duration::from_secs(1);

/// An answer, for each name that was asked for.
type Found = Result<Option<Metadata>, EntryError>;

/// A directory of the source that is read anew: what holds the names may be back, and then they are not extra any more.
pub(super) struct Presence {
    directory: DirectoryRef,
    source: SourceDirectory,
    /// What another host has answered, and when it was asked.
    found: HashMap<Vec<u8>, Found>,
    since: Instant,
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
        let source = end.open_source_anew(&root.source, &at.path, follows)?;
        if source.metadata.identity != at.source {
            let words = "another directory has replaced this one";
            let (side, class) = (Side::Source, ErrorClass::Changed);
            let path = root.source_path(&at.path, b"");
            return Err(EntryError::plain(side, Operation::Open, class, path, words));
        }
        Ok(Self { directory: at.clone(), source, found: HashMap::new(), since: Instant::now() })
    }

    /// Whether it is of use for other names. One of this host is opened again, which costs little.
    pub fn serves(&self, extra: &ExtraNames) -> bool {
        self.source.is_remote() && self.directory == extra.directory
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
        if self.since.elapsed() > MOMENT {
            self.found.clear();
        }
        if let Some(found) = self.found.get(name) {
            return found.clone();
        }
        let mut known = HashSet::new();
        let names: Vec<&[u8]> = next.filter(|name| known.insert(*name)).take(ASKED_MAX).collect();
        // Answers are as old as their request.
        (self.since, self.found) = (Instant::now(), HashMap::new());
        let found = end.all_present(&self.source, &names)?;
        self.found.extend(names.iter().map(|name| name.to_vec()).zip(found));
        match self.found.get(name) {
            Some(found) => found.clone(),
            None => end.present(&self.source, name),
        }
    }
}
