//! Content of files.
use dmover_local::source::Content;
use dmover_model::{ByteRange, EntryError, Metadata, Name};
use dmover_net::connection::{Broken, Channel};
use dmover_tree::NextData;
use dmover_wire::agent::{
    Answer, ContentPart, DirectoryAt, FileAt, HEAD_CONTENT_MAX, Head, HeadContent, encode_content,
};

use super::progress::{Losses, Unlimited};
use super::tree::{OpenFile, Tree};

/// Bytes that are read and sent at a time.
const BLOCK: usize = 256 << 10;

impl Tree {
    /// Opens a file.
    pub(super) fn head(&self, at: &DirectoryAt, name: &Name, follows: bool) -> Answer<Head> {
        let from = self.directory_of(at, name.as_bytes(), follows)?;
        let losses = Losses::default();
        let local = self.host.local(&losses);
        let content = local.open_settled(&from, name.as_bytes(), follows, &Unlimited)?;
        let shown = from.place.entry(name.as_bytes());
        let read = local.attributes_of_content(&content, &|| shown.clone());
        let attributes = read.and_then(|read| self.sendable(read, &losses, &shown));
        let metadata = content.metadata.clone();
        let file = OpenFile { content, shown };
        let content = self.short_content(&file)?;
        if content.is_none() {
            self.keep_file(at, name, follows, file);
        }
        Ok(Head { metadata, attributes, content })
    }

    /// The whole content of a file, if it is short and has no holes.
    fn short_content(&self, file: &OpenFile) -> Answer<Option<HeadContent>> {
        let OpenFile { content, shown } = file;
        let size = content.metadata.size;
        if size > HEAD_CONTENT_MAX || content.has_holes() {
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
        Ok(Some(HeadContent { bytes, after }))
    }

    /// What follows at an offset of a file.
    pub(super) fn next_data(&self, at: &FileAt, offset: u64) -> Answer<NextData> {
        let file = self.file(at)?;
        file.content.next_data(offset, &|| file.shown.clone())
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
        let last = sent.map_or_else(ContentPart::Failed, ContentPart::End);
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
        let mut buffer = vec![0; BLOCK];
        let mut at = range.start;
        while at < range.end {
            let run = match runs.at(at, content, shown) {
                Ok(run) => run,
                Err(error) => return Ok(Err(error)),
            };
            let run_end = run.end.min(range.end);
            if run.is_hole {
                channel.send(&encode_content(&ContentPart::Hole(run_end - at)))?;
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
                ContentPart::Data(bytes.to_vec())
            };
            channel.send(&encode_content(&part))?;
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
