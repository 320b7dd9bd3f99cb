//! The trees and verbs that a mover accepts, whatever a job demands.
use dmover_model::{Fatal, FollowLinks, JobSpec, Verb};
use dmover_sys::{Errno, mount, path};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The word for `verify --repair`, which writes.
pub const REPAIR: &str = "repair";

/// Trees and verbs that a mover accepts. An empty list accepts everything.
#[derive(Debug, Clone, Default)]
pub struct Bounds {
    /// Paths in the kernel's canonical form.
    roots: Vec<PathBuf>,
    verbs: Vec<String>,
}

impl Bounds {
    /// `roots`: existing directories; `verbs`: verbs by their words, and [`REPAIR`].
    ///
    /// # Errors
    /// A directory cannot be opened.
    pub fn new(roots: &[PathBuf], verbs: Vec<String>) -> Result<Self, Fatal> {
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
        Ok(Self { roots, verbs })
    }

    /// Refuses jobs with other verbs, and jobs that could leave the trees.
    pub(crate) fn check_spec(&self, spec: &JobSpec) -> Result<(), Fatal> {
        let allows = |verb: &str| self.verbs.is_empty() || self.verbs.iter().any(|v| v == verb);
        let repairs = spec.policy.verify.as_ref().is_some_and(|policy| policy.repair);
        let needed = if spec.verb == Verb::Verify && repairs { REPAIR } else { spec.verb.word() };
        if !allows(needed) {
            let verbs = self.verbs.join(", ");
            let message = format!(
                "this mover does not run '{needed}' jobs; it accepts {verbs} (--allow-verb)"
            );
            return Err(Fatal::refused(message, "use another mover for this job"));
        }
        if !self.roots.is_empty() && spec.selection.follow != FollowLinks::Never {
            let message = "the job follows symbolic links, which may lead out of the directories \
                that this mover accepts (--allow-root)";
            return Err(Fatal::refused(
                message,
                "omit -L and --dereference-args, or use another mover",
            ));
        }
        Ok(())
    }

    /// Whether an object lies in the accepted trees.
    pub(crate) fn holds(&self, object: impl AsFd) -> bool {
        self.roots.is_empty() || mount::path_of(object).is_some_and(|path| self.contains(&path))
    }

    /// Refuses an open directory, or a name in it, outside the accepted trees.
    pub(crate) fn check(&self, directory: impl AsFd, name: Option<&[u8]>) -> Result<(), Fatal> {
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
    pub(crate) fn check_place(&self, directory: &Path) -> Result<(), Fatal> {
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
