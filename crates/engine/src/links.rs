//! Hard links: names of one inode at the source become names of one inode at the destination.
//!
//! This phase follows the scan of the tree, when all names of an inode are known. The first name is copied, the others
//! are linked to it; a group is checked as a whole, so that a replaced file keeps all its names.
use dmover_local::error::{absent, is_absent};
use dmover_local::links::{Anchor, ClearedLocks, FurtherName, LinkOutcome};
use dmover_model::{
    Action, Content, DirectoryRef, EntryError, EntryKind, EntryRecord, ErrorClass, Event, FileRef,
    Identity, Item, LinkGroup, LossKind, Metadata, Name, NewNode, NewTask, Operation, Overwrite,
    Parent, PathBytes, Side, TaskKind,
};
use dmover_observe::Counter;
use dmover_plan::decide::Decision;
use dmover_plan::itemize;
use std::io;

use crate::level::Level;
use crate::mover::Mover;

/// A name that is in place with the content of the group.
struct Carrier {
    level: Level,
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

impl Mover<'_> {
    /// Runs a links task.
    pub(crate) fn run_links(&mut self, groups: &[LinkGroup]) {
        for group in groups {
            if self.engine.control.is_stopping() {
                self.give_up(group);
                continue;
            }
            if self.lease.task.resumed {
                // An earlier run may have created names here without reporting it.
                std::iter::once(&group.first)
                    .chain(&group.rest)
                    .for_each(|file| self.mark_dirty(&file.directory));
            }
            self.strategy.links(self, group);
            self.lease.extend();
        }
        self.settle_linked();
    }

    fn settle_linked(&self) {
        if let Some(sharing) = &self.engine.pass.sharing
            && let Err(error) = sharing.settle()
        {
            let words = error.to_string();
            let (side, class) = (Side::Destination, ErrorClass::Other);
            let path = self.engine.spec.destination.clone();
            self.engine.error(EntryError::plain(side, Operation::Link, class, path, words));
        }
    }

    fn give_up(&self, group: &LinkGroup) {
        for file in std::iter::once(&group.first).chain(&group.rest) {
            let (at, last) = (&file.directory, file.destination_name.as_bytes());
            let path = self.engine.destination_path(at.root, &at.path, last);
            self.engine.error(dmover_local::error::cancelled(path));
        }
    }

    /// In a dry run, reports a group: the first possible name would be copied, and the others linked to it.
    pub(crate) fn preview(&mut self, group: &LinkGroup) {
        // The destination inode that stays, if the first name already exists.
        let mut carrier: Option<Option<Metadata>> = None;
        for file in std::iter::once(&group.first).chain(&group.rest) {
            let looked = self.engine.open_level(&file.directory);
            let looked = looked.and_then(|level| Ok((self.look(&level, &file.name)?, level)));
            let (record, level) = match looked {
                Ok(looked) => looked,
                Err(error) => {
                    self.engine.error(error);
                    continue;
                }
            };
            let metadata = record.metadata.clone();
            let Some(planned) = self.plan_record(&level, record) else { continue };
            let (old, decision) = (planned.existing.clone(), planned.decision);
            let refused = matches!(decision, Decision::Refuse(..));
            match (&carrier, &old) {
                _ if refused => {
                    self.apply_one(&level, planned);
                }
                (None, _) => {
                    let looks = [Decision::Skip, Decision::Inspect, Decision::Compare];
                    let stays = looks.contains(&decision);
                    let same = old.as_ref().zip(level.target.as_ref());
                    let same = same.is_some_and(|(old, t)| self.is_the_same(&metadata, old, t));
                    self.apply_one(&level, planned);
                    if !stays || same {
                        carrier = Some(old.filter(|_| stays));
                    }
                }
                (Some(kept), Some(old))
                    if kept.as_ref().is_some_and(|kept| kept.identity == old.identity)
                        || self.keeps_existing(old, kept.as_ref().unwrap_or(&metadata)) =>
                {
                    self.engine.reports.count(Counter::EntriesSkipped);
                    self.note_had(1);
                    self.tell_link(&level, file, old, Some(old));
                }
                (Some(_), Some(old))
                    if old.kind == EntryKind::Directory
                        && !self.clear_for_link(&level, &file.destination_name, old) =>
                {
                    self.engine
                        .error(in_the_way(level.target_path(file.destination_name.as_bytes())));
                }
                _ => {
                    self.engine.reports.count(Counter::HardLinksCreated);
                    self.note_link_had(old.as_ref());
                    self.tell_link(&level, file, &metadata, old.as_ref());
                }
            }
        }
    }

    /// Copies the first possible name; every later name is linked to it.
    pub(crate) fn link_group(&mut self, group: &LinkGroup) {
        let led = self.led_by_base(group);
        let group = led.as_ref().unwrap_or(group);
        if led.is_none() && !group.first_is_done && self.goes_ahead_in_chunks(group) {
            return;
        }
        let mut names = std::iter::once(&group.first).chain(&group.rest);
        let mut done = group.first_is_done;
        self.is_doubtful = self.engine.doubts.has_any(group);
        let carrier = loop {
            let Some(file) = names.next() else { break None };
            match self.carry(group, file, done) {
                Ok(Some(carrier)) => break Some(carrier),
                Ok(None) => {}
                Err(error) => self.engine.error(error),
            }
            done = false;
        };
        self.is_doubtful = false;
        let Some(carrier) = carrier else { return };
        let Some(at) = &carrier.level.target else { return };
        let anchor = Anchor {
            at,
            name: carrier.name.as_bytes(),
            metadata: &carrier.metadata,
            source: carrier.source,
        };
        self.engine.doubts.share(anchor.source, &group.rest);
        if !group.rest.is_empty() {
            self.note_linked(&carrier.level, anchor.name, anchor.metadata.identity);
            // Before there is a second name: a run that resumes this must know that the names are its own.
            self.settle_linked();
        }
        let cleared = ClearedLocks::default();
        let mut linking = Linking { anchor, is_sure: !group.first_is_done, cleared };
        for file in names {
            self.link_name(file, &mut linking);
            self.lease.extend();
        }
        if let Err(error) = self.engine.local().lock_again(&anchor, linking.cleared) {
            self.engine.error(error);
        }
    }

    /// The group with a name at the front that the previous snapshot has, if there is one.
    fn led_by_base(&self, group: &LinkGroup) -> Option<LinkGroup> {
        self.engine.pass.sharing.as_ref().filter(|own| own.has_base() && !group.first_is_done)?;
        let has = |file: &FileRef| {
            let Ok(level) = self.engine.open_level(&file.directory) else { return false };
            let Ok(record) = self.look(&level, &file.name) else { return false };
            let free = self.present(&level, file).is_none();
            free && self.based(&level, &record).is_some_and(|based| based.is_equal())
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
    fn goes_ahead_in_chunks(&mut self, group: &LinkGroup) -> bool {
        if !self.engine.spec.verb.fills() {
            return false; // a file that is started again would be compared
        }
        let level = self.engine.open_level(&group.first.directory);
        if let Ok(level) = &level {
            self.note_opened_up(level, &group.first.directory);
        }
        let record = level.and_then(|level| self.look(&level, &group.first.name));
        // An error is reported when the name is copied.
        let large = record.is_ok_and(|record| {
            record.metadata.kind == EntryKind::File && self.is_worth_splitting(&record.metadata)
        });
        if large {
            let mut rest = group.clone();
            rest.first_is_done = true;
            let finish = TaskKind::Links(vec![rest]);
            let number = self.report(NewNode::new(Parent::Inherited, finish));
            let kind = TaskKind::Open { file: group.first.clone(), round: 1 };
            self.outcome.tasks.push(NewTask { parent: Parent::New(number), kind });
            self.outcome.dirty.push(group.first.directory.clone());
        }
        large
    }

    /// Copies one name with its content. `None`: it failed, or the policy keeps another version there, so that no other
    /// name may be linked to it.
    fn carry(
        &mut self,
        group: &LinkGroup,
        file: &FileRef,
        done: bool,
    ) -> Result<Option<Carrier>, EntryError> {
        let level = self.engine.open_level(&file.directory)?;
        self.note_opened_up(&level, &file.directory);
        let record = self.look(&level, &file.name)?;
        // A name that was just written is right; an existing one must be checked.
        let mut trusted = false;
        if !done {
            let before = self.present(&level, file);
            let Some(planned) = self.plan_record(&level, record.clone()) else { return Ok(None) };
            trusted = matches!(planned.decision, Decision::Create | Decision::Replace);
            self.names_here = 0;
            if matches!(planned.decision, Decision::Inspect | Decision::Compare) {
                self.names_here = self.count_names(group, planned.existing.as_ref());
            }
            let in_place = self.apply_one(&level, planned);
            // An attempt that failed has made something in the directory as well, and removed it.
            if !in_place || self.present(&level, file) != before {
                self.mark_dirty(&file.directory);
            }
            if !in_place {
                return Ok(None);
            }
            self.hand_on_as_inherited();
        }
        let name = file.destination_name.clone();
        let missing = || {
            let path = level.target_path(name.as_bytes());
            absent(Side::Destination, Operation::Link, path)
        };
        let target = level.target.as_ref().ok_or_else(missing)?;
        let look = || self.session.local.look_to_link(target, name.as_bytes());
        let metadata = match if done { self.engine.until_seen(look) } else { look() } {
            Ok(metadata) => metadata,
            // The failure of a large file was already reported.
            Err(error) if is_absent(&error) && done => return Ok(None),
            Err(error) => return Err(error),
        };
        if !trusted && !self.is_the_same(&record.metadata, &metadata, target) {
            return Ok(None);
        }
        let source = record.metadata.identity;
        if done {
            self.carried = self.engine.proof.sealed(source);
        }
        Ok(Some(Carrier { level, name, metadata, source }))
    }

    /// How many names of a group refer to an inode at the destination.
    fn count_names(&self, group: &LinkGroup, inode: Option<&Metadata>) -> u64 {
        let is_name = |file: &&FileRef| {
            let level = self.engine.open_level(&file.directory).ok();
            let found = level.and_then(|level| self.present(&level, file));
            let found = found.map(|found| found.identity);
            found.is_some() && found == inode.map(|inode| inode.identity)
        };
        std::iter::once(&group.first).chain(&group.rest).filter(is_name).count() as u64
    }

    fn present(&self, level: &Level, file: &FileRef) -> Option<Metadata> {
        let target = level.target.as_ref()?;
        self.engine.end.visible(target, file.destination_name.as_bytes())
    }

    fn link_name(&mut self, file: &FileRef, linking: &mut Linking<'_>) {
        let engine = self.engine;
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
            let level = engine.open_level(&file.directory)?;
            tries += 1;
            self.note_opened_up(&level, &file.directory);
            let kept = match self.link_one(&level, file, linking)? {
                Linked::Impossible(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                    self.link_across_projects(&level, file, linking, error)?
                }
                linked => linked,
            };
            Ok((level, kept))
        });
        match result {
            Err(error) => {
                engine.error(error);
                if tries > 0 {
                    self.mark_dirty(&file.directory);
                }
            }
            Ok((level, Linked::Already)) if tries == 1 => {
                settle();
                self.engine.reports.count(Counter::EntriesSkipped);
                self.note_had(1);
                if matches!(self.engine.spec.policy.overwrite, Overwrite::Never | Overwrite::Older)
                {
                    // Another file may stand there, as the policy wants it.
                    self.engine.proof.leave_out();
                } else if self.engine.proof.keeps_what_is_there() {
                    self.keep_link(&level, file);
                }
                self.tell_link(&level, file, anchor.metadata, Some(anchor.metadata));
            }
            Ok((_, Linked::Later)) => self.hand_on_as_inherited(),
            // The name was created by an attempt whose answer was lost.
            Ok((level, Linked::Already)) => self.linked(&level, file, anchor, None),
            Ok((level, Linked::New(old))) => {
                settle();
                self.linked(&level, file, anchor, old.as_deref());
            }
            Ok((level, Linked::Impossible(error))) => self.copy_instead(&level, file, &error),
            Ok((level, Linked::Separate(record))) => {
                if let Some(planned) = self.plan_record(&level, *record) {
                    self.names_here = 0;
                    self.apply_one(&level, planned);
                }
                self.mark_dirty(&file.directory);
                self.hand_on_as_inherited();
            }
        }
    }

    fn note_opened_up(&mut self, level: &Level, directory: &DirectoryRef) {
        if level.target.as_ref().is_some_and(|t| t.opened_up) {
            self.mark_dirty(directory);
        }
    }

    fn link_one(
        &mut self,
        level: &Level,
        file: &FileRef,
        linking: &mut Linking<'_>,
    ) -> Result<Linked, EntryError> {
        let last = file.destination_name.as_bytes();
        let record = self.look(level, &file.name)?;
        if record.metadata.identity != linking.anchor.source {
            // Not a name of that inode any more.
            return Ok(Linked::Separate(Box::new(record)));
        }
        let Some(to) = &level.target else {
            return Err(absent(Side::Destination, Operation::Link, level.target_path(last)));
        };
        self.settle_case(level, last)?;
        let existing = self.session.in_place_of_link(to, last)?;
        if let Some(old) = &existing
            && let Some(linked) = self.is_settled_there(level, file, &linking.anchor, old)?
        {
            return Ok(linked);
        }
        let others = self.names_beside(level);
        let from = &level.source;
        let further = FurtherName { from, to, last, replaces: existing.is_some(), others };
        let mut unlocks = false;
        let linked =
            self.session.link(further, &linking.anchor, &mut linking.cleared, &mut unlocks);
        if unlocks {
            self.mark_dirty(&file.directory);
        }
        Ok(match linked? {
            LinkOutcome::Made => Linked::New(existing.map(Box::new)),
            LinkOutcome::Impossible(error) => Linked::Impossible(error),
        })
    }

    /// Links into a directory that hands its project down, where no file of another project can be linked.
    fn link_across_projects(
        &mut self,
        level: &Level,
        file: &FileRef,
        linking: &mut Linking<'_>,
        error: io::Error,
    ) -> Result<Linked, EntryError> {
        let lend = |to| self.session.local.lend_project(to, &linking.anchor);
        let Some(lent) = level.target.as_ref().and_then(lend) else {
            return Ok(Linked::Impossible(error));
        };
        let linked = self.link_one(level, file, linking);
        lent.give_back(&|| level.target_path(file.destination_name.as_bytes()))?;
        linked
    }

    /// The existing entry under a name that would be linked, if it must not be replaced.
    fn is_settled_there(
        &mut self,
        level: &Level,
        file: &FileRef,
        anchor: &Anchor<'_>,
        old: &Metadata,
    ) -> Result<Option<Linked>, EntryError> {
        if old.identity == anchor.metadata.identity {
            return Ok(Some(Linked::Already));
        }
        if old.kind == EntryKind::Directory {
            if self.clear_for_link(level, &file.destination_name, old) {
                return Ok(Some(Linked::Later));
            }
            return Err(in_the_way(level.target_path(file.destination_name.as_bytes())));
        }
        Ok(self.keeps_existing(old, anchor.metadata).then_some(Linked::Already))
    }

    /// Whether the policy keeps the existing entry under a name that would be linked.
    fn keeps_existing(&self, old: &Metadata, carrier: &Metadata) -> bool {
        match self.engine.spec.policy.overwrite {
            Overwrite::Never => true,
            Overwrite::Older => old.mtime >= carrier.mtime,
            _ => false,
        }
    }

    /// Copies the content to a second file where the destination cannot link, and counts a loss.
    fn copy_instead(&mut self, level: &Level, file: &FileRef, error: &io::Error) {
        let record = match self.look(level, &file.name) {
            Ok(record) => record,
            Err(error) => return self.engine.error(error),
        };
        let Some(planned) = self.plan_record(level, record) else { return };
        let path = level.target_path(file.destination_name.as_bytes());
        self.names_here = 0;
        if self.apply_one(level, planned) {
            self.engine.reports.loss(
                LossKind::Links,
                path,
                format!("copied as a separate file ({error})"),
            );
        }
        self.mark_dirty(&file.directory);
        self.hand_on_as_inherited();
    }

    /// Counts a directory in the place of a name as an entry to delete.
    fn note_link_had(&self, old: Option<&Metadata>) {
        if old.is_some_and(|old| old.kind != EntryKind::Directory) {
            self.note_had(1);
        }
    }

    fn linked(
        &mut self,
        level: &Level,
        file: &FileRef,
        anchor: &Anchor<'_>,
        old: Option<&Metadata>,
    ) {
        self.engine.reports.count(Counter::HardLinksCreated);
        self.note_link_had(old);
        self.tell_touched(level);
        self.keep_link(level, file);
        self.mark_dirty(&file.directory);
        self.tell_link(level, file, anchor.metadata, old);
    }

    /// Writes a further name of an inode to the manifest; it shares the digest of the first name.
    fn keep_link(&self, level: &Level, file: &FileRef) {
        if self.engine.proof.recorder.is_none() {
            return;
        }
        match self.look(level, &file.name) {
            Ok(record) => {
                let carried = self.carried.as_ref();
                let carried = carried.filter(|carried| carried.of == record.metadata.identity);
                let (extended, content) = carried
                    .map(|carried| (carried.extended.clone(), carried.content.clone()))
                    .unwrap_or_default();
                let fits = |content: &Content| content.shape.length() == record.metadata.size;
                let content = content.filter(fits);
                let has_bytes = record.metadata.kind == EntryKind::File && record.metadata.size > 0;
                if has_bytes && content.is_none() && !self.engine.proof.keeps_what_is_there() {
                    return; // another name of what was there, or is read back under its first name
                }
                self.engine.keep_entry(level, &record, extended, content);
            }
            Err(error) => self.engine.error(error),
        }
    }

    /// Reports that a name was linked, or was already linked: then `old` is the inode.
    fn tell_link(
        &self,
        level: &Level,
        file: &FileRef,
        metadata: &Metadata,
        old: Option<&Metadata>,
    ) {
        if self.engine.reports.wants_items() {
            let already = old.is_some_and(|old| old.identity == metadata.identity);
            let action = if already { Action::Skipped } else { Action::Linked };
            self.engine.reports.show(Event::Item(Item {
                path: level.source_path(file.name.as_bytes()),
                target: level.target_path(file.destination_name.as_bytes()),
                action,
                kind: metadata.kind,
                bytes: 0,
                elapsed_us: 0,
                itemized: itemize::columns(
                    action,
                    &self.engine.settable.as_settable(metadata, old),
                    old,
                ),
            }));
        }
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
