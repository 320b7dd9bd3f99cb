//! The trees in which the roots of a job may lie.
use dmover_model::Fatal;
use dmover_sys::{Errno, mount, path};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Trees in which the roots of a job may lie. An empty list allows everything.
#[derive(Debug, Clone, Default)]
pub struct AllowedTrees {
    /// Paths in the kernel's canonical form.
    roots: Vec<PathBuf>,
}

impl AllowedTrees {
    /// `roots`: existing directories.
    ///
    /// # Errors
    /// A directory cannot be opened.
    pub fn new(roots: &[PathBuf]) -> Result<Self, Fatal> {
        let canonical = |root: &PathBuf| {
            let opened = path::open_directory(root).map_err(|error| {
                let message = format!("--allow-root '{}': {error}", root.display());
                Fatal::refused(message, "name a directory that exists when the mover starts")
            })?;
            mount::path_of(&opened).ok_or_else(|| {
                Fatal::refused("--allow-root: cannot resolve a path", "check that /proc is mounted")
            })
        };
        let roots = roots.iter().map(canonical).collect::<Result<_, _>>()?;
        Ok(Self { roots })
    }

    /// Whether everything is allowed.
    pub fn is_everything(&self) -> bool {
        self.roots.is_empty()
    }

    /// Whether an object lies in the accepted trees.
    pub fn holds(&self, object: impl AsFd) -> bool {
        self.roots.is_empty() || mount::path_of(object).is_some_and(|path| self.contains(&path))
    }

    /// Refuses an open directory, or a name in it, outside the accepted trees.
    ///
    /// # Errors
    /// It lies outside.
    pub fn check(&self, directory: impl AsFd, name: Option<&[u8]>) -> Result<(), Fatal> {
        if self.roots.is_empty() {
            return Ok(());
        }
        let found = mount::path_of(directory).unwrap_or_default();
        let found = name.map_or_else(|| found.clone(), |name| found.join(OsStr::from_bytes(name)));
        if self.contains(&found) {
            return Ok(());
        }
        let roots: Vec<String> = self.roots.iter().map(|r| format!("'{}'", r.display())).collect();
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

    /// Refuses a directory outside the accepted trees; it need not exist, as only its path counts.
    ///
    /// # Errors
    /// It lies outside, or its parent cannot be opened.
    pub fn check_place(&self, directory: &Path) -> Result<(), Fatal> {
        let fail = |error| {
            let message = format!("'{}': {error}", directory.display());
            Fatal::refused(message, "check the path")
        };
        match (path::open_directory(directory), directory.parent(), directory.file_name()) {
            (Err(error), Some(parent), Some(name)) if error == Errno::NOENT => {
                let parent = path::open_directory(parent).map_err(fail)?;
                self.check(&parent, Some(name.as_bytes()))
            }
            (opened, ..) => self.check(opened.map_err(fail)?, None),
        }
    }

    fn contains(&self, path: &Path) -> bool {
        self.roots.iter().any(|root| path.starts_with(root))
    }
}
