//! `dmover wait`.
use dmover_job::{Choice, Followed, KnownJob, Refusal, code_of_end};
use dmover_journal::JobStatus;
use dmover_model::{ExitCode as Code, Verb, units};
use dmover_schedule::time::Instant;
use std::process::ExitCode;
use std::time::Duration;

use super::shown::outcome;
use super::{find, named_or_last, refuse};
use crate::args::WaitArgs;
use crate::cmd::run::exit;
use crate::print::waiting::Waiting;
use crate::print::{failure, grouped};

pub(crate) fn wait(args: &WaitArgs) -> ExitCode {
    let place = args.place.state_dir.as_ref();
    let known: Result<Vec<KnownJob>, Refusal> = match &args.jobs[..] {
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
        let job = known.id();
        let followed = known.follow(until, &mut |status| waiting.show(|| in_words(known, status)));
        let status = match followed {
            Followed::Ended(status) => status,
            Followed::TimedOut(status) => {
                waiting.end();
                failure(&format!("job {job} is still {}", status.phase.word()), "");
                return exit(Code::Temporary);
            }
            Followed::Gone => {
                waiting.say(&format!(
                    "dmover: job {job}: its record was removed, so its exit code is not known ('sum' \
                    and 'verify' with --broker remove theirs at the end, 'cleanup' that of any job)"
                ));
                worst = worst.max(Code::Partial.code());
                continue;
            }
        };
        waiting.say(&format!("dmover: job {job}: {}", outcome(&known.file, &status)));
        worst = worst.max(code_of_end(&status));
    }
    waiting.end();
    ExitCode::from(worst)
}

/// The progress of a job, in one line.
fn in_words(KnownJob { file, .. }: &KnownJob, status: &JobStatus) -> String {
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
