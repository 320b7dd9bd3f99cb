//! `dmover wait`.
use dmover_journal::{JobPhase, JobStatus};
use dmover_model::{ExitCode as Code, Verb, units};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::shown::outcome;
use super::{Known, Refused, find, refuse};
use crate::args::WaitArgs;
use crate::cmd::choose::{Choice, named_or_last};
use crate::cmd::run::exit;
use crate::print::waiting::Waiting;
use crate::print::{failure, grouped};

/// Time between two checks of a status.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(200);

pub(crate) fn wait(args: &WaitArgs) -> ExitCode {
    let place = args.place.state_dir.as_ref();
    let known: Result<Vec<Known>, Refused> = match &args.jobs[..] {
        [] => named_or_last(None, place, Choice::Any).map(|known| vec![known]),
        named => named.iter().map(|named| find(named, place)).collect(),
    };
    let known = match known {
        Ok(known) => known,
        Err(refused) => return refuse(refused),
    };
    let until = args.timeout.map(|ms| Instant::now() + Duration::from_millis(ms));
    let mut waiting = Waiting::new(args.quiet, Duration::from_millis(args.stats));
    let mut worst = 0;
    for known in &known {
        let job = &known.file.job;
        let status = loop {
            let status = known.state.status(job).unwrap_or_default();
            if has_ended(known, &status) {
                break status;
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                waiting.end();
                failure(&format!("job {job} is still {}", status.phase.word()), "");
                return exit(Code::Temporary);
            }
            waiting.show(|| in_words(known, &status));
            std::thread::sleep(LOOK_EVERY);
        };
        waiting.say(&format!("dmover: job {job}: {}", outcome(&known.file, &status)));
        let died = status.phase == JobPhase::Died;
        let code = status.exit_code.filter(|_| !died);
        worst = worst.max(code.unwrap_or_else(|| Code::Partial.code()));
    }
    waiting.end();
    ExitCode::from(worst)
}

/// Whether the job has ended for good: a standby continues a job whose process died.
pub(super) fn has_ended(known: &Known, status: &JobStatus) -> bool {
    let goes_on = status.phase == JobPhase::Died && known.state.is_stood_by(&known.file.job);
    !status.phase.has_process() && !goes_on
}

/// The progress of a job, in one line.
fn in_words(Known { file, .. }: &Known, status: &JobStatus) -> String {
    let get = |name: &str| status.counters.get(name).copied().unwrap_or(0);
    let done = if file.verb == Verb::Sum.word() {
        format!("{} hashed", units::format_iec(get("bytes_hashed")))
    } else if file.verb == Verb::Verify.word() {
        format!("{} entries compared", grouped(get("entries_compared")))
    } else {
        format!("{} copied", units::format_iec(get("bytes_copied") + get("bytes_shared")))
    };
    let time = units::format_duration((status.updated_ms - status.begun_ms).max(0) as u64 / 1000);
    format!(
        "dmover: job {}: {}; {time} elapsed, {} entries found, {done}",
        file.job,
        outcome(file, status),
        grouped(get("entries_found")),
    )
}
