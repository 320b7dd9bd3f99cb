//! The user of this process, and what it may do; the accounts of this host.
use nix::unistd::{Group, User};
use std::io;
use std::process::{Command, Stdio};

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
    pub fn named(name: &str) -> io::Result<Option<Self>> {
        User::from_name(name)?.map(Self::of).transpose()
    }

    /// The user of this process; `None`: it has no entry.
    ///
    /// # Errors
    /// The databases of users cannot be read.
    pub fn own() -> io::Result<Option<Self>> {
        User::from_uid(nix::unistd::geteuid())?.map(Self::of).transpose()
    }

    fn of(user: User) -> io::Result<Self> {
        let nul = |_| io::Error::from(io::ErrorKind::InvalidData);
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

/// A table of accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accounts {
    /// Of users.
    Users,
    /// Of groups.
    Groups,
}

/// What getent(1) says.
enum Asked {
    /// The name and the number.
    Found(String, u32),
    NotFound,
    /// It is not there, or may not be run.
    NoProgram,
}

impl Accounts {
    /// The name of a number; `None`: it has none.
    ///
    /// # Errors
    /// The databases cannot be read.
    pub fn name(self, id: u32) -> io::Result<Option<String>> {
        match self.getent(&id.to_string())? {
            Asked::Found(name, _) => return Ok(Some(name)),
            Asked::NotFound => return Ok(None),
            Asked::NoProgram => {}
        }
        Ok(match self {
            Self::Users => User::from_uid(nix::unistd::Uid::from_raw(id))?.map(|user| user.name),
            Self::Groups => {
                Group::from_gid(nix::unistd::Gid::from_raw(id))?.map(|group| group.name)
            }
        })
    }

    /// The number of a name; `None`: there is no such account.
    ///
    /// # Errors
    /// The databases cannot be read.
    pub fn number(self, name: &str) -> io::Result<Option<u32>> {
        // getent(1) takes what is a number for one, and what begins with a hyphen for an option.
        if name.bytes().all(|byte| byte.is_ascii_digit()) || name.starts_with('-') {
            return Ok(None);
        }
        match self.getent(name)? {
            Asked::Found(_, id) => return Ok(Some(id)),
            Asked::NotFound => return Ok(None),
            Asked::NoProgram => {}
        }
        Ok(match self {
            Self::Users => User::from_name(name)?.map(|user| user.uid.as_raw()),
            Self::Groups => Group::from_name(name)?.map(|group| group.gid.as_raw()),
        })
    }

    /// What getent(1) finds. It asks all databases that the host has (LDAP, sssd), which a static program cannot.
    fn getent(self, key: &str) -> io::Result<Asked> {
        /// The exit code for what is in no database.
        const NOT_FOUND: i32 = 2;
        let table = match self {
            Self::Users => "passwd",
            Self::Groups => "group",
        };
        let mut command = Command::new("getent");
        command.args([table, key]).stdin(Stdio::null()).stderr(Stdio::null());
        let Ok(output) = command.output() else { return Ok(Asked::NoProgram) };
        let text = String::from_utf8_lossy(&output.stdout);
        let mut fields = text.lines().next().unwrap_or_default().split(':');
        let (name, id) = (fields.next(), fields.nth(1).and_then(|id| id.parse().ok()));
        match (output.status.code(), name, id) {
            (Some(0), Some(name), Some(id)) => Ok(Asked::Found(name.to_owned(), id)),
            (Some(NOT_FOUND), ..) => Ok(Asked::NotFound),
            _ => Err(io::Error::other(format!("getent {table} has failed ({})", output.status))),
        }
    }
}

/// Makes this process one of another user, for good: all groups, then the group, then the user (credentials(7)).
///
/// # Errors
/// The process is not privileged, or it already has several threads, which would keep their user.
pub fn become_user(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    use rustix::process::{Gid, Uid};
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the process has several threads"));
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
