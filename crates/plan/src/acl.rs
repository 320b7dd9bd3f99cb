//! The content of the extended attributes that hold POSIX ACLs.
//!
//! The format (linux/posix_acl_xattr.h): a 4-byte version, then entries of tag (2 bytes), permissions (2) and id (4),
//! little endian.

use std::collections::BTreeMap;

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;
/// Tags of entries, acl(5): a named user, the owning group, a named group, the mask.
pub(crate) const USER: u16 = 0x02;
const USER_OBJ: u16 = 0x01;
const GROUP_OBJ: u16 = 0x04;
pub(crate) const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Whether a value has the form of an ACL.
pub(crate) fn is_valid(value: &[u8]) -> bool {
    let version = value.get(..4).is_some_and(|version| version == VERSION.to_le_bytes());
    version && (value.len() - 4).is_multiple_of(ENTRY_BYTES)
}

/// The permissions of the owning group under an access ACL, in the lowest three bits. With an ACL the group bits of the
/// mode are the mask, so without the ACL they would allow more. `None`: the value is not an ACL.
pub fn owning_group(value: &[u8]) -> Option<u32> {
    if !is_valid(value) {
        return None;
    }
    let permissions = |wanted| permissions(value, wanted);
    Some(permissions(GROUP_OBJ)? & permissions(MASK).unwrap_or(0o7) & 0o7)
}

/// The permissions of the first entry with a tag.
fn permissions(value: &[u8], wanted: u16) -> Option<u32> {
    value[4..].chunks_exact(ENTRY_BYTES).find_map(|entry| {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        (tag == wanted).then(|| u32::from(u16::from_le_bytes([entry[2], entry[3]])) & 0o7)
    })
}

/// The most permission bits that new entries get under a default ACL; the kernel uses it instead of the umask. `None`:
/// the value is not an ACL.
pub fn creation_bits(value: &[u8]) -> Option<u32> {
    if !is_valid(value) {
        return None;
    }
    let permissions = |wanted| permissions(value, wanted);
    let group = permissions(MASK).or_else(|| permissions(GROUP_OBJ))?;
    Some(permissions(USER_OBJ)? << 6 | group << 3 | permissions(OTHER)?)
}

/// The same ACL with one entry for each named user and group, which has the permissions of all entries for it. Entries are in the order
/// of tags and ids, as setfacl(1) leaves them.
pub(crate) fn joined(value: &[u8]) -> Vec<u8> {
    let mut all = BTreeMap::new();
    for entry in value[4..].chunks_exact(ENTRY_BYTES) {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        *all.entry((tag, id)).or_insert(0) |= u16::from_le_bytes([entry[2], entry[3]]);
    }
    let mut joined = value[..4].to_vec();
    for ((tag, id), permissions) in all {
        joined.extend(tag.to_le_bytes());
        joined.extend(u16::to_le_bytes(permissions));
        joined.extend(u32::to_le_bytes(id));
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16)]) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, permissions) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(u32::MAX.to_le_bytes());
        }
        value
    }

    #[test]
    fn the_mask_bounds_the_owning_group() {
        assert_eq!(owning_group(&acl(&[(1, 6), (4, 0), (0x10, 6), (0x20, 0)])), Some(0));
        assert_eq!(owning_group(&acl(&[(1, 6), (4, 7), (0x10, 4), (0x20, 0)])), Some(4));
        assert_eq!(owning_group(&acl(&[(1, 6), (4, 5), (0x20, 0)])), Some(5));
        assert_eq!(owning_group(b"nonsense"), None);
        assert_eq!(owning_group(b""), None);
    }

    #[test]
    fn a_default_acl_takes_the_place_of_the_creation_mask() {
        assert_eq!(creation_bits(&acl(&[(1, 7), (4, 7), (0x20, 0)])), Some(0o770));
        assert_eq!(
            creation_bits(&acl(&[(1, 7), (2, 6), (4, 5), (0x10, 6), (0x20, 4)])),
            Some(0o764)
        );
        assert_eq!(creation_bits(&acl(&[(1, 7)])), None);
        assert_eq!(creation_bits(b"nonsense"), None);
    }
}
