//! What each mover is at, for a sampling profiler that costs one store for each change.
use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What a mover can be at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Activity {
    /// Waiting for a task.
    Idle,
    /// Names and attributes of the source.
    SourceNames,
    /// Reading content.
    SourceData,
    /// Names and attributes of the destination.
    TargetNames,
    /// Writing content, or flushing it.
    TargetData,
    /// A copy inside the kernel.
    KernelCopy,
    /// Waiting because of a limit that was asked for.
    Capped,
}

impl Activity {
    const ALL: [Self; 7] = [
        Self::Idle,
        Self::SourceNames,
        Self::SourceData,
        Self::TargetNames,
        Self::TargetData,
        Self::KernelCopy,
        Self::Capped,
    ];
}

/// Number of classes of tasks.
pub const CLASSES: usize = 2;

/// The place of one mover, written by its thread and read by whoever samples.
#[derive(Debug, Default)]
pub struct Station {
    activity: AtomicU8,
    class: AtomicU8,
    work: [AtomicU64; CLASSES],
}

thread_local! {
    static HERE: OnceCell<Arc<Station>> = const { OnceCell::new() };
}

impl Station {
    /// Makes this the place of the present thread, for good.
    pub fn take(self: &Arc<Self>) {
        HERE.with(|here| {
            // A second call would be a fault of the program, and costs only the profile.
            let _ = here.set(Arc::clone(self));
        });
    }

    /// What its mover is at, and in a task of which class.
    pub fn look(&self) -> (Activity, usize) {
        let activity = self.activity.load(Ordering::Relaxed) as usize;
        let class = self.class.load(Ordering::Relaxed) as usize;
        (Activity::ALL[activity.min(Activity::ALL.len() - 1)], class.min(CLASSES - 1))
    }

    /// The work that was done in tasks of a class.
    pub fn work(&self, class: usize) -> u64 {
        self.work[class].load(Ordering::Relaxed)
    }
}

/// The present thread turns to something else; answers what it was at. Nothing for threads that are no movers.
pub fn at(activity: Activity) -> Activity {
    HERE.with(|here| {
        let Some(station) = here.get() else { return Activity::Idle };
        let before = station.look().0;
        station.activity.store(activity as u8, Ordering::Relaxed);
        before
    })
}

/// The present thread begins a task of a class.
pub fn begin(class: usize) {
    HERE.with(|here| {
        if let Some(station) = here.get() {
            station.class.store(class as u8, Ordering::Relaxed);
            station.activity.store(Activity::SourceNames as u8, Ordering::Relaxed);
        }
    });
}

/// The present thread has done so much work.
pub fn did(units: u64) {
    HERE.with(|here| {
        if let Some(station) = here.get() {
            let class = station.look().1;
            station.work[class].fetch_add(units, Ordering::Relaxed);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mover_is_seen_where_it_is() {
        assert_eq!(at(Activity::Capped), Activity::Idle, "no mover yet");
        let station = Arc::new(Station::default());
        station.take();
        begin(1);
        did(5);
        assert_eq!(at(Activity::TargetData), Activity::SourceNames);
        assert_eq!(station.look(), (Activity::TargetData, 1));
        assert_eq!((station.work(0), station.work(1)), (0, 5));
    }
}
