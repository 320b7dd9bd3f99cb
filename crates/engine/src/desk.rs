//! The questions of a remote mover, and the answers and facts of its coordinator.
use dmover_model::{EntryError, FileSystemName, Identity, MountId, TreePath};
use serde::{Deserialize, Serialize};

use crate::below::MountedBelow;
use crate::context::Engine;
use crate::fleet::RootMarks;
use crate::made::Carried;
use crate::mutex::lock;
use crate::sync::{Doubts, OnTheWay};
use crate::verify::Times;

/// A question that only the coordinator can answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Question {
    /// Both ends of all roots at present.
    Roots,
    /// The mounts below the roots that belong to the job.
    MountedBelow,
    /// Which of these mount points differ on the coordinator's host.
    OtherPlaces(Vec<MountedBelow>),
    /// The number of a file system in the job's table.
    Mount(FileSystemName),
    /// Whether this many extra names may be deleted now.
    OnTheWay(u64),
    /// Which of these paths are in the manifest.
    Known(Vec<TreePath>),
    /// The times that a directory must get in the end.
    KeptTimes(TreePath),
    /// The result of a large file that was just sealed.
    Sealed(Identity),
}

/// The answer of the coordinator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// `Err`: why they cannot be read.
    Roots(Result<RootMarks, String>),
    /// All mount points.
    MountedBelow(Vec<MountedBelow>),
    /// For each mount point, whether it differs.
    OtherPlaces(Vec<bool>),
    /// `None`: the coordinator does not see such a file system.
    Mount(Option<MountId>),
    /// What to do with the names.
    OnTheWay(OnTheWay),
    /// For each path, whether it is there. `Err`: why this cannot be determined.
    Known(Result<Vec<bool>, String>),
    /// The times, if there are any.
    KeptTimes(Option<Times>),
    /// The result, if there is one.
    Sealed(Option<Box<Carried>>),
}

/// A fact that movers must learn before they perform the tasks that depend on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Fact {
    /// The doubtful files.
    Doubts(Doubts),
    /// A directory of the destination, which must not be entered as a source.
    Forbidden(Identity),
}

/// The connection to a remote coordinator.
pub trait Desk: Send + Sync {
    /// Asks a question and waits for the answer. `None`: no answer, and all leases are lost.
    fn ask(&self, question: Question) -> Option<Answer>;
}

/// An error with its path.
pub(crate) fn named(error: &EntryError) -> String {
    format!("'{}': {error}", error.path.to_path().display())
}

impl Engine {
    /// Answers a question of a remote mover.
    pub fn answer(&self, question: Question) -> Answer {
        match question {
            Question::Roots => Answer::Roots(self.marks().map_err(|error| named(&error))),
            Question::MountedBelow => Answer::MountedBelow(self.mounted_below()),
            Question::OtherPlaces(theirs) => Answer::OtherPlaces(self.other_places(&theirs)),
            Question::Mount(name) => Answer::Mount(self.mounts.named(&name)),
            Question::OnTheWay(names) => Answer::OnTheWay(self.guard.on_the_way(self, names)),
            Question::Known(paths) => {
                let known = lock(&self.known);
                let all: Result<Vec<bool>, _> = paths.iter().map(|path| known.has(path)).collect();
                Answer::Known(all)
            }
            Question::KeptTimes(path) => Answer::KeptTimes(self.kept_times(&path)),
            Question::Sealed(identity) => {
                Answer::Sealed(self.sealed_content(identity).map(Box::new))
            }
        }
    }

    /// Asks the coordinator, if it is another process.
    pub(crate) fn ask(&self, question: impl FnOnce() -> Question) -> Option<Answer> {
        self.desk.as_ref().and_then(|desk| desk.ask(question()))
    }
}
