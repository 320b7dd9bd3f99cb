//! What a mover elsewhere asks of its coordinator, and what the coordinator lets it know.
use dmover_model::{EntryError, Identity, MountId, TreePath};
use serde::{Deserialize, Serialize};

use crate::below::MountedBelow;
use crate::context::{Engine, lock};
use crate::fleet::RootMarks;
use crate::made::Carried;
use crate::sync::{Doubts, OnTheWay};
use crate::verify::Times;

/// Something that only the coordinator knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Question {
    /// Both ends of all roots, as they are at present.
    Roots,
    /// What is mounted below them, as far as it takes part.
    MountedBelow,
    /// Which of these places are not the same there?
    OtherPlaces(Vec<MountedBelow>),
    /// The number of a file system.
    Mount(FileSystemName),
    /// May so many names that were just found go now?
    OnTheWay(u64),
    /// Which of these paths does the manifest name?
    Known(Vec<TreePath>),
    /// Times that a directory is to have in the end.
    KeptTimes(TreePath),
    /// What is known of a large file that was sealed a moment ago.
    Sealed(Identity),
}

/// What the coordinator answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// `Err`: they cannot be looked at, and why.
    Roots(Result<RootMarks, String>),
    /// All places.
    MountedBelow(Vec<MountedBelow>),
    /// For each place.
    OtherPlaces(Vec<bool>),
    /// `None`: it does not see such a file system.
    Mount(Option<MountId>),
    /// What happens to them.
    OnTheWay(OnTheWay),
    /// For each path. `Err`: it cannot be found out, and why.
    Known(Result<Vec<bool>, String>),
    /// If there are any.
    KeptTimes(Option<Times>),
    /// If anything is.
    Sealed(Option<Box<Carried>>),
}

/// What tells a file system from others, also on other hosts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileSystemName {
    /// A device number under one kernel, which is known by the random id of its boot.
    Device(String, u64),
    /// A file system that has one name everywhere: its type and what was mounted, such as `nfs server:/export`.
    Shared(String),
    /// Its UUID.
    Uuid(String),
}

/// Something that movers have to know before they do what follows from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Fact {
    /// What is in doubt.
    Doubts(Doubts),
    /// A directory of the destination, not to be entered as a source.
    Forbidden(Identity),
}

/// The way to a coordinator elsewhere.
pub trait Desk: Send + Sync {
    /// Asks, and waits for the answer. `None`: there is none, and whatever was leased is lost.
    fn ask(&self, question: Question) -> Option<Answer>;
}

/// An error with the path that it is about.
pub(crate) fn named(error: &EntryError) -> String {
    format!("'{}': {error}", error.path.to_path().display())
}

impl Engine {
    /// Answers a mover elsewhere.
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

    /// Asks the coordinator, if it is elsewhere.
    pub(crate) fn ask(&self, question: impl FnOnce() -> Question) -> Option<Answer> {
        self.desk.as_ref().and_then(|desk| desk.ask(question()))
    }
}
