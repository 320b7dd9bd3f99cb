//! Histograms of durations and sizes, which show the outliers that an average hides.
use std::sync::atomic::{AtomicU64, Ordering};

/// A quantity with a histogram. Durations are in microseconds, sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// The duration of each entry that one mover copied or read at once.
    EntryDuration,
    /// The content that was copied or read for each of those entries.
    EntrySize,
    /// The duration of tasks with names, small files and directories.
    SmallTaskDuration,
    /// The duration of tasks with the content of large files.
    LargeTaskDuration,
}

/// Upper bounds of durations in microseconds: 100 µs to five minutes.
const DURATIONS_US: [u64; 14] = [
    100,
    300,
    1_000,
    3_000,
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
];

/// Upper bounds of sizes in bytes: zero, and 1 KiB to 1 TiB.
const SIZES: [u64; 12] = [
    0,
    1 << 10,
    1 << 12,
    1 << 14,
    1 << 16,
    1 << 18,
    1 << 20,
    1 << 24,
    1 << 28,
    1 << 32,
    1 << 36,
    1 << 40,
];

/// Cells of one histogram: a count for each bound, one for larger values, and the sum of all values.
const CELLS: usize = DURATIONS_US.len() + 2;

impl Quantity {
    /// All quantities.
    pub const ALL: [Self; 4] =
        [Self::EntryDuration, Self::EntrySize, Self::SmallTaskDuration, Self::LargeTaskDuration];

    /// The quantity for tasks of a class.
    pub fn of_tasks(class: usize) -> Self {
        if class == 0 { Self::SmallTaskDuration } else { Self::LargeTaskDuration }
    }

    fn bounds(self) -> &'static [u64] {
        match self {
            Self::EntrySize => &SIZES,
            _ => &DURATIONS_US,
        }
    }

    /// How many of our units make one Prometheus unit (seconds or bytes).
    fn unit(self) -> f64 {
        match self {
            Self::EntrySize => 1.0,
            _ => 1e6,
        }
    }
}

/// The cells of all histograms, one histogram after the other.
#[derive(Debug)]
pub(crate) struct Histograms([AtomicU64; Quantity::ALL.len() * CELLS]);

impl Default for Histograms {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Histograms {
    pub fn note(&self, quantity: Quantity, value: u64) {
        let (first, bounds) = (quantity as usize * CELLS, quantity.bounds());
        let place = bounds.partition_point(|bound| *bound < value);
        self.0[first + place].fetch_add(1, Ordering::Relaxed);
        self.0[first + CELLS - 1].fetch_add(value, Ordering::Relaxed);
    }

    /// Adds values that another process has counted in a cell.
    pub fn add(&self, cell: usize, amount: u64) {
        if let Some(known) = self.0.get(cell) {
            known.fetch_add(amount, Ordering::Relaxed);
        }
    }

    pub fn snapshot(&self) -> HistogramsSnapshot {
        HistogramsSnapshot(std::array::from_fn(|cell| self.0[cell].load(Ordering::Relaxed)))
    }
}

/// The values of all cells at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HistogramsSnapshot([u64; Quantity::ALL.len() * CELLS]);

/// One histogram in Prometheus units.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Histogram {
    /// Upper bounds, each with the number of values up to it.
    pub buckets: Vec<(f64, u64)>,
    pub count: u64,
    pub sum: f64,
}

impl HistogramsSnapshot {
    /// Indexes and values of all cells that are not zero.
    pub fn cells(&self) -> impl Iterator<Item = (usize, u64)> {
        self.0.iter().copied().enumerate().filter(|(_, amount)| *amount > 0)
    }

    pub fn histogram(&self, quantity: Quantity) -> Histogram {
        let first = quantity as usize * CELLS;
        let mut count = 0;
        let buckets = quantity.bounds().iter().zip(&self.0[first..]).map(|(bound, amount)| {
            count += amount;
            (*bound as f64 / quantity.unit(), count)
        });
        let buckets = buckets.collect();
        count += self.0[first + quantity.bounds().len()];
        let sum = self.0[first + CELLS - 1] as f64 / quantity.unit();
        Histogram { buckets, count, sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_where_they_belong_and_added_up() {
        let (here, there) = (Histograms::default(), Histograms::default());
        for us in [0, 100, 101, 1_000_000, 300_000_001] {
            here.note(Quantity::EntryDuration, us);
        }
        here.note(Quantity::EntrySize, 0);
        here.note(Quantity::EntrySize, 1 << 41);
        // A quantity with fewer bounds has cells that nothing uses.
        here.note(Quantity::SmallTaskDuration, 5);
        for (cell, amount) in here.snapshot().cells() {
            there.add(cell, amount);
        }
        let all = there.snapshot();
        let durations = all.histogram(Quantity::EntryDuration);
        let at_most = |seconds: f64| {
            durations.buckets.iter().find(|(bound, _)| (bound - seconds).abs() < 1e-9).unwrap().1
        };
        assert_eq!([at_most(0.0001), at_most(0.0003), at_most(0.3), at_most(300.0)], [2, 3, 3, 4]);
        assert_eq!(durations.count, 5);
        assert!((durations.sum - 301.000_202).abs() < 1e-6, "{}", durations.sum);
        // Labels are asked for as they are written.
        let labels: Vec<String> = durations.buckets.iter().map(|(le, _)| le.to_string()).collect();
        assert_eq!(labels[..4], ["0.0001", "0.0003", "0.001", "0.003"]);
        assert_eq!(labels[4..], ["0.01", "0.03", "0.1", "0.3", "1", "3", "10", "30", "100", "300"]);
        let sizes = all.histogram(Quantity::EntrySize);
        assert_eq!((sizes.buckets[0], sizes.count), ((0.0, 1), 2));
        assert_eq!(sizes.buckets.last(), Some(&(2f64.powi(40), 1)));
        assert_eq!(all.histogram(Quantity::SmallTaskDuration).count, 1);
        assert_eq!(all.histogram(Quantity::LargeTaskDuration).count, 0);
    }
}
