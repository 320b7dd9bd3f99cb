//! The file that a job's manifest is written to.
use dmover_digest::manifest::MAGIC;
use dmover_engine::{Fatal, JobReport, JobState, Recorder};
use dmover_model::ExitCode;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::quote::quoted;

/// A manifest on its way: under a name of its own that ends with `.part` until the job ends, so that an
/// older one is not lost to a job that never ran.
pub(crate) struct ManifestFile {
    recorder: Arc<Recorder>,
    file: File,
    part: PathBuf,
    path: PathBuf,
}

impl ManifestFile {
    /// Creates the file.
    pub fn create(path: &OsStr, umask: u32) -> Result<Self, String> {
        let fail = |error: std::io::Error| {
            format!("cannot write the manifest {}: {error}", quoted(path.as_bytes()))
        };
        may_be_replaced(path.as_ref()).map_err(fail)?;
        // Of its own, so that no other job, and no link that somebody has put there, is written into.
        let mut part = path.to_owned();
        part.push(format!(".{:016x}.part", dmover_sys::process::random_u64()));
        let mut options = std::fs::OpenOptions::new();
        // The process has given up its own mask.
        let options = options.write(true).create_new(true).mode(0o666 & !umask);
        let file = options.open(&part).map_err(fail)?;
        let output = file.try_clone().map_err(fail)?;
        let recorder = Arc::new(Recorder::new(Box::new(output)));
        Ok(Self { recorder, file, part: part.into(), path: path.into() })
    }

    /// Takes the records.
    pub fn recorder(&self) -> Arc<Recorder> {
        Arc::clone(&self.recorder)
    }

    /// Ends it and gives it its name. A job that was refused leaves none; one that was stopped, or that left entries out,
    /// leaves one that says so.
    pub fn end(&self, result: &Result<JobReport, Fatal>) -> Result<(), String> {
        let Ok(report) = result else {
            // What was refused has changed nothing; any other trouble leaves what there is to be read.
            let refused = [ExitCode::Usage, ExitCode::Temporary];
            if result.as_ref().is_err_and(|error| refused.contains(&error.exit_code())) {
                let _ = std::fs::remove_file(&self.part);
            }
            return Ok(());
        };
        let ended = report.state == JobState::Finished;
        let whole = !matches!(report.exit_code(), ExitCode::Partial | ExitCode::SourceMoved);
        let written = self
            .recorder
            .finish(ended && whole)
            .and_then(|()| self.file.sync_all())
            .and_then(|()| may_be_replaced(&self.path))
            .and_then(|()| std::fs::rename(&self.part, &self.path));
        written.map_err(|error| {
            let path = OsString::from(&self.path);
            format!("cannot write the manifest {}: {error}", quoted(path.as_bytes()))
        })
    }
}

/// Only an older manifest is replaced: a name that was mistyped must not cost a file, which may be a source.
fn may_be_replaced(path: &Path) -> std::io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let mut start = [0; MAGIC.len()];
    let old = found.is_file() && File::open(path)?.read_exact(&mut start).is_ok() && start == MAGIC;
    let words = "something else than a manifest has this name";
    if old { Ok(()) } else { Err(std::io::Error::new(ErrorKind::AlreadyExists, words)) }
}
