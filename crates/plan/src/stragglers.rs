//! Finds movers that are slower than the rest of their fleet, for which work, and where they lose time.
//!
//! Each mover counts its own work and samples the activity of its threads; the coordinator receives both every few
//! seconds. A slow mover does less work per second *and* less per second of each busy thread: a mover with few tasks
//! shows only the former, and one with many threads for the same hardware only the latter. Speeds are compared within a
//! class of tasks, because a byte of a large file and an entry of a directory have different costs. Time in which a
//! mover waits for a limit of the job does not count.
use dmover_model::TaskClass;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::bottleneck::Profile;
use crate::leases::MoverId;

/// Number of classes of tasks.
const CLASSES: usize = TaskClass::ALL.len();
/// A mover this many times slower than the median is slow, until it is below `SLOW_NO_MORE`.
const SLOW: f64 = 3.0;
const SLOW_NO_MORE: f64 = 2.0;
/// Periods in which a class was busy before its speed is known.
const STRETCHES_MIN: u32 = 2;
/// A period with fewer samples of a class is ignored.
const SAMPLES_MIN: u64 = 10;
/// With fewer movers, none can be called slow.
const MOVERS_MIN: usize = 3;
/// The weight of the last period.
const WEIGHT: f64 = 0.5;

/// What a mover has done since it joined the job, by its own count.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Done {
    /// Work of each class in bytes; an entry counts as a number of bytes.
    pub work: [u64; CLASSES],
    /// Samples of threads that were busy with each class.
    pub busy: [u64; CLASSES],
    /// Samples of the activity of threads.
    pub profile: Profile,
}

/// A mover that is slower than the others.
#[derive(Debug, Clone, PartialEq)]
pub struct Slow {
    /// The class of tasks in which it is slow.
    pub class: TaskClass,
    /// How many times slower than the median.
    pub times: f64,
    /// The activity in which it loses time.
    pub at: &'static str,
}

impl Slow {
    /// The message, which follows the name of the mover.
    pub fn words(&self) -> String {
        let class = match self.class {
            TaskClass::Small => "small files and names",
            TaskClass::Large => "large files",
        };
        let (times, at) = (self.times, self.at);
        format!(
            "{times:.1} times slower than the other movers with {class}; it spends the time {at}"
        )
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Speed {
    /// Work per second, and per sample of a busy thread.
    work: [f64; 2],
    stretches: u32,
    is_slow: bool,
}

impl Speed {
    fn times_slower_than(&self, [in_time, of_threads]: [f64; 2]) -> f64 {
        let [own, each] = self.work.map(|work| work.max(f64::MIN_POSITIVE));
        (in_time / own).min(of_threads / each)
    }
}

#[derive(Debug, Clone, Default)]
struct Track {
    told_ms: u64,
    done: Done,
    speeds: [Speed; CLASSES],
    /// Samples of each activity per byte of work.
    costs: [f64; ACTIVITIES.len()],
}

type Activity = (fn(&Profile) -> u64, &'static str);

/// Activities of threads, in the words of [`Slow::at`].
const ACTIVITIES: [Activity; 6] = [
    (|p| p.source_names, "on source metadata (check its path to the source)"),
    (|p| p.source_data, "reading (check its path to the source, or its own disk)"),
    (|p| p.target_names, "on destination metadata (check its path to the destination)"),
    (|p| p.target_data, "writing (check its path to the destination, or its own disk)"),
    (|p| p.kernel_copy, "copying in the kernel (check its path to source and destination)"),
    (|p| p.capped, "waiting for --bwlimit or --ops-limit"),
];

/// The speeds of a fleet.
#[derive(Debug, Default)]
pub struct Stragglers {
    movers: BTreeMap<MoverId, Track>,
    /// The job has shared limits: time spent waiting for them does not count.
    has_limits: bool,
}

impl Stragglers {
    /// For a job with or without limits on its rates.
    pub fn of_job(has_limits: bool) -> Self {
        Self { has_limits, ..Self::default() }
    }

    /// Adds a report of the work that a mover has done so far.
    pub fn tell(&mut self, mover: MoverId, done: Done, now_ms: u64) {
        let track = self
            .movers
            .entry(mover)
            .or_insert_with(|| Track { told_ms: now_ms, ..Track::default() });
        let elapsed_s = now_ms.saturating_sub(track.told_ms) as f64 / 1000.0;
        let before = std::mem::replace(&mut track.done, done);
        track.told_ms = now_ms;
        let since = |now: u64, then: u64| now.saturating_sub(then);
        if elapsed_s <= 0.0 {
            return;
        }
        let busy: [u64; CLASSES] = std::array::from_fn(|c| since(done.busy[c], before.busy[c]));
        let work: [u64; CLASSES] = std::array::from_fn(|c| since(done.work[c], before.work[c]));
        let all = busy.iter().sum::<u64>();
        // Who waits for the job's limit could do more; a mover with a limit of its own is slower than others.
        let capped = since(done.profile.capped, before.profile.capped).min(all);
        let capped = if self.has_limits { capped } else { 0 };
        let free = (all - capped) as f64 / all.max(1) as f64;
        for (class, speed) in track.speeds.iter_mut().enumerate() {
            if ((busy[class] as f64 * free) as u64) < SAMPLES_MIN {
                continue;
            }
            // While threads are at tasks of the other class, they do nothing for this one.
            let share = busy[class] as f64 / all as f64;
            let by = [elapsed_s * share, busy[class] as f64].map(|by| by * free);
            let found = by.map(|by| work[class] as f64 / by);
            let weight = if speed.stretches == 0 { 1.0 } else { WEIGHT };
            for (known, found) in speed.work.iter_mut().zip(found) {
                *known += (found - *known) * weight;
            }
            speed.stretches += 1;
        }
        if all >= SAMPLES_MIN {
            let work = work.iter().sum::<u64>().max(1) as f64;
            for (cost, (samples, _)) in track.costs.iter_mut().zip(ACTIVITIES) {
                let found = since(samples(&done.profile), samples(&before.profile)) as f64 / work;
                *cost += (found - *cost) * WEIGHT;
            }
        }
        self.judge();
    }

    /// Forgets a mover that has left.
    pub fn forget(&mut self, mover: MoverId) {
        self.movers.remove(&mover);
    }

    /// Whether a mover is slower than the others.
    pub fn slow(&self, mover: MoverId) -> Option<Slow> {
        let track = self.movers.get(&mover)?;
        let slow = track.speeds.iter().zip(TaskClass::ALL).filter(|(speed, _)| speed.is_slow);
        let slow = slow.filter_map(|(speed, class)| {
            let times = speed.times_slower_than(self.medians(class)?);
            Some(Slow { class, times, at: self.excess(track) })
        });
        slow.max_by(|one, other| one.times.total_cmp(&other.times))
    }

    fn medians(&self, class: TaskClass) -> Option<[f64; 2]> {
        let known = self.movers.values().map(|track| &track.speeds[class as usize]);
        let known: Vec<&Speed> = known.filter(|s| s.stretches >= STRETCHES_MIN).collect();
        let of = |which: usize| median(known.iter().map(|speed| speed.work[which]).collect());
        (known.len() >= MOVERS_MIN).then(|| [of(0), of(1)])
    }

    fn judge(&mut self) {
        for class in TaskClass::ALL {
            let Some(medians) = self.medians(class) else { continue };
            for track in self.movers.values_mut() {
                let speed = &mut track.speeds[class as usize];
                let bound = if speed.is_slow { SLOW_NO_MORE } else { SLOW };
                let times = speed.times_slower_than(medians);
                speed.is_slow = speed.stretches >= STRETCHES_MIN && times > bound;
            }
        }
    }

    /// The activity in which a mover spends more time for the same work than the others.
    fn excess(&self, track: &Track) -> &'static str {
        let more = ACTIVITIES.iter().enumerate().map(|(activity, (_, words))| {
            let usual = median(self.movers.values().map(|track| track.costs[activity]).collect());
            (track.costs[activity] - usual, *words)
        });
        more.max_by(|one, other| one.0.total_cmp(&other.0)).map_or("nowhere", |(_, words)| words)
    }
}

/// The median; of two middle values the lower one.
fn median(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A mover that does so much in each second, reading for so many of 200 samples and writing in the others.
    fn at(second: u64, bytes_per_s: u64, reading: u64) -> Done {
        let profile = Profile {
            source_data: reading * second,
            target_data: (200 - reading) * second,
            ..Profile::default()
        };
        let (work, busy) = ([0, bytes_per_s * second], [0, 200 * second]);
        Done { work, busy, profile }
    }

    fn tell_all(fleet: &mut Stragglers, seconds: std::ops::Range<u64>, movers: &[(u64, u64)]) {
        for second in seconds {
            for (id, (rate, reading)) in movers.iter().enumerate() {
                fleet.tell(id as u64, at(second, *rate, *reading), second * 1000);
            }
        }
    }

    #[test]
    fn the_one_at_a_tenth_is_found_with_what_it_loses_the_time_at() {
        let mut fleet = Stragglers::default();
        let mut movers = vec![(500 * MIB, 100); 8];
        movers[3] = (50 * MIB, 190);
        tell_all(&mut fleet, 0..6, &movers);
        let slow = fleet.slow(3).unwrap();
        assert_eq!(slow.class, TaskClass::Large);
        assert!((slow.times - 10.0).abs() < 0.5, "{slow:?}");
        assert!(slow.words().contains("spends the time reading"), "{}", slow.words());
        for other in [0, 1, 2, 4, 5, 6, 7] {
            assert_eq!(fleet.slow(other), None);
        }
        fleet.forget(3);
        assert_eq!(fleet.slow(3), None);
    }

    #[test]
    fn who_has_few_tasks_or_many_threads_is_not_slow() {
        let mut fleet = Stragglers::default();
        for second in 0..9 {
            for id in 0..5 {
                let mut done = at(second, if id == 0 { 50 * MIB } else { 500 * MIB }, 100);
                match id {
                    // One thread of ten at work.
                    0 => done.busy[1] /= 10,
                    // Ten times as many threads, which get no more done.
                    1 => done.busy[1] *= 10,
                    _ => {}
                }
                fleet.tell(id, done, second * 1000);
            }
        }
        assert!((0..5).all(|id| fleet.slow(id).is_none()));
    }

    #[test]
    fn who_waits_for_a_limit_of_the_job_is_not_slow() {
        let mut fleet = Stragglers::of_job(true);
        for second in 0..9 {
            for id in 0..5 {
                // One has a share that is a tenth of the others'.
                let (rate, capped) = if id == 0 { (5 * MIB, 198) } else { (50 * MIB, 180) };
                let mut done = at(second, rate, 0);
                done.profile.target_data = (200 - capped) * second;
                done.profile.capped = capped * second;
                fleet.tell(id, done, second * 1000);
            }
        }
        assert!((0..5).all(|id| fleet.slow(id).is_none()));
    }

    #[test]
    fn usual_differences_and_small_fleets_are_nothing() {
        let mut fleet = Stragglers::default();
        tell_all(&mut fleet, 0..9, &[(500 * MIB, 9), (300 * MIB, 9), (200 * MIB, 9)]);
        assert!((0..3).all(|id| fleet.slow(id).is_none()));
        let mut two = Stragglers::default();
        tell_all(&mut two, 0..9, &[(500 * MIB, 9), (5 * MIB, 9)]);
        assert!((0..2).all(|id| two.slow(id).is_none()), "one of two may be either");
    }

    #[test]
    fn who_recovers_is_slow_no_more() {
        let mut fleet = Stragglers::default();
        tell_all(&mut fleet, 0..6, &[(500 * MIB, 9), (500 * MIB, 9), (50 * MIB, 9)]);
        assert!(fleet.slow(2).is_some());
        for second in 6..12 {
            for id in 0..3 {
                let mut done = at(second, 500 * MIB, 9);
                if id == 2 {
                    done.work[1] -= 450 * MIB * 5;
                }
                fleet.tell(id, done, second * 1000);
            }
        }
        assert_eq!(fleet.slow(2), None);
    }
}
