//! Rarer options of the disturbed job. They have random numbers of their own, and most seeds have none of them.
use dmover_memory::Disk;
use dmover_model::{Confirmed, CopyEngine, CopyPolicy, Limits, Overwrite, When};
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::TREE;
use super::compare::tree;
use super::damage::{Damage, Place, damage};

/// Options of a seed.
#[derive(Debug, Clone, Default)]
pub struct Varied {
    /// Limits of speed and memory.
    pub limits: Limits,
    /// The user wants to see every entry.
    pub lists_entries: bool,
    /// Interrupted runs are stopped, not killed.
    pub stops: bool,
    /// Reads of the source fail as well, each with this chance.
    pub source_errors: f64,
    /// The source changes at these calls of a disturbed run.
    pub source_changes: Vec<u64>,
}

impl Varied {
    /// Those of a seed, and what they change of its policy. `is_far`: the source is at another host.
    pub fn of(seed: u64, policy: &mut CopyPolicy, is_far: bool) -> Self {
        let random = &mut ChaCha8Rng::seed_from_u64(seed ^ 0x7661_7279);
        if random.random_bool(0.5) {
            return Self::default();
        }
        vary_policy(policy, random);
        let mut varied = Self::default();
        if random.random_bool(0.25) {
            // Seconds of copying in which parts are flushed, entries are counted ahead, and movers are added.
            varied.limits.bytes_per_s = Some(10_f64.powf(random.random_range(4.0..5.5)) as u64);
        }
        if random.random_bool(0.15) {
            varied.limits.operations_per_s = Some(random.random_range(2..50));
            varied.limits.opens_per_s = Some(random.random_range(2..50));
            varied.limits.creates_per_s = Some(random.random_range(2..50));
        }
        if random.random_bool(0.1) {
            varied.limits.memory_bytes = 1 << 20;
        }
        varied.lists_entries = random.random_bool(0.6);
        varied.stops = random.random_bool(0.5);
        if random.random_bool(0.15) {
            varied.source_errors = 0.01;
        }
        if random.random_bool(0.3) {
            let calls = (0..random.random_range(1..4_u32)).map(|_| random.random_range(20..1500));
            varied.source_changes = calls.collect();
        }
        if is_far {
            // A far source has changes and errors of its own (`far_plan::BadRun`), which are judged after each run: that needs
            // to know what the source was like before it, and how often it has changed since.
            (varied.source_errors, varied.source_changes) = (0.0, Vec::new());
        }
        varied
    }
}

fn vary_policy(policy: &mut CopyPolicy, random: &mut ChaCha8Rng) {
    let engines = [CopyEngine::Auto, CopyEngine::Kernel, CopyEngine::Buffered, CopyEngine::Direct];
    let whens = [When::Auto, When::Never];
    policy.engine = engines.choose(random).copied().unwrap_or_default();
    policy.sparse =
        [When::Auto, When::Always, When::Never].choose(random).copied().unwrap_or_default();
    policy.reflink = whens.choose(random).copied().unwrap_or_default();
    policy.buffer_bytes = random.random_bool(0.3).then_some(4096);
    policy.split_bytes = random.random_bool(0.7).then_some(16 << 10);
    policy.forget_read = random.random_bool(0.2);
    policy.forget_written = random.random_bool(0.2);
    if random.random_bool(0.1) {
        policy.overwrite = Overwrite::Always;
    }
    let Some(sync) = &mut policy.sync else { return };
    sync.checksum = random.random_bool(0.2);
    if let Some(delete) = sync.delete.as_mut().filter(|_| random.random_bool(0.5)) {
        // Then the user is asked, and confirms.
        delete.confirmed = Confirmed::None;
    }
}

/// Somebody changes the source while a job reads it. A pass also finds changes that leave size and time as they are.
pub fn meddle(disk: &mut Disk, is_pass: bool, seed: u64) {
    let faults = disk.faults().clone();
    disk.faults_mut().clear();
    let tree = tree(disk);
    let place = Place { top: TREE, tree: &tree, is_silent: false };
    let kinds = [Damage::Removed, Damage::Beside, Damage::Resized, Damage::Flipped, Damage::Mode];
    let kinds = if is_pass { &kinds[..] } else { &kinds[..4] };
    damage(disk, &place, kinds, 2, &mut ChaCha8Rng::seed_from_u64(seed));
    *disk.faults_mut() = faults;
}
