//! What a list of a directory has shown of its entries.
use dmover_model::{EntryKind, Metadata};
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use dmover_tree::Seen;
use dmover_wire::agent::DirectoryAt;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// The most entries of one directory that are kept.
const ENTRIES_MAX: usize = 64 << 10;

/// The looks of a list, each for one use.
#[derive(Debug, Default)]
pub(super) struct Looks {
    seen: Mutex<HashMap<Vec<u8>, Seen>>,
    /// The looks followed symbolic links.
    pub(super) follows: bool,
    was_listed: AtomicBool,
}

impl Looks {
    pub(super) fn new(follows: bool) -> Self {
        Self { follows, ..Self::default() }
    }

    /// Whether no list has brought looks along yet. The next one does not.
    pub(super) fn is_first_list(&self) -> bool {
        !self.was_listed.swap(true, Relaxed)
    }

    /// The list was not read to its end, so the next one brings looks along again.
    pub(super) fn list_has_ended_early(&self) {
        self.was_listed.store(false, Relaxed);
    }

    /// Keeps what a list has shown.
    pub(super) fn keep(&self, entries: impl Iterator<Item = (Vec<u8>, Seen)>) {
        let mut seen = lock(&self.seen);
        let room = ENTRIES_MAX.saturating_sub(seen.len());
        seen.extend(entries.take(room));
    }

    /// The names of which nothing is known for such a look.
    pub(super) fn unknown<'a>(&self, names: &[&'a [u8]], follows: bool) -> Vec<&'a [u8]> {
        let all = lock(&self.seen);
        let is_unknown =
            |name: &&&[u8]| all.get(**name).is_none_or(|(found, _)| !self.fits(found, follows));
        names.iter().filter(is_unknown).copied().collect()
    }

    /// Whether a look that a list has brought is one of this kind.
    fn fits(&self, metadata: &Metadata, follows: bool) -> bool {
        follows == self.follows || (!self.follows && metadata.kind != EntryKind::Symlink)
    }

    /// Takes what is known of an entry. `follows`: what a symbolic link leads to.
    pub(super) fn take(&self, name: &[u8], follows: bool) -> Option<Seen> {
        let mut all = lock(&self.seen);
        let (metadata, _) = all.get(name)?;
        if self.fits(metadata, follows) { all.remove(name) } else { None }
    }
}

/// What is known of directories that are open. Handles of one directory share it.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<HashMap<DirectoryAt, Weak<Looks>>>);

impl Known {
    /// What is known of a directory.
    pub(super) fn of(&self, at: &DirectoryAt, follows: bool) -> Arc<Looks> {
        let mut all = lock(&self.0);
        if let Some(looks) = all.get(at).and_then(Weak::upgrade) {
            return looks;
        }
        // The last handles of others are gone; what they leave here is removed once it is as much as the rest.
        if all.len() >= 2 * all.values().filter(|looks| looks.strong_count() > 0).count() + 64 {
            all.retain(|_, looks| looks.strong_count() > 0);
        }
        let looks = Arc::new(Looks::new(follows));
        all.insert(at.clone(), Arc::downgrade(&looks));
        looks
    }
}
