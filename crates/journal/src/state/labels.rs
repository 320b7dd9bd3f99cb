//! Labels of jobs that are starting: a job has its label on record before it has a description.
use dmover_model::JobId;
use dmover_sys::file::{try_lock, wait_for_lock};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use super::{JobFile, StateDirectory, is_held};

/// Its name in the directory of the job. It counts as long as its process holds its lock.
const FILE: &str = "label";

/// The turn to choose a label: others wait until this is dropped.
#[derive(Debug)]
pub struct LabelTurn(#[allow(dead_code, reason = "it holds the lock")] File);

/// The label of a job that is starting or running; it is free when this is dropped.
#[derive(Debug)]
pub struct LabelHeld(#[allow(dead_code, reason = "it holds the lock")] File);

fn open(path: &Path) -> std::io::Result<File> {
    std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// The labels of the jobs of a state directory.
#[derive(Debug)]
pub struct Labels<'a>(&'a StateDirectory);

impl StateDirectory {
    /// The labels of its jobs that are starting or running.
    pub fn labels(&self) -> Labels<'_> {
        Labels(self)
    }
}

impl Labels<'_> {
    /// Waits for the turn to choose a label.
    ///
    /// # Errors
    /// The state directory cannot be written to.
    pub fn turn(&self) -> std::io::Result<LabelTurn> {
        self.0.is_usable()?;
        let turn = open(&self.0.path.join("labels"))?;
        wait_for_lock(&turn)?;
        Ok(LabelTurn(turn))
    }

    /// The jobs that hold a label now.
    pub fn held(&self) -> Vec<JobFile> {
        let Ok(jobs) = std::fs::read_dir(self.0.path.join("jobs")) else { return Vec::new() };
        let held = jobs.filter_map(|job| {
            let path = job.ok()?.path().join(FILE);
            let text = std::fs::read(&path).ok().filter(|_| is_held(&path))?;
            serde_json::from_slice(&text).ok()
        });
        held.collect()
    }

    /// Records the label of a job until what is answered is dropped. `None`: another process of the same job does.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn hold(
        &self,
        _turn: &LabelTurn,
        job: &JobId,
        described: &JobFile,
    ) -> std::io::Result<Option<LabelHeld>> {
        let directory = self.0.job(job);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let held = open(&directory.join(FILE))?;
        if !try_lock(&held)? {
            return Ok(None);
        }
        held.set_len(0)?;
        held.write_all_at(&serde_json::to_vec(described)?, 0)?;
        Ok(Some(LabelHeld(held)))
    }
}
