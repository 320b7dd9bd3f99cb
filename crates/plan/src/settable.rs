//! Which attributes of an entry a process without privilege may set (chown(2), chmod(2)).

const SET_ID: u32 = 0o6000;
const SET_GID: u32 = 0o2000;

/// Owner and group.
type Owner = (u32, u32);

/// A process that may not change owners of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unprivileged {
    /// Its effective user.
    pub uid: u32,
    /// Its effective group and its supplementary groups.
    pub groups: Vec<u32>,
}

impl Unprivileged {
    /// The owner that an entry with owner `found` can get when `wanted` is the goal: an entry of this user can get any
    /// group that the process is in, and no entry can get another user.
    pub fn owner(&self, wanted: Owner, found: Owner) -> Owner {
        let own = found.0 == self.uid;
        let group = if own && self.groups.contains(&wanted.1) { wanted.1 } else { found.1 };
        (found.0, group)
    }

    /// The mode that an entry with owner and mode `found` can get when `wanted` is the goal. Set-id bits are not set
    /// for an owner other than that of the source, and the kernel drops the set-group-id bit for a group that the
    /// process is not in.
    pub fn mode(&self, wanted: (Owner, u32), found: (Owner, u32)) -> u32 {
        let denied = if self.owner(wanted.0, found.0) != wanted.0 {
            SET_ID
        } else if !self.groups.contains(&wanted.0.1) {
            SET_GID
        } else {
            0
        };
        // A bit that is there need not be set.
        wanted.1 & !(denied & !found.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> Unprivileged {
        Unprivileged { uid: 10, groups: vec![20, 21] }
    }

    #[test]
    fn an_own_entry_gets_a_group_of_the_process_and_nothing_else() {
        let user = user();
        assert_eq!(user.owner((10, 21), (10, 20)), (10, 21));
        assert_eq!(user.owner((0, 21), (10, 20)), (10, 21), "its group alone");
        assert_eq!(user.owner((0, 0), (10, 20)), (10, 20));
        assert_eq!(user.owner((10, 21), (11, 20)), (11, 20), "of somebody else");
    }

    #[test]
    fn set_id_bits_go_with_the_owner_and_those_that_are_too_many_stay_a_difference() {
        let user = user();
        assert_eq!(user.mode(((0, 0), 0o6755), ((10, 20), 0o755)), 0o755);
        assert_eq!(user.mode(((0, 0), 0o1755), ((10, 20), 0o644)), 0o1755);
        assert_eq!(user.mode(((0, 0), 0o755), ((10, 20), 0o4755)), 0o755);
        assert_eq!(user.mode(((0, 0), 0o4755), ((10, 20), 0o4755)), 0o4755);
        assert_eq!(user.mode(((10, 20), 0o6755), ((10, 20), 0o755)), 0o6755);
        assert_eq!(user.mode(((10, 99), 0o6755), ((10, 99), 0o755)), 0o4755);
    }
}
