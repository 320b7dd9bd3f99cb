//! One line about something that is waited for: redrawn on a terminal, printed now and then without one.
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// Tells how it stands, until it is ended.
pub(crate) struct Waiting {
    bar: Option<ProgressBar>,
    quiet: bool,
    every: Duration,
    told: Instant,
}

impl Waiting {
    /// Without a terminal, a line this often; zero: never.
    pub fn new(quiet: bool, every: Duration) -> Self {
        let terminal = dmover_sys::process::stderr_is_terminal()
            && crate::config::environment("TERM").is_none_or(|term| term != "dumb");
        let bar = (terminal && !quiet).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
            match ProgressStyle::with_template("{wide_msg}") {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        Self { bar, quiet, every, told: Instant::now() }
    }

    /// Shows how it stands, if it is time for that.
    pub fn show(&mut self, words: impl FnOnce() -> String) {
        match &self.bar {
            Some(bar) => bar.set_message(words()),
            None if self.quiet || self.every.is_zero() || self.told.elapsed() < self.every => {}
            None => {
                self.told = Instant::now();
                super::say(&words());
            }
        }
    }

    /// Prints a line that stays.
    pub fn say(&self, words: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| super::say(words)),
            None if self.quiet => {}
            None => super::say(words),
        }
    }

    /// Nothing is waited for any more.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
