//! Owners of a source by their names at its host, and at this one.
use dmover_host::user::Accounts;
use dmover_local::source_root::SourceRoot;
use dmover_model::{AccountKey, CopyPolicy, Event, Fatal, NameRule, Note};
use dmover_observe::{Counter, Counters, Monitor, lock};
use dmover_plan::idmap::OwnersByName;
use dmover_schedule::sync::Mutex;
use dmover_tree::{Owner, RemoteTree};
use std::collections::HashMap;
use std::sync::Arc;

use crate::context::Receivers;

/// What an owner becomes whose name cannot be asked for: no file can be given to it (`set::owner`), so that its entry fails.
const UNKNOWN: u32 = u32::MAX;

/// So many accounts that DEST does not have are named.
const NAMED_MAX: usize = 20;

/// Which account owners become.
#[derive(Default)]
struct Targets {
    /// With the place of the rule: the first one for an account counts.
    by_id: HashMap<u32, (usize, u32)>,
    by_name: HashMap<String, (usize, u32)>,
    others: Option<u32>,
}

impl Targets {
    /// Looks for the accounts of rules on this host.
    fn of(rules: &[NameRule], accounts: Accounts) -> Result<Self, Fatal> {
        let (mut targets, mut missing) = (Self::default(), Vec::new());
        for (place, NameRule { from, to }) in rules.iter().enumerate() {
            let to = match to {
                AccountKey::Id(id) => *id,
                AccountKey::Name(name) => match number_here(accounts, name)? {
                    Some(number) => number,
                    None => {
                        missing.push(name.as_str());
                        continue;
                    }
                },
                AccountKey::Others => continue,
            };
            match from {
                AccountKey::Id(id) => _ = targets.by_id.entry(*id).or_insert((place, to)),
                AccountKey::Name(name) => {
                    targets.by_name.entry(name.clone()).or_insert((place, to));
                }
                AccountKey::Others => _ = targets.others.get_or_insert(to),
            }
        }
        if missing.is_empty() { Ok(targets) } else { Err(without_account(accounts, &missing)) }
    }
}

/// The number of an account at DEST that a rule names; `None`: there is none.
fn number_here(accounts: Accounts, name: &str) -> Result<Option<u32>, Fatal> {
    accounts.number(name).map_err(|error| {
        let (option, kind) = words_of(accounts);
        let message = format!("{option}: cannot look for the {kind} '{name}' at DEST: {error}");
        Fatal::refused(message, "check 'getent passwd' and 'getent group' on the host of DEST")
    })
}

/// The error for accounts that rules name and DEST does not have: a table may have many.
fn without_account(accounts: Accounts, names: &[&str]) -> Fatal {
    let (option, kind) = words_of(accounts);
    let shown: Vec<_> = names.iter().take(NAMED_MAX).map(|name| format!("'{name}'")).collect();
    let more = match names.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let plural = if names.len() > 1 { "s" } else { "" };
    let list = shown.join(", ");
    let message = format!("{option}: the host of DEST has no {kind}{plural} {list}{more}");
    Fatal::refused(message, "correct the rules, or create the accounts")
}

/// The option for accounts, and what one of them is called.
fn words_of(accounts: Accounts) -> (&'static str, &'static str) {
    match accounts {
        Accounts::Users => ("--usermap", "user"),
        Accounts::Groups => ("--groupmap", "group"),
    }
}

/// Asks for each owner once.
pub(crate) struct NamedOwners {
    /// The source on another host; `None`: it is of this one.
    tree: Option<Arc<dyn RemoteTree>>,
    /// An owner without a rule becomes the account of the same name.
    takes_equal: bool,
    users: Targets,
    groups: Targets,
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
    /// Those of a job. `None`: numbers stay, or are mapped by numbers alone. (With equal names on one host nothing changes.)
    ///
    /// # Errors
    /// The sources are on several hosts, the host of the source does not tell names, or a rule names an account that this host does
    /// not have.
    pub fn of<'a>(
        policy: &CopyPolicy,
        sources: impl IntoIterator<Item = &'a SourceRoot>,
        receivers: &Receivers,
    ) -> Result<Option<Self>, Fatal> {
        let trees: Vec<_> = sources.into_iter().map(SourceRoot::remote).collect();
        let takes_equal = policy.owners_by_name && trees.iter().any(Option::is_some);
        if !takes_equal && policy.names.is_empty() {
            return Ok(None);
        }
        if trees.len() > 1 && trees.iter().any(Option::is_some) {
            let message = "a job that maps owners by name takes one SOURCE, whose host is asked for the names";
            return Err(Fatal::refused(message, "run dmover once for each SOURCE"));
        }
        let tree = trees.into_iter().next().flatten();
        let asked = tree.map(|tree| (tree, tree.owner_name(Owner::User(0))));
        if let Some((tree, Err(error))) = asked {
            let shown = tree.display().to_path();
            let message =
                format!("cannot ask for names of owners at '{}': {error}", shown.display());
            return Err(Fatal::refused(message, "use one version of dmover on both hosts"));
        }
        let Receivers { counters, monitor, .. } = receivers;
        Ok(Some(Self {
            tree: tree.cloned(),
            takes_equal,
            users: Targets::of(&policy.names.users, Accounts::Users)?,
            groups: Targets::of(&policy.names.groups, Accounts::Groups)?,
            known: Mutex::default(),
            counters: Arc::clone(counters),
            monitor: Arc::clone(monitor),
        }))
    }

    /// The name of an owner at the host of the source.
    fn name(&self, owner: Owner) -> Result<Option<String>, String> {
        if let Some(tree) = &self.tree {
            return tree.owner_name(owner).map_err(|error| error.to_string());
        }
        let name = match owner {
            Owner::User(id) => Accounts::Users.name(id),
            Owner::Group(id) => Accounts::Groups.name(id),
        };
        name.map_err(|error| error.to_string())
    }

    fn number(&self, owner: Owner) -> Option<u32> {
        if let Some(known) = lock(&self.known).get(&owner) {
            return *known;
        }
        let (targets, accounts, id) = match owner {
            Owner::User(id) => (&self.users, Accounts::Users, id),
            Owner::Group(id) => (&self.groups, Accounts::Groups, id),
        };
        let of_id = targets.by_id.get(&id);
        if targets.by_name.is_empty() && (of_id.is_some() || !self.takes_equal) {
            return of_id.map(|(_, to)| *to).or(targets.others);
        }
        let name = match self.name(owner) {
            Ok(name) => name,
            Err(error) => {
                tracing::warn!(?owner, error, "cannot ask for the name of an owner");
                return Some(UNKNOWN);
            }
        };
        let of_name = name.as_ref().and_then(|name| targets.by_name.get(name));
        if let Some((_, to)) = of_id.into_iter().chain(of_name).min_by_key(|(place, _)| *place) {
            lock(&self.known).insert(owner, Some(*to));
            return Some(*to);
        }
        let equal = name.as_deref().filter(|_| self.takes_equal);
        let number = match equal.map_or(Ok(None), |name| accounts.number(name)) {
            Ok(number) => number,
            Err(error) => {
                tracing::warn!(?owner, %error, "cannot look for the account of an owner");
                return Some(UNKNOWN);
            }
        };
        let is_new = lock(&self.known).insert(owner, number.or(targets.others)).is_none();
        if is_new && number.is_none() && self.takes_equal {
            self.tell_without_account(owner, name.as_deref());
        }
        number.or(targets.others)
    }

    fn tell_without_account(&self, owner: Owner, name: Option<&str>) {
        let Some(tree) = &self.tree else { return };
        let of = match owner {
            Owner::User(id) => format!("user {id}"),
            Owner::Group(id) => format!("group {id}"),
        };
        let detail = name.map_or_else(
            || format!("{of} has no name at SOURCE"),
            |name| format!("{of} is '{name}' at SOURCE, and DEST has no account of that name"),
        );
        self.counters.add(Counter::OwnersWithoutAccount, 1);
        let (path, note) = (tree.display().clone(), Note::OwnerWithoutAccount);
        self.monitor.event(&Event::Note { path, note, detail: Some(detail) });
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
