//! Files that will be opened soon: their heads are asked for ahead, many with one request.
use dmover_model::{EntryError, Name};
use dmover_net::connection::Channel;
use dmover_observe::lock;
use dmover_wire::agent::{Answer, Head};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

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
    channel: Channel,
    /// When it was sent.
    at: Instant,
    /// The names whose answers were not taken yet.
    names: VecDeque<Name>,
    /// Answers that have come, in the order of the names.
    heads: VecDeque<Answer<Head>>,
}

/// Files that one mover will open, in this order.
#[derive(Debug)]
struct Announcement {
    number: u64,
    follows: bool,
    waiting: VecDeque<Name>,
    sent: VecDeque<Sent>,
    /// Requests that are being sent.
    leaving: usize,
}

impl Announcement {
    fn is_used_up(&self) -> bool {
        self.waiting.is_empty() && self.sent.is_empty() && self.leaving == 0
    }

    fn may_send(&self) -> bool {
        !self.waiting.is_empty() && self.sent.len() + self.leaving < SENT_MAX
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

impl Ahead {
    /// Announces files, in the order in which they will be opened.
    pub(super) fn announce(&self, names: impl Iterator<Item = Name>, follows: bool) {
        let (waiting, sent) = (names.collect(), VecDeque::new());
        let mut announcements = lock(&self.0);
        announcements.last += 1;
        let number = announcements.last;
        announcements.all.retain(|announcement| !announcement.is_used_up());
        if announcements.all.len() >= ANNOUNCEMENTS_MAX {
            announcements.all.pop_front();
        }
        announcements.all.push_back(Announcement { number, follows, waiting, sent, leaving: 0 });
    }

    /// Sends requests as long as there is room.
    pub(super) fn fill(&self, send: impl Fn(Vec<Name>, bool) -> Option<Channel>) {
        loop {
            let mut announcements = lock(&self.0);
            let next = announcements.all.iter_mut().find(|announcement| announcement.may_send());
            let Some(next) = next else { return };
            let count = next.waiting.len().min(NAMES_MAX);
            let names: VecDeque<Name> = next.waiting.drain(..count).collect();
            let (number, follows) = (next.number, next.follows);
            next.leaving += 1;
            drop(announcements);
            let channel = send(names.iter().cloned().collect(), follows);
            let mut announcements = lock(&self.0);
            // It may have been forgotten meanwhile.
            let Some(announcement) = announcements.of(number) else { continue };
            announcement.leaving -= 1;
            let Some(channel) = channel else {
                // Whoever opens it gets the error.
                announcement.waiting.clear();
                return;
            };
            announcement.sent.push_back(Sent {
                channel,
                at: Instant::now(),
                names,
                heads: VecDeque::new(),
            });
        }
    }

    /// The answer for a file that was asked for; `None`: it was not, and is not announced any more. `receive`: the next part
    /// of the answers on a channel.
    pub(super) fn take(
        &self,
        name: &Name,
        follows: bool,
        receive: impl Fn(&Channel) -> Result<Vec<Answer<Head>>, EntryError>,
    ) -> Option<Result<Head, EntryError>> {
        let (number, mut sent) = self.take_request(name, follows)?;
        let mut head = None;
        while let Some(next) = sent.names.pop_front() {
            while sent.heads.is_empty() {
                match receive(&sent.channel) {
                    Ok(heads) => sent.heads.extend(heads),
                    Err(error) => return Some(Err(error)),
                }
            }
            head = sent.heads.pop_front();
            if next == *name {
                break;
            }
        }
        if !sent.names.is_empty()
            && let Some(announcement) = lock(&self.0).of(number)
        {
            announcement.sent.push_front(sent);
        }
        head
    }

    /// The request for a file, and the number of its announcement.
    fn take_request(&self, name: &Name, follows: bool) -> Option<(u64, Sent)> {
        let mut announcements = lock(&self.0);
        let mut dropped = Vec::new();
        let mut found = None;
        for announcement in announcements.all.iter_mut().filter(|its| its.follows == follows) {
            // What is old is asked for again: after a pause, or before another attempt.
            while announcement.sent.front().is_some_and(|sent| sent.at.elapsed() > FRESH) {
                dropped.extend(announcement.sent.pop_front());
            }
            if let Some(at) = announcement.sent.iter().position(|sent| sent.names.contains(name)) {
                // Those before it are not wanted any more: files are opened in the order of their announcement.
                dropped.extend(announcement.sent.drain(..at));
                found = announcement.sent.pop_front().map(|sent| (announcement.number, sent));
                break;
            }
            announcement.waiting.retain(|waiting| waiting != name);
        }
        // Dropping a channel may wait for a write.
        drop(announcements);
        drop(dropped);
        found
    }
}
