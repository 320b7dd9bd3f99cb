//! Content that was written into files and could not be flushed.
//!
//! After a failed flush the kernel treats the pages as clean: a reader gets the written data, and the next flush
//! succeeds, while storage has the old data. So these bytes count as different until they are written and flushed
//! again.
use dmover_model::{ByteRange, Identity};
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// The ranges, by file.
#[derive(Debug, Default)]
pub struct Unflushed {
    /// There are ranges; most jobs have none.
    any: AtomicBool,
    ranges: Mutex<HashMap<Identity, Vec<ByteRange>>>,
}

impl Unflushed {
    /// Adds ranges of a file.
    pub fn add(&self, file: Identity, ranges: &[ByteRange]) {
        lock(&self.ranges).entry(file).or_default().extend(ranges);
        self.any.store(true, Ordering::Release);
    }

    /// The ranges of a file.
    pub fn of(&self, file: Identity) -> Vec<ByteRange> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        lock(&self.ranges).get(&file).cloned().unwrap_or_default()
    }

    /// Removes the ranges of a file after they were written and flushed again.
    pub fn settle(&self, file: Identity) {
        if self.any.load(Ordering::Acquire) {
            lock(&self.ranges).remove(&file);
        }
    }
}
