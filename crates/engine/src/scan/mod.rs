//! The source half: it reads directories, plans each entry, descends depth first within the budget, and returns the
//! rest.
use dmover_local::error::{CallFailed, leads_to_no_directory};
use dmover_local::listing::{Listed, ListedKind};
use dmover_local::root::Root;
use dmover_local::root_side::RootSide;
use dmover_local::seen_names::SeenNames;
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

use crate::level::{Level, TargetDirectory};
use crate::mover::Mover;
use crate::mover_report::ReportItem;
use crate::queue::Class;

mod changed;
mod list;

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
    level: Level,
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

impl Mover<'_> {
    /// Runs a scan task.
    pub(crate) fn run_scan(&mut self, at: &DirectoryRef, names: ScanNames) {
        let result = match names {
            ScanNames::Root => self.scan_root(at),
            ScanNames::Listed(names) => self.scan_names(at, names, ListedKind::Unknown),
            ScanNames::Files(names) => self.scan_names(at, names, ListedKind::File),
            ScanNames::Directories(names) => self.scan_names(at, names, ListedKind::Directory),
            ScanNames::Extra => self.scan_extra(at),
            ScanNames::Changed(places) => {
                self.scan_changed(at.root, places);
                Ok(())
            }
            ScanNames::Paths(paths) => {
                self.scan_paths(at.root, paths);
                Ok(())
            }
        };
        if let Err(error) = result {
            self.engine.error(error);
        }
    }

    fn scan_names(
        &mut self,
        at: &DirectoryRef,
        mut names: Vec<Name>,
        kind: ListedKind,
    ) -> Result<(), EntryError> {
        let mut level = self.engine.open_level(at)?;
        names.retain(|name| !self.has_given(&level, name.as_bytes()));
        if let Some(target) = &mut level.target {
            // Names of a directory that this job has created are issued once. Other entries in it are found when an
            // entry is created, and handled then.
            target.fresh = at.made && !self.lease.task.resumed;
        }
        let node = FrameNode::Inherited;
        let mut frames = vec![Frame { level, directories: VecDeque::new(), node }];
        if kind == ListedKind::Directory {
            frames[0].directories = names.into();
        } else {
            let seen = names.into_iter().map(|name| Seen { name, kind });
            self.take_names(&mut frames, seen.collect());
        }
        self.descend(frames);
        Ok(())
    }

    /// Copies names of one directory that is already open, and returns the directory.
    pub(crate) fn take_listed(&mut self, level: Level, names: Vec<Name>) -> Option<Level> {
        let node = FrameNode::Inherited;
        let mut frames = vec![Frame { level, directories: VecDeque::new(), node }];
        self.take_names(&mut frames, names.into_iter().map(Seen::of_any_kind).collect());
        let mut frame = frames.pop()?;
        if !frame.directories.is_empty() {
            let directory = frame.level.reference();
            let names = ScanNames::Directories(frame.directories.drain(..).collect());
            let kind = TaskKind::Scan { directory, names };
            self.outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
        }
        Some(frame.level)
    }

    /// Scans the root of a tree: a directory is entered, anything else is a single entry.
    fn scan_root(&mut self, at: &DirectoryRef) -> Result<(), EntryError> {
        let root = self.engine.root(at.root)?;
        if !root.is_directory {
            return self.scan_single(root, at.root);
        }
        let level = match self.open_root(at.root) {
            Err(error) if self.engine.spec.is_no_directory(&error) => {
                self.engine.tell_no_directory(error.path);
                return Ok(());
            }
            opened => opened?,
        };
        self.strategy.directory(self, &level);
        let node = self.own_node();
        let mut frames = vec![Frame { level, directories: VecDeque::new(), node }];
        self.read_directory(&mut frames);
        self.descend(frames);
        Ok(())
    }

    /// Opens the root directory of a tree on both sides, and creates it at the destination.
    pub(crate) fn open_root(&mut self, id: dmover_model::RootId) -> Result<Level, EntryError> {
        let engine = self.engine;
        let root = engine.root(id)?;
        let source = engine.end.open_source_root(&root.source)?;
        engine.reports.count(Counter::EntriesFound);
        let target = match &root.destination {
            Some(destination) => self.open_root_target(destination, &source.metadata)?,
            None => None,
        };
        if let Some(target) = &target {
            let identity = target.metadata.identity;
            engine.places.forbidden.add(identity);
            engine.places.forbidden.add_in_layers(target);
            engine.reports.desk.tell(|| ReportItem::Forbidden(identity));
        }
        let path = dmover_model::TreePath::root();
        let root = Arc::clone(&root);
        let (base, ancestors) = (engine.open_base(&path), Vec::new());
        let mut level = Level { root_id: id, root, path, source, target, base, ancestors };
        self.narrow(&mut level)?;
        engine.keep_directory(&level);
        Ok(level)
    }

    fn open_root_target(
        &mut self,
        side: &RootSide,
        source: &Metadata,
    ) -> Result<Option<TargetDirectory>, EntryError> {
        if let Some(new) = side.new_directory() {
            // What the check of the roots has let pass may be a link to what was unmounted since.
            refuse_link_as_root(side)?;
            let target = self.make_target(&new, source)?;
            if let Some(target) = target.as_ref().filter(|target| target.made) {
                self.engine.places.lock.extend(target);
            }
            return Ok(target);
        }
        let mut target = self.engine.accept(self.engine.end.open_target_root(side)?)?;
        target.opened_up = self.session.local.open_up(&target)?;
        self.remove_leftovers(&target, Some(source))?;
        Ok(Some(target))
    }

    /// Copies a root that is a single entry.
    pub(crate) fn scan_single(
        &mut self,
        root: Arc<Root>,
        id: dmover_model::RootId,
    ) -> Result<(), EntryError> {
        let at = DirectoryRef {
            root: id,
            path: dmover_model::TreePath::root(),
            source: self.engine.end.identity_above_source(&root.source)?,
            destination: match &root.destination {
                Some(side) => self.engine.end.identity_above(side, Side::Destination)?,
                None => dmover_model::Identity::default(),
            },
            made: false,
            ancestors: Vec::new(),
        };
        let Some(name) = root.source.name().cloned() else { return Ok(()) };
        let level = self.engine.open_level_in(root, &at)?;
        if let Some(target) = &level.target {
            self.remove_leftovers(target, None)?;
        }
        let node = FrameNode::Inherited;
        let mut frames = vec![Frame { level, directories: VecDeque::new(), node }];
        self.take_names(&mut frames, vec![Seen::of_any_kind(name)]);
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
    fn descend(&mut self, mut frames: Vec<Frame>) {
        while !frames.is_empty() {
            // Before descending, so that no mover waits while the first directory is filled.
            self.share_with_the_idle(&mut frames);
            let depth = frames.len();
            let top = &mut frames[depth - 1];
            let Some(name) = top.directories.pop_front() else {
                self.leave(&mut frames);
                continue;
            };
            if self.must_hand_back(depth) {
                let index = depth - 1;
                frames[index].directories.push_front(name);
                self.hand_back(&mut frames, index);
                continue;
            }
            let level = &frames[depth - 1].level;
            if self.engine.looks_for_unknown(level)
                && !self.is_of_manifest(&level.path.join(name.as_bytes()))
            {
                continue;
            }
            let next = std::iter::once(&name).chain(&frames[depth - 1].directories);
            let next = next.take(DIRECTORIES_AHEAD).map(Name::as_bytes);
            level.source.enter_ahead(next, self.needs_below(level));
            match self.enter(level, name.as_bytes()) {
                Ok(level) => {
                    if level.target.as_ref().is_some_and(|target| target.fresh)
                        && self.engine.spec.verb == Verb::Verify
                    {
                        // A repair has changed a directory that is not finished otherwise.
                        self.mark_dirty(&frames[depth - 1].level.reference());
                    }
                    let other_mount = level.source.metadata.identity.mount != level.root.mount;
                    self.strategy.directory(self, &level);
                    let node = self.own_node();
                    frames.push(Frame { level, directories: VecDeque::new(), node });
                    if !(other_mount && self.engine.spec.selection.one_file_system) {
                        self.read_directory(&mut frames);
                    }
                }
                Err(error) => self.make_do_without(&mut frames, name, error),
            }
        }
    }

    /// What will be needed of directories that are entered: what a rule leaves out must not be touched, and every file below
    /// is opened if nothing is at the destination yet.
    fn needs_below(&self, level: &Level) -> Needs {
        let engine = self.engine;
        let is_new = level.target.as_ref().is_some_and(|target| target.made);
        let opens_files = is_new && engine.spec.verb.fills() && engine.filter.admits_all();
        Needs {
            goes_below: !engine.filter.has_rules(),
            // Files that come unasked do not wait for a rate.
            opens_files: opens_files && !engine.resources.limits.has_rate(),
        }
    }

    /// Handles a directory that cannot be entered: it may be unreadable, or no longer a directory.
    fn make_do_without(&mut self, frames: &mut [Frame], name: Name, error: EntryError) {
        let Some(Frame { level, .. }) = frames.last() else { return };
        let at_source = error.side == Side::Source;
        if at_source && leads_to_no_directory(&error) {
            let now = self.look(level, &name);
            if now.is_ok_and(|record| record.metadata.kind != EntryKind::Directory) {
                self.take_names(frames, vec![Seen::of_any_kind(name)]);
                return;
            }
        }
        if self.engine.spec.is_no_directory(&error) {
            return self.engine.tell_no_directory(level.target_path(name.as_bytes()));
        }
        let denied = error.class == ErrorClass::Denied && at_source;
        self.engine.error(error);
        if denied && self.engine.spec.verb.fills() {
            self.bring_closed_directory(level, name.as_bytes());
        }
    }

    fn must_hand_back(&self, depth: usize) -> bool {
        // A task that started slowly must make some progress, or it would be returned for ever.
        let spent = self.spent.entries > 0 && self.budget_is_spent();
        self.engine.control.is_stopping() || depth >= self.engine.resources.depth_max || spent
    }

    /// The node of a directory that is entered here: if nothing is written, there is nothing to finish.
    fn own_node(&self) -> FrameNode {
        let fills = self.engine.spec.verb.fills();
        if fills { FrameNode::OnTheSpot } else { FrameNode::Inherited }
    }

    /// Leaves the topmost directory, which has no subdirectories left.
    fn leave(&mut self, frames: &mut Vec<Frame>) {
        let Some(frame) = frames.pop() else { return };
        if frame.node == FrameNode::OnTheSpot && self.waiting.has(&frame.level) {
            // It is finished when its files have their names.
            self.mark_dirty(&frame.level.reference());
            return;
        }
        if frame.node == FrameNode::OnTheSpot
            && !self.engine.control.is_over()
            && let Err(error) = self.finish_directory(&frame.level)
        {
            self.engine.error(error);
        }
    }

    /// Returns the remaining directories of one frame to the coordinator.
    fn hand_back(&mut self, frames: &mut [Frame], index: usize) {
        let directories: Vec<Name> = frames[index].directories.drain(..).collect();
        let parent = self.report_node(frames, index);
        for shard in shards(directories) {
            let directory = frames[index].level.reference();
            let kind = TaskKind::Scan { directory, names: ScanNames::Directories(shard) };
            self.outcome.tasks.push(NewTask { parent, kind });
        }
    }

    /// Reports a frame and all frames above it to the coordinator, if it does not have them yet.
    fn report_node(&mut self, frames: &mut [Frame], index: usize) -> Parent {
        let mut parent = Parent::Inherited;
        for frame in &mut frames[..=index] {
            parent = match frame.node {
                FrameNode::Inherited => Parent::Inherited,
                FrameNode::Reported(number) => Parent::New(number),
                FrameNode::OnTheSpot => {
                    let finish = TaskKind::Finish(vec![frame.level.reference()]);
                    let number = self.report(NewNode::new(parent, finish));
                    frame.node = FrameNode::Reported(number);
                    Parent::New(number)
                }
            };
        }
        parent
    }

    /// Returns the highest remaining directories, which are the largest parts, to idle movers.
    fn share_with_the_idle(&mut self, frames: &mut [Frame]) {
        if self.queue.is_hungry(Class::Small) {
            self.share_directories(frames);
        }
    }

    /// Returns whether there were any to share.
    fn share_directories(&mut self, frames: &mut [Frame]) -> bool {
        // A single directory is not shared: its receiver would share it again.
        let Some(index) = frames.iter().position(|f| f.directories.len() > 1) else { return false };
        let count = frames[index].directories.len() / 2;
        let keep = frames[index].directories.split_off(count);
        // Half of what is left, cut into several tasks so that every idle mover gets one.
        let given: Vec<Name> = std::mem::replace(&mut frames[index].directories, keep).into();
        let parent = self.report_node(frames, index);
        let movers = self.engine.resources.movers();
        let pieces = movers.clamp(1, given.len());
        for piece in given.chunks(given.len().div_ceil(pieces)) {
            for shard in shards(piece.to_vec()) {
                let directory = frames[index].level.reference();
                let kind = TaskKind::Scan { directory, names: ScanNames::Directories(shard) };
                self.outcome.tasks.push(NewTask { parent, kind });
            }
        }
        self.flush();
        true
    }

    /// Reads the topmost frame's directory, and copies entries as their names arrive.
    fn read_directory(&mut self, frames: &mut [Frame]) {
        let Some(frame) = frames.last_mut() else { return };
        let mut seen = self.looks_for_extra(&frame.level).then(SeenNames::default);
        let result = self.read_batches(frames, &mut seen);
        self.hand_on_deferred(frames);
        let Some(frame) = frames.last() else { return };
        if let Err(error) = result {
            self.engine.error(frame.level.source.unread(error));
        } else if let Some(seen) = seen
            && !self.engine.control.is_stopping()
        {
            self.deal_with_extra(&frame.level, &seen);
        }
    }

    fn read_batches(
        &mut self,
        frames: &mut [Frame],
        seen: &mut Option<SeenNames>,
    ) -> Result<(), CallFailed> {
        activity::at(Activity::SourceNames);
        let index = frames.len() - 1;
        let mut names: Vec<Seen> = Vec::with_capacity(BATCH);
        let mut shard_bytes = 0;
        let mut quick_check = self.quick_check(&frames[index].level);
        let mut buffer = self.readers.pop().unwrap_or_default();
        let listing = frames[index].level.source.listing();
        let result = listing.and_then(|listing| {
            listing.read(&mut buffer, |listed| {
                let Listed { bytes, kind, .. } = listed;
                if let Some(seen) = seen {
                    seen.insert(bytes);
                }
                if let Some(quick_check) = quick_check.as_mut().filter(|_| kind == ListedKind::File)
                    && self.is_left_alone(&frames[index].level, bytes, quick_check)
                {
                    return Ok(true);
                }
                if self.has_given(&frames[index].level, bytes) {
                    return Ok(true);
                }
                let name = listed.name()?;
                if kind == ListedKind::Directory && !self.looks_at_directories() {
                    frames[index].directories.push_back(name);
                } else {
                    shard_bytes += name.as_bytes().len() + 8;
                    names.push(Seen { name, kind });
                }
                self.lease.extend();
                let spent = self.budget_is_spent() || self.engine.control.is_stopping();
                let most = if spent { SHARD_NAMES } else { BATCH };
                if names.len() >= most || shard_bytes >= SHARD_BYTES {
                    let batch = std::mem::replace(&mut names, Vec::with_capacity(BATCH));
                    shard_bytes = 0;
                    self.take_or_shard(frames, batch);
                }
                if frames[index].directories.len() >= SHARD_NAMES {
                    self.hand_back(frames, index);
                    self.flush();
                }
                Ok(true)
            })
        });
        self.readers.push(buffer);
        self.end_quick_check(quick_check);
        self.take_or_shard(frames, names);
        result
    }

    /// Whether directories must be checked with stat although getdents reports their type, because a rule depends on
    /// it.
    fn looks_at_directories(&self) -> bool {
        self.engine.filter.has_rules() || self.engine.spec.follows_links()
    }

    /// Copies names now, or returns them as a shard once the budget is used.
    fn take_or_shard(&mut self, frames: &mut [Frame], names: Vec<Seen>) {
        if names.is_empty() {
            return;
        }
        if !(self.budget_is_spent() || self.engine.control.is_stopping()) {
            self.take_names(frames, names);
            return;
        }
        self.pass_on(frames, names);
    }

    /// Returns names of the topmost directory for other movers.
    fn pass_on(&mut self, frames: &mut [Frame], names: impl IntoIterator<Item = Seen>) {
        let index = frames.len() - 1;
        let parent = self.report_node(frames, index);
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
                self.outcome
                    .tasks
                    .push(NewTask { parent, kind: TaskKind::Scan { directory, names } });
            }
        }
        self.flush();
    }

    /// Plans and applies names of one directory; subdirectories are kept for later.
    fn take_names(&mut self, frames: &mut [Frame], names: Vec<Seen>) {
        let Some(frame) = frames.last() else { return };
        // Through messages it is better to look first, and to announce all that will be opened.
        let is_remote = frame.level.source.is_remote();
        let at_sight = !is_remote && self.strategy.opens_at_sight(self.engine, &frame.level);
        if is_remote {
            let all: Vec<&[u8]> = names.iter().map(|seen| seen.name.as_bytes()).collect();
            frame.level.source.look_ahead(&all, self.engine.follows(&frame.level));
        }
        let mut batch = Vec::with_capacity(if at_sight { 0 } else { names.len().min(BATCH) });
        // Announced: what it needs is on its way while the next one is planned, and while the one before is applied.
        let mut announced = Vec::new();
        let mut names = VecDeque::from(names);
        let (mut taken, mut since) = (0, Instant::now());
        while let Some(Seen { mut name, kind }) = names.pop_front() {
            taken += 1;
            if taken >= self.session.tools.stride.names() {
                let elapsed_ms = since.elapsed().as_millis() as u64;
                self.session.tools.stride = self.session.tools.stride.after(elapsed_ms);
                (taken, since) = (0, Instant::now());
            }
            if taken == 0 && names.len() >= self.session.tools.stride.names().max(2) {
                if self.lease.is_wanted_back() {
                    self.pass_on(frames, std::mem::take(&mut names));
                } else if self.queue.is_hungry(Class::Small) && !self.share_directories(frames) {
                    let rest = names.split_off(names.len() / 2);
                    self.pass_on(frames, rest);
                }
            }
            let Some(frame) = frames.last_mut() else { return };
            if at_sight && kind == ListedKind::File {
                match self.strategy.file_at_sight(self, &frame.level, name) {
                    None => continue,
                    Some(back) => name = back,
                }
            }
            if let Some(planned) = self.plan_name(&frame.level, name, &mut frame.directories) {
                batch.push(planned);
            }
            if !is_remote && batch.len() >= BATCH {
                self.apply(&frame.level, std::mem::take(&mut batch));
            } else if is_remote && batch.len() >= REMOTE_BATCH {
                self.announce(&frame.level, &batch);
                let next = std::mem::take(&mut batch);
                self.apply(&frame.level, std::mem::replace(&mut announced, next));
            }
        }
        if let Some(frame) = frames.last() {
            self.announce(&frame.level, &batch);
            self.apply(&frame.level, announced);
            self.apply(&frame.level, batch);
        }
        self.hand_on_deferred(frames);
    }

    /// Returns large files and unexpected work as tasks below the topmost directory.
    fn hand_on_deferred(&mut self, frames: &mut [Frame]) {
        if self.deferred.is_empty() {
            return;
        }
        let parent = self.report_node(frames, frames.len() - 1);
        let kinds = std::mem::take(&mut self.deferred);
        self.outcome.tasks.extend(kinds.into_iter().map(|kind| NewTask { parent, kind }));
        self.flush();
    }

    /// Shows a directory to who wants to see entries.
    pub(crate) fn show_directory(&self, level: &Level) {
        if !self.engine.reports.wants_items() {
            return;
        }
        let action = match &level.target {
            Some(target) if !target.fresh => Action::Skipped,
            _ => Action::Created,
        };
        let old = level.target.as_ref().filter(|t| !t.fresh);
        let old = old.map(|target| target.narrowed.as_deref().unwrap_or(&target.metadata));
        let wanted = self.engine.settable.as_settable(&level.source.metadata, old);
        self.engine.reports.show(Event::Item(Item {
            path: level.own_source_path(),
            target: level.own_target_path(),
            action,
            kind: EntryKind::Directory,
            bytes: 0,
            elapsed_us: 0,
            itemized: itemize::columns(action, &wanted, old),
        }));
    }
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
