//! The one request that agents answer now: what is at the root.
use serde::{Deserialize, Serialize};

/// A request, the first message of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Answered by one message, an [`Inspection`].
    Inspect,
}

/// Why a request is refused that this version does not have.
pub const UNKNOWN_REQUEST: &str = "this version does not have this request";

/// What is at a root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    /// What it is.
    pub kind: RootKind,
    /// Bytes that an ordinary user may still write to its file system; `None`: not known.
    pub free_bytes: Option<u64>,
    /// Whether the user of the agent may write to it.
    pub is_writable: bool,
}

/// What a path leads to; symbolic links are followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RootKind {
    /// Nothing.
    Missing,
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// Something else, such as a device.
    Other,
    /// It cannot be told, for this reason.
    Unknown(String),
}

/// The bytes of a request or answer.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_stdvec(message).expect("memory takes everything, and all types have a form")
}

/// Reads a request or an answer; `None`: it is none, or has more bytes than one.
pub fn decode<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Option<T> {
    let (message, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_back_and_others_refused() {
        let found = Inspection {
            kind: RootKind::Unknown("why".into()),
            free_bytes: Some(7),
            is_writable: true,
        };
        assert_eq!(decode::<Inspection>(&encode(&found)), Some(found));
        assert_eq!(decode::<Request>(&[1]), None);
        assert_eq!(decode::<Request>(&[0, 0]), None);
    }
}
