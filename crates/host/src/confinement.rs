//! Limits that the kernel enforces on this process, whatever it does (Landlock, landlock(7)).
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
};
use std::io;
use std::path::{Path, PathBuf};

/// What is needed: limits for moves between directories (Linux 5.19). Without them the kernel forbids such moves.
const NEEDED: ABI = ABI::V2;
/// What is used where the kernel has it: limits for truncation (6.2), and for ioctl(2) of devices (6.10).
const WANTED: ABI = ABI::V5;

/// Paths for [`confine`].
#[derive(Debug, Clone, Default)]
pub struct Allowed {
    /// Trees whose files may be read, and whose directories may be listed. Their paths have no symbolic links.
    pub read: Vec<PathBuf>,
    /// Trees in which everything may be done but running programs. Their paths have no symbolic links.
    pub write: Vec<PathBuf>,
    /// Trees of the process itself, for the same.
    pub own: Vec<PathBuf>,
    /// Files and trees of the system that may be read as far as they exist.
    pub system: Vec<PathBuf>,
    /// Devices that may be read and written as far as they exist.
    pub devices: Vec<PathBuf>,
}

/// Has the kernel refuse to open, create, remove or rename anything else, for this process and those that it starts, for good.
/// No program can be run any more. Looking at attributes, and setting them through what is open, is not limited.
///
/// # Errors
/// The kernel has no Landlock (before Linux 5.19, or it is off), a path cannot be opened, or the process already has several
/// threads, which would not be limited.
pub fn confine(allowed: &Allowed) -> io::Result<()> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the process has several threads"));
    }
    match restrict(allowed)? {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        RulesetStatus::NotEnforced => Err(io::Error::other("the kernel has no Landlock")),
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn of_rules(error: RulesetError) -> io::Error {
    io::Error::other(format!("Landlock: {error}"))
}

fn rule(path: &Path, access: BitFlags<AccessFs>) -> io::Result<PathBeneath<PathFd>> {
    let named = |error| io::Error::other(format!("'{}': {error}", path.display()));
    let opened = PathFd::new(path).map_err(named)?;
    Ok(PathBeneath::new(opened, access).set_compatibility(CompatLevel::BestEffort))
}

/// A rule for a path that leads to what has that name itself.
fn direct(path: &Path, access: BitFlags<AccessFs>) -> io::Result<PathBeneath<PathFd>> {
    let named = |why: String| io::Error::other(format!("'{}': {why}", path.display()));
    let opened = PathFd::new(path).map_err(|error| named(error.to_string()))?;
    let link = format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&opened))
    );
    if std::fs::read_link(link)? != path {
        return Err(named("it leads elsewhere through a symbolic link".into()));
    }
    Ok(PathBeneath::new(opened, access).set_compatibility(CompatLevel::BestEffort))
}

fn restrict(allowed: &Allowed) -> io::Result<RulesetStatus> {
    let all = AccessFs::from_all(WANTED);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(NEEDED))
        .and_then(|rules| {
            rules.set_compatibility(CompatLevel::BestEffort).handle_access(all)?.create()
        })
        .map_err(of_rules)?;
    for path in &allowed.read {
        let read = direct(path, AccessFs::ReadFile | AccessFs::ReadDir)?;
        rules = rules.add_rule(read).map_err(of_rules)?;
    }
    for path in &allowed.write {
        let write = direct(path, all & !AccessFs::Execute)?;
        rules = rules.add_rule(write).map_err(of_rules)?;
    }
    for path in &allowed.own {
        let own = rule(path, all & !AccessFs::Execute)?;
        rules = rules.add_rule(own).map_err(of_rules)?;
    }
    let reads = AccessFs::ReadFile | AccessFs::ReadDir;
    let system = allowed.system.iter().map(|path| (path, reads));
    let devices = allowed.devices.iter().map(|path| (path, reads | AccessFs::WriteFile));
    for (path, access) in system.chain(devices) {
        if std::fs::metadata(path).is_ok() {
            rules = rules.add_rule(rule(path, access)?).map_err(of_rules)?;
        }
    }
    Ok(rules.restrict_self().map_err(of_rules)?.ruleset)
}
