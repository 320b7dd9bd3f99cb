//! Whole jobs in a simulation: engine, coordinator, movers and journal are those that are shipped; the trees lie on disks in
//! memory, and a seed decides which thread runs, what fails, when the process is killed and when the power goes.
//!
//! The journal lies in a directory of the real system: what it has committed survives a power cut. Its own faults are not
//! simulated. One seed is one run.
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The directory on each disk that is a root of the job.
const TREE: &[u8] = b"tree";

mod after;
mod compare;
mod damage;
mod far;
mod far_plan;
mod grow;
mod line;
mod plan;
mod run;
mod seed_directory;
mod vary;

pub use after::After;
pub use far_plan::{BadRun, Far};
pub use plan::{Ending, Fault, Plan, Round};
pub use run::{Run, simulate};
pub use vary::Varied;

/// What many seeds have shown.
#[derive(Debug, Default)]
pub struct Checked {
    /// Number of seeds.
    pub seeds: u64,
    /// Steps of all simulations.
    pub steps: u64,
    /// What is broken, with what happened, by seed.
    pub broken: BTreeMap<u64, Vec<String>>,
}

/// Runs the jobs of so many seeds, on several threads; each simulation is on its own.
pub fn check(first: u64, count: u64, threads: usize) -> Checked {
    let (next, checked) = (AtomicU64::new(first), Mutex::new(Checked::default()));
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= first.saturating_add(count) {
            return;
        }
        let run = catch_unwind(AssertUnwindSafe(|| simulate(&Plan::of(seed))));
        let mut checked = checked.lock().unwrap_or_else(PoisonError::into_inner);
        checked.seeds += 1;
        match run {
            Ok(run) => {
                checked.steps += run.trace.steps;
                if !run.broken.is_empty() {
                    checked.broken.insert(seed, [run.story, run.broken].concat());
                }
            }
            Err(_) => {
                let words = "the simulation panicked, as told above".to_owned();
                checked.broken.insert(seed, vec![words]);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    checked.into_inner().unwrap_or_else(PoisonError::into_inner)
}
