//! What a seed chooses.
use dmover_memory::{Errno, Profile};
use dmover_model::{CopyPolicy, DeletePolicy, DeleteWhen, SyncPolicy, Verb};
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::after::After;
use super::far_plan::Far;
use super::vary::Varied;

/// How a run of the job is disturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The process is killed.
    Kill,
    /// The host loses its power.
    PowerCut,
    /// The destination loses writes: a flush fails.
    FailedFlush,
}

/// One run that does not come to its end, or not undisturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Round {
    /// At which call of the process.
    pub at_call: u64,
    /// What happens then.
    pub ending: Ending,
}

/// What goes wrong at the destination during all disturbed runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Calls fail with this error, each with this chance.
    Errors(Errno, f64),
    /// It has room for so many bytes only.
    Full(u64),
    /// Reads and writes move few bytes at a time.
    Partial(usize),
}

/// The job of a seed.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Copy or sync.
    pub verb: Verb,
    /// Its policy.
    pub policy: CopyPolicy,
    /// Number of movers.
    pub threads: u32,
    /// The file system of the destination.
    pub destination: Profile,
    /// Number of entries of the source, about.
    pub entries: u32,
    /// The destination has an older state of the source, and other entries.
    pub has_older: bool,
    /// The source changes between two runs.
    pub changes: bool,
    /// Runs before the last one.
    pub rounds: Vec<Round>,
    /// What goes wrong in these runs.
    pub fault: Fault,
    /// In the runs before the last one, another user gives the same command at the same time.
    pub has_rival: bool,
    /// The source is at another host.
    pub far: Option<Far>,
    /// Rarer options.
    pub varied: Varied,
    /// The job that follows on the same trees, if one does.
    pub after: Option<After>,
    /// Calls about paths with these words in them become part of the story.
    pub watched: Option<String>,
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let random = &mut random;
        let verb = if random.random_bool(0.4) { Verb::Copy } else { Verb::Sync };
        let deletes = verb == Verb::Sync && random.random_bool(0.6);
        let when = [DeleteWhen::During, DeleteWhen::Delay, DeleteWhen::After];
        let delete = deletes.then(|| DeletePolicy {
            when: when.choose(random).copied().unwrap_or(DeleteWhen::Delay),
            limit: None,
            trash: None,
            confirmed: dmover_model::Confirmed::All,
        });
        let sync = (verb == Verb::Sync).then(|| SyncPolicy {
            delete,
            allow_empty_source: true,
            checksum: false,
            ctime: random.random_bool(0.2),
            renames: random.random_bool(0.7),
            clears_all: false,
            snapshot: None,
        });
        let mut policy = CopyPolicy {
            split_bytes: random.random_bool(0.7).then_some(64 << 10),
            fsync: random.random_bool(0.2),
            inplace: random.random_bool(0.1),
            sync,
            ..CopyPolicy::default()
        };
        let profiles = [Profile::ext4(), Profile::xfs()];
        let destination = profiles.choose(random).cloned().unwrap_or_default();
        let rounds = (0..random.random_range(0..4_u32)).map(|_| Round::of(random)).collect();
        let fault = match random.random_range(0..10_u32) {
            0 => Fault::Errors(Errno::IO, 0.01),
            1 => Fault::Errors(Errno::TIMEDOUT, 0.02),
            2 => Fault::Full(random.random_range(0..1_u64 << 20)),
            3 => Fault::Partial(random.random_range(1..3000)),
            _ => Fault::None,
        };
        let far = Far::of(seed);
        let varied = Varied::of(seed, &mut policy, far.is_some());
        let after = After::of(seed, far.is_some());
        Self {
            seed,
            verb,
            policy,
            threads: random.random_range(1..5),
            destination,
            entries: random.random_range(0..40),
            has_older: random.random_bool(0.5),
            changes: random.random_bool(0.3),
            rounds,
            fault,
            has_rival: random.random_bool(0.2),
            far,
            varied,
            after,
            watched: None,
        }
    }
}

impl Round {
    fn of(random: &mut ChaCha8Rng) -> Self {
        // As many in the first hundred calls as in the next thousand.
        let at_call = 10_f64.powf(random.random_range(1.0..3.7)) as u64;
        let endings = [Ending::Kill, Ending::Kill, Ending::PowerCut, Ending::FailedFlush];
        let ending = endings.choose(random).copied().unwrap_or(Ending::Kill);
        Self { at_call, ending }
    }
}
