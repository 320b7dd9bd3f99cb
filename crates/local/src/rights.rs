//! Rights that attributes grant: an owner, set-id bits and capabilities let content act with the rights of a user.
//!
//! The owner of a file can give it any size and times. A file that looks equal and belongs to another user may have any
//! content, and that user may have it open for writing: a comparison would say nothing about later content. Such a file
//! gets no rights; a new inode with the content of the source replaces it. Who may rename entries in the directory can
//! exchange the names of two files of ours: such a file gets rights, or another owner, only after its content was compared.
use dmover_model::{Attribute, EntryKind, EntryRecord, Metadata};
use dmover_plan::decide::Decision;
use dmover_sys::xattr::Held;
use dmover_sys::{Errno, OwnedFd, directory, file, path, set, stat, xattr};

use crate::directory::{SourceDirectory, TargetDirectory};
use crate::end::Local;
use crate::handle::{DirectoryHandle, errno_of};
use crate::session::{self, Session};

pub(crate) const SET_ID: u32 = 0o6000;
const EXECUTE: u32 = 0o111;
const OTHERS_WRITE: u32 = 0o022;
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// The directories of a source entry and of its copy.
#[derive(Clone, Copy)]
pub struct Sides<'a> {
    /// The directory of the source.
    pub from: &'a SourceDirectory,
    /// The directory of the copy.
    pub to: &'a TargetDirectory,
    /// A symbolic link stands for what it leads to.
    pub follows: bool,
}

/// Whether attributes of the source would give rights to a file of another user.
pub fn grants(
    session: &Session<'_>,
    sides: Sides<'_>,
    record: &EntryRecord,
    old: &Metadata,
) -> bool {
    let (Local { end, rules, .. }, new) = (session.local, &record.metadata);
    let is_file = (new.kind, old.kind) == (EntryKind::File, EntryKind::File);
    // Only an owner may set a time: what belongs to us and has the time of the source is what we have written.
    let own = [0, end.privilege.uid].contains(&old.uid);
    if !is_file || own || !end.privilege.privileged {
        return false;
    }
    let keeps = |attribute| rules.policy.preserve.has(attribute);
    let owned = keeps(Attribute::Owner);
    let user = owned && rules.ids.user(new.uid) != old.uid;
    let group = owned && rules.ids.group(new.gid) != old.gid;
    let bits = if keeps(Attribute::Mode) { new.mode & SET_ID } else { 0 };
    let set_id = bits != 0 && (group || bits & !old.mode != 0);
    if user || set_id {
        return keeps_owners(session, sides.to, new);
    }
    keeps(Attribute::Xattr) && new.mode & EXECUTE != 0 && has_other_capability(sides, record)
}

/// Whether attributes of the source would give rights to a file of ours, or to others the right to read it. It may be
/// another one of our files than the one that was copied to this name: whoever may rename entries in its directory may
/// have exchanged them. For set-id bits and capabilities it counts who could ever do that, otherwise who can now.
pub fn would_empower(
    local: &Local<'_>,
    sides: Sides<'_>,
    record: &EntryRecord,
    old: &Metadata,
) -> bool {
    let (Local { end, rules, .. }, new) = (local, &record.metadata);
    let target = sides.to;
    let is_ours = |uid| [0, end.privilege.uid].contains(&uid);
    let is_file = (new.kind, old.kind) == (EntryKind::File, EntryKind::File);
    if target.made || !is_file || !is_ours(old.uid) {
        return false;
    }
    let directory = target.narrowed.as_deref().unwrap_or(&target.metadata);
    let is_closed = is_ours(directory.uid) && directory.mode & OTHERS_WRITE == 0;
    let keeps_mode = rules.policy.preserve.has(Attribute::Mode);
    let widens = keeps_mode && new.mode & !old.mode & 0o777 != 0;
    (!is_closed && (widens || gets_another_owner(local, new, old)))
        || gives_rights(local, sides, (record, old))
}

/// Whether attributes of the source have set-id bits or a capability that the file does not have, or set-id bits of
/// another owner.
fn gives_rights(
    local: &Local<'_>,
    sides: Sides<'_>,
    (record, old): (&EntryRecord, &Metadata),
) -> bool {
    let (Local { end, rules, .. }, new) = (local, &record.metadata);
    let keeps = |attribute| rules.policy.preserve.has(attribute);
    let bits = if keeps(Attribute::Mode) { new.mode & SET_ID } else { 0 };
    (bits != 0 && (bits & !old.mode != 0 || gets_another_owner(local, new, old)))
        || (keeps(Attribute::Xattr)
            && end.privilege.privileged
            && new.mode & EXECUTE != 0
            && has_other_capability(sides, record))
}

fn gets_another_owner(local: &Local<'_>, new: &Metadata, old: &Metadata) -> bool {
    let Local { end, rules, .. } = local;
    end.privilege.privileged
        && rules.policy.preserve.has(Attribute::Owner)
        && (rules.ids.user(new.uid), rules.ids.group(new.gid)) != (old.uid, old.gid)
}

/// What to do with a file of an earlier snapshot that looks equal, before a clone of it gets the attributes of the
/// source: its owner may have written to it.
pub fn before_a_clone(
    local: &Local<'_>,
    sides: Sides<'_>,
    (record, old): (&EntryRecord, &Metadata),
) -> Decision {
    let gives = gets_another_owner(local, &record.metadata, old)
        || gives_rights(local, sides, (record, old));
    match [0, local.end.privilege.uid].contains(&old.uid) {
        _ if !gives => Decision::Inspect,
        true => Decision::Compare,
        false => Decision::Replace,
    }
}

fn has_other_capability(Sides { from, to, follows }: Sides<'_>, record: &EntryRecord) -> bool {
    let capability = |directory: &OwnedFd, name: &[u8], follows| -> Result<_, Errno> {
        xattr::get(path::open_file_at(directory, name, follows)?, Held::Open, CAPABILITY)
    };
    let name = record.name.as_bytes();
    let wanted = match &from.handle {
        DirectoryHandle::Open(from) => capability(from, name, follows),
        DirectoryHandle::Remote(from) => from
            .open_file(name, follows)
            .and_then(|file| file.attributes())
            .map(|found| found.xattrs.into_iter().find(|(name, _)| name == CAPABILITY))
            .map(|found| found.map(|(_, value)| value))
            .map_err(|error| errno_of(&error)),
    };
    // An unreadable one is reported when the entry is copied.
    match wanted {
        Ok(Some(wanted)) => {
            let last = record.destination_name().as_bytes();
            capability(&to.fd, last, false) != Ok(Some(wanted))
        }
        _ => false,
    }
}

/// Whether the file system keeps owners that are set. If not, a new file would look as wrong as the old one in
/// every pass, and an owner that is not kept grants nothing.
fn keeps_owners(session: &Session<'_>, target: &TargetDirectory, wanted: &Metadata) -> bool {
    let (Local { rules, .. }, facts) = (session.local, &target.facts);
    if facts.local || rules.policy.dry_run {
        return true;
    }
    *facts.keeps_owners.get_or_init(|| {
        let owner = (rules.ids.user(wanted.uid), rules.ids.group(wanted.gid));
        let kept = |probe: OwnedFd| {
            set::owner(&probe, Some(owner.0), Some(owner.1))?;
            stat::stat_fd(&probe).map(|found| (found.uid, found.gid) == owner)
        };
        let probed = match file::create_unnamed(&target.fd, 0o600) {
            Err(_) => {
                let name = session::temporary_name(session);
                file::create_new(&target.fd, name.as_bytes(), 0o600).and_then(|probe| {
                    let kept = kept(probe);
                    directory::unlink(&target.fd, name.as_bytes()).and(kept)
                })
            }
            Ok(probe) => kept(probe),
        };
        // In doubt a new file is made: that is safe everywhere.
        !matches!(
            probed,
            Ok(false) | Err(Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS)
        )
    })
}
