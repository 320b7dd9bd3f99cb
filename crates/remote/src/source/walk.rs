//! Directories that are asked for with all that is below them, before they are entered.
use dmover_model::{ErrorClass, Name, Operation, TreePath};
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use dmover_schedule::time::Instant;
use dmover_tree::Needs;
use dmover_wire::agent::{
    DirectoryAt, Request, WALK_ENTRIES, WALK_MAX, WALKED_ENTRIES_MAX, WalkPart, Walked,
    WalkedDirectory,
};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::asking::{Asked, Asking};

/// The most walks of a tree whose answers have not come to their end: about one for each mover on a long line. Each has a channel, and
/// files need some, too.
const WALKS_MAX: usize = 48;
/// How long a walk keeps its place if others want it: its mover may have handed its directories to the queue.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the next answer may take. After that the directories are asked for one by one.
const STUCK: Duration = Duration::from_secs(10);
/// How long the answers count. What a directory has got since is found by the next pass, and a name is looked at again
/// before anything is deleted because a list lacks it.
const FRESH: Duration = Duration::from_secs(30);

/// A request about directories, and what has come of its answers.
#[derive(Debug)]
pub(super) struct Walk {
    /// The directory that those which were asked for are in.
    above: DirectoryAt,
    names: HashSet<Name>,
    since: Instant,
    /// Whoever has it reads the next answers. `None`: they have come to their end.
    asked: Mutex<Option<Asked>>,
    state: Mutex<State>,
    /// See [`Walks`].
    are_refused: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` within: it was not sent.
    received: HashMap<TreePath, Option<WalkedDirectory>>,
    /// All directories and entries that have come.
    directories: usize,
    entries: usize,
    is_over: bool,
}

impl Walk {
    /// Whether a directory is one of those that were asked for, or below one.
    fn is_about(&self, path: &TreePath) -> bool {
        let (above, path) = (self.above.path.as_bytes(), path.as_bytes());
        let below = if above.is_empty() {
            Some(path)
        } else {
            path.strip_prefix(above).and_then(|rest| rest.strip_prefix(b"/"))
        };
        let first = below.and_then(|below| below.split(|byte| *byte == b'/').next());
        first
            .and_then(|first| Name::new(first).ok())
            .is_some_and(|first| self.names.contains(&first))
    }

    pub(super) fn is_fresh(&self) -> bool {
        self.since.elapsed() <= FRESH
    }

    /// Whether the answer about a directory is here, or may still come.
    pub(super) fn may_have(&self, path: &TreePath) -> bool {
        let state = lock(&self.state);
        self.is_fresh() && (!state.is_over || state.received.contains_key(path))
    }

    /// Waits until the answer about a directory has come, or all answers have.
    pub(super) fn wait_for(&self, path: &TreePath, asking: &Asking) {
        let is_here = |state: &State| state.is_over || state.received.contains_key(path);
        while !is_here(&lock(&self.state)) {
            let mut asked = lock(&self.asked);
            // Another mover may have read it meanwhile.
            let Some(open) = asked.as_ref().filter(|_| !is_here(&lock(&self.state))) else {
                continue;
            };
            let about = (Operation::ReadDirectory, &self.above.path, &b""[..]);
            // An error comes again when the directory is asked for by itself.
            // Movers that need other directories of the walk do not wait for one that hangs.
            let part = asking.receive_within::<WalkPart>(open, about, STUCK);
            let mut state = lock(&self.state);
            let part = match part {
                Some(Ok(part)) if self.may_come(&part, &mut state) => Some(part),
                // The host is gone, or the answer is late; others may know walks.
                Some(Err(error)) if error.class == ErrorClass::Cancelled => None,
                None => None,
                Some(_) => {
                    self.are_refused.store(true, Relaxed);
                    None
                }
            };
            let none = WalkPart { is_last: true, ..WalkPart::default() };
            let WalkPart { directories, is_last } = part.unwrap_or(none);
            state.is_over |= is_last;
            let ended = if is_last { asked.take() } else { None };
            let found = directories.into_iter().map(|Walked { path, found }| (path, found));
            state.received.extend(found);
            // Dropping a channel may wait for a write.
            drop((state, asked));
            drop(ended);
        }
    }

    /// Whether a part can be one that was asked for. Another one would fill the memory of this host.
    fn may_come(&self, part: &WalkPart, state: &mut State) -> bool {
        let found = part.directories.iter().filter_map(|walked| walked.found.as_ref());
        state.entries += found.map(|found| found.entries.len()).sum::<usize>();
        state.directories += part.directories.len();
        state.directories <= WALK_MAX
            && state.entries <= WALK_ENTRIES + WALKED_ENTRIES_MAX
            && (part.is_last || !part.directories.is_empty())
            && part.directories.iter().all(|walked| self.is_about(&walked.path))
    }

    /// Takes the answer about a directory, once it has come.
    pub(super) fn take(&self, path: &TreePath, asking: &Asking) -> Option<WalkedDirectory> {
        if !self.is_fresh() {
            self.give_up();
            return None;
        }
        self.wait_for(path, asking);
        lock(&self.state).received.remove(path).flatten()
    }

    /// Whether something of it can still be used.
    fn is_needed(&self) -> bool {
        let state = lock(&self.state);
        self.is_fresh() && (!state.is_over || !state.received.is_empty())
    }

    fn is_over(&self) -> bool {
        lock(&self.state).is_over
    }

    /// Forgets the answers, also those to come.
    fn give_up(&self) {
        let asked = lock(&self.asked).take();
        let mut state = lock(&self.state);
        state.is_over = true;
        let received = std::mem::take(&mut state.received);
        drop(state);
        drop((asked, received));
    }
}

/// The walks of a tree.
#[derive(Debug, Default)]
pub(super) struct Walks {
    walks: Mutex<Vec<Arc<Walk>>>,
    /// An agent of an earlier version does not know the request.
    are_refused: Arc<AtomicBool>,
}

impl Walks {
    /// Asks for directories; `None`: there is no room for the request now.
    pub(super) fn begin(
        &self,
        (directory, names): (&DirectoryAt, Vec<Name>),
        needs: Needs,
        asking: &Asking,
    ) -> Option<Arc<Walk>> {
        if self.are_refused.load(Relaxed) {
            return None;
        }
        let mut walks = lock(&self.walks);
        let mut forgotten: Vec<Arc<Walk>> =
            walks.extract_if(.., |walk| !walk.is_needed()).collect();
        if walks.iter().filter(|walk| !walk.is_over()).count() >= WALKS_MAX {
            let is_late = |walk: &mut Arc<Walk>| !walk.is_over() && walk.since.elapsed() > PATIENCE;
            forgotten.extend(walks.extract_if(.., is_late));
        }
        let has_room = walks.iter().filter(|walk| !walk.is_over()).count() < WALKS_MAX;
        drop(walks);
        // Dropping a channel may wait for a write.
        for walk in &forgotten {
            walk.give_up();
        }
        if !has_room {
            return None;
        }
        let (above, known) = (directory.clone(), names.iter().cloned().collect());
        let request = Request::Walk { directory: directory.clone(), names, needs };
        let asked = asking.send_ahead(&request)?;
        let walk = Arc::new(Walk {
            above,
            names: known,
            since: Instant::now(),
            asked: Mutex::new(Some(asked)),
            state: Mutex::default(),
            are_refused: Arc::clone(&self.are_refused),
        });
        lock(&self.walks).push(Arc::clone(&walk));
        Some(walk)
    }

    /// The walk of another mover that has, or will have, a directory in this one.
    pub(super) fn of(&self, above: &DirectoryAt, path: &TreePath) -> Option<Arc<Walk>> {
        let walks = lock(&self.walks).clone();
        let has =
            |walk: &Arc<Walk>| walk.above == *above && walk.is_about(path) && walk.may_have(path);
        walks.into_iter().find(has)
    }

    /// Takes the answer about a directory that another mover may have asked for.
    pub(super) fn take(
        &self,
        path: &TreePath,
        asking: &Asking,
    ) -> Option<(WalkedDirectory, Arc<Walk>)> {
        let walks = lock(&self.walks).clone();
        let mut about = walks.into_iter().filter(|walk| walk.is_about(path) && walk.may_have(path));
        about.find_map(|walk| Some((walk.take(path, asking)?, walk)))
    }
}
