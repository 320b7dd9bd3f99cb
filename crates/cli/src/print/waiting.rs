//! One line about something that is waited for: redrawn on a terminal, printed now and then without one.
use std::time::{Duration, Instant};

use super::screen::{self, Screen};

/// Shows what is waited for, until it is ended.
pub(crate) struct Waiting {
    /// `None`: there is no terminal, or nothing is to be shown.
    screen: Option<Screen>,
    quiet: bool,
    every: Duration,
    told: Instant,
}

impl Waiting {
    /// Without a terminal, a line this often; zero: never.
    pub fn new(quiet: bool, every: Duration) -> Self {
        let screen = (screen::is_there() && !quiet).then(Screen::default);
        Self { screen, quiet, every, told: Instant::now() }
    }

    /// Shows how it stands, if it is time for that.
    pub fn show(&mut self, words: impl FnOnce() -> String) {
        match &self.screen {
            Some(screen) => {
                let room = screen::columns().saturating_sub(1);
                screen.draw(&console::truncate_str(&words(), room, "..."));
            }
            None if self.quiet || self.every.is_zero() || self.told.elapsed() < self.every => {}
            None => {
                self.told = Instant::now();
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

    /// Nothing is waited for any more.
    pub fn end(&self) {
        if let Some(screen) = &self.screen {
            screen.end();
        }
    }
}
