//! One line that says what dmover waits for: redrawn on a terminal, otherwise printed at intervals.
use dmover_schedule::time::Instant;
use std::time::Duration;

use super::screen::{self, Screen};

/// Shows what dmover waits for, until [`Waiting::end`].
pub(crate) struct Waiting {
    /// `None`: there is no terminal, or the output is quiet.
    screen: Option<Screen>,
    quiet: bool,
    every: Duration,
    shown: Instant,
}

impl Waiting {
    /// `every`: how often a line is printed without a terminal; zero means never.
    pub fn new(quiet: bool, every: Duration) -> Self {
        let screen = (screen::is_there() && !quiet).then(Screen::default);
        Self { screen, quiet, every, shown: Instant::now() }
    }

    /// Shows the present state if the interval has passed.
    pub fn show(&mut self, words: impl FnOnce() -> String) {
        match &self.screen {
            Some(screen) => {
                let room = screen::columns().saturating_sub(1);
                screen.draw(&console::truncate_str(&words(), room, "..."));
            }
            None if self.quiet || self.every.is_zero() || self.shown.elapsed() < self.every => {}
            None => {
                self.shown = Instant::now();
                super::say(&words());
            }
        }
    }

    /// Prints a line that stays.
    pub fn say(&self, words: &str) {
        match &self.screen {
            Some(screen) => screen.beside(|| super::say(words)),
            None if self.quiet => {}
            None => super::say(words),
        }
    }

    /// Clears the line: the wait is over.
    pub fn end(&self) {
        if let Some(screen) = &self.screen {
            screen.end();
        }
    }
}
