//! Content of files.
use dmover_digest::Pieces;
use dmover_local::entry_attributes;
use dmover_local::source::Content;
use dmover_model::{ByteRange, EntryError, Metadata, Name};
use dmover_net::connection::{Broken, Channel};
use dmover_tree::{EntryAttributes, NextData};
use dmover_wire::agent::{
    Answer, ContentPart, DirectoryAt, FileAt, Head, SHORT_MAX, Short, ShortContent, encode_content,
    encode_content_into,
};

use super::progress::{Losses, Unlimited};
use super::tree::{OpenFile, Tree};
use crate::joined::send;

/// A message with several files is sent when it has this many bytes: large enough that a message costs little, and small
/// enough that the first file does not wait for the last one.
const PART_BYTES: usize = 64 << 10;
/// Bytes that are read and sent at a time.
const BLOCK: usize = 256 << 10;

/// How many bytes attributes take in a message.
pub(super) fn attribute_bytes(found: &EntryAttributes) -> usize {
    found.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum()
}

/// About how many bytes a head takes in a message.
pub(super) fn sent_bytes(head: &Head) -> usize {
    let attributes = head.attributes.as_ref().map_or(0, attribute_bytes);
    let short = head.short.as_ref().map_or(0, |short| match &short.content {
        ShortContent::Bytes(bytes) => bytes.len(),
        ShortContent::Digests(_, pieces) => 65 * pieces.len(),
    });
    100 + attributes + short
}

impl Tree {
    /// Opens files, and sends what they are, several in one message.
    pub(super) fn heads(
        &self,
        at: &DirectoryAt,
        (names, follows): (&[Name], bool),
        channel: &Channel,
    ) -> Result<(), Broken> {
        let (mut part, mut bytes) = (Vec::new(), 0);
        for name in names {
            let head = self.head(at, name, follows);
            bytes += head.as_ref().map_or(0, sent_bytes);
            part.push(head);
            if bytes >= PART_BYTES {
                send(channel, &encode_content(&std::mem::take(&mut part)))?;
                bytes = 0;
            }
        }
        if part.is_empty() { Ok(()) } else { send(channel, &encode_content(&part)) }
    }

    /// Opens a file.
    pub(super) fn head(&self, at: &DirectoryAt, name: &Name, follows: bool) -> Answer<Head> {
        let from = self.directory_of(at, name.as_bytes(), follows)?;
        let losses = Losses::default();
        let local = self.host.local(&losses);
        let content = local.open_settled(&from, name.as_bytes(), follows, &Unlimited)?;
        let shown = from.place.entry(name.as_bytes());
        let read = entry_attributes::attributes_of_content(&local, &content, &|| shown.clone());
        let attributes = read.and_then(|read| self.sendable(read, &losses, &shown));
        let metadata = content.metadata.clone();
        let file = OpenFile { content, shown };
        let short = self.short(&file)?;
        if short.is_none() {
            self.keep_file(at, name, follows, file);
        }
        Ok(Head { metadata, attributes, short })
    }

    /// What is sent with the head of a file, if it is short.
    fn short(&self, file: &OpenFile) -> Answer<Option<Short>> {
        let shape = self.with_head.shape(file.content.metadata.size);
        if shape.is_none() && file.content.has_holes() {
            return Ok(None);
        }
        Ok(self.short_bytes(file)?.map(|(bytes, after)| {
            let content = match shape {
                None => ShortContent::Bytes(bytes),
                Some(shape) => ShortContent::Digests(shape, Pieces::of(&shape, 0, &bytes)),
            };
            Short { content, after }
        }))
    }

    /// The whole content of a file, if it is short, and its metadata afterwards.
    fn short_bytes(&self, file: &OpenFile) -> Answer<Option<(Vec<u8>, Metadata)>> {
        let OpenFile { content, shown } = file;
        let size = content.metadata.size;
        if size > SHORT_MAX {
            return Ok(None);
        }
        // One byte more shows whether the file has grown.
        let mut bytes = vec![0; size as usize + 1];
        let mut filled = 0;
        while filled < bytes.len() {
            let read = content.read_at(&mut bytes[filled..], filled as u64, &|| shown.clone())?;
            if read == 0 {
                break;
            }
            filled += read;
        }
        if filled as u64 > size {
            return Ok(None);
        }
        bytes.truncate(filled);
        let after = self.host.end().present_metadata(content, &|| shown.clone())?;
        Ok(Some((bytes, after)))
    }

    /// What follows at an offset of a file.
    pub(super) fn next_data(&self, at: &FileAt, offset: u64) -> Answer<NextData> {
        let file = self.file(at)?;
        let next = file.content.next_data(offset, &|| file.shown.clone())?;
        self.check_version(at)?;
        Ok(next)
    }

    /// The present metadata of a file.
    pub(super) fn now(&self, at: &FileAt) -> Answer<Metadata> {
        let file = self.file(at)?;
        self.host.end().present_metadata(&file.content, &|| file.shown.clone())
    }

    /// Sends a range of a file.
    pub(super) fn content(
        &self,
        at: &FileAt,
        range: ByteRange,
        channel: &Channel,
    ) -> Result<(), Broken> {
        let sent = match self.file(at) {
            Ok(file) => self.send_range(&file, range, channel)?,
            Err(error) => Err(error),
        };
        let last = sent.map_or_else(ContentPart::<&[u8]>::Failed, ContentPart::End);
        channel.send(&encode_content(&last))
    }

    fn send_range(
        &self,
        OpenFile { content, shown }: &OpenFile,
        range: ByteRange,
        channel: &Channel,
    ) -> Result<Answer<Metadata>, Broken> {
        let shown = &|| shown.clone();
        let mut runs = Runs::of(content);
        let (mut buffer, mut message) = (vec![0; BLOCK], Vec::new());
        let mut at = range.start;
        while at < range.end {
            let run = match runs.at(at, content, shown) {
                Ok(run) => run,
                Err(error) => return Ok(Err(error)),
            };
            let run_end = run.end.min(range.end);
            if run.is_hole {
                channel.send(&encode_content(&ContentPart::<&[u8]>::Hole(run_end - at)))?;
                at = run_end;
                continue;
            }
            let most = (run_end - at).min(BLOCK as u64) as usize;
            let read = match content.read_at(&mut buffer[..most], at, shown) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) => return Ok(Err(error)),
            };
            let bytes = &buffer[..read];
            let part = if is_zero(bytes) {
                ContentPart::Hole(read as u64)
            } else {
                ContentPart::Data(bytes)
            };
            message = encode_content_into(&part, message);
            channel.send(&message)?;
            at += read as u64;
        }
        Ok(self.host.end().present_metadata(content, shown))
    }
}

/// Data or a hole up to an offset.
#[derive(Debug, Clone, Copy)]
struct Run {
    end: u64,
    is_hole: bool,
}

/// Finds the holes of a file that is read in order.
#[derive(Debug)]
struct Runs {
    /// The file system reports holes that can be relied on.
    asks: bool,
    /// Data that is known.
    data: ByteRange,
}

impl Runs {
    fn of(content: &Content) -> Self {
        let asks = content.metadata.may_have_holes() && content.may_skip_holes();
        Self { asks, data: ByteRange { start: 0, end: 0 } }
    }

    fn at(
        &mut self,
        at: u64,
        content: &Content,
        shown: &dyn Fn() -> dmover_model::PathBytes,
    ) -> Result<Run, EntryError> {
        let all = Run { end: u64::MAX, is_hole: false };
        if !self.asks {
            return Ok(all);
        }
        if at >= self.data.end {
            match content.next_data(at, shown)? {
                NextData::Data(data) if data.end > at => self.data = data,
                NextData::End if at < content.metadata.size => {
                    return Ok(Run { end: content.metadata.size, is_hole: true });
                }
                // An answer that leads nowhere, or none: what is left is read.
                _ => {
                    self.asks = false;
                    return Ok(all);
                }
            }
        }
        let is_hole = at < self.data.start;
        Ok(Run { end: if is_hole { self.data.start } else { self.data.end }, is_hole })
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    // Comparing the slice with itself moved by one compiles to a memcmp, which is as fast as memory.
    match bytes {
        [] => true,
        [first, rest @ ..] => *first == 0 && *rest == bytes[..rest.len()],
    }
}
