//! The job's table of mounts: device numbers in, small ids that can travel out.
use dmover_model::{EntryKind, Identity, Metadata, MountId, Timestamp};
use dmover_sys::stat::{ATTRIBUTE_APPEND, ATTRIBUTE_IMMUTABLE, Stat};
use std::sync::{OnceLock, PoisonError, RwLock};

/// Maps device numbers to [`MountId`]s, in the order in which they are met.
#[derive(Debug, Default)]
pub(crate) struct MountTable {
    /// The first few, which are all that most jobs meet: found without a lock, for every entry.
    first: [OnceLock<u64>; FIRST],
    /// All of them.
    devices: RwLock<Vec<u64>>,
}

const FIRST: usize = 8;

impl MountTable {
    /// A table that knows these already, in their order.
    pub fn with(devices: &[u64]) -> Self {
        let table = Self::default();
        for device in devices {
            table.id(*device);
        }
        table
    }

    /// Devices from the `first` on.
    pub fn since(&self, first: usize) -> Vec<u64> {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        devices.get(first..).unwrap_or_default().to_vec()
    }

    /// The id of a device number.
    pub fn id(&self, device: u64) -> MountId {
        if let Some(index) = self.first.iter().position(|d| d.get() == Some(&device)) {
            return MountId(index as u32);
        }
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        let index = devices.iter().position(|d| *d == device).unwrap_or_else(|| {
            devices.push(device);
            devices.len() - 1
        });
        if let Some(first) = self.first.get(index) {
            first.get_or_init(|| device);
        }
        MountId(index as u32)
    }

    /// The entry's metadata in the job's terms.
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

    /// Which object this is.
    pub fn identity(&self, stat: &Stat) -> Identity {
        Identity { mount: self.id(stat.device), inode: stat.inode }
    }
}

fn kind_of(stat: &Stat) -> EntryKind {
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
