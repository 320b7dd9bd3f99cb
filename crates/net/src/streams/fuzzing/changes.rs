//! Changes of bytes on the way.

/// Changes, of four bytes each: what is changed, where (two bytes), and how.
#[derive(Debug, Clone, Copy)]
pub(super) struct Changes<'a>(pub &'a [u8]);

impl Changes<'_> {
    /// Applies those changes whose place is among these bytes, which begin at `begin` of all.
    pub fn apply(self, begin: usize, bytes: &[u8]) -> Vec<u8> {
        let mut changed = bytes.to_vec();
        for change in self.0.as_chunks::<4>().0 {
            let [what, low, high, how] = *change;
            let place = usize::from(u16::from_le_bytes([low, high]));
            let Some(place) = place.checked_sub(begin).filter(|place| *place < bytes.len()) else {
                continue;
            };
            let begin = place.min(changed.len());
            let end = (begin + usize::from(how)).min(changed.len());
            match what % 6 {
                0 => changed[begin..].iter_mut().take(1).for_each(|byte| *byte ^= how),
                1 => drop(changed.drain(begin..end)),
                2 => {
                    let again = changed[begin..end].to_vec();
                    drop(changed.splice(begin..begin, again));
                }
                3 => drop(changed.splice(begin..begin, [how])),
                4 => changed[begin..end].reverse(),
                _ => changed.truncate(begin),
            }
        }
        changed
    }
}
