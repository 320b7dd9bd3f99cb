//! Compares content: both sides of a file, or one side with digests.
use dmover_local::error::changed;
use dmover_model::{Against, ByteRange, CompareTask, EntryError, EntryRecord, Name, Side, Version};
use dmover_plan::chunk;
use dmover_plan::temporary::is_temporary;

use crate::context::Engine;
use crate::level::Level;
use crate::mover::Mover;

impl Engine {
    /// The size of the parts in which several movers compare a file, if that is worthwhile.
    pub(super) fn compare_chunk(&self, length: u64) -> Option<u64> {
        let demanded = self.spec.policy.split_bytes;
        let bytes = chunk::chunk_bytes(length, self.resources.movers_max, demanded)?.max(1);
        (bytes < length).then_some(bytes)
    }
}

impl Engine {
    /// Whether regular files of a directory are opened on both sides before their metadata is known.
    pub(crate) fn compares_at_sight(&self, level: &Level) -> bool {
        let both = level.target.as_ref().is_some_and(|target| !target.fresh);
        both && self.asks_nothing_of_names(level)
            && self.compares_closely()
            && self.spec.verify_policy().since.is_none()
    }
}

impl Mover<'_> {
    /// Compares a regular file that must be opened in any case: fstat is cheaper than stat by name. Returns the name if
    /// anything is unusual; the normal way then reports it.
    pub(crate) fn compare_at_sight(&mut self, level: &Level, name: Name) -> Option<Name> {
        let engine = self.engine;
        let Some(target) = level.target.as_ref().filter(|_| !engine.control.is_stopping()) else {
            return Some(name);
        };
        if is_temporary(name.as_bytes()) {
            return Some(name);
        }
        let (local, stored) = (engine.local(), engine.spec.reads_stored());
        let bytes = name.as_bytes();
        let Some(pair) = local.open_pair_at_sight(&level.source, target, bytes, stored) else {
            return Some(name);
        };
        let size = pair.source.metadata.size;
        if !pair.is_ordinary() || engine.compare_chunk(size).is_some() {
            return Some(name);
        }
        let (metadata, found) = (pair.source.metadata.clone(), pair.destination.metadata.clone());
        engine.resources.limits.operation(&engine.control, self.lease);
        self.count_found(&metadata);
        self.pair = Some(pair);
        let record = EntryRecord { name, renamed: None, metadata, symlink: None };
        let planned = self.decide(level, record, Some((found, None)));
        self.apply_one(level, planned);
        self.pair = None;
        self.lease.extend();
        None
    }

    /// Compares a part of a large file. The last task of the file handles a failure.
    pub(crate) fn run_compare(&mut self, task: &CompareTask) {
        let compared = match &task.against {
            Against::Source(version) => self.compare_part(task, *version),
            Against::Digests(shape, expected) => self.compare_recorded_part(task, shape, expected),
        };
        match compared {
            Ok(ranges) => {
                self.outcome.differing = ranges;
                self.outcome.covered = Some(task.range);
                self.engine.reports.progress();
            }
            Err(error) => self.outcome.chunk_failure = Some(Box::new(error)),
        }
    }

    fn compare_part(
        &mut self,
        task: &CompareTask,
        version: Version,
    ) -> Result<Vec<ByteRange>, EntryError> {
        let engine = self.engine;
        let level = engine.open_level(&task.file.directory)?;
        let record = self.look(&level, &task.file.name)?;
        let found = self.plan_record(&level, record.clone()).and_then(|planned| planned.existing);
        let target = || level.target_path(task.file.destination_name.as_bytes());
        let found = found.filter(|found| found.version() == task.destination);
        let found = found.ok_or_else(|| changed(Side::Destination, target()))?;
        if record.metadata.version() != version {
            return Err(changed(Side::Source, level.source_path(record.name.as_bytes())));
        }
        let pair = engine.open_pair(&level, &record, &found, self.permit())?;
        self.compare_range(&level, &record, &pair, task.range)
    }
}
