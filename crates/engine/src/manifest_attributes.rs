//! Attributes of an entry that statx does not show, as manifests record them.
use dmover_digest::Hasher;
use dmover_local::attributes::{Attributes, flags_differ, is_acl, is_never_copied};
use dmover_local::entry_attributes;
use dmover_model::{
    Attribute, DifferenceKind, DifferenceSet, EntryError, EntryRecord, Extended, HashType,
    NamedDigest,
};
use dmover_plan::verify::Differing;
use serde_bytes::ByteBuf;

use crate::context::Engine;
use crate::directory_pair::{self, DirectoryPair};
use crate::settable::Settable;

/// An attribute's name and value.
type Named = (Vec<u8>, Vec<u8>);

/// A namespace whose attributes only privileged processes can see (xattr(7)).
const PRIVILEGED: &[u8] = b"trusted.";

/// Extended attributes sorted by name, without ACLs and system attributes.
pub(crate) fn plain_xattrs(attributes: &Attributes) -> Vec<&Named> {
    let plain = |(name, _): &&Named| !is_acl(name) && !is_never_copied(name);
    let mut xattrs: Vec<_> = attributes.xattrs.iter().filter(plain).collect();
    xattrs.sort();
    xattrs
}

/// The side of the attributes: ids in ACLs of the source are mapped for a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    Source,
    Destination,
}

/// ACLs sorted by name, as the destination should have them.
pub(crate) fn acls(settable: &Settable, attributes: &Attributes, whose: Whose) -> Vec<Named> {
    let maps = whose == Whose::Source && !settable.ids.is_identity();
    let acls = attributes.xattrs.iter().filter(|(name, _)| is_acl(name));
    let mut acls: Vec<Named> = acls
        .map(|(name, value)| {
            let mapped = maps.then(|| settable.ids.posix_acl(value)).flatten();
            (name.clone(), mapped.unwrap_or_else(|| value.clone()))
        })
        .collect();
    acls.sort();
    acls
}

/// The attributes for a manifest.
pub(crate) fn extended(engine: &Engine, attributes: &Attributes, whose: Whose) -> Extended {
    let keeps = |attribute| engine.spec.policy.preserve.has(attribute);
    let named = |(name, value): &Named| NamedDigest {
        name: ByteBuf::from(name.clone()),
        digest: Hasher::digest(HashType::Blake3, value),
    };
    // What is not open has no flags to read.
    let open = !attributes.is_pinned;
    let Attributes { flags, project, .. } = attributes;
    let mapped = match whose {
        Whose::Source => engine.settable.ids.project(project.id),
        Whose::Destination => project.id,
    };
    Extended {
        xattrs: keeps(Attribute::Xattr)
            .then(|| plain_xattrs(attributes).into_iter().map(named).collect()),
        acls: keeps(Attribute::Acl)
            .then(|| acls(&engine.settable, attributes, whose).iter().map(named).collect()),
        flags: (open && keeps(Attribute::Flags)).then_some(*flags),
        project: (open && keeps(Attribute::Project)).then_some((mapped, project.inherit)),
    }
}

/// The attributes of a copied entry, if a manifest is written.
pub(crate) fn extended_to_keep(engine: &Engine, attributes: &Attributes) -> Extended {
    if !engine.proof.keeps_what_is_there() {
        return Extended::default();
    }
    let extended = extended(engine, attributes, Whose::Source);
    Extended {
        flags: extended.flags.filter(|_| attributes.knows_flags),
        // Without a project of its own an entry takes that of its new directory.
        project: extended.project.filter(|_| attributes.has_project()),
        ..extended
    }
}

/// How the present attributes of an entry differ from its manifest record.
pub(crate) fn extended_differences(
    engine: &Engine,
    recorded: &Extended,
    present: &Attributes,
    whose: Whose,
) -> Differing {
    let found = extended(engine, present, whose);
    // Who wrote the manifest may have seen less than who reads it, or more.
    let is_trusted = |named: &&NamedDigest| named.name.starts_with(PRIVILEGED);
    let listed = recorded.xattrs.iter().flatten().any(|named| is_trusted(&named));
    let both_see = listed && engine.end.privilege.sees_trusted;
    let seen = |extended: &Extended| -> Option<Vec<NamedDigest>> {
        let counts = |named: &&NamedDigest| both_see || !is_trusted(named);
        extended.xattrs.as_ref().map(|all| all.iter().filter(counts).cloned().collect())
    };
    let (mut kinds, mut unsettable) = (DifferenceSet::NONE, DifferenceSet::NONE);
    let mut note = |kind, differs: bool| {
        if differs {
            kinds.insert(kind);
        }
    };
    let (wanted, there) = (seen(recorded), seen(&found));
    let is_there = |name: &[u8]| there.iter().flatten().any(|other| other.name == name);
    let counts =
        |named: &NamedDigest| engine.settable.xattr_counts(&named.name, is_there(&named.name));
    let mut settable = wanted.clone();
    if let Some(all) = &mut settable {
        all.retain(counts);
    }
    note(DifferenceKind::Xattr, differ(settable.as_ref(), there.as_ref()));
    note(DifferenceKind::Acl, differ(recorded.acls.as_ref(), found.acls.as_ref()));
    note(DifferenceKind::Project, differ(recorded.project.as_ref(), found.project.as_ref()));
    let flags = recorded.flags.zip(found.flags);
    let settable_flags =
        flags.map(|(one, other)| (engine.settable.settable_flags(one, other), other));
    let unlike =
        |flags: Option<(u32, u32)>| flags.is_some_and(|(one, other)| flags_differ(one, other));
    note(DifferenceKind::Flags, unlike(settable_flags));
    if !kinds.has(DifferenceKind::Xattr) && differ(wanted.as_ref(), there.as_ref()) {
        unsettable.insert(DifferenceKind::Xattr);
    }
    if !kinds.has(DifferenceKind::Flags) && unlike(flags) {
        unsettable.insert(DifferenceKind::Flags);
    }
    Differing { kinds, unsettable }
}

/// The attributes for a manifest of an entry without content that is skipped as equal.
pub(crate) fn extended_of_skipped(
    engine: &Engine,
    level: &DirectoryPair,
    record: &EntryRecord,
) -> Result<Extended, EntryError> {
    if !engine.proof.keeps_what_is_there() {
        return Ok(Extended::default());
    }
    let follows = directory_pair::follows(&engine.spec, level);
    let entry = entry_attributes::open_entry(&engine.local(), &level.source, record, follows)?;
    Ok(extended_to_keep(engine, &entry.attributes))
}

/// Whether both values are known and differ.
fn differ<T: PartialEq>(recorded: Option<&T>, found: Option<&T>) -> bool {
    recorded.is_some() && found.is_some() && recorded != found
}
