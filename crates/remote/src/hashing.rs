//! What both sides check before they hash.
use dmover_model::{ByteRange, Shape};
use dmover_wire::agent::PIECES_MAX;

/// Whether pieces of these shapes can be made of a range: it begins where pieces begin, and has not too many.
pub(crate) fn fits(shapes: &[Shape], start: u64, range: ByteRange) -> bool {
    let ends = range.end.checked_add(start).is_some() && range.start <= range.end;
    let whole =
        |shape: &Shape| range.start.is_multiple_of(shape.piece()) && range.end <= shape.length();
    let pieces = |shape: &Shape| range.len().div_ceil(shape.piece());
    let count = shapes.iter().fold(0u64, |sum, shape| sum.saturating_add(pieces(shape)));
    // Content that is read again for each pair of shapes is read a few times at most.
    ends && shapes.len() <= 8 && shapes.iter().all(whole) && count <= PIECES_MAX
}
