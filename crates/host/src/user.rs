//! The user of this process, and what it may do.

/// The effective user id.
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The effective group id.
pub fn effective_gid() -> u32 {
    rustix::process::getegid().as_raw()
}

/// The supplementary groups, getgroups(2); none where they cannot be found out.
pub fn groups() -> Vec<u32> {
    let groups = rustix::process::getgroups().unwrap_or_default();
    groups.into_iter().map(rustix::process::Gid::as_raw).collect()
}

/// Whether the process may give files away (CAP_CHOWN) and read and write whatever it likes
/// (CAP_DAC_OVERRIDE), as root usually may. A root without capabilities, as in many containers,
/// counts as an ordinary user.
pub fn is_privileged() -> bool {
    use rustix::thread::CapabilitySet;
    let needed = CapabilitySet::CHOWN | CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER;
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// Capabilities without which entries come out otherwise, by the names of capabilities(7), as far as the process has them.
pub fn capabilities_that_matter() -> Vec<String> {
    use rustix::thread::CapabilitySet;
    let effective = rustix::thread::capabilities(None).map(|sets| sets.effective);
    let effective = effective.unwrap_or(CapabilitySet::empty());
    let all = [
        ("CAP_CHOWN", CapabilitySet::CHOWN),
        ("CAP_DAC_OVERRIDE", CapabilitySet::DAC_OVERRIDE),
        ("CAP_DAC_READ_SEARCH", CapabilitySet::DAC_READ_SEARCH),
        ("CAP_FOWNER", CapabilitySet::FOWNER),
        ("CAP_FSETID", CapabilitySet::FSETID),
        ("CAP_LINUX_IMMUTABLE", CapabilitySet::LINUX_IMMUTABLE),
        ("CAP_MKNOD", CapabilitySet::MKNOD),
        ("CAP_SETFCAP", CapabilitySet::SETFCAP),
    ];
    let has = all.iter().filter(|(_, capability)| effective.contains(*capability));
    has.map(|(name, _)| (*name).to_owned()).collect()
}

/// Whether attributes of the namespace `trusted.` are shown to the process: to CAP_SYS_ADMIN of the first user namespace
/// only (xattr(7)), so not to root in most containers.
pub fn sees_trusted() -> bool {
    use rustix::thread::CapabilitySet;
    let sets = rustix::thread::capabilities(None);
    let admin = sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    let ids = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    admin && ids.split_whitespace().eq(["0", "0", "4294967295"])
}
