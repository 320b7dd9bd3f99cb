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

/// A user of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The name.
    pub name: String,
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// All groups, also the one above.
    pub groups: Vec<u32>,
    /// The home directory.
    pub home: std::path::PathBuf,
}

impl Account {
    /// The user of this name (getpwnam(3), getgrouplist(3)); `None`: there is none.
    ///
    /// # Errors
    /// The databases of users cannot be read.
    pub fn named(name: &str) -> std::io::Result<Option<Self>> {
        nix::unistd::User::from_name(name)?.map(Self::of).transpose()
    }

    /// The user of this process; `None`: it has no entry.
    ///
    /// # Errors
    /// The databases of users cannot be read.
    pub fn own() -> std::io::Result<Option<Self>> {
        nix::unistd::User::from_uid(nix::unistd::geteuid())?.map(Self::of).transpose()
    }

    fn of(user: nix::unistd::User) -> std::io::Result<Self> {
        let nul = |_| std::io::Error::from(std::io::ErrorKind::InvalidData);
        let name = std::ffi::CString::new(user.name.clone()).map_err(nul)?;
        let groups = nix::unistd::getgrouplist(&name, user.gid)?;
        Ok(Self {
            name: user.name,
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
            groups: groups.into_iter().map(nix::unistd::Gid::as_raw).collect(),
            home: user.dir,
        })
    }
}

/// The name of a user (getpwuid(3)); `None`: there is none, or the databases of users cannot be read.
pub fn name_of_user(uid: u32) -> Option<String> {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid));
    user.ok().flatten().map(|user| user.name)
}

/// The name of a group (getgrgid(3)); `None` as above.
pub fn name_of_group(gid: u32) -> Option<String> {
    let group = nix::unistd::Group::from_gid(nix::unistd::Gid::from_raw(gid));
    group.ok().flatten().map(|group| group.name)
}

/// The user of this name (getpwnam(3)); `None` as above.
pub fn user_of_name(name: &str) -> Option<u32> {
    let user = nix::unistd::User::from_name(name);
    user.ok().flatten().map(|user| user.uid.as_raw())
}

/// The group of this name (getgrnam(3)); `None` as above.
pub fn group_of_name(name: &str) -> Option<u32> {
    let group = nix::unistd::Group::from_name(name);
    group.ok().flatten().map(|group| group.gid.as_raw())
}

/// Makes this process one of another user, for good: all groups, then the group, then the user (credentials(7)).
///
/// # Errors
/// The process is not privileged, or it already has several threads, which would keep their user.
pub fn become_user(uid: u32, gid: u32, groups: &[u32]) -> std::io::Result<()> {
    use rustix::process::{Gid, Uid};
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(std::io::Error::other("the process has several threads"));
    }
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&groups)?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
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
