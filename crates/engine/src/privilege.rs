//! What this process may do.
use dmover_sys::process;

/// The privileges of this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Privilege {
    /// It may set any owner and ignores permission bits.
    pub privileged: bool,
    /// It can see attributes of the namespace `trusted.`.
    pub sees_trusted: bool,
    pub uid: u32,
    pub gid: u32,
    /// The umask of the user, for entries whose mode is not kept.
    pub umask: u32,
}

impl Privilege {
    pub fn of_process(privileged: bool, umask: u32) -> Self {
        let (uid, gid) = (process::effective_uid(), process::effective_gid());
        let sees_trusted = process::sees_trusted();
        Self { privileged, sees_trusted, uid, gid, umask }
    }
}
