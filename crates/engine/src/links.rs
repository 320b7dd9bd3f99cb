//! Hard links: names of one inode at the source become names of one inode at the destination.
//!
//! This phase follows the scan of the tree, when all names of an inode are known. The first name is copied, the others
//! are linked to it; a group is checked as a whole, so that a replaced file keeps all its names.
use dmover_local::end::LocalEnd;
use dmover_local::error::{absent, is_absent};
use dmover_local::links::{Anchor, ClearedLocks, FurtherName, LinkOutcome};
use dmover_model::JobSpec;
use dmover_model::{
    Action, Content, DirectoryRef, EntryError, EntryKind, EntryRecord, ErrorClass, Event, FileRef,
    Identity, Item, LinkGroup, LossKind, Metadata, Name, NewNode, NewTask, Operation, Overwrite,
    Parent, PathBytes, Side, TaskKind,
};
use dmover_observe::Counter;
use dmover_plan::decide::Decision;
use dmover_plan::itemize;
use std::io;

use crate::alike;
use crate::apply;
use crate::case;
use crate::catalog_survey;
use crate::context::Engine;
use crate::directory_pair::{self, DirectoryPair};
use crate::extra;
use crate::file;
use crate::large;
use crate::manifest_records;
use crate::mover::Mover;
use crate::plan_entry;
use crate::plan_names;
use crate::snapshot;
use crate::snapshot_base;

/// A name that is in place with the content of the group.
struct Carrier {
    level: DirectoryPair,
    name: Name,
    metadata: Metadata,
    /// The source inode that all names of the group share.
    source: Identity,
}

/// The names of a group that are linked to its first one.
struct Linking<'a> {
    anchor: Anchor<'a>,
    /// Its content was compared if any of the names was doubtful.
    is_sure: bool,
    cleared: ClearedLocks,
}

/// Runs a links task.
pub(crate) fn run(mover: &mut Mover<'_>, groups: &[LinkGroup]) {
    for group in groups {
        if mover.engine.control.is_stopping() {
            give_up(mover.engine, group);
            continue;
        }
        if mover.lease.task.resumed {
            // An earlier run may have created names here without reporting it.
            std::iter::once(&group.first)
                .chain(&group.rest)
                .for_each(|file| mover.report.mark_dirty(&file.directory));
        }
        mover.thread.strategy.links(mover, group);
        mover.lease.extend();
    }
    settle_linked(mover.engine);
}

fn settle_linked(engine: &Engine) {
    if let Some(sharing) = &engine.pass.sharing
        && let Err(error) = sharing.settle()
    {
        let words = error.to_string();
        let (side, class) = (Side::Destination, ErrorClass::Other);
        let path = engine.spec.destination.clone();
        engine.error(EntryError::plain(side, Operation::Link, class, path, words));
    }
}

fn give_up(engine: &Engine, group: &LinkGroup) {
    for file in std::iter::once(&group.first).chain(&group.rest) {
        let (at, last) = (&file.directory, file.destination_name.as_bytes());
        let path = engine.destination_path(at.root, &at.path, last);
        engine.error(dmover_local::error::cancelled(path));
    }
}

/// In a dry run, reports a group: the first possible name would be copied, and the others linked to it.
pub(crate) fn preview(mover: &mut Mover<'_>, group: &LinkGroup) {
    // The destination inode that stays, if the first name already exists.
    let mut carrier: Option<Option<Metadata>> = None;
    for file in std::iter::once(&group.first).chain(&group.rest) {
        let looked = directory_pair::open_level(mover.engine, &file.directory);
        let looked =
            looked.and_then(|level| Ok((plan_entry::look(mover, &level, &file.name)?, level)));
        let (record, level) = match looked {
            Ok(looked) => looked,
            Err(error) => {
                mover.engine.error(error);
                continue;
            }
        };
        let metadata = record.metadata.clone();
        let Some(planned) = plan_entry::plan_record(mover, &level, record) else { continue };
        let (old, decision) = (planned.existing.clone(), planned.decision);
        let refused = matches!(decision, Decision::Refuse(..));
        match (&carrier, &old) {
            _ if refused => {
                apply::apply_one(mover, &level, planned);
            }
            (None, _) => {
                let looks = [Decision::Skip, Decision::Inspect, Decision::Compare];
                let stays = looks.contains(&decision);
                let same = old.as_ref().zip(level.target.as_ref());
                let same = same.is_some_and(|(old, t)| {
                    alike::is_the_same(&mover.engine.spec, &metadata, old, t)
                });
                apply::apply_one(mover, &level, planned);
                if !stays || same {
                    carrier = Some(old.filter(|_| stays));
                }
            }
            (Some(kept), Some(old))
                if kept.as_ref().is_some_and(|kept| kept.identity == old.identity)
                    || keeps_existing(
                        &mover.engine.spec,
                        old,
                        kept.as_ref().unwrap_or(&metadata),
                    ) =>
            {
                mover.engine.reports.count(Counter::EntriesSkipped);
                extra::note_had(mover, 1);
                tell_link(mover.engine, &level, file, old, Some(old));
            }
            (Some(_), Some(old))
                if old.kind == EntryKind::Directory
                    && !extra::delete::clear_for_link(
                        mover,
                        &level,
                        &file.destination_name,
                        old,
                    ) =>
            {
                mover.engine.error(in_the_way(level.target_path(file.destination_name.as_bytes())));
            }
            _ => {
                mover.engine.reports.count(Counter::HardLinksCreated);
                note_link_had(mover, old.as_ref());
                tell_link(mover.engine, &level, file, &metadata, old.as_ref());
            }
        }
    }
}

/// Copies the first possible name; every later name is linked to it.
pub(crate) fn link_group(mover: &mut Mover<'_>, group: &LinkGroup) {
    let led = led_by_base(mover, group);
    let group = led.as_ref().unwrap_or(group);
    if led.is_none() && !group.first_is_done && goes_ahead_in_chunks(mover, group) {
        return;
    }
    let mut names = std::iter::once(&group.first).chain(&group.rest);
    let mut done = group.first_is_done;
    mover.entry.is_doubtful = mover.engine.doubts.has_any(group);
    let carrier = loop {
        let Some(file) = names.next() else { break None };
        match carry(mover, group, file, done) {
            Ok(Some(carrier)) => break Some(carrier),
            Ok(None) => {}
            Err(error) => mover.engine.error(error),
        }
        done = false;
    };
    mover.entry.is_doubtful = false;
    let Some(carrier) = carrier else { return };
    let Some(at) = &carrier.level.target else { return };
    let anchor = Anchor {
        at,
        name: carrier.name.as_bytes(),
        metadata: &carrier.metadata,
        source: carrier.source,
    };
    mover.engine.doubts.share(anchor.source, &group.rest);
    if !group.rest.is_empty() {
        snapshot::note_linked(mover.engine, &carrier.level, anchor.name, anchor.metadata.identity);
        // Before there is a second name: a run that resumes this must know that the names are its own.
        settle_linked(mover.engine);
    }
    let cleared = ClearedLocks::default();
    let mut linking = Linking { anchor, is_sure: !group.first_is_done, cleared };
    for file in names {
        link_name(mover, file, &mut linking);
        mover.lease.extend();
    }
    if let Err(error) = mover.engine.local().lock_again(&anchor, linking.cleared) {
        mover.engine.error(error);
    }
}

/// The group with a name at the front that the previous snapshot has, if there is one.
fn led_by_base(mover: &Mover<'_>, group: &LinkGroup) -> Option<LinkGroup> {
    mover.engine.pass.sharing.as_ref().filter(|own| own.has_base() && !group.first_is_done)?;
    let has = |file: &FileRef| {
        let Ok(level) = directory_pair::open_level(mover.engine, &file.directory) else {
            return false;
        };
        let Ok(record) = plan_entry::look(mover, &level, &file.name) else { return false };
        let free = present(&mover.engine.end, &level, file).is_none();
        free && snapshot_base::based(mover, &level, &record).is_some_and(|based| based.is_equal())
    };
    if has(&group.first) {
        return Some(group.clone());
    }
    let at = group.rest.iter().position(has)?;
    let mut led = group.clone();
    std::mem::swap(&mut led.first, &mut led.rest[at]);
    Some(led)
}

/// Starts a large file as a separate file; its other names follow when it is sealed.
fn goes_ahead_in_chunks(mover: &mut Mover<'_>, group: &LinkGroup) -> bool {
    if !mover.engine.spec.verb.fills() {
        return false; // a file that is started again would be compared
    }
    let level = directory_pair::open_level(mover.engine, &group.first.directory);
    if let Ok(level) = &level {
        note_opened_up(mover, level, &group.first.directory);
    }
    let record = level.and_then(|level| plan_entry::look(mover, &level, &group.first.name));
    // An error is reported when the name is copied.
    let large = record.is_ok_and(|record| {
        record.metadata.kind == EntryKind::File
            && plan_names::is_worth_splitting(mover, &record.metadata)
    });
    if large {
        let mut rest = group.clone();
        rest.first_is_done = true;
        let finish = TaskKind::Links(vec![rest]);
        let number = mover.report.add_node(NewNode::new(Parent::Inherited, finish));
        let kind = TaskKind::Open { file: group.first.clone(), round: 1 };
        mover.report.outcome.tasks.push(NewTask { parent: Parent::New(number), kind });
        mover.report.outcome.dirty.push(group.first.directory.clone());
    }
    large
}

/// Copies one name with its content. `None`: it failed, or the policy keeps another version there, so that no other
/// name may be linked to it.
fn carry(
    mover: &mut Mover<'_>,
    group: &LinkGroup,
    file: &FileRef,
    done: bool,
) -> Result<Option<Carrier>, EntryError> {
    let level = directory_pair::open_level(mover.engine, &file.directory)?;
    note_opened_up(mover, &level, &file.directory);
    let record = plan_entry::look(mover, &level, &file.name)?;
    // A name that was just written is right; an existing one must be checked.
    let mut trusted = false;
    if !done {
        let before = present(&mover.engine.end, &level, file);
        let Some(planned) = plan_entry::plan_record(mover, &level, record.clone()) else {
            return Ok(None);
        };
        trusted = matches!(planned.decision, Decision::Create | Decision::Replace);
        mover.entry.names_here = 0;
        if matches!(planned.decision, Decision::Inspect | Decision::Compare) {
            mover.entry.names_here = count_names(mover.engine, group, planned.existing.as_ref());
        }
        let in_place = apply::apply_one(mover, &level, planned);
        // An attempt that failed has made something in the directory as well, and removed it.
        if !in_place || present(&mover.engine.end, &level, file) != before {
            mover.report.mark_dirty(&file.directory);
        }
        if !in_place {
            return Ok(None);
        }
        large::hand_on_as_inherited(mover);
    }
    let name = file.destination_name.clone();
    let missing = || {
        let path = level.target_path(name.as_bytes());
        absent(Side::Destination, Operation::Link, path)
    };
    let target = level.target.as_ref().ok_or_else(missing)?;
    let look = || mover.session.local.look_to_link(target, name.as_bytes());
    let metadata = match if done { mover.engine.until_seen(look) } else { look() } {
        Ok(metadata) => metadata,
        // The failure of a large file was already reported.
        Err(error) if is_absent(&error) && done => return Ok(None),
        Err(error) => return Err(error),
    };
    if !trusted && !alike::is_the_same(&mover.engine.spec, &record.metadata, &metadata, target) {
        return Ok(None);
    }
    let source = record.metadata.identity;
    if done {
        mover.entry.carried = mover.engine.proof.sealed(source);
    }
    Ok(Some(Carrier { level, name, metadata, source }))
}

/// How many names of a group refer to an inode at the destination.
fn count_names(engine: &Engine, group: &LinkGroup, inode: Option<&Metadata>) -> u64 {
    let is_name = |file: &&FileRef| {
        let level = directory_pair::open_level(engine, &file.directory).ok();
        let found = level.and_then(|level| present(&engine.end, &level, file));
        let found = found.map(|found| found.identity);
        found.is_some() && found == inode.map(|inode| inode.identity)
    };
    std::iter::once(&group.first).chain(&group.rest).filter(is_name).count() as u64
}

fn present(end: &LocalEnd, level: &DirectoryPair, file: &FileRef) -> Option<Metadata> {
    let target = level.target.as_ref()?;
    end.visible(target, file.destination_name.as_bytes())
}

fn link_name(mover: &mut Mover<'_>, file: &FileRef, linking: &mut Linking<'_>) {
    let engine = mover.engine;
    let Linking { anchor, is_sure, .. } = *linking;
    let anchor = &anchor;
    let settle = || {
        if is_sure {
            engine.doubts.settle(false, || file.directory.path.join(file.name.as_bytes()));
        }
    };
    // How often something was tried in the directory, which changes its times.
    let mut tries = 0;
    let result = engine.insist(|| {
        let level = directory_pair::open_level(engine, &file.directory)?;
        tries += 1;
        note_opened_up(mover, &level, &file.directory);
        let kept = match link_one(mover, &level, file, linking)? {
            Linked::Impossible(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                link_across_projects(mover, &level, file, linking, error)?
            }
            linked => linked,
        };
        Ok((level, kept))
    });
    match result {
        Err(error) => {
            engine.error(error);
            if tries > 0 {
                mover.report.mark_dirty(&file.directory);
            }
        }
        Ok((level, Linked::Already)) if tries == 1 => {
            settle();
            mover.engine.reports.count(Counter::EntriesSkipped);
            extra::note_had(mover, 1);
            if matches!(mover.engine.spec.policy.overwrite, Overwrite::Never | Overwrite::Older) {
                // Another file may stand there, as the policy wants it.
                mover.engine.proof.leave_out();
            } else if mover.engine.proof.keeps_what_is_there() {
                keep_link(mover, &level, file);
            }
            tell_link(mover.engine, &level, file, anchor.metadata, Some(anchor.metadata));
        }
        Ok((_, Linked::Later)) => large::hand_on_as_inherited(mover),
        // The name was created by an attempt whose answer was lost.
        Ok((level, Linked::Already)) => linked(mover, &level, file, anchor, None),
        Ok((level, Linked::New(old))) => {
            settle();
            linked(mover, &level, file, anchor, old.as_deref());
        }
        Ok((level, Linked::Impossible(error))) => copy_instead(mover, &level, file, &error),
        Ok((level, Linked::Separate(record))) => {
            if let Some(planned) = plan_entry::plan_record(mover, &level, *record) {
                mover.entry.names_here = 0;
                apply::apply_one(mover, &level, planned);
            }
            mover.report.mark_dirty(&file.directory);
            large::hand_on_as_inherited(mover);
        }
    }
}

fn note_opened_up(mover: &mut Mover<'_>, level: &DirectoryPair, directory: &DirectoryRef) {
    if level.target.as_ref().is_some_and(|t| t.opened_up) {
        mover.report.mark_dirty(directory);
    }
}

fn link_one(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    file: &FileRef,
    linking: &mut Linking<'_>,
) -> Result<Linked, EntryError> {
    let last = file.destination_name.as_bytes();
    let record = plan_entry::look(mover, level, &file.name)?;
    if record.metadata.identity != linking.anchor.source {
        // Not a name of that inode any more.
        return Ok(Linked::Separate(Box::new(record)));
    }
    let Some(to) = &level.target else {
        return Err(absent(Side::Destination, Operation::Link, level.target_path(last)));
    };
    case::settle_case(mover, level, last)?;
    let existing = mover.session.in_place_of_link(to, last)?;
    if let Some(old) = &existing
        && let Some(linked) = is_settled_there(mover, level, file, &linking.anchor, old)?
    {
        return Ok(linked);
    }
    let others = file::names_beside(mover.engine, level);
    let from = &level.source;
    let further = FurtherName { from, to, last, replaces: existing.is_some(), others };
    let mut unlocks = false;
    let linked = mover.session.link(further, &linking.anchor, &mut linking.cleared, &mut unlocks);
    if unlocks {
        mover.report.mark_dirty(&file.directory);
    }
    Ok(match linked? {
        LinkOutcome::Made => Linked::New(existing.map(Box::new)),
        LinkOutcome::Impossible(error) => Linked::Impossible(error),
    })
}

/// Links into a directory that hands its project down, where no file of another project can be linked.
fn link_across_projects(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    file: &FileRef,
    linking: &mut Linking<'_>,
    error: io::Error,
) -> Result<Linked, EntryError> {
    let lend = |to| mover.session.local.lend_project(to, &linking.anchor);
    let Some(lent) = level.target.as_ref().and_then(lend) else {
        return Ok(Linked::Impossible(error));
    };
    let linked = link_one(mover, level, file, linking);
    lent.give_back(&|| level.target_path(file.destination_name.as_bytes()))?;
    linked
}

/// The existing entry under a name that would be linked, if it must not be replaced.
fn is_settled_there(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    file: &FileRef,
    anchor: &Anchor<'_>,
    old: &Metadata,
) -> Result<Option<Linked>, EntryError> {
    if old.identity == anchor.metadata.identity {
        return Ok(Some(Linked::Already));
    }
    if old.kind == EntryKind::Directory {
        if extra::delete::clear_for_link(mover, level, &file.destination_name, old) {
            return Ok(Some(Linked::Later));
        }
        return Err(in_the_way(level.target_path(file.destination_name.as_bytes())));
    }
    Ok(keeps_existing(&mover.engine.spec, old, anchor.metadata).then_some(Linked::Already))
}

/// Whether the policy keeps the existing entry under a name that would be linked.
fn keeps_existing(spec: &JobSpec, old: &Metadata, carrier: &Metadata) -> bool {
    match spec.policy.overwrite {
        Overwrite::Never => true,
        Overwrite::Older => old.mtime >= carrier.mtime,
        _ => false,
    }
}

/// Copies the content to a second file where the destination cannot link, and counts a loss.
fn copy_instead(mover: &mut Mover<'_>, level: &DirectoryPair, file: &FileRef, error: &io::Error) {
    let record = match plan_entry::look(mover, level, &file.name) {
        Ok(record) => record,
        Err(error) => return mover.engine.error(error),
    };
    let Some(planned) = plan_entry::plan_record(mover, level, record) else { return };
    let path = level.target_path(file.destination_name.as_bytes());
    mover.entry.names_here = 0;
    if apply::apply_one(mover, level, planned) {
        mover.engine.reports.loss(
            LossKind::Links,
            path,
            format!("copied as a separate file ({error})"),
        );
    }
    mover.report.mark_dirty(&file.directory);
    large::hand_on_as_inherited(mover);
}

/// Counts a directory in the place of a name as an entry to delete.
fn note_link_had(mover: &Mover<'_>, old: Option<&Metadata>) {
    if old.is_some_and(|old| old.kind != EntryKind::Directory) {
        extra::note_had(mover, 1);
    }
}

fn linked(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    file: &FileRef,
    anchor: &Anchor<'_>,
    old: Option<&Metadata>,
) {
    mover.engine.reports.count(Counter::HardLinksCreated);
    note_link_had(mover, old);
    catalog_survey::tell_touched(mover, level);
    keep_link(mover, level, file);
    mover.report.mark_dirty(&file.directory);
    tell_link(mover.engine, level, file, anchor.metadata, old);
}

/// Writes a further name of an inode to the manifest; it shares the digest of the first name.
fn keep_link(mover: &Mover<'_>, level: &DirectoryPair, file: &FileRef) {
    if mover.engine.proof.recorder.is_none() {
        return;
    }
    match plan_entry::look(mover, level, &file.name) {
        Ok(record) => {
            let carried = mover.entry.carried.as_ref();
            let carried = carried.filter(|carried| carried.of == record.metadata.identity);
            let (extended, content) = carried
                .map(|carried| (carried.extended.clone(), carried.content.clone()))
                .unwrap_or_default();
            let fits = |content: &Content| content.shape.length() == record.metadata.size;
            let content = content.filter(fits);
            let has_bytes = record.metadata.kind == EntryKind::File && record.metadata.size > 0;
            if has_bytes && content.is_none() && !mover.engine.proof.keeps_what_is_there() {
                return; // another name of what was there, or is read back under its first name
            }
            manifest_records::keep_entry(mover.engine, level, &record, extended, content);
        }
        Err(error) => mover.engine.error(error),
    }
}

/// Reports that a name was linked, or was already linked: then `old` is the inode.
fn tell_link(
    engine: &Engine,
    level: &DirectoryPair,
    file: &FileRef,
    metadata: &Metadata,
    old: Option<&Metadata>,
) {
    if engine.reports.wants_items() {
        let already = old.is_some_and(|old| old.identity == metadata.identity);
        let action = if already { Action::Skipped } else { Action::Linked };
        engine.reports.show(Event::Item(Item {
            path: level.source_path(file.name.as_bytes()),
            target: level.target_path(file.destination_name.as_bytes()),
            action,
            kind: metadata.kind,
            bytes: 0,
            elapsed_us: 0,
            itemized: itemize::columns(action, &engine.settable.as_settable(metadata, old), old),
        }));
    }
}

fn in_the_way(path: PathBytes) -> EntryError {
    let words = "the destination entry is a directory";
    let (side, class) = (Side::Destination, ErrorClass::TypeConflict);
    EntryError::plain(side, Operation::Link, class, path, words)
}

enum Linked {
    /// In place of the existing entry, if there is one.
    New(Option<Box<Metadata>>),
    Already,
    /// A directory that will be deleted is in the way.
    Later,
    Impossible(io::Error),
    /// The name belongs to another inode now.
    Separate(Box<EntryRecord>),
}
