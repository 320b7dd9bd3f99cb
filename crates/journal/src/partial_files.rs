//! A record of large files in progress: which parts of which temporary file are on storage, so that another run of the
//! job resumes them.
//!
//! It is a file of lines in the directory of the job. Movers flush a part before they report it, so the record may be
//! behind the destination, but never ahead. A file without flushed parts is not in it, so short copies cost nothing.
//! `docs/journal.md` describes it for users.
use dmover_model::{
    DirectoryRef, DoneParts, Fatal, FileSystemName, Identity, JobId, LargeFile, LargeNews, MountId,
    Name, Outcome, PartialFile, PathBytes, RootId, Shape, Task, TaskKind, Timestamp, TreePath,
    Version,
};
use dmover_plan::verify::merged;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::state::StateDirectory;

/// Its file name in the directory of the job.
const FILE: &str = "large-files";

/// One line of the record.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// A run under this kernel writes the following lines.
    Run { boot: String },
    /// A large file was started.
    Begun(Box<Begun>),
    /// Parts of it are on storage.
    Flushed {
        temporary: Name,
        done: DoneParts,
        #[serde(default)]
        changed: Option<Timestamp>,
    },
    /// The run that wrote it has not changed it after this time.
    Left { temporary: Name, until: Timestamp },
    /// Another run writes to it.
    Continued { temporary: Name },
    /// Its temporary file is gone.
    Ended { temporary: Name },
    /// The run was stopped, and none of its movers is running any more.
    Stopped,
}

/// A large file that was started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Begun {
    /// Its destination, as a full path and below which root.
    destination: PathBytes,
    root: RootId,
    directory: TreePath,
    temporary: Name,
    inode: u64,
    /// The names of the source's file system. Its device number changes with each mount.
    file_system: Vec<FileSystemName>,
    source_inode: u64,
    size: u64,
    mtime: Timestamp,
    ctime: Timestamp,
    shape: Option<Shape>,
    patched: bool,
    /// A mover of an interrupted run may still write to the temporary file.
    fenced: bool,
}

#[derive(Debug, Clone)]
struct Partial {
    begun: Begun,
    done: DoneParts,
    /// The earliest and, if no run writes to it, the latest time of its last change.
    changed: Option<Timestamp>,
    until: Option<Timestamp>,
    is_written: bool,
}

/// A temporary file that no run needs any more.
#[derive(Debug, Clone, PartialEq)]
pub struct Unneeded {
    /// Its root.
    pub root: RootId,
    /// Its directory below that.
    pub directory: TreePath,
    /// Its name.
    pub temporary: Name,
}

/// What only the process of the job knows about its places.
pub trait Locator {
    /// The full path of a name in a directory of the destination.
    fn destination(&self, directory: &DirectoryRef, name: &Name) -> PathBytes;
    /// The names of a file system of the source, which are the same after it is mounted again. `None`: not known here.
    fn names_of(&self, mount: MountId) -> Option<Vec<FileSystemName>>;
    /// The file system of a name. `None`: not known here.
    fn named(&self, name: &FileSystemName) -> Option<MountId>;
}

/// The record of a job. Without a state directory it is empty.
#[derive(Debug, Default)]
pub struct PartialFiles {
    path: Option<PathBuf>,
    /// The boot of the kernel under which this run writes.
    boot: String,
    file: Option<File>,
    lines: Vec<Line>,
    /// Files of earlier runs that this run has not reached, by destination.
    left: BTreeMap<PathBytes, Partial>,
    /// Files of this run, by temporary file.
    begun: HashMap<Name, Partial>,
    /// Something was flushed in this run.
    has_news: bool,
}

impl PartialFiles {
    /// Reads the record of a job, which must be locked. `fenced`: movers of the previous run may still be running.
    /// `boot`: the boot id of the kernel.
    pub fn open(
        state: Option<&StateDirectory>,
        id: &JobId,
        (boot, fenced): (String, bool),
    ) -> Result<Self, Fatal> {
        let Some(state) = state else { return Ok(Self::default()) };
        let path = state.of_job(id).join(FILE);
        let fail = |error: std::io::Error| {
            let (path, reason) = (path.clone(), error.to_string());
            Fatal::Ledger { path, reason }
        };
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(fail(error)),
        };
        let mut left = read(&text, (&boot, state.is_shared()));
        let until = written_until(&path);
        for partial in left.values_mut() {
            partial.begun.fenced |= fenced;
            partial.until = partial.until.or(until);
        }
        let mut files = Self { path: Some(path.clone()), boot, left, ..Self::default() };
        if files.left.is_empty() {
            files.forget();
        } else {
            files.begin_anew().map_err(fail)?;
        }
        Ok(files)
    }

    /// Whether records are kept.
    pub fn are_kept(&self) -> bool {
        self.path.is_some()
    }

    /// Whether something was flushed in this run.
    pub fn has_news(&self) -> bool {
        self.has_news
    }

    /// Whether parts of a file of this run are on record.
    pub fn is_recorded(&self, temporary: &Name) -> bool {
        self.begun.get(temporary).is_some_and(|partial| partial.is_written)
    }

    /// Temporary files that this run may resume.
    pub fn temporaries(&self) -> impl Iterator<Item = Name> + '_ {
        self.left.values().map(|partial| partial.begun.temporary.clone())
    }

    /// Replaces the record with its present content, because its last line may be incomplete.
    fn begin_anew(&mut self) -> std::io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let temporary = path.with_extension("new");
        let mut options = std::fs::OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        let mut lines = vec![Line::Run { boot: self.boot.clone() }];
        for partial in self.left.values_mut() {
            partial.is_written = true;
            let (temporary, done) = (partial.begun.temporary.clone(), partial.done.clone());
            lines.push(Line::Begun(Box::new(partial.begun.clone())));
            let (changed, left) = (partial.changed, partial.until);
            lines.push(Line::Flushed { temporary: temporary.clone(), done, changed });
            lines.extend(left.map(|until| Line::Left { temporary, until }));
        }
        file.write_all(&in_text(&lines))?;
        // That a temporary must not be written to has to outlive a power cut.
        file.sync_data()?;
        std::fs::rename(temporary, path)?;
        self.file = Some(file);
        Ok(())
    }

    fn forget(&mut self) {
        self.file = None;
        let Some(path) = &self.path else { return };
        if let Err(error) = std::fs::remove_file(path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(%error, "cannot remove the record of large files");
        }
    }

    /// Takes the report of a mover.
    pub fn hear(&mut self, outcome: &Outcome, locator: &dyn Locator) {
        if !self.are_kept() {
            return;
        }
        for news in &outcome.large {
            match news {
                LargeNews::Flushed { temporary, done, changed } => {
                    self.flushed(temporary, done, *changed);
                }
                LargeNews::Ended { temporary } => self.ended(temporary),
            }
        }
        for node in &outcome.nodes {
            if let TaskKind::Seal(seal) = &node.finish {
                self.begin(&seal.large, &node.done, locator);
            }
        }
    }

    /// `done`: the parts of an earlier run in the temporary file that are on storage.
    fn begin(&mut self, large: &LargeFile, done: &DoneParts, locator: &dyn Locator) {
        if let Some(begun) = begun(large, locator) {
            self.begin_as(begun, done);
        }
    }

    fn begin_as(&mut self, begun: Begun, done: &DoneParts) {
        let temporary = begun.temporary.clone();
        if let Some(left) = self.left.remove(&begun.destination) {
            if left.begun.temporary == temporary {
                self.lines.push(Line::Continued { temporary: temporary.clone() });
                self.begun.insert(temporary, Partial { begun, until: None, ..left });
                return;
            }
            self.lines.push(Line::Ended { temporary: left.begun.temporary });
        }
        self.begun.insert(temporary.clone(), Partial::new(begun, false));
        if !done.ranges.is_empty() {
            // It shares the blocks of another temporary: the next run needs them as well. That is no progress of this run.
            let has_news = self.has_news;
            self.flushed(&temporary, done, None);
            self.has_news = has_news;
        }
    }

    fn flushed(&mut self, temporary: &Name, done: &DoneParts, changed: Option<Timestamp>) {
        let Some(partial) = self.begun.get_mut(temporary) else { return };
        self.has_news = true;
        if !std::mem::replace(&mut partial.is_written, true) {
            self.lines.push(Line::Begun(Box::new(partial.begun.clone())));
        }
        partial.add(done.clone(), changed);
        let (temporary, done) = (temporary.clone(), done.clone());
        self.lines.push(Line::Flushed { temporary, done, changed });
    }

    /// Forgets a file whose temporary is gone.
    pub fn ended(&mut self, temporary: &Name) {
        let was = self.begun.remove(temporary);
        let is_left = |partial: &Partial| partial.begun.temporary == *temporary;
        let is_written =
            was.is_some_and(|partial| partial.is_written) || self.left.values().any(is_left);
        self.left.retain(|_, partial| partial.begun.temporary != *temporary);
        if is_written {
            self.lines.push(Line::Ended { temporary: temporary.clone() });
        }
    }

    /// Adds the work of an earlier run to a task.
    pub fn fill(&self, task: &mut Task, locator: &dyn Locator) {
        let TaskKind::Open { file, .. } = &task.kind else { return };
        if task.partial.is_some() || self.left.is_empty() {
            return;
        }
        let destination = locator.destination(&file.directory, &file.destination_name);
        let Some(Partial { begun, done, changed, until, .. }) = self.left.get(&destination) else {
            return;
        };
        let mount = begun.file_system.iter().find_map(|name| locator.named(name));
        let version = mount.map(|mount| Version {
            identity: Identity { mount, inode: begun.source_inode },
            size: begun.size,
            mtime: begun.mtime,
            ctime: begun.ctime,
        });
        task.partial = Some(Box::new(PartialFile {
            temporary: begun.temporary.clone(),
            inode: begun.inode,
            version,
            shape: begun.shape,
            patched: begun.patched,
            done: done.clone(),
            fenced: begun.fenced,
            changed: *changed,
            until: *until,
        }));
    }

    /// Writes the reported changes.
    pub fn write(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        let mut lines = std::mem::take(&mut self.lines);
        if let Err(error) = self.append(&mut lines) {
            // Another run starts these files again.
            tracing::warn!(%error, "cannot write the record of large files");
            self.forget();
            self.path = None;
        }
    }

    fn append(&mut self, lines: &mut Vec<Line>) -> std::io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        if self.file.is_none() {
            let mut options = std::fs::OpenOptions::new();
            let file = options.append(true).create(true).mode(0o600).open(path)?;
            self.file = Some(file);
            lines.insert(0, Line::Run { boot: self.boot.clone() });
        }
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(&in_text(lines)))
    }

    /// Called when the run ends before its job. `settled`: none of its movers is running any more.
    pub fn stop(&mut self, settled: bool) {
        if settled && self.file.is_some() {
            self.lines.push(Line::Stopped);
        }
        self.write();
    }

    /// Called when the job has ended. Returns temporary files that no run needs any more.
    pub fn end(&mut self) -> Vec<Unneeded> {
        self.lines.clear();
        self.forget();
        let left = std::mem::take(&mut self.left).into_values();
        let all = left.chain(std::mem::take(&mut self.begun).into_values());
        let unneeded = |Partial { begun, .. }: Partial| {
            let Begun { root, directory, temporary, .. } = begun;
            Unneeded { root, directory, temporary }
        };
        all.map(unneeded).collect()
    }
}

fn begun(large: &LargeFile, locator: &dyn Locator) -> Option<Begun> {
    let (at, version) = (&large.file.directory, large.version);
    let file_system = locator.names_of(version.identity.mount)?;
    Some(Begun {
        destination: locator.destination(at, &large.file.destination_name),
        root: at.root,
        directory: at.path.clone(),
        temporary: large.temporary.clone(),
        inode: large.temporary_identity.inode,
        file_system,
        source_inode: version.identity.inode,
        size: version.size,
        mtime: version.mtime,
        ctime: version.ctime,
        shape: large.shape,
        patched: large.patched,
        fenced: false,
    })
}

impl Partial {
    fn new(begun: Begun, is_written: bool) -> Self {
        Self { begun, done: DoneParts::default(), changed: None, until: None, is_written }
    }

    fn add(&mut self, more: DoneParts, changed: Option<Timestamp>) {
        let done = &mut self.done;
        done.ranges.extend(more.ranges);
        done.ranges = merged(std::mem::take(&mut done.ranges));
        done.pieces.extend(more.pieces);
        self.changed = self.changed.max(changed);
        self.until = None;
    }
}

/// When the record was last written. A run that writes to temporary files updates it every few seconds, unless a flush
/// takes long.
fn written_until(record: &Path) -> Option<Timestamp> {
    const LONGEST: Duration = Duration::from_mins(1);
    let written = std::fs::metadata(record).ok()?.modified().ok()?;
    let since = written.duration_since(std::time::UNIX_EPOCH).ok()? + LONGEST;
    Some(Timestamp { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() })
}

fn in_text(lines: &[Line]) -> Vec<u8> {
    let mut text = Vec::new();
    for line in lines {
        // Serialising to memory fails only for maps whose keys are not text, and there are none.
        text.extend(serde_json::to_vec(line).unwrap_or_default());
        text.push(b'\n');
    }
    text
}

/// Reads a record up to the first incomplete line. Temporary files of a run under another kernel, which may be another
/// host, are fenced unless that run was stopped.
fn read(text: &[u8], (boot, is_shared): (&str, bool)) -> BTreeMap<PathBytes, Partial> {
    let mut files: HashMap<Name, Partial> = HashMap::new();
    let (mut is_own, mut is_stopped) = (true, true);
    let lines =
        text.split_inclusive(|byte| *byte == b'\n').take_while(|line| line.ends_with(b"\n"));
    for line in lines.map_while(|line| serde_json::from_slice(line).ok()) {
        is_stopped = matches!(line, Line::Stopped);
        match line {
            Line::Run { boot: theirs } => is_own = theirs == boot,
            Line::Begun(begun) => {
                let partial = Partial::new(*begun, true);
                files.insert(partial.begun.temporary.clone(), partial);
            }
            Line::Flushed { temporary, done, changed } => {
                if let Some(partial) = files.get_mut(&temporary) {
                    partial.add(done, changed);
                }
            }
            Line::Left { temporary, until } => {
                if let Some(partial) = files.get_mut(&temporary) {
                    partial.until = Some(until);
                }
            }
            Line::Continued { temporary } => {
                if let Some(partial) = files.get_mut(&temporary) {
                    partial.until = None;
                }
            }
            Line::Ended { temporary } => _ = files.remove(&temporary),
            Line::Stopped => {}
        }
    }
    let fenced = is_shared && !is_own && !is_stopped;
    let by_destination = |mut partial: Partial| {
        partial.begun.fenced |= fenced;
        (partial.begun.destination.clone(), partial)
    };
    files.into_values().map(by_destination).collect()
}

/// How often a job was started without progress.
#[derive(Debug)]
pub struct Starts {
    path: Option<PathBuf>,
    /// Earlier runs without lasting progress.
    pub in_vain: u32,
}

impl Starts {
    /// Records that a run of the job begins.
    pub fn begin(state: Option<&StateDirectory>, id: &JobId) -> Self {
        let Some(state) = state else { return Self { path: None, in_vain: 0 } };
        let path = state.of_job(id).join("starts");
        let in_vain = std::fs::read_to_string(&path).ok();
        let in_vain = in_vain.and_then(|text| text.trim().parse().ok()).unwrap_or(0u32);
        if let Err(error) = std::fs::write(&path, format!("{}\n", in_vain.saturating_add(1))) {
            tracing::warn!(%error, "cannot count this start of the job");
        }
        Self { path: Some(path), in_vain }
    }

    /// Records that the run has made lasting progress.
    pub fn progressed(&mut self) {
        if let Some(path) = self.path.take() {
            remove(&path);
        }
    }

    /// Whether there was no lasting progress so far.
    pub fn waits(&self) -> bool {
        self.path.is_some()
    }
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!(%error, path = %path.display(), "cannot remove a note");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_model::ByteRange;

    fn name(number: u8) -> Name {
        Name::new(vec![b't', number]).unwrap()
    }

    fn begun(number: u8) -> Line {
        Line::Begun(Box::new(Begun {
            destination: PathBytes(vec![b'/', 0xff, number]),
            root: RootId(0),
            directory: TreePath::root(),
            temporary: name(number),
            inode: 7,
            file_system: vec![FileSystemName::Uuid("u".into())],
            source_inode: 8,
            size: 100,
            mtime: Timestamp { seconds: -1, nanoseconds: 2 },
            ctime: Timestamp { seconds: 3, nanoseconds: 4 },
            shape: None,
            patched: true,
            fenced: false,
        }))
    }

    fn flushed(number: u8, start: u64, end: u64) -> Line {
        let ranges = vec![ByteRange { start, end }];
        let (done, changed) = (DoneParts { ranges, pieces: Vec::new() }, None);
        Line::Flushed { temporary: name(number), done, changed }
    }

    #[test]
    fn what_was_left_is_as_old_as_the_last_run_that_wrote_to_it() {
        let [early, late] = [5, 9].map(|seconds| Timestamp { seconds, nanoseconds: 0 });
        let left = || Line::Left { temporary: name(1), until: late };
        let continued = || Line::Continued { temporary: name(1) };
        let at = |time| {
            let done =
                DoneParts { ranges: vec![ByteRange { start: 0, end: 1 }], pieces: Vec::new() };
            Line::Flushed { temporary: name(1), done, changed: Some(time) }
        };
        let times = |lines: &[Line]| {
            let partial = read(&in_text(lines), ("b", false)).into_values().next().unwrap();
            (partial.changed, partial.until)
        };
        assert_eq!(times(&[begun(1), at(late), at(early)]), (Some(late), None));
        assert_eq!(times(&[begun(1), at(early), left()]), (Some(early), Some(late)));
        assert_eq!(times(&[begun(1), at(early), left(), continued()]), (Some(early), None));
        assert_eq!(times(&[begun(1), left(), at(early)]), (Some(early), None));
    }

    fn run(boot: &str) -> Line {
        Line::Run { boot: boot.into() }
    }

    #[test]
    fn a_record_is_read_as_far_as_it_is_whole() {
        let lines = [run("b"), begun(1), begun(2), flushed(1, 0, 10), flushed(1, 10, 30)];
        let mut text = in_text(&lines);
        text.extend(in_text(&[Line::Ended { temporary: name(2) }]));
        let whole = text.len();
        text.extend(in_text(&[flushed(1, 50, 60)]));
        for cut in [whole, whole + 5, text.len() - 1] {
            let files = read(&text[..cut], ("b", true));
            let [partial] = &files.into_values().collect::<Vec<_>>()[..] else { panic!() };
            assert_eq!(partial.done.ranges, [ByteRange { start: 0, end: 30 }]);
            assert!(!partial.begun.fenced && partial.begun.destination.0[1] == 0xff);
        }
        // What a power cut leaves of blocks that were not written.
        let zeroes = [&text[..whole], &[0; 64]].concat();
        assert_eq!(read(&zeroes, ("b", true)).len(), 1);
        assert_eq!(read(&text, ("b", true)).into_values().next().unwrap().done.ranges.len(), 2);
    }

    #[test]
    fn what_a_clone_has_of_an_earlier_run_is_on_record_at_once() {
        let read_back = |files: &PartialFiles| read(&in_text(&files.lines), ("b", true));
        let left = read(&in_text(&[run("b"), begun(1), flushed(1, 0, 30)]), ("b", true));
        let mut files = PartialFiles { left, ..PartialFiles::default() };
        let Line::Begun(old) = begun(1) else { panic!() };
        let done = DoneParts { ranges: vec![ByteRange { start: 0, end: 30 }], pieces: Vec::new() };
        files.begin_as(Begun { temporary: name(9), ..*old }, &done);
        assert!(!files.has_news(), "this run has written nothing");
        let [partial] = &read_back(&files).into_values().collect::<Vec<_>>()[..] else { panic!() };
        assert_eq!((&partial.begun.temporary, &partial.done), (&name(9), &done));
        let more = DoneParts { ranges: vec![ByteRange { start: 30, end: 40 }], ..done };
        files.flushed(&name(9), &more, None);
        let [partial] = &read_back(&files).into_values().collect::<Vec<_>>()[..] else { panic!() };
        assert_eq!(partial.done.ranges, [ByteRange { start: 0, end: 40 }]);
    }

    #[test]
    fn a_run_that_may_live_on_another_host_is_fenced() {
        let is_fenced = |lines: &[Line], shared| {
            let files = read(&in_text(lines), ("here", shared));
            files.into_values().next().unwrap().begun.fenced
        };
        assert!(is_fenced(&[run("there"), begun(1)], true));
        assert!(!is_fenced(&[run("there"), begun(1)], false), "this host, before it was started");
        assert!(!is_fenced(&[run("here"), begun(1)], true));
        assert!(!is_fenced(&[run("there"), begun(1), Line::Stopped], true));
        assert!(is_fenced(&[run("there"), begun(1), Line::Stopped, flushed(1, 0, 1)], true));
    }
}
