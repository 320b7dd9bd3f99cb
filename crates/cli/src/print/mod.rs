//! The only door to standard output and standard error.
use dmover_engine::StopReason;
use dmover_job::quote::printable;
use dmover_model::units;
use dmover_remote::OutputStream;
use dmover_schedule::thread;
use std::io::{IsTerminal, Write};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

pub(crate) mod connection;
pub(crate) mod errors;
pub(crate) mod json;
pub(crate) mod progress;
pub(crate) mod screen;
pub(crate) mod sums;
pub(crate) mod text;
pub(crate) mod time;
pub(crate) mod verify;
pub(crate) mod waiting;

/// Without `-v`, this many errors of each class, losses of each kind and unusable lines of lists are shown.
pub(crate) const SHOWN: u64 = 20;

/// Units of printed sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// Powers of 1024.
    Iec,
    /// Powers of 1000.
    Si,
    /// Plain numbers.
    Exact,
}

impl Sizes {
    pub fn new(exact: bool, si: bool) -> Self {
        match (exact, si) {
            (true, _) => Self::Exact,
            (_, true) => Self::Si,
            _ => Self::Iec,
        }
    }

    pub fn show(self, bytes: u64) -> String {
        match self {
            Self::Iec => units::format_iec(bytes),
            Self::Si => units::format_si(bytes),
            Self::Exact => format!("{bytes} B"),
        }
    }
}

/// Prints a line of data to standard output. A closed pipe is not an error.
pub(crate) fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n"));
}

/// Buffered standard output, for large amounts of data.
pub(crate) fn data() -> std::io::BufWriter<std::io::StdoutLock<'static>> {
    std::io::BufWriter::with_capacity(64 << 10, std::io::stdout().lock())
}

/// Prints a line of text to standard error. A closed standard error must not end a job.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Whether standard output is a terminal.
pub(crate) fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// The width of the terminal in columns, if standard output is a terminal.
pub(crate) fn columns() -> Option<usize> {
    let size = is_terminal().then(ratatui::crossterm::terminal::size)?;
    size.ok().map(|(columns, _)| usize::from(columns)).filter(|columns| *columns > 0)
}

/// The width of a text in columns of a terminal.
pub(crate) fn width(text: &str) -> usize {
    ratatui::text::Span::raw(text).width()
}

/// Prints what a job prints at another host.
pub(crate) fn passed_on(stream: OutputStream, bytes: &[u8]) -> std::io::Result<()> {
    match stream {
        OutputStream::Standard => {
            let mut output = std::io::stdout().lock();
            output.write_all(bytes).and_then(|()| output.flush())
        }
        OutputStream::Error => std::io::stderr().lock().write_all(bytes),
    }
}

/// Passes on what was printed so far. A closed standard output was noticed by who printed.
pub(crate) fn flush() {
    let _ = std::io::stdout().flush();
}

/// Whether a user can be asked: standard input and standard error are terminals.
pub(crate) fn is_conversation() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks the user at the terminal. Any answer but `y`, `Y` or `yes` means no; `None`: the job was stopped meanwhile.
pub(crate) fn ask(question: &str, is_stopping: impl Fn() -> bool) -> Option<bool> {
    const LOOK_EVERY: Duration = Duration::from_millis(50);
    let question = plain(question);
    let _ = write!(std::io::stderr().lock(), "dmover: {question} [y/N] ");
    let (sender, answers) = std::sync::mpsc::channel();
    // A signal does not interrupt the read, so another thread has it.
    let reads = thread::Builder::new().name("answer".into()).spawn(move || {
        let mut answer = String::new();
        let read = std::io::stdin().read_line(&mut answer);
        let _ = sender.send(read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes"));
    });
    if reads.is_err() {
        return Some(false);
    }
    loop {
        match answers.recv_timeout(LOOK_EVERY) {
            Ok(answer) => return Some(answer),
            Err(RecvTimeoutError::Timeout) if is_stopping() => {
                say("");
                return None;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Some(false),
        }
    }
}

/// Prints an error message, and a hint if there is one.
pub(crate) fn failure(message: &str, hint: &str) {
    say(&format!("dmover: error: {}", plain(message)));
    if !hint.is_empty() {
        say(&format!("  hint: {}", plain(hint)));
    }
}

/// A text with names in it, of which none can move the cursor.
fn plain(text: &str) -> String {
    String::from_utf8_lossy(&printable(text.as_bytes())).into_owned()
}

/// The same for text of another host, which cannot begin a line either.
pub(crate) fn one_line(text: &str) -> String {
    plain(text).replace('\n', "\\012")
}

/// An error of the command line, with the prefix that all messages have.
pub(crate) fn usage(error: &clap::Error) {
    let text = error.render().to_string();
    say(&format!("dmover: {}", text.trim_end()));
}

/// The reason to stop a job that cannot write its output: a closed pipe counts as SIGPIPE.
pub(crate) fn output_failed(error: &std::io::Error) -> StopReason {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        StopReason::Signal(signal_hook::consts::SIGPIPE)
    } else {
        StopReason::Output
    }
}

/// A count with its noun, singular or plural.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { many })
}

/// Counts with their nouns, without zero counts. Empty if all counts are zero.
pub(crate) fn counted_all(counts: &[(u64, &str, &str)]) -> String {
    let counts = counts.iter().filter(|(count, ..)| *count > 0);
    let words: Vec<_> = counts.map(|(count, one, many)| counted(*count, one, many)).collect();
    words.join(", ")
}

/// The total found so far, in words. Empty if it is not known: a resumed run does not count again what the interrupted run found.
pub(crate) fn of_found(copied: u64, found: u64, show: impl Fn(u64) -> String) -> String {
    if found >= copied { format!(" of {} found", show(found)) } else { String::new() }
}

/// `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(counted(1, "file", "files"), "1 file");
        let counts = [(0, "link", "links"), (1, "file", "files"), (2, "error", "errors")];
        assert_eq!(counted_all(&counts), "1 file, 2 errors");
    }
}
