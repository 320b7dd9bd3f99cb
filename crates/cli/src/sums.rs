//! The files to hash or to check: from arguments, from lists, or from lines of standard input.
use dmover_digest::lines::{self, Entry, Form};
use dmover_engine::SumSupply;
use dmover_model::{
    ByteRange, Expected, Guess, HashType, PathBytes, Subject, SumItem, percent_decode,
};
use dmover_schedule::sync::Mutex;
use dmover_schedule::thread;
use dmover_schedule::thread::JoinHandle;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, PoisonError};

use crate::list;
use crate::print::{SHOWN, say};
use dmover_job::quote::quoted;

/// The greatest length of a line in bytes: enough for a million digests of pieces, and a name.
const LINE_MAX: u64 = 256 << 20;

/// The reader runs at most this many lines ahead.
const AHEAD: usize = 4096;

/// Supplies files one by one, with their numbers.
pub(crate) struct Supply(Mutex<Files>, AtomicU64);

enum Files {
    Named(std::vec::IntoIter<Wanted>),
    /// A thread reads the list, so that a slow writer of the list does not delay the files that are already listed.
    Read(Receiver<Wanted>, Option<JoinHandle<bool>>),
}

/// A file without its number.
struct Wanted {
    subject: Subject,
    range: Option<ByteRange>,
    expected: Option<Expected>,
}

impl std::fmt::Debug for Supply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supply").finish_non_exhaustive()
    }
}

impl SumSupply for Supply {
    fn next(&self, most: usize) -> Option<Vec<SumItem>> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = || self.1.fetch_add(1, Ordering::Relaxed);
        let item = |Wanted { subject, range, expected }| SumItem {
            number: number(),
            subject,
            range,
            expected,
            round: 1,
        };
        match &mut *files {
            Files::Named(files) => Some(files.take(most).map(item).collect()),
            Files::Read(files, reader) => match files.try_recv() {
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => {
                    // A panic of the reader must not look like the end of the list.
                    if let Some(Err(fault)) = reader.take().map(JoinHandle::join) {
                        std::panic::resume_unwind(fault);
                    }
                    Some(Vec::new())
                }
                Ok(first) => Some(
                    std::iter::once(first).chain(files.try_iter()).take(most).map(item).collect(),
                ),
            },
        }
    }
}

impl Supply {
    fn new(files: Files) -> Arc<Self> {
        Arc::new(Self(Mutex::new(files), AtomicU64::new(0)))
    }

    fn read(
        mut files: impl Iterator<Item = Wanted> + Send + 'static,
    ) -> std::io::Result<Arc<Self>> {
        let (sender, receiver) = sync_channel(AHEAD);
        // The thread ends with the list, or when the receiver is gone.
        let send = move || files.all(|file| sender.send(file).is_ok());
        let reader = thread::Builder::new().name("list".into()).spawn(send)?;
        Ok(Self::new(Files::Read(receiver, Some(reader))))
    }

    /// The files given as arguments.
    pub fn of_arguments(paths: &[OsString], range: Option<ByteRange>) -> Arc<Self> {
        let file =
            |path: &OsString| Wanted { subject: subject(path.as_bytes()), range, expected: None };
        Self::new(Files::Named(paths.iter().map(file).collect::<Vec<_>>().into_iter()))
    }

    /// Lines `FILE [RANGES]` with percent escapes.
    pub fn of_batch(
        input: impl Read + Send + 'static,
        tally: Arc<Tally>,
    ) -> std::io::Result<Arc<Self>> {
        let lines = Lines::new(input, "-".into(), b'\n', Arc::clone(&tally));
        Self::read(lines.flat_map(move |(number, line)| match batch_line(&line) {
            Ok(files) => files,
            Err(error) => {
                tally.bad_line("-", number, &error);
                Vec::new()
            }
        }))
    }

    /// The files that lists name, with their expected digests.
    pub fn of_lists(
        lists: Vec<List>,
        asked: Option<HashType>,
        (nul, leaf, piece): (bool, Option<u64>, Option<u64>),
        tally: Arc<Tally>,
    ) -> std::io::Result<Arc<Self>> {
        let separator = if nul { 0 } else { b'\n' };
        Self::read(lists.into_iter().flat_map(move |List { name, input }| {
            let tally = Arc::clone(&tally);
            let good = Arc::new(AtomicU64::new(0));
            let lines = Lines::new(input, name.clone(), separator, Arc::clone(&tally));
            let entries = lines.filter_map({
                let (name, tally, good) = (name.clone(), Arc::clone(&tally), Arc::clone(&good));
                move |(number, line)| match lines::parse(&line, asked, nul) {
                    Ok(Some(entry)) => {
                        good.fetch_add(1, Ordering::Relaxed);
                        Some(entry)
                    }
                    Ok(None) => None,
                    Err(error) => {
                        tally.bad_line(&name, number, &format!("the line {error}"));
                        None
                    }
                }
            });
            let told = Arc::clone(&tally);
            let end = std::iter::from_fn(move || {
                if good.load(Ordering::Relaxed) == 0 {
                    told.empty_list(&name);
                }
                None
            });
            Merged { entries, next: None }
                .map(move |entry| {
                    tally.found(&entry);
                    wanted(entry, (leaf, piece))
                })
                .chain(end)
        }))
    }
}

/// An open list.
pub(crate) struct List {
    /// The name that the user gave.
    pub name: String,
    /// The content of the list.
    pub input: Box<dyn Read + Send>,
}

/// Counts the lines of lists.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// All unusable lines are shown, not only the first ones.
    pub shows_all: bool,
    /// Lines with a digest and a name.
    pub good: AtomicU64,
    /// Lines without a digest and a name, or that cannot be read.
    pub bad: AtomicU64,
    /// Lists in which no line has a digest and a name.
    pub empty: AtomicU64,
    /// Lines whose hash type is a guess from the digest length.
    pub guessed: AtomicU64,
}

impl Tally {
    fn bad_line(&self, list: &str, number: u64, words: &str) {
        let before = self.bad.fetch_add(1, Ordering::Relaxed);
        if self.shows_all || before < SHOWN {
            say(&format!("dmover: error: {list}: line {number}: {words}"));
        } else if before == SHOWN {
            say("dmover: further lines of this kind are not shown (-v shows all)");
        }
    }

    fn empty_list(&self, list: &str) {
        self.empty.fetch_add(1, Ordering::Relaxed);
        say(&format!("dmover: error: {list}: no line has a digest and a name"));
    }

    fn found(&self, entry: &Entry) {
        self.good.fetch_add(1, Ordering::Relaxed);
        if !entry.hash_is_certain {
            self.guessed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Standard input for '-', else a file.
fn subject(path: &[u8]) -> Subject {
    if path == b"-" { Subject::Stdin } else { Subject::Path(PathBytes(path.to_vec())) }
}

/// `leaf`, `piece`: the sizes from the command line, for lines of mutil that do not state them.
fn wanted(
    Entry { name, hash, hash_is_certain, form, digests }: Entry,
    (leaf, piece): (Option<u64>, Option<u64>),
) -> Wanted {
    let given = leaf.filter(|_| form.mutil);
    let piece = form.piece.or(piece.or(given).filter(|_| form.mutil && digests.len() > 1));
    let subject = subject(&name);
    // Only for this length there are two hash types of equal strength.
    let is_guess = !hash_is_certain && hash == HashType::Blake3 && form == Form::PLAIN;
    let guess = is_guess.then_some(Guess::Open);
    let expected = Expected { hash, leaf: form.leaf.or(given), piece, digests, guess };
    Wanted { subject, range: form.range, expected: Some(expected) }
}

fn batch_line(line: &[u8]) -> Result<Vec<Wanted>, String> {
    let (name, ranges) = match list::fields(line)[..] {
        [] => return Ok(Vec::new()),
        [name] => (name, vec![None]),
        [name, ranges] => {
            let ranges = list::byte_ranges(ranges)?;
            (name, ranges.into_iter().map(Some).collect())
        }
        _ => return Err("expected FILE [RANGES], with blanks in names escaped as %20".into()),
    };
    let path = PathBytes(percent_decode(name));
    let file = |range| Wanted { subject: Subject::Path(path.clone()), range, expected: None };
    Ok(ranges.into_iter().map(file).collect())
}

/// Lines of a list with their numbers, from 1.
struct Lines<R> {
    reader: BufReader<R>,
    name: String,
    separator: u8,
    number: u64,
    tally: Arc<Tally>,
}

impl<R: Read> Lines<R> {
    fn new(input: R, name: String, separator: u8, tally: Arc<Tally>) -> Self {
        Self { reader: BufReader::new(input), name, separator, number: 0, tally }
    }
}

impl<R: Read> Iterator for Lines<R> {
    type Item = (u64, Vec<u8>);

    fn next(&mut self) -> Option<Self::Item> {
        let mut line = Vec::new();
        self.number += 1;
        match self.reader.by_ref().take(LINE_MAX).read_until(self.separator, &mut line) {
            Ok(0) => None,
            Ok(_) if line.last() == Some(&self.separator) => {
                line.pop();
                if self.separator == b'\n'
                    && line.last() == Some(&b'\r')
                    && !line.starts_with(b"\\")
                {
                    line.pop(); // a list that was edited elsewhere
                }
                Some((self.number, line))
            }
            Ok(length) if length as u64 == LINE_MAX => {
                let name = quoted(self.name.as_bytes());
                self.tally.bad_line(&name, self.number, "the line is longer than 256 MiB");
                None
            }
            Ok(_) => Some((self.number, line)),
            Err(error) => {
                let name = quoted(self.name.as_bytes());
                self.tally.bad_line(&name, self.number, &format!("cannot read the list: {error}"));
                None
            }
        }
    }
}

/// Merges two consecutive entries of the same file, one with its digest and one with the digests of its pieces. The file is
/// then read once for both.
struct Merged<I: Iterator<Item = Entry>> {
    entries: I,
    next: Option<Entry>,
}

impl<I: Iterator<Item = Entry>> Iterator for Merged<I> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let mut entry = self.next.take().or_else(|| self.entries.next())?;
        if entry.form.piece.is_some() {
            return Some(entry);
        }
        self.next = self.entries.next();
        if let Some(next) = &self.next
            && !entry.hash_is_certain
            && is_of_the_same(&entry, next)
            && entry.hash.digest_bytes() == next.hash.digest_bytes()
        {
            entry.hash = next.hash;
            entry.hash_is_certain = true;
        }
        match &self.next {
            Some(pieces) if says_the_same(&entry, pieces) => self.next.take(),
            _ => Some(entry),
        }
    }
}

/// Whether `pieces` has the digests of the pieces, and `entry` the digest of the whole, of the same content.
fn says_the_same(entry: &Entry, pieces: &Entry) -> bool {
    let alike = is_of_the_same(entry, pieces) && entry.hash == pieces.hash;
    let root = pieces.form.piece.and_then(|piece| root_of(pieces, piece));
    alike && root == entry.digests.first().copied()
}

/// Whether `pieces` has digests of pieces of the same file and range as `entry`.
fn is_of_the_same(entry: &Entry, pieces: &Entry) -> bool {
    let (whole, parts) = (entry.form, pieces.form);
    parts.piece.is_some()
        && entry.name == pieces.name
        && (whole.leaf, whole.range) == (parts.leaf, parts.range)
}

/// The digest of the whole, from those of the pieces. A CRC also depends on the unknown length of the last piece: such a pair
/// may not be recognised, and the file is then read twice.
fn root_of(pieces: &Entry, piece: u64) -> Option<dmover_model::Digest> {
    let mut fold = dmover_digest::Fold::new(pieces.hash);
    pieces.digests.iter().for_each(|digest| fold.push(*digest, piece));
    fold.finish()
}
