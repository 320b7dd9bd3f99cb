//! Owners of a source on another host, by their names there and here.
use dmover_host::user::Accounts;
use dmover_local::source_root::SourceRoot;
use dmover_model::{EntryError, Event, Fatal, Note};
use dmover_observe::{Counter, Counters, Monitor, lock};
use dmover_plan::idmap::OwnersByName;
use dmover_schedule::sync::Mutex;
use dmover_tree::{Owner, RemoteTree};
use std::collections::HashMap;
use std::sync::Arc;

use crate::context::Receivers;

/// What an owner becomes whose name cannot be asked for: no file can be given to it (`set::owner`), so that its entry fails.
const UNKNOWN: u32 = u32::MAX;

/// Asks for each owner once.
pub(crate) struct NamedOwners {
    tree: Arc<dyn RemoteTree>,
    known: Mutex<HashMap<Owner, Option<u32>>>,
    counters: Arc<Counters>,
    monitor: Arc<dyn Monitor>,
}

impl std::fmt::Debug for NamedOwners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NamedOwners").field("tree", &self.tree).finish_non_exhaustive()
    }
}

impl NamedOwners {
    /// Those of a job. `None`: its sources are of this host, so that owners have the same names on both sides.
    ///
    /// # Errors
    /// The sources are on several hosts, or the host of the source does not tell names.
    pub fn of<'a>(
        sources: impl IntoIterator<Item = &'a SourceRoot>,
        receivers: &Receivers,
    ) -> Result<Option<Self>, Fatal> {
        let mut trees = sources.into_iter().map(SourceRoot::remote);
        let Some(Some(tree)) = trees.next() else { return Ok(None) };
        if trees.next().is_some() {
            let message = "--owners-by-name takes one SOURCE, whose host is asked for the names";
            return Err(Fatal::refused(message, "run dmover once for each SOURCE"));
        }
        let unable = |error: EntryError| {
            let shown = tree.display().to_path();
            let message =
                format!("cannot ask for names of owners at '{}': {error}", shown.display());
            Fatal::refused(message, "use one version of dmover on both hosts")
        };
        tree.owner_name(Owner::User(0)).map_err(unable)?;
        let Receivers { counters, monitor, .. } = receivers;
        Ok(Some(Self {
            tree: Arc::clone(tree),
            known: Mutex::default(),
            counters: Arc::clone(counters),
            monitor: Arc::clone(monitor),
        }))
    }

    fn number(&self, owner: Owner) -> Option<u32> {
        if let Some(known) = lock(&self.known).get(&owner) {
            return *known;
        }
        let name = match self.tree.owner_name(owner) {
            Ok(name) => name,
            Err(error) => {
                tracing::warn!(?owner, %error, "cannot ask for the name of an owner");
                return Some(UNKNOWN);
            }
        };
        let accounts = match owner {
            Owner::User(_) => Accounts::Users,
            Owner::Group(_) => Accounts::Groups,
        };
        let number = match name.as_deref().map_or(Ok(None), |name| accounts.number(name)) {
            Ok(number) => number,
            Err(error) => {
                tracing::warn!(?owner, %error, "cannot look for the account of an owner");
                return Some(UNKNOWN);
            }
        };
        if lock(&self.known).insert(owner, number).is_none() && number.is_none() {
            let of = match owner {
                Owner::User(id) => format!("user {id}"),
                Owner::Group(id) => format!("group {id}"),
            };
            let detail = name.map_or_else(
                || format!("{of} has no name at SOURCE"),
                |name| format!("{of} is '{name}' at SOURCE, and DEST has no account of that name"),
            );
            self.counters.add(Counter::OwnersWithoutAccount, 1);
            let (path, note) = (self.tree.display().clone(), Note::OwnerWithoutAccount);
            self.monitor.event(&Event::Note { path, note, detail: Some(detail) });
        }
        number
    }
}

impl OwnersByName for NamedOwners {
    fn user(&self, id: u32) -> Option<u32> {
        self.number(Owner::User(id))
    }

    fn group(&self, id: u32) -> Option<u32> {
        self.number(Owner::Group(id))
    }
}
