//! Trees with the sizes and counts of real data sets, made at the speed of the disk.
#![allow(clippy::unnecessary_debug_formatting, reason = "names hold control characters")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Bytes between two stamps, so that a block in the wrong place is noticed.
const BLOCK: usize = 4096;
const BUFFER: usize = 1 << 20;
const MB: u64 = 1_000_000;

/// A data set of many files of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of files.
    pub count: u64,
    /// Size of each file in bytes.
    pub size_bytes: u64,
    /// Files in each directory.
    pub per_directory: u64,
}

impl Shape {
    /// Names that [`Shape::from_str`] knows.
    pub const NAMES: [&str; 5] = ["files-16mb", "files-50gb", "files-93mb", "files-2gb", "tiny"];

    /// 100,000 files of 16 MB: 1.6 TB.
    pub fn files_16_mb() -> Self {
        Self { count: 100_000, size_bytes: 16 * MB, per_directory: 1000 }
    }

    /// 100 files of 50 GB: 5 TB.
    pub fn files_50_gb() -> Self {
        Self { count: 100, size_bytes: 50_000 * MB, per_directory: 100 }
    }

    /// 378 files of 93 MB: 35 GB.
    pub fn files_93_mb() -> Self {
        Self { count: 378, size_bytes: 93 * MB, per_directory: 378 }
    }

    /// 32 files of 2 GB: 64 GB.
    pub fn files_2_gb() -> Self {
        Self { count: 32, size_bytes: 2000 * MB, per_directory: 32 }
    }

    /// A million files of 1000 bytes.
    pub fn tiny() -> Self {
        Self { count: 1_000_000, size_bytes: 1000, per_directory: 1000 }
    }

    /// The shape with `scale` times the bytes: fewer files first, and smaller files once few are left.
    ///
    /// A data set of large files keeps at least eight of them, so that it stays one of many files.
    #[must_use]
    pub fn scaled(self, scale: f64) -> Self {
        let wanted = self.count as f64 * scale;
        let count = (wanted.round() as u64).max(self.count.min(8));
        let shrink = (wanted / count as f64).min(1.0);
        let size_bytes = ((self.size_bytes as f64 * shrink).round() as u64).max(1);
        Self { count, size_bytes, per_directory: self.per_directory }
    }

    /// All bytes of all files.
    pub fn total_bytes(self) -> u64 {
        self.count * self.size_bytes
    }
}

impl FromStr for Shape {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "files-16mb" => Self::files_16_mb(),
            "files-50gb" => Self::files_50_gb(),
            "files-93mb" => Self::files_93_mb(),
            "files-2gb" => Self::files_2_gb(),
            "tiny" => Self::tiny(),
            _ => bail!("unknown shape {name:?}; known are {}", Self::NAMES.join(", ")),
        })
    }
}

/// Fills a directory with a scaled shape and returns what was made; no block is all zero.
pub fn generate(root: &Path, shape: Shape, scale: f64, seed: u64) -> Result<Shape> {
    let shape = shape.scaled(scale);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut buffer = vec![0; BUFFER];
    rng.fill_bytes(&mut buffer);
    buffer.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = 0xA5);
    for number in 0..shape.count {
        let directory = root.join(format!("d{:05}", number / shape.per_directory));
        if number % shape.per_directory == 0 {
            std::fs::create_dir_all(&directory).with_context(|| format!("create {directory:?}"))?;
        }
        let path = directory.join(format!("f{number:08}"));
        write_file(&path, number, shape.size_bytes, &mut buffer)
            .with_context(|| format!("write {path:?}"))?;
    }
    Ok(shape)
}

/// Writes one file from the buffer, each block stamped with the file's number and its own offset.
fn write_file(path: &Path, number: u64, size_bytes: u64, buffer: &mut [u8]) -> Result<()> {
    let file = File::create_new(path)?;
    let mut offset = 0;
    while offset < size_bytes {
        let length = (size_bytes - offset).min(buffer.len() as u64) as usize;
        for (index, block) in buffer[..length].chunks_mut(BLOCK).enumerate() {
            let mut stamp = [0; 16];
            stamp[..8].copy_from_slice(&(!number).to_be_bytes());
            stamp[8..].copy_from_slice(&(!(offset + (index * BLOCK) as u64)).to_be_bytes());
            let stamped = stamp.len().min(block.len());
            block[..stamped].copy_from_slice(&stamp[..stamped]);
        }
        file.write_all_at(&buffer[..length], offset)?;
        offset += length as u64;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests stop")]
mod tests {
    use super::*;

    #[test]
    fn scaling_keeps_the_bytes_and_a_handful_of_files() {
        let scaled = Shape::files_16_mb().scaled(0.001);
        assert_eq!(scaled, Shape { count: 100, size_bytes: 16 * MB, per_directory: 1000 });
        let scaled = Shape::files_50_gb().scaled(0.0001);
        assert_eq!(scaled.count, 8);
        assert_eq!(scaled.total_bytes(), 500 * MB);
        assert_eq!(Shape::files_2_gb().scaled(1.0), Shape::files_2_gb());
    }

    #[test]
    fn no_two_blocks_are_the_same_and_none_is_zero() {
        let root = tempfile::tempdir().unwrap();
        let shape = Shape { count: 3, size_bytes: 2_500_000, per_directory: 2 };
        generate(root.path(), shape, 1.0, 1).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for path in ["d00000/f00000000", "d00000/f00000001", "d00001/f00000002"] {
            let bytes = std::fs::read(root.path().join(path)).unwrap();
            assert_eq!(bytes.len(), 2_500_000);
            for block in bytes.chunks(BLOCK) {
                assert!(block.iter().any(|byte| *byte != 0));
                assert!(seen.insert(block.to_vec()), "the same block twice in {path}");
            }
        }
    }
}
