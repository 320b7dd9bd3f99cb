//! The phases of a job.
use super::{Command, LinkSupply};

/// The phase of a job. The phases follow each other in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Renames at the source since the last pass are repeated at the destination.
    Renames,
    /// The tree is scanned and its entries are copied, compared or hashed.
    Tree,
    /// The additional names of files with several hard links are created.
    Links,
    /// Names that only the destination has are deleted.
    Extra,
    /// Completed directories get their times.
    Dirty,
    /// The catalog is updated with the state of both sides.
    Catalog,
    /// Every task has ended.
    Finished,
}

/// The present phase, and what is left to do in it and in the next ones.
#[derive(Debug)]
pub(super) struct Phases {
    /// The present phase.
    present: Phase,
    /// The job has a catalog.
    surveys: bool,
    /// The next link groups continue a group that is still in progress.
    serial: bool,
    /// The ledger has no more link groups.
    links_exhausted: bool,
    /// The ledger has no more names to delete.
    extra_exhausted: bool,
}

impl Phases {
    /// A job without a catalog, which begins with the tree.
    pub fn new() -> Self {
        let (serial, links_exhausted, extra_exhausted) = (false, false, false);
        Self { present: Phase::Tree, surveys: false, serial, links_exhausted, extra_exhausted }
    }

    /// A job with a catalog, which begins with the renames.
    pub fn surveying() -> Self {
        Self { present: Phase::Renames, surveys: true, ..Self::new() }
    }

    /// The present phase.
    pub fn present(&self) -> Phase {
        self.present
    }

    /// The tree is next.
    pub fn begin_tree(&mut self) {
        self.present = Phase::Tree;
    }

    /// Nothing is left to do.
    pub fn finish(&mut self) {
        self.present = Phase::Finished;
    }

    /// A mover has reported names of files with several hard links.
    pub fn add_links(&mut self) {
        // Also when the link phase has seen all names already: these are new.
        self.links_exhausted = false;
        if matches!(self.present, Phase::Extra | Phase::Dirty) {
            self.present = Phase::Links;
        }
    }

    /// The ledger has supplied link groups.
    pub fn supply_links(&mut self, supply: &LinkSupply) {
        self.serial = supply.continues;
        self.links_exhausted = supply.exhausted;
    }

    /// Whether the ledger has any more names to delete.
    pub fn set_extra(&mut self, has_more: bool) {
        self.extra_exhausted = !has_more;
    }

    /// All directories are finished.
    pub fn end_directories(&mut self) {
        self.present = if self.surveys { Phase::Catalog } else { Phase::Finished };
    }

    /// The present survey is complete. Returns whether the tree is next.
    pub fn end_survey(&mut self) -> bool {
        match self.present {
            Phase::Renames => self.present = Phase::Tree,
            Phase::Catalog => self.present = Phase::Finished,
            _ => return false,
        }
        self.present == Phase::Tree
    }

    /// The request for the next work of the present phase; if it has none left, of the one that follows. `is_idle`: no
    /// task is issued or shelved; `has_room`: more tasks may be issued.
    pub fn request(&mut self, is_idle: bool, has_room: bool) -> Option<Command> {
        loop {
            match self.present {
                Phase::Tree if is_idle => self.present = Phase::Links,
                Phase::Links if self.links_exhausted && is_idle => self.present = Phase::Extra,
                Phase::Extra if self.extra_exhausted && is_idle => self.present = Phase::Dirty,
                // Deeper names are deleted before the directories that contain them.
                Phase::Extra if is_idle => return Some(Command::FetchExtra),
                Phase::Links if !self.links_exhausted && has_room && (!self.serial || is_idle) => {
                    return Some(Command::FetchLinks);
                }
                Phase::Renames | Phase::Catalog if is_idle => return Some(Command::FetchSurvey),
                // One batch at a time keeps the order from the deepest directory up.
                Phase::Dirty if is_idle => return Some(Command::FetchDirty),
                _ => return None,
            }
        }
    }
}
