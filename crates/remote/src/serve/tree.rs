//! The tree that is served: its directories, looks and attributes.
use dmover_local::allowed_trees::AllowedTrees;
use dmover_local::attributes::Attributes;
use dmover_local::directory::SourceDirectory;
use dmover_local::entry_attributes;
use dmover_local::root::Resolver;
use dmover_local::source::Content;
use dmover_local::source_root::SourceRoot;
use dmover_model::{
    EntryError, EntryKind, EntryRecord, ErrorClass, Fatal, FollowLinks, Identity, JobSpec, Limits,
    Metadata, Name, Operation, PathBytes, Selection, Side, TargetMode, Timestamp, TreePath, Verb,
};
use dmover_schedule::time::since_1970;
use dmover_tree::{EntryAttributes, RemoteRoot, Seen};
use dmover_wire::agent::{Answer, Begin, DirectoryAt, FileAt, WithHead};
use std::path::Path;
use std::sync::Arc;

use super::cache::Cache;
use super::host::{Host, Numbering};
use super::progress::{Losses, Unlimited};

/// How many directories and files stay open between requests.
const DIRECTORIES_MAX: usize = 256;
const FILES_MAX: usize = 64;

/// More attributes of one entry than this are not sent.
const ATTRIBUTE_BYTES_MAX: usize = 4 << 20;

/// What names an open file, whatever version it has.
type FileKey = (DirectoryAt, Name, bool, Identity);

/// An open tree.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) host: Host,
    root: SourceRoot,
    follow: FollowLinks,
    pub(super) with_head: WithHead,
    /// Agents of other hosts serve it to the same job.
    is_shared: bool,
    /// It is served within the limits of a client: links are never followed, whatever is asked for.
    pub(super) is_limited: bool,
    directories: Cache<DirectoryAt, SourceDirectory>,
    files: Cache<FileKey, OpenFile>,
}

/// A file that is open between requests.
pub(super) struct OpenFile {
    pub(super) content: Content,
    pub(super) shown: PathBytes,
}

impl std::fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenFile").field("shown", &self.shown).finish_non_exhaustive()
    }
}

impl Tree {
    /// Opens the root at a path of this host.
    pub(super) fn open(
        path: &PathBytes,
        begin: Begin,
        (numbering, bounds): (Numbering, &AllowedTrees),
    ) -> Result<(Self, RemoteRoot), Fatal> {
        let Begin { display, follow, preserve, with_head } = begin;
        let host = Host::new(preserve, &display, numbering);
        let spec = reading_job(path, follow);
        let resolver = Resolver {
            spec: &spec,
            mounts: &host.end().mounts,
            remembered: None,
            privileged: bounds.is_everything() && dmover_host::user::is_privileged(),
            base: Path::new(""),
            bounds,
            remote: None,
        };
        let found = resolver.source_alone(path, &display)?;
        let canonical = found.canonical.as_os_str();
        let name = found.name.map(|name| name.as_bytes().to_vec());
        let missing = found.missing_mount.as_ref();
        let root = RemoteRoot {
            metadata: found.metadata,
            canonical: PathBytes::from(canonical),
            name,
            above: found.above,
            missing_mount: missing.map(|mount| PathBytes::from(mount.as_os_str())),
        };
        let tree = Self {
            host,
            root: found.root,
            follow,
            with_head,
            is_limited: !bounds.is_everything(),
            is_shared: numbering == Numbering::OfAllHosts,
            directories: Cache::new(DIRECTORIES_MAX),
            files: Cache::new(FILES_MAX),
        };
        Ok((tree, root))
    }

    /// Refuses a file that is not the version any more that was asked for, if hosts share it: they may see changes at different times,
    /// and another one tells what it is when it was read.
    pub(super) fn check_version(&self, at: &FileAt) -> Answer<()> {
        if !self.is_shared || self.now(at)?.version() == at.version {
            return Ok(());
        }
        let words = "the file changed while it was read";
        let of = (ErrorClass::Changed, Operation::Read);
        Err(self.refused(of, (&at.directory.path, at.name.as_bytes()), words))
    }

    /// The clock of this host, if it sets the times of entries on the file system of the root.
    pub(super) fn clock(&self) -> Option<Timestamp> {
        let root = self.open_directory(&TreePath::root(), false).ok()?;
        let now = since_1970();
        let (seconds, nanoseconds) = (now.as_secs().try_into().ok()?, now.subsec_nanos());
        root.facts.local.then_some(Timestamp { seconds, nanoseconds })
    }

    /// Whether the root is a directory. Otherwise requests are about its name in the directory that contains it.
    fn is_directory(&self) -> bool {
        self.root.names().is_directory
    }

    /// An entry as the user of the job would type it.
    pub(super) fn shown(&self, directory: &TreePath, name: &[u8]) -> PathBytes {
        self.root.names().path(directory, name)
    }

    fn refused(
        &self,
        (class, operation): (ErrorClass, Operation),
        (directory, name): (&TreePath, &[u8]),
        words: &str,
    ) -> EntryError {
        let path = self.shown(directory, name);
        EntryError::plain(Side::Source, operation, class, path, words)
    }

    /// Refuses to follow symbolic links in a job that follows none.
    fn check_follows(&self, directory: &TreePath, follows: bool) -> Answer<()> {
        if !follows || self.follow != FollowLinks::Never {
            return Ok(());
        }
        let words = "this job follows no symbolic links";
        Err(self.refused((ErrorClass::Escaped, Operation::Open), (directory, b""), words))
    }

    /// Refuses names beside a root that is no directory.
    pub(super) fn check_name(&self, directory: &TreePath, name: &[u8]) -> Answer<()> {
        let root = self.root.name().map(Name::as_bytes);
        if self.is_directory() || root == Some(name) {
            return Ok(());
        }
        let words = "it is beside the source and not in it";
        Err(self.refused((ErrorClass::Escaped, Operation::Open), (directory, name), words))
    }

    pub(super) fn open_directory(&self, at: &TreePath, follows: bool) -> Answer<SourceDirectory> {
        self.check_follows(at, follows)?;
        if !self.is_directory() && !at.is_root() {
            let words = "the source is no directory";
            return Err(self.refused((ErrorClass::Escaped, Operation::Open), (at, b""), words));
        }
        if at.is_root() {
            return self.host.end().open_source_root(&self.root);
        }
        self.host.end().open_source(&self.root, at, follows)
    }

    fn keep(&self, path: TreePath, follows: bool, directory: SourceDirectory) -> Metadata {
        let metadata = directory.metadata.clone();
        let key = DirectoryAt { path, follows, identity: metadata.identity };
        self.keep_directory(key, &Arc::new(directory));
        metadata
    }

    /// Keeps a directory open for requests to come.
    pub(super) fn keep_directory(&self, key: DirectoryAt, directory: &Arc<SourceDirectory>) {
        self.directories.put(key, directory);
    }

    /// Opens a directory below the root.
    pub(super) fn open_at(&self, at: &TreePath, follows: bool) -> Answer<Metadata> {
        let directory = self.open_directory(at, follows)?;
        Ok(self.keep(at.clone(), follows, directory))
    }

    /// A directory that was opened before.
    pub(super) fn directory(&self, at: &DirectoryAt) -> Answer<Arc<SourceDirectory>> {
        if let Some(held) = self.directories.get(at) {
            return Ok(held);
        }
        let directory = self.open_directory(&at.path, at.follows)?;
        if directory.metadata.identity != at.identity {
            let words = "another directory has replaced this one";
            let what = (ErrorClass::Escaped, Operation::Open);
            return Err(self.refused(what, (&at.path, b""), words));
        }
        let directory = Arc::new(directory);
        self.directories.put(at.clone(), &directory);
        Ok(directory)
    }

    /// The directory of an entry that a request names.
    pub(super) fn directory_of(
        &self,
        at: &DirectoryAt,
        name: &[u8],
        follows: bool,
    ) -> Answer<Arc<SourceDirectory>> {
        self.check_name(&at.path, name)?;
        self.check_follows(&at.path, follows)?;
        self.directory(at)
    }

    /// Opens a directory in another one.
    pub(super) fn enter(&self, at: &DirectoryAt, name: &Name, follows: bool) -> Answer<Metadata> {
        let above = self.directory_of(at, name.as_bytes(), follows)?;
        if !self.is_directory() {
            let words = "the source is no directory";
            let what = (ErrorClass::Escaped, Operation::Open);
            return Err(self.refused(what, (&at.path, b""), words));
        }
        let directory = self.host.end().enter_source(&above, name.as_bytes(), follows)?;
        Ok(self.keep(at.path.join(name.as_bytes()), at.follows || follows, directory))
    }

    /// Looks at entries.
    pub(super) fn look(
        &self,
        at: &DirectoryAt,
        names: &[Name],
        follows: bool,
    ) -> Vec<Answer<Seen>> {
        names.iter().map(|name| self.look_at(at, name.as_bytes(), follows)).collect()
    }

    fn look_at(&self, at: &DirectoryAt, name: &[u8], follows: bool) -> Answer<Seen> {
        let directory = self.directory_of(at, name, follows)?;
        self.host.local(&Losses::default()).look(&directory, name, follows)
    }

    /// The attributes of an entry that is no regular file.
    pub(super) fn attributes(
        &self,
        at: &DirectoryAt,
        name: Option<&Name>,
        follows: bool,
    ) -> Answer<(Metadata, EntryAttributes)> {
        let losses = Losses::default();
        let local = self.host.local(&losses);
        let Some(name) = name else {
            if !self.is_directory() {
                self.check_name(&at.path, b"")?;
            }
            return self.own_attributes(&*self.directory(at)?);
        };
        let directory = self.directory_of(at, name.as_bytes(), follows)?;
        let (metadata, symlink) = local.look(&directory, name.as_bytes(), follows)?;
        if metadata.kind == EntryKind::File {
            let what = (ErrorClass::Changed, Operation::ReadXattr);
            let words = "another entry has replaced this one";
            return Err(self.refused(what, (&at.path, name.as_bytes()), words));
        }
        let shown = directory.place.entry(name.as_bytes());
        if metadata.kind == EntryKind::Directory {
            let own = self.host.end().enter_source(&directory, name.as_bytes(), follows)?;
            let read = entry_attributes::attributes_of(&local, &own)?;
            return Ok((own.metadata.clone(), self.sendable(read, &losses, &shown)?));
        }
        let record = EntryRecord { name: name.clone(), renamed: None, metadata, symlink };
        let read = entry_attributes::open_entry(&local, &directory, &record, follows)?.attributes;
        Ok((record.metadata, self.sendable(read, &losses, &shown)?))
    }

    /// The attributes of an open directory.
    pub(super) fn own_attributes(
        &self,
        directory: &SourceDirectory,
    ) -> Answer<(Metadata, EntryAttributes)> {
        let losses = Losses::default();
        let read = entry_attributes::attributes_of(&self.host.local(&losses), directory)?;
        let now = self.host.end().present_of(directory)?;
        Ok((now, self.sendable(read, &losses, &directory.place.own())?))
    }

    /// Attributes as they are sent.
    pub(super) fn sendable(
        &self,
        read: Attributes,
        losses: &Losses,
        shown: &PathBytes,
    ) -> Answer<EntryAttributes> {
        let bytes: usize = read.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > ATTRIBUTE_BYTES_MAX {
            let words = "its attributes are too large to be sent to another host";
            let (class, operation) = (ErrorClass::Unsupported, Operation::ReadXattr);
            let path = shown.clone();
            return Err(EntryError::plain(Side::Source, operation, class, path, words));
        }
        Ok(EntryAttributes {
            xattrs: read.xattrs,
            is_pinned: read.is_pinned,
            left_out: read.left_out,
            flags: read.knows_flags.then_some(read.flags),
            project: (read.project.id, read.project.inherit),
            owning_group: read.owning_group,
            losses: losses.take(),
        })
    }

    /// A file that was opened before.
    pub(super) fn file(&self, at: &FileAt) -> Answer<Arc<OpenFile>> {
        let FileAt { directory, name, follows, version } = at;
        let key = (directory.clone(), name.clone(), *follows, version.identity);
        if let Some(held) = self.files.get(&key) {
            return Ok(held);
        }
        let from = self.directory_of(directory, name.as_bytes(), *follows)?;
        let losses = Losses::default();
        let local = self.host.local(&losses);
        let named = (name.as_bytes(), *follows);
        let content = local.open_again(&from, named, version.identity, &Unlimited)?;
        let shown = from.place.entry(name.as_bytes());
        let file = Arc::new(OpenFile { content, shown });
        self.files.put(key, &file);
        Ok(file)
    }

    /// Keeps a file open for requests to come.
    pub(super) fn keep_file(&self, at: &DirectoryAt, name: &Name, follows: bool, file: OpenFile) {
        let key = (at.clone(), name.clone(), follows, file.content.metadata.identity);
        self.files.put(key, &Arc::new(file));
    }
}

/// A job that only reads, for the rules by which roots are opened.
fn reading_job(path: &PathBytes, follow: FollowLinks) -> JobSpec {
    JobSpec {
        schema: JobSpec::SCHEMA,
        verb: Verb::Copy,
        sources: vec![path.clone()],
        sources_are_remote: false,
        host: None,
        destination: PathBytes::default(),
        target_mode: TargetMode::Auto,
        selection: Selection { follow, ..Selection::default() },
        policy: dmover_model::CopyPolicy::default(),
        limits: Limits::default(),
    }
}
