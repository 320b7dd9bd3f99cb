//! Digests and checks, as `sha256sum` prints them.
use dmover_digest::lines::{self, Form, Line, Style};
use dmover_engine::{Control, JobReport};
use dmover_model::{ByteRange, Digest, Event, FileDigest, HashType, PathBytes, Verdict};
use dmover_observe::{Counter, Monitor};
use dmover_schedule::sync::Mutex;
use dmover_schedule::thread;
use std::collections::BTreeMap;
use std::io::{BufWriter, Stdout, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::text::TextPrinter;
use super::{Sizes, counted};
use dmover_job::quote::{printable, quoted};

/// Results wait for earlier files of the list up to this many bytes in all; beyond that they are printed out of order.
const WAITING_MAX: usize = 16 << 20;
/// How often buffered results are written, so that the reader of a pipe does not wait longer.
const FLUSH_EVERY: Duration = Duration::from_millis(200);

/// Which results of a check are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Every file.
    All,
    /// What failed.
    Failures,
    /// Nothing.
    Nothing,
}

/// Prints digests or results of checks, in the order of the list of files.
pub(crate) struct SumPrinter {
    words: Arc<TextPrinter>,
    style: Style,
    checks: Shown,
    ignore_missing: bool,
    /// Whether to name each file on standard error when it is done.
    names: bool,
    /// Counts of matching digests whose hash function the list does not name.
    guessed: Mutex<BTreeMap<HashType, u64>>,
    sink: Arc<Sink>,
}

/// Standard output, and the job to stop if it cannot be written.
struct Sink {
    out: Mutex<Out>,
    control: Arc<Control>,
    /// A line could not be written.
    lost: AtomicBool,
}

struct Out {
    writer: BufWriter<Stdout>,
    /// A user sees each line at once.
    is_terminal: bool,
    next: u64,
    waiting: BTreeMap<u64, Vec<u8>>,
    waiting_bytes: usize,
}

impl Monitor for SumPrinter {
    fn event(&self, event: &Event) {
        match event {
            Event::Digest(digest) => {
                self.name("hashed", &digest.path);
                self.put(digest.number, self.digest_lines(digest));
            }
            Event::Checked { path, number, verdict, guessed } => {
                if let Some(hash) = guessed {
                    let mut all = self.guessed.lock().unwrap_or_else(PoisonError::into_inner);
                    *all.entry(*hash).or_default() += 1;
                }
                self.name("checked", path);
                self.put(Some(*number), self.check_line(path, verdict));
            }
            other => self.words.event(other),
        }
    }

    fn wants_items(&self) -> bool {
        self.words.wants_items()
    }
}

impl SumPrinter {
    pub fn new(
        words: Arc<TextPrinter>,
        control: Arc<Control>,
        style: Style,
        checks: Shown,
        ignore_missing: bool,
    ) -> Self {
        let out = Out {
            writer: BufWriter::with_capacity(64 << 10, std::io::stdout()),
            is_terminal: super::is_terminal(),
            next: 0,
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
        };
        let sink = Arc::new(Sink { out: Mutex::new(out), control, lost: AtomicBool::new(false) });
        sink.flush_at_times();
        let guessed = Mutex::default();
        Self { words, style, checks, ignore_missing, names: false, guessed, sink }
    }

    /// Names each file on standard error when it is done.
    pub fn naming(self, names: bool) -> Self {
        Self { names, ..self }
    }

    fn name(&self, done: &str, path: &PathBytes) {
        if self.names {
            self.words.say(&format!("dmover: {done} {}", quoted(&path.0)));
        }
    }

    fn digest_lines(&self, digest: &FileDigest) -> Vec<u8> {
        let FileDigest { path, shape, range, digest, pieces, .. } = digest;
        let leaf = (!shape.is_plain()).then(|| shape.leaf());
        let mutil = self.style.mutil;
        let form = Form { leaf, piece: None, range: *range, mutil };
        let hash = shape.hash();
        let mut text = Vec::new();
        let mut write = |form, digests: &[Digest]| {
            lines::write(&mut text, Line { name: &path.0, hash, form, digests }, self.style);
        };
        let in_pieces = Form { piece: Some(shape.piece()), ..form };
        // Mutil has one line, with the digests of the pieces instead of that of the file.
        let instead = mutil && pieces.len() > 1;
        if !instead {
            write(form, &[*digest]);
        }
        if instead || (!mutil && !pieces.is_empty()) {
            write(in_pieces, pieces);
        }
        text
    }

    fn check_line(&self, path: &PathBytes, verdict: &Verdict) -> Vec<u8> {
        let hidden = match (self.checks, verdict) {
            (Shown::Nothing, _) => true,
            (Shown::Failures, verdict) => *verdict == Verdict::Same,
            (Shown::All, _) => false,
        };
        let ignored = *verdict == Verdict::Missing && self.ignore_missing;
        if hidden || ignored {
            return Vec::new();
        }
        let words = match verdict {
            Verdict::Same => "OK".to_owned(),
            Verdict::Differs { ranges } => {
                let range = |ByteRange { start, end }: &ByteRange| format!(",{start}-{end}");
                "FAILED".to_owned() + &ranges.iter().map(range).collect::<String>()
            }
            Verdict::Missing | Verdict::Unreadable => "FAILED open or read".to_owned(),
        };
        let mut line = Vec::with_capacity(path.0.len() + words.len() + 4);
        lines::push_escaped(&mut line, &path.0);
        line.extend_from_slice(b": ");
        line.extend_from_slice(words.as_bytes());
        line.push(b'\n');
        line
    }

    /// Prints a result after all earlier results of the list; a result without a number is printed at once.
    fn put(&self, number: Option<u64>, text: Vec<u8>) {
        self.sink.with(|out| out.put(number, text));
    }

    /// Prints all remaining results. Returns whether every line could be written.
    pub fn end(&self) -> bool {
        self.sink.with(|out| out.release_all().and_then(|()| out.writer.flush()));
        !self.has_lost()
    }

    /// Whether a line could not be written.
    pub fn has_lost(&self) -> bool {
        self.sink.lost.load(Ordering::Relaxed)
    }

    /// A note with the detected hash functions, if the list does not name its function and all lines are printed.
    pub fn found_functions(&self) -> Option<String> {
        let all = self.guessed.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |(hash, count): (&HashType, &u64)| {
            format!("{} {}", counted(*count, "digest is", "digests are"), hash.tag())
        };
        let functions = all.iter().map(of).collect::<Vec<_>>().join(", ");
        let shown = self.checks == Shown::All && !functions.is_empty();
        shown
            .then(|| format!("dmover: note: the list does not name its hash function: {functions}"))
    }

    /// The summary of a job that hashes, line by line.
    pub fn summary(report: &JobReport, sizes: Sizes) -> Vec<String> {
        let get = |counter| report.counters.get(counter);
        let bytes = get(Counter::BytesHashed);
        let files = match get(Counter::FilesHashed) {
            0 => "no files".to_owned(),
            files => counted(files, "file", "files"),
        };
        let size = if bytes > 0 { format!(", {}", sizes.show(bytes)) } else { String::new() };
        let pace = super::text::pace(bytes, report, sizes);
        let mut lines = vec![format!("dmover: hashed {files}{size}{pace}")];
        lines.extend(super::text::connection_lines(report));
        lines.extend(super::text::trouble_lines(report));
        lines
    }
}

impl Sink {
    /// Calls `act` with the output. If that fails, stops the job, since further digests could not be printed.
    fn with(&self, act: impl FnOnce(&mut Out) -> std::io::Result<()>) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = act(&mut out) {
            self.lost.store(true, Ordering::Relaxed);
            self.control.stop(super::output_failed(&error));
        }
    }

    /// Starts a thread that flushes the output at intervals until the printer is dropped.
    fn flush_at_times(self: &Arc<Self>) {
        let sink = Arc::downgrade(self);
        let flush = move || {
            while let Some(sink) = sink.upgrade() {
                sink.with(|out| out.writer.flush());
                drop(sink);
                thread::sleep(FLUSH_EVERY);
            }
        };
        // Without this thread, lines only arrive in larger batches.
        let _ = thread::Builder::new().name("flush".into()).spawn(flush);
    }
}

impl Out {
    fn put(&mut self, number: Option<u64>, text: Vec<u8>) -> std::io::Result<()> {
        let text = if self.is_terminal { printable(&text) } else { text };
        match number {
            Some(number) if number > self.next => {
                self.waiting_bytes += text.len() + size_of::<(u64, Vec<u8>)>();
                self.waiting.insert(number, text);
                if self.waiting_bytes > WAITING_MAX {
                    self.release_all()?;
                }
            }
            Some(number) => {
                self.writer.write_all(&text)?;
                // A late result, whose turn was skipped because too much waited, does not change the order of the others.
                self.next = self.next.max(number + 1);
                while let Some(text) = self.waiting.remove(&self.next) {
                    self.waiting_bytes -= text.len() + size_of::<(u64, Vec<u8>)>();
                    self.writer.write_all(&text)?;
                    self.next += 1;
                }
            }
            None => self.writer.write_all(&text)?,
        }
        if self.is_terminal {
            self.writer.flush()?;
        }
        Ok(())
    }

    fn release_all(&mut self) -> std::io::Result<()> {
        self.waiting_bytes = 0;
        for (number, text) in std::mem::take(&mut self.waiting) {
            self.writer.write_all(&text)?;
            self.next = number + 1;
        }
        Ok(())
    }
}
