//! Names and paths as bytes. A path inside a job is a list of components, never a string that the kernel resolves on
//! its own.
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::escape::{percent_decode, percent_encode};

/// Why bytes are not a valid name or path in a tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// An empty component.
    #[error("empty name")]
    Empty,
    /// `.` or `..`, which would let a path leave its tree.
    #[error("'.' and '..' are not allowed here")]
    Dots,
    /// A slash or a NUL inside one name.
    #[error("a name may not contain '/' or NUL")]
    Separator,
}

/// One name in a directory: any bytes but `/` and NUL, never empty, `.` or `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<[u8]>);

impl Name {
    /// A name from these bytes, if they are valid.
    pub fn new(bytes: impl Into<Box<[u8]>>) -> Result<Self, NameError> {
        let bytes = bytes.into();
        check_component(&bytes)?;
        Ok(Self(bytes))
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

fn check_component(bytes: &[u8]) -> Result<(), NameError> {
    match bytes {
        [] => Err(NameError::Empty),
        b"." | b".." => Err(NameError::Dots),
        other if other.contains(&b'/') || other.contains(&0) => Err(NameError::Separator),
        _ => Ok(()),
    }
}

/// A path below the root of a tree: zero or more checked components, joined by `/`.
///
/// The empty path is the root itself. A path never contains `.`, `..` or an empty component, so a task from another
/// process cannot name anything outside its tree.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TreePath(Vec<u8>);

impl TreePath {
    /// The root of the tree.
    pub fn root() -> Self {
        Self::default()
    }

    /// A path from components joined by `/`, if each is valid; empty bytes are the root.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, NameError> {
        let bytes = bytes.into();
        if !bytes.is_empty() {
            bytes.split(|b| *b == b'/').try_for_each(check_component)?;
        }
        Ok(Self(bytes))
    }

    /// The path of the entry `name` in this directory.
    #[must_use]
    pub fn join(&self, name: &[u8]) -> Self {
        debug_assert!(check_component(name).is_ok());
        self.join_bytes(name)
    }

    /// The path of `below` relative to this directory.
    #[must_use]
    pub fn join_path(&self, below: &Self) -> Self {
        if below.is_root() { self.clone() } else { self.join_bytes(&below.0) }
    }

    fn join_bytes(&self, below: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + below.len());
        bytes.extend_from_slice(&self.0);
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(below);
        Self(bytes)
    }

    /// The components, outermost first.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|b| *b == b'/').filter(|c| !c.is_empty())
    }

    /// Number of components; the root has none.
    pub fn depth(&self) -> usize {
        self.components().count()
    }

    /// The directory that holds this entry and the entry's name; `None` for the root.
    pub fn split_last(&self) -> Option<(Self, &[u8])> {
        if self.0.is_empty() {
            return None;
        }
        match self.0.iter().rposition(|b| *b == b'/') {
            Some(at) => Some((Self(self.0[..at].to_vec()), &self.0[at + 1..])),
            None => Some((Self::root(), &self.0)),
        }
    }

    /// Whether this is the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The components joined by `/`, without a leading slash.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A path as a user typed it: any bytes, absolute or relative, resolved once when the job starts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PathBytes(pub Vec<u8>);

impl PathBytes {
    /// The path as a standard library type.
    pub fn to_path(&self) -> PathBuf {
        PathBuf::from(std::ffi::OsString::from_vec(self.0.clone()))
    }

    /// This path with `below` appended.
    #[must_use]
    pub fn join(&self, below: &TreePath) -> Self {
        let mut bytes = self.0.clone();
        if !below.is_root() {
            if !bytes.ends_with(b"/") && !bytes.is_empty() {
                bytes.push(b'/');
            }
            bytes.extend_from_slice(below.as_bytes());
        }
        Self(bytes)
    }

    /// The path relative to `top`, if it is below `top`.
    pub fn below(&self, top: &Self) -> Option<TreePath> {
        let below = self.0.strip_prefix(top.0.strip_suffix(b"/").unwrap_or(&top.0))?;
        if !below.is_empty() && !below.starts_with(b"/") {
            return None;
        }
        let parts: Vec<&[u8]> =
            below.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
        TreePath::new(parts.join(&b'/')).ok()
    }
}

impl From<&OsStr> for PathBytes {
    fn from(value: &OsStr) -> Self {
        Self(value.as_bytes().to_vec())
    }
}

macro_rules! show_escaped {
    ($type:ty, $bytes:expr) => {
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let bytes: fn(&$type) -> &[u8] = $bytes;
                write!(f, "{:?}", String::from_utf8_lossy(bytes(self)))
            }
        }
    };
}
show_escaped!(Name, |n| &n.0);
show_escaped!(TreePath, |n| &n.0);
show_escaped!(PathBytes, |n| &n.0);

/// Text formats carry percent-escaped names, binary formats the bytes.
fn serialize_bytes<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        serializer.serialize_str(&percent_encode(bytes))
    } else {
        serializer.serialize_bytes(bytes)
    }
}

fn deserialize_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    if deserializer.is_human_readable() {
        Ok(percent_decode(String::deserialize(deserializer)?.as_bytes()))
    } else {
        Ok(serde_bytes::ByteBuf::deserialize(deserializer)?.into_vec())
    }
}

macro_rules! serde_as_bytes {
    ($type:ty, $bytes:expr, $make:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let bytes: fn(&$type) -> &[u8] = $bytes;
                serialize_bytes(bytes(self), serializer)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let make: fn(Vec<u8>) -> Result<$type, NameError> = $make;
                make(deserialize_bytes(deserializer)?).map_err(D::Error::custom)
            }
        }
    };
}
serde_as_bytes!(Name, |n| &n.0, Name::new);
serde_as_bytes!(TreePath, |n| &n.0, TreePath::new);
serde_as_bytes!(PathBytes, |n| &n.0, |b| Ok(PathBytes(b)));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_cannot_leave_their_tree() {
        for bad in ["..", "a/..", "a//b", "/a", "a/", "./a", "a\0b"] {
            assert!(TreePath::new(bad.as_bytes()).is_err(), "{bad:?} was accepted");
        }
        assert!(serde_json::from_str::<TreePath>("\"a/%2e%2e/b\"").is_err());
    }

    #[test]
    fn paths_are_put_together() {
        let path = |bytes: &[u8]| TreePath::new(bytes).unwrap();
        assert_eq!(path(b"a/b").join_path(&path(b"c/d")), path(b"a/b/c/d"));
        assert_eq!(TreePath::root().join_path(&path(b"c")), path(b"c"));
        assert_eq!(path(b"a").join_path(&TreePath::root()), path(b"a"));
    }

    #[test]
    fn paths_survive_text_and_keep_odd_bytes() {
        let path = TreePath::root().join(b"a\n\xff%").join(b" x ");
        let text = serde_json::to_string(&path).unwrap();
        assert_eq!(serde_json::from_str::<TreePath>(&text).unwrap(), path);
        assert_eq!(path.split_last().unwrap().1, b" x ");
        assert_eq!(path.depth(), 2);
    }
}
