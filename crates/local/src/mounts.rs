//! The job's table of mounts: it maps device numbers to small ids that are valid on all hosts.
use dmover_model::{EntryKind, FileSystemName, Identity, Metadata, MountId, Timestamp};
use dmover_observe::MountView;
use dmover_plan::overlap::{MountLine, parse_mountinfo};
use dmover_schedule::sync::{OnceLock, RwLock};
use dmover_sys::stat::{ATTRIBUTE_APPEND, ATTRIBUTE_IMMUTABLE, Stat};
use dmover_sys::{mount, path, stat};
use dmover_tree::VolumeNumbers;
use std::sync::{Arc, PoisonError};

/// Maps device numbers to [`MountId`]s, in the order in which the coordinator finds them.
#[derive(Default)]
pub struct MountTable {
    /// The first few devices, which are enough for most jobs, without a lock.
    first: [OnceLock<(u64, MountId)>; FIRST],
    /// All devices.
    devices: RwLock<Vec<(u64, MountId)>>,
    /// The table of a remote coordinator, if there is one.
    theirs: Option<TheirTable>,
}

/// The table of a remote coordinator.
struct TheirTable {
    numbers: Arc<dyn VolumeNumbers>,
    /// The coordinator has the same kernel, so device numbers are equal.
    same_kernel: bool,
}

const FIRST: usize = 8;

/// A file system that the coordinator does not see, so that its entries cannot be identified to other movers.
pub const UNSEEN: MountId = MountId(u32::MAX - 1);

impl std::fmt::Debug for MountTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MountTable").field(&self.devices).finish()
    }
}

impl MountTable {
    /// A table with these devices in their order.
    pub fn with(devices: &[u64]) -> Self {
        let table = Self::default();
        for device in devices {
            table.id(*device);
        }
        table
    }

    /// A copy of the table of a remote coordinator. `boot`: the boot id of its kernel.
    pub fn of_coordinator(numbers: Arc<dyn VolumeNumbers>, boot: &str) -> Self {
        let same_kernel = dmover_host::boot_id() == boot;
        Self { theirs: Some(TheirTable { numbers, same_kernel }), ..Self::default() }
    }

    /// Devices beginning with number `first`.
    pub fn since(&self, first: usize) -> Vec<u64> {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        devices.get(first..).unwrap_or_default().iter().map(|(device, _)| *device).collect()
    }

    /// The device number of an id. `None`: it is not known here.
    pub fn device(&self, id: MountId) -> Option<u64> {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        devices.iter().find(|(_, known)| *known == id).map(|(device, _)| *device)
    }

    /// The id of a device number.
    pub fn id(&self, device: u64) -> MountId {
        let mut first = self.first.iter().map_while(OnceLock::get);
        if let Some((_, id)) = first.find(|(known, _)| *known == device) {
            return *id;
        }
        let known = |devices: &[(u64, MountId)]| {
            devices.iter().find(|(known, _)| *known == device).map(|(_, id)| *id)
        };
        if let Some(id) = known(&self.devices.read().unwrap_or_else(PoisonError::into_inner)) {
            return id;
        }
        // The answer of a remote coordinator may take a while.
        let theirs = self.theirs.as_ref().map(|theirs| theirs.id(device));
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = known(&devices) {
            return id;
        }
        let id = theirs.unwrap_or(MountId(devices.len() as u32));
        if id == UNSEEN {
            return id;
        }
        if let Some(first) = self.first.get(devices.len()) {
            first.get_or_init(|| (device, id));
        }
        devices.push((device, id));
        id
    }

    /// The id of a file system that a remote mover has found.
    pub fn named(&self, name: &FileSystemName) -> Option<MountId> {
        if let FileSystemName::Device(boot, device) = name {
            return (*boot == dmover_host::boot_id()).then(|| self.id(*device));
        }
        let lines = parse_mountinfo(&mount::mountinfo());
        let line = lines.iter().find(|line| name_of(line).as_ref() == Some(name))?;
        // What mountinfo says is not what stat(2) says where each subvolume has a number of its own.
        let found = path::open_directory(&line.mount_point).and_then(stat::stat_fd).ok()?;
        Some(self.id(found.device))
    }

    /// The metadata of an entry in the job's types.
    pub fn metadata(&self, stat: &Stat) -> Metadata {
        let time = |(seconds, nanoseconds)| Timestamp { seconds, nanoseconds };
        Metadata {
            kind: kind_of(stat),
            mode: stat.mode & 0o7777,
            uid: stat.uid,
            gid: stat.gid,
            size: stat.size,
            blocks: stat.blocks,
            links: stat.links,
            device: stat.node_device,
            identity: self.identity(stat),
            atime: time(stat.atime),
            mtime: time(stat.mtime),
            ctime: time(stat.ctime),
            immutable: stat.attributes & ATTRIBUTE_IMMUTABLE != 0,
            append_only: stat.attributes & ATTRIBUTE_APPEND != 0,
        }
    }

    /// The identity of an object.
    pub fn identity(&self, stat: &Stat) -> Identity {
        Identity { mount: self.id(stat.device), inode: stat.inode }
    }
}

impl TheirTable {
    fn id(&self, device: u64) -> MountId {
        let name = if self.same_kernel {
            Some(FileSystemName::Device(dmover_host::boot_id(), device))
        } else {
            let lines = parse_mountinfo(&mount::mountinfo());
            let numbers = stat::device_numbers(device);
            lines.iter().find(|line| line.device == numbers).and_then(name_of)
        };
        name.and_then(|name| self.numbers.number(name)).unwrap_or(UNSEEN)
    }
}

/// File system types without user files.
const PSEUDO: [&str; 20] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "rpc_pipefs",
    "securityfs",
    "sysfs",
    "tracefs",
];
/// The most mounts in a report: containers have thousands.
const MOUNTS_TOLD: usize = 64;

/// Mounts of this host that may have user files, for displays.
pub fn mounts_here() -> Vec<MountView> {
    let lines = parse_mountinfo(&mount::mountinfo());
    let holds_files = |line: &MountLine| !PSEUDO.contains(&line.file_system.as_str());
    let view = |line: MountLine| MountView {
        at: line.mount_point.display().to_string(),
        kind: line.file_system,
        from: line.source,
    };
    lines.into_iter().filter(holds_files).take(MOUNTS_TOLD).map(view).collect()
}

/// All names of the file system with a device number: under this kernel, and on other hosts.
pub fn names_of(device: u64) -> Vec<FileSystemName> {
    let lines = parse_mountinfo(&mount::mountinfo());
    let numbers = stat::device_numbers(device);
    let elsewhere = lines.iter().find(|line| line.device == numbers).and_then(name_of);
    std::iter::once(FileSystemName::Device(dmover_host::boot_id(), device))
        .chain(elsewhere)
        .collect()
}

/// The name of a mounted file system on every host that sees it. `None`: no unique name is known.
fn name_of(line: &MountLine) -> Option<FileSystemName> {
    // One server's name for one tree, in one way of writing on all clients of a site.
    const SHARED: [&str; 12] = [
        "nfs",
        "nfs4",
        "lustre",
        "gpfs",
        "beegfs",
        "beegfs_nodev",
        "ceph",
        "cifs",
        "smb3",
        "panfs",
        "wekafs",
        "pvfs2",
    ];
    if SHARED.contains(&line.file_system.as_str()) {
        let kind = line.file_system.trim_end_matches(|c: char| c.is_ascii_digit());
        return Some(FileSystemName::Shared(format!("{kind} {}", line.source)));
    }
    let top = path::open_directory(&line.mount_point).ok()?;
    mount::file_system_uuid(&top).map(FileSystemName::Uuid)
}

pub(crate) fn kind_of(stat: &Stat) -> EntryKind {
    match stat.mode & 0o170_000 {
        0o040_000 => EntryKind::Directory,
        0o120_000 => EntryKind::Symlink,
        0o010_000 => EntryKind::Fifo,
        0o140_000 => EntryKind::Socket,
        0o020_000 => EntryKind::CharDevice,
        0o060_000 => EntryKind::BlockDevice,
        _ => EntryKind::File,
    }
}
