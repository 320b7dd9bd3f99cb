//! The percentage in the title of the terminal window, visible while the user works in another window.
//!
//! Control sequences of xterm: `OSC 2` sets the title, `CSI 22 t` saves the old title and `CSI 23 t` restores it.
//! <https://invisible-island.net/xterm/ctlseqs/ctlseqs.html>
use dmover_schedule::sync::Mutex;
use std::sync::PoisonError;

use super::figures::Figures;
use crate::print::screen::put;

const KEEP: &str = "\x1b[22;2t";
const RESTORE: &str = "\x1b[23;2t";

/// The title while a job runs.
pub(super) struct Title {
    /// The present title, empty at first; `None`: the title must not be changed any more.
    shown: Mutex<Option<String>>,
}

impl Title {
    pub fn begin() -> Self {
        // The Linux console has no title and would print the unknown sequence.
        let term = crate::config::environment("TERM").unwrap_or_default();
        let is_understood = !term.is_empty() && term != "linux";
        Self { shown: Mutex::new(is_understood.then(String::new)) }
    }

    /// Sets the title from the figures, if it changes.
    pub fn show(&self, figures: &Figures) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(estimate), Some(shown)) = (figures.estimate, shown.as_mut()) else { return };
        let percent = ((estimate.fraction * 100.0) as u64).min(99);
        let title = format!("{percent} % {} - dmover", figures.doing);
        if *shown != title {
            let keep = if shown.is_empty() { KEEP } else { "" };
            put(&format!("{keep}\x1b]2;{title}\x07"));
            *shown = title;
        }
    }

    /// Restores the old title for good.
    pub fn end(&self) {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner).take();
        if shown.is_some_and(|title| !title.is_empty()) {
            put(RESTORE);
        }
    }
}
