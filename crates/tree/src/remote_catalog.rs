//! What a tree that is read through messages tells for the catalog, with which the next pass detects renames.
//!
//! Each request is about many directories or entries, because each is a round trip. All answers are of the time of the request:
//! nothing is kept, and nothing that was read before counts.
use dmover_model::{
    DirectoryState, EntryError, ListedName, Metadata, Name, Object, Revisit, TreePath,
};
use serde::{Deserialize, Serialize};

/// What a look at an entry shows for the catalog.
pub type Looked = Result<(Metadata, Object), EntryError>;

/// The access ACL of an entry as an extended attribute has it; `None`: it has none.
pub type LookedAcl = Result<Option<Vec<u8>>, EntryError>;

/// An entry of a directory, and what a look at it shows.
pub type DescribedEntry = (Name, Looked);

/// Part of what is told of directories, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CatalogPart<E> {
    /// The next directory: its state before its names were read, and its metadata.
    Directory(DirectoryState, Metadata),
    /// Some of its entries.
    Entries(Vec<E>),
    /// It has no more.
    End,
    /// It cannot be read to its end; or the next one cannot be opened.
    Failed(EntryError),
}

/// Tells of a tree for its catalog. Symbolic links are not followed.
pub trait RemoteCatalog {
    /// Looks at entries by their paths below the root, in this order.
    ///
    /// # Errors
    /// The tree cannot tell that ([`ErrorClass::Unsupported`](dmover_model::ErrorClass)), or cannot be asked.
    fn objects(&self, paths: &[TreePath]) -> Result<Vec<Looked>, EntryError>;

    /// Reads the access ACLs of entries, in this order.
    ///
    /// # Errors
    /// As [`Self::objects`].
    fn acls(&self, paths: &[TreePath]) -> Result<Vec<LookedAcl>, EntryError>;

    /// Checks directories of an earlier pass. Names come only of those that are there, on the file system of the root, and have
    /// another state than at that time. A directory may be begun again if a host was lost meanwhile.
    ///
    /// # Errors
    /// As [`Self::objects`]; what was told before counts.
    fn revisit(
        &self,
        directories: &[Revisit],
        each: &mut dyn FnMut(CatalogPart<ListedName>) -> bool,
    ) -> Result<(), EntryError>;

    /// Looks at all entries of directories.
    ///
    /// # Errors
    /// As [`Self::revisit`].
    fn describe(
        &self,
        directories: &[TreePath],
        each: &mut dyn FnMut(CatalogPart<DescribedEntry>) -> bool,
    ) -> Result<(), EntryError>;
}
