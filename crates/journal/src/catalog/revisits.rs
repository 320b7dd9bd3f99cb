//! Which directories of the catalog are checked with one step.
use dmover_model::Revisit;
use std::collections::HashSet;

use super::{Boxed, Catalog};

/// About so many directories are asked about at once, before the answers for those above them have come.
const AHEAD: usize = 4096;

/// The directories that movers check.
#[derive(Debug, Default)]
pub(super) struct Revisits {
    /// An answer takes a round trip, so directories are not checked level by level.
    pub asks_ahead: bool,
    /// Directories of which nothing below has been asked about.
    last: HashSet<u64>,
}

impl Revisits {
    /// Adds what the catalog has below directories, as far as one step goes: all of it is at these paths unless a directory above
    /// has another name now. Such paths lead nowhere, and what is there is found in the place that it has now.
    pub fn with_those_below(
        &mut self,
        catalog: &mut Catalog,
        mut all: Vec<Revisit>,
    ) -> Boxed<Vec<Revisit>> {
        let mut at = 0;
        while self.asks_ahead && at < all.len() && all.len() < AHEAD {
            let above = all[at].clone();
            all.extend(below(catalog, &above)?);
            self.last.remove(&above.inode);
            at += 1;
        }
        self.last.extend(all[at..].iter().map(|revisit| revisit.inode));
        Ok(all)
    }

    /// Whether what is below a directory must be asked about, now that its answer has come.
    pub fn is_last(&mut self, inode: u64) -> bool {
        self.last.remove(&inode)
    }
}

/// What the catalog has in a directory that was not changed.
pub(super) fn below(catalog: &mut Catalog, above: &Revisit) -> Boxed<Vec<Revisit>> {
    let children = catalog.children(above.inode)?.into_iter();
    let revisit = |child: super::KnownDirectory| Revisit {
        path: above.path.join(&child.name),
        inode: child.inode,
        known: child.state,
    };
    Ok(children.map(revisit).collect())
}
