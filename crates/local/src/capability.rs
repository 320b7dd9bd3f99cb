//! Features of file systems: facts learnt during the job, and a probe for `dmover doctor` and for early refusals.
use dmover_model::{Attribute, AttributeSet, Metadata, MountId, Timestamp};
use dmover_observe::lock;
use dmover_schedule::sync::{Mutex, OnceLock};
use dmover_sys::copy::KernelAnswer;
use dmover_sys::xattr::Held;
use dmover_sys::{
    AsFd, BorrowedFd, Errno, OwnedFd, copy, directory, file, flags, set, stat, xattr,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::root_side::RootSide;

/// Facts about one mounted file system, learnt from failed calls.
#[derive(Debug, Default)]
pub struct Facts {
    /// An object had no inode flags, so missing flags do not count there.
    pub no_flags: AtomicBool,
    /// A direct read or write was refused.
    pub no_direct: AtomicBool,
    /// The mount with which it last refused to share blocks.
    pub no_clone_from: RefusedMount,
    /// It updates access times although dmover asked it not to, and this was reported.
    pub touches_atime: AtomicBool,
    /// The mount from which copy_file_range(2) last refused to copy.
    pub no_kernel_copy_from: RefusedMount,
    /// The time resolution in nanoseconds, 0 while unknown.
    granularity_ns: AtomicU32,
    /// The finest resolution that change times have shown.
    finest_step_ns: Finest,
    /// A file system without storage, such as proc, where sizes have no meaning.
    pub pseudo: bool,
    /// It shows the files of other file systems.
    pub layered: bool,
    /// It ignores case in names.
    pub case_insensitive: bool,
    /// It is a file server: it may give new entries another owner than the process (root squash), and may not keep what
    /// it accepts.
    pub remote: bool,
    /// Copies inside the kernel would read through the page cache, which fills short answers of a server with zeroes:
    /// fuse_splice_read() does so even for files opened for direct I/O, where short answers are allowed.
    pub fills_with_zeroes: bool,
    /// It is a kernel file system with known behaviour: a new entry has the documented owner and mode, and close(2)
    /// reports no late errors.
    pub local: bool,
    /// The most by which the clock that sets its times may differ from the clock of this host, if that was measured.
    pub clock_skew: Option<Duration>,
    /// It does not report holes of files.
    pub tells_no_gaps: AtomicBool,
    /// Space reserved for a file is used in place by later writes.
    pub writes_in_place: bool,
    /// It writes pages back later, so that a write through a mapping (mmap(2)) may change the modification time once
    /// more.
    pub writes_back: bool,
    /// It keeps owners that are set.
    pub keeps_owners: OnceLock<bool>,
    /// The owner that such a server gave to the first entry created here.
    squashed_owner: OnceLock<u32>,
}

#[derive(Debug)]
struct Finest(AtomicU32);

impl Default for Finest {
    fn default() -> Self {
        Self(AtomicU32::new(u32::MAX))
    }
}

/// The time resolution of a file system as far as an entry shows it: the kernel takes change times from a clock that is
/// finer than the resolution of most file systems.
fn step_of(found: &Metadata) -> u32 {
    const STEPS: [u32; 6] = [2_000_000_000, 1_000_000_000, 1_000_000, 1_000, 100, 1];
    let nanoseconds = found.ctime.nanoseconds;
    let fits = |step: &&u32| {
        if **step == 2_000_000_000 {
            // Those of FAT are even in the time of the last write only.
            return nanoseconds == 0
                && found.mtime.nanoseconds == 0
                && found.mtime.seconds % 2 == 0;
        }
        nanoseconds.is_multiple_of(**step)
    };
    STEPS.iter().find(fits).copied().unwrap_or(1)
}

/// The mount for which an operation was last refused: its id plus one, 0 for none.
#[derive(Debug, Default)]
pub struct RefusedMount(AtomicU32);

impl RefusedMount {
    /// Whether it was this mount.
    pub fn is(&self, mount: MountId) -> bool {
        self.0.load(Ordering::Relaxed) == mount.0 + 1
    }

    /// Records a refusal for this mount.
    pub fn set(&self, mount: MountId) {
        self.0.store(mount.0 + 1, Ordering::Relaxed);
    }
}

impl Facts {
    /// Of a file system of another host, of which only this is known.
    pub(crate) fn of_other_host(clock_skew: Option<Duration>) -> Self {
        Self { clock_skew, ..Self::default() }
    }

    /// Whether a fact was learnt.
    pub fn is(&self, fact: &AtomicBool) -> bool {
        fact.load(Ordering::Relaxed)
    }

    /// Whether a new entry with this owner can be one that this process has just created.
    pub fn is_own(&self, owner: u32, process: u32) -> bool {
        owner == process || (self.remote && *self.squashed_owner.get_or_init(|| owner) == owner)
    }

    /// The known time resolution, 1 while unknown.
    pub fn granularity_ns(&self) -> u32 {
        self.granularity_ns.load(Ordering::Relaxed).max(1)
    }

    /// Whether the time resolution is known.
    pub(crate) fn granularity_is_known(&self) -> bool {
        self.granularity_ns.load(Ordering::Relaxed) != 0
    }

    /// The time resolution as known, or as its entries show it.
    pub fn shown_step_ns(&self, found: &Metadata) -> u32 {
        const SECOND: u32 = 1_000_000_000;
        let shown = step_of(found);
        let step = if !self.local {
            shown.min(self.finest_step_ns.0.fetch_min(shown, Ordering::Relaxed))
        } else if shown < SECOND {
            // Every hundredth time of change is a multiple of 100 ns by chance.
            1
        } else {
            SECOND // ext4 with small inodes
        };
        step.max(self.granularity_ns())
    }

    /// Learns the resolution from a time that was set and the time that was stored. Returns whether the resolution
    /// alone explains the result.
    pub fn learn_granularity(&self, wanted: Timestamp, got: Timestamp) -> bool {
        const STEPS: [u32; 7] =
            [1, 100, 1_000, 1_000_000, 10_000_000, 1_000_000_000, 2_000_000_000];
        let mut matching = STEPS.into_iter().filter(|step| wanted.truncated(*step) == got);
        match (matching.next(), matching.next()) {
            // A time that several resolutions would store unchanged does not show which one it is.
            (Some(step), None) => self.granularity_ns.store(step, Ordering::Relaxed),
            (None, _) => return false,
            _ => {}
        }
        true
    }
}

/// Whether an open file is on a file system without storage, such as proc, where the size does not tell how much can be
/// read.
pub fn is_without_storage(file: impl AsFd) -> bool {
    let found = stat::file_system(file);
    found.is_ok_and(|found| stat::is_pseudo(stat::file_system_name(found.magic)))
}

/// The facts of every mount that the job has used.
#[derive(Debug, Default)]
pub struct CapabilityCache(Mutex<HashMap<MountId, Arc<Facts>>>);

impl CapabilityCache {
    /// The facts of the mount of `object`.
    pub fn facts(&self, mount: MountId, object: impl AsFd) -> Arc<Facts> {
        let mut known = lock(&self.0);
        let facts = known.entry(mount).or_insert_with(|| {
            let magic = stat::file_system(object).map_or(0, |fs| fs.magic);
            let name = stat::file_system_name(magic);
            Arc::new(Facts {
                pseudo: stat::is_pseudo(name),
                layered: name == Some("overlay"),
                case_insensitive: matches!(name, Some("vfat" | "exfat" | "ntfs" | "cifs")),
                remote: matches!(name, Some("nfs" | "fuse" | "cifs" | "lustre" | "gpfs")),
                local: matches!(name, Some("ext4" | "xfs" | "btrfs" | "tmpfs")),
                fills_with_zeroes: name == Some("fuse"),
                writes_in_place: matches!(name, Some("ext4" | "xfs")),
                writes_back: matches!(name, Some("ext4" | "xfs" | "btrfs")),
                ..Facts::default()
            })
        });
        Arc::clone(facts)
    }
}

/// One feature of a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// A short name, the same in text and JSON.
    pub name: &'static str,
    /// `yes`, `no`, or a value.
    pub value: String,
}

/// The results of a probe of a file system.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// The features, in the order of the documentation.
    pub findings: Vec<Finding>,
    /// Attributes that its entries can have.
    pub attributes: AttributeSet,
}

impl Capabilities {
    fn add(&mut self, name: &'static str, value: impl Into<String>) {
        self.findings.push(Finding { name, value: value.into() });
    }

    fn add_bool(&mut self, name: &'static str, value: bool) -> bool {
        self.add(name, if value { "yes" } else { "no" });
        value
    }
}

/// What is known about the file system of an object without creating an entry there.
pub fn glance(object: BorrowedFd<'_>) -> Capabilities {
    let mut found = Capabilities::default();
    if let Ok(fs) = stat::file_system(object) {
        let unknown = format!("unknown ({:#x})", fs.magic);
        let name = stat::file_system_name(fs.magic).map_or(unknown, str::to_owned);
        found.add("file_system", name);
        found.add("available_bytes", fs.available_bytes.to_string());
        found.add("free_inodes", fs.free_inodes.to_string());
        found.add("name_max", fs.name_max.to_string());
    }
    found
}

impl RootSide {
    /// Probes the file system of the root entry, or of the directory that it will be made in.
    ///
    /// # Errors
    /// The probe directory cannot be created.
    pub fn probe(&self) -> Result<Capabilities, std::io::Error> {
        // An existing destination may be a mount of its own.
        let entry = self.open_entry();
        Ok(probe(entry.as_ref().map_or_else(|| self.parent.as_fd(), AsFd::as_fd))?)
    }
}

/// Probes by creating entries in a new directory inside `parent`, and removes them again.
///
/// # Errors
/// The probe directory cannot be created.
pub fn probe(parent: BorrowedFd<'_>) -> Result<Capabilities, Errno> {
    let name = format!(".dmover-probe-{:016x}", dmover_host::random_u64());
    directory::make_directory(parent, name.as_bytes(), 0o700)?;
    let result = Probe::open(parent, name.as_bytes()).map(|probe| {
        let found = probe.run();
        for entry in [&b"file"[..], b"clone", b"link", b"symlink", b"fifo", b"socket", b"device"] {
            // Not every entry was made; what cannot be removed shows when the directory is.
            let _ = directory::unlink(&probe.directory, entry);
        }
        found
    });
    directory::remove_directory(parent, name.as_bytes())?;
    result
}

struct Probe {
    directory: OwnedFd,
    file: OwnedFd,
}

impl Probe {
    fn open(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Self, Errno> {
        let directory = dmover_sys::path::open_directory_below(parent, name)?;
        let file = file::create_new(&directory, b"file", 0o600)?;
        Ok(Self { directory, file })
    }

    fn run(&self) -> Capabilities {
        let mut found = glance(self.directory.as_fd());
        self.attributes(&mut found);
        self.times(&mut found);
        self.content(&mut found);
        self.names(&mut found);
        found
    }

    fn attributes(&self, found: &mut Capabilities) {
        let try_set = |name: &[u8], value: &[u8]| {
            let done = xattr::set(&self.file, Held::Open, name, value).is_ok();
            done && xattr::remove(&self.file, Held::Open, name).is_ok()
        };
        let user = found.add_bool("xattr_user", try_set(b"user.dmover", b"x"));
        found.add_bool("xattr_trusted", try_set(b"trusted.dmover", b"x"));
        found.add_bool("capabilities", try_set(b"security.capability", &CAPABILITY));
        let acl = found.add_bool("acl", try_set(b"system.posix_acl_access", &ACL));
        let nodump = 0x40;
        let has_flags = flags::get(&self.file)
            .ok()
            .flatten()
            .is_some_and(|old| flags::set(&self.file, old | nodump).unwrap_or(false));
        let has_flags = found.add_bool("flags", has_flags);
        let project = flags::Project { id: 4_242, inherit: false };
        let project = flags::set_project(&self.file, project).unwrap_or(false);
        let project = found.add_bool("project", project);
        let hard = directory::hard_link(&self.directory, b"file", &self.directory, b"link").is_ok();
        let hard = found.add_bool("hard_links", hard);
        let modes = set::mode(&self.file, 0o640).is_ok()
            && stat::stat_fd(&self.file).is_ok_and(|s| s.mode & 0o7777 == 0o640);
        let modes = found.add_bool("modes", modes);
        let owner = dmover_host::user::is_privileged()
            && set::owner(&self.file, Some(4_242), Some(4_242)).is_ok()
            && stat::stat_fd(&self.file).is_ok_and(|s| (s.uid, s.gid) == (4_242, 4_242));
        let owner = found.add_bool("owners", owner);
        let has = [
            (Attribute::Mode, modes),
            (Attribute::Owner, owner),
            (Attribute::Times, true),
            (Attribute::Links, hard),
            (Attribute::Xattr, user),
            (Attribute::Acl, acl),
            (Attribute::Flags, has_flags),
            (Attribute::Project, project),
        ];
        found.attributes = has.into_iter().filter(|(_, yes)| *yes).map(|(a, _)| a).collect();
    }

    fn times(&self, found: &mut Capabilities) {
        let keeps = |time: (i64, u32)| {
            set::times(&self.file, Some(time), Some(time)).is_ok()
                && stat::stat_fd(&self.file).is_ok_and(|s| s.mtime == time)
        };
        let facts = Facts::default();
        let odd = Timestamp { seconds: 1_000_000_001, nanoseconds: 123_456_789 };
        if set::times(&self.file, None, Some((odd.seconds, odd.nanoseconds))).is_ok()
            && let Ok(got) = stat::stat_fd(&self.file)
        {
            let got = Timestamp { seconds: got.mtime.0, nanoseconds: got.mtime.1 };
            facts.learn_granularity(odd, got);
        }
        found.add("time_granularity_ns", facts.granularity_ns().to_string());
        found.add_bool("times_before_1970", keeps((-1_000_000_000, 0)));
        found.add_bool("times_after_2038", keeps((4_000_000_000, 0)));
        found.add_bool("times_after_2446", keeps((20_000_000_000, 0)));
    }

    fn content(&self, found: &mut Capabilities) {
        const SIZE: u64 = 4 << 20;
        let sparse = file::set_size(&self.file, SIZE).is_ok()
            && file::write_all_at(&self.file, &[1; 4096], SIZE / 2).is_ok();
        let reports = matches!(
            file::next_data(&self.file, 0),
            Ok(file::DataRange::Data(start, _)) if start > 0
        );
        found.add_bool("holes_reported", sparse && reports);
        let blocks = stat::stat_fd(&self.file).map_or(u64::MAX, |s| s.blocks);
        found.add_bool("holes_kept", sparse && blocks.saturating_mul(512) < SIZE);
        let other = file::create_new(&self.directory, b"clone", 0o600).ok();
        let cloned = other
            .as_ref()
            .is_some_and(|o| copy::clone_file(&self.file, o) == Ok(KernelAnswer::Done(())));
        found.add_bool("reflink", cloned);
        let copied = other.as_ref().is_some_and(|o| {
            matches!(copy::copy_range(&self.file, SIZE / 2, o, 0, 4096), Ok(KernelAnswer::Done(_)))
        });
        found.add_bool("kernel_copy", copied);
        let reserves = other.as_ref().is_some_and(|o| file::reserve(o, SIZE).unwrap_or(false));
        found.add_bool("preallocation", reserves);
        let alignment = stat::direct_io_alignment(&self.file)
            .map_or("unknown".into(), |(memory, offset)| format!("{memory}/{offset}"));
        found.add("direct_io_alignment", alignment);
    }

    fn names(&self, found: &mut Capabilities) {
        let symlink = directory::make_symlink(b"x", &self.directory, b"symlink").is_ok();
        found.add_bool("symlinks", symlink);
        let node = |name: &[u8], kind, device| {
            directory::make_node(&self.directory, name, kind, 0o600, device).is_ok()
        };
        found.add_bool("fifos", node(b"fifo", directory::NodeType::Fifo, (0, 0)));
        found.add_bool("sockets", node(b"socket", directory::NodeType::Socket, (0, 0)));
        found.add_bool("devices", node(b"device", directory::NodeType::CharacterDevice, (1, 3)));
        let folds = stat::stat_at(&self.directory, b"FILE", false).is_ok();
        found.add_bool("ignores_case", folds);
        found.add_bool("confined_lookup", dmover_sys::path::kernel_confines());
    }
}

/// `cap_net_raw=ep` in the format of linux/capability.h, revision 2.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// An access ACL with one named user: version 2, then tag, permissions and id of each entry.
const ACL: [u8; 44] = [
    2, 0, 0, 0, //
    1, 0, 6, 0, 0xff, 0xff, 0xff, 0xff, // owner rw-
    2, 0, 4, 0, 0x39, 0x30, 0, 0, // user 12345 r--
    4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, // group ---
    16, 0, 4, 0, 0xff, 0xff, 0xff, 0xff, // mask r--
    32, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, // other ---
];
