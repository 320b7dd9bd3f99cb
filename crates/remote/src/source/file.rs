//! Files of a tree at another host.
use dmover_digest::Pieces;
use dmover_model::{
    ByteRange, Digest, EntryError, ErrorClass, Metadata, Operation, Shape, Version,
};
use dmover_net::connection::Broken;
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use dmover_tree::{EntryAttributes, KnownBlocks, NextData, RemoteFile, TakeBlocks};
use dmover_wire::agent::{
    ChangedPart, DigestPart, DirectoryAt, FileAt, Head, Request, Short, ShortContent,
    UNKNOWN_REQUEST,
};
use dmover_wire::decode_in_place;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, ThreadId};

use super::asking::About;
use super::hosts::Choice;
use super::shared::Shared;
use super::stream::{self, Announced, Idle};
use crate::hashing::fits;
use crate::joined::unreadable;

/// Whether bytes are in one of the ranges, and not beyond it.
fn is_in_one(known: &[KnownBlocks], at: u64, bytes: &[u8]) -> bool {
    let end = at.saturating_add(bytes.len() as u64);
    known.iter().any(|KnownBlocks { range, .. }| range.start <= at && end <= range.end)
}

/// An open regular file.
#[derive(Debug)]
pub(super) struct File {
    shared: Arc<Shared>,
    at: FileAt,
    head: Head,
    streams: Idle,
    announced: Announced,
    /// Content was asked for after the head, so what came with the head does not tell whether it has changed.
    was_read: AtomicBool,
    /// The metadata that came behind what a thread has read, and which thread that is.
    after: Mutex<Option<(ThreadId, Metadata)>>,
}

impl File {
    pub(super) fn new(shared: Arc<Shared>, at: FileAt, head: Head) -> Self {
        let (streams, announced, was_read, after) = Default::default();
        Self { shared, at, head, streams, announced, was_read, after }
    }

    /// Whether another file was opened by the same name.
    pub(super) fn is_at(&self, other: &Self) -> bool {
        let key = |file: &Self| (file.at.directory.clone(), file.at.name.clone(), file.at.follows);
        key(self) == key(other)
    }

    /// Whether it was opened by this name, and had this version.
    pub(super) fn is(
        &self,
        directory: &DirectoryAt,
        (name, follows): (&[u8], bool),
        version: &Version,
    ) -> bool {
        let at = &self.at;
        (at.name.as_bytes(), at.follows) == (name, follows)
            && at.directory == *directory
            && at.version == *version
    }

    /// Whether its content did not come with what is known of it.
    pub(super) fn is_large(&self) -> bool {
        self.head.short.is_none()
    }

    fn about(&self, operation: Operation) -> About<'_> {
        (operation, &self.at.directory.path, self.at.name.as_bytes())
    }

    /// Records what was last seen after this thread has read something. What another thread has read meanwhile may be
    /// newer than its metadata here.
    fn seen_after(&self, after: Option<Metadata>) {
        let own = thread::current().id();
        let mut seen = lock(&self.after);
        if after.is_some() || seen.as_ref().is_some_and(|(of, _)| *of == own) {
            *seen = after.map(|after| (own, after));
        }
    }

    fn begin_to_read(&self) {
        self.was_read.store(true, Relaxed);
        // Whoever reads: a helper of the thread that asks later may have seen newer content.
        *lock(&self.after) = None;
    }

    fn no_range(&self) -> EntryError {
        let words = "no digests can be made of this range";
        self.shared.asking.plain(self.about(Operation::Read), ErrorClass::Unsupported, words)
    }

    /// Takes the blocks of an answer. A block that comes again, from another host, is the same.
    fn changed_now(
        &self,
        request: &Request,
        (known, take): (&[KnownBlocks], &mut TakeBlocks<'_>),
    ) -> Result<bool, EntryError> {
        let (asking, about) = (&self.shared.asking, self.about(Operation::Read));
        let asked = asking.send(request, Choice::First, about)?;
        let fails = |why| asking.failed(about, &asked, why);
        asked.channel.expect_much().map_err(fails)?;
        loop {
            let message = match asking.try_receive_bytes(&asked, about)? {
                Err(Broken::Cancelled(words)) if words == UNKNOWN_REQUEST => {
                    self.shared.sends_all.store(true, Relaxed);
                    return Ok(false);
                }
                message => message.map_err(fails)?,
            };
            let part = decode_in_place::<ChangedPart<&[u8]>>(&message);
            match part.map_err(|error| fails(unreadable(&error)))? {
                ChangedPart::End => return Ok(true),
                ChangedPart::Failed(error) => return Err(error),
                ChangedPart::Blocks(at, bytes) if is_in_one(known, at, bytes) => take(at, bytes)?,
                ChangedPart::Blocks(..) => {
                    let words = "blocks came that were not asked for";
                    return Err(asking.violation(about, &asked, words));
                }
            }
        }
    }

    fn digests_by(
        &self,
        (request, shapes): (&Request, usize),
        choice: Choice,
        step: &mut dyn FnMut(u64) -> Result<(), EntryError>,
    ) -> Result<Vec<Vec<Digest>>, EntryError> {
        let (asking, about) = (&self.shared.asking, self.about(Operation::Read));
        let asked = asking.send(request, choice, about)?;
        loop {
            match asking.receive(&asked, about)? {
                DigestPart::Progress(bytes) => {
                    asked.delivered(bytes);
                    step(bytes)?;
                }
                DigestPart::Failed(error) => return Err(error),
                DigestPart::Done(digests) if digests.len() == shapes => return Ok(digests),
                DigestPart::Done(_) => {
                    return Err(asking.violation(about, &asked, "digests are missing"));
                }
            }
        }
    }

    /// The content, if it is here.
    fn bytes(&self) -> Option<&[u8]> {
        match &self.head.short {
            Some(Short { content: ShortContent::Bytes(bytes), .. }) => Some(bytes),
            _ => None,
        }
    }

    /// The digests, if they came with the head.
    fn known_digests(
        &self,
        shapes: &[Shape],
        start: u64,
        range: ByteRange,
    ) -> Option<Vec<Vec<Digest>>> {
        let Short { content: ShortContent::Digests(shape, pieces), .. } =
            self.head.short.as_ref()?
        else {
            return None;
        };
        let whole = ByteRange { start: 0, end: shape.length() };
        (shapes == [*shape] && start == 0 && range == whole).then(|| vec![pieces.clone()])
    }

    /// The digests of content that is here.
    fn digests_here(
        &self,
        bytes: &[u8],
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
        let all = shapes.iter().map(|shape| Pieces::of(shape, range.start, content)).collect();
        step(content.len() as u64)?;
        Ok(all)
    }
}

impl RemoteFile for File {
    fn read_changed(
        &self,
        known: &[KnownBlocks],
        take: &mut TakeBlocks<'_>,
    ) -> Result<bool, EntryError> {
        if self.shared.sends_all.load(Relaxed) {
            return Ok(false);
        }
        self.begin_to_read();
        let request = Request::Changed { file: self.at.clone(), known: known.to_vec() };
        // Blocks are written as they come, so they have to be of what decides what is copied.
        self.shared.asking.despite_losses(|| self.changed_now(&request, (known, take)))
    }

    fn metadata(&self) -> &Metadata {
        &self.head.metadata
    }

    fn attributes(&self) -> Result<EntryAttributes, EntryError> {
        self.head.attributes.clone()
    }

    fn will_read(&self, range: ByteRange) {
        self.announced.add(range);
    }

    fn read(&self, at: u64, buffer: &mut [u8]) -> Result<usize, EntryError> {
        if let Some(bytes) = self.bytes() {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            let rest = bytes.get(at..).unwrap_or_default();
            let now = rest.len().min(buffer.len());
            buffer[..now].copy_from_slice(&rest[..now]);
            return Ok(now);
        }
        self.begin_to_read();
        let about = self.about(Operation::Read);
        let with = (&self.shared.asking, &self.shared.streams);
        let of = (&self.at, &self.streams, &self.announced);
        let (read, after) = self
            .shared
            .asking
            .of_any(|choice| stream::read(with, of, (at, &mut *buffer), (choice, about)))?;
        self.seen_after(after);
        Ok(read)
    }

    fn next_data(&self, at: u64) -> Result<NextData, EntryError> {
        if let Some(bytes) = self.bytes() {
            let end = bytes.len() as u64;
            return Ok(if at < end {
                NextData::Data(ByteRange { start: at, end })
            } else {
                NextData::End
            });
        }
        self.begin_to_read();
        let (end, metadata) = (self.head.metadata.size, &self.head.metadata);
        if !metadata.may_have_holes() {
            let rest = ByteRange { start: at, end };
            return Ok(if at < end { NextData::Data(rest) } else { NextData::End });
        }
        let request = Request::NextData { file: self.at.clone(), at };
        self.shared.asking.ask(&request, self.about(Operation::Read))
    }

    fn now(&self) -> Result<Metadata, EntryError> {
        if let Some(short) = &self.head.short
            && !self.was_read.load(Relaxed)
        {
            return Ok(short.after.clone());
        }
        let own = thread::current().id();
        if let Some((_, after)) = lock(&self.after).take_if(|(of, _)| *of == own) {
            return Ok(after);
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
        if let Some(bytes) = self.bytes() {
            return self.digests_here(bytes, (shapes, start), range, step);
        }
        if let Some(known) = self.known_digests(shapes, start, range) {
            step(range.len())?;
            return Ok(known);
        }
        self.begin_to_read();
        let file = self.at.clone();
        let request = Request::Digests { file, shapes: shapes.to_vec(), start, range };
        // What an answer has counted before its host was lost is not counted again.
        let (mut counted, mut again) = (0, 0);
        self.shared.asking.of_any(|choice| {
            again = 0;
            self.digests_by((&request, shapes.len()), choice, &mut |bytes| {
                again += bytes;
                let new = u64::saturating_sub(again, counted);
                counted += new;
                step(new)
            })
        })
    }
}
