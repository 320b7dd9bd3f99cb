//! Error numbers by name, for rule files and command lines.

use anyhow::{Result, bail};

/// The names that rule files may use; any other error is written as its number.
const NAMES: &[(&str, i32)] = &[
    ("E2BIG", libc::E2BIG),
    ("EACCES", libc::EACCES),
    ("EAGAIN", libc::EAGAIN),
    ("EBADF", libc::EBADF),
    ("EBUSY", libc::EBUSY),
    ("EDQUOT", libc::EDQUOT),
    ("EEXIST", libc::EEXIST),
    ("EFBIG", libc::EFBIG),
    ("EHOSTDOWN", libc::EHOSTDOWN),
    ("EINTR", libc::EINTR),
    ("EINVAL", libc::EINVAL),
    ("EIO", libc::EIO),
    ("EISDIR", libc::EISDIR),
    ("ELOOP", libc::ELOOP),
    ("EMFILE", libc::EMFILE),
    ("EMLINK", libc::EMLINK),
    ("ENAMETOOLONG", libc::ENAMETOOLONG),
    ("ENFILE", libc::ENFILE),
    ("ENODATA", libc::ENODATA),
    ("ENODEV", libc::ENODEV),
    ("ENOENT", libc::ENOENT),
    ("ENOMEM", libc::ENOMEM),
    ("ENOSPC", libc::ENOSPC),
    ("ENOSYS", libc::ENOSYS),
    ("ENOTCONN", libc::ENOTCONN),
    ("ENOTDIR", libc::ENOTDIR),
    ("ENOTEMPTY", libc::ENOTEMPTY),
    ("ENXIO", libc::ENXIO),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("EPERM", libc::EPERM),
    ("ERANGE", libc::ERANGE),
    ("EREMOTEIO", libc::EREMOTEIO),
    ("EROFS", libc::EROFS),
    ("ESHUTDOWN", libc::ESHUTDOWN),
    ("ESTALE", libc::ESTALE),
    ("ETIMEDOUT", libc::ETIMEDOUT),
    ("ETXTBSY", libc::ETXTBSY),
    ("EXDEV", libc::EXDEV),
];

/// The error number of a name such as `ENOSPC`, or of a decimal number.
pub fn errno_by_name(name: &str) -> Result<i32> {
    if let Some((_, number)) = NAMES.iter().find(|(known, _)| *known == name) {
        return Ok(*number);
    }
    match name.parse() {
        Ok(number) if (1..4096).contains(&number) => Ok(number),
        _ => bail!("unknown error name {name:?}"),
    }
}

/// The name of an error number, or the number where it has no name in the table.
pub fn errno_name(number: i32) -> String {
    NAMES
        .iter()
        .find(|(_, known)| *known == number)
        .map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
}

/// Serde form of an error number: its name.
pub(crate) mod named {
    use serde::{Deserialize, Deserializer, Serializer, de};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum NameOrNumber {
        Name(String),
        Number(i32),
    }

    #[allow(clippy::trivially_copy_pass_by_ref)] // the signature that serde calls
    pub(crate) fn serialize<S: Serializer>(errno: &i32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::errno_name(*errno))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
        match NameOrNumber::deserialize(deserializer)? {
            NameOrNumber::Name(name) => super::errno_by_name(&name).map_err(de::Error::custom),
            NameOrNumber::Number(number) => Ok(number),
        }
    }
}
