//! Files that were open for writing when a copy read them: no time shows whether such a copy is complete, so the next
//! run of the job compares them.
use dmover_model::{JobId, TreePath, percent_decode, percent_encode};
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use crate::state::StateDirectory;

/// A file in the directory of the job with one path a line. It is removed when there is nothing to compare.
#[derive(Debug)]
pub struct OpenFiles {
    path: PathBuf,
    /// Paths from earlier runs.
    before: BTreeSet<TreePath>,
    now: Mutex<Noted>,
    is_kept: bool,
}

#[derive(Debug, Default)]
struct Noted {
    file: Option<File>,
    paths: BTreeSet<TreePath>,
}

impl OpenFiles {
    /// The paths from earlier runs of a job. `is_kept`: those of this run are recorded as well.
    pub fn open(state: &StateDirectory, id: &JobId, is_kept: bool) -> Self {
        let path = state.of_job(id).join("open-files");
        let text = std::fs::read(&path).unwrap_or_default();
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let before = lines.filter_map(|line| TreePath::new(percent_decode(line)).ok()).collect();
        Self { path, before, now: Mutex::default(), is_kept }
    }

    /// The paths that this run must compare.
    pub fn before(&self) -> &BTreeSet<TreePath> {
        &self.before
    }

    /// Adds a path at once, because the process may be killed.
    pub fn note(&self, path: &TreePath) {
        let mut now = lock(&self.now);
        if !self.is_kept || !now.paths.insert(path.clone()) {
            return;
        }
        if now.file.is_none() {
            let mut options = OpenOptions::new();
            let opened = options.create(true).append(true).mode(0o600).open(&self.path);
            now.file = opened.inspect_err(|error| self.warn(error)).ok();
        }
        if let Some(file) = &mut now.file {
            let line = percent_encode(path.as_bytes()) + "\n";
            let _ = file.write_all(line.as_bytes()).inspect_err(|error| self.warn(error));
        }
    }

    /// Keeps the paths for the next run: all except those that this run has compared and found closed.
    pub fn end(&self, compared: &[TreePath]) {
        let now = lock(&self.now);
        if !self.is_kept || (self.before.is_empty() && now.paths.is_empty()) {
            return;
        }
        let compared: BTreeSet<&TreePath> = compared.iter().collect();
        let open = self.before.iter().filter(|path| !compared.contains(path));
        let open: BTreeSet<&TreePath> = open.chain(&now.paths).collect();
        let kept = if open.is_empty() {
            std::fs::remove_file(&self.path)
        } else {
            let lines = open.iter().map(|path| percent_encode(path.as_bytes()) + "\n");
            let temporary = self.path.with_extension("new");
            std::fs::write(&temporary, lines.collect::<String>())
                .and_then(|()| std::fs::rename(temporary, &self.path))
        };
        let _ = kept.inspect_err(|error| self.warn(error));
    }

    fn warn(&self, error: &std::io::Error) {
        tracing::warn!(%error, path = %self.path.display(),
            "cannot record which files were open for writing; the next run does not compare them");
    }
}
