//! Copies blocks from one file to another.
use dmover_model::EntryError;
use dmover_observe::{Activity, Counter, activity};
use dmover_plan::engine::Sides;
use dmover_sys::buffer::PAGE;
use dmover_sys::{Errno, cache, file};

use super::side::{FORGET_EVERY, Reader, Side};
use super::{ContentRules, Transfer};

/// Both sides.
pub(crate) struct Pipe<'a> {
    rules: ContentRules<'a>,
    transfer: Transfer<'a>,
    source: Reader<'a>,
    destination: Side<'a>,
    /// The range of the destination that is being flushed, to be dropped from the page cache afterwards.
    sent: Option<(u64, u64)>,
}

impl<'a> Pipe<'a> {
    pub fn new(
        rules: ContentRules<'a>,
        transfer: Transfer<'a>,
        sides: Sides,
        start: (u64, u64),
    ) -> Self {
        let policy = &rules.policy;
        let source = (transfer.source, transfer.source_facts);
        let source = Reader::new(rules, source, sides.read, start.0, transfer.source_path);
        let destination = Side::new(
            transfer.destination,
            transfer.facts,
            sides.write,
            policy.forget_written.then_some(start.1),
        );
        Self { rules, transfer, source, destination, sent: None }
    }

    /// Reads up to `buffer` bytes, 0 at the end of the file.
    pub fn read(&mut self, buffer: &mut [u8], at: u64) -> Result<usize, EntryError> {
        self.source.read(buffer, at)
    }

    /// Writes all of `bytes`.
    pub fn write(&mut self, mut bytes: &[u8], mut to: u64) -> Result<(), EntryError> {
        activity::at(Activity::TargetData);
        let (rules, transfer) = (self.rules, self.transfer);
        let fail = |e| transfer.write_error(e);
        let end = to + bytes.len() as u64;
        while !bytes.is_empty() {
            let side = &mut self.destination;
            let direct = side.direct_length(bytes, to, bytes.len());
            let written = if direct > 0 && side.set(rules, true).map_err(fail)? {
                match file::write_at(side.fd, &bytes[..direct], to) {
                    Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                        side.refuse(rules);
                        continue;
                    }
                    result => {
                        let written = result.map_err(fail)?;
                        rules.add(Counter::BytesWrittenDirect, written as u64);
                        written
                    }
                }
            } else {
                side.set(rules, false).map_err(fail)?;
                // Up to the next border, from which on it may go directly again.
                let apart = (bytes.as_ptr() as u64).wrapping_sub(to) % PAGE;
                let border = side.border.filter(|_| direct == 0 && apart == 0);
                let rest = border.map_or(bytes.len(), |b| (b - to % b) as usize);
                let piece = bytes.len().min(rest);
                file::write_at(side.fd, &bytes[..piece], to).map_err(fail)?
            };
            bytes = &bytes[written..];
            to += written as u64;
        }
        self.forget_written(end)
    }

    /// Drops written data from the page cache, which is possible only once it is on storage. Each range is sent to
    /// storage as soon as it is full and awaited when the next one is full, so that writing never pauses.
    fn forget_written(&mut self, end: u64) -> Result<(), EntryError> {
        let transfer = self.transfer;
        let side = &mut self.destination;
        let Some(from) = side.forget_from.filter(|from| end >= from + FORGET_EVERY) else {
            return Ok(());
        };
        cache::start_writing(side.fd, from, end - from).map_err(|e| transfer.write_error(e))?;
        side.forget_from = Some(end);
        let sent = self.sent.replace((from, end));
        self.forget_sent(sent)
    }

    fn forget_sent(&self, sent: Option<(u64, u64)>) -> Result<(), EntryError> {
        let Some((from, end)) = sent else { return Ok(()) };
        let fd = self.destination.fd;
        cache::wait_for_writing(fd, from, end - from).map_err(|e| self.transfer.write_error(e))?;
        cache::forget(fd, from, end - from);
        Ok(())
    }

    /// Restores the flags of the descriptors, and drops the last range.
    pub fn finish(mut self, at: (u64, u64)) -> Result<(), EntryError> {
        let (rules, transfer) = (self.rules, self.transfer);
        self.source.finish(at.0)?;
        self.destination.set(rules, false).map_err(|e| transfer.write_error(e))?;
        let sent = self.sent.take();
        self.forget_sent(sent)?;
        let rest = self.destination.forget_from.filter(|from| *from < at.1);
        self.forget_sent(rest.map(|from| (from, at.1)))
    }
}
