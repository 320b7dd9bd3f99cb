//! What this host is for a job elsewhere: numbers of its file systems, and rules under which it is only read.
use dmover_local::capability::CapabilityCache;
use dmover_local::end::{Local, LocalEnd, Rules};
use dmover_local::layout::DefaultLayout;
use dmover_local::mounts::{MountTable, UNSEEN, names_of};
use dmover_local::privilege::Privilege;
use dmover_local::submounts::mounted_in;
use dmover_local::unflushed::Unflushed;
use dmover_model::{AttributeSet, CopyPolicy, FileSystemName, MountId, PathBytes, Timestamp};
use dmover_observe::lock;
use dmover_plan::history::History;
use dmover_plan::idmap::IdentityMap;
use dmover_schedule::sync::Mutex;
use dmover_tree::{Reports, VolumeNumbers};
use dmover_wire::agent::SharedMount;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Set in the number of each file system of another host; those of the job's own file systems are small.
const ELSEWHERE: u32 = 1 << 31;

/// What the numbers of file systems depend on, so that they are the same in each run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbering {
    /// The host and the device.
    OfHost,
    /// What is the same on each host that mounts the file system.
    OfAllHosts,
}

/// Numbers of file systems.
struct HashedNumbers {
    numbering: Numbering,
    /// The host and the root as the user has typed it.
    host: Vec<u8>,
    /// Which device has a number.
    given: Mutex<HashMap<MountId, u64>>,
}

impl HashedNumbers {
    fn of(root: &PathBytes, numbering: Numbering) -> Self {
        let name = match numbering {
            Numbering::OfHost => dmover_host::name_bytes(),
            Numbering::OfAllHosts => Vec::new(),
        };
        let host = [&name[..], b"\0", &root.0].concat();
        Self { numbering, host, given: Mutex::default() }
    }

    fn hashed(&self, device: u64) -> MountId {
        match self.numbering {
            Numbering::OfHost => number_of(&self.host, &device.to_le_bytes()),
            // The last one is known beyond this kernel, if there is one.
            Numbering::OfAllHosts => names_of(device)
                .pop()
                .map_or(UNSEEN, |name| number_of(&self.host, &bytes_of(&name))),
        }
    }
}

/// A name of a file system, and nothing of the host that has mounted it if it has one beyond that.
fn bytes_of(name: &FileSystemName) -> Vec<u8> {
    match name {
        FileSystemName::Shared(name) => format!("shared {name}").into_bytes(),
        FileSystemName::Uuid(name) => format!("uuid {name}").into_bytes(),
        FileSystemName::Device(boot, device) => format!("device {boot} {device}").into_bytes(),
        FileSystemName::Remote(number) => format!("remote {number}").into_bytes(),
    }
}

impl VolumeNumbers for HashedNumbers {
    fn number(&self, name: FileSystemName) -> Option<MountId> {
        let FileSystemName::Device(_, device) = name else { return None };
        let number = self.hashed(device);
        // Of two devices with one number the second one cannot be read: its entries would be taken for those of the first.
        (*lock(&self.given).entry(number).or_insert(device) == device).then_some(number)
    }
}

fn number_of(host: &[u8], device: &[u8]) -> MountId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(host).update(device);
    let [a, b, c, d, ..] = *hasher.finalize().as_bytes();
    // The highest numbers have a meaning of their own.
    MountId((u32::from_le_bytes([a, b, c, d]) | ELSEWHERE).min(UNSEEN.0 - 1))
}

/// What stays the same while a tree is served.
pub(super) struct Host {
    end: LocalEnd,
    policy: CopyPolicy,
    ids: IdentityMap,
    history: History,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl Host {
    /// `root`: the root as the user of the job has typed it. Trees of two connections never have a file system in common, so
    /// that nothing of one host is taken for something of another that has the same name.
    pub(super) fn new(preserve: AttributeSet, root: &PathBytes, numbering: Numbering) -> Self {
        let numbers = Arc::new(HashedNumbers::of(root, numbering));
        // Nothing is created here, so the umask does not matter.
        let privilege = Privilege::of_process(dmover_host::user::is_privileged(), 0);
        let end = LocalEnd {
            mounts: MountTable::of_coordinator(numbers, &dmover_host::boot_id()),
            capabilities: CapabilityCache::default(),
            privilege,
            flusher: None,
            unflushed: Unflushed::default(),
            layout: Arc::new(DefaultLayout),
        };
        let policy = CopyPolicy { preserve, ..CopyPolicy::default() };
        let history = History {
            seen_before: None,
            seen_until: None,
            pass_began: Timestamp::default(),
            suspect_since: None,
            source_skew: None,
        };
        Self { end, policy, ids: IdentityMap::default(), history }
    }

    /// What is mounted below a directory.
    pub(super) fn mounts_in(&self, directory: &Path) -> Vec<SharedMount> {
        let found = mounted_in(directory, &self.end.mounts);
        found.into_iter().map(|(path, identity)| SharedMount { path, identity }).collect()
    }

    pub(super) fn end(&self) -> &LocalEnd {
        &self.end
    }

    pub(super) fn local<'a>(&'a self, reports: &'a dyn Reports) -> Local<'a> {
        let rules = Rules {
            policy: &self.policy,
            ids: &self.ids,
            history: &self.history,
            compares: false,
            updates: false,
            fills: false,
        };
        Local { end: &self.end, rules, reports }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_depend_on_host_and_device_and_are_above_those_of_a_job() {
        let numbers: std::collections::BTreeSet<_> =
            (0..1000u64).map(|device| number_of(b"h", &device.to_le_bytes())).collect();
        assert_eq!(numbers.len(), 1000);
        assert!(numbers.iter().all(|number| number.0 >= ELSEWHERE && *number < UNSEEN));
        assert_eq!(number_of(b"h", b"7"), number_of(b"h", b"7"));
        assert_ne!(number_of(b"h", b"7"), number_of(b"i", b"7"));
    }

    #[test]
    fn hosts_that_share_a_file_system_give_it_one_number() {
        let root = PathBytes(b"a,b:/lustre".to_vec());
        let number = |name: FileSystemName| {
            number_of(&HashedNumbers::of(&root, Numbering::OfAllHosts).host, &bytes_of(&name))
        };
        let nfs = || FileSystemName::Shared("nfs server:/export".into());
        assert_eq!(number(nfs()), number(nfs()));
        assert_ne!(number(nfs()), number(FileSystemName::Uuid("nfs server:/export".into())));
        let device = |boot: &str| number(FileSystemName::Device(boot.into(), 7));
        assert_ne!(device("one boot"), device("another boot"), "nothing says that it is shared");
        let of = |numbering| HashedNumbers::of(&root, numbering).host;
        assert!(of(Numbering::OfHost).starts_with(&dmover_host::name_bytes()));
        assert!(of(Numbering::OfAllHosts).starts_with(b"\0"), "the host does not matter");
    }
}
