//! Disks that take turns in one place.
use super::Bench;

/// Unmounts whatever is there.
pub const AWAY: &str = "umount -q disk || umount -ql disk || true";

impl Bench {
    /// Makes two disks, `A` and `B`, with an empty directory `d` each. `false`: there are no loop devices here.
    pub fn make_disks(&self) -> bool {
        let script = "mkdir -p disk; for disk in A B; do truncate -s 64M $disk; mkfs.ext4 -q $disk
            mount -o loop $disk disk || exit 0; mkdir disk/d; umount disk; done; echo -n made";
        self.sh(script) == "made"
    }

    /// Has one of the disks be in the place, or none.
    #[track_caller]
    pub fn put_disk(&self, disk: Option<&str>) {
        self.sh("mountpoint -q disk && umount disk || true");
        if let Some(disk) = disk {
            self.sh(&format!("mount -o loop {disk} disk"));
        }
    }
}
