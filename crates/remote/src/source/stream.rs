//! Content that is read in order: one request brings all of it.
use dmover_model::{ByteRange, EntryError, ErrorClass, Metadata, Version};
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use dmover_wire::agent::{ContentPart, FileAt, Request};
use dmover_wire::decode_in_place;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};

use super::asking::{About, Asked, Asking};
use super::hosts::Choice;
use crate::joined::unreadable;

/// The most streams of one file for each host, for as many threads that read it.
const FILE_STREAMS_MAX: usize = 16;
/// The most streams of all files that wait to be read further. Each takes a channel, and a thread at the agent.
const STREAMS_MAX: usize = 96;

/// The most bytes of one request if several hosts share the work: what a channel takes before anything of it is read.
const PIECE: u64 = 4 << 20;

/// The most messages of a piece: one for each block of data, and one for each hole between them.
const PARTS_MAX: usize = 4096;
/// Streams are opened ahead of what is read while there are fewer than this for each host. As many readers keep all hosts busy.
const STREAMS_AHEAD: usize = 8;

/// The most announced ranges of a file that are kept: as many as threads read it.
const RANGES_MAX: usize = 32;

/// The streams of one file that nobody reads at this moment. The one that was read last is at the end.
pub(super) type Idle = Arc<Mutex<Vec<Stream>>>;

/// The ranges of a file that were announced. The last one is at the end.
#[derive(Debug, Default)]
pub(super) struct Announced(Mutex<Vec<ByteRange>>);

impl Announced {
    pub(super) fn add(&self, range: ByteRange) {
        let mut ranges = lock(&self.0);
        if ranges.iter().any(|known| known.start <= range.start && range.end <= known.end) {
            return;
        }
        if ranges.len() >= RANGES_MAX {
            ranges.remove(0);
        }
        ranges.push(range);
    }

    /// Where a stream that begins here should end; `None`: nothing was announced. Parts of announced ranges are announced as well.
    fn end_of(&self, at: u64) -> Option<u64> {
        let ranges = lock(&self.0);
        let of = ranges.iter().filter(|range| (range.start..range.end).contains(&at));
        of.map(|range| range.end).max()
    }
}

/// Content from an offset on.
#[derive(Debug)]
pub(super) struct Stream {
    asked: Asked,
    at: u64,
    /// Where the range ends that was asked for; the file may end before.
    end: u64,
    /// Nothing of it was read.
    is_new: bool,
    /// All that follows, if hosts share the work.
    whole: Option<VecDeque<Pending>>,
    pending: Pending,
    _counted: Counted,
}

#[derive(Debug)]
enum Pending {
    /// A message, and where in it the bytes begin that were not read yet: they are its end.
    Data(Vec<u8>, usize),
    /// So many zeroes.
    Hole(u64),
    /// The file has ended; its metadata after it was read.
    End(Metadata),
}

impl Stream {
    fn open(
        (asking, streams): (&Asking, &OpenStreams),
        file: &FileAt,
        (at, end): (u64, u64),
        (choice, about): (Choice, About<'_>),
    ) -> Result<Self, EntryError> {
        streams.make_room();
        // Short ranges let a fast host take over from a slow one.
        let end = if asking.are_several() { end.min(at.saturating_add(PIECE)) } else { end };
        let range = ByteRange { start: at, end };
        let asked = asking.send(&Request::Content { file: file.clone(), range }, choice, about)?;
        asked.channel.expect_much().map_err(|why| asking.failed(about, &asked, why))?;
        let counted = streams.count();
        let pending = Pending::Hole(0);
        Ok(Self { asked, at, end, is_new: true, whole: None, pending, _counted: counted })
    }

    fn read(
        &mut self,
        buffer: &mut [u8],
        asking: &Asking,
        about: About<'_>,
    ) -> Result<usize, EntryError> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let read = match &mut self.pending {
                Pending::End(_) => return Ok(0),
                Pending::Data(bytes, taken) => {
                    let rest = &bytes[*taken..];
                    let now = rest.len().min(buffer.len());
                    buffer[..now].copy_from_slice(&rest[..now]);
                    *taken += now;
                    now
                }
                Pending::Hole(left) => {
                    let now = (*left).min(buffer.len() as u64) as usize;
                    buffer[..now].fill(0);
                    *left -= now as u64;
                    now
                }
            };
            if read > 0 {
                self.at += read as u64;
                return Ok(read);
            }
            self.pending = match &mut self.whole {
                // It ends with the end of the range.
                Some(parts) => parts.pop_front().ok_or_else(|| {
                    asking.violation(about, &self.asked, "less came than was asked for")
                })?,
                None => self.receive(asking, about)?,
            };
        }
    }

    /// Takes all of a piece before anything of it is read. Hosts may see changes at different times, and what was read already could not be
    /// asked of another host any more.
    fn complete(
        &mut self,
        version: &Version,
        asking: &Asking,
        about: About<'_>,
    ) -> Result<(), EntryError> {
        let (mut parts, mut bytes) = (VecDeque::new(), 0);
        loop {
            let part = self.receive(asking, about)?;
            let more = match &part {
                Pending::Data(message, begin) => (message.len() - begin) as u64,
                Pending::Hole(length) => *length,
                Pending::End(after) if after.version() != *version => {
                    let words = "the file changed while it was read";
                    return Err(asking.plain(about, ErrorClass::Changed, words));
                }
                Pending::End(_) => {
                    parts.push_back(part);
                    self.whole = Some(parts);
                    return Ok(());
                }
            };
            bytes = u64::saturating_add(bytes, more);
            if bytes > self.end - self.at || parts.len() >= PARTS_MAX {
                let words = "more came than was asked for";
                return Err(asking.violation(about, &self.asked, words));
            }
            parts.push_back(part);
        }
    }

    fn receive(&self, asking: &Asking, about: About<'_>) -> Result<Pending, EntryError> {
        let message = asking.receive_bytes(&self.asked, about)?;
        let part = decode_in_place::<ContentPart<&[u8]>>(&message);
        Ok(match part.map_err(|error| asking.failed(about, &self.asked, unreadable(&error)))? {
            ContentPart::Data(bytes) => {
                self.asked.delivered(bytes.len() as u64);
                let begin = message.len() - bytes.len();
                Pending::Data(message, begin)
            }
            ContentPart::Hole(length) => {
                self.asked.delivered(length);
                Pending::Hole(length)
            }
            ContentPart::End(after) => Pending::End(after),
            ContentPart::Failed(error) => return Err(error),
        })
    }

    /// The metadata of the file after its range was read, which come right behind the content.
    fn end(self, asking: &Asking, about: About<'_>) -> Result<Metadata, EntryError> {
        match self.receive(asking, about)? {
            Pending::End(after) => Ok(after),
            _ => Err(asking.violation(about, &self.asked, "more came than was asked for")),
        }
    }
}

/// Reads a file from an offset on, with the stream that is there, or with another one. If that ends the range that was asked
/// for, also returns the metadata of the file after it was read.
pub(super) fn read(
    (asking, streams): (&Asking, &OpenStreams),
    (file, idle, announced): (&FileAt, &Idle, &Announced),
    (at, buffer): (u64, &mut [u8]),
    (choice, about): (Choice, About<'_>),
) -> Result<(usize, Option<Metadata>), EntryError> {
    let found = {
        let mut idle = lock(idle);
        let place = idle.iter().position(|stream| stream.at == at);
        place.map(|place| idle.remove(place))
    };
    let mut stream = match found {
        Some(stream) => stream,
        None => {
            let range = (at, announced.end_of(at).unwrap_or(u64::MAX));
            let opened = Stream::open((asking, streams), file, range, (choice, about))?;
            streams.know(idle);
            opened
        }
    };
    if asking.are_several() && stream.is_new {
        stream.is_new = false;
        if let Some(limit) = announced.end_of(stream.at) {
            let rest = (stream.end, limit.min(file.version.size));
            ask_ahead((asking, streams), (file, idle), rest, about);
        }
        stream.complete(&file.version, asking, about)?;
    }
    // A message may be shorter than what is wanted, and then the next one is probably there as well.
    let read = stream.read(buffer, asking, about)?;
    if stream.at >= stream.end {
        // What follows is asked for by itself.
        // Pieces were read at different times, so the last one does not show what the file is after all of them.
        let after = if asking.are_several() { None } else { Some(stream.end(asking, about)?) };
        return Ok((read, after));
    }
    let mut idle = lock(idle);
    idle.push(stream);
    let surplus = (idle.len() > FILE_STREAMS_MAX * asking.hosts()).then(|| idle.remove(0));
    drop(idle);
    drop(surplus);
    Ok((read, None))
}

/// Asks for what follows a piece that begins to be read, so that each host has something to send.
fn ask_ahead(
    (asking, streams): (&Asking, &OpenStreams),
    (file, idle): (&FileAt, &Idle),
    (after, limit): (u64, u64),
    about: About<'_>,
) {
    let others = asking.hosts().saturating_sub(1) as u64;
    let starts = (0..others).map(|piece| after.saturating_add(piece * PIECE));
    for start in starts.take_while(|start| *start < limit) {
        if streams.count.load(SeqCst) >= STREAMS_AHEAD * asking.hosts() {
            return;
        }
        if lock(idle).iter().any(|stream| stream.at == start) {
            continue;
        }
        let range = (start, limit);
        // An error comes again when it is needed.
        let Ok(stream) = Stream::open((asking, streams), file, range, (Choice::Any, about)) else {
            return;
        };
        lock(idle).push(stream);
    }
}

/// The streams of all files.
#[derive(Debug, Default)]
pub(super) struct OpenStreams {
    count: Arc<AtomicUsize>,
    /// Whose streams they are, in the order in which they were opened.
    of: Mutex<VecDeque<Weak<Mutex<Vec<Stream>>>>>,
}

/// Counts a stream as long as it is open.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl OpenStreams {
    fn count(&self) -> Counted {
        self.count.fetch_add(1, SeqCst);
        Counted(Arc::clone(&self.count))
    }

    fn know(&self, idle: &Idle) {
        let mut of = lock(&self.of);
        of.push_back(Arc::downgrade(idle));
        if of.len() > 4 * STREAMS_MAX {
            of.retain(|idle| idle.strong_count() > 0);
        }
    }

    /// Ends the oldest stream that nobody reads at this moment, if there are too many. It begins again when it is needed.
    fn make_room(&self) {
        if self.count.load(SeqCst) < STREAMS_MAX {
            return;
        }
        let candidates: Vec<_> = lock(&self.of).iter().filter_map(Weak::upgrade).collect();
        for idle in candidates {
            let ended = {
                let mut idle = lock(&idle);
                (!idle.is_empty()).then(|| idle.remove(0))
            };
            if ended.is_some() {
                return;
            }
        }
    }
}
