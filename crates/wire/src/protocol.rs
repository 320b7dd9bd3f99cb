//! Protocol numbers: which programs understand each other.

/// The protocol of this program. A changed message needs another number, unless only programs of this number send it.
pub const PROTOCOL: u32 = 9;

/// The oldest protocol that this program speaks: one version back.
pub const OLDEST: u32 = 8;

/// The protocols that a program speaks: all numbers from `oldest` to `newest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocols {
    /// The lowest number.
    pub oldest: u32,
    /// The highest number.
    pub newest: u32,
}

impl Protocols {
    /// Those of this program.
    pub const OWN: Self = Self { oldest: OLDEST, newest: PROTOCOL };

    /// The protocol between this side and another one: the lower of the two highest numbers. `None`: one of the two does
    /// not speak it.
    pub fn common(self, other: Self) -> Option<u32> {
        let number = self.newest.min(other.newest);
        (number >= self.oldest && number >= other.oldest).then_some(number)
    }

    /// Whether a number is one of these.
    pub fn include(self, number: u32) -> bool {
        (self.oldest..=self.newest).contains(&number)
    }
}
