//! The content of a regular file: blocks that were written, blocks that are only reserved, and holes.
use std::collections::BTreeMap;
use std::sync::Arc;

/// One written block. Zeros at its end are not stored; clones of a disk share the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    bytes: Arc<[u8]>,
    /// Whether this file pays for it; a block that was shared from another file costs nothing.
    owned: bool,
}

impl Block {
    fn new(bytes: &[u8]) -> Self {
        let length = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        Self { bytes: bytes[..length].into(), owned: true }
    }
}

/// A change of content that belongs to the metadata: it is journalled.
#[derive(Debug, Clone)]
pub enum ContentChange {
    /// The file has this size; what is beyond it is gone.
    Resize(u64),
    /// Zeros from a byte on, for so many bytes; whole blocks become holes.
    Punch(u64, u64),
    /// Blocks of a byte range are reserved; the size becomes at least the last number.
    Reserve(u64, u64, u64),
    /// So many blocks from the first number on are replaced by shared ones.
    Share { first: u64, count: u64, blocks: Vec<(u64, Block)>, size: u64 },
}

/// What a file holds.
#[derive(Debug, Clone)]
pub struct Content {
    size: u64,
    block_bytes: u64,
    blocks: BTreeMap<u64, Block>,
    /// Reserved blocks that were never written: first → end.
    reserved: BTreeMap<u64, u64>,
    /// Blocks that this file pays for.
    owned: u64,
}

impl Content {
    /// An empty file.
    pub fn new(block_bytes: u32) -> Self {
        Self {
            size: 0,
            block_bytes: u64::from(block_bytes),
            blocks: BTreeMap::new(),
            reserved: BTreeMap::new(),
            owned: 0,
        }
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Blocks that this file pays for.
    pub fn owned_blocks(&self) -> u64 {
        self.owned
    }

    /// Blocks that it has, its own and shared ones.
    pub fn allocated_blocks(&self) -> u64 {
        let reserved: u64 = self.reserved.iter().map(|(first, end)| end - first).sum();
        self.blocks.len() as u64 + reserved
    }

    /// The same in bytes.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated_blocks() * self.block_bytes
    }

    /// Reads from `offset`; returns the number of bytes, 0 at the end.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let left = self.size.saturating_sub(offset);
        let length = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let buffer = &mut buffer[..length];
        buffer.fill(0);
        if length == 0 {
            return 0;
        }
        let (first, end) = (offset / self.block_bytes, self.block_end(offset + length as u64));
        for (index, block) in self.blocks.range(first..end) {
            let start = index * self.block_bytes;
            let from = offset.max(start);
            let to = (offset + length as u64).min(start + block.bytes.len() as u64);
            if from < to {
                let into = (from - offset) as usize..(to - offset) as usize;
                let of = (from - start) as usize..(to - start) as usize;
                buffer[into].copy_from_slice(&block.bytes[of]);
            }
        }
        length
    }

    /// The blocks that a write of `bytes` at `offset` leaves, without writing them.
    pub fn images(&self, offset: u64, bytes: &[u8]) -> Vec<(u64, Block)> {
        let end = offset + bytes.len() as u64;
        let mut images = Vec::new();
        let mut buffer = vec![0; self.block_bytes as usize];
        for index in offset / self.block_bytes..self.block_end(end) {
            let start = index * self.block_bytes;
            let (from, to) = (offset.max(start), end.min(start + self.block_bytes));
            buffer.fill(0);
            if let Some(old) = self.blocks.get(&index) {
                buffer[..old.bytes.len()].copy_from_slice(&old.bytes);
            }
            buffer[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&bytes[(from - offset) as usize..(to - offset) as usize]);
            images.push((index, Block::new(&buffer)));
        }
        images
    }

    /// How many more blocks the file pays for once `images` are written.
    pub fn cost(&self, images: &[(u64, Block)]) -> u64 {
        images.iter().filter(|(index, _)| !self.is_owned(*index)).count() as u64
    }

    /// How many more blocks it pays for once a byte range is reserved.
    pub fn cost_of_range(&self, offset: u64, length: u64) -> u64 {
        let (first, end) = (offset / self.block_bytes, self.block_end(offset + length));
        let written = self.blocks.range(first..end).count() as u64;
        let reserved: u64 = self
            .reserved
            .range(..end)
            .map(|(from, to)| (*to).min(end).saturating_sub((*from).max(first)))
            .sum();
        end.saturating_sub(first) - written - reserved
    }

    /// Whether writing `images` up to `size` needs blocks or a size that the file does not have.
    pub fn grows(&self, images: &[(u64, Block)], size: u64) -> bool {
        size > self.size || self.cost(images) > 0
    }

    /// Puts blocks that were written; the size becomes at least the smaller of `size` and the end of the last block.
    pub fn put(&mut self, images: &[(u64, Block)], size: u64) {
        for (index, image) in images {
            self.put_block(*index, image.clone());
            self.size = self.size.max(size.min((index + 1).saturating_mul(self.block_bytes)));
        }
    }

    /// Makes the file at least so large, without any block.
    pub fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Applies a change of metadata.
    pub fn change(&mut self, change: &ContentChange) {
        match change {
            ContentChange::Resize(size) => self.resize(*size),
            ContentChange::Punch(offset, length) => self.punch(*offset, *length),
            ContentChange::Reserve(offset, length, size) => {
                self.reserve(*offset, *length);
                self.grow(*size);
            }
            ContentChange::Share { first, count, blocks, size } => {
                self.release(*first, first + count);
                for (index, block) in blocks {
                    self.blocks.insert(*index, block.clone());
                }
                self.grow(*size);
            }
        }
    }

    /// Written blocks from `first` on as blocks that another file shares, numbered from 0.
    pub fn shared(&self, first: u64, count: u64) -> Vec<(u64, Block)> {
        let of = self.blocks.range(first..first.saturating_add(count));
        of.map(|(index, block)| (index - first, Block { owned: false, ..block.clone() })).collect()
    }

    /// Where data begins, at `offset` or after it; `None` if there is only a hole up to the end.
    pub fn next_data(&self, offset: u64) -> Option<u64> {
        let (index, _) = self.blocks.range(offset / self.block_bytes..).next()?;
        let start = offset.max(index * self.block_bytes);
        (start < self.size).then_some(start)
    }

    /// Where a hole begins, at `offset` or after it; the end of the file counts as one.
    pub fn next_hole(&self, offset: u64) -> u64 {
        let mut index = offset / self.block_bytes;
        for (written, _) in self.blocks.range(index..) {
            if *written != index {
                break;
            }
            index += 1;
        }
        offset.max(index * self.block_bytes).min(self.size)
    }

    /// Takes the blocks in a byte range from another state of the file; where that has none, there are zeros.
    pub fn replace_blocks(&mut self, by: &Self, from: u64, end: u64) {
        let (first, end) = (from / self.block_bytes, self.block_end(end));
        let changed: Vec<(u64, Block)> = self
            .blocks
            .range(first..end)
            .filter(|(index, block)| by.blocks.get(index).map(|it| &it.bytes) != Some(&block.bytes))
            .map(|(index, block)| {
                let bytes =
                    by.blocks.get(index).map_or_else(|| [].into(), |it| Arc::clone(&it.bytes));
                (*index, Block { bytes, owned: block.owned })
            })
            .collect();
        self.blocks.extend(changed);
    }

    fn resize(&mut self, size: u64) {
        // Blocks that are reserved behind the end stay if the file grows.
        if size <= self.size {
            self.release(self.block_end(size), u64::MAX);
        }
        if size < self.size && !size.is_multiple_of(self.block_bytes) {
            self.zero(size, self.block_bytes - size % self.block_bytes);
        }
        self.size = size;
    }

    fn punch(&mut self, offset: u64, length: u64) {
        let end = offset + length;
        let (first, last) = (self.block_end(offset), end / self.block_bytes);
        if first > last {
            self.zero(offset, length);
            return;
        }
        self.zero(offset, first * self.block_bytes - offset);
        self.release(first, last);
        self.zero(last * self.block_bytes, end - last * self.block_bytes);
    }

    /// Zeros within one block, if it was written.
    fn zero(&mut self, offset: u64, length: u64) {
        let index = offset / self.block_bytes;
        let Some(old) = self.blocks.get(&index).filter(|_| length > 0) else { return };
        let mut bytes = old.bytes.to_vec();
        let from = ((offset - index * self.block_bytes) as usize).min(bytes.len());
        let to = ((offset + length - index * self.block_bytes) as usize).min(bytes.len());
        bytes[from..to].fill(0);
        self.put_block(index, Block::new(&bytes));
    }

    fn reserve(&mut self, offset: u64, length: u64) {
        let (first, end) = (offset / self.block_bytes, self.block_end(offset + length));
        self.owned += self.cost_of_range(offset, length);
        // Holes between written blocks, one run each.
        let mut runs = Vec::new();
        let mut at = first;
        for (index, _) in self.blocks.range(first..end) {
            runs.push((at, *index));
            at = index + 1;
        }
        runs.push((at, end));
        for (from, to) in runs.into_iter().filter(|(from, to)| from < to) {
            self.take_reserved(from, to);
            self.reserved.insert(from, to);
        }
    }

    fn put_block(&mut self, index: u64, block: Block) {
        let was_owned = self.is_owned(index);
        self.take_reserved(index, index + 1);
        self.owned += u64::from(block.owned) - u64::from(was_owned && block.owned);
        self.owned -= u64::from(was_owned && !block.owned);
        self.blocks.insert(index, block);
    }

    /// Makes a hole of the blocks from `first` up to `end`.
    fn release(&mut self, first: u64, end: u64) {
        if first >= end {
            return;
        }
        let mut after = self.blocks.split_off(&first);
        let mut kept = after.split_off(&end);
        self.owned -= after.values().filter(|block| block.owned).count() as u64;
        self.blocks.append(&mut kept);
        self.owned -= self.take_reserved(first, end);
    }

    /// Removes the blocks from `first` up to `end` from those that are reserved; returns how many there were.
    fn take_reserved(&mut self, first: u64, end: u64) -> u64 {
        let hit = |(from, to): &(u64, u64)| *to > first && *from < end;
        let runs: Vec<(u64, u64)> =
            self.reserved.range(..end).map(|(from, to)| (*from, *to)).filter(hit).collect();
        let mut taken = 0;
        for (from, to) in runs {
            self.reserved.remove(&from);
            taken += to.min(end) - from.max(first);
            if from < first {
                self.reserved.insert(from, first);
            }
            if to > end {
                self.reserved.insert(end, to);
            }
        }
        taken
    }

    fn is_owned(&self, index: u64) -> bool {
        let is_reserved = || {
            let before = self.reserved.range(..=index).next_back();
            before.is_some_and(|(_, end)| index < *end)
        };
        self.blocks.get(&index).map_or_else(is_reserved, |block| block.owned)
    }

    /// The first block that begins at `offset` or after it.
    fn block_end(&self, offset: u64) -> u64 {
        offset.div_ceil(self.block_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(content: &mut Content, offset: u64, bytes: &[u8]) {
        let images = content.images(offset, bytes);
        content.put(&images, offset + bytes.len() as u64);
    }

    fn all(content: &Content) -> Vec<u8> {
        let mut bytes = vec![1; content.size() as usize];
        assert_eq!(content.read(0, &mut bytes), bytes.len());
        bytes
    }

    #[test]
    fn a_terabyte_with_three_data_ranges_costs_three_blocks() {
        let mut content = Content::new(4096);
        for offset in [0, 1 << 30, (1 << 40) - 1] {
            write(&mut content, offset, b"x");
        }
        assert_eq!((content.size(), content.owned_blocks()), (1 << 40, 3));
        assert_eq!(content.next_data(4096), Some(1 << 30));
        assert_eq!(content.next_hole(1 << 30), (1 << 30) + 4096);
        assert_eq!(content.next_hole((1 << 40) - 4096), 1 << 40);
    }

    #[test]
    fn punched_and_truncated_bytes_are_zeros() {
        let mut content = Content::new(16);
        write(&mut content, 0, &[7; 64]);
        content.change(&ContentChange::Punch(10, 30));
        let expected: Vec<u8> =
            (0..64).map(|at| if (10..40).contains(&at) { 0 } else { 7 }).collect();
        assert_eq!(all(&content), expected);
        assert_eq!(content.owned_blocks(), 3);
        content.change(&ContentChange::Resize(5));
        content.change(&ContentChange::Resize(20));
        assert_eq!(all(&content), [[7; 5].as_slice(), &[0; 15]].concat());
        assert_eq!(content.owned_blocks(), 1);
    }

    #[test]
    fn a_reserved_range_is_paid_for_once() {
        let mut content = Content::new(16);
        write(&mut content, 20, b"x");
        assert_eq!(content.cost_of_range(0, 64), 3);
        content.change(&ContentChange::Reserve(0, 64, 0));
        assert_eq!((content.owned_blocks(), content.allocated_blocks()), (4, 4));
        write(&mut content, 0, &[1; 64]);
        assert_eq!((content.owned_blocks(), content.allocated_blocks()), (4, 4));
        content.change(&ContentChange::Resize(0));
        assert_eq!((content.owned_blocks(), content.allocated_blocks()), (0, 0));
    }

    #[test]
    fn a_shared_block_is_paid_for_when_it_is_written() {
        let (mut one, mut other) = (Content::new(16), Content::new(16));
        write(&mut one, 0, &[3; 32]);
        let blocks = one.shared(0, 2);
        other.change(&ContentChange::Share { first: 0, count: 2, blocks, size: 32 });
        assert_eq!((other.owned_blocks(), other.allocated_blocks()), (0, 2));
        write(&mut other, 0, b"x");
        assert_eq!(other.owned_blocks(), 1);
        assert_eq!(all(&one), [3; 32]);
    }
}
