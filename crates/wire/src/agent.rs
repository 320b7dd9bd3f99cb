//! The messages between a job and an agent, which serves one tree at another host.
//!
//! Each request opens a channel, and its answers come on that channel. Directories and files have no numbers: a request
//! names them by path and by the identity that they had, so that an agent may close what it has not used for a while.
use crate::streams::RelayToken;
use bytes::Bytes;
use dmover_model::{
    AttributeSet, ByteRange, Digest, DigestPolicy, EntryError, FollowLinks, HashType, Identity,
    Metadata, Name, PathBytes, Revisit, Shape, Timestamp, TreePath, Version,
};
use dmover_tree::{EntryAttributes, KnownBlocks, ListedKind, Needs, Owner, RemoteRoot, Seen};
use serde::{Deserialize, Serialize};

/// A request: the first message of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// What is at the root; answered with an [`Inspection`].
    Inspect,
    /// Opens the root as a source, before all other requests but `Inspect`; answered with a [`Begun`].
    Begin(Begin),
    /// Opens a directory below the root, or the one that contains a root that is no directory; answered with an
    /// [`Answer`] of its [`Metadata`].
    Open {
        /// Its path.
        at: TreePath,
        /// The path may lead through symbolic links.
        follows: bool,
    },
    /// Opens a directory in another one; answered with an [`Answer`] of its [`Metadata`].
    Enter {
        /// The directory above it.
        directory: DirectoryAt,
        /// Its name there.
        name: Name,
        /// Also through a symbolic link.
        follows: bool,
    },
    /// Reads a directory; answered with [`ListPart`]s.
    List {
        /// The directory.
        directory: DirectoryAt,
        /// Looks at the entries.
        looks: bool,
        /// Looks at what symbolic links lead to.
        follows: bool,
    },
    /// Looks at entries; answered with a list of [`Answer`]s of [`Seen`], in the order of the names.
    Look {
        /// Their directory.
        directory: DirectoryAt,
        /// Their names.
        names: Vec<Name>,
        /// Looks at what symbolic links lead to.
        follows: bool,
    },
    /// Reads the attributes of an entry that is no regular file; answered with an [`Answer`] of its [`Metadata`] and
    /// [`EntryAttributes`].
    Attributes {
        /// Its directory.
        directory: DirectoryAt,
        /// Its name; `None`: the directory itself.
        name: Option<Name>,
        /// Those of what a symbolic link leads to.
        follows: bool,
    },
    /// Opens regular files; answered with lists of [`Answer`]s of [`Head`], which together have one for each name, in order.
    Heads {
        /// Their directory.
        directory: DirectoryAt,
        /// Their names.
        names: Vec<Name>,
        /// What the names are symbolic links to.
        follows: bool,
    },
    /// Reads a range of a file; answered with [`ContentPart`]s.
    Content {
        /// The file.
        file: FileAt,
        /// The range; the file may end earlier.
        range: ByteRange,
    },
    /// What follows at an offset of a file; answered with an [`Answer`] of [`NextData`](dmover_tree::NextData).
    NextData {
        /// The file.
        file: FileAt,
        /// The offset.
        at: u64,
    },
    /// The present metadata of a file; answered with an [`Answer`] of [`Metadata`].
    Now {
        /// The file.
        file: FileAt,
    },
    /// Hashes a range of a file; answered with [`DigestPart`]s.
    Digests {
        /// The file.
        file: FileAt,
        /// How the digests are computed.
        shapes: Vec<Shape>,
        /// The offset in the file at which the content of the shapes begins.
        start: u64,
        /// The range in that content. It begins where a piece of each shape begins.
        range: ByteRange,
    },
    /// Reads directories, perhaps with all that is below them, depth first and in the order of lists, until the answer is as large as
    /// one may be; answered with [`WalkPart`]s. Symbolic links are not followed.
    Walk {
        /// The directory above them.
        directory: DirectoryAt,
        /// Their names there.
        names: Vec<Name>,
        /// What is sent of them besides lists and attributes.
        needs: Needs,
    },
    /// Reads those blocks of a file whose digests differ from these; answered with [`ChangedPart`]s.
    Changed {
        /// The file.
        file: FileAt,
        /// What the other side has. The file must be as long.
        known: Vec<KnownBlocks>,
    },
    /// Serves the root to a third host as well, on a connection of its own: the messages of the channel are its bytes in both
    /// directions, beginning with the greetings. The third host may ask for data streams, which do not pass the host that
    /// sends this request.
    Connect {
        /// The only way of following symbolic links that the third host may ask for.
        follow: FollowLinks,
    },
    /// Passes data streams on to another host until the channel ends; answered with a [`RelayAnswer`].
    Relay(RelayOrder),
    /// Moves random bytes, to see how fast that is.
    Measure(Measure),
    /// The same as `Begin` for a tree that the agents of several hosts serve to one job: file systems are numbered by what is the same
    /// on all hosts; answered with [`BegunShared`].
    BeginShared(Begin),
    /// The names of users and groups there; answered with an [`Answer`] of a list of options of string, one for each owner.
    Names(Vec<Owner>),
    /// Looks at entries by their paths below the root, not through symbolic links; answered with a list of
    /// [`Looked`](dmover_tree::Looked), in the order of the paths.
    Objects(Vec<TreePath>),
    /// Reads the access ACLs of entries, given by their paths below the root and not through symbolic links; answered with a list of
    /// [`LookedAcl`](dmover_tree::LookedAcl), in the order of the paths.
    Acls(Vec<TreePath>),
    /// Checks directories of an earlier pass; answered with lists of [`CatalogPart`](dmover_tree::CatalogPart)s of
    /// [`ListedName`](dmover_model::ListedName)s, the last of which is empty. Names are sent only of directories that are on the file system of
    /// the root and have another state.
    Revisit(Vec<Revisit>),
    /// Looks at all entries of directories, given by their paths below the root; answered with lists of
    /// [`CatalogPart`](dmover_tree::CatalogPart)s of [`DescribedEntry`](dmover_tree::DescribedEntry)s, the last of which is empty.
    Describe(Vec<TreePath>),
    /// What the other side has sent over data streams; answered with an option of
    /// [`SentSegments`](dmover_model::SentSegments), none without streams.
    Sent,
}

/// The most entries or directories of one request for a catalog.
pub const CATALOG_MAX: usize = 1024;

/// The most owners of one request.
pub const NAMES_MAX: usize = 1024;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measure {
    /// The agent sends bytes from memory for so many milliseconds, and ends the channel.
    Send(u32),
    /// The agent drops what comes, and then answers with [`Measured`].
    Receive,
    /// The same, but it writes what comes to a file without a name in the directory at the root, and flushes it.
    Write,
    /// The agent sends what the last `Write` has written, from storage, for at most so many milliseconds.
    Read(u32),
}

/// What has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// How many bytes.
    pub bytes: u64,
}

/// Which data streams a relay passes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayOrder {
    /// Connections that do not begin with it are closed.
    pub token: RelayToken,
    /// The names and addresses of the host that streams lead to.
    pub targets: Vec<String>,
    /// The first and the last of its ports that they may lead to; zero: any.
    pub target_ports: (u16, u16),
    /// The first and the last port on which the relay may listen; zero: any.
    pub ports: (u16, u16),
    /// The congestion control, by the kernel's name.
    pub congestion: Option<String>,
    /// Bytes of the buffers in each direction.
    pub buffer_bytes: Option<u32>,
}

/// The answer to [`Request::Relay`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RelayAnswer {
    /// The relay listens.
    Listens {
        /// The port.
        port: u16,
        /// Addresses at which it may be reached, the best one first.
        addresses: Vec<String>,
    },
    /// It does not, for this reason.
    Refuses(String),
}

/// What begins the reason for a request that the configuration of the agent does not permit.
pub const NOT_ACCEPTED: &str = "not accepted: ";

/// Why a request is refused that this version does not have.
pub const UNKNOWN_REQUEST: &str = "this version does not have this request";

/// The most bytes of a file of which an agent sends more than the head.
pub const SHORT_MAX: u64 = 256 << 10;

/// The most directories of one walk.
pub const WALK_MAX: usize = 256;
/// A walk ends after so many entries.
pub const WALK_ENTRIES: usize = 8 << 10;
/// A directory with more entries is not sent unasked: its list comes in parts.
pub const WALKED_ENTRIES_MAX: usize = 4 << 10;

/// The most pieces that one request may ask the digests of, over all shapes.
pub const PIECES_MAX: u64 = 2 << 20;

/// The result of a request about an entry.
pub type Answer<T> = Result<T, EntryError>;

/// How a job reads the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// The root as the user of the job has typed it, for errors.
    pub display: PathBytes,
    /// Which symbolic links are followed.
    pub follow: FollowLinks,
    /// Which attributes are read.
    pub preserve: AttributeSet,
    /// What is sent with the head of a file of at most [`SHORT_MAX`] bytes.
    pub with_head: WithHead,
}

/// The answer to [`Request::BeginShared`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BegunShared {
    /// The answer to `Begin`.
    pub begun: Begun,
    /// What is mounted below the root, in the order of the paths.
    pub mounts: Vec<SharedMount>,
}

/// A mount below the root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedMount {
    /// Its path below the root.
    pub path: TreePath,
    /// The directory there; `None`: it cannot be looked at.
    pub identity: Option<Identity>,
}

/// What an agent sends with the head of a short file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WithHead {
    /// Its content, unless it has holes.
    Content,
    /// The digests of its pieces.
    Digests {
        /// The hash function.
        hash: HashType,
        /// The length of a leaf in bytes, for a digest of a tree; `None`: a plain digest.
        leaf: Option<u64>,
        /// Content of at most so many bytes has a plain digest.
        plain_up_to: u64,
        /// The length of a piece in bytes; `None`: by the size of the file.
        piece: Option<u64>,
    },
}

impl WithHead {
    /// The digests of a policy.
    pub fn digests(policy: &DigestPolicy) -> Self {
        let DigestPolicy { hash, leaf_bytes, plain_up_to_bytes, piece_bytes, .. } = *policy;
        let (leaf, plain_up_to, piece) = (leaf_bytes, plain_up_to_bytes, piece_bytes);
        Self::Digests { hash, leaf, plain_up_to, piece }
    }

    /// How the digests of a file of this length are computed; `None`: its content is sent.
    pub fn shape(&self, length: u64) -> Option<Shape> {
        match *self {
            Self::Content => None,
            Self::Digests { hash, leaf, plain_up_to, piece } => {
                let policy = DigestPolicy {
                    leaf_bytes: leaf,
                    plain_up_to_bytes: plain_up_to,
                    piece_bytes: piece,
                    ..DigestPolicy::plain(hash)
                };
                Some(policy.shape(length))
            }
        }
    }
}

/// The answer to [`Request::Begin`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Begun {
    /// The root is open.
    Root {
        /// What it is.
        root: RemoteRoot,
        /// The clock of the agent's host, if it sets the times of entries on the file system of the root.
        clock: Option<Timestamp>,
    },
    /// The root cannot be read.
    Refused {
        /// Why, in one line.
        message: String,
        /// What the user can do.
        hint: String,
    },
}

/// What is at a root, for a user who checks a connection.
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

/// A directory that was opened before.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DirectoryAt {
    /// Its path below the root.
    pub path: TreePath,
    /// The path may lead through symbolic links.
    pub follows: bool,
    /// What it was when it was opened.
    pub identity: Identity,
}

/// A file that was opened before.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileAt {
    /// Its directory.
    pub directory: DirectoryAt,
    /// Its name there.
    pub name: Name,
    /// The name may be a symbolic link to it.
    pub follows: bool,
    /// What it was when it was opened.
    pub version: Version,
}

/// An entry as its directory lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedEntry {
    /// Its name, which may be none that a job can work with.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// Its type.
    pub kind: ListedKind,
    /// Its inode number.
    pub inode: u64,
    /// What a look has shown; `None`: nobody looked, or it failed.
    pub seen: Option<Seen>,
}

/// Part of the answer to [`Request::List`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListPart {
    /// The next entries.
    Entries(Vec<ListedEntry>),
    /// There are no more.
    End,
    /// The directory cannot be read to its end.
    Failed(EntryError),
}

/// Part of the answer to [`Request::Walk`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WalkPart {
    /// The next directories.
    pub directories: Vec<Walked>,
    /// There are no more.
    pub is_last: bool,
}

/// A directory of a [`Request::Walk`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Walked {
    /// Its path below the root.
    pub path: TreePath,
    /// What it is and has; `None`: it cannot be read, or is too large to be sent unasked, and nothing below it is sent.
    pub found: Option<WalkedDirectory>,
}

/// What a directory of a walk is, and all that it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WalkedDirectory {
    /// Its metadata after opening.
    pub metadata: Metadata,
    /// What [`Request::Attributes`] shows of it.
    pub attributes: Answer<(Metadata, EntryAttributes)>,
    /// Its entries, with looks.
    pub entries: Vec<ListedEntry>,
    /// Some of its regular files, opened. Those that cannot be opened, are large or have several names are not among them.
    pub heads: Vec<(Name, Head)>,
}

/// An open regular file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Its metadata, from a time at which any later change would show in them.
    pub metadata: Metadata,
    /// Its attributes.
    pub attributes: Answer<EntryAttributes>,
    /// What was asked for with the head, if the file is short.
    pub short: Option<Short>,
}

/// What comes with the head of a short file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Short {
    /// Its whole content, or digests of it.
    pub content: ShortContent,
    /// The metadata of the file after it was read.
    pub after: Metadata,
}

/// The whole content of a short file, or digests of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShortContent {
    /// The bytes.
    Bytes(#[serde(with = "serde_bytes")] Vec<u8>),
    /// How its digests were computed, and those of its pieces.
    Digests(Shape, Vec<Digest>),
}

/// Part of the answer to [`Request::Content`]. `B`: bytes, perhaps borrowed, so that they are not copied for a message or
/// out of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(
    serialize = "B: serde_bytes::Serialize",
    deserialize = "B: serde_bytes::Deserialize<'de>"
))]
pub enum ContentPart<B = Vec<u8>> {
    /// The next bytes. They are the end of the message.
    Data(#[serde(with = "serde_bytes")] B),
    /// So many zeroes.
    Hole(u64),
    /// The range or the file ends here; the metadata of the file after it was read.
    End(Metadata),
    /// It cannot be read further.
    Failed(EntryError),
}

/// Part of the answer to [`Request::Changed`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(
    serialize = "B: serde_bytes::Serialize",
    deserialize = "B: serde_bytes::Deserialize<'de>"
))]
pub enum ChangedPart<B = Vec<u8>> {
    /// The next blocks that differ: their offset, and their bytes, which are the end of the message.
    Blocks(u64, #[serde(with = "serde_bytes")] B),
    /// There are no more.
    End,
    /// The file cannot be read further, or is shorter.
    Failed(EntryError),
}

/// Part of the answer to [`Request::Digests`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DigestPart {
    /// So many bytes more were hashed.
    Progress(u64),
    /// The digests of the pieces, for each shape.
    Done(Vec<Vec<Digest>>),
    /// The content cannot be read, or is shorter.
    Failed(EntryError),
}

/// Encodes an answer that is mostly content of files, which is not compressed.
pub fn encode_content<T: Serialize>(what: &T) -> Bytes {
    encode_content_into(what, Vec::new()).into()
}

/// The same into a buffer of an earlier message.
pub fn encode_content_into<T: Serialize>(what: &T, buffer: Vec<u8>) -> Vec<u8> {
    crate::encoding::encode_plain(what, buffer)
}
