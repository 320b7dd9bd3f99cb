//! What this host is for a job elsewhere: numbers of its file systems, and rules under which it is only read.
use dmover_local::capability::CapabilityCache;
use dmover_local::end::{Local, LocalEnd, Rules};
use dmover_local::layout::DefaultLayout;
use dmover_local::mounts::{MountTable, UNSEEN};
use dmover_local::privilege::Privilege;
use dmover_local::unflushed::Unflushed;
use dmover_model::{AttributeSet, CopyPolicy, FileSystemName, MountId, PathBytes, Timestamp};
use dmover_observe::lock;
use dmover_plan::history::History;
use dmover_plan::idmap::IdentityMap;
use dmover_schedule::sync::Mutex;
use dmover_tree::{Reports, VolumeNumbers};
use std::collections::HashMap;
use std::sync::Arc;

/// Set in the number of each file system of another host; those of the job's own file systems are small.
const ELSEWHERE: u32 = 1 << 31;

/// Numbers of file systems that depend on the host and the device only, so that they are the same in each run.
struct HashedNumbers {
    host: Vec<u8>,
    /// Which device has a number.
    given: Mutex<HashMap<MountId, u64>>,
}

impl HashedNumbers {
    fn of(host: Vec<u8>) -> Self {
        Self { host, given: Mutex::default() }
    }
}

impl VolumeNumbers for HashedNumbers {
    fn number(&self, name: FileSystemName) -> Option<MountId> {
        let FileSystemName::Device(_, device) = name else { return None };
        let number = number_of(&self.host, device);
        // Of two devices with one number the second one cannot be read: its entries would be taken for those of the first.
        (*lock(&self.given).entry(number).or_insert(device) == device).then_some(number)
    }
}

fn number_of(host: &[u8], device: u64) -> MountId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(host).update(&device.to_le_bytes());
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
    pub(super) fn new(preserve: AttributeSet, root: &PathBytes) -> Self {
        let own = [&dmover_host::name_bytes()[..], b"\0", &root.0].concat();
        let numbers = Arc::new(HashedNumbers::of(own));
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
            (0..1000).map(|device| number_of(b"h", device)).collect();
        assert_eq!(numbers.len(), 1000);
        assert!(numbers.iter().all(|number| number.0 >= ELSEWHERE && *number < UNSEEN));
        assert_eq!(number_of(b"h", 7), number_of(b"h", 7));
        assert_ne!(number_of(b"h", 7), number_of(b"i", 7));
    }
}
