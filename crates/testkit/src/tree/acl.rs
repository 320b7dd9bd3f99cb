//! POSIX ACLs in the form in which the kernel takes them as extended attributes.

/// Name of the attribute with the access ACL.
pub const ACCESS: &str = "system.posix_acl_access";
/// Name of the attribute with the default ACL of a directory.
pub const DEFAULT: &str = "system.posix_acl_default";

const NO_ID: u32 = u32::MAX;

/// An access control list; permissions are the three low bits of a mode.
#[derive(Clone, Debug)]
pub struct Acl {
    /// Permissions of owner, owning group and others.
    pub base: [u16; 3],
    /// The upper bound for everybody but owner and others.
    pub mask: u16,
    /// Named users, ascending.
    pub users: Vec<(u32, u16)>,
    /// Named groups, ascending.
    pub groups: Vec<(u32, u16)>,
}

impl Acl {
    /// The attribute value: version 2, then tag, permissions and id of each entry in the kernel's order.
    pub fn encode(&self) -> Vec<u8> {
        let mut entries = vec![(0x01, self.base[0], NO_ID)];
        entries.extend(self.users.iter().map(|(id, permissions)| (0x02, *permissions, *id)));
        entries.push((0x04, self.base[1], NO_ID));
        entries.extend(self.groups.iter().map(|(id, permissions)| (0x08, *permissions, *id)));
        entries.push((0x10, self.mask, NO_ID));
        entries.push((0x20, self.base[2], NO_ID));
        let mut bytes = 2_u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend(u16::to_le_bytes(tag));
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }
}
