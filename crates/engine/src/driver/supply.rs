//! Lists that are read while they are processed.
use dmover_model::{Fatal, RecordsTask, Subject, TaskKind};
use dmover_plan::coordinator::Input;

use super::JobList;
use super::start::{SHARD, scans_of};
use crate::context::Engine;

/// Files of a list in one task.
const SUM_ITEMS: usize = 64;
/// Records of a manifest in one task.
const RECORDS: usize = 128;
impl JobList {
    /// The next tasks of such a list. `None`: none are available yet.
    pub(super) fn supply(&self, tasks: usize, engine: &Engine) -> Result<Option<Input>, Fatal> {
        let (tasks, more): (Vec<TaskKind>, bool) = match self {
            Self::Sums(supply) => {
                let Some(items) = supply.next(SUM_ITEMS * tasks) else { return Ok(None) };
                if engine.facts.is_elsewhere && items.iter().any(|i| i.subject == Subject::Stdin) {
                    let what = "movers of a broker cannot read the standard input of this process";
                    return Err(Fatal::refused(what, "omit --broker"));
                }
                let parts = items.chunks(SUM_ITEMS).map(|part| TaskKind::Sums(part.to_vec()));
                (parts.collect(), !items.is_empty())
            }
            Self::Records(supply) => {
                let records = supply.next(RECORDS * tasks);
                if records.is_empty() {
                    let tasks = engine.last_tasks(&**supply);
                    return Ok(Some(Input::Start { tasks, more: false }));
                }
                engine.proof.learn(records.iter().map(|record| &record.path))?;
                let parts = records.chunks(RECORDS).map(|part| {
                    TaskKind::Records(RecordsTask { records: part.to_vec(), round: 1 })
                });
                (parts.collect(), true)
            }
            // A job of failed entries has one source.
            Self::Failed(list) => {
                let paths = list.next(SHARD * tasks)?;
                (scans_of(&paths, engine), !paths.is_empty())
            }
            _ => (Vec::new(), false),
        };
        Ok(Some(Input::Start { tasks, more }))
    }
}
