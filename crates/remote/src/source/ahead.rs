//! Files that will be opened soon: their heads are asked for ahead, many with one request.
use dmover_model::{EntryError, Name};
use dmover_net::connection::Channel;
use dmover_observe::lock;
use dmover_wire::agent::{Answer, Head};
use std::collections::VecDeque;
use std::sync::Mutex;

/// The most files of one request. More would save nothing, and the first of them waits for those that share its message.
const NAMES_MAX: usize = 32;
/// The most requests of a directory that are under way: while one is used up, the next one arrives.
const SENT_MAX: usize = 3;

/// The answers to one request, as far as nobody has taken them.
#[derive(Debug)]
struct Sent {
    channel: Channel,
    follows: bool,
    /// The names whose answers were not taken yet.
    names: VecDeque<Name>,
    /// Answers that have come, in the order of the names.
    heads: VecDeque<Answer<Head>>,
}

/// The announced files of one directory.
#[derive(Debug, Default)]
pub(super) struct Ahead(Mutex<Queues>);

#[derive(Debug, Default)]
struct Queues {
    waiting: VecDeque<(Name, bool)>,
    sent: VecDeque<Sent>,
    /// Requests that are being sent.
    leaving: usize,
}

impl Queues {
    /// The next names for one request, which are followed alike.
    fn next(&mut self) -> Option<(VecDeque<Name>, bool)> {
        let follows = self.waiting.front()?.1;
        let alike = self.waiting.iter().take(NAMES_MAX).take_while(|(_, its)| *its == follows);
        let count = alike.count();
        Some((self.waiting.drain(..count).map(|(name, _)| name).collect(), follows))
    }
}

impl Ahead {
    /// Announces files, in the order in which they will be opened.
    pub(super) fn announce(&self, names: impl Iterator<Item = Name>, follows: bool) {
        lock(&self.0).waiting.extend(names.map(|name| (name, follows)));
    }

    /// Sends requests as long as there is room.
    pub(super) fn fill(&self, send: impl Fn(Vec<Name>, bool) -> Option<Channel>) {
        loop {
            let mut queues = lock(&self.0);
            if queues.sent.len() + queues.leaving >= SENT_MAX {
                return;
            }
            let Some((names, follows)) = queues.next() else { return };
            queues.leaving += 1;
            drop(queues);
            let channel = send(names.iter().cloned().collect(), follows);
            let mut queues = lock(&self.0);
            queues.leaving -= 1;
            let Some(channel) = channel else {
                // Whoever opens it gets the error.
                queues.waiting.clear();
                return;
            };
            queues.sent.push_back(Sent { channel, follows, names, heads: VecDeque::new() });
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
        let mut queues = lock(&self.0);
        let is_in = |sent: &Sent| sent.follows == follows && sent.names.contains(name);
        let Some(at) = queues.sent.iter().position(is_in) else {
            queues.waiting.retain(|(waiting, its)| (waiting, *its) != (name, follows));
            return None;
        };
        // Those before it are not wanted any more: files are opened in the order in which they were announced.
        let before: Vec<Sent> = queues.sent.drain(..at).collect();
        let mut sent = queues.sent.pop_front()?;
        drop(queues);
        drop(before);
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
        if !sent.names.is_empty() {
            lock(&self.0).sent.push_front(sent);
        }
        head
    }
}
