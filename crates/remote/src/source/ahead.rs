//! Files that will be opened soon: requests for them are sent ahead.
use dmover_net::connection::Channel;
use dmover_observe::lock;
use std::collections::VecDeque;
use std::sync::Mutex;

/// The most requests of a directory that are sent ahead.
const SENT_MAX: usize = 32;

/// A name, and whether a symbolic link is followed.
type Wanted = (Vec<u8>, bool);

/// The announced files of one directory.
#[derive(Debug, Default)]
pub(super) struct Ahead(Mutex<Queues>);

#[derive(Debug, Default)]
struct Queues {
    waiting: VecDeque<Wanted>,
    sent: VecDeque<(Wanted, Channel)>,
    /// Requests that are being sent.
    leaving: usize,
}

impl Ahead {
    /// Announces files, in the order in which they will be opened.
    pub(super) fn announce(&self, names: &[&[u8]], follows: bool) {
        let mut queues = lock(&self.0);
        queues.waiting.extend(names.iter().map(|name| (name.to_vec(), follows)));
    }

    /// Sends requests as long as there is room.
    pub(super) fn fill(&self, send: impl Fn(&[u8], bool) -> Option<Channel>) {
        loop {
            let mut queues = lock(&self.0);
            if queues.sent.len() + queues.leaving >= SENT_MAX {
                return;
            }
            let Some(wanted) = queues.waiting.pop_front() else { return };
            queues.leaving += 1;
            drop(queues);
            let channel = send(&wanted.0, wanted.1);
            let mut queues = lock(&self.0);
            queues.leaving -= 1;
            let Some(channel) = channel else {
                // Whoever opens it gets the error.
                queues.waiting.clear();
                return;
            };
            queues.sent.push_back((wanted, channel));
        }
    }

    /// The channel of the answer for a file, if it was asked for. It is not announced any more then.
    pub(super) fn take(&self, name: &[u8], follows: bool) -> Option<Channel> {
        let is_it = |(wanted, its): &Wanted| wanted == name && *its == follows;
        let mut queues = lock(&self.0);
        if let Some(at) = queues.sent.iter().position(|(wanted, _)| is_it(wanted)) {
            return queues.sent.remove(at).map(|(_, channel)| channel);
        }
        let at = queues.waiting.iter().position(is_it)?;
        queues.waiting.remove(at);
        // It comes after those that were sent, so the first of them is probably not wanted any more.
        let unwanted = queues.sent.pop_front();
        drop(queues);
        drop(unwanted);
        None
    }
}
