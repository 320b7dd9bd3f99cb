//! The questions of a remote mover to its coordinator, and the answers.
use dmover_model::{Answer, CoordinatorRequest};

use crate::context::Engine;
use crate::root_marks::{self, named};
use crate::submounts;

impl Engine {
    /// Answers a question of a remote mover.
    pub fn answer(&self, question: CoordinatorRequest) -> Answer {
        match question {
            CoordinatorRequest::Roots => {
                Answer::Roots(root_marks::marks(self).map_err(|error| named(&error)))
            }
            CoordinatorRequest::MountedBelow => {
                Answer::MountedBelow(submounts::mounted_below(self))
            }
            CoordinatorRequest::OtherPlaces(theirs) => {
                Answer::OtherPlaces(submounts::other_places(self, &theirs))
            }
            CoordinatorRequest::Mount(name) => Answer::Mount(self.end.mounts.named(&name)),
            CoordinatorRequest::OnTheWay(names) => {
                Answer::OnTheWay(self.pass.guard.on_the_way(self, names))
            }
            CoordinatorRequest::Known(paths) => Answer::Known(self.proof.known(&paths)),
            CoordinatorRequest::KeptTimes(path) => Answer::KeptTimes(self.proof.kept_times(&path)),
            CoordinatorRequest::Sealed(identity) => {
                Answer::Sealed(self.proof.sealed(identity).map(Box::new))
            }
        }
    }
}
