//! Waits for the end of a job.
use dmover_journal::{JobPhase, JobStatus};
use dmover_model::ExitCode;
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use std::time::Duration;

use crate::known::KnownJob;

/// Time between two checks of a status.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The status of a job when a wait ends.
#[derive(Debug, Clone, PartialEq)]
pub enum Followed {
    /// The job has ended.
    Ended(JobStatus),
    /// The time is over, and the job has not ended.
    TimedOut(JobStatus),
    /// The record of the job was removed, so that nothing tells how it ended.
    Gone,
}

impl KnownJob {
    /// Whether the job has ended for good: a standby continues a job whose process died.
    pub fn has_ended(&self, status: &JobStatus) -> bool {
        let continues = status.phase == JobPhase::Died && self.state.is_stood_by(self.id());
        !status.phase.has_process() && !continues
    }

    /// Waits until the job has ended, at most until this time. `show` gets each status before the last.
    pub fn follow(&self, until: Option<Instant>, show: &mut dyn FnMut(&JobStatus)) -> Followed {
        loop {
            let Some(status) = self.state.status(self.id()) else { return Followed::Gone };
            if self.has_ended(&status) {
                return Followed::Ended(status);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Followed::TimedOut(status);
            }
            show(&status);
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// The exit code of a job that has ended. A job whose process died left none that counts.
pub fn code_of_end(status: &JobStatus) -> u8 {
    let died = status.phase == JobPhase::Died;
    let code = status.exit_code.filter(|_| !died);
    code.unwrap_or_else(|| ExitCode::Partial.code())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::on_record::OnRecord;

    #[test]
    fn a_wait_ends_with_the_job_or_with_its_time() {
        let records = OnRecord::new();
        let job = records.put("a1", |_| {});
        records.status("a1", JobPhase::Running, 1);
        let lock = records.runs("a1");
        let now = Some(Instant::now());
        assert!(matches!(job.follow(now, &mut |_| {}), Followed::TimedOut(_)));
        let mut shown = 0;
        let mut lock = Some(lock);
        let ended = job.follow(None, &mut |_| {
            shown += 1;
            lock.take();
        });
        let Followed::Ended(status) = ended else { panic!("it has ended") };
        assert_eq!((shown, status.phase), (1, JobPhase::Died));
        assert_eq!(code_of_end(&status), ExitCode::Partial.code());
    }

    #[test]
    fn a_standby_keeps_a_job_from_its_end() {
        let records = OnRecord::new();
        let job = records.put("a1", |_| {});
        records.status("a1", JobPhase::Running, 1);
        let turn = records.state().stand_by("a1").unwrap();
        assert!(!job.has_ended(&job.status()));
        drop(turn);
        assert!(job.has_ended(&job.status()));
    }

    #[test]
    fn the_recorded_code_counts_unless_the_process_died() {
        let code =
            |phase| code_of_end(&JobStatus { phase, exit_code: Some(5), ..JobStatus::default() });
        assert_eq!(code(JobPhase::Stopped), 5);
        assert_eq!(code(JobPhase::Died), 3);
    }

    #[test]
    fn a_wait_for_a_job_without_a_record_ends() {
        let records = OnRecord::new();
        let job = records.put("a1", |_| {});
        let lock = records.runs("a1");
        records.state().forget("a1", &lock).expect("the state is writable");
        drop(lock);
        assert_eq!(job.follow(None, &mut |_| panic!("it has no status")), Followed::Gone);
    }
}
