//! Cyclic redundancy checks, and how those of two parts make that of the whole.
//!
//! Digests are the register's value, most significant byte first, as libgcrypt and cksfv print it.
use dmover_model::{Digest, HashType};

use crate::value::digest_of;

static OPENPGP: crc::Crc<u32, crc::Table<16>> =
    crc::Crc::<u32, crc::Table<16>>::new(&crc::CRC_24_OPENPGP);

/// What tells the checks apart (the catalogue of parametrised CRC algorithms has them all).
#[derive(Clone, Copy)]
struct Parameters {
    /// The polynomial without its highest power; reflected if the check is.
    polynomial: u32,
    reflected: bool,
    /// What the register holds at first.
    initial: u32,
    /// What the register is xored with at last.
    last: u32,
}

fn parameters(hash: HashType) -> Parameters {
    let all = u32::MAX;
    let (polynomial, reflected, initial, last) = match hash {
        HashType::Crc24Rfc2440 => (0x0086_4cfb, false, 0x00b7_04ce, 0),
        HashType::Crc32c => (0x82f6_3b78, true, all, all),
        HashType::Crc32Rfc1510 => (0xedb8_8320, true, 0, 0),
        _ => (0xedb8_8320, true, all, all),
    };
    Parameters { polynomial, reflected, initial, last }
}

impl Parameters {
    /// The register after a byte of zeroes.
    fn zero_byte(self, mut register: u32) -> u32 {
        for _ in 0..8 {
            let (shifted, out) = if self.reflected {
                (register >> 1, register & 1)
            } else {
                (register << 1, register >> 23 & 1)
            };
            register = if out == 1 { shifted ^ self.polynomial } else { shifted };
        }
        if self.reflected { register } else { register & 0x00ff_ffff }
    }
}

/// A check over bytes as they come.
pub(crate) enum Register {
    Crc32(crc32fast::Hasher),
    Rfc1510(crc32fast::Hasher),
    Castagnoli(u32),
    OpenPgp(crc::Digest<'static, u32, crc::Table<16>>),
}

impl Register {
    pub fn new(hash: HashType) -> Self {
        match hash {
            HashType::Crc24Rfc2440 => Self::OpenPgp(OPENPGP.digest()),
            HashType::Crc32c => Self::Castagnoli(0),
            // The library inverts at both ends; inverting there once more takes both away.
            HashType::Crc32Rfc1510 => Self::Rfc1510(crc32fast::Hasher::new_with_initial(u32::MAX)),
            _ => Self::Crc32(crc32fast::Hasher::new()),
        }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc32(state) | Self::Rfc1510(state) => state.update(bytes),
            Self::Castagnoli(state) => *state = crc32c::crc32c_append(*state, bytes),
            Self::OpenPgp(state) => state.update(bytes),
        }
    }

    pub fn finish(self) -> Digest {
        match self {
            Self::Crc32(state) => digest_of(&state.finalize().to_be_bytes()),
            Self::Rfc1510(state) => digest_of(&(!state.finalize()).to_be_bytes()),
            Self::Castagnoli(state) => digest_of(&state.to_be_bytes()),
            Self::OpenPgp(state) => digest_of(&state.finalize().to_be_bytes()[1..]),
        }
    }
}

/// A linear map of registers, by the images of the single bits.
type Map = [u32; 32];

fn apply(map: &Map, register: u32) -> u32 {
    let mut image = 0;
    let mut rest = register;
    while rest != 0 {
        image ^= map[rest.trailing_zeros() as usize];
        rest &= rest - 1;
    }
    image
}

/// The check of `first` followed by `second_length` bytes whose check is `second`.
///
/// Bytes of zeroes change a register linearly, so many of them are a power of a matrix, which repeated
/// squaring finds. The initial value, which is in both checks, is taken out of one.
pub(crate) fn combine(
    hash: HashType,
    first: &Digest,
    second: &Digest,
    second_length: u64,
) -> Digest {
    let parameters = parameters(hash);
    let value = |d: &Digest| d.as_bytes().iter().fold(0, |v, byte| v << 8 | u32::from(*byte));
    let mut map: Map = std::array::from_fn(|bit| parameters.zero_byte(1 << bit));
    let mut register = value(first) ^ parameters.last ^ parameters.initial;
    let mut length = second_length;
    while length > 0 {
        if length & 1 == 1 {
            register = apply(&map, register);
        }
        map = std::array::from_fn(|bit| apply(&map, map[bit]));
        length >>= 1;
    }
    let bytes = (register ^ value(second)).to_be_bytes();
    digest_of(&bytes[4 - hash.digest_bytes()..])
}
