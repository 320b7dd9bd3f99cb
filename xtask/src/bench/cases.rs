//! What is measured, and the bars.
use anyhow::{Context, Result};
use std::fmt::Write as _;

/// A file system that a case runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Ext4,
    Xfs,
    Btrfs,
    /// The source lies on a FUSE file system on which every request takes a millisecond.
    SlowSource,
    /// The destination does.
    SlowDestination,
    /// Both do.
    SlowBoth,
}

impl Place {
    const ALL: [Self; 6] = [
        Self::Ext4,
        Self::Xfs,
        Self::Btrfs,
        Self::SlowSource,
        Self::SlowDestination,
        Self::SlowBoth,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::SlowSource => "slow-source",
            Self::SlowDestination => "slow-destination",
            Self::SlowBoth => "slow-both",
        }
    }

    pub fn parse(name: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|place| place.name() == name);
        let names = Self::ALL.map(Self::name).join(", ");
        known.with_context(|| format!("unknown place '{name}': {names}"))
    }

    /// Whether requests take time on one side or both.
    pub fn is_slow(self) -> bool {
        matches!(self, Self::SlowSource | Self::SlowDestination | Self::SlowBoth)
    }
}

/// Files of one size, so many in each directory.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub files: u64,
    pub bytes: u64,
    pub per_directory: u64,
}

/// What a bar compares with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Against {
    /// A program by its name.
    Program(&'static str),
    /// The fastest of those that keep what cp -a keeps, cp included.
    BestFaithful,
}

/// What a bar compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    Wall,
    Processor,
}

/// The largest ratio that is allowed.
#[derive(Debug, Clone, Copy)]
pub struct Bar {
    pub against: Against,
    pub metric: Metric,
    pub most: f64,
}

/// One piece of work.
#[derive(Debug)]
pub struct Case {
    pub name: &'static str,
    pub about: &'static str,
    pub places: &'static [Place],
    pub loads: &'static [Load],
    /// Blocks may be shared; else everybody is told not to.
    pub reflink: bool,
    pub bars: &'static [Bar],
    /// The program also runs with so many movers, under the name `dmover -j N`, within so many seconds.
    pub fixed: Option<(usize, f64)>,
}

const IMAGES: &[Place] = &[Place::Ext4, Place::Xfs];
const MIB: u64 = 1 << 20;

const fn wall(program: &'static str, most: f64) -> Bar {
    Bar { against: Against::Program(program), metric: Metric::Wall, most }
}

const fn best(most: f64) -> Bar {
    Bar { against: Against::BestFaithful, metric: Metric::Wall, most }
}

const fn load(files: u64, bytes: u64, per_directory: u64) -> Load {
    Load { files, bytes, per_directory }
}

const ONE_LARGE: &[Bar] = &[wall("cp", 0.80)];
const LARGE: &[Bar] = &[wall("cp", 0.62)];

/// A case of few shapes on images, without blocks shared.
const fn plain(
    name: &'static str,
    about: &'static str,
    loads: &'static [Load],
    bars: &'static [Bar],
) -> Case {
    Case { name, about, places: IMAGES, loads, reflink: false, bars, fixed: None }
}

/// Every case, in the order of the table.
pub const CASES: &[Case] = &[
    Case {
        name: "small",
        about: "100,000 × 4 KiB in 1,000 directories",
        places: IMAGES,
        loads: &[load(100_000, 4096, 100)],
        reflink: false,
        bars: &[
            wall("cp", 0.55),
            wall("reference", 1.15),
            best(0.75),
            Bar { against: Against::Program("cp"), metric: Metric::Processor, most: 1.25 },
        ],
        fixed: None,
    },
    Case {
        name: "one-directory",
        about: "100,000 × 4 KiB in one directory",
        places: IMAGES,
        loads: &[load(100_000, 4096, 100_000)],
        reflink: false,
        bars: &[wall("cp", 1.0)],
        fixed: None,
    },
    plain("one-large", "1 × 4 GiB", &[load(1, 4096 * MIB, 1)], ONE_LARGE),
    plain("large", "16 × 256 MiB", &[load(16, 256 * MIB, 16)], LARGE),
    Case {
        name: "reflink",
        about: "10,000 × 64 KiB in 100 directories, blocks shared",
        places: &[Place::Btrfs, Place::Xfs],
        loads: &[load(10_000, 64 << 10, 100)],
        reflink: true,
        bars: &[wall("cp", 0.7)],
        fixed: None,
    },
    Case {
        name: "latency",
        about: "20,000 × 4 KiB in 200 directories, 1 ms a request",
        places: &[Place::SlowSource, Place::SlowDestination, Place::SlowBoth],
        loads: &[load(20_000, 4096, 100)],
        reflink: false,
        bars: &[wall("cp", 0.05)],
        fixed: Some((32, 4.0)),
    },
    Case {
        name: "mixed",
        about: "378 × 9.3 MB beside 50,000 × 4 KiB in 500 directories",
        places: IMAGES,
        loads: &[load(378, 9_300_000, 378), load(50_000, 4096, 100)],
        reflink: false,
        bars: &[best(0.7)],
        fixed: None,
    },
    plain("files-16mb", "100 × 16 MB (of 100,000)", &[load(100, 16_000_000, 1000)], &[]),
    plain("files-2gb", "2 × 2 GB (of 32)", &[load(2, 2_000_000_000, 2)], &[]),
    plain("tiny", "200,000 × 1000 B in 200 directories", &[load(200_000, 1000, 1000)], &[]),
];

/// The cases for `--list`.
pub fn list() -> String {
    let mut text = String::new();
    for case in CASES {
        let places: Vec<&str> = case.places.iter().map(|place| place.name()).collect();
        // Writing into a string cannot fail.
        let _ = writeln!(text, "{:<14} {} ({})", case.name, case.about, places.join(", "));
        for bar in case.bars {
            let _ = writeln!(text, "               {}", bar.words());
        }
        if let Some((movers, seconds)) = case.fixed {
            let _ = writeln!(text, "               at most {seconds} s with -j {movers}");
        }
    }
    text
}

impl Bar {
    pub fn words(&self) -> String {
        let against = match self.against {
            Against::Program(name) => name,
            Against::BestFaithful => "the best faithful peer",
        };
        let metric = if self.metric == Metric::Wall { "wall" } else { "processor time" };
        format!("{metric} at most {} × {against}", self.most)
    }
}
