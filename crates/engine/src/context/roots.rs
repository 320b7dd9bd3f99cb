//! The roots of a job, by number.
use dmover_local::root::{Resolver, Root};
use dmover_local::root_side::RootNames;
use dmover_model::{
    EntryError, ErrorClass, Operation, PathBytes, Placement, RangeCopy, RootId, Side, TreePath,
};
use dmover_observe::lock;
use dmover_schedule::sync::{Mutex, RwLock};
use dmover_tree::TargetNames;
use std::sync::{Arc, PoisonError, Weak};

use super::Engine;

/// The table of roots. Those of the command line stay open; those of a batch list, which may be millions, are opened
/// when a task needs them.
#[derive(Debug, Default)]
pub(crate) struct RootTable(RwLock<Vec<Arc<Slot>>>);

#[derive(Debug)]
enum Slot {
    Open(Arc<Root>),
    Listed(Box<ListedRoot>),
}

/// A line of a batch list that has tasks of its own.
#[derive(Debug)]
struct ListedRoot {
    source: PathBytes,
    destination: PathBytes,
    range: Option<RangeCopy>,
    placement: Placement,
    names: Arc<RootNames>,
    open: Mutex<Weak<Root>>,
}

impl RootTable {
    /// The roots of the command line.
    pub fn new(roots: Vec<Root>) -> Self {
        let open = |root| Arc::new(Slot::Open(Arc::new(root)));
        Self(RwLock::new(roots.into_iter().map(open).collect()))
    }

    pub fn ids(&self) -> impl Iterator<Item = RootId> + use<> {
        let count = self.0.read().unwrap_or_else(PoisonError::into_inner).len() as u32;
        (0..count).map(RootId)
    }

    /// Those that stay open.
    pub fn open(&self) -> Vec<Arc<Root>> {
        let slots = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let open = |slot: &Arc<Slot>| match &**slot {
            Slot::Open(root) => Some(Arc::clone(root)),
            Slot::Listed(_) => None,
        };
        slots.iter().filter_map(open).collect()
    }

    fn slot(&self, id: RootId) -> Arc<Slot> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)[id.0 as usize])
    }
}

impl Engine {
    /// The root of a task, open while it is used.
    pub(crate) fn root(&self, id: RootId) -> Result<Arc<Root>, EntryError> {
        match &*self.places.roots.slot(id) {
            Slot::Open(root) => Ok(Arc::clone(root)),
            Slot::Listed(listed) => {
                let mut open = lock(&listed.open);
                if let Some(root) = open.upgrade() {
                    return Ok(root);
                }
                let resolver = self.list_resolver();
                let (source, destination) = (&listed.source, &listed.destination);
                let root = resolver
                    .pair_as(source, destination, listed.range.clone(), listed.placement)
                    .map_err(|e| unusable(source, &e))?;
                let root = Arc::new(root);
                *open = Arc::downgrade(&root);
                Ok(root)
            }
        }
    }

    /// The path of an entry of a root, without opening the root.
    pub(crate) fn destination_path(&self, id: RootId, at: &TreePath, name: &[u8]) -> PathBytes {
        match &*self.places.roots.slot(id) {
            Slot::Open(root) => root.destination_path(at, name),
            Slot::Listed(listed) => listed.names.path(at, name),
        }
    }

    /// Resolves one line of a batch list.
    pub(crate) fn resolve_pair(
        &self,
        source: &PathBytes,
        destination: &PathBytes,
        range: Option<RangeCopy>,
    ) -> Result<(Root, Placement), EntryError> {
        let pair = self.list_resolver().pair(source, destination, range);
        pair.map_err(|e| unusable(source, &e))
    }

    /// Gives a line of a batch list a number, for tasks of its own.
    pub(crate) fn add_listed(
        &self,
        source: PathBytes,
        destination: PathBytes,
        placement: Placement,
        root: &Arc<Root>,
    ) -> RootId {
        let listed = ListedRoot {
            source,
            destination,
            range: root.range.clone(),
            placement,
            names: Arc::clone(root.destination_names()),
            open: Mutex::new(Arc::downgrade(root)),
        };
        let mut roots = self.places.roots.0.write().unwrap_or_else(PoisonError::into_inner);
        roots.push(Arc::new(Slot::Listed(Box::new(listed))));
        RootId(roots.len() as u32 - 1)
    }

    fn list_resolver(&self) -> Resolver<'_> {
        Resolver {
            spec: &self.spec,
            mounts: &self.end.mounts,
            remembered: None,
            privileged: false,
            base: &self.places.base,
            bounds: &self.places.bounds.trees,
            remote: None,
        }
    }
}

fn unusable(source: &PathBytes, error: &dmover_model::Fatal) -> EntryError {
    let (side, class) = (Side::Source, ErrorClass::Other);
    EntryError::plain(side, Operation::Attempt, class, source.clone(), error.to_string())
}

impl TargetNames for Engine {
    /// Whether a root of the command line has this name at the destination, in any directory.
    fn has(&self, name: &[u8]) -> bool {
        let roots = self.places.roots.0.read().unwrap_or_else(PoisonError::into_inner);
        roots.iter().any(|slot| match &**slot {
            Slot::Open(root) => {
                let target = root.destination.as_ref().and_then(|side| side.name.as_ref());
                target.is_some_and(|target| target.as_bytes() == name)
            }
            Slot::Listed(_) => false,
        })
    }
}
