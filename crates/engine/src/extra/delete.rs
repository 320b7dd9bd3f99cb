//! Deletes entries that the source does not have.
//!
//! Names are found while directories are read, with their state at that time. Each name is checked again right before
//! it is deleted: the source must still lack it ([`presence`]), and it must still be the same entry.
use dmover_local::error::{cancelled, is_absent};
use dmover_local::listing::ListedKind;
use dmover_local::root::Root;
use dmover_local::seen_names::SeenNames;
use dmover_local::trash::{Gone, is_trash_of_both};
use dmover_model::{
    Action, DeleteWhen, DirectoryRef, EntryError, EntryKind, ErrorClass, Event, ExtraName,
    ExtraNames, Identity, Item, Metadata, Name, NewTask, OnTheWay, Operation, Parent, PathBytes,
    ScanNames, Side, TaskKind, TreePath, WithheldReason,
};
use dmover_observe::Counter;
use dmover_plan::itemize;
use dmover_plan::temporary::is_temporary;
use std::sync::Arc;

use crate::context::Engine;
use crate::directory_pair::{self, DirectoryPair, TargetDirectory};
use crate::extra::presence::{self, Presence};
use crate::extra::{self, ExtraEntry};
use crate::mover::Mover;
use crate::planned::Planned;
use crate::queue::Class;

const LINKED: &str = "directories replaced some hard links of a file";
/// How many names are reported or deleted at once.
const NAMES_MAX: usize = 512;
/// How often a name is looked at whose answers come too late.
const LOOKS_MAX: u32 = 3;

/// Removes directories with entries that stay from a list; the reason was reported when they were found.
pub(crate) fn leave_out_held(engine: &Engine, extra: &mut ExtraNames) {
    if !engine.pass.holds_any() {
        return;
    }
    let at = &extra.directory;
    let place = at.path.join_path(&extra.below);
    extra.names.retain(|name| {
        let path = engine.destination_path(at.root, &place, name.name.as_bytes());
        name.kind != EntryKind::Directory || !engine.pass.is_held(&path)
    });
}

/// Whether extra names are searched for while entries are copied.
pub(crate) fn deletes_as_it_goes(engine: &Engine) -> bool {
    match engine.spec.delete_policy().map(|delete| delete.when) {
        Some(DeleteWhen::During) => true,
        // An earlier run has seen what this one does not see any more.
        Some(DeleteWhen::Delay) => !engine.facts.is_resumed,
        Some(DeleteWhen::After) | None => false,
    }
}

/// Records or deletes names that only the destination directory has.
pub(crate) fn collect_extra(mover: &mut Mover<'_>, level: &DirectoryPair, seen: &SeenNames) {
    if is_in_trash(mover.engine, level) {
        return;
    }
    let (mut tops, mut found) = (Vec::new(), Vec::new());
    let folds = level.target.as_ref().is_some_and(|target| target.folds_case);
    let known = |name: &[u8]| seen.has_alike(&level.source, folds, name);
    let delays = deletes_when(mover.engine) != Some(DeleteWhen::During);
    let walked = extra::walk_extra(mover, level, &known, &mut |mover, extra| {
        // The names of one top are passed on together, so that no directory is deleted before its contents.
        let is_top = extra.at.is_root();
        if delays || !level.source.is_remote() {
            hand_over(mover, &mut found, is_top);
        } else if is_top {
            // A source on another host is asked about many at once.
            tops.push(std::mem::take(&mut found));
            if count(tops.iter().flatten()) >= presence::ASKED_MAX {
                delete_now(mover, std::mem::take(&mut tops));
            }
        }
        note_extra(mover.engine, level, &extra, &mut found, false)
    });
    if !tops.is_empty() {
        tops.push(std::mem::take(&mut found));
        delete_now(mover, tops);
    }
    hand_over(mover, &mut found, true);
    if let Err(error) = walked {
        mover.engine.error(error);
    }
}

/// Whether a directory is in a trash, although the source has one of that name as well.
fn is_in_trash(engine: &Engine, level: &DirectoryPair) -> bool {
    let target = level.target.as_ref();
    !engine.spec.clears_all()
        && target.is_some_and(|target| is_trash_of_both(target, &level.source))
}

/// Removes a directory before an entry of another type replaces it. Returns whether it will be deleted.
pub(crate) fn clear(mover: &mut Mover<'_>, level: &DirectoryPair, planned: &Planned) -> bool {
    let Some(found) = &planned.existing else { return false };
    let metadata = &planned.record.metadata;
    let goes = clear_name(mover, level, planned.record.destination_name(), found);
    if goes && metadata.kind != EntryKind::Directory && metadata.links > 1 {
        // When its place is free its other names are long dealt with.
        mover.engine.pass.look_again(LINKED);
    }
    goes
}

/// Removes a directory before a further name of a file replaces it. Returns whether anything may be deleted; the
/// reason against it was reported.
pub(crate) fn clear_for_link(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    name: &Name,
    found: &Metadata,
) -> bool {
    let clears = mover.engine.spec.delete_policy().is_some();
    if clears && clear_name(mover, level, name, found) {
        mover.engine.pass.look_again(LINKED);
    }
    clears
}

/// Returns whether the name will be deleted.
fn clear_name(mover: &mut Mover<'_>, level: &DirectoryPair, name: &Name, found: &Metadata) -> bool {
    let Some(target) = &level.target else { return false };
    let mut extra = Vec::new();
    let (root, holder) = (TreePath::root(), target.holder());
    let entry = ExtraEntry { holder, at: &root, name, found: found.clone() };
    if !mover.engine.filter.admits(level.path.join(name.as_bytes()).as_bytes(), found) {
        tell_kept(
            mover.engine,
            level,
            name,
            "the destination entry is a directory that a rule excludes",
        );
        return false;
    }
    let goes = note_extra(mover.engine, level, &entry, &mut extra, true);
    if goes {
        let first = root.join(name.as_bytes());
        mover.clearing.is_on = true;
        extra::walk_below(mover, level, target, first, &mut |mover, entry| {
            note_extra(mover.engine, level, &entry, &mut extra, true)
        });
        mover.clearing.is_on = false;
    }
    let spared = mover.clearing.spared.take();
    if let Some(kept) = &spared {
        let words = format!(
            "the destination entry is a directory, and a rule excludes '{}' in it",
            kept.to_path().display()
        );
        tell_kept(mover.engine, level, name, &words);
    }
    hand_over(mover, &mut extra, true);
    goes && spared.is_none()
}

/// Reports that a rule keeps the entry in the way.
pub(crate) fn tell_kept(engine: &Engine, level: &DirectoryPair, name: &Name, words: &str) {
    let (side, class) = (Side::Destination, ErrorClass::TypeConflict);
    let path = level.target_path(name.as_bytes());
    engine.error(EntryError::plain(side, Operation::Create, class, path, words));
}

/// Handles a name that the source no longer has.
pub(crate) fn gone_name(mover: &mut Mover<'_>, level: &DirectoryPair, name: &Name) {
    let deletes = mover.engine.spec.delete_policy().is_some() && !is_in_trash(mover.engine, level);
    let Some(target) = level.target.as_ref().filter(|_| deletes) else { return };
    if target.folds_case {
        // Either side may have it in another case, which a full scan finds.
        if mover.engine.pass.following.is_some() {
            mover.engine.pass.look_again("the destination ignores case");
        }
        return;
    }
    let mut found = Vec::new();
    let (root, holder) = (TreePath::root(), target.holder());
    let mut note = |mover: &mut Mover<'_>, extra: ExtraEntry<'_>| {
        note_extra(mover.engine, level, &extra, &mut found, false)
    };
    if extra::visit_extra(mover, level, (holder, &root), name, &mut note) {
        extra::walk_below(mover, level, target, root.join(name.as_bytes()), &mut note);
    }
    hand_over(mover, &mut found, true);
}

/// Adds a name to the extra names. Returns whether it is a directory to enter.
fn note_extra(
    engine: &Engine,
    level: &DirectoryPair,
    extra: &ExtraEntry<'_>,
    all: &mut Vec<ExtraNames>,
    in_the_way: bool,
) -> bool {
    let ExtraEntry { holder, at, name, found } = extra;
    let path = || level.own_target_path().join(&at.join(name.as_bytes()));
    let is_directory = found.kind == EntryKind::Directory;
    let may_be_trash = is_directory && !engine.spec.clears_all();
    let trash = if may_be_trash { holder.has_trash(name) } else { Ok(false) };
    let is_trash = match trash {
        Ok(is_trash) => is_trash,
        Err(error) => {
            engine.error(error);
            engine.pass.hold_above(&level.own_target_path(), at);
            return false;
        }
    };
    let own = is_trash || engine.pass.guard.is_state(found.identity);
    if is_directory && own {
        if in_the_way || !at.is_root() {
            // It has its place in what goes, or in its place something else should be.
            let words = "this is dmover's trash or state directory, which dmover does not delete";
            let (side, class) = (Side::Destination, ErrorClass::Busy);
            engine.error(EntryError::plain(side, Operation::Unlink, class, path(), words));
            engine.pass.hold_above(&level.own_target_path(), at);
        }
        return false;
    }
    let here = level.target.as_ref().map(|target| target.metadata.identity.mount);
    let elsewhere = || here != Some(found.identity.mount) || holder.has_mount(name);
    if is_directory && elsewhere() {
        let words = "a file system is mounted here";
        let (side, class) = (Side::Destination, ErrorClass::Busy);
        engine.error(EntryError::plain(side, Operation::Unlink, class, path(), words));
        engine.pass.hold_above(&level.own_target_path(), at);
        return false;
    }
    engine.reports.count(Counter::EntriesExtra);
    let name = ExtraName {
        name: (*name).clone(),
        kind: found.kind,
        identity: found.identity,
        links: found.links,
        size: found.size,
        mtime: found.mtime,
        ctime: found.ctime,
    };
    match all.last_mut() {
        Some(last) if last.below == **at && last.names.len() < NAMES_MAX => {
            last.names.push(name);
        }
        _ => all.push(ExtraNames {
            directory: level.reference(),
            below: (*at).clone(),
            holder: holder.identity,
            in_the_way,
            names: vec![name],
        }),
    }
    found.kind == EntryKind::Directory
}

fn count<'n>(found: impl IntoIterator<Item = &'n ExtraNames>) -> usize {
    found.into_iter().map(|extra| extra.names.len()).sum()
}

fn deletes_when(engine: &Engine) -> Option<DeleteWhen> {
    engine.spec.delete_policy().map(|delete| delete.when)
}

/// Passes found names on if they are many, or `whole`: a top and everything below it.
fn hand_over(mover: &mut Mover<'_>, found: &mut Vec<ExtraNames>, whole: bool) {
    if deletes_when(mover.engine) != Some(DeleteWhen::During) {
        if count(&*found) >= NAMES_MAX || whole {
            leave_for_the_end(mover, found);
        }
    } else if whole && !found.is_empty() {
        delete_now(mover, vec![std::mem::take(found)]);
    }
}

/// Deletes names if they may go now: all of them, or if that is too many, one top with everything below it after the other.
fn delete_now(mover: &mut Mover<'_>, tops: Vec<Vec<ExtraNames>>) {
    let names = count(tops.iter().flatten()) as u64;
    let flat = |tops: Vec<Vec<ExtraNames>>| tops.into_iter().flatten().collect::<Vec<_>>();
    match mover.engine.pass.guard.on_the_way(mover.engine, names) {
        OnTheWay::Stay(WithheldReason::Limit(_)) if tops.len() > 1 => {
            for top in tops.into_iter().filter(|top| !top.is_empty()) {
                delete_now(mover, vec![top]);
            }
        }
        OnTheWay::Go => {
            let mut found = flat(tops);
            found.sort_by_key(|extra| std::cmp::Reverse(extra.depth()));
            run(mover, &found);
        }
        OnTheWay::Wait => leave_for_the_end(mover, &mut flat(tops)),
        OnTheWay::Stay(reason) => extra::guard::withhold(mover.engine, &flat(tops), &reason),
    }
}

/// Reports names to delete at the end, if that is allowed.
fn leave_for_the_end(mover: &mut Mover<'_>, found: &mut Vec<ExtraNames>) {
    // A source on another host is asked about all names of a group at once. Here each group has its directories opened, right before.
    let joins = mover.engine.spec.sources_are_remote;
    for extra in found.drain(..) {
        match mover.report.outcome.extra.last_mut() {
            Some(last)
                if joins
                    && last.names.len() + extra.names.len() <= NAMES_MAX
                    && last.is_beside(&extra) =>
            {
                last.names.extend(extra.names);
            }
            _ => mover.report.outcome.extra.push(extra),
        }
    }
    if count(&*mover.report.outcome.extra) >= NAMES_MAX {
        mover.report.flush();
    }
}

/// Deletes names in the given order.
pub(crate) fn run(mover: &mut Mover<'_>, all: &[ExtraNames]) {
    let mut presence = None;
    for (number, extra) in all.iter().enumerate() {
        if mover.lease.task.resumed {
            // An earlier run may have deleted names here without reporting it.
            mover.report.mark_dirty(&extra.directory);
        }
        if let Err(error) = delete_names(mover, (extra, &all[number + 1..]), &mut presence) {
            mover.engine.error(error);
        }
    }
}

fn delete_names(
    mover: &mut Mover<'_>,
    (extra, later): (&ExtraNames, &[ExtraNames]),
    presence: &mut Option<Presence>,
) -> Result<(), EntryError> {
    let mut gone = false;
    let ended = delete_each(mover, (extra, later), presence, &mut gone);
    if gone && !mover.engine.spec.policy.dry_run {
        let at = &extra.directory;
        if extra.below.is_root() {
            mover.report.mark_dirty(at);
        }
        if extra.in_the_way && extra.below.is_root() {
            let names = extra.names.iter().map(|name| name.name.clone()).collect();
            let names = ScanNames::Listed(names);
            let kind = TaskKind::Scan { directory: at.clone(), names };
            mover.report.outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
        }
    }
    ended
}

/// `gone`: whether at least one name was deleted.
fn delete_each(
    mover: &mut Mover<'_>,
    (extra, later): (&ExtraNames, &[ExtraNames]),
    presence: &mut Option<Presence>,
    gone: &mut bool,
) -> Result<(), EntryError> {
    let engine = mover.engine;
    let root = engine.root(extra.directory.root)?;
    let place = extra.directory.path.join_path(&extra.below);
    let mut both = BothSides { root: &root, place: &place, target: None, presence };
    for (number, name) in extra.names.iter().enumerate() {
        let path = root.destination_path(&place, name.name.as_bytes());
        if engine.control.is_stopping() {
            engine.error(cancelled(path));
            continue;
        }
        engine.resources.limits.operation(&engine.control, mover.lease);
        mover.lease.extend();
        let Some((target, found)) = both.look(engine, (extra, later), number)? else {
            return Ok(());
        };
        let going = Going { name, path, place: &place };
        let deleted = found
            .map(|found| is_back(found.as_ref(), extra))
            .and_then(|back| if back { Ok(false) } else { delete(mover, target, &going) });
        match deleted {
            Ok(true) => *gone = true,
            Ok(false) => {}
            Err(error) => engine.error(error),
        }
    }
    Ok(())
}

/// The directories of names that are deleted. Either one may be exchanged while a name takes its time.
struct BothSides<'a> {
    root: &'a Root,
    /// That of DEST, below the root.
    place: &'a TreePath,
    target: Option<TargetDirectory>,
    presence: &'a mut Option<Presence>,
}

impl BothSides<'_> {
    /// What the source has in the place of a name. `None`: no name from this one on can be deleted, and a reason was reported.
    ///
    /// # Errors
    /// A directory cannot be opened, is another one by now, or the source answers too late. The error within is that of the name.
    fn look(
        &mut self,
        engine: &Engine,
        (extra, later): (&ExtraNames, &[ExtraNames]),
        number: usize,
    ) -> Result<Option<(&TargetDirectory, presence::Found)>, EntryError> {
        let name = at_source(extra, &extra.names[number]);
        for _ in 0..LOOKS_MAX {
            let Some(presence) = self.open(engine, extra, number)? else { return Ok(None) };
            let next = extra.names[number..].iter().map(|name| (extra, name));
            let rest = later.iter().take_while(|later| later.directory == extra.directory);
            let rest = rest.flat_map(|later| later.names.iter().map(move |name| (later, name)));
            let next = next.chain(rest).map(|(extra, name)| at_source(extra, name));
            let found = presence.find(&engine.end, name, next);
            if !presence.is_outdated() {
                return Ok(self.target.as_ref().map(|target| (target, found)));
            }
            // The answer was on its way during an outage.
            (self.target, *self.presence) = (None, None);
        }
        let words = "the source answers too late for deletes to rely on it";
        let path = self.root.source_path(&extra.directory.path, name);
        Err(EntryError::plain(Side::Source, Operation::Stat, ErrorClass::Io, path, words))
    }

    /// Opens both again if that was too long ago. `None`: as above.
    fn open(
        &mut self,
        engine: &Engine,
        extra: &ExtraNames,
        number: usize,
    ) -> Result<Option<&mut Presence>, EntryError> {
        let is_new = self.presence.as_ref().is_some_and(|presence| !presence.is_old());
        if self.target.is_some() && is_new {
            return Ok(self.presence.as_mut());
        }
        self.target = None;
        let unmounted = engine.pass.guard.unmounted(engine);
        if let Some(reason) = unmounted.filter(|_| !extra.in_the_way) {
            let names = extra.names[number..].to_vec();
            let left = ExtraNames { names, ..extra.clone() };
            extra::guard::withhold(engine, &[left], &reason);
            return Ok(None);
        }
        let target = directory_pair::open_target(engine, self.root, self.place, extra.holder)?;
        let Some(target) = target else { return Ok(None) };
        if !self.presence.as_ref().is_some_and(|known| known.serves(extra)) {
            // One that cannot be opened again is of no use.
            *self.presence = None;
            let follows = engine.spec.follows_links();
            *self.presence = Some(Presence::of(&engine.end, self.root, extra, follows)?);
        }
        self.target = Some(target);
        Ok(self.presence.as_mut())
    }
}

/// The name that the source has to lack: what is below a directory goes with it.
fn at_source<'n>(extra: &'n ExtraNames, name: &'n ExtraName) -> &'n [u8] {
    extra.below.components().next().unwrap_or(name.name.as_bytes())
}

/// Whether the source has the name again, or no longer has the entry that needs its place.
fn is_back(found: Option<&Metadata>, extra: &ExtraNames) -> bool {
    match found {
        None => extra.in_the_way,
        Some(now) => !extra.in_the_way || now.kind == EntryKind::Directory,
    }
}

/// Deletes one name if it is still the entry that was found. Returns whether this call deleted it.
fn delete(
    mover: &mut Mover<'_>,
    target: &TargetDirectory,
    going: &Going<'_>,
) -> Result<bool, EntryError> {
    let engine = mover.engine;
    let Going { name, path, place } = going;
    let plain = |class, words: &str| {
        EntryError::plain(Side::Destination, Operation::Unlink, class, path.clone(), words)
    };
    let Some(found) = mover.session.check_still(target, name)? else { return Ok(false) };
    if !mover.lease.holds() {
        return Err(plain(ErrorClass::Fenced, "this mover lost its lease"));
    }
    let is_held = found.kind == EntryKind::Directory && engine.pass.is_held(path);
    if is_held {
        // The reason was reported where the entry was found.
        return Ok(false);
    }
    mover.session.writes_to(target);
    if engine.spec.policy.dry_run {
        tell_deleted(
            mover,
            going,
            &found,
            engine.spec.delete_policy().is_some_and(|policy| policy.trash.is_some()),
        );
        return Ok(true);
    }
    let trash = engine.pass.guard.trash().map(|trash| (trash, *place));
    match mover.session.remove(target, name, trash)? {
        Gone::Removed => tell_deleted(mover, going, &found, false),
        Gone::Trashed => tell_deleted(mover, going, &found, true),
        Gone::Holds if engine.filter.has_rules() => return Ok(false),
        Gone::Holds => {
            return Err(plain(ErrorClass::Changed, what_it_holds(mover, target, name)));
        }
    }
    Ok(true)
}

/// Why a directory is not empty although all found entries are gone.
fn what_it_holds(
    mover: &mut Mover<'_>,
    target: &TargetDirectory,
    name: &ExtraName,
) -> &'static str {
    let mut written = false;
    let read = mover.with_buffer(|mover, buffer| {
        target.listing_of(name.name.as_bytes())?.read(buffer, |listed| {
            mover.lease.extend();
            written |= is_temporary(listed.name()?.as_bytes());
            Ok(true)
        })
    });
    match read {
        Ok(()) if written => {
            "it holds temporaries of another job (.dmover-…): run that job again, or remove them \
            when no job writes there"
        }
        _ => "it holds entries that appeared later or that dmover could not remove",
    }
}

fn tell_deleted(mover: &mut Mover<'_>, going: &Going<'_>, found: &Metadata, trashed: bool) {
    let engine = mover.engine;
    mover.spent.entries += 1;
    engine.reports.count(Counter::EntriesDeleted);
    engine.doubts.settle(false, || going.place.join(going.name.name.as_bytes()));
    if found.kind == EntryKind::File {
        engine.reports.add(Counter::BytesDeleted, found.size);
    }
    engine.reports.progress();
    if engine.reports.wants_items() {
        let action = if trashed { Action::Trashed } else { Action::Deleted };
        engine.reports.show(Event::Item(Item {
            path: going.path.clone(),
            target: going.path.clone(),
            action,
            kind: found.kind,
            bytes: if found.kind == EntryKind::File { found.size } else { 0 },
            elapsed_us: 0,
            itemized: itemize::columns(action, found, None),
        }));
    }
}

/// One name to delete.
struct Going<'a> {
    pub name: &'a ExtraName,
    pub path: PathBytes,
    /// The directory of the name, below the root.
    pub place: &'a TreePath,
}

/// Searches a directory and everything below it for names that only the destination has.
pub(crate) fn scan_extra(mover: &mut Mover<'_>, at: &DirectoryRef) -> Result<(), EntryError> {
    let root = mover.engine.root(at.root)?;
    let mut left = vec![at.path.clone()];
    while let Some(path) = left.pop() {
        if mover.engine.control.is_stopping() {
            return Err(cancelled(root.destination_path(&path, b"")));
        }
        if mover.queue.is_hungry(Class::Small) && left.len() > 1 {
            let given = left.drain(..left.len() / 2).map(|path| {
                let directory = DirectoryRef { path, ..at.clone() };
                let kind = TaskKind::Scan { directory, names: ScanNames::Extra };
                NewTask { parent: Parent::Inherited, kind }
            });
            mover.report.outcome.tasks.extend(given);
            mover.report.flush();
        }
        if let Err(error) = extra_in(mover, &root, at, path, &mut left) {
            mover.engine.error(error);
        }
    }
    Ok(())
}

fn extra_in(
    mover: &mut Mover<'_>,
    root: &Arc<Root>,
    at: &DirectoryRef,
    path: TreePath,
    left: &mut Vec<TreePath>,
) -> Result<(), EntryError> {
    let engine = mover.engine;
    let source = directory_pair::open_source(engine, root, &path)?;
    let target = match directory_pair::open_target(engine, root, &path, Identity::default()) {
        // The directory could not be created, which was reported.
        Err(error) if is_absent(&error) => return Ok(()),
        opened => opened?,
    };
    let (root_id, root, ancestors) = (at.root, Arc::clone(root), Vec::new());
    let level = DirectoryPair { root_id, root, path, source, target, base: None, ancestors };
    let times = |of: Option<&Metadata>| of.map(|of| of.mtime);
    let target = level.target.as_ref().map(|target| &target.metadata);
    if engine.facts.is_resumed && times(target) != times(Some(&level.source.metadata)) {
        // An earlier run has removed names here and did not come to the end of it.
        mover.report.mark_dirty(&level.reference());
    }
    let mut seen = SeenNames::default();
    let mut directories = Vec::new();
    let follows = engine.spec.follows_links();
    mover.with_buffer(|mover, buffer| {
        level.source.read(buffer, |listed| {
            seen.insert(listed.bytes);
            mover.lease.extend();
            let kinds = [ListedKind::Directory, ListedKind::Unknown];
            if kinds.contains(&listed.kind) || follows {
                directories.push(listed.name()?);
            }
            Ok(true)
        })
    })?;
    for name in directories {
        let found = engine.end.find_source(&level.source, name.as_bytes(), follows);
        let found = found.map_err(|e| level.source.unread(e))?;
        let Some(found) = found else { continue };
        let path = level.path.join(name.as_bytes());
        let elsewhere = found.identity.mount != level.root.mount;
        let stays = engine.spec.selection.one_file_system && elsewhere;
        let enters =
            found.kind == EntryKind::Directory && engine.filter.admits(path.as_bytes(), &found);
        if enters && !stays {
            left.push(path);
        }
    }
    collect_extra(mover, &level, &seen);
    if engine.facts.is_resumed { clear_again(mover, &level) } else { Ok(()) }
}

/// Removes directories in the way of entries of another type that an earlier run found but did not remove.
fn clear_again(mover: &mut Mover<'_>, level: &DirectoryPair) -> Result<(), EntryError> {
    let Some(target) = &level.target else { return Ok(()) };
    let mut in_the_way = Vec::new();
    extra::each_name(mover, target.holder(), |mover, name| {
        let (engine, bytes) = (mover.engine, name.as_bytes());
        let found = engine.end.find_target(target, bytes)?;
        let found = found.filter(|found| found.kind == EntryKind::Directory);
        let Some(found) = found else { return Ok(()) };
        let new = engine.end.find_source(&level.source, bytes, false)?;
        let Some(new) = new else { return Ok(()) };
        let path = level.path.join(name.as_bytes());
        if new.kind != EntryKind::Directory
            && !engine.spec.follows_links()
            && engine.filter.admits(path.as_bytes(), &new)
        {
            in_the_way.push((name.clone(), found));
        }
        Ok(())
    })?;
    for (name, found) in in_the_way {
        clear_name(mover, level, &name, &found);
    }
    Ok(())
}
