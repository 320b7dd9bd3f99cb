//! The source half: it reads directories, plans each entry, descends depth first within the budget, and returns the
//! rest.
use dmover_local::error::{CallFailed, leads_to_no_directory};
use dmover_local::listing::{Listed, ListedKind};
use dmover_local::root::Root;
use dmover_local::root_side::RootSide;
use dmover_local::seen_names::SeenNames;
use dmover_model::JobSpec;
use dmover_model::{
    Action, DirectoryRef, EntryError, EntryKind, ErrorClass, Event, Item, Metadata, Name, NewNode,
    NewTask, Operation, Parent, ScanNames, Side, TaskKind, Verb,
};
use dmover_observe::{Activity, Counter, activity};
use dmover_plan::itemize;
use dmover_schedule::time::Instant;
use dmover_tree::Needs;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::apply;
use crate::checked_tree;
use crate::context::Engine;
use crate::directory;
use crate::directory_pair::{self, DirectoryPair, TargetDirectory};
use crate::extra;
use crate::finding;
use crate::manifest_records;
use crate::mover::Mover;
use crate::mover_report::ReportItem;
use crate::narrow;
use crate::plan_entry;
use crate::plan_names;
use crate::queue::Class;
use crate::quick_check;

pub(crate) mod changed;
pub(crate) mod list;

/// How many entries are planned before they are applied: enough to amortise the overhead, and few in memory.
const BATCH: usize = 128;
/// The same with a source that is read through messages: files of a batch are announced together.
const REMOTE_BATCH: usize = 256;
/// How many directories a mover names before it enters them, to a source that is read through messages.
const DIRECTORIES_AHEAD: usize = 256;
/// Names in one shard of a directory that is too large for one task.
const SHARD_NAMES: usize = 2048;
/// Bytes of names in one shard, so that its task is a small message.
const SHARD_BYTES: usize = 128 << 10;

/// A name as a directory listed it.
struct Seen {
    name: Name,
    kind: ListedKind,
}

impl Seen {
    fn of_any_kind(name: Name) -> Self {
        Self { name, kind: ListedKind::Unknown }
    }
}

/// A directory in progress, with its subdirectories that are still to do.
struct Frame {
    level: DirectoryPair,
    directories: VecDeque<Name>,
    node: FrameNode,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FrameNode {
    /// It belongs to the issuer of this task, which also finishes it.
    Inherited,
    /// It is finished here as soon as nothing is left below it.
    OnTheSpot,
    /// It was reported as the n-th node; the coordinator has it finished.
    Reported(usize),
}

/// Runs a scan task.
pub(crate) fn run(mover: &mut Mover<'_>, at: &DirectoryRef, names: ScanNames) {
    let result = match names {
        ScanNames::Root => scan_root(mover, at),
        ScanNames::Listed(names) => scan_names(mover, at, names, ListedKind::Unknown),
        ScanNames::Files(names) => scan_names(mover, at, names, ListedKind::File),
        ScanNames::Directories(names) => scan_names(mover, at, names, ListedKind::Directory),
        ScanNames::Extra => extra::delete::scan_extra(mover, at),
        ScanNames::Changed(places) => {
            changed::scan_changed(mover, at.root, places);
            Ok(())
        }
        ScanNames::Paths(paths) => {
            list::scan_paths(mover, at.root, paths);
            Ok(())
        }
    };
    if let Err(error) = result {
        mover.engine.error(error);
    }
}

fn scan_names(
    mover: &mut Mover<'_>,
    at: &DirectoryRef,
    mut names: Vec<Name>,
    kind: ListedKind,
) -> Result<(), EntryError> {
    let mut level = directory_pair::open_level(mover.engine, at)?;
    names.retain(|name| !mover.has_given(&level, name.as_bytes()));
    if let Some(target) = &mut level.target {
        // Names of a directory that this job has created are issued once. Other entries in it are found when an
        // entry is created, and handled then.
        target.fresh = at.made && !mover.lease.task.resumed;
    }
    let node = FrameNode::Inherited;
    let mut frames = vec![Frame { level, directories: VecDeque::new(), node }];
    if kind == ListedKind::Directory {
        frames[0].directories = names.into();
    } else {
        let seen = names.into_iter().map(|name| Seen { name, kind });
        take_names(mover, &mut frames, seen.collect());
    }
    descend(mover, frames);
    Ok(())
}

/// Copies names of one directory that is already open, and returns the directory.
pub(crate) fn take_listed(
    mover: &mut Mover<'_>,
    level: DirectoryPair,
    names: Vec<Name>,
) -> Option<DirectoryPair> {
    let node = FrameNode::Inherited;
    let mut frames = vec![Frame { level, directories: VecDeque::new(), node }];
    take_names(mover, &mut frames, names.into_iter().map(Seen::of_any_kind).collect());
    let mut frame = frames.pop()?;
    if !frame.directories.is_empty() {
        let directory = frame.level.reference();
        let names = ScanNames::Directories(frame.directories.drain(..).collect());
        let kind = TaskKind::Scan { directory, names };
        mover.report.outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
    }
    Some(frame.level)
}

/// Scans the root of a tree: a directory is entered, anything else is a single entry.
fn scan_root(mover: &mut Mover<'_>, at: &DirectoryRef) -> Result<(), EntryError> {
    let root = mover.engine.root(at.root)?;
    if !root.is_directory {
        return scan_single(mover, root, at.root);
    }
    let level = match open_root(mover, at.root) {
        Err(error) if mover.engine.spec.is_no_directory(&error) => {
            finding::tell_no_directory(mover.engine, error.path);
            return Ok(());
        }
        opened => opened?,
    };
    mover.thread.strategy.directory(mover, &level);
    let node = own_node(&mover.engine.spec);
    let mut frames = vec![Frame { level, directories: VecDeque::new(), node }];
    read_directory(mover, &mut frames);
    descend(mover, frames);
    Ok(())
}

/// Opens the root directory of a tree on both sides, and creates it at the destination.
pub(crate) fn open_root(
    mover: &mut Mover<'_>,
    id: dmover_model::RootId,
) -> Result<DirectoryPair, EntryError> {
    let engine = mover.engine;
    let root = engine.root(id)?;
    let source = engine.end.open_source_root(&root.source)?;
    engine.reports.count(Counter::EntriesFound);
    let target = match &root.destination {
        Some(destination) => open_root_target(mover, destination, &source.metadata)?,
        None => None,
    };
    if let Some(target) = &target {
        let identity = target.metadata.identity;
        engine.places.forbidden.add(identity);
        engine.places.forbidden.add_in_layers(target);
        engine.reports.coordinator.tell(|| ReportItem::Forbidden(identity));
    }
    let path = dmover_model::TreePath::root();
    let root = Arc::clone(&root);
    let (base, ancestors) = (directory_pair::open_base(engine, &path), Vec::new());
    let mut level = DirectoryPair { root_id: id, root, path, source, target, base, ancestors };
    narrow::narrow(mover.engine, &mut level)?;
    manifest_records::keep_directory(engine, &level);
    Ok(level)
}

fn open_root_target(
    mover: &mut Mover<'_>,
    side: &RootSide,
    source: &Metadata,
) -> Result<Option<TargetDirectory>, EntryError> {
    if let Some(new) = side.new_directory() {
        // What the check of the roots has let pass may be a link to what was unmounted since.
        refuse_link_as_root(side)?;
        let target = directory::make_target(mover, &new, source)?;
        if let Some(target) = target.as_ref().filter(|target| target.made) {
            mover.engine.places.lock.extend(target);
        }
        return Ok(target);
    }
    let mut target =
        directory_pair::accept(mover.engine, mover.engine.end.open_target_root(side)?)?;
    target.opened_up = mover.session.local.open_up(&target)?;
    directory::remove_leftovers(mover, &target, Some(source))?;
    Ok(Some(target))
}

/// Copies a root that is a single entry.
pub(crate) fn scan_single(
    mover: &mut Mover<'_>,
    root: Arc<Root>,
    id: dmover_model::RootId,
) -> Result<(), EntryError> {
    let at = DirectoryRef {
        root: id,
        path: dmover_model::TreePath::root(),
        source: mover.engine.end.identity_above_source(&root.source)?,
        destination: match &root.destination {
            Some(side) => mover.engine.end.identity_above(side, Side::Destination)?,
            None => dmover_model::Identity::default(),
        },
        made: false,
        ancestors: Vec::new(),
    };
    let Some(name) = root.source.name().cloned() else { return Ok(()) };
    let level = directory_pair::open_level_in(mover.engine, root, &at)?;
    if let Some(target) = &level.target {
        directory::remove_leftovers(mover, target, None)?;
    }
    let node = FrameNode::Inherited;
    let mut frames = vec![Frame { level, directories: VecDeque::new(), node }];
    take_names(mover, &mut frames, vec![Seen::of_any_kind(name)]);
    if !frames[0].directories.is_empty() {
        let words = "the entry became a directory while the job ran";
        let (side, class) = (Side::Source, ErrorClass::Changed);
        let path = frames[0].level.root.source.display().clone();
        return Err(EntryError::plain(side, Operation::Stat, class, path, words));
    }
    Ok(())
}

/// Descends into the directories of the frames, deepest first, until nothing is left or the budget is used; the
/// rest is returned as tasks.
fn descend(mover: &mut Mover<'_>, mut frames: Vec<Frame>) {
    while !frames.is_empty() {
        // Before descending, so that no mover waits while the first directory is filled.
        share_with_the_idle(mover, &mut frames);
        let depth = frames.len();
        let top = &mut frames[depth - 1];
        let Some(name) = top.directories.pop_front() else {
            leave(mover, &mut frames);
            continue;
        };
        if must_hand_back(mover, depth) {
            let index = depth - 1;
            frames[index].directories.push_front(name);
            hand_back(mover, &mut frames, index);
            continue;
        }
        let level = &frames[depth - 1].level;
        if directory_pair::looks_for_unknown(&mover.engine.spec, level)
            && !checked_tree::is_of_manifest(mover.engine, &level.path.join(name.as_bytes()))
        {
            continue;
        }
        let next = std::iter::once(&name).chain(&frames[depth - 1].directories);
        let next = next.take(DIRECTORIES_AHEAD).map(Name::as_bytes);
        level.source.enter_ahead(next, needs_below(mover.engine, level));
        match directory::enter(mover, level, name.as_bytes()) {
            Ok(level) => {
                if level.target.as_ref().is_some_and(|target| target.fresh)
                    && mover.engine.spec.verb == Verb::Verify
                {
                    // A repair has changed a directory that is not finished otherwise.
                    mover.report.mark_dirty(&frames[depth - 1].level.reference());
                }
                let other_mount = level.source.metadata.identity.mount != level.root.mount;
                mover.thread.strategy.directory(mover, &level);
                let node = own_node(&mover.engine.spec);
                frames.push(Frame { level, directories: VecDeque::new(), node });
                if !(other_mount && mover.engine.spec.selection.one_file_system) {
                    read_directory(mover, &mut frames);
                }
            }
            Err(error) => make_do_without(mover, &mut frames, name, error),
        }
    }
}

/// What will be needed of directories that are entered: what a rule leaves out must not be touched, and every file below
/// is opened if nothing is at the destination yet.
fn needs_below(engine: &Engine, level: &DirectoryPair) -> Needs {
    let is_new = level.target.as_ref().is_some_and(|target| target.made);
    let opens_files = is_new && engine.spec.verb.fills() && engine.filter.admits_all();
    Needs {
        goes_below: !engine.filter.has_rules(),
        // Files that come unasked do not wait for a rate.
        opens_files: opens_files && !engine.resources.limits.has_rate(),
    }
}

/// Handles a directory that cannot be entered: it may be unreadable, or no longer a directory.
fn make_do_without(mover: &mut Mover<'_>, frames: &mut [Frame], name: Name, error: EntryError) {
    let Some(Frame { level, .. }) = frames.last() else { return };
    let at_source = error.side == Side::Source;
    if at_source && leads_to_no_directory(&error) {
        let now = plan_entry::look(mover, level, &name);
        if now.is_ok_and(|record| record.metadata.kind != EntryKind::Directory) {
            take_names(mover, frames, vec![Seen::of_any_kind(name)]);
            return;
        }
    }
    if mover.engine.spec.is_no_directory(&error) {
        return finding::tell_no_directory(mover.engine, level.target_path(name.as_bytes()));
    }
    let denied = error.class == ErrorClass::Denied && at_source;
    mover.engine.error(error);
    if denied && mover.engine.spec.verb.fills() {
        directory::bring_closed_directory(mover, level, name.as_bytes());
    }
}

fn must_hand_back(mover: &Mover<'_>, depth: usize) -> bool {
    // A task that started slowly must make some progress, or it would be returned for ever.
    let spent = mover.spent.entries > 0 && mover.budget_is_spent();
    mover.engine.control.is_stopping() || depth >= mover.engine.resources.depth_max || spent
}

/// The node of a directory that is entered here: if nothing is written, there is nothing to finish.
fn own_node(spec: &JobSpec) -> FrameNode {
    let fills = spec.verb.fills();
    if fills { FrameNode::OnTheSpot } else { FrameNode::Inherited }
}

/// Leaves the topmost directory, which has no subdirectories left.
fn leave(mover: &mut Mover<'_>, frames: &mut Vec<Frame>) {
    let Some(frame) = frames.pop() else { return };
    if frame.node == FrameNode::OnTheSpot && mover.waiting.has(&frame.level) {
        // It is finished when its files have their names.
        mover.report.mark_dirty(&frame.level.reference());
        return;
    }
    if frame.node == FrameNode::OnTheSpot
        && !mover.engine.control.is_over()
        && let Err(error) = directory::finish_directory(mover, &frame.level)
    {
        mover.engine.error(error);
    }
}

/// Returns the remaining directories of one frame to the coordinator.
fn hand_back(mover: &mut Mover<'_>, frames: &mut [Frame], index: usize) {
    let directories: Vec<Name> = frames[index].directories.drain(..).collect();
    let parent = report_node(mover, frames, index);
    for shard in shards(directories) {
        let directory = frames[index].level.reference();
        let kind = TaskKind::Scan { directory, names: ScanNames::Directories(shard) };
        mover.report.outcome.tasks.push(NewTask { parent, kind });
    }
}

/// Reports a frame and all frames above it to the coordinator, if it does not have them yet.
fn report_node(mover: &mut Mover<'_>, frames: &mut [Frame], index: usize) -> Parent {
    let mut parent = Parent::Inherited;
    for frame in &mut frames[..=index] {
        parent = match frame.node {
            FrameNode::Inherited => Parent::Inherited,
            FrameNode::Reported(number) => Parent::New(number),
            FrameNode::OnTheSpot => {
                let finish = TaskKind::Finish(vec![frame.level.reference()]);
                let number = mover.report.add_node(NewNode::new(parent, finish));
                frame.node = FrameNode::Reported(number);
                Parent::New(number)
            }
        };
    }
    parent
}

/// Returns the highest remaining directories, which are the largest parts, to idle movers.
fn share_with_the_idle(mover: &mut Mover<'_>, frames: &mut [Frame]) {
    if mover.queue.is_hungry(Class::Small) {
        share_directories(mover, frames);
    }
}

/// Returns whether there were any to share.
fn share_directories(mover: &mut Mover<'_>, frames: &mut [Frame]) -> bool {
    // A single directory is not shared: its receiver would share it again.
    let Some(index) = frames.iter().position(|f| f.directories.len() > 1) else { return false };
    let count = frames[index].directories.len() / 2;
    let keep = frames[index].directories.split_off(count);
    // Half of what is left, cut into several tasks so that every idle mover gets one.
    let given: Vec<Name> = std::mem::replace(&mut frames[index].directories, keep).into();
    let parent = report_node(mover, frames, index);
    let movers = mover.engine.resources.movers();
    let pieces = movers.clamp(1, given.len());
    for piece in given.chunks(given.len().div_ceil(pieces)) {
        for shard in shards(piece.to_vec()) {
            let directory = frames[index].level.reference();
            let kind = TaskKind::Scan { directory, names: ScanNames::Directories(shard) };
            mover.report.outcome.tasks.push(NewTask { parent, kind });
        }
    }
    mover.report.flush();
    true
}

/// Reads the topmost frame's directory, and copies entries as their names arrive.
fn read_directory(mover: &mut Mover<'_>, frames: &mut [Frame]) {
    let Some(frame) = frames.last_mut() else { return };
    let mut seen = extra::looks_for_extra(mover.engine, &frame.level).then(SeenNames::default);
    let result = read_batches(mover, frames, &mut seen);
    hand_on_deferred(mover, frames);
    let Some(frame) = frames.last() else { return };
    if let Err(error) = result {
        mover.engine.error(frame.level.source.unread(error));
    } else if let Some(seen) = seen
        && !mover.engine.control.is_stopping()
    {
        extra::deal_with_extra(mover, &frame.level, &seen);
    }
}

fn read_batches(
    mover: &mut Mover<'_>,
    frames: &mut [Frame],
    seen: &mut Option<SeenNames>,
) -> Result<(), CallFailed> {
    activity::at(Activity::SourceNames);
    let index = frames.len() - 1;
    let mut names: Vec<Seen> = Vec::with_capacity(BATCH);
    let mut shard_bytes = 0;
    let mut quick_check = quick_check::quick_check(mover, &frames[index].level);
    let mut buffer = mover.thread.readers.pop().unwrap_or_default();
    let listing = frames[index].level.source.listing();
    let result = listing.and_then(|listing| {
        listing.read(&mut buffer, |listed| {
            let Listed { bytes, kind, .. } = listed;
            if let Some(seen) = seen {
                seen.insert(bytes);
            }
            if let Some(quick_check) = quick_check.as_mut().filter(|_| kind == ListedKind::File)
                && quick_check::is_left_alone(mover, &frames[index].level, bytes, quick_check)
            {
                return Ok(true);
            }
            if mover.has_given(&frames[index].level, bytes) {
                return Ok(true);
            }
            let name = listed.name()?;
            if kind == ListedKind::Directory && !looks_at_directories(mover.engine) {
                frames[index].directories.push_back(name);
            } else {
                shard_bytes += name.as_bytes().len() + 8;
                names.push(Seen { name, kind });
            }
            mover.lease.extend();
            let spent = mover.budget_is_spent() || mover.engine.control.is_stopping();
            let most = if spent { SHARD_NAMES } else { BATCH };
            if names.len() >= most || shard_bytes >= SHARD_BYTES {
                let batch = std::mem::replace(&mut names, Vec::with_capacity(BATCH));
                shard_bytes = 0;
                take_or_shard(mover, frames, batch);
            }
            if frames[index].directories.len() >= SHARD_NAMES {
                hand_back(mover, frames, index);
                mover.report.flush();
            }
            Ok(true)
        })
    });
    mover.thread.readers.push(buffer);
    quick_check::end_quick_check(mover, quick_check);
    take_or_shard(mover, frames, names);
    result
}

/// Whether directories must be checked with stat although getdents reports their type, because a rule depends on
/// it.
fn looks_at_directories(engine: &Engine) -> bool {
    engine.filter.has_rules() || engine.spec.follows_links()
}

/// Copies names now, or returns them as a shard once the budget is used.
fn take_or_shard(mover: &mut Mover<'_>, frames: &mut [Frame], names: Vec<Seen>) {
    if names.is_empty() {
        return;
    }
    if !(mover.budget_is_spent() || mover.engine.control.is_stopping()) {
        take_names(mover, frames, names);
        return;
    }
    pass_on(mover, frames, names);
}

/// Returns names of the topmost directory for other movers.
fn pass_on(mover: &mut Mover<'_>, frames: &mut [Frame], names: impl IntoIterator<Item = Seen>) {
    let index = frames.len() - 1;
    let parent = report_node(mover, frames, index);
    let (files, others): (Vec<Seen>, Vec<Seen>) =
        names.into_iter().partition(|seen| seen.kind == ListedKind::File);
    let plain = |seen: Vec<Seen>| {
        let mut names: Vec<_> = seen.into_iter().map(|seen| seen.name).collect();
        // They may wait for long, and collect() keeps the room that the others had.
        names.shrink_to_fit();
        names
    };
    for names in [ScanNames::Files(plain(files)), ScanNames::Listed(plain(others))] {
        if matches!(&names, ScanNames::Files(n) | ScanNames::Listed(n) if !n.is_empty()) {
            let directory = frames[index].level.reference();
            mover
                .report
                .outcome
                .tasks
                .push(NewTask { parent, kind: TaskKind::Scan { directory, names } });
        }
    }
    mover.report.flush();
}

/// Plans and applies names of one directory; subdirectories are kept for later.
fn take_names(mover: &mut Mover<'_>, frames: &mut [Frame], names: Vec<Seen>) {
    let Some(frame) = frames.last() else { return };
    // Through messages it is better to look first, and to announce all that will be opened.
    let is_remote = frame.level.source.is_remote();
    let at_sight = !is_remote && mover.thread.strategy.opens_at_sight(mover.engine, &frame.level);
    if is_remote {
        let all: Vec<&[u8]> = names.iter().map(|seen| seen.name.as_bytes()).collect();
        frame
            .level
            .source
            .look_ahead(&all, directory_pair::follows(&mover.engine.spec, &frame.level));
    }
    let mut batch = Vec::with_capacity(if at_sight { 0 } else { names.len().min(BATCH) });
    // Announced: what it needs is on its way while the next one is planned, and while the one before is applied.
    let mut announced = Vec::new();
    let mut names = VecDeque::from(names);
    let (mut taken, mut since) = (0, Instant::now());
    while let Some(Seen { mut name, kind }) = names.pop_front() {
        taken += 1;
        if taken >= mover.session.tools.stride.names() {
            let elapsed_ms = since.elapsed().as_millis() as u64;
            mover.session.tools.stride = mover.session.tools.stride.after(elapsed_ms);
            (taken, since) = (0, Instant::now());
        }
        if taken == 0 && names.len() >= mover.session.tools.stride.names().max(2) {
            if mover.lease.is_wanted_back() {
                pass_on(mover, frames, std::mem::take(&mut names));
            } else if mover.queue.is_hungry(Class::Small) && !share_directories(mover, frames) {
                let rest = names.split_off(names.len() / 2);
                pass_on(mover, frames, rest);
            }
        }
        let Some(frame) = frames.last_mut() else { return };
        if at_sight && kind == ListedKind::File {
            match mover.thread.strategy.file_at_sight(mover, &frame.level, name) {
                None => continue,
                Some(back) => name = back,
            }
        }
        if let Some(planned) =
            plan_names::plan_name(mover, &frame.level, name, &mut frame.directories)
        {
            batch.push(planned);
        }
        if !is_remote && batch.len() >= BATCH {
            apply::apply(mover, &frame.level, std::mem::take(&mut batch));
        } else if is_remote && batch.len() >= REMOTE_BATCH {
            apply::announce(mover.engine, &frame.level, &batch);
            let next = std::mem::take(&mut batch);
            apply::apply(mover, &frame.level, std::mem::replace(&mut announced, next));
        }
    }
    if let Some(frame) = frames.last() {
        apply::announce(mover.engine, &frame.level, &batch);
        apply::apply(mover, &frame.level, announced);
        apply::apply(mover, &frame.level, batch);
    }
    hand_on_deferred(mover, frames);
}

/// Returns large files and unexpected work as tasks below the topmost directory.
fn hand_on_deferred(mover: &mut Mover<'_>, frames: &mut [Frame]) {
    if mover.report.deferred.is_empty() {
        return;
    }
    let parent = report_node(mover, frames, frames.len() - 1);
    let kinds = std::mem::take(&mut mover.report.deferred);
    mover.report.outcome.tasks.extend(kinds.into_iter().map(|kind| NewTask { parent, kind }));
    mover.report.flush();
}

/// Shows a directory to who wants to see entries.
pub(crate) fn show_directory(engine: &Engine, level: &DirectoryPair) {
    if !engine.reports.wants_items() {
        return;
    }
    let action = match &level.target {
        Some(target) if !target.fresh => Action::Skipped,
        _ => Action::Created,
    };
    let old = level.target.as_ref().filter(|t| !t.fresh);
    let old = old.map(|target| target.narrowed.as_deref().unwrap_or(&target.metadata));
    let wanted = engine.settable.as_settable(&level.source.metadata, old);
    engine.reports.show(Event::Item(Item {
        path: level.own_source_path(),
        target: level.own_target_path(),
        action,
        kind: EntryKind::Directory,
        bytes: 0,
        elapsed_us: 0,
        itemized: itemize::columns(action, &wanted, old),
    }));
}

/// Refuses to replace a symbolic link that the user named as the destination.
fn refuse_link_as_root(side: &RootSide) -> Result<(), EntryError> {
    if side.is_symlink() {
        let words = "the destination is a dangling symbolic link";
        let (operation, class) = (Operation::Open, ErrorClass::TypeConflict);
        let shown = side.display().clone();
        return Err(EntryError::plain(Side::Destination, operation, class, shown, words));
    }
    Ok(())
}

/// Cuts a list of names into shards that fit into a task.
fn shards(names: Vec<Name>) -> Vec<Vec<Name>> {
    let mut shards = vec![Vec::new()];
    let mut bytes = 0;
    for name in names {
        bytes += name.as_bytes().len() + 8;
        if let Some(last) = shards.last_mut() {
            last.push(name);
            if last.len() >= SHARD_NAMES || bytes >= SHARD_BYTES {
                shards.push(Vec::new());
                bytes = 0;
            }
        }
    }
    shards.retain(|s| !s.is_empty());
    shards
}
