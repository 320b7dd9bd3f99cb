//! Files by their bytes: sizes at the edges of blocks, and holes.

use anyhow::Result;
use rustix::fs::FallocateFlags;

use super::builder::{Builder, Place};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Sizes around the block sizes that programs and disks use.
pub fn sizes(builder: &mut Builder, place: &Place) -> Result<()> {
    builder.file(place, "0", 0)?;
    builder.case("size-0", place.join("0"));
    for edge in [2, 512, 4 * KIB, 64 * KIB, 128 * KIB, MIB] {
        for size in [edge - 1, edge, edge + 1] {
            let name = size.to_string();
            if size == 1 || edge > 2 {
                builder.file(place, &name, size)?;
                builder.case(&format!("size-{size}"), place.join(&name));
            }
        }
    }
    let empty = builder.directory(place, "empty-directory")?;
    builder.case("empty-directory", empty.path);
    Ok(())
}

/// Data of sparse files as offset and length; the last number is the size.
type Extents<'a> = (&'a str, &'a [(u64, u64)], u64);

/// Holes in every position, allocated zeros, and space that is reserved but never written.
pub fn sparse(builder: &mut Builder, place: &Place) -> Result<()> {
    let comb: Vec<(u64, u64)> = (0..32).map(|tooth| (tooth * 128 * KIB, 4 * KIB)).collect();
    let files: [Extents<'_>; 8] = [
        ("sparse-leading", &[(MIB, 64 * KIB)], MIB + 64 * KIB),
        ("sparse-trailing", &[(0, 64 * KIB)], 2 * MIB),
        ("sparse-middle", &[(0, 64 * KIB), (2 * MIB, 64 * KIB)], 2 * MIB + 64 * KIB),
        ("sparse-whole", &[], 3 * MIB),
        ("sparse-whole-odd", &[], 3 * MIB + 17),
        ("sparse-comb", &comb, 32 * 128 * KIB),
        (
            "sparse-odd",
            &[(1, 1), (64 * KIB + 1, 3), (MIB - 1, 2), (2 * MIB + 5, 4091)],
            2 * MIB + 9000,
        ),
        ("sparse-1-byte-end", &[(7 * MIB, 1)], 7 * MIB + 1),
    ];
    for file in files {
        scattered(builder, place, file)?;
    }
    if !builder.features.holes {
        builder.skip("holes", "SEEK_HOLE reports none; sparse files may occupy their full size");
    }
    zeros(builder, place)
}

/// A sparse file of more than 4 GiB, in a group of its own for tests that read every byte.
pub fn huge(builder: &mut Builder, place: &Place) -> Result<()> {
    if !builder.features.holes {
        builder.skip("sparse-over-4g", "without SEEK_HOLE every reader would read it in full");
        return Ok(());
    }
    let extents = [(0, 10), (4 * GIB - 1, 3), (5 * GIB, 4 * KIB)];
    scattered(builder, place, ("sparse-over-4g", &extents, 5 * GIB + 100_003))
}

fn scattered(builder: &mut Builder, place: &Place, file: Extents<'_>) -> Result<()> {
    let (case, extents, size) = file;
    builder.file_with(place, case, |builder, opened| {
        // Before the data: XFS allocates ahead of every write that makes a file longer.
        rustix::fs::ftruncate(opened, size)?;
        extents.iter().try_for_each(|(offset, length)| builder.fill(opened, *offset, *length))
    })?;
    builder.case(case, place.join(case));
    Ok(())
}

fn zeros(builder: &mut Builder, place: &Place) -> Result<()> {
    builder.file_with(place, "zeros-written", |_, file| {
        rustix::io::pwrite(file, &vec![0; 256 * KIB as usize], 0)?;
        Ok(())
    })?;
    builder.case("zeros-written", place.join("zeros-written"));
    let made = builder.file_with(place, "reserved-inside", |builder, file| {
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, MIB)?;
        builder.fill(file, 500_000, 10)
    });
    builder.optional("reserved-inside", place.join("reserved-inside"), made)?;
    let made = builder.file_with(place, "reserved-beyond-end", |builder, file| {
        builder.fill(file, 0, 10_000)?;
        Ok(rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, MIB)?)
    });
    builder.optional("reserved-beyond-end", place.join("reserved-beyond-end"), made)
}
