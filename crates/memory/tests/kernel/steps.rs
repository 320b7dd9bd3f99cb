//! Random calls.
use dmover_memory::{Device, Renaming};
use rand::Rng as _;
use rand_chacha::ChaCha8Rng;

/// A directory by its path from the base, empty for the base, and a name in it.
#[derive(Clone)]
pub struct At(pub Vec<u8>, pub Vec<u8>);

impl std::fmt::Debug for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = [self.0.as_slice(), b"/", &self.1].concat().escape_ascii().to_string();
        // Names of the greatest length and above differ at their ends.
        write!(f, "{}", text.replace(&"n".repeat(250), "n..."))
    }
}

/// One call, on both sides.
#[derive(Debug, Clone)]
pub enum Step {
    /// Owner and mode of the base.
    Base {
        uid: u32,
        gid: u32,
        mode: u32,
    },
    Open {
        slot: usize,
        at: At,
        how: How,
    },
    Unnamed {
        slot: usize,
        directory: At,
    },
    Close {
        slot: usize,
    },
    CloseAll,
    Read {
        slot: usize,
        offset: u64,
        length: usize,
    },
    Write {
        slot: usize,
        offset: u64,
        length: usize,
        byte: u8,
    },
    Truncate {
        slot: usize,
        size: u64,
    },
    Allocate {
        slot: usize,
        offset: u64,
        length: u64,
        keeps_size: bool,
    },
    Punch {
        slot: usize,
        offset: u64,
        length: u64,
    },
    Data {
        slot: usize,
        offset: u64,
    },
    Hole {
        slot: usize,
        offset: u64,
    },
    StatOpen {
        slot: usize,
    },
    LinkOpen {
        slot: usize,
        to: At,
    },
    Stat {
        at: At,
    },
    List {
        at: At,
    },
    ReadLink {
        at: At,
    },
    MakeDirectory {
        at: At,
        mode: u32,
    },
    Symlink {
        target: Vec<u8>,
        at: At,
    },
    MakeNode {
        at: At,
        device: Device,
        mode: u32,
    },
    Link {
        from: At,
        to: At,
    },
    Rename {
        from: At,
        to: At,
        how: Renaming,
    },
    Unlink {
        at: At,
    },
    RemoveDirectory {
        at: At,
    },
    SetMode {
        at: At,
        mode: u32,
    },
    SetOwner {
        at: At,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    SetTimes {
        at: At,
        atime: Time,
        mtime: Time,
    },
    SetXattr {
        at: At,
        name: &'static str,
        value: Vec<u8>,
        mode: u32,
    },
    GetXattr {
        at: At,
        name: &'static str,
    },
    ListXattrs {
        at: At,
    },
    RemoveXattr {
        at: At,
        name: &'static str,
    },
    /// `fsync`; not on both sides.
    Sync {
        slot: usize,
    },
    /// `syncfs`; not on both sides.
    SyncAll,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    Omit,
    Now,
    To(i64, u32),
}

/// Flags of an open.
#[derive(Debug, Clone, Copy)]
pub struct How {
    pub reads: bool,
    pub writes: bool,
    pub appends: bool,
    pub creates: Option<u32>,
    pub is_exclusive: bool,
    pub truncates: bool,
    pub is_directory: bool,
    pub keeps_atime: bool,
}

pub const SLOTS: usize = 3;
pub const XATTRS: [&str; 6] = ["user.a", "user.b", "trusted.a", "security.a", "user.", "unknown.a"];
const MODES: [u32; 14] = [
    0o777, 0o755, 0o700, 0o644, 0o600, 0o000, 0o1777, 0o2775, 0o2755, 0o4755, 0o6711, 0o2644,
    0o4644, 0o444,
];
const IDS: [u32; 4] = [0, 1000, 1001, 2000];

fn pick<T: Clone>(random: &mut ChaCha8Rng, of: &[T]) -> T {
    of[random.random_range(0..of.len())].clone()
}

fn name(random: &mut ChaCha8Rng) -> Vec<u8> {
    match random.random_range(0..60) {
        0 => vec![b'n'; 255],
        1 => vec![b'n'; 256],
        2 => b"\xff\n ".to_vec(),
        _ => pick(random, &[b"a", b"b", b"c", b"d"]).to_vec(),
    }
}

fn at(random: &mut ChaCha8Rng) -> At {
    let directory: Vec<Vec<u8>> =
        (0..pick(random, &[0, 0, 1, 1, 2])).map(|_| name(random)).collect();
    At(directory.join(&b'/'), name(random))
}

fn offset(random: &mut ChaCha8Rng) -> u64 {
    match random.random_range(0..4) {
        0 => random.random_range(0..9) * 4096,
        1 => {
            (random.random_range(0u64..9) * 4096).saturating_add_signed(random.random_range(-2..3))
        }
        _ => random.random_range(0..40_000),
    }
}

fn mode(random: &mut ChaCha8Rng) -> u32 {
    pick(random, &MODES)
}

fn id(random: &mut ChaCha8Rng) -> Option<u32> {
    random.random_bool(0.7).then(|| pick(random, &IDS))
}

fn how(random: &mut ChaCha8Rng) -> How {
    let writes = random.random_bool(0.6);
    How {
        reads: !writes || random.random_bool(0.5),
        writes,
        appends: writes && random.random_bool(0.15),
        creates: random.random_bool(0.5).then(|| mode(random)),
        is_exclusive: random.random_bool(0.5),
        truncates: writes && random.random_bool(0.2),
        is_directory: false,
        keeps_atime: random.random_bool(0.2),
    }
}

fn time(random: &mut ChaCha8Rng) -> Time {
    match random.random_range(0..4) {
        0 => Time::Omit,
        1 => Time::Now,
        _ => Time::To(
            random.random_range(-1000..2_000_000_000),
            random.random_range(0..1_000_000_000),
        ),
    }
}

/// Any call, more often one that makes something.
pub fn random_step(random: &mut ChaCha8Rng) -> Step {
    match random.random_range(0..100) {
        0..10 => Step::Open { slot: slot(random), at: at(random), how: how(random) },
        10..24 => Step::MakeDirectory { at: at(random), mode: mode(random) },
        24..28 => {
            let targets: [&[u8]; 7] = [b"a", b"b", b"a/b", b"c/d", b"./e", b"missing", b"a/"];
            Step::Symlink { target: pick(random, &targets).to_vec(), at: at(random) }
        }
        28..32 => {
            let devices = [Device::Fifo, Device::Socket, Device::Char(1, 3), Device::Block(7, 9)];
            Step::MakeNode { at: at(random), device: pick(random, &devices), mode: mode(random) }
        }
        32..37 => Step::Link { from: at(random), to: at(random) },
        37..50 => {
            let all = [Renaming::Replace, Renaming::Replace, Renaming::New, Renaming::Exchange];
            Step::Rename { from: at(random), to: at(random), how: pick(random, &all) }
        }
        50..53 => Step::Unlink { at: at(random) },
        53..55 => Step::RemoveDirectory { at: at(random) },
        55..61 => Step::SetMode { at: at(random), mode: mode(random) },
        61..65 => Step::SetOwner { at: at(random), uid: id(random), gid: id(random) },
        65..68 => Step::SetTimes { at: at(random), atime: time(random), mtime: time(random) },
        68..74 => random_xattr(random),
        74..76 => Step::Stat { at: at(random) },
        76..77 => Step::List { at: at(random) },
        77..78 => Step::ReadLink { at: at(random) },
        _ => random_content(random),
    }
}

fn slot(random: &mut ChaCha8Rng) -> usize {
    random.random_range(0..SLOTS)
}

fn random_xattr(random: &mut ChaCha8Rng) -> Step {
    let (at, name) = (at(random), pick(random, &XATTRS));
    match random.random_range(0..6) {
        0..3 => {
            let value = vec![random.random(); random.random_range(0..50)];
            Step::SetXattr { at, name, value, mode: random.random_range(0..3) }
        }
        3 => Step::GetXattr { at, name },
        4 => Step::ListXattrs { at },
        _ => Step::RemoveXattr { at, name },
    }
}

fn random_content(random: &mut ChaCha8Rng) -> Step {
    let (slot, offset) = (slot(random), offset(random));
    let length = random.random_range(0..12_000);
    match random.random_range(0..22) {
        0..6 => {
            let byte = random.random_range(1..=255);
            Step::Write { slot, offset, length: length as usize, byte }
        }
        6..9 => Step::Read { slot, offset, length: length as usize },
        9..11 => Step::Truncate { slot, size: offset },
        11 => Step::Allocate { slot, offset, length, keeps_size: random.random_bool(0.5) },
        12..14 => Step::Punch { slot, offset, length },
        14 => Step::Data { slot, offset },
        15 => Step::Hole { slot, offset },
        16..18 => Step::StatOpen { slot },
        18 => Step::LinkOpen { slot, to: at(random) },
        19 => Step::Unnamed { slot, directory: at(random) },
        _ => Step::Close { slot },
    }
}
