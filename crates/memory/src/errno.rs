//! Error numbers of Linux.
use std::fmt;

/// The result of a call.
pub type Result<T> = std::result::Result<T, Errno>;

/// An error number as Linux counts them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(i32);

macro_rules! numbers {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal,)+) => {
        impl Errno {
            $($(#[doc = $doc])+ pub const $name: Self = Self($number);)+

            /// The name without the leading `E`.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)+
                    _ => None,
                }
            }
        }
    };
}

numbers! {
    /// No error of Linux: the call never returns. A scheduler suspends its caller.
    HANGS = -1,
    /// The owner, the kernel or a flag of the inode forbids it.
    PERM = 1,
    /// There is no such name.
    NOENT = 2,
    /// A signal arrived.
    INTR = 4,
    /// The device failed.
    IO = 5,
    /// A socket or device cannot be opened.
    NXIO = 6,
    /// An extended attribute is too large.
    TOOBIG = 7,
    /// The handle is not open in that way.
    BADF = 9,
    /// No memory is left.
    NOMEM = 12,
    /// Permissions forbid it.
    ACCES = 13,
    /// The object is in use.
    BUSY = 16,
    /// The name exists.
    EXIST = 17,
    /// The two places are on different file systems.
    XDEV = 18,
    /// A directory is needed.
    NOTDIR = 20,
    /// A directory is not allowed.
    ISDIR = 21,
    /// An argument is not valid.
    INVAL = 22,
    /// The file would become too large.
    FBIG = 27,
    /// No space or inode is left.
    NOSPC = 28,
    /// The file system is read-only.
    ROFS = 30,
    /// The inode has too many names.
    MLINK = 31,
    /// A name of an extended attribute is too long, or a buffer too small.
    RANGE = 34,
    /// The name is too long.
    NAMETOOLONG = 36,
    /// The directory is not empty.
    NOTEMPTY = 39,
    /// A symbolic link, where none is followed, or too many of them.
    LOOP = 40,
    /// There is no such extended attribute.
    NODATA = 61,
    /// The file system does not have this.
    NOTSUP = 95,
    /// The server did not answer in time.
    TIMEDOUT = 110,
    /// The server does not know the object any more.
    STALE = 116,
    /// The quota is used up.
    DQUOT = 122,
}

impl Errno {
    /// The error of that number.
    pub const fn new(number: i32) -> Self {
        Self(number)
    }

    /// The number, as `errno` has it.
    pub const fn number(self) -> i32 {
        self.0
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) if self.0 > 0 => write!(f, "E{name}"),
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl std::error::Error for Errno {}
