//! What a simulation promises: one seed is one run, races and deadlocks are found, time passes only as far as somebody waits.
#![cfg(feature = "simulated")]
#![allow(clippy::unwrap_used, reason = "functions of a test are test code as well")]

use dmover_schedule::simulation::{Failed, Process, Settings, simulate, step};
use dmover_schedule::sync::{Condvar, Mutex, RwLock, mpsc};
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use std::collections::BTreeSet;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SEEDS: u64 = 50;

fn settings(seed: u64) -> Settings {
    Settings { seed, steps_max: 100_000, begins_s: 1_700_000_000 }
}

/// Two threads add to a number, but let go of it between reading and writing.
fn careless(seed: u64) -> u64 {
    let body = || {
        let number = Arc::new(Mutex::new(0));
        let add = |number: Arc<Mutex<u64>>| {
            move || {
                let read = *number.lock().unwrap();
                *number.lock().unwrap() = read + 1;
            }
        };
        let threads = [(); 2].map(|()| thread::spawn(add(Arc::clone(&number))));
        for thread in threads {
            thread.join().unwrap();
        }
        *number.lock().unwrap()
    };
    simulate(settings(seed), body).0
}

#[test]
fn some_seeds_find_a_race_and_each_seed_is_one_run() {
    let all: Vec<u64> = (0..SEEDS).map(careless).collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>(), BTreeSet::from([&1, &2]));
    assert_eq!(all, (0..SEEDS).map(careless).collect::<Vec<_>>());
}

#[test]
fn who_waits_for_each_other_is_found() {
    let turned = |seed| {
        catch_unwind(|| {
            simulate(settings(seed), || {
                let locks = Arc::new((Mutex::new(()), Mutex::new(())));
                let other = Arc::clone(&locks);
                let thread = thread::spawn(move || {
                    let _second = other.1.lock().unwrap();
                    let _first = other.0.lock().unwrap();
                });
                let first = locks.0.lock().unwrap();
                drop((locks.1.lock().unwrap(), first));
                thread.join().unwrap();
            })
        })
    };
    let ends: Vec<_> = (0..SEEDS).map(turned).collect();
    let words = |end: &std::thread::Result<_>| {
        end.as_ref().err().and_then(|panic| panic.downcast_ref::<String>().cloned())
    };
    assert!(ends.iter().any(Result::is_ok), "other orders end well");
    assert!(ends.iter().filter_map(words).any(|words| words.contains("nobody can go on")));
}

#[test]
fn time_passes_only_as_far_as_somebody_waits() {
    let real = std::time::Instant::now();
    let (told, _) = simulate(settings(1), || {
        let begun = Instant::now();
        // Nothing to poll for: no real time passes.
        let sleeper = thread::spawn(|| thread::sleep(Duration::from_hours(2)));
        let (_sender, receiver) = mpsc::channel::<()>();
        let waited = receiver.recv_timeout(Duration::from_hours(1));
        let first = begun.elapsed();
        sleeper.join().unwrap();
        (waited.is_err(), first, begun.elapsed())
    });
    let hours = |time: Duration| time.as_secs() / 3600;
    assert_eq!((told.0, hours(told.1), hours(told.2)), (true, 1, 2));
    assert!(real.elapsed() < Duration::from_hours(1));
}

/// Takes a step on its way out, and notes that it was dropped.
struct Guard(Arc<AtomicBool>);

impl Drop for Guard {
    fn drop(&mut self) {
        step();
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_killed_process_ends_wherever_it_is() {
    for seed in 0..SEEDS {
        let (ended, _) = simulate(settings(seed), || {
            let (shared, has_dropped) = (Arc::new(RwLock::new(0_u64)), Arc::default());
            let (inside, guard) = (Arc::clone(&shared), Guard(Arc::clone(&has_dropped)));
            let process = Process::start("it", Arc::new(()), move || {
                let _guard = guard;
                let waits = (Mutex::new(()), Condvar::new());
                thread::spawn(move || {
                    loop {
                        *inside.write().unwrap() += 1;
                    }
                });
                drop(waits.1.wait(waits.0.lock().unwrap()));
            });
            while *shared.read().unwrap() < 20 {
                step();
            }
            process.kill();
            let ended = process.join();
            let count = *shared.read().unwrap();
            dmover_schedule::simulation::settle();
            step();
            assert_eq!(count, *shared.read().unwrap(), "seed {seed}: a thread went on");
            (ended, has_dropped.load(Ordering::Relaxed))
        });
        assert_eq!(ended, (Err(Failed::Killed), true), "seed {seed}");
    }
}

#[test]
fn what_does_not_end_is_stopped() {
    let endless = catch_unwind(|| {
        simulate(settings(1), || {
            loop {
                step();
            }
        })
    });
    let panic = endless.map(|((), _)| ()).unwrap_err();
    assert!(panic.downcast_ref::<String>().unwrap().contains("too many steps"));
}
