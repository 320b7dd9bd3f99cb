//! Files of a tree at another host.
use dmover_digest::Pieces;
use dmover_model::{ByteRange, Digest, EntryError, ErrorClass, Metadata, Operation, Shape};
use dmover_tree::{EntryAttributes, NextData, RemoteFile};
use dmover_wire::agent::{DigestPart, FileAt, Head, HeadContent, Request};
use std::sync::Arc;

use super::asking::About;
use super::shared::Shared;
use super::stream::{self, Idle};
use crate::hashing::fits;

/// An open regular file.
#[derive(Debug)]
pub(super) struct File {
    shared: Arc<Shared>,
    at: FileAt,
    head: Head,
    streams: Idle,
}

impl File {
    pub(super) fn new(shared: Arc<Shared>, at: FileAt, head: Head) -> Self {
        Self { shared, at, head, streams: Idle::default() }
    }

    fn about(&self, operation: Operation) -> About<'_> {
        (operation, &self.at.directory.path, self.at.name.as_bytes())
    }

    fn no_range(&self) -> EntryError {
        let words = "no digests can be made of this range";
        self.shared.asking.plain(self.about(Operation::Read), ErrorClass::Unsupported, words)
    }

    /// The digests of content that is here.
    fn digests_here(
        &self,
        HeadContent { bytes, .. }: &HeadContent,
        (shapes, start): (&[Shape], u64),
        range: ByteRange,
        step: &mut dyn FnMut(u64) -> Result<(), EntryError>,
    ) -> Result<Vec<Vec<Digest>>, EntryError> {
        let (from, to) = (start.saturating_add(range.start), start.saturating_add(range.end));
        let place = |offset| usize::try_from(offset).unwrap_or(usize::MAX);
        let content = bytes.get(place(from)..place(to)).ok_or_else(|| {
            let words = "the file shrank while it was read";
            self.shared.asking.plain(self.about(Operation::Read), ErrorClass::Changed, words)
        })?;
        let hash = |shape: &Shape| {
            let mut pieces = Pieces::new(*shape, range.start);
            pieces.update(content);
            pieces.finish()
        };
        let all = shapes.iter().map(hash).collect();
        step(content.len() as u64)?;
        Ok(all)
    }
}

impl RemoteFile for File {
    fn metadata(&self) -> &Metadata {
        &self.head.metadata
    }

    fn attributes(&self) -> Result<EntryAttributes, EntryError> {
        self.head.attributes.clone()
    }

    fn read(&self, at: u64, buffer: &mut [u8]) -> Result<usize, EntryError> {
        if let Some(content) = &self.head.content {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            let rest = content.bytes.get(at..).unwrap_or_default();
            let now = rest.len().min(buffer.len());
            buffer[..now].copy_from_slice(&rest[..now]);
            return Ok(now);
        }
        let about = self.about(Operation::Read);
        let with = (&self.shared.asking, &self.shared.streams);
        stream::read(with, (&self.at, &self.streams), (at, buffer), about)
    }

    fn next_data(&self, at: u64) -> Result<NextData, EntryError> {
        if let Some(content) = &self.head.content {
            let end = content.bytes.len() as u64;
            return Ok(if at < end {
                NextData::Data(ByteRange { start: at, end })
            } else {
                NextData::End
            });
        }
        let request = Request::NextData { file: self.at.clone(), at };
        self.shared.asking.ask(&request, self.about(Operation::Read))
    }

    fn now(&self) -> Result<Metadata, EntryError> {
        if let Some(content) = &self.head.content {
            return Ok(content.after.clone());
        }
        self.shared.asking.ask(&Request::Now { file: self.at.clone() }, self.about(Operation::Stat))
    }

    fn digests(
        &self,
        shapes: &[Shape],
        start: u64,
        range: ByteRange,
        step: &mut dyn FnMut(u64) -> Result<(), EntryError>,
    ) -> Result<Vec<Vec<Digest>>, EntryError> {
        if !fits(shapes, start, range) {
            return Err(self.no_range());
        }
        if let Some(content) = &self.head.content {
            return self.digests_here(content, (shapes, start), range, step);
        }
        let about = self.about(Operation::Read);
        let file = self.at.clone();
        let request = Request::Digests { file, shapes: shapes.to_vec(), start, range };
        let channel = self.shared.asking.send(&request, about)?;
        loop {
            match self.shared.asking.receive(&channel, about)? {
                DigestPart::Progress(bytes) => step(bytes)?,
                DigestPart::Failed(error) => return Err(error),
                DigestPart::Done(digests) if digests.len() == shapes.len() => return Ok(digests),
                DigestPart::Done(_) => {
                    return Err(self.shared.asking.violation(about, "digests are missing"));
                }
            }
        }
    }
}
