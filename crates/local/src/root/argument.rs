//! A path that a user has typed.
use dmover_model::{Fatal, JobSpec, Name, PathBytes};
use dmover_sys::{Errno, OwnedFd, mount, path, stat};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{refuse, refuse_errno};
use crate::root_side::RootNames;

/// A path from the user, split and opened.
#[derive(Debug)]
pub(super) struct Argument {
    pub parent: OwnedFd,
    pub name: Option<Name>,
    /// The canonical path, as far as it exists.
    pub canonical: PathBuf,
    pub display: PathBytes,
    /// How many bytes of `display` name the host.
    pub host: usize,
    /// It ended with a slash, so the name must be a directory.
    pub slash: bool,
}

impl Argument {
    /// A path of this host, called as the user of the job calls it.
    pub fn of(spec: &JobSpec, base: &Path, typed: &PathBytes) -> Result<Self, Fatal> {
        let host = spec.host.as_ref().map_or(&b""[..], |host| &host.0);
        let display = PathBytes([host, &typed.0].concat());
        Self::shown(base, typed, (display, host.len()))
    }

    /// Opens the parent directory of `typed`, which may be relative to `base`. `display`: its name in messages, of which so
    /// many bytes name the host.
    pub fn shown(
        base: &Path,
        typed: &PathBytes,
        (display, host): (PathBytes, usize),
    ) -> Result<Self, Fatal> {
        let bytes = &typed.0;
        if bytes.is_empty() {
            return Err(Fatal::refused("a path is empty", "name a file or directory"));
        }
        let trimmed = bytes.iter().rposition(|b| *b != b'/').map_or(&b"/"[..], |i| &bytes[..=i]);
        let slash = trimmed.len() < bytes.len() && trimmed != b"/";
        let at = trimmed.iter().rposition(|b| *b == b'/');
        let (parent, last) = match at {
            _ if trimmed == b"/" => (&b"/"[..], &b""[..]),
            None => (&b"."[..], trimmed),
            Some(0) => (&b"/"[..], &trimmed[1..]),
            Some(at) => (&trimmed[..at], &trimmed[at + 1..]),
        };
        let whole = matches!(last, b"" | b"." | b"..");
        let open = if whole { trimmed } else { parent };
        let open = base.join(OsStr::from_bytes(open));
        let directory = path::open_directory(&open)
            // A parent that may only be searched, such as /home with mode 711.
            .or_else(|e| {
                if e == Errno::ACCESS && !whole { path::reach_directory(&open) } else { Err(e) }
            })
            .map_err(|e| {
                refuse_errno(&display, "open the parent directory of", e, "check the path")
            })?;
        let mut canonical = mount::path_of(&directory)
            .ok_or_else(|| refuse(&display, "cannot be resolved", "check that /proc is mounted"))?;
        let name = (!whole).then(|| Name::new(last)).transpose();
        let name = name.map_err(|e| {
            refuse(&display, &format!("is not a valid name: {e}"), "check the path")
        })?;
        if let Some(name) = &name {
            canonical.push(OsStr::from_bytes(name.as_bytes()));
        }
        Ok(Self { parent: directory, name, canonical, display, host, slash })
    }

    /// How its entries are called.
    pub fn named(&self, is_directory: bool) -> RootNames {
        RootNames { display: self.display.clone(), host: self.host, is_directory }
    }

    /// The metadata of the entry, if it exists.
    pub fn stat(&self, follow: bool) -> Result<Option<stat::Stat>, Errno> {
        let result = match &self.name {
            None => stat::stat_fd(&self.parent),
            Some(name) => stat::stat_at(&self.parent, name.as_bytes(), follow || self.slash),
        };
        match result {
            Ok(found) => Ok(Some(found)),
            Err(error) if stat::is_absent(error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether it is a directory, or a symbolic link to one.
    ///
    /// # Errors
    /// It could not be looked at. Taken for something else, a directory would be overwritten with what belongs in it.
    pub fn is_directory(&self) -> Result<bool, Fatal> {
        match self.stat(true) {
            Ok(found) => {
                Ok(found.is_some_and(|found| found.file_type() == stat::FileType::Directory))
            }
            Err(Errno::NOTDIR | Errno::LOOP) => Ok(false),
            Err(error) => Err(refuse_errno(&self.display, "access", error, "check the path")),
        }
    }

    /// Whether it is a dangling symbolic link.
    pub fn leads_nowhere(&self) -> bool {
        let own = |name: &Name| stat::stat_at(&self.parent, name.as_bytes(), false).is_ok();
        self.slash && self.name.as_ref().is_some_and(own)
    }

    /// Opens the directory; a link is followed as the user intends.
    pub fn open_directory(&self) -> Result<OwnedFd, Errno> {
        match &self.name {
            None => path::open_directory_at(&self.parent, b"."),
            Some(name) => path::open_directory_following(&self.parent, name.as_bytes()),
        }
    }

    /// The same for a directory that need not be readable.
    pub fn reach(&self) -> Result<OwnedFd, Errno> {
        path::reach_directory_at(&self.parent, self.name.as_ref().map_or(b".", Name::as_bytes))
    }
}
