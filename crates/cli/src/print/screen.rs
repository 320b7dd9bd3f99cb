//! Lines at the bottom of a terminal that are redrawn in place.
//!
//! Between two writes the cursor is at the beginning of the first line. So a `^C` that the terminal shows, or a line that
//! another process prints, only covers a part of the lines until the next redraw, and never scrolls them away.
//! Control sequences: ECMA-48, `ED` (J) and `CUU` (A).
use dmover_schedule::sync::{Mutex, OnceLock};
use std::io::{IsTerminal, Write};
use std::sync::PoisonError;

/// Clears from the cursor, at the beginning of its line, to the end of the screen.
const CLEAR: &str = "\r\x1b[J";

/// The lines that are drawn on standard error.
#[derive(Default)]
pub(crate) struct Screen(Mutex<State>);

#[derive(Default, PartialEq, Eq)]
enum State {
    /// Nothing is on the screen.
    #[default]
    Clear,
    Drawn,
    /// Drawing has ended for good.
    Ended,
}

/// The columns of a terminal at another host, which shows what this process prints.
static ELSEWHERE: OnceLock<u16> = OnceLock::new();

/// Everything that this process prints appears on a terminal of so many columns at another host.
pub(crate) fn is_elsewhere(columns: u16) {
    let _ = ELSEWHERE.set(columns);
}

/// Whether standard error is a terminal that lines can be drawn on.
pub(crate) fn is_there() -> bool {
    let is_here = std::io::stderr().is_terminal()
        && crate::config::environment("TERM").is_none_or(|term| term != "dumb");
    is_here || ELSEWHERE.get().is_some()
}

/// The columns of the terminal.
pub(crate) fn columns() -> usize {
    if let Some(columns) = ELSEWHERE.get() {
        return usize::from(*columns);
    }
    console::Term::stderr().size_checked().map_or(80, |(_, columns)| usize::from(columns))
}

impl Screen {
    /// Draws lines in place of the lines drawn before.
    pub fn draw(&self, lines: &str) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *state == State::Ended {
            return;
        }
        let mut text = String::from(CLEAR);
        let mut below = 0;
        for (number, line) in lines.lines().enumerate() {
            if number > 0 {
                text.push_str("\r\n");
                below += 1;
            }
            text.push_str(line);
        }
        text.push('\r');
        if below > 0 {
            text = format!("{text}\x1b[{below}A");
        }
        put(&text);
        *state = State::Drawn;
    }

    /// Clears the lines and calls `print`. The next drawing puts the lines below what was printed.
    pub fn beside<T>(&self, print: impl FnOnce() -> T) -> T {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *state == State::Drawn {
            put(CLEAR);
            *state = State::Clear;
        }
        print()
    }

    /// Clears the lines for good.
    pub fn end(&self) {
        self.beside(|| ());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = State::Ended;
    }
}

/// Writes to standard error in one write(2), so that no other output gets in between. A closed standard error must not
/// end a job.
pub(super) fn put(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
