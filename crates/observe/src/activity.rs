//! The present activity of each mover, for a sampling profiler that costs one store for each change.
use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The activity of a mover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Activity {
    /// It waits for a task.
    Idle,
    /// It reads names and attributes of the source.
    SourceNames,
    /// It reads content.
    SourceData,
    /// It reads or sets names and attributes of the destination.
    TargetNames,
    /// It writes or flushes content.
    TargetData,
    /// It copies content inside the kernel.
    KernelCopy,
    /// It waits because of a limit that the user set.
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

/// An entry counts as this many bytes of work, which is about the cost of its metadata.
pub const ENTRY_WORK: u64 = 64 << 10;

/// The activity of one mover: its thread writes it, and the profiler samples it.
#[derive(Debug, Default)]
pub struct CurrentActivity {
    activity: AtomicU8,
    class: AtomicU8,
    work: [AtomicU64; CLASSES],
}

thread_local! {
    static HERE: OnceCell<Arc<CurrentActivity>> = const { OnceCell::new() };
}

impl CurrentActivity {
    /// Binds this to the calling thread for good.
    pub fn take(self: &Arc<Self>) {
        HERE.with(|here| {
            // A second call would be a fault of the program, and costs only the profile.
            let _ = here.set(Arc::clone(self));
        });
    }

    /// The present activity, and the class of the task.
    pub fn look(&self) -> (Activity, usize) {
        let activity = self.activity.load(Ordering::Relaxed) as usize;
        let class = self.class.load(Ordering::Relaxed) as usize;
        (Activity::ALL[activity.min(Activity::ALL.len() - 1)], class.min(CLASSES - 1))
    }

    /// The work done in tasks of a class.
    pub fn work(&self, class: usize) -> u64 {
        self.work[class].load(Ordering::Relaxed)
    }
}

/// Sets the activity of the calling thread and returns the previous one. Does nothing in threads that are not movers.
pub fn at(activity: Activity) -> Activity {
    HERE.with(|here| {
        let Some(current) = here.get() else { return Activity::Idle };
        let before = current.look().0;
        current.activity.store(activity as u8, Ordering::Relaxed);
        before
    })
}

/// Records that the calling thread begins a task of a class.
pub fn begin(class: usize) {
    HERE.with(|here| {
        if let Some(current) = here.get() {
            current.class.store(class as u8, Ordering::Relaxed);
            current.activity.store(Activity::SourceNames as u8, Ordering::Relaxed);
        }
    });
}

/// Adds work units to the present task of the calling thread.
pub fn did(units: u64) {
    HERE.with(|here| {
        if let Some(current) = here.get() {
            let class = current.look().1;
            current.work[class].fetch_add(units, Ordering::Relaxed);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mover_is_seen_where_it_is() {
        assert_eq!(at(Activity::Capped), Activity::Idle, "no mover yet");
        let current = Arc::new(CurrentActivity::default());
        current.take();
        begin(1);
        did(5);
        assert_eq!(at(Activity::TargetData), Activity::SourceNames);
        assert_eq!(current.look(), (Activity::TargetData, 1));
        assert_eq!((current.work(0), current.work(1)), (0, 5));
    }
}
