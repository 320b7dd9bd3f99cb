//! Files that a task has copied from a source that is read through messages, until the source is asked once more who has their
//! names: one request for many, before the task ends.
use dmover_model::{Identity, Metadata, Name, TreePath};

/// A file that was copied.
pub(crate) struct CopiedName {
    pub name: Name,
    /// What had the name when it was copied.
    pub identity: Identity,
    /// The destination had an older version.
    pub is_renewed: bool,
}

/// Files of one directory.
pub(crate) struct CopiedNames {
    pub directory: TreePath,
    /// The directory at the source.
    pub metadata: Metadata,
    pub files: Vec<CopiedName>,
}

/// Files of which the source has not been asked once more.
#[derive(Default)]
pub(crate) struct CopiedFiles {
    directories: Vec<CopiedNames>,
    count: usize,
}

impl CopiedFiles {
    /// So many are asked about at once.
    const MAX: usize = 512;

    /// Adds a file. Returns whether they are to be asked about now.
    pub fn add(&mut self, (directory, metadata): (&TreePath, &Metadata), file: CopiedName) -> bool {
        self.count += 1;
        match self.directories.last_mut() {
            Some(last) if last.directory == *directory => last.files.push(file),
            _ => self.directories.push(CopiedNames {
                directory: directory.clone(),
                metadata: metadata.clone(),
                files: vec![file],
            }),
        }
        self.count >= Self::MAX
    }

    pub fn take(&mut self) -> Vec<CopiedNames> {
        self.count = 0;
        std::mem::take(&mut self.directories)
    }
}
