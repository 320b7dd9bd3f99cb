//! Entries that the pass must check more closely than the others.
use dmover_model::{RecheckSet, TreePath};
use dmover_observe::lock;
use dmover_schedule::sync::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

/// The doubts of a job, which grow until its tree begins.
#[derive(Debug, Default)]
pub(crate) struct Doubtful {
    /// There are doubts. Most jobs have none, and every file is asked about.
    any: AtomicBool,
    doubts: RwLock<RecheckSet>,
    /// Doubtful entries that the pass has checked.
    settled: Mutex<Vec<TreePath>>,
}

impl Doubtful {
    pub fn new(doubts: RecheckSet) -> Self {
        let this = Self::default();
        this.add(doubts);
        this
    }

    pub fn add(&self, more: RecheckSet) {
        let mut doubts = self.doubts.write().unwrap_or_else(PoisonError::into_inner);
        doubts.content.extend(more.content);
        doubts.renamed.extend(more.renamed);
        let any = !(doubts.content.is_empty() && doubts.renamed.is_empty());
        self.any.store(any, Ordering::SeqCst);
    }

    /// All doubts.
    pub fn all(&self) -> RecheckSet {
        self.doubts.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn ask(&self, question: impl FnOnce(&RecheckSet) -> bool) -> bool {
        self.any.load(Ordering::Relaxed)
            && question(&self.doubts.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn has(&self, directory: &TreePath, name: &[u8]) -> bool {
        self.ask(|doubts| {
            let mut place = Some(directory.join(name));
            while let Some(path) = place {
                if doubts.content.contains(&path) {
                    return true;
                }
                place = path.split_last().map(|(above, _)| above);
            }
            false
        })
    }

    /// Whether a doubtful entry is checked now. The entries of a directory are not checked with it.
    pub fn settles(&self, is_directory: bool, path: impl FnOnce() -> TreePath) -> Option<TreePath> {
        let path = self.any.load(Ordering::Relaxed).then(path)?;
        let known = self.ask(|doubts| {
            let content = doubts.content.contains(&path);
            if is_directory {
                !content && doubts.renamed.contains(&path)
            } else {
                content || doubts.renamed.contains(&path)
            }
        });
        known.then_some(path)
    }

    /// Records that a doubtful entry was checked.
    pub fn settled(&self, path: TreePath) {
        lock(&self.settled).push(path);
    }

    /// Doubtful entries that were checked.
    pub fn take_settled(&self) -> Vec<TreePath> {
        std::mem::take(&mut lock(&self.settled))
    }

    /// Adds the new paths of doubtful entries that were renamed, and returns them.
    pub fn carry(&self, moves: &[(&TreePath, &TreePath)]) -> Vec<TreePath> {
        if !self.any.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut doubts = self.doubts.write().unwrap_or_else(PoisonError::into_inner);
        let carried = |known: &BTreeSet<TreePath>| -> Vec<TreePath> {
            let moved = |(from, to)| moved_with(known, from, to);
            moves.iter().copied().flat_map(moved).collect()
        };
        let (content, others) = (carried(&doubts.content), carried(&doubts.renamed));
        doubts.content.extend(content.iter().cloned());
        doubts.renamed.extend(others);
        content
    }
}

/// The new paths of those paths that were renamed, or are below a renamed directory.
fn moved_with<'a>(
    known: &'a BTreeSet<TreePath>,
    from: &'a TreePath,
    to: &'a TreePath,
) -> impl Iterator<Item = TreePath> + 'a {
    // They are neighbours, among others that only begin alike.
    let alike = known.range(from..).take_while(|p| p.as_bytes().starts_with(from.as_bytes()));
    alike.filter_map(move |path| {
        let rest = path.as_bytes().strip_prefix(from.as_bytes())?;
        let below = rest.is_empty() || rest.starts_with(b"/");
        below.then(|| TreePath::new([to.as_bytes(), rest].concat()).ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubts_go_with_what_is_renamed_and_with_nothing_that_begins_alike() {
        let path = |text: &str| TreePath::new(text).unwrap();
        let known = ["a", "a-b", "a.b/c", "a/b", "a/b/c", "ab", "b/a/b"].map(path);
        let doubts = RecheckSet { content: BTreeSet::from(known), ..RecheckSet::default() };
        let doubtful = Doubtful::new(doubts);
        let (from, to) = (path("a"), path("x/y"));
        let carried = doubtful.carry(&[(&from, &to)]);
        assert_eq!(carried, ["x/y", "x/y/b", "x/y/b/c"].map(path));
        assert!(doubtful.has(&path("x/y/b/c"), b"deeper"), "also below it");
    }
}
