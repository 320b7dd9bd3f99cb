//! Content: reading, writing, sizes, holes and shared blocks.
use crate::content::{Content, ContentChange};
use crate::disk::{Handle, User};
use crate::errno::{Errno, Result};
use crate::faults::{Call, Fault};
use crate::inode::Inode;
use crate::state::Change;

impl User<'_> {
    /// Reads at `offset`: `pread`. Returns the number of bytes; 0 at the end.
    ///
    /// # Errors
    ///
    /// As pread(2).
    pub fn read(&mut self, file: Handle, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.call(Call::Read, &[file.into()], |user, fault| {
            let inode = user.file(file, false)?;
            let keeps_atime = user.disk.opened(file)?.keeps_atime;
            let most = match fault {
                Some(Fault::Partial(most)) => buffer.len().min(most),
                _ => buffer.len(),
            };
            let length = user.content(inode)?.read(offset, &mut buffer[..most]);
            if fault == Some(Fault::Altered) {
                user.alter(&mut buffer[..length]);
            }
            user.touch_access(inode, keeps_atime);
            Ok(length)
        })
    }

    /// Writes at `offset`, or at the end of a file that was opened to append: `pwrite`. Returns the number of bytes,
    /// which is smaller if space runs out on the way.
    ///
    /// # Errors
    ///
    /// As pwrite(2).
    pub fn write(&mut self, file: Handle, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.call(Call::Write, &[file.into()], |user, fault| {
            let inode = user.file(file, true)?;
            let appends = user.disk.opened(file)?.appends;
            let offset = if appends { user.content(inode)?.size() } else { offset };
            let most = match fault {
                Some(Fault::Partial(most)) => bytes.len().min(most),
                _ => bytes.len(),
            };
            let mut bytes = bytes[..most].to_vec();
            if fault == Some(Fault::Altered) {
                user.alter(&mut bytes);
            }
            user.put(inode, offset, &bytes)
        })
    }

    /// Sets the size: `ftruncate`.
    ///
    /// # Errors
    ///
    /// As ftruncate(2).
    pub fn truncate(&mut self, file: Handle, size: u64) -> Result<()> {
        self.call(Call::Truncate, &[file.into()], |user, _| {
            let inode = user.file_to_change(file)?;
            if user.attributes(inode).append_only {
                return Err(Errno::PERM);
            }
            if size > user.disk.profile.file_bytes_max {
                return Err(Errno::FBIG);
            }
            user.fill_up_to(inode, size)?;
            user.drop_privileges(inode);
            // Like ext4, which looks at the size in memory: an equal one does not reach storage because of this call.
            if user.content(inode)?.size() != size {
                user.disk.change_content(inode, ContentChange::Resize(size));
            }
            user.disk.touch_content(inode);
            Ok(())
        })
    }

    /// Reserves blocks: `fallocate`, which makes the file larger if need be, unless `keeps_size`.
    ///
    /// # Errors
    ///
    /// As fallocate(2). All or nothing is reserved.
    pub fn allocate(
        &mut self,
        file: Handle,
        offset: u64,
        length: u64,
        keeps_size: bool,
    ) -> Result<()> {
        self.call(Call::Allocate, &[file.into()], |user, _| {
            let end = end_of(offset, length)?;
            let inode = user.file(file, true)?;
            if user.attributes(inode).immutable {
                return Err(Errno::PERM);
            }
            if end > user.disk.profile.file_bytes_max {
                return Err(Errno::FBIG);
            }
            let cost = user.content(inode)?.cost_of_range(offset, length);
            user.check_space(user.attributes(inode).uid, cost, 0)?;
            user.drop_privileges(inode);
            let size = if keeps_size { 0 } else { end };
            user.disk.change_content(inode, ContentChange::Reserve(offset, length, size));
            user.disk.touch_content(inode);
            Ok(())
        })
    }

    /// Makes a hole of a byte range; the size stays: `fallocate` with `FALLOC_FL_PUNCH_HOLE`.
    ///
    /// # Errors
    ///
    /// As fallocate(2).
    pub fn punch(&mut self, file: Handle, offset: u64, length: u64) -> Result<()> {
        self.call(Call::Punch, &[file.into()], |user, _| {
            let end = end_of(offset, length)?;
            let inode = user.file(file, true)?;
            if user.attributes(inode).append_only || user.attributes(inode).immutable {
                return Err(Errno::PERM);
            }
            if !user.disk.profile.has_holes {
                return Err(Errno::NOTSUP);
            }
            if end > user.disk.profile.file_bytes_max {
                return Err(Errno::FBIG);
            }
            user.drop_privileges(inode);
            user.disk.change_content(inode, ContentChange::Punch(offset, length));
            user.disk.touch_content(inode);
            Ok(())
        })
    }

    /// Where data begins, at `offset` or after it: `lseek` with `SEEK_DATA`. Blocks that are reserved are holes.
    ///
    /// # Errors
    ///
    /// `NXIO` if there is none, and as lseek(2).
    pub fn next_data(&mut self, file: Handle, offset: u64) -> Result<u64> {
        self.call(Call::Seek, &[file.into()], |user, _| {
            let content = user.content(user.disk.opened(file)?.inode)?;
            match content.next_data(offset) {
                _ if offset >= content.size() => Err(Errno::NXIO),
                _ if !user.disk.profile.has_holes => Ok(offset),
                data => data.ok_or(Errno::NXIO),
            }
        })
    }

    /// Where a hole begins, at `offset` or after it; the end of the file is one: `lseek` with `SEEK_HOLE`.
    ///
    /// # Errors
    ///
    /// `NXIO` at the end or behind it, and as lseek(2).
    pub fn next_hole(&mut self, file: Handle, offset: u64) -> Result<u64> {
        self.call(Call::Seek, &[file.into()], |user, _| {
            let content = user.content(user.disk.opened(file)?.inode)?;
            match content.size() {
                size if offset >= size => Err(Errno::NXIO),
                size if !user.disk.profile.has_holes => Ok(size),
                _ => Ok(content.next_hole(offset)),
            }
        })
    }

    /// Lets a range of one file share the blocks of another: `FICLONERANGE`. A length of 0 means up to the end.
    ///
    /// # Errors
    ///
    /// As ioctl_ficlonerange(2).
    pub fn clone_range(
        &mut self,
        (source, from): (Handle, u64),
        (destination, to): (Handle, u64),
        length: u64,
    ) -> Result<()> {
        self.call(Call::Clone, &[source.into(), destination.into()], |user, _| {
            let (of, into) = (user.file(source, false)?, user.file(destination, true)?);
            if !user.disk.profile.has_clones {
                return Err(Errno::NOTSUP);
            }
            if user.disk.opened(destination)?.appends {
                return Err(Errno::BADF);
            }
            if user.attributes(into).immutable || user.attributes(into).append_only {
                return Err(Errno::PERM);
            }
            let change = user.sharing((of, from), (into, to), length)?;
            user.drop_privileges(into);
            if let Some(change) = change {
                user.disk.change_content(into, change);
                user.disk.touch_content(into);
            }
            Ok(())
        })
    }

    fn sharing(
        &self,
        (source, from): (u64, u64),
        (destination, to): (u64, u64),
        length: u64,
    ) -> Result<Option<ContentChange>> {
        let block_bytes = u64::from(self.disk.profile.block_bytes);
        let (source_size, size) = (self.content(source)?.size(), self.content(destination)?.size());
        if from > source_size {
            return Err(Errno::INVAL);
        }
        let length = if length == 0 { source_size - from } else { length };
        let end = from.checked_add(length).filter(|end| *end <= source_size).ok_or(Errno::INVAL)?;
        let new_end = to.checked_add(length).ok_or(Errno::INVAL)?;
        let is_whole = end.is_multiple_of(block_bytes) || (end == source_size && new_end >= size);
        if !from.is_multiple_of(block_bytes) || !to.is_multiple_of(block_bytes) || !is_whole {
            return Err(Errno::INVAL);
        }
        if source == destination && from.max(to) < from.min(to) + length {
            return Err(Errno::INVAL);
        }
        if new_end > self.disk.profile.file_bytes_max {
            return Err(Errno::FBIG);
        }
        if length == 0 {
            return Ok(None);
        }
        let (first, count) = (to / block_bytes, length.div_ceil(block_bytes));
        let shared = self.content(source)?.shared(from / block_bytes, count);
        let blocks = shared.into_iter().map(|(index, block)| (first + index, block)).collect();
        Ok(Some(ContentChange::Share { first, count, blocks, size: new_end }))
    }

    pub(super) fn content(&self, inode: u64) -> Result<&Content> {
        self.node(inode).content().ok_or(Errno::INVAL)
    }

    /// The file of a handle whose size changes: another error than that of a write.
    fn file_to_change(&self, file: Handle) -> Result<u64> {
        let opened = self.disk.opened(file)?;
        match self.node(opened.inode) {
            Inode { body: crate::inode::Body::File(_), .. } if opened.writes => Ok(opened.inode),
            _ => Err(Errno::INVAL),
        }
    }

    fn put(&mut self, inode: u64, offset: u64, bytes: &[u8]) -> Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let of = self.attributes(inode);
        if of.immutable {
            return Err(Errno::PERM);
        }
        let uid = of.uid;
        let room = self.disk.profile.file_bytes_max.saturating_sub(offset);
        let length = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        if length == 0 {
            return Err(Errno::FBIG);
        }
        self.fill_up_to(inode, offset)?;
        self.drop_privileges(inode);
        let mut images = self.content(inode)?.images(offset, &bytes[..length]);
        let cost = self.content(inode)?.cost(&images);
        let mut end = offset + length as u64;
        if let Err(errno) = self.check_space(uid, cost, 0) {
            // As many blocks as fit, in order.
            let mut fitting = images.len();
            while fitting > 0 && {
                let cost = self.content(inode)?.cost(&images[..fitting]);
                self.check_space(uid, cost, 0).is_err()
            } {
                fitting -= 1;
            }
            let last = images[..fitting].last().ok_or(errno)?;
            end = end.min((last.0 + 1) * u64::from(self.disk.profile.block_bytes));
            images.truncate(fitting);
        }
        let grows = self.content(inode)?.grows(&images, end);
        let change = Change::Data { inode, blocks: images, size: end };
        self.disk.cached.apply(&change);
        self.disk.log.push_data(self.disk.faults.calls(), change, grows);
        self.disk.touch_content(inode);
        Ok((end - offset) as usize)
    }

    /// Without holes, what lies between the old and the new end is written as zeros.
    fn fill_up_to(&mut self, inode: u64, size: u64) -> Result<()> {
        let old = self.content(inode)?.size();
        if self.disk.profile.has_holes || size <= old {
            return Ok(());
        }
        let cost = self.content(inode)?.cost_of_range(old, size - old);
        self.check_space(self.attributes(inode).uid, cost, 0)?;
        self.disk.change_content(inode, ContentChange::Reserve(old, size - old, size));
        Ok(())
    }

    /// Another value for one byte.
    fn alter(&mut self, bytes: &mut [u8]) {
        let number = self.disk.faults.random_number();
        if !bytes.is_empty() {
            let at = number as usize % bytes.len();
            bytes[at] ^= ((number >> 56) as u8).max(1);
        }
    }
}

/// The end of a range of at least one byte.
fn end_of(offset: u64, length: u64) -> Result<u64> {
    if length == 0 {
        return Err(Errno::INVAL);
    }
    offset.checked_add(length).ok_or(Errno::FBIG)
}
