//! Symbolic links, FIFOs, sockets and device nodes.
use dmover_model::{EntryError, EntryKind, EntryRecord, ErrorClass, Metadata, Operation, Side};
use dmover_observe::{Activity, activity};
use dmover_plan::decide::Decision;
use dmover_sys::directory::{self, NodeType};
use dmover_sys::xattr::{self, Held};
use dmover_sys::{AsFd, OwnedFd, path, stat};
use dmover_tree::{Limit, TargetNames};

use crate::attributes::{ACCESS_ACL, Attributes, Object};
use crate::directory::{SourceDirectory, TargetDirectory};
use crate::end::Local;
use crate::error::entry_error;
use crate::put_in_place::{self, Renaming};
use crate::session::{self, Session};

impl Session<'_> {
    /// Makes an entry without file content.
    ///
    /// # Errors
    /// It could not be made. What was made is removed, unless it may be another program's.
    pub fn make_special(
        &self,
        (from, to): (&SourceDirectory, &TargetDirectory),
        record: &EntryRecord,
        attributes: &Attributes,
        (decision, others): (Decision, Option<&dyn TargetNames>),
    ) -> Result<(), EntryError> {
        let last = record.destination_name().as_bytes();
        let temporary = put_in_place::needs_temporary(&self.local, decision)
            .then(|| session::temporary_in(self, from, to));
        let name = temporary.as_ref().map_or(last, |t| t.as_bytes());
        make(self, to, record, name)?;
        let made = pin_made(&self.local, to, record, name).inspect_err(|error| {
            // Only this job makes entries with its temporary names. What has another identity is not its own.
            if temporary.is_some() && error.class != ErrorClass::Escaped {
                let _ = directory::unlink(&to.fd, name);
            }
        })?;
        let done = dress(&self.local, to, record, &made, attributes);
        let settled = done.and_then(|()| {
            if name == last {
                return Ok(());
            }
            let identity = made.metadata.identity;
            let source = record.metadata.identity;
            self.put_in_place(Renaming {
                from,
                to,
                name,
                last,
                decision,
                locks: false,
                identity,
                source,
                is_link: false,
                others,
            })
        });
        settled.inspect_err(|_| {
            if session::is_at(&self.local, to, name, made.metadata.identity) {
                // An incomplete entry must not stay; the error reports it if it does.
                let _ = directory::unlink(&to.fd, name);
            }
        })
    }
}

fn make(
    session: &Session<'_>,
    target: &TargetDirectory,
    record: &EntryRecord,
    name: &[u8],
) -> Result<(), EntryError> {
    activity::at(Activity::TargetNames);
    let node = match record.metadata.kind {
        EntryKind::Fifo => Some(NodeType::Fifo),
        EntryKind::Socket => Some(NodeType::Socket),
        EntryKind::CharDevice => Some(NodeType::CharacterDevice),
        EntryKind::BlockDevice => Some(NodeType::BlockDevice),
        _ => None,
    };
    session.permit.one_more(Limit::Creates);
    let result = match node {
        Some(node) => {
            let mode = session.local.attributes().closed_mode(&record.metadata);
            directory::make_node(&target.fd, name, node, mode, record.metadata.device)
        }
        None => {
            let content = record.symlink.as_deref().unwrap_or_default();
            directory::make_symlink(content, &target.fd, name)
        }
    };
    let last = record.destination_name().as_bytes();
    result.map_err(|e| session::not_made(target, name, last, e))
}

/// Opens an entry that was just created with O_PATH, after a check of its identity.
fn pin_made<'n>(
    local: &Local<'_>,
    target: &TargetDirectory,
    record: &EntryRecord,
    name: &'n [u8],
) -> Result<Made<'n>, EntryError> {
    let shown = || target.place.entry(record.destination_name().as_bytes());
    let fail = |e| entry_error(Side::Destination, Operation::Open, shown(), e);
    let pinned = path::pin_at(&target.fd, name).map_err(fail)?;
    let metadata = local.end.mounts.metadata(&stat::stat_fd(&pinned).map_err(fail)?);
    let own = target.facts.is_own(metadata.uid, local.end.privilege.uid);
    if own && is_alike(&metadata, &record.metadata) {
        return Ok(Made { name, pinned, metadata });
    }
    let words = "another entry has replaced this one";
    let (side, class) = (Side::Destination, ErrorClass::Escaped);
    Err(EntryError::plain(side, Operation::Check, class, shown(), words))
}

/// Sets the attributes of an entry that was just created.
fn dress(
    local: &Local<'_>,
    target: &TargetDirectory,
    record: &EntryRecord,
    made: &Made<'_>,
    attributes: &Attributes,
) -> Result<(), EntryError> {
    let rules = local.attributes();
    let shown = || target.place.entry(record.destination_name().as_bytes());
    let object = Object {
        fd: made.pinned.as_fd(),
        held: Held::Pinned,
        kind: record.metadata.kind,
        facts: &target.facts,
        made: true,
        replaces: None,
        inherits: target.default_acl,
        place: Some((target.fd.as_fd(), made.name)),
        path: &shown,
    };
    if rules.takes_acl_away(object, attributes) {
        xattr::remove(object.fd, object.held, ACCESS_ACL)
            .map_err(|e| entry_error(Side::Destination, Operation::SetXattr, shown(), e))?;
    }
    rules.set(object, &record.metadata, attributes, &made.metadata)?;
    rules.set_times(object, &record.metadata)
}

/// An entry that was just created, held open so that no other program can replace it.
struct Made<'a> {
    name: &'a [u8],
    pinned: OwnedFd,
    metadata: Metadata,
}

/// Whether an entry has the type that was just created and one name.
fn is_alike(now: &Metadata, wanted: &Metadata) -> bool {
    now.kind == wanted.kind && now.links == 1 && now.device == wanted.device
}
