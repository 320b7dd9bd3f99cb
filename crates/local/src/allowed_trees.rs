//! The trees in which the roots of a job may lie.
use dmover_model::{EntryKind, Fatal};
use dmover_sys::{Errno, mount, path};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::mounts::kind_of;

/// Trees in which the roots of a job may lie.
#[derive(Debug, Clone, Default)]
pub struct AllowedTrees {
    /// Trees that may be read; `None`: all.
    read: Option<Vec<PathBuf>>,
    /// Trees that may be written; `None`: all.
    write: Option<Vec<PathBuf>>,
    by: AllowedBy,
}

/// Who has set the limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AllowedBy {
    /// The options of a mover.
    #[default]
    Mover,
    /// The configuration of an agent that listens.
    Agent,
}

impl AllowedBy {
    /// Where the limits are set.
    fn option(self) -> &'static str {
        match self {
            Self::Mover => "--allow-root",
            Self::Agent => "read and write in the configuration of the agent",
        }
    }
}

/// Refuses paths through symbolic links: who can write at one of them could have it lead elsewhere later.
fn direct(roots: &[PathBuf]) -> Result<Vec<PathBuf>, Fatal> {
    let found = canonical(roots, AllowedBy::Agent)?;
    match roots.iter().zip(&found).find(|(root, found)| root != found) {
        None => Ok(found),
        Some((root, found)) => Err(Fatal::refused(
            format!("'{}' leads to '{}' through a symbolic link", root.display(), found.display()),
            "name the directory itself in the configuration of the agent",
        )),
    }
}

/// Directories in the kernel's canonical form.
fn canonical(roots: &[PathBuf], by: AllowedBy) -> Result<Vec<PathBuf>, Fatal> {
    let option = by.option();
    let canonical = |root: &PathBuf| {
        let opened = path::reach_directory(root).map_err(|error| {
            let message = format!("{option} '{}': {error}", root.display());
            Fatal::refused(message, "name a directory that exists")
        })?;
        mount::path_of(&opened).ok_or_else(|| {
            let message = format!("{option}: cannot resolve a path");
            Fatal::refused(message, "check that /proc is mounted")
        })
    };
    roots.iter().map(canonical).collect()
}

/// The same words whatever is there: a client learns nothing of other places.
fn outside() -> Fatal {
    Fatal::refused(
        "the path is outside the directories that the agent accepts (read and write in its configuration)",
        "use another directory, or ask the administrator of the agent",
    )
}

/// The directory that a parent without a name stands for.
fn named(parent: &Path) -> &Path {
    if parent.as_os_str().is_empty() { Path::new(".") } else { parent }
}

/// Whether a name is a symbolic link, wherever it leads.
fn is_link(parent: impl AsFd, name: &OsStr) -> bool {
    let found = dmover_sys::stat::stat_at(parent, name.as_bytes(), false);
    found.is_ok_and(|found| kind_of(&found) == EntryKind::Symlink)
}

impl AllowedTrees {
    /// What a mover accepts. `roots`: existing directories; none: everything.
    ///
    /// # Errors
    /// A directory cannot be opened.
    pub fn of_mover(roots: &[PathBuf]) -> Result<Self, Fatal> {
        let by = AllowedBy::Mover;
        let roots = canonical(roots, by)?;
        let roots = (!roots.is_empty()).then_some(roots);
        Ok(Self { read: roots.clone(), write: roots, by })
    }

    /// What an agent lets a client read, and what it lets it write; nothing else.
    ///
    /// # Errors
    /// A directory cannot be opened, or its path leads through a symbolic link.
    pub fn of_client(read: &[PathBuf], write: &[PathBuf]) -> Result<Self, Fatal> {
        let by = AllowedBy::Agent;
        Ok(Self { read: Some(direct(read)?), write: Some(direct(write)?), by })
    }

    /// Who has set the limits.
    pub fn by(&self) -> AllowedBy {
        self.by
    }

    /// Whether everything is allowed.
    pub fn is_everything(&self) -> bool {
        self.read.is_none() && self.write.is_none()
    }

    /// Whether an object may be read.
    pub fn holds(&self, object: impl AsFd) -> bool {
        self.check_source(object, None).is_ok()
    }

    /// Refuses an open directory to read, or a name in it, outside the accepted trees.
    ///
    /// # Errors
    /// It lies outside.
    pub fn check_source(&self, directory: impl AsFd, name: Option<&[u8]>) -> Result<(), Fatal> {
        self.check(self.read.as_deref(), directory, name)
    }

    /// Refuses an open directory to write, or a name in it, outside the accepted trees.
    ///
    /// # Errors
    /// It lies outside.
    pub fn check_target(&self, directory: impl AsFd, name: Option<&[u8]>) -> Result<(), Fatal> {
        self.check(self.write.as_deref(), directory, name)
    }

    fn check(
        &self,
        roots: Option<&[PathBuf]>,
        directory: impl AsFd,
        name: Option<&[u8]>,
    ) -> Result<(), Fatal> {
        let Some(roots) = roots else { return Ok(()) };
        let found = mount::path_of(directory).unwrap_or_default();
        let found = name.map_or_else(|| found.clone(), |name| found.join(OsStr::from_bytes(name)));
        if roots.iter().any(|root| found.starts_with(root)) {
            return Ok(());
        }
        if self.by == AllowedBy::Agent {
            return Err(outside());
        }
        let roots: Vec<String> = roots.iter().map(|r| format!("'{}'", r.display())).collect();
        let message = format!(
            "'{}' is outside {}; this mover accepts nothing else (--allow-root)",
            found.display(),
            roots.join(" and ")
        );
        Err(Fatal::refused(
            message,
            "use another mover for this job, or add --allow-root for this directory",
        ))
    }

    /// Refuses a directory to write outside the accepted trees; it need not exist, as only its path counts.
    ///
    /// # Errors
    /// It lies outside, or its parent cannot be opened.
    pub fn check_place(&self, directory: &Path) -> Result<(), Fatal> {
        self.check_path(self.write.as_deref(), directory)
    }

    /// Refuses a path to look at outside the accepted trees; nothing need be there.
    ///
    /// # Errors
    /// It lies outside, or its parent cannot be opened.
    pub fn check_look(&self, path: &Path) -> Result<(), Fatal> {
        self.check_path(self.read.as_deref(), path)
    }

    /// The same for a path whose last name counts itself if it is a symbolic link: it is copied as one.
    ///
    /// # Errors
    /// It lies outside, or its parent cannot be opened.
    pub fn check_named(&self, path: &Path) -> Result<(), Fatal> {
        let is_followed = path.as_os_str().as_bytes().ends_with(b"/");
        if let (Some(parent), Some(name), false) = (path.parent(), path.file_name(), is_followed)
            && let Ok(parent) = path::reach_directory(named(parent))
            && is_link(&parent, name)
        {
            return self.check_source(&parent, Some(name.as_bytes()));
        }
        self.check_look(path)
    }

    fn check_path(&self, roots: Option<&[PathBuf]>, directory: &Path) -> Result<(), Fatal> {
        if roots.is_none() {
            return Ok(());
        }
        let fail = |error| match self.by {
            // What is outside is not told.
            AllowedBy::Agent => outside(),
            AllowedBy::Mover => {
                let message = format!("'{}': {error}", directory.display());
                Fatal::refused(message, "check the path")
            }
        };
        match (path::reach_directory(directory), directory.parent(), directory.file_name()) {
            (Err(Errno::NOENT | Errno::NOTDIR), Some(parent), Some(name)) => {
                let parent = path::reach_directory(named(parent)).map_err(fail)?;
                if self.by == AllowedBy::Agent && is_link(&parent, name) {
                    return Err(outside());
                }
                self.check(roots, &parent, Some(name.as_bytes()))
            }
            (opened, ..) => self.check(roots, opened.map_err(fail)?, None),
        }
    }
}
