//! Files that will be opened soon: their heads are asked for ahead, many with one request.
use dmover_model::{EntryError, Name};
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use dmover_schedule::time::Instant;
use dmover_wire::agent::{Answer, Head};
use std::collections::VecDeque;
use std::time::Duration;

use super::asking::Asked;

/// The most files of one request. More would save nothing, and the first of them waits for those that share its message.
const NAMES_MAX: usize = 32;
/// The most requests of an announcement that are under way: while one is used up, the next one arrives.
const SENT_MAX: usize = 8;
/// The most announcements of a directory: one for each mover that works in it. The oldest one is forgotten.
const ANNOUNCEMENTS_MAX: usize = 16;

/// How long an answer counts. Content and version of a file come from one moment, so an older one is no wrong copy.
const FRESH: Duration = Duration::from_secs(30);

/// The answers to one request, as far as nobody has taken them.
#[derive(Debug)]
struct Sent {
    asked: Asked,
    /// When it was sent.
    at: Instant,
    /// The names whose answers were not taken yet.
    names: VecDeque<Name>,
    /// Answers that have come, in the order of the names.
    heads: VecDeque<Answer<Head>>,
}

impl Sent {
    /// The answer for a name that is in it. Those before it are not wanted any more.
    fn take(&mut self, name: &Name, directory: &impl Asks) -> Result<Answer<Head>, EntryError> {
        loop {
            while self.heads.is_empty() {
                self.heads.extend(directory.answers(&self.asked)?);
            }
            if let (Some(next), Some(head)) = (self.names.pop_front(), self.heads.pop_front())
                && next == *name
            {
                return Ok(head);
            }
        }
    }
}

/// Files that one mover will open, in this order.
#[derive(Debug)]
struct Announcement {
    number: u64,
    follows: bool,
    waiting: VecDeque<Name>,
    sent: VecDeque<Sent>,
    /// Requests that somebody has in his hands: they are being sent, or their answers are read.
    held: usize,
}

/// What has become of the announcement of a file.
enum Found {
    /// The request that names it.
    Sent(Sent),
    /// No request names it yet, nor those that follow it.
    Waiting(VecDeque<Name>),
}

impl Announcement {
    fn is_used_up(&self) -> bool {
        self.waiting.is_empty() && self.sent.is_empty() && self.held == 0
    }

    fn may_send(&self) -> bool {
        !self.waiting.is_empty() && self.sent.len() + self.held < SENT_MAX
    }
}

/// The announced files of one directory.
#[derive(Debug, Default)]
pub(super) struct Ahead(Mutex<Announcements>);

#[derive(Debug, Default)]
struct Announcements {
    all: VecDeque<Announcement>,
    last: u64,
}

impl Announcements {
    fn of(&mut self, number: u64) -> Option<&mut Announcement> {
        self.all.iter_mut().find(|announcement| announcement.number == number)
    }
}

/// How a directory asks for heads.
pub(super) trait Asks {
    /// Sends a request that can do without; `None`: there is no room for it now.
    fn ask_ahead(&self, names: Vec<Name>, follows: bool) -> Option<Asked>;

    /// Sends a request that has to be answered.
    fn ask(&self, names: Vec<Name>, follows: bool) -> Result<Asked, EntryError>;

    /// The next part of the answers to a request.
    fn answers(&self, asked: &Asked) -> Result<Vec<Answer<Head>>, EntryError>;
}

impl Ahead {
    /// Announces files, in the order in which they will be opened.
    pub(super) fn announce(
        &self,
        names: impl Iterator<Item = Name>,
        follows: bool,
        directory: &impl Asks,
    ) {
        let (waiting, sent) = (names.collect(), VecDeque::new());
        let mut announcements = lock(&self.0);
        announcements.last += 1;
        let number = announcements.last;
        announcements.all.retain(|announcement| !announcement.is_used_up());
        if announcements.all.len() >= ANNOUNCEMENTS_MAX {
            announcements.all.pop_front();
        }
        announcements.all.push_back(Announcement { number, follows, waiting, sent, held: 0 });
        drop(announcements);
        self.fill(number, directory);
    }

    /// Sends requests as long as there is room. Only of one announcement: whoever sends those of another mover might have a
    /// name in his hands while that one looks for it.
    fn fill(&self, number: u64, directory: &impl Asks) {
        loop {
            let mut announcements = lock(&self.0);
            let next = announcements.of(number).filter(|next| next.may_send());
            let Some(next) = next else { return };
            let count = next.waiting.len().min(NAMES_MAX);
            let names: VecDeque<Name> = next.waiting.drain(..count).collect();
            let follows = next.follows;
            next.held += 1;
            drop(announcements);
            let asked = directory.ask_ahead(names.iter().cloned().collect(), follows);
            let mut announcements = lock(&self.0);
            // It may have been forgotten meanwhile.
            let Some(announcement) = announcements.of(number) else { return };
            announcement.held -= 1;
            let Some(asked) = asked else {
                // Whoever opens one of them asks for those after it as well, and gets the error.
                for name in names.into_iter().rev() {
                    announcement.waiting.push_front(name);
                }
                return;
            };
            let (at, heads) = (Instant::now(), VecDeque::new());
            announcement.sent.push_back(Sent { asked, at, names, heads });
        }
    }

    /// The answer for a file that was announced; `None`: it was not. Those after it are on their way while it is used.
    pub(super) fn take(
        &self,
        name: &Name,
        follows: bool,
        directory: &impl Asks,
    ) -> Option<Result<Head, EntryError>> {
        let (number, found) = self.find(name, follows)?;
        let sent = match found {
            Found::Sent(sent) => Ok(sent),
            Found::Waiting(names) => ask_at_once(names, follows, directory),
        };
        let taken = sent.and_then(|mut sent| Ok((sent.take(name, directory)?, sent)));
        let (head, rest) = match taken {
            Ok((head, sent)) => (head, Some(sent).filter(|sent| !sent.names.is_empty())),
            Err(error) => (Err(error), None),
        };
        if let Some(announcement) = lock(&self.0).of(number) {
            announcement.held -= 1;
            if let Some(sent) = rest {
                announcement.sent.push_front(sent);
            }
        }
        self.fill(number, directory);
        Some(head)
    }

    /// A file among what was announced, and the number of its announcement.
    fn find(&self, name: &Name, follows: bool) -> Option<(u64, Found)> {
        let mut announcements = lock(&self.0);
        let mut dropped = Vec::new();
        let (mut found, mut found_in) = (None, 0);
        for announcement in announcements.all.iter_mut().filter(|its| its.follows == follows) {
            // What is old is asked for again: after a pause, or before another attempt.
            while announcement.sent.front().is_some_and(|sent| sent.at.elapsed() > FRESH) {
                dropped.extend(announcement.sent.pop_front());
            }
            // Files are opened in the order of their announcement: those before this one are not wanted any more.
            if let Some(at) = announcement.sent.iter().position(|sent| sent.names.contains(name)) {
                dropped.extend(announcement.sent.drain(..at));
                found = announcement.sent.pop_front().map(Found::Sent);
            } else if let Some(at) = announcement.waiting.iter().position(|next| next == name) {
                dropped.extend(announcement.sent.drain(..));
                let end = announcement.waiting.len().min(at + NAMES_MAX);
                let names = announcement.waiting.drain(..end).skip(at).collect();
                found = Some(Found::Waiting(names));
            }
            if found.is_some() {
                announcement.held += 1;
                found_in = announcement.number;
                break;
            }
        }
        // Dropping a channel may wait for a write.
        drop(announcements);
        drop(dropped);
        found.map(|found| (found_in, found))
    }
}

/// Asks for files whose turn came before there was room for their request. All answers are taken at once: a request ahead may
/// hold its channel, this one must not, or those who wait for a channel might wait for each other.
fn ask_at_once(
    names: VecDeque<Name>,
    follows: bool,
    directory: &impl Asks,
) -> Result<Sent, EntryError> {
    let asked = directory.ask(names.iter().cloned().collect(), follows)?;
    let mut heads = VecDeque::new();
    while heads.len() < names.len() {
        heads.extend(directory.answers(&asked)?);
    }
    Ok(Sent { asked, at: Instant::now(), names, heads })
}
