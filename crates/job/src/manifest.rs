//! The manifest file that a job writes, and the manifest that a tree is compared with.
use dmover_digest::manifest::{Header, MAGIC, Reader};
use dmover_engine::{JobReport, JobState, RecordSupply, Recorder};
use dmover_model::{ExitCode, Fatal, PathBytes, Record, Timestamp};
use dmover_schedule::sync::Mutex;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use crate::quote::quoted;

/// A manifest that is being written. Until the job ends it has a temporary name that ends with `.part`, so that a job that does
/// not run does not overwrite an older manifest.
pub struct ManifestFile {
    recorder: Arc<Recorder>,
    file: File,
    /// The temporary and the final name. `None`: an unnamed file that only this process reads.
    names: Option<(PathBuf, PathBuf)>,
}

impl ManifestFile {
    /// Creates the file. `umask`: the one that its rights get.
    ///
    /// # Errors
    /// A message: it cannot be written, or is there and is not a manifest.
    pub fn create(path: &OsStr, umask: u32) -> Result<Self, String> {
        let fail = |error: std::io::Error| {
            format!("cannot write the manifest {}: {error}", quoted(path.as_bytes()))
        };
        may_be_replaced(path.as_ref()).map_err(fail)?;
        // A new random name: never write into the file of another job, or through a link that another user placed there.
        let mut part = path.to_owned();
        part.push(format!(".{:016x}.part", dmover_host::random_u64()));
        let mut options = std::fs::OpenOptions::new();
        // The umask of the process is cleared; apply the original one here.
        let options = options.read(true).write(true).create_new(true).mode(0o666 & !umask);
        let file = options.open(&part).map_err(fail)?;
        let output = file.try_clone().map_err(fail)?;
        let recorder = Arc::new(Recorder::new(Box::new(output)));
        Ok(Self { recorder, file, names: Some((part.into(), path.into())) })
    }

    /// Creates an unnamed manifest of the entries that the job writes, for the read-back.
    ///
    /// # Errors
    /// A message: the directory cannot be written.
    pub fn scratch(directory: &Path) -> Result<Self, String> {
        let fail = |error: std::io::Error| {
            let shown = quoted(directory.as_os_str().as_bytes());
            format!("cannot create the temporary manifest for --verify in {shown}: {error}")
        };
        let name = format!("dmover-written-{:016x}", dmover_host::random_u64());
        let path = directory.join(name);
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(directory).map_err(fail)?;
        let mut options = std::fs::OpenOptions::new();
        let options = options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&path).map_err(fail)?;
        std::fs::remove_file(&path).map_err(fail)?;
        let output = file.try_clone().map_err(fail)?;
        let recorder = Arc::new(Recorder::of_written(Box::new(output)));
        Ok(Self { recorder, file, names: None })
    }

    /// Opens the written manifest at its start, after it has ended.
    ///
    /// # Errors
    /// A message: it cannot be read.
    pub fn read_again(&self) -> Result<Recorded, String> {
        let fail = |error: std::io::Error| format!("cannot read the manifest of this job: {error}");
        let mut file = self.file.try_clone().map_err(fail)?;
        file.rewind().map_err(fail)?;
        Recorded::of_file(file, "of this job".into())
    }

    /// The recorder for the entries.
    pub fn recorder(&self) -> Arc<Recorder> {
        Arc::clone(&self.recorder)
    }

    /// Ends the manifest and renames it to its final name. A refused job leaves no manifest. A job that was stopped, or in which
    /// entries failed, leaves a manifest that is marked as incomplete.
    ///
    /// # Errors
    /// A message: it cannot be written.
    pub fn end(&self, result: &Result<JobReport, Fatal>) -> Result<(), String> {
        let Ok(report) = result else {
            // A refused job has changed nothing: remove the file. After any other failure, keep the partial manifest.
            let refused = [ExitCode::Usage, ExitCode::Temporary];
            if let Some((part, _)) = &self.names
                && result.as_ref().is_err_and(|error| refused.contains(&error.exit_code()))
            {
                let _ = std::fs::remove_file(part);
            }
            return Ok(());
        };
        let ended = report.state == JobState::Finished;
        let whole = !matches!(report.exit_code(), ExitCode::Partial | ExitCode::SourceMoved);
        let written = self.recorder.finish(ended && whole).and_then(|()| match &self.names {
            None => Ok(()),
            Some((part, path)) => self
                .file
                .sync_all()
                .and_then(|()| may_be_replaced(path))
                .and_then(|()| std::fs::rename(part, path)),
        });
        written.map_err(|error| {
            let name = self.names.as_ref().map(|(_, path)| quoted(path.as_os_str().as_bytes()));
            format!("cannot write the manifest {}: {error}", name.unwrap_or_default())
        })
    }
}

/// Allows only an older manifest to be replaced, so that a mistyped name does not destroy a file.
fn may_be_replaced(path: &Path) -> std::io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let mut start = [0; MAGIC.len()];
    let old = found.is_file() && File::open(path)?.read_exact(&mut start).is_ok() && start == MAGIC;
    let words = "the file exists and is not a manifest";
    if old { Ok(()) } else { Err(std::io::Error::new(ErrorKind::AlreadyExists, words)) }
}

/// A manifest that a tree is compared with. It is read while the job runs.
pub struct Recorded {
    name: String,
    header: Header,
    state: Mutex<Reading>,
}

struct Reading {
    reader: Reader<BufReader<File>>,
    /// Why the manifest could not be read to its end.
    trouble: Option<String>,
    ended: bool,
}

impl std::fmt::Debug for Recorded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorded").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Recorded {
    /// Opens the file and reads its header.
    ///
    /// # Errors
    /// A message: it cannot be read, or is not a manifest.
    pub fn open(path: &OsStr) -> Result<Self, String> {
        let name = quoted(path.as_bytes());
        let file = File::open(path).map_err(|e| format!("cannot read the manifest {name}: {e}"))?;
        Self::of_file(file, name)
    }

    /// The same for an open file at its start.
    ///
    /// # Errors
    /// A message: it cannot be read, or is not a manifest.
    pub fn of_file(file: File, name: String) -> Result<Self, String> {
        let (reader, header) = Reader::new(BufReader::with_capacity(256 << 10, file))
            .map_err(|error| format!("cannot use the manifest {name}: {error}"))?;
        let state = Mutex::new(Reading { reader, trouble: None, ended: false });
        Ok(Self { name, header, state })
    }

    /// The directory to which the paths are relative.
    pub fn base(&self) -> PathBytes {
        PathBytes(self.header.base.clone())
    }

    /// The start time of the job that wrote the manifest.
    pub fn begun(&self) -> Timestamp {
        self.header.begun
    }

    fn state(&self) -> dmover_schedule::sync::MutexGuard<'_, Reading> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the manifest could not be read to its end, if it could not.
    pub fn trouble(&self) -> Option<String> {
        self.state().trouble.clone()
    }

    /// Whether the manifest was read to its end and lists every entry of the tree.
    pub fn is_complete(&self) -> bool {
        self.state().reader.ending().is_some_and(|ending| ending.complete)
    }
}

impl RecordSupply for Recorded {
    fn next(&self, most: usize) -> Vec<Record> {
        let state = &mut *self.state();
        let mut records = Vec::new();
        while records.len() < most && !state.ended {
            match state.reader.next_record() {
                Ok(Some(record)) => records.push(record),
                Ok(None) => state.ended = true,
                Err(error) => {
                    state.trouble = Some(format!("the manifest {}: {error}", self.name));
                    state.ended = true;
                }
            }
        }
        records
    }

    fn is_whole(&self) -> bool {
        self.is_complete()
    }
}
