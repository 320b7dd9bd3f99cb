//! Reports of movers besides outcomes: passed on at once if the coordinator is in this process, otherwise with the next
//! report.
//!
//! A mover of a remote coordinator collects its reports in its thread, and its queue sends them with the outcome that
//! they belong to ([`take_reports`]). So if an outcome is dropped because its lease expired, its reports are dropped as
//! well.
use dmover_observe::{Counter, Counters, Quantity, Slow};
use std::cell::RefCell;

pub use dmover_wire::MoverReport;
pub(crate) use dmover_wire::ReportItem;

#[derive(Default)]
struct Collected {
    told: MoverReport,
    counters: Option<Counters>,
}

thread_local! {
    static COLLECTED: RefCell<Collected> = RefCell::default();
}

/// Takes the reports of the present thread.
pub fn take_reports() -> MoverReport {
    COLLECTED.with_borrow_mut(|collected| {
        let mut told = std::mem::take(&mut collected.told);
        if let Some(counters) = collected.counters.take() {
            let counters = counters.snapshot();
            told.cells = counters.cells().map(|(cell, n)| (cell as u16, n)).collect();
            told.counts = counters
                .iter()
                .zip(0..)
                .filter(|((_, amount), _)| *amount > 0)
                .map(|((_, amount), index)| (index, amount))
                .collect();
        }
        told
    })
}

/// The number of reports of the present thread.
pub(crate) fn waiting() -> usize {
    COLLECTED.with_borrow(|collected| collected.told.said.len())
}

fn collect(with: impl FnOnce(&mut Collected)) {
    COLLECTED.with_borrow_mut(with);
}

/// Adds to the reports of the present thread.
pub(crate) fn collect_item(item: ReportItem) {
    collect(|collected| collected.told.said.push(item));
}

/// Counts in the reports of the present thread.
pub(crate) fn collect_count(counter: Counter, amount: u64) {
    collect(|c| c.counters.get_or_insert_default().add(counter, amount));
}

/// Adds a value to a histogram in the reports of the present thread.
pub(crate) fn collect_quantity(quantity: Quantity, value: u64) {
    collect(|c| c.counters.get_or_insert_default().note(quantity, value));
}

/// Adds slow entries to the reports of the present thread.
pub(crate) fn collect_slow(slow: Option<Slow>) {
    collect(|collected| collected.told.slow.extend(slow));
}

/// Adds entries that the destination had before the pass to the reports of the present thread.
pub(crate) fn collect_had(entries: u64) {
    collect(|collected| collected.told.had += entries);
}
