//! What this process may do.

/// The privileges of this process.
#[derive(Debug, Clone, Copy)]
pub struct Privilege {
    /// It may set any owner and ignores permission bits.
    pub privileged: bool,
    /// It can see attributes of the namespace `trusted.`.
    pub sees_trusted: bool,
    /// The effective user id.
    pub uid: u32,
    /// The effective group id.
    pub gid: u32,
    /// The umask of the user, for entries whose mode is not kept.
    pub umask: u32,
}

impl Privilege {
    /// Those of this process; `privileged` and `umask` come from who started it.
    pub fn of_process(privileged: bool, umask: u32) -> Self {
        let (uid, gid) = (dmover_host::user::effective_uid(), dmover_host::user::effective_gid());
        let sees_trusted = dmover_host::user::sees_trusted();
        Self { privileged, sees_trusted, uid, gid, umask }
    }
}
