//! Names of temporary files: recognisable, unique for each run, and never too long.
use dmover_model::{JobId, Name};

const PREFIX: &[u8] = b".dmover-";
const JOB_DIGITS: usize = 12;
const RUN_DIGITS: usize = 16;
const NUMBER_DIGITS: usize = 16;

/// The names of one run's temporary files: `.dmover-<job>-<run>-<number>`, 54 bytes.
///
/// The run stands for the attempt: no two runs and no two attempts at a file share a name. It distinguishes the
/// leftovers of an interrupted run from the files that this run is writing.
#[derive(Debug, Clone)]
pub struct TemporaryNames {
    job: String,
    run: String,
    /// Temporary files of earlier runs that this run resumes, sorted.
    spared: Vec<Name>,
}

impl TemporaryNames {
    /// Names for run `run` of `job`.
    pub fn new(job: &JobId, run: u64) -> Self {
        assert_eq!(job.0.len(), JOB_DIGITS, "a job id has twelve digits");
        Self { job: job.0.clone(), run: format!("{run:016x}"), spared: Vec::new() }
    }

    /// Adds temporary files of earlier runs that this run resumes.
    #[must_use]
    pub fn sparing(self, mut spared: Vec<Name>) -> Self {
        spared.sort_unstable();
        Self { spared, ..self }
    }

    /// The n-th temporary file of a lease.
    pub fn of_lease(&self, lease: u32, number: u32) -> Name {
        self.name(u64::from(lease) << 32 | u64::from(number))
    }

    /// Whether `name` is a temporary file of this lease.
    pub fn is_of_lease(&self, name: &[u8], lease: u32) -> bool {
        let start = format!(".dmover-{}-{}-{lease:08x}", self.job, self.run);
        is_temporary(name) && name.starts_with(start.as_bytes())
    }

    /// The temporary file with this number.
    fn name(&self, number: u64) -> Name {
        let text = format!(".dmover-{}-{}-{number:016x}", self.job, self.run);
        Name::new(text.into_bytes()).expect("digits and dashes make a valid name")
    }

    /// Whether `name` was left by another run of the same job.
    pub fn is_leftover(&self, name: &[u8]) -> bool {
        let spared = self.spared.binary_search_by(|one| one.as_bytes().cmp(name)).is_ok();
        let other =
            |(job, run): (&[u8], &[u8])| job == self.job.as_bytes() && run != self.run.as_bytes();
        parse(name).is_some_and(other) && !spared
    }
}

impl TemporaryNames {
    /// Whether `name` is a temporary file of another job.
    pub fn is_foreign(&self, name: &[u8]) -> bool {
        parse(name).is_some_and(|(job, _)| job != self.job.as_bytes())
    }
}

/// Whether `name` is a temporary file of any job.
pub fn is_temporary(name: &[u8]) -> bool {
    parse(name).is_some()
}

fn parse(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut fields = name.strip_prefix(PREFIX)?.split(|b| *b == b'-');
    let mut field = |digits: usize| {
        fields.next().filter(|f| f.len() == digits && f.iter().all(u8::is_ascii_hexdigit))
    };
    let (job, run, _) = (field(JOB_DIGITS)?, field(RUN_DIGITS)?, field(NUMBER_DIGITS)?);
    fields.next().is_none().then_some((job, run))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_other_runs_of_the_same_job_are_leftovers() {
        let job = JobId("0123456789ab".into());
        let (old, new) = (TemporaryNames::new(&job, 1), TemporaryNames::new(&job, 2));
        let other = TemporaryNames::new(&JobId("ffffffffffff".into()), 1);
        assert!(new.is_leftover(old.name(7).as_bytes()));
        assert!(!new.is_leftover(new.name(7).as_bytes()));
        assert!(!new.is_leftover(other.name(7).as_bytes()));
        assert!(
            new.is_foreign(other.name(7).as_bytes()) && !new.is_foreign(old.name(7).as_bytes())
        );
        let sparing = new.clone().sparing(vec![old.name(9), old.name(7)]);
        assert!(!sparing.is_leftover(old.name(7).as_bytes()));
        assert!(sparing.is_leftover(old.name(8).as_bytes()));
        assert!(is_temporary(other.name(u64::MAX).as_bytes()));
        let one = new.of_lease(7, 0xffff_ffff);
        assert!(new.is_of_lease(one.as_bytes(), 7) && !new.is_of_lease(one.as_bytes(), 8));
        assert!(!old.is_of_lease(one.as_bytes(), 7), "of another run");
    }

    #[test]
    fn a_users_own_file_is_not_taken_for_one() {
        for name in [&b".dmover-notes"[..], b".dmover-0123456789ab-1-2", b"dmover", b".dmover-"] {
            assert!(!is_temporary(name));
        }
    }
}
